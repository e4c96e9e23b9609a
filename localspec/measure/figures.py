"""Arithmetic of measurements: windows, rates, intervals, bounds. Pure functions of raw counters."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from localspec.spec.stats import Source, Stats

Verdict = Literal["faster", "slower", "within noise"]
VERDICTS: Mapping[Verdict, str] = {
    "faster": "The draft is faster",
    "slower": "Off is fastest: the draft is slower",
    "within noise": "Within noise: neither is faster",
}
"""How each is said."""

# Two-sided 95 % points of Student's t for 1, 2, ... degrees of freedom.
_T95 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)


@dataclass(frozen=True, slots=True)
class Window:
    """What happened between two rounds of one answer.

    The window opens with the first round that reached `skip` tokens and closes with the first that reached the wanted
    number, or the last. Its tokens are those that came after the opening round, its time is the time between the ends
    of the two rounds, so a round is either inside with all its tokens or outside with all of them.
    """

    tokens: int
    seconds: float
    rounds: int
    drafted: int
    accepted: int
    drafted_rounds: int
    draft_s: float
    """Of `seconds`, the part in which the drafter worked."""
    drafted_at: tuple[int, ...]
    accepted_at: tuple[int, ...]
    by_source: dict[str, Source] = field(default_factory=dict)
    """As in `Stats.by_source`."""

    @property
    def tok_s(self) -> float | None:
        """Tokens per second, None for an empty window."""
        return self.tokens / self.seconds if self.tokens and self.seconds > 0 else None

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted / drafted, None when nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def mean_accepted_length(self) -> float | None:
        """1 + accepted / rounds: tokens that one target step yields."""
        return 1 + self.accepted / self.rounds if self.rounds else None

    @property
    def per_position(self) -> tuple[float, ...]:
        """Conditional acceptance at positions 1, 2, ..., as in `Stats.per_position`."""
        return self._as_stats().per_position

    @property
    def per_position_unconditional(self) -> tuple[float, ...]:
        """As in `Stats.per_position_unconditional`."""
        return self._as_stats().per_position_unconditional

    def _as_stats(self) -> Stats:
        return Stats(
            drafted_rounds=self.drafted_rounds, drafted_at=self.drafted_at, accepted_at=self.accepted_at
        )

    @property
    def draft_lengths(self) -> dict[int, int]:
        """Rounds by the number of tokens that they drafted, 0 among them."""
        at = (self.rounds, *self.drafted_at, 0)
        found = {length: at[length] - at[length + 1] for length in range(len(at) - 1)}
        return {length: count for length, count in found.items() if count > 0}


def between(first: Stats, last: Stats) -> Window:
    """The window from the end of one round to the end of a later one."""
    width = len(last.drafted_at)
    return Window(
        tokens=last.completion_tokens - first.completion_tokens,
        seconds=last.decode_s - first.decode_s,
        rounds=last.rounds - first.rounds,
        drafted=last.drafted - first.drafted,
        accepted=last.accepted - first.accepted,
        drafted_rounds=last.drafted_rounds - first.drafted_rounds,
        draft_s=last.draft_s - first.draft_s,
        drafted_at=_less(last.drafted_at, first.drafted_at, width),
        accepted_at=_less(last.accepted_at, first.accepted_at, width),
        by_source={
            name: found
            for name, source in last.by_source.items()
            if (found := source - first.by_source.get(name, Source())).rounds
        },
    )


def window(rounds: Sequence[Stats], skip: int, stop: int) -> Window | None:
    """The window of an answer from token `skip` to token `stop`; None when the answer did not get so far.

    Args:
        rounds: Counters at the end of each round, in order.
        skip: Tokens left out at the start.
        stop: Tokens at which the window closes; an answer that ended before closes it there.
    """
    opening = next((at for at, stats in enumerate(rounds) if stats.completion_tokens >= skip), None)
    if opening is None:
        return None
    closing = next((at for at, stats in enumerate(rounds) if stats.completion_tokens >= stop), None)
    if closing == opening > 0:
        opening -= 1  # one long draft led from before `skip` to the end: that round is what there is
    found = between(rounds[opening], rounds[-1 if closing is None else closing])
    return found if found.tokens > 0 and found.seconds > 0 else None


def join(windows: Iterable[Window]) -> Window | None:
    """All windows as one: raw counters are added, so longer windows weigh more."""
    found = list(windows)
    if not found:
        return None
    width = max(len(one.drafted_at) for one in found)
    return Window(
        tokens=sum(one.tokens for one in found),
        seconds=sum(one.seconds for one in found),
        rounds=sum(one.rounds for one in found),
        drafted=sum(one.drafted for one in found),
        accepted=sum(one.accepted for one in found),
        drafted_rounds=sum(one.drafted_rounds for one in found),
        draft_s=sum(one.draft_s for one in found),
        drafted_at=tuple(sum(_at(one.drafted_at, i) for one in found) for i in range(width)),
        accepted_at=tuple(sum(_at(one.accepted_at, i) for one in found) for i in range(width)),
        by_source={
            name: sum((one.by_source.get(name, Source()) for one in found), Source())
            for name in dict.fromkeys(name for one in found for name in one.by_source)
        },
    )


def geometric_mean(values: Iterable[float]) -> float | None:
    """The mean of ratios and rates: twice as fast on one text and half as fast on another is 1. None of nothing."""
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs)) if logs else None


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio with its 95 % interval; `low` and `high` are None where one measurement cannot tell its own noise."""

    value: float
    low: float | None
    high: float | None

    @property
    def verdict(self) -> Verdict:
        """Within noise unless the interval excludes 1."""
        if self.low is None or self.high is None:
            return "within noise"
        return "faster" if self.low > 1 else "slower" if self.high < 1 else "within noise"

    def to_json(self) -> dict[str, object]:
        """For `--json`."""
        interval = None if self.low is None else [self.low, self.high]
        return {"value": self.value, "interval": interval, "verdict": self.verdict}


