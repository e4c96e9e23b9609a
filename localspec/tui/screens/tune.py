"""`/tune`: the fastest drafter and draft length of the loaded target, as a live table; the result is saved."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from textual.content import Content

from localspec.measure.prompts import BUILT_IN, SEED
from localspec.measure.tune import tune
from localspec.measure.tune_cells import CellResult, Profile
from localspec.measure.tune_drafts import on_disk
from localspec.measure.tune_found import Raced, Tuned
from localspec.measure.tune_result import to_profile
from localspec.measure.tune_runs import QUICK, Step
from localspec.models.catalog import load_catalog
from localspec.models.text import shell_word
from localspec.options import AUTO_N_DRAFT
from localspec.profiles import save
from localspec.settings import load_state
from localspec.spec.events import Sampling
from localspec.tui import text
from localspec.tui.plotting import DASHES, LINE, POINTS, REFERENCE, STYLES, Series, draw
from localspec.tui.screens.measuring import Measuring
from localspec.tui.widgets.figures import net_style
from localspec.worker.process import Worker
from localspec.worker.protocol import DraftSpec, Load

_NAME = 30
_BRIEF = 5
"""Measured cells from which on a low screen shows the best one of each drafter only."""


class Tune(Measuring):
    """The quick way of `localspec tune`: drafters and draft lengths. Other drafters are loaded meanwhile.

    Args:
        worker: Has nothing running.
        load: What it has loaded; everything but drafter and length is kept.
        target: The target as it is typed in a command.
        sampling: As the conversation has it; the seed is that of every bench.
        think: For templates that know it.
    """

    def __init__(
        self, worker: Worker, load: Load, target: str, sampling: Sampling, *, think: bool | None
    ) -> None:
        super().__init__(worker, "Tune: every drafter on this disk, beside no draft")
        self._load = load
        self._target = target
        self._sampling = replace(sampling, seed=SEED)
        self._think = think
        self._said: list[str] = []
        self._profiles: list[Profile] = []
        self._raced: list[Raced] = []
        self._tuned: Tuned | None = None
        self._file: Path | None = None

    # ------------------------------------------------------------------ thread

    def work(self, tell: Callable[[Any], None], cancelled: Callable[[], bool]) -> None:
        """Find the drafters, race them, save what won twice."""
        catalog = load_catalog()
        ref = catalog.resolve(self._target, role="target", target=None)
        candidates, notes = on_disk(ref, catalog, load_state(), like=self._load.draft)
        for note in notes:
            tell(note)
        most = min(AUTO_N_DRAFT, self._load.at_once - 1)
        tuned = tune(
            self.worker,
            replace(self._load, draft=DraftSpec(), n_draft=most, auto=False),
            candidates,
            BUILT_IN,
            QUICK,
            self._sampling,
            think=self._think,
            tell=tell,
            cancelled=cancelled,
        )
        tell(tuned)
        if tuned.confirmed:
            when = datetime.now(timezone.utc).isoformat(timespec="seconds")
            tell(save(to_profile(tuned, when=when, target=self._target, name="")))

    # ------------------------------------------------------------------ screen

    def take(self, event: Any) -> None:
        """Progress, measured cells, sentences, the end."""
        if isinstance(event, Step):
            self.progress(event.fraction, event.what, event.eta_s)
        elif isinstance(event, Raced):
            self._raced.append(event)
        elif isinstance(event, Tuned):
            self._tuned = event
            self._error = event.error
        elif isinstance(event, Path):
            self._file = event
        elif isinstance(event, str):
            self._said.append(event)
        elif isinstance(event, Profile):
            self._profiles.append(event)
            if not event.predictions:
                self._said.append(
                    f"{event.candidate.label} is not tried: it could reach {event.ceiling:.2f}× at most."
                )

    def results(self, width: int) -> list[Content]:
        """At the end what was found, and the table."""
        lines = [] if self.running else [text.plain(self.sentence(), "bold")]
        lines += [Content("")] if lines and not self.dense else []
        lines += [Content.styled(f"{'':<{_NAME}}{'k':>6}{'tok/s':>8}{'speedup':>9}", text.MUTED)]
        best = max((cell.speedup.value for one in self._raced for cell in one.cells), default=1.0)
        if self._raced:
            off = self._raced[0].off
            lines.append(Content(f"{'no draft':<{_NAME}}{'':>6}{text.rate(off.tok_s):>8}{'1.00×':>9}"))
        brief = self.dense and sum(len(one.cells) for one in self._raced) > _BRIEF
        for one in self._raced:
            ranked = sorted(one.cells, key=lambda cell: -cell.speedup.value)
            cells = ranked[:1] if brief else one.cells
            lines += [_row(one.candidate.label, cell, width, best) for cell in cells]
        if brief:
            lines.append(Content.styled("of each drafter the length that was the fastest", text.MUTED))
        return lines

    def remarks(self) -> list[Content]:
        """At the end why it is this one and what to type next; what was left out."""
        said = [text.plain(sentence, text.MUTED) for sentence in self._said]
        lines = [*([] if self.running else self._end()), *said]
        return [Content(""), *lines] if lines else []

    def series(self) -> list[Series]:
        """Of each drafter, what its lengths should earn and what they did; `auto` stands behind the last length."""
        tried = [one for one in self._profiles if one.predictions]
        if not tried:
            return []
        auto = self._auto_place()
        found = [Series("no draft", ((1.0, 1.0), (auto, 1.0)), DASHES, REFERENCE)]
        raced = {one.candidate.name: one.cells for one in self._raced}
        for number, one in enumerate(tried):
            style, mark = STYLES[number % len(STYLES)], POINTS[number % len(POINTS)]
            line = tuple((float(each.n_draft), each.speedup) for each in one.predictions)
            cells = raced.get(one.candidate.name, ())
            points = tuple(
                (auto if cell.cell.auto else float(cell.cell.n_draft), cell.speedup.value) for cell in cells
            )
            found.append(Series("" if points else one.candidate.label, line, LINE, style))
            found.append(Series(one.candidate.label, points, mark, style))
        return found

    def plot(self, series: Sequence[Series], width: int, height: int) -> list[Content]:
        """See `Measuring.plot`."""
        auto = self._auto_place()
        names = {float(k): str(k) for k in (1, 2, 4, 8, 12, 16) if k < auto - 1 or k == 1}
        title = "speedup over draft length: line predicted, points measured"
        return draw(title, series, width, height, unit="×", x_names=names | {auto: "auto"})

    def _auto_place(self) -> float:
        """Where `auto` stands on the axis of lengths."""
        return 2.0 + max((each.n_draft for one in self._profiles for each in one.predictions), default=1)

    def _end(self) -> list[Content]:
        full = Content.assemble(
            ("In full, with cache type and threads: ", text.MUTED),
            (f"localspec tune {text.clean(shell_word(self._target))}", "bold"),
        )
        return [*self._ties(), full]

    def _ties(self) -> list[Content]:
        """Why it is not the highest figure of the table that was taken, where it is not."""
        tuned = self._tuned
        if tuned is None or tuned.choice is None or tuned.fastest is None:
            return []
        choice, fastest = tuned.choice.cell, tuned.fastest
        if choice == fastest.cell or fastest.cell.off:
            return []
        name = f"{tuned.candidate(fastest.cell).label}, k={fastest.cell.length}"
        if choice.draft == fastest.cell.draft:
            why = "which it does not lose to beyond noise"
        else:
            why = "which is no faster beyond noise and needs more memory"
        return [text.plain(f"In one race {name} made {fastest.speedup.value:.2f}×, {why}.", text.MUTED)]

    def sentence(self) -> str:
        """One line for the conversation."""
        tuned = self._tuned
        if tuned is None or tuned.choice is None:
            return "Nothing was measured."
        choice = tuned.choice
        so_far = "" if tuned.confirmed else " so far (not confirmed)"
        if choice.cell.off:
            word = "Off is fastest" if tuned.verdict == "off is fastest" else "No draft is as fast as any"
            found = f"{word}{so_far}: {text.rate(choice.tok_s)} tok/s."
        else:
            label = tuned.candidate(choice.cell).label
            figures = f"{text.rate(choice.tok_s)} tok/s, {choice.speedup.value:.2f}×"
            found = f"Fastest{so_far}: {label}, k={choice.cell.length}: {figures}."
        kept = (
            f" Saved as {self._file.stem}: the next localspec run uses it." if self._file else " Not saved."
        )
        return found + kept


def _row(label: str, cell: CellResult, width: int, best: float) -> Content:
    value = cell.speedup.value
    parts: list[str | tuple[str, str]] = [
        f"{text.one_line(label, _NAME - 2):<{_NAME}}{cell.cell.length:>6}{text.rate(cell.tok_s):>8}",
        (f"{value:.2f}×".rjust(9), net_style(value)),
    ]
    room = width - _NAME - 25
    if room >= 6:
        parts += ["  ", (text.bar(value / max(best, 1.0), min(room, 40)), "$text-accent")]
    return Content.assemble(*parts)
