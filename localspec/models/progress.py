"""How far a download is, as events that a command line or a screen draws."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

_EMIT_EVERY = 0.1
_WINDOW = 5.0

Stage = Literal["waiting", "checking", "downloading", "retrying", "preparing", "done"]


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a download is. All parts of a split model count as one file."""

    file: str
    """Name to show."""
    done: int
    """Bytes on disk, those of earlier runs among them."""
    total: int
    """0 = not known yet."""
    speed: float = 0.0
    """Bytes a second over the last seconds."""
    eta: float | None = None
    """Seconds left, None while it cannot be said."""
    stage: Stage = "downloading"
    note: str = ""
    """A sentence to show, such as why it is being tried again."""


Report = Callable[[Progress], None]


class Meter:
    """Turns counted bytes into `Progress`, at most ten times a second.

    Args:
        file: Name to show.
        total: Bytes of all parts, 0 if not known.
        report: Called with each `Progress`; may raise to stop, what is on disk stays.
    """

    def __init__(self, file: str, total: int, report: Report) -> None:
        self.file = file
        self.total = total
        self.base = 0  # bytes of the parts before this one
        self._report = report
        self._last = 0.0
        self._done = 0
        self._seen: deque[tuple[float, int]] = deque()

    def at(self, done: int, *, stage: Stage = "downloading", note: str = "", now: bool = False) -> None:
        """Say how many bytes of the present part are there."""
        clock = time.monotonic()
        self._done = done
        if not now and clock - self._last < _EMIT_EVERY:
            return
        self._last = clock
        self._seen.append((clock, self.base + done))
        while len(self._seen) > 2 and clock - self._seen[0][0] > _WINDOW:
            self._seen.popleft()
        speed = self._speed() if stage == "downloading" else 0.0
        left = self.total - self.base - done
        eta = left / speed if speed > 0 and self.total else None
        self._report(Progress(self.file, self.base + done, self.total, speed, eta, stage, note))

    def next_part(self, size: int) -> None:
        """A part of this many bytes is whole; the count goes on with the next one."""
        self.base += size
        self._done = 0

    def say(self, note: str) -> None:
        """Say why it is being tried again."""
        self.at(self._done, stage="retrying", note=note, now=True)

    def restart(self) -> None:
        """Forget the speed: the count jumped."""
        self._seen.clear()

    def _speed(self) -> float:
        (t0, b0), (t1, b1) = self._seen[0], self._seen[-1]
        return max(0.0, (b1 - b0) / (t1 - t0)) if t1 - t0 > 0.05 else 0.0