def paired(
    ratios: Mapping[tuple[str, int], Sequence[float]],
    scatter: Iterable[Sequence[float]] | None = None,
) -> tuple[Ratio | None, dict[str, Ratio]]:
    """Speedups from paired measurements, each kind for itself and all together.

    A prompt's speedup is the geometric mean of its pairs' ratios, a kind's that of its prompts, all together that of
    the kinds. For the interval, logarithms of the ratios are taken as a prompt's own mean plus noise of one common
    size, estimated from the scatter of each prompt's pairs; Student's t with the degrees of freedom of that estimate.
    With three pairs a prompt this keeps its 95 %, which a bootstrap of three values does not. The texts are fixed:
    the interval is about the noise of timing on these texts, not about other texts.

    Args:
        ratios: For each prompt, named by kind and number, drafted over baseline rate of each pair.
        scatter: Groups of ratios that differ by the noise of timing alone, where more are known than these pairs.

    Returns:
        All together (None without a pair), and by kind.
    """
    logs = {cell: [math.log(value) for value in values] for cell, values in ratios.items() if values}
    if not logs:
        return None, {}
    groups = (
        logs.values() if scatter is None else [[math.log(value) for value in one] for one in scatter if one]
    )
    deviation, freedom = _scatter(groups)
    means: dict[str, float] = {}
    variances: dict[str, float] = {}
    for kind in dict.fromkeys(kind for kind, _ in logs):
        cells = [values for (one, _), values in logs.items() if one == kind]
        means[kind] = sum(sum(values) / len(values) for values in cells) / len(cells)
        variances[kind] = deviation**2 * sum(1 / len(values) for values in cells) / len(cells) ** 2
    kinds = {kind: _ratio(mean, math.sqrt(variances[kind]), freedom) for kind, mean in means.items()}
    error = math.sqrt(sum(variances.values())) / len(means)
    return _ratio(sum(means.values()) / len(means), error, freedom), kinds


def unpaired(before: Mapping[str, Sequence[float]], after: Mapping[str, Sequence[float]]) -> Ratio | None:
    """Rates of one session over those of another, on the texts that both have; see `paired` for the interval."""
    shared = [kind for kind in before if before[kind] and after.get(kind)]
    if not shared:
        return None
    logs = {
        (side, kind): [math.log(value) for value in values[kind]]
        for side, values in (("before", before), ("after", after))
        for kind in shared
    }
    means = {key: sum(values) / len(values) for key, values in logs.items()}
    deviation, freedom = _scatter(logs.values())
    difference = sum(means["after", kind] - means["before", kind] for kind in shared) / len(shared)
    error = deviation * math.sqrt(sum(1 / len(values) for values in logs.values())) / len(shared)
    return _ratio(difference, error, freedom)


