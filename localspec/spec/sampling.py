"""The choice of a token: shared noise.

A model's choice at position p is argmax over its shaped distribution of log prob(x) + g(seed, p, x), where g is Gumbel
noise from a counter-based hash. The maximum of Gumbel-perturbed log probabilities is an exact sample of the
distribution; since g depends on nothing but seed, position and id, the target's choices do not depend on the drafter,
and a drafter that uses the same noise agrees far more often than by chance (Daliri, Musco and Suresh, "Coupling without
Communication and Drafter-Invariant Speculative Decoding", 2024).

Shaping, in this order: penalties, temperature, top-k, top-p, min-p. Temperature 0 is argmax, the lowest id on ties.

A large vocabulary makes a row of 1 MB. It is read once; what follows are arrays of a few dozen numbers, where the time
goes into calling numpy at all (evaluating a model empties the caches of its code). So few calls, and methods instead of
functions that look for them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from localspec.errors import DecodeError
from localspec.spec.events import Sampling

Row = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

_MASK = (1 << 64) - 1
_STEP = 0x9E3779B97F4A7C15  # splitmix64's increment and multipliers
_MUL1, _MUL2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_U_STEP, _U_MUL1, _U_MUL2 = np.uint64(_STEP), np.uint64(_MUL1), np.uint64(_MUL2)
_S30, _S27, _S31, _S11 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(11)

# 53 random bits give noise in [-3.7, 37.5]: an id further than the span below the best log probability cannot win.
NOISE_SPAN = 41.2

_GREEDY_CANDIDATES = 8  # enough for the probability and the margin of a greedy proposal

_FOLD = 64  # rows that a vocabulary is folded into to find its largest entries


def mix(value: int) -> int:
    """Splitmix64's finaliser, a bijection of 64-bit integers."""
    value &= _MASK
    value = ((value ^ (value >> 30)) * _MUL1) & _MASK
    value = ((value ^ (value >> 27)) * _MUL2) & _MASK
    return value ^ (value >> 31)


@lru_cache(maxsize=16)
def _seed_key(seed: int) -> int:
    return mix(seed + _STEP)


def uniform(seed: int, position: int, ids: Ids) -> Floats:
    """Uniform numbers in (0, 1), a function of seed, position and id alone.

    Args:
        seed: Any integer; taken modulo 2**64.
        position: Index of the chosen token in the target's ids, from the conversation's start.
        ids: Token ids of the target, shape (n,).

    Returns:
        float64, shape (n,): multiples of 2**-53, offset by half of it, so that neither 0 nor 1 occurs.
    """
    key = mix(_seed_key(seed) + _STEP * (position + 1))
    bits = ids.view(np.uint64) * _U_STEP
    bits += np.uint64((key + _STEP) & _MASK)
    bits ^= bits >> _S30
    bits *= _U_MUL1
    bits ^= bits >> _S27
    bits *= _U_MUL2
    bits ^= bits >> _S31
    bits >>= _S11
    scaled: Floats = bits + 0.5
    scaled *= 2.0**-53
    return scaled


def gumbel(seed: int, position: int, ids: Ids) -> Floats:
    """Standard Gumbel noise for (seed, position, id); see `uniform`."""
    noise: Floats = -np.log(-np.log(uniform(seed, position, ids)))
    return noise


def largest(row: Row, k: int) -> Ids:
    """Ids of the k largest entries of a row, largest first, lower ids first on ties.

    The row is folded into 64 lines; an entry among the k largest lies in one of the k columns with the largest column
    maxima, so only 64 k entries are looked at closely.

    Args:
        row: Shape (n,).
        k: Number of ids, at least 1.
    """
    n = row.shape[0]
    columns = n // _FOLD
    if k * 4 >= columns:
        candidates = np.arange(n) if k >= n else row.argpartition(n - k)[n - k :]
        values = row[candidates]
    else:
        maxima = np.maximum.reduce(row[: columns * _FOLD].reshape(_FOLD, columns))
        chosen = maxima.argpartition(columns - k)[columns - k :]
        candidates = (_starts(columns) + chosen).ravel()
        if columns * _FOLD < n:
            candidates = np.concatenate([candidates, np.arange(columns * _FOLD, n)])
        values = row[candidates]
        kept = values.argpartition(len(values) - k)[len(values) - k :]
        candidates, values = candidates[kept], values[kept]
    ids: Ids = candidates[np.lexsort((candidates, -values))]
    return ids


