"""What a round costs on this machine: the verify curve and the draft step, by depth of the context."""

from __future__ import annotations

import math
from typing import Any

_EMA, _CLAMP, _DRIFT = 0.1, 0.25, 0.08
_FIRST = 0.5  # what the first batch of a size that was never timed tells, against what lies around it
# A batch of n costs at most so many times n single steps, and no less than one; the rest is noise.
_DEAREST = 1.3
_CHEAPEST_STEP = 0.005  # target steps
_SHALLOW = 512  # tokens; from here on each doubling of the context has a curve of its own


class Costs:
    """What a round costs, in seconds; refined while it runs.

    A deeper context changes the shape of the curve, so each doubling of it keeps its own; one that was never reached
    before starts from its neighbour's. Sizes that were never timed lie on lines between those that were, or go on with
    the last one's cost of a token, until they are tried.

    Args:
        verify: Seconds of a target batch by its number of tokens; must hold 1.
        draft_step: Seconds of one draft step; 0 for a drafter that costs nothing.
        size: Largest batch that is asked for.
    """

    def __init__(self, verify: dict[int, float], draft_step: float, size: int) -> None:
        self._seconds = _curve(verify, size)
        self._timed = {n for n in verify if 1 <= n <= size}
        self.draft_step = draft_step
        self._bucket = 0
        self._others: dict[int, tuple[list[float], set[int], float]] = {}
        self._envelope: list[float] = []
        self._rebuild()

    @property
    def plain_step(self) -> float:
        """Seconds of a target step without a draft."""
        return self._seconds[1]

    @property
    def c(self) -> float:
        """A draft step in target steps."""
        return self.draft_step / self.plain_step

    def w(self, n: int) -> float:
        """The envelope W(n), in target steps: the cost of the cheapest batch of at least n tokens."""
        return self._envelope[min(n, len(self._envelope) - 1)]

    def v(self, n: int) -> float:
        """The curve V(n) itself, in target steps."""
        return self._seconds[min(n, len(self._seconds) - 1)] / self.plain_step

    def at(self, depth: int) -> None:
        """Go over to the prices at this depth.

        Args:
            depth: Tokens in the context.
        """
        bucket = (depth // _SHALLOW).bit_length()
        if bucket == self._bucket:
            return
        here = (self._seconds, self._timed, self.draft_step)
        self._others[self._bucket] = here
        self._bucket = bucket
        seconds, timed, self.draft_step = self._others.pop(bucket, here)
        self._seconds, self._timed = list(seconds), set(timed)
        self._rebuild()

    def saw_verify(self, n: int, seconds: float) -> None:
        """Learn from a batch of n tokens.

        The other sizes go along for the most part: a longer context, a warmer machine or another program slows all of
        them.
        """
        if not 1 <= n < len(self._seconds):
            return
        known, new = self._seconds[n], n not in self._timed
        step = min(max(seconds / known - 1.0, -_CLAMP), _CLAMP)
        own = _FIRST if new else _EMA
        for size in range(1, len(self._seconds)):
            self._seconds[size] *= 1.0 + (own if size == n else _DRIFT) * step
        if new:
            self._fit(n, (1.0 + own * step) / (1.0 + _DRIFT * step))
            self._timed.add(n)
        self._rebuild()

    def saw_draft(self, steps: int, seconds: float) -> None:
        """Learn from a draft of some steps."""
        if steps and self.draft_step > 0:
            ratio = seconds / steps / self.draft_step - 1.0
            self.draft_step *= 1.0 + _EMA * min(max(ratio, -_CLAMP), _CLAMP)
            # A draft that is hidden behind the target is hardly waited for; the price must find its way back up.
            self.draft_step = max(self.draft_step, _CHEAPEST_STEP * self.plain_step)

    def learned(self) -> dict[str, Any]:
        """Everything, for the profile: by depth, the seconds of each batch size that was timed, and the draft step."""
        known = self._others | {self._bucket: (self._seconds, self._timed, self.draft_step)}
        return {
            str(bucket): {
                "verify": {str(n): round(seconds[n], 9) for n in sorted(timed)},
                "draft_step": draft_step,
            }
            for bucket, (seconds, timed, draft_step) in sorted(known.items())
        }

    @classmethod
    def recalled(cls, learned: dict[str, Any], size: int) -> Costs:
        """Costs from what `learned` told, at the shallowest depth that it knows.

        Args:
            learned: As `learned` gave it.
            size: Largest batch that is asked for.

        Raises:
            AttributeError, KeyError, TypeError, ValueError: It is not what `learned` gives.
        """
        known = {}
        for bucket, entry in learned.items():
            verify = {int(n): float(seconds) for n, seconds in entry["verify"].items()}
            draft_step = float(entry["draft_step"])
            if (
                not all(0 < seconds < math.inf for seconds in verify.values())
                or not 0 <= draft_step < math.inf
            ):
                raise ValueError("not a price")
            known[int(bucket)] = (verify, draft_step)
        first = min(known)
        costs = cls(*known.pop(first), size)
        costs._bucket = first
        for depth, prices in known.items():
            other = cls(*prices, size)
            costs._others[depth] = (other._seconds, other._timed, other.draft_step)
        return costs

    def _fit(self, n: int, change: float) -> None:
        """Bring the sizes around n that were never timed in line with it.

        Args:
            n: Timed for the first time.
            change: Its price over what it would be had it gone along with the others.
        """
        below = max(size for size in self._timed if size < n)
        above = min((size for size in self._timed if size > n), default=None)
        ends = {size: self._seconds[size] for size in (below, n, above) if size is not None}
        for size in range(below + 1, above or len(self._seconds)):
            if above is not None or size < n:
                self._seconds[size] = _interpolate(ends, size)
            elif size > n:
                self._seconds[size] *= change

    def _rebuild(self) -> None:
        envelope = [0.0] * len(self._seconds)
        lowest = math.inf
        for n in range(len(self._seconds) - 1, 0, -1):
            lowest = min(lowest, self._seconds[n])
            envelope[n] = lowest / self._seconds[1]
        self._envelope = envelope


def _curve(verify: dict[int, float], size: int) -> list[float]:
    """Seconds by batch size, from 0 to `size`."""
    one = verify[1]
    points = {n: min(max(seconds, one), _DEAREST * n * one) for n, seconds in verify.items()} | {1: one}
    return [0.0, *(_interpolate(points, n) for n in range(1, size + 1))]


def _interpolate(points: dict[int, float], n: int) -> float:
    below = max((p for p in points if p <= n), default=min(points))
    above = min((p for p in points if p >= n), default=None)
    if above is None:  # beyond the last point: go on with its slope per token
        return points[below] * n / below
    if above == below:
        return points[below]
    share = (n - below) / (above - below)
    return points[below] + share * (points[above] - points[below])