def bound(seen: Window, verify: Mapping[int, float], step: float | None) -> float | None:
    """What the measured parts allow: mean accepted length / (V(k+1) + k c), over the draft lengths k that occurred.

    Args:
        seen: Drafted rounds.
        verify: Seconds of a target batch of n tokens, 1 among them.
        step: Seconds of one draft step. Where drafted tokens took less on average (some came from lookup), that counts.

    Returns:
        A speedup over plain decoding; None when nothing was drafted or measured.
    """
    length = seen.mean_accepted_length
    if length is None or not seen.drafted or step is None or not verify.get(1):
        return None
    step = min(step, seen.draft_s / seen.drafted) if seen.draft_s > 0 else step
    cost = sum(
        count * (interpolate(verify, drafted + 1) + drafted * step)
        for drafted, count in seen.draft_lengths.items()
    )
    return length * seen.rounds * verify[1] / cost if cost > 0 else None


def interpolate(curve: Mapping[int, float], size: int) -> float:
    """A curve's value at a size that was not measured, on the line between its neighbours (or beyond the last two)."""
    if size in curve:
        return curve[size]
    known = sorted(curve)
    if len(known) == 1:
        return curve[known[0]]
    right = next((index for index, one in enumerate(known) if one > size), len(known) - 1)
    a, b = known[max(right, 1) - 1], known[max(right, 1)]
    return curve[a] + (curve[b] - curve[a]) * (size - a) / (b - a)


def best_length(per_position: Sequence[float], curve: dict[int, float], ratio: float) -> tuple[int, float]:
    """The fixed draft length, 0 among them, with the greatest predicted speedup, and that speedup.

    Args:
        per_position: Conditional acceptance at positions 1, 2, ...
        curve: V(n) by n.
        ratio: Cost ratio c.
    """
    gains = [(predicted_gain(per_position, curve, ratio, k), -k) for k in range(len(per_position) + 1)]
    gain, k = max(gains)
    return -k, gain


def predicted_gain(per_position: Sequence[float], curve: dict[int, float], ratio: float, k: int) -> float:
    """Expected tokens of a round over its cost in target steps."""
    length, reach = 1.0, 1.0
    for share in per_position[:k]:
        reach *= share
        length += reach
    return length / (interpolate(curve, k + 1) + k * ratio)


def repetition(ids: Sequence[int], span: int = 12) -> float:
    """The share of tokens that end a run of `span` ids which the answer had before: how much it repeats itself."""
    seen: set[tuple[int, ...]] = set()
    repeated = 0
    for end in range(span, len(ids) + 1):
        run = tuple(ids[end - span : end])
        repeated += run in seen
        seen.add(run)
    return repeated / max(len(ids) - span + 1, 1)


def _scatter(groups: Iterable[Sequence[float]]) -> tuple[float, int]:
    """The common standard deviation inside the groups, and its degrees of freedom."""
    freedom, squares = 0, 0.0
    for values in groups:
        mean = sum(values) / len(values)
        freedom += len(values) - 1
        squares += sum((value - mean) ** 2 for value in values)
    return (math.sqrt(squares / freedom) if freedom else 0.0), freedom


def _ratio(mean: float, error: float, freedom: int) -> Ratio:
    if not freedom:
        return Ratio(math.exp(mean), None, None)
    # Beyond the table the normal distribution's point, with its first correction, is right to three digits.
    point = _T95[freedom - 1] if freedom <= len(_T95) else 1.960 * (1 + 1.2105 / freedom)
    return Ratio(math.exp(mean), math.exp(mean - point * error), math.exp(mean + point * error))


def _at(values: Sequence[int], index: int) -> int:
    return values[index] if index < len(values) else 0


def _less(last: Sequence[int], first: Sequence[int], width: int) -> tuple[int, ...]:
    return tuple(_at(last, index) - _at(first, index) for index in range(width))
