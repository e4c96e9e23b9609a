"""How a download is drawn: a bar on a terminal, a line now and then without one. Always on stderr."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from localspec.cli import output

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

    from localspec.models.progress import Progress

_LINE_STEPS = 20  # one line for each 5 %
_LINE_SECONDS = 10.0


@contextmanager
def drawing() -> Iterator[Callable[[Progress], None]]:
    """Something to pass as `progress` to `hub.fetch` and `demo.ensure`."""
    if not output.can_draw(sys.stderr):
        yield _Lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as RichProgress

    console = Console(file=sys.stderr, highlight=False)
    # Names come from outside: never markup.
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=None),
        TextColumn("{task.fields[figures]}", markup=False),
    )
    with RichProgress(*columns, console=console, expand=True) as bars:
        yield _Bars(bars)


class _Bars:
    """One bar a file; sentences stay above the bars."""

    def __init__(self, bars: RichProgress) -> None:
        self._bars = bars
        self._tasks: dict[str, TaskID] = {}
        self._said = ""

    def __call__(self, event: Progress) -> None:
        if event.note and event.note != self._said:
            self._said = event.note
            self._bars.console.print(output.printable(event.note), markup=False)
        if not event.total and event.stage != "preparing":
            return
        if event.file not in self._tasks:
            self._tasks[event.file] = self._bars.add_task(_short(event.file), figures="")
        task = self._tasks[event.file]
        total = event.total or None
        self._bars.update(task, completed=event.done, total=total, figures=_figures(event))


class _Lines:
    """A line for each 5 %, or after 10 seconds, and one at the end."""

    def __init__(self) -> None:
        self._step: dict[str, int] = {}
        self._when = 0.0
        self._said = ""

    def __call__(self, event: Progress) -> None:
        if event.note:
            if event.note != self._said:
                output.say(event.note)
            self._said = event.note
            return
        if not event.total:
            return
        now = time.monotonic()
        # The end is said once, when the file is checked and in its place.
        step = (
            _LINE_STEPS
            if event.stage == "done"
            else min(_LINE_STEPS - 1, event.done * _LINE_STEPS // event.total)
        )
        last = self._step.get(event.file, -1)
        if last == _LINE_STEPS or (step <= last and now - self._when < _LINE_SECONDS):
            return
        self._step[event.file], self._when = step, now
        output.say(f"{event.file}  {event.done / event.total:4.0%}  {_figures(event)}")


def _short(name: str, limit: int = 34) -> str:
    name = output.printable(name)
    return name if len(name) <= limit else f"{name[: limit - 14]}…{name[-13:]}"


def _figures(event: Progress) -> str:
    if event.stage == "preparing":
        return "working"
    parts = [f"{output.size(event.done)} of {output.size(event.total)}"]
    if event.stage == "downloading" and event.speed > 0 and event.done < event.total:
        parts.append(f"{output.size(round(event.speed))}/s")
        if event.eta is not None:
            parts.append(f"{_clock(event.eta)} left")
    elif event.stage != "downloading":
        parts.append(event.stage)
    return "  ".join(parts)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(min(seconds, 359_999)) + 1, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
