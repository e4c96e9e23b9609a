"""Drafters of somebody's own that keep to llama-cpp-python's contract, `LlamaDraftModel`: ids in, ids out."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from localspec.spec.drafter import Draft, Drafter, GoOn, always, common_prefix
from localspec.spec.foreign import Foreign, Unusable
from localspec.spec.length import LengthPolicy, PricedLength
from localspec.spec.rates import Rates
from localspec.spec.sampling import Sampler

_DEPTHS = 32  # of a proposal, counted apart
_EMA = 0.1
_CHEAP = 0.01  # target steps; a call that takes less is made always, for what its proposals teach
_PROBE_STEPS, _PROBE_SHARE = 12.0, 0.01  # while a call does not pay it is tried so seldom


class StockDrafter(Drafter):
    """Calls a `LlamaDraftModel` as the library does: with an array of all ids; it returns the ids that it proposes.

    Such a drafter gives no probabilities, and a call takes its time whatever comes of it. So the chances are counted by
    depth, and by price it is called only where what it earns by them is worth a call; the time of the calls, and how
    often they propose anything, are watched.

    Args:
        call: The drafter.
        name: Shown on screen.
        n_vocab: Size of the target's vocabulary.
        foreign: Runs the calls.
    """

    free = True  # whether a call pays is decided here

    def __init__(self, call: Callable[..., Any], name: str, n_vocab: int, foreign: Foreign) -> None:
        self.name = name
        self._call = call
        self._n_vocab = n_vocab
        self._foreign = foreign
        self._ids = np.empty(1024, np.intc)
        self._count = 0
        self._policy: LengthPolicy | None = None
        self._rates = Rates(_DEPTHS)
        self._open: tuple[int, ...] = ()  # the last proposal, and where it begins
        self._open_at = 0
        self._call_s: float | None = None
        self._proposes = 1.0  # share of the calls that propose anything
        self._skipped = 0
        self._pays = True

    @property
    def off_reason(self) -> str:
        """See `Drafter.off_reason`."""
        return "" if self._pays else "calling the drafter takes more time than it saves on this text"

    def bind(self, policy: LengthPolicy) -> None:
        """See `Drafter.bind`."""
        self._policy = policy
        self._pays = True

    def begin(self, ids: Sequence[int], *, cancelled: Callable[[], bool] = lambda: False) -> None:
        """See `Drafter.begin`."""
        self._count = common_prefix(self._ids[: self._count].tolist(), ids)
        self._open = ()

    def draft(self, ids: Sequence[int], k: int, sampler: Sampler, go_on: GoOn = always) -> Draft:
        """See `Drafter.draft`."""
        self._open = ()
        if not self._worth_a_call(k):
            return Draft()
        given = self._array(ids)
        began = time.perf_counter()
        tokens = self._foreign.run(lambda: proposed_ids(self._call(given), k, self._n_vocab))
        self._saw_call(time.perf_counter() - began, bool(tokens))
        self._open, self._open_at = tokens, len(ids)
        return Draft(tokens, chances=self._rates.first(len(tokens)))

    def accept(self, ids: Sequence[int]) -> None:
        """See `Drafter.accept`: count how far the proposal was right."""
        for depth, (token, known) in enumerate(zip(self._open, ids[self._open_at :], strict=False)):
            self._rates.learn(depth, token == known)
            if token != known:
                break
        self._open = ()

    def clear(self) -> None:
        """See `Drafter.clear`."""
        self._count = 0
        self._open = ()

    def learned(self) -> dict[str, Any]:
        """See `Drafter.learned`."""
        return {"rates": self._rates.learned(), "call_s": self._call_s, "proposes": self._proposes}

    def recall(self, learned: dict[str, Any]) -> None:
        """See `Drafter.recall`."""
        call_s, proposes = float(learned["call_s"]), float(learned["proposes"])
        if not (0 <= call_s < math.inf and 0 <= proposes <= 1):
            raise ValueError("not the price of a call")
        self._rates.recall(learned["rates"])
        self._call_s, self._proposes = call_s, proposes

    def close(self) -> None:
        """See `Drafter.close`."""
        self._foreign.close()

    def _array(self, ids: Sequence[int]) -> Any:
        """A copy of the ids, shape (n,); what was converted before is not converted again."""
        if len(ids) > len(self._ids):
            grown = np.empty(2 * len(ids), np.intc)
            grown[: self._count] = self._ids[: self._count]
            self._ids = grown
        start = min(self._count, len(ids))
        self._ids[start : len(ids)] = ids[start:]
        self._count = len(ids)
        return self._ids[: self._count].copy()

    def _worth_a_call(self, k: int) -> bool:
        policy = self._policy
        if not isinstance(policy, PricedLength) or self._call_s is None:
            return True
        steps = self._call_s / policy.costs.plain_step
        gain = 0.0 if policy.blocked else self._proposes * policy.gain(self._rates.first(k))
        self._pays = steps <= _CHEAP or gain > steps * policy.rate
        if self._pays or self._skipped >= max(_PROBE_STEPS, steps / _PROBE_SHARE):
            self._skipped = 0
            return True
        self._skipped += 1
        return False

    def _saw_call(self, seconds: float, proposed: bool) -> None:
        # The first call may load or compile something; a single slow one later should not count for much either.
        known = seconds if self._call_s is None else self._call_s
        self._call_s = known + _EMA * (min(max(seconds, known / 2), known * 2) - known)
        self._proposes += _EMA * (proposed - self._proposes)


def proposed_ids(returned: Any, k: int, n_vocab: int) -> tuple[int, ...]:
    """The first k ids of what a drafter returned.

    Args:
        returned: Anything.
        k: How many are wanted.
        n_vocab: Ids are below this.

    Raises:
        Unusable: It is no list of token ids.
    """
    if returned is None:
        raise Unusable("returned None, not a list of token ids")
    if not isinstance(returned, np.ndarray):
        try:
            returned = list(itertools.islice(iter(returned), k))  # it may have no end
        except TypeError as error:
            raise Unusable(f"returned one {type(returned).__name__}, not a list of token ids") from error
    try:
        array = np.asarray(returned)
    except ValueError as error:
        raise Unusable("returned rows of different lengths, not a list of token ids") from error
    if array.ndim != 1:
        raise Unusable(f"returned an array of {array.ndim} dimensions, not a list of token ids")
    if array.size == 0:  # an empty array is one of floats by default
        return ()
    if array.dtype.kind not in "iu":
        raise Unusable(f"returned values of type {array.dtype}, not token ids")
    tokens = tuple(int(token) for token in array[:k])
    for token in tokens:
        if not 0 <= token < n_vocab:
            raise Unusable(f"proposed the token {token}, which the target does not have")
    return tokens
