"""tok/s of the last moments and over a whole answer, on the engine's own clock."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from itertools import pairwise

from localspec.spec.stats import Stats

WINDOW_S = 1.5


class Speedometer:
    """The speed over the last `WINDOW_S` seconds of decoding.

    It reads the counters, never the number of events or updates, so a burst of tokens in one event and a slow
    screen change nothing.
    """

    def __init__(self) -> None:
        self._points: deque[tuple[float, int]] = deque()

    def reset(self) -> None:
        """A new answer begins."""
        self._points.clear()

    def add(self, stats: Stats) -> None:
        """Take the counters after a round."""
        points = self._points
        points.append((stats.decode_s, stats.decode_tokens))
        # The point just outside the window stays, as the start of the first difference inside it.
        while len(points) > 2 and points[1][0] <= stats.decode_s - WINDOW_S:
            points.popleft()

    @property
    def tok_s(self) -> float | None:
        """Tokens per second now, None before two rounds."""
        if len(self._points) < 2:
            return None
        (start, before), (end, after) = self._points[0], self._points[-1]
        return (after - before) / (end - start) if end > start else None


class Course:
    """The speed over an answer: the counters at the end of each round."""

    def __init__(self) -> None:
        self._times: list[float] = []
        self._tokens: list[int] = []

    def reset(self) -> None:
        """A new answer begins."""
        self._times.clear()
        self._tokens.clear()

    def add(self, stats: Stats) -> None:
        """Take the counters after a round."""
        if not self._times or stats.decode_s > self._times[-1]:
            self._times.append(stats.decode_s)
            self._tokens.append(stats.decode_tokens)

    @property
    def seconds(self) -> float:
        """From the first round to the last one."""
        return self._times[-1] - self._times[0] if self._times else 0.0

    def rates(self, parts: int) -> list[tuple[float, float]]:
        """The answer in parts of equal time; where there are enough rounds, three of them in each on average.

        Returns:
            (seconds from the start to the middle of the part, tokens per second in it). Together the parts hold all
            tokens; a round that lies across an edge is shared out by time.
        """
        rounds = len(self._times) - 1
        parts = min(parts, max(rounds // 3, 2), rounds)
        if parts < 1:
            return []
        step = self.seconds / parts
        reached = [self._at(self._times[0] + step * part) for part in range(parts + 1)]
        return [
            (step * (part + 0.5), (after - before) / step)
            for part, (before, after) in enumerate(pairwise(reached))
        ]

    def _at(self, time: float) -> float:
        """Tokens at a moment, on the line between the rounds around it."""
        right = min(bisect_left(self._times, time), len(self._times) - 1)
        if right == 0:
            return self._tokens[0]
        left = right - 1
        share = (time - self._times[left]) / (self._times[right] - self._times[left])
        return self._tokens[left] + min(share, 1.0) * (self._tokens[right] - self._tokens[left])
