"""tok/s of the last moments, on the engine's own clock."""

from __future__ import annotations

from collections import deque

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
