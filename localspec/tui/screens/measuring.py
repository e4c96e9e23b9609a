"""A screen on which something is measured: progress, a live table and plot, the results until it is closed."""

from __future__ import annotations

import logging
import queue
import threading
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from localspec.errors import LocalspecError
from localspec.tui import text
from localspec.tui.plotting import Series
from localspec.tui.widgets.notices import error_content
from localspec.worker.process import Worker

log = logging.getLogger(__name__)

_TICK_S = 0.1
_AROUND, _AROUND_DENSE = 8, 6
"""Lines of the screen that are neither results nor plot."""
_ROOMY = 32
"""Lines from which on there is room for more than a table and a plot."""
_PLOT, _TALL_PLOT = 8, 16


class Measuring(ModalScreen[str]):
    """Runs a measurement in a thread of its own. Esc stops it and keeps what there is; then Esc closes the screen.

    The screen is dismissed with one sentence about the result.

    Args:
        worker: Has nothing running.
        title: What is measured.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", "stop or close", priority=True),
        Binding("enter,q", "close", "close", priority=True),
        Binding("up,k", "scroll(-1)", show=False),
        Binding("down,j", "scroll(1)", show=False),
        Binding("pageup", "scroll(-10)", show=False, priority=True),
        Binding("pagedown,space", "scroll(10)", show=False, priority=True),
    ]

    def __init__(self, worker: Worker, title: str) -> None:
        super().__init__()
        self.worker = worker
        self.running = True
        self._title = title
        self._cancelled = threading.Event()
        self._events: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._error: BaseException | None = None
        self._fraction = 0.0
        self._what = "Starting"
        self._eta_s: float | None = None
        self._painted: Content | None = None
        self._drawn: tuple[object, list[Content]] = (None, [])
        self._thread = threading.Thread(target=self._run, name=f"localspec {title}", daemon=True)

    # ------------------------------------------------------- of each measurement

    @abstractmethod
    def work(self, tell: Callable[[Any], None], cancelled: Callable[[], bool]) -> None:
        """Measure; in the thread. `tell` may be called with anything, `take` gets it."""

    @abstractmethod
    def take(self, event: Any) -> None:
        """Take note of what the thread told."""

    @abstractmethod
    def results(self, width: int) -> list[Content]:
        """What there is so far, or at the end, in lines of `width` cells: what has to be seen without scrolling."""

    def remarks(self) -> list[Content]:
        """What stands below the plot: the rest."""
        return []

    @abstractmethod
    def series(self) -> Sequence[Series]:
        """What the plot shows, the same as long as nothing new was measured."""

    @abstractmethod
    def plot(self, series: Sequence[Series], width: int, height: int) -> list[Content]:
        """The plot, in lines of `width` cells."""

    @abstractmethod
    def sentence(self) -> str:
        """The result for the conversation; empty when there is none."""

    # ------------------------------------------------------------------ screen

    def compose(self) -> ComposeResult:
        """Title, progress and keys, results."""
        with VerticalScroll(id="measuring"):
            yield Static(Content.styled(self._title, "bold $text-primary"), markup=False)
            yield Static("", id="measuring-progress", markup=False)
            yield Static("", id="measuring-results", markup=False)

    @property
    def dense(self) -> bool:
        """Whether table and plot only both fit if nothing is wasted."""
        return self.size.height < _ROOMY

    def on_mount(self) -> None:
        """Begin."""
        self.set_class(self.dense, "-dense")
        self.set_interval(_TICK_S, self._tick)
        self._thread.start()

    def on_resize(self) -> None:
        """Lay the results out for the new size."""
        self.set_class(self.dense, "-dense")
        self.call_after_refresh(self._paint)

    @property
    def stopped(self) -> bool:
        """Whether the person stopped it."""
        return self._cancelled.is_set()

    def stop(self) -> None:
        """Stop the measurement; what was measured is kept."""
        if self.running:
            self._cancelled.set()
            self.worker.stop()

    def action_leave(self) -> None:
        """Esc: stop, or close when it has ended."""
        if self.running:
            self.stop()
        else:
            self.dismiss(self.sentence())

    def action_close(self) -> None:
        """Close when it has ended."""
        if not self.running:
            self.dismiss(self.sentence())

    def action_scroll(self, lines: int) -> None:
        """Scroll the results."""
        self.query_one("#measuring", VerticalScroll).scroll_relative(y=lines, animate=False)

    # ------------------------------------------------------------------ thread

    def _run(self) -> None:
        try:
            self.work(self._events.put, self._cancelled.is_set)
        except BaseException as error:  # whatever it is, the screen says it
            self._error = error

    def _tick(self) -> None:
        if not self.running:
            return
        ended = not self._thread.is_alive()  # asked first: what it told before its end is all there
        while not self._events.empty():
            self.take(self._events.get())
        if ended:
            self.running = False
        elif self.stopped:
            # Between two requests a stop reaches nothing: say it again.
            self.worker.stop()
        self._paint()

    def progress(self, fraction: float, what: str, eta_s: float | None = None) -> None:
        """Note where the measurement is."""
        self._fraction, self._what, self._eta_s = fraction, what, eta_s

    def _paint(self) -> None:
        width = self.query_one("#measuring-results").content_size.width
        if width <= 0:
            return
        self.query_one("#measuring-progress", Static).update(self._progress(width))
        lines = [line for each in self.results(width) for line in each.wrap(width)]
        error = self._problem()
        if error is not None:
            lines = [error, Content(""), *lines]
        remarks = [line for each in self.remarks() for line in each.wrap(width)]
        lines += [*self._picture(width, len(lines) + len(remarks)), *remarks]
        content = Content("\n").join(lines)
        if self._painted is None or not content.is_same(self._painted):
            self._painted = content  # each paint takes time from what is measured
            self.query_one("#measuring-results", Static).update(content)

    def _picture(self, width: int, used: int) -> list[Content]:
        """The plot, in the room that the other lines leave on the screen; drawn anew only when it changed."""
        series = self.series()
        room = self.size.height - used - (_AROUND_DENSE if self.dense else _AROUND)
        height = min(max(room, _PLOT), _TALL_PLOT)
        key = (tuple(series), width, height)
        if self._drawn[0] != key:
            plot = self.plot(series, width, height) if series else []
            self._drawn = key, plot if self.dense or not plot else [Content(""), *plot]
        return self._drawn[1]

    def _progress(self, width: int) -> Content:
        if not self.running:
            word = "Stopped" if self.stopped else "Broken off" if self._error is not None else "Done"
            return Content.assemble((word, "bold"), ("   Esc closes this, PgUp and PgDn scroll", text.MUTED))
        if self.stopped:
            return Content.styled("Stopping", "bold $text-warning")
        left = f"  {text.seconds(self._eta_s)} left" if self._eta_s is not None else ""
        room = max(0, min(24, width - 52))
        done = text.bar(self._fraction, room)
        return Content.assemble(
            (done, "$text-primary"),
            ("─" * (room - len(done)), "$foreground 15%"),
            (f" {self._fraction:4.0%}  ", "bold"),
            text.clean(self._what),
            (left, text.MUTED),
            ("\nEsc stops and keeps what was measured", text.MUTED),
        )

    def _problem(self) -> Content | None:
        error = self._error
        if error is None or self.running or self.stopped:
            return None
        if isinstance(error, LocalspecError):
            return error_content(error)
        log.error("a measurement failed", exc_info=error)
        return error_content(
            LocalspecError(
                f"Something went wrong inside localspec: {type(error).__name__}: {error}",
                why="The chat goes on; the details are in the log.",
                hint="localspec doctor",
            )
        )