@lru_cache(maxsize=8)
def _starts(columns: int) -> Ids:
    """Where the lines of a folded row begin, shape (64, 1)."""
    return (np.arange(_FOLD) * columns)[:, None]


@dataclass(frozen=True, slots=True)
class Choice:
    """A chosen token with what its model thought of it."""

    token: int
    probability: float
    """In the shaped distribution; at temperature 0, in the one of temperature 1 over the same candidates."""
    margin: float
    """Best minus second best perturbed score; at temperature 0, of the logits."""


class Sampler:
    """Chooses tokens from rows of logits. Holds no state: the same arguments give the same token.

    Args:
        sampling: The settings.
    """

    def __init__(self, sampling: Sampling) -> None:
        self.sampling = sampling
        self.penalises = (
            sampling.repeat_penalty != 1.0
            or sampling.presence_penalty != 0.0
            or sampling.frequency_penalty != 0.0
        ) and sampling.penalty_last_n != 0
        """Whether the choice looks at the history at all."""

    def for_draft(self) -> Sampler:
        """The drafter's sampler: the same noise and truncation, a little colder, which agrees more often."""
        settings = self.sampling
        factor = 0.8 if settings.top_p >= 0.95 and settings.temperature >= 1.0 else 0.9
        return Sampler(replace(settings, temperature=settings.temperature * factor))

    def choose(self, row: Row, position: int, history: Sequence[int]) -> int:
        """The model's choice.

        Args:
            row: Logits, shape (n_vocab,). Left as it was.
            position: Index of the token to choose in the target's ids.
            history: All ids before it (the penalties look at the last of them).

        Raises:
            DecodeError: The logits are not numbers.
        """
        saved = self._penalise(row, history)
        try:
            if self.sampling.temperature <= 0:
                return _checked_argmax(row)
            ids, scores = self._shape(row)
            if len(ids) == 1:
                return int(ids[0])
            scores += gumbel(self.sampling.seed, position, ids)
            return int(ids[scores.argmax()])
        finally:
            _restore(row, saved)

    def propose(self, row: Row, position: int, history: Sequence[int]) -> Choice:
        """The choice together with its probability and margin, for the drafter; see `choose`.

        Raises:
            DecodeError: The logits are not numbers.
        """
        saved = self._penalise(row, history)
        try:
            if self.sampling.temperature <= 0:
                return _propose_greedily(row)
            ids, scores = self._shape(row)
            if len(ids) == 1:
                return Choice(int(ids[0]), 1.0, math.inf)
            weights = np.exp(scores - scores[0])
            scores += gumbel(self.sampling.seed, position, ids)
            best = int(scores.argmax())
            top = float(scores[best])
            scores[best] = -np.inf
            margin = top - float(scores[scores.argmax()])
            return Choice(int(ids[best]), float(weights[best] / np.add.reduce(weights)), margin)
        finally:
            _restore(row, saved)

    def distribution(self, row: Row, history: Sequence[int] = ()) -> tuple[Ids, Floats]:
        """The shaped distribution: ids and probabilities, largest first."""
        saved = self._penalise(row, history)
        try:
            if self.sampling.temperature <= 0:
                return np.array([_checked_argmax(row)]), np.ones(1)
            ids, scores = self._shape(row)
            weights = np.exp(scores - scores[0])
            return ids, weights / weights.sum()
        finally:
            _restore(row, saved)

    def _shape(self, row: Row) -> tuple[Ids, Floats]:
        """Ids that survive truncation, largest first, with logits / temperature (float64)."""
        settings = self.sampling
        n = row.shape[0]
        k = min(settings.top_k, n) if settings.top_k > 0 else n
        if k < n:
            ids = largest(row, k)
            scores = row[ids].astype(np.float64)
            _check(scores[0], scores[-1])
            scores /= settings.temperature
            total = 0.0
        else:
            ids, scores, total = self._untruncated(row)
        if settings.top_p < 1.0 or settings.min_p > 0.0:
            weights = np.exp(scores - scores[0])
            keep = len(ids)
            if settings.top_p < 1.0:
                before = weights.cumsum()
                total = total or before[-1]
                before -= weights
                # The smallest set of the likeliest tokens that holds top_p; the first one always stays.
                keep = max(int(before.searchsorted(settings.top_p * total)), 1)
            if settings.min_p > 0.0:
                keep = min(keep, max(int(np.count_nonzero(weights >= settings.min_p)), 1))
            ids, scores = ids[:keep], scores[:keep]
        return ids, scores

    def _untruncated(self, row: Row) -> tuple[Ids, Floats, float]:
        """Without top-k: as many of the largest as top-p can need, or all that the noise can lift.

        Returns:
            Ids and scores, largest first, and the weight of the whole row relative to the first (0 = not needed).
        """
        settings = self.sampling
        top = float(row.max())
        _check(top)
        total = 0.0
        if settings.top_p < 1.0:
            scaled = (row - np.float32(top)) / np.float32(settings.temperature)
            total = float(np.exp(scaled).sum(dtype=np.float64))
            count = 256
            while count < row.shape[0]:
                ids = largest(row, count)
                scores = row[ids].astype(np.float64) / settings.temperature
                if np.exp(scores - scores[0]).sum() >= settings.top_p * total:
                    return ids, scores, total
                count *= 8
        span = NOISE_SPAN if settings.min_p <= 0 else min(NOISE_SPAN, -np.log(settings.min_p) + 1e-9)
        ids = np.flatnonzero(row >= top - span * settings.temperature)
        ids = ids[np.argsort(-row[ids], kind="stable")].astype(np.int64)
        return ids, row[ids].astype(np.float64) / settings.temperature, total

    def _penalise(self, row: Row, history: Sequence[int]) -> tuple[Ids, Row] | None:
        """Lower the logits of recent tokens in place; returns what `_restore` needs."""
        settings = self.sampling
        if not self.penalises or not history:
            return None
        n = settings.penalty_last_n
        recent = history[-n:] if n > 0 else history
        ids, counts = np.unique(np.asarray(recent, dtype=np.int64), return_counts=True)
        old = row[ids]
        repeat = np.float32(settings.repeat_penalty)
        new = np.where(old <= 0, old * repeat, old / repeat)
        new -= (counts * settings.frequency_penalty + settings.presence_penalty).astype(np.float32)
        row[ids] = new
        return ids, old


def _restore(row: Row, saved: tuple[Ids, Row] | None) -> None:
    if saved is not None:
        row[saved[0]] = saved[1]


def _check(largest: float, smallest: float = 0.0) -> None:
    """Of the entries of a row that were sorted; what is no number stands last."""
    if not math.isfinite(largest) or math.isnan(smallest):
        raise DecodeError(
            "The model's output is not a number.",
            why="The file is damaged, or this device computes it wrongly.",
            hint="localspec run --gpu-layers 0",
        )


def _propose_greedily(row: Row) -> Choice:
    ids = largest(row, min(_GREEDY_CANDIDATES, len(row)))
    logits = row[ids].tolist()
    top = logits[0]
    _check(top, logits[-1])
    margin = top - logits[1] if len(logits) > 1 else math.inf
    return Choice(int(ids[0]), 1.0 / sum(math.exp(logit - top) for logit in logits), margin)


def _checked_argmax(row: Row) -> int:
    best = int(row.argmax())
    _check(float(row[best]))
    return best
