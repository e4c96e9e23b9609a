"""Progress of a load, above the prompt, while one can already type."""

from __future__ import annotations

import time

from textual.content import Content
from textual.widgets import Static

from localspec.tui.text import MUTED, bar, one_line, seconds
from localspec.worker.protocol import LoadProgress

_BAR = 20


class Loading(Static):
    """Stage, share and seconds of a load."""

    def __init__(self) -> None:
        super().__init__("", markup=False)
        self.display = False
        self._started = 0.0
        self._progress: LoadProgress | None = None

    def start(self) -> None:
        """A load begins."""
        self._started = time.monotonic()
        self._progress = None
        self.display = True
        self.tick()

    def progress(self, event: LoadProgress) -> None:
        """A load goes on."""
        if not self.display:
            self.start()
        self._progress = event
        self.tick()

    def stop(self) -> None:
        """The load has ended."""
        self.display = False

    @property
    def elapsed_s(self) -> float:
        """Seconds since the load began."""
        return time.monotonic() - self._started

    def tick(self) -> None:
        """Show the seconds that have passed."""
        if not self.display:
            return
        event = self._progress
        stage = event.doing if event else "Starting the engine"
        share = event.fraction if event else 0.0
        seconds_part = f" {share:4.0%}  {seconds(self.elapsed_s)}"
        room = self.content_size.width - len(stage) - 3 - _BAR - len(seconds_part)
        name = f" {one_line(event.name, room)}" if event and event.name and room >= 12 else ""
        self.update(
            Content.assemble(
                (f"{stage}", "bold"),
                f"{name}  ",
                (f"{bar(share, _BAR):<{_BAR}}", "$text-primary on $foreground 10%"),
                (seconds_part, MUTED),
            )
        )
