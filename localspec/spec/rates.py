"""How often something was right, in classes that go from the shallow to the deep."""

from __future__ import annotations

import math
from typing import Any

_PRIOR_RATE, _PRIOR_WEIGHT = 2 / 3, 3.0
_FULL = 60.0  # counts are halved at this, so that the rates follow the text
_RECALLED = 8.0  # what stored counts weigh at most: another text may be of another kind


class Rates:
    """Counts for each class. A class without counts takes over the rate of the one before, as a prior.

    Args:
        size: Number of classes; what lies beyond the last one counts there.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._counts = [[0.0, 0.0] for _ in range(size)]

    def rates(self) -> list[float]:
        """The rate of each class."""
        rate, rates = _PRIOR_RATE, []
        for right, seen in self._counts:
            rate = (right + _PRIOR_WEIGHT * rate) / (seen + _PRIOR_WEIGHT)
            rates.append(rate)
        return rates

    def first(self, count: int) -> tuple[float, ...]:
        """The rates of the first `count` classes."""
        rates = self.rates()
        return tuple(rates[min(index, self._size - 1)] for index in range(count))

    def learn(self, index: int, right: bool) -> None:
        """Count one more case of a class."""
        counts = self._counts[min(index, self._size - 1)]
        counts[0] += right
        counts[1] += 1.0
        if counts[1] >= _FULL:
            counts[:] = [counts[0] / 2, counts[1] / 2]

    def learned(self) -> list[list[float]]:
        """All counts, for the profile."""
        return [list(counts) for counts in self._counts]

    def recall(self, learned: Any) -> None:
        """Take over what `learned` told, at a small weight.

        Raises:
            TypeError, ValueError: It is not what `learned` gives.
        """
        pairs = [(float(right), float(seen)) for right, seen in learned]
        if len(pairs) != self._size or not all(0 <= right <= seen < math.inf for right, seen in pairs):
            raise ValueError("not counts of these classes")
        scales = [min(1.0, _RECALLED / seen) if seen else 1.0 for _, seen in pairs]
        self._counts = [
            [right * scale, seen * scale] for (right, seen), scale in zip(pairs, scales, strict=True)
        ]
