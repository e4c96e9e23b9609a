"""`/bench`: the loaded pair with and without its draft, as a live table."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from textual.content import Content

from localspec.measure.advice import Advice, advise
from localspec.measure.bench import QUICK, Measured, Progress, Run, measure
from localspec.measure.figures import VERDICTS, Ratio
from localspec.measure.prompts import BUILT_IN, SEED
from localspec.measure.result import Kind, Result, Side, summarise
from localspec.measure.seen import from_result
from localspec.measure.surroundings import Surroundings, look
from localspec.memory.hardware import seen_gpus
from localspec.models.text import shell_word
from localspec.spec.events import Sampling
from localspec.tui import text
from localspec.tui.plotting import REFERENCE, STYLES, Series, draw
from localspec.tui.screens.measuring import Measuring
from localspec.tui.widgets.figures import net_style
from localspec.tui.widgets.notices import advice_content
from localspec.worker.process import Worker
from localspec.worker.protocol import Configure, Load, Ready

_NAME = 11


class Bench(Measuring):
    """The quick measurement of `localspec bench`. The conversation is not touched; the caches are emptied.

    Args:
        worker: Has nothing running.
        load: What it has loaded, or loads again.
        names: Target and draft as they are typed in a command.
        sampling: As the conversation has it; the seed is that of every bench.
        think: For templates that know it.
    """

    def __init__(
        self, worker: Worker, load: Load, names: tuple[str, str], sampling: Sampling, *, think: bool | None
    ) -> None:
        super().__init__(worker, "Bench: with and without the draft, in pairs, from empty caches")
        self._load = load
        self._names = names
        self._sampling = replace(sampling, seed=SEED)
        self._think = think
        self._surroundings: Surroundings | None = None
        self._now: Progress | None = None
        self._found: Measured | None = None
        self._result: Result | None = None
        self._advice: Sequence[Advice] = ()

    # ------------------------------------------------------------------ thread

    def work(self, tell: Callable[[Any], None], cancelled: Callable[[], bool]) -> None:
        """Measure the pair as it is loaded; afterwards drafting is on or off as it was."""
        wanted = self.worker.draft_on
        surroundings = look()
        tell(surroundings)
        ready = self.worker.ready
        try:
            measured = measure(
                self.worker,
                self._load,
                BUILT_IN,
                QUICK,
                self._sampling,
                think=self._think,
                ready=_as_set(ready, self._load) if ready is not None else None,
                progress=tell,
                cancelled=cancelled,
            )
        finally:
            self.worker.configure(Configure(draft_on=wanted))
            with contextlib.suppress(Exception):  # where that fails, the next answer empties them
                self.worker.clear()
        tell(measured)
        result = summarise(measured)
        if measured.runs and not measured.partial:
            target, draft = self._names
            seen = from_result(
                result, target=target, draft=draft, surroundings=surroundings, gpus=seen_gpus()
            )
            tell(advise(seen))

    # ------------------------------------------------------------------ screen

    def take(self, event: Any) -> None:
        """Progress, complete runs, the end."""
        if isinstance(event, Progress):
            self._at(event)
        elif isinstance(event, Surroundings):
            self._surroundings = event
        elif isinstance(event, Measured):
            self._found = event
            self._error = event.error
            if event.runs:
                self._result = summarise(event)
        else:
            self._advice = event

    def _at(self, event: Progress) -> None:
        words = {
            "load": f"Loading the {event.kind}",
            "warm-up": "Warming up",
            "costs": "Timing the parts of a round",
        }
        side = "with the draft" if event.drafted else "plain"
        what = words.get(event.stage) or f"{event.kind}, {event.repeat} of {QUICK.repeats}, {side}"
        self.progress(event.fraction, what, event.eta_s)
        self._now = event
        if event.run is not None:
            self._add(event.run)

    def _add(self, run: Run) -> None:
        """One more answer; the table is derived anew from all."""
        ready = self.worker.ready
        if self._found is None and ready is not None:
            self._found = Measured(ready, self._load, QUICK, BUILT_IN, self._sampling)
        if self._found is not None:
            self._found.runs.append(run)
            self._result = summarise(self._found)

    def results(self, width: int) -> list[Content]:
        """At the end what it says, and the table."""
        verdict = [] if self.running else self._verdict()
        gap = [] if self.dense or not verdict else [Content("")]
        return [*verdict, *gap, *self._table(width)]

    def remarks(self) -> list[Content]:
        """At the end what the figures mean and what to type next; what else used the machine."""
        lines = [] if self.running else self._end()
        if busy := self._surroundings.sentence if self._surroundings is not None else "":
            lines.append(text.plain(f"Note: {busy}; figures will be low and vary.", "$text-warning"))
        return [Content(""), *lines] if lines else []

    def _table(self, width: int) -> list[Content]:
        wide = width >= 62
        head = f"{'':<{_NAME}}{'plain':>8}{'drafted':>9}{'speedup':>9}"
        lines = [Content.styled(head + ("  95 % interval  accepted" if wide else ""), text.MUTED)]
        kinds = dict(self._result.kinds) if self._result is not None else {}
        best = max((one.speedup.value for one in kinds.values() if one.speedup), default=1.0)
        now = self._now.kind if self._now is not None and self._now.stage == "runs" and self.running else ""
        for name in dict.fromkeys(prompt.kind for prompt in BUILT_IN):
            lines.append(_row(name, kinds.get(name), width, best, now=name == now))
        if self._result is not None and len(kinds) > 1:
            lines.append(_row("together", self._result.together, width, best, now=False))
        return [*lines, Content.styled("tok/s; medians" if wide else "tok/s", text.MUTED)]

    def series(self) -> list[Series]:
        """The speed of each answer in the order of the measurement, without and with the draft."""
        runs = self._found.runs if self._found is not None else []
        sides = ((False, "plain", "●", REFERENCE), (True, "drafted", "▲", STYLES[0]))
        return [
            Series(
                name,
                tuple((run.order + 1.0, run.tok_s) for run in runs if run.drafted is drafted),
                mark,
                style,
            )
            for drafted, name, mark, style in sides
            if any(run.drafted is drafted for run in runs)
        ]

    def plot(self, series: Sequence[Series], width: int, height: int) -> list[Content]:
        """See `Measuring.plot`; the axis is as long as the whole measurement from the start on."""
        ready = self.worker.ready
        sides = 2 if self._found is None or self._found.has_draft else 1
        last = QUICK.repeats * len(BUILT_IN) * (sides if ready is not None else 1)
        last = max(last, *(int(x) for one in series for x, _ in one.points))
        names = {1.0: "1", float(last): f"answer {last}"}
        return draw("tok/s of each answer", series, width, height, x_names=names)

    def _verdict(self) -> list[Content]:
        result = self._result
        if result is None:
            return [Content("Nothing was measured.")] if self.stopped else []
        together, ready = result.together, result.measured.ready
        if together.speedup is not None:
            few = together.speedup.low is None
            verdict = "Too few pairs to tell" if few else VERDICTS[together.speedup.verdict]
            return [Content.styled(f"{verdict}: {_speedup(together.speedup)}.", "bold")]
        if ready.draft.state == "off":
            return [text.plain(f"Only plain decoding was measured; the draft is off: {ready.draft.reason}.")]
        return []

    def _end(self) -> list[Content]:
        result = self._result
        if result is None:
            return []
        together = result.together
        lines: list[Content] = []
        if together.bound is not None and result.cost_ratio is not None:
            lines.append(
                Content(
                    f"What the parts allow is {together.bound:.2f}×: a draft step takes {result.cost_ratio:.2f} of a"
                    " target step."
                )
            )
        if together.same_text is not None:
            same = (
                "the same" if together.same_text else "not the same in all pairs: localspec verify tells why"
            )
            lines.append(Content(f"The texts with and without the draft are {same}."))
        for advice in self._advice:
            lines += [Content(""), advice_content(advice)]
        target, draft = (shell_word(name) for name in self._names)
        again = f"localspec bench {target} --draft {draft}"
        return [*lines, Content.assemble(("In full: ", text.MUTED), (text.clean(again), "bold"))]

    def sentence(self) -> str:
        """One line for the conversation."""
        together = self._result.together if self._result is not None else None
        if together is None or together.baseline is None:
            return "Nothing was measured."
        stopped = " It was stopped before the end." if self._found is not None and self._found.partial else ""
        plain = f"plain {text.rate(together.baseline.decode_tok_s)} tok/s"
        if together.speedup is None or together.drafted is None:
            return f"Measured: {plain}.{stopped}"
        drafted = f"drafted {text.rate(together.drafted.decode_tok_s)}"
        return f"Measured: {_speedup(together.speedup)}; {drafted}, {plain}.{stopped}"


def _as_set(ready: Ready, load: Load) -> Ready:
    """What is loaded, with the draft length as it was changed since."""
    return replace(ready, draft=replace(ready.draft, n_draft=load.n_draft, auto=load.auto))


def _row(name: str, kind: Kind | None, width: int, best: float, *, now: bool) -> Content:
    """One kind of prompt: figures, and a bar of its speedup where there is room."""
    baseline, drafted, speedup = (kind.baseline, kind.drafted, kind.speedup) if kind else (None, None, None)
    value = f"{speedup.value:.2f}×" if speedup else text.NOTHING
    parts: list[str | tuple[str, str]] = [
        (f"{'▸' if now else ' '}{name[: _NAME - 1]:<{_NAME - 1}}", "bold $text-accent" if now else ""),
        f"{_rate(baseline):>8}{_rate(drafted):>9}",
        (f"{value:>9}", net_style(speedup.value) if speedup else ""),
    ]
    if width >= 62:
        interval = f"{speedup.low:.2f} to {speedup.high:.2f}" if speedup and speedup.low is not None else ""
        share = text.percent(drafted.window.acceptance_rate) if drafted else text.NOTHING
        parts.append(f"{interval:>15}{share:>10}")
        if speedup and width >= 70:
            parts += ["  ", (text.bar(speedup.value / max(best, 1.0), min(width - 66, 40)), "$text-accent")]
    return Content.assemble(*(part if isinstance(part, str) or part[1] else part[0] for part in parts))


def _rate(side: Side | None) -> str:
    return text.rate(side.decode_tok_s if side else None)


def _speedup(ratio: Ratio) -> str:
    interval = f" ({ratio.low:.2f} to {ratio.high:.2f})" if ratio.low is not None else ""
    return f"{ratio.value:.2f}×{interval}"
