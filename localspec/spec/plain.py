"""What a step without a draft takes by now, where drafted rounds are all that is seen."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

_EMA, _CLAMP = 0.2, 0.25
_FRESH = 16  # rounds after a plain step in which it is taken for known
_FIRST = 4  # rounds that tell what a batch size costs that nobody timed


class PlainStep:
    """Seconds of a plain step, to compare a draft's speed with.

    A plain step that happens is measured. Between two of them every drafted round tells how much slower or faster the
    machine has become at this depth of the context: a batch of n tokens takes a known number of plain steps, so where
    its time grows, the plain step's is taken to grow by the same factor. That is exact for another program or a warm
    machine. With depth the number itself rises somewhat, so it is an estimate.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        """0 = not known."""
        self._ratios: dict[int, float] = {}
        self._unknown: dict[int, list[float]] = {}
        self._since_plain = 0

    def know(self, times: Mapping[int, float]) -> None:
        """Take over seconds by batch size that were timed together; 1 must be among them."""
        self.seconds = times[1]
        self._ratios = {n: seconds / times[1] for n, seconds in times.items() if n > 1}
        self._unknown = {}
        self._since_plain = _FRESH  # the conversation may be at another depth

    def saw(self, n: int, seconds: float) -> None:
        """Learn from a target batch of n tokens."""
        if n == 1:
            self._since_plain = 0
            self.seconds = _towards(self.seconds, seconds) if self.seconds else seconds
            return
        if not self.seconds:
            return
        self._since_plain += 1
        ratio = self._ratios.get(n)
        if ratio is None:
            seen = self._unknown.setdefault(n, [])
            seen.append(seconds)
            if len(seen) == _FIRST:
                self._ratios[n] = median(self._unknown.pop(n)) / self.seconds
        elif self._since_plain <= _FRESH:
            self._ratios[n] = _towards(ratio, seconds / self.seconds)
        else:
            self.seconds = _towards(self.seconds, seconds / ratio)


def _towards(known: float, seen: float) -> float:
    """A step towards what was seen; one odd round must not move it far."""
    return known * (1.0 + _EMA * min(max(seen / known - 1.0, -_CLAMP), _CLAMP))
