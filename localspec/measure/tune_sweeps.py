"""The other settings, one at a time, everything else as chosen.

Cache type, flash attention, threads, the split over several GPUs, where the draft runs and whether it runs beside the
target, batch. Temperature and top-p are shown, never chosen: what changes the text is for the person to decide.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from localspec.errors import LocalspecError
from localspec.measure import figures
from localspec.measure.figures import Ratio
from localspec.measure.tune_cells import OFF, Cell, CellResult, Sweep, beyond_noise
from localspec.measure.tune_runs import Runner
from localspec.options import UNQUANTISED
from localspec.worker.protocol import FlashAttention, Load, ModelInfo, OverlapMode, Ready, SplitMode

_REPEATS = 2
_Rates = dict[tuple[str, int], list[float]]


@dataclass(frozen=True, slots=True)
class Knobs:
    """Values to try. Empty = leave that setting alone."""

    kv: tuple[str, ...] = ()
    flash_attn: tuple[FlashAttention, ...] = ()
    split_mode: tuple[SplitMode, ...] = ()
    """Only where there are several GPUs."""
    threads: tuple[int, ...] = ()
    """Only where the target is computed by the CPU."""
    draft_device: tuple[str, ...] = ()
    """Only where the choice is a draft model, like the next one."""
    draft_threads: tuple[int, ...] = ()
    overlap: tuple[OverlapMode, ...] = ()
    """Only where target and draft are computed by different devices."""
    overlap_anywhere: bool = False
    """Try it where they share one too: there it seldom pays."""
    batch: tuple[int, ...] = ()
    ubatch: tuple[int, ...] = ()
    ubatch_on_cpu: bool = False
    """Try them where the CPU computes the target too: there they seldom matter."""
    temperatures: tuple[float, ...] = ()
    """Shown, never chosen: it changes the text. So does the next one."""
    top_ps: tuple[float, ...] = ()

    @property
    def answers(self) -> int:
        """Answers a prompt that they take, about."""
        tried = len(self.kv) + len(self.flash_attn) + len(self.threads) + len(self.split_mode)
        tried += len(self.draft_device) + len(self.draft_threads) + len(self.overlap)
        return _REPEATS * (tried + 2 * len(self.temperatures) + 2 * len(self.top_ps))


@dataclass(frozen=True, slots=True)
class _Variable:
    name: str
    unit: str
    values: tuple[Any, ...]
    used: Any
    change: Callable[[Load, Any], Load]
    measure: Callable[[Load, str], _Rates]
    note: Callable[[Any], str] = lambda value: ""
    narrow: Callable[[Load, tuple[Any, ...]], tuple[Any, ...]] = lambda load, values: values
    """Those of the values that are worth a try, asked when its turn has come."""


class Sweeper:
    """Turns one knob after the other.

    Args:
        runner: Runs answers.
        knobs: Values.
        found: Told each table.
    """

    def __init__(self, runner: Runner, knobs: Knobs, found: Callable[[Sweep], None]) -> None:
        self._runner = runner
        self._knobs = knobs
        self._found = found
        self._cell = Cell(OFF)

    def run(self, load: Load, cell: Cell, ready: Ready | None) -> Load:
        """Try all values.

        Args:
            load: What was chosen so far.
            cell: Its length.
            ready: Of any load of the target.

        Returns:
            The load with every value that is faster beyond noise.
        """
        self._cell = cell
        for variable in self._variables(load, ready):
            values = variable.narrow(load, variable.values) if len(variable.values) > 1 else ()
            if len(values) > 1:
                load = self._sweep(load, replace(variable, values=values))
        self._show(load, "temperature", self._knobs.temperatures)
        self._show(load, "top_p", self._knobs.top_ps)
        return load

    def _variables(self, load: Load, ready: Ready | None) -> list[_Variable]:
        knobs = self._knobs
        threads = ready.threads if ready is not None else load.threads
        on_cpu = ready is not None and ready.target.gpu_layers == 0
        return [
            _Variable(
                name="threads",
                unit="tok/s",
                values=_with(threads, knobs.threads) if on_cpu else (),
                used=threads,
                change=lambda load, value: replace(load, threads=value),
                measure=self._decode,
            ),
            _Variable(
                name="kv",
                unit="tok/s",
                values=_with(load.kv_type, knobs.kv),
                used=load.kv_type,
                change=lambda load, value: replace(load, kv_type=value),
                measure=self._decode,
                note=_lossy,
            ),
            _Variable(
                name="flash attention",
                unit="tok/s",
                values=_with(load.flash_attn, knobs.flash_attn),
                used=load.flash_attn,
                change=lambda load, value: replace(load, flash_attn=value),
                measure=self._decode,
            ),
            _Variable(
                name="split mode",
                unit="tok/s",
                values=_with(load.split_mode, knobs.split_mode) if not on_cpu else (),
                used=load.split_mode,
                change=lambda load, value: replace(load, split_mode=value),
                measure=self._decode,
            ),
            *self._placements(load, ready),
            *self._batches(load, on_cpu=on_cpu),
        ]

    def _placements(self, load: Load, ready: Ready | None) -> list[_Variable]:
        """Where and with how many threads a draft model runs, and whether it does so while the target verifies."""
        if load.draft.kind != "model":
            return []
        threads = load.draft.threads or load.threads or (ready.threads if ready is not None else 0)
        return [
            self._of_draft("device", load.draft.device, self._knobs.draft_device),
            self._of_draft("threads", threads, self._knobs.draft_threads),
            replace(
                self._of_draft("overlap", load.draft.overlap, self._knobs.overlap),
                name="overlap",
                narrow=self._overlaps,
            ),
        ]

    def _of_draft(self, name: str, used: Any, others: Sequence[Any]) -> _Variable:
        """A field of `DraftSpec`, judged by the speed of answers."""

        def change(load: Load, value: Any) -> Load:
            changed: dict[str, Any] = {name: value}
            return replace(load, draft=replace(load.draft, **changed))

        return _Variable(f"draft {name}", "tok/s", _with(used, others), used, change, self._decode)

    def _overlaps(self, load: Load, values: tuple[Any, ...]) -> tuple[Any, ...]:
        """Without what `auto` comes to; none where the same device computes both models."""
        ready = self._runner.load(load, "overlap")  # it is loaded, or is what is measured next
        if ready.draft_model is None:
            return ()
        if not self._knobs.overlap_anywhere and _computed_by(ready.target) & _computed_by(ready.draft_model):
            return ()
        same = ("on" if ready.draft.overlap else "off") if load.draft.overlap == "auto" else ""
        return tuple(value for value in values if value != same)

    def _batches(self, load: Load, *, on_cpu: bool) -> list[_Variable]:
        """By the speed of prompts. A round is computed at once, so the draft sets the least."""
        least = max(8, 1 + self._cell.n_draft)
        at_once = [value for value in self._knobs.ubatch if value >= least]
        return [
            _Variable(
                name="batch",
                unit="prompt tok/s",
                values=_with(load.n_batch, [value for value in self._knobs.batch if value >= least]),
                used=load.n_batch,
                change=lambda load, value: _with_draft_room(
                    replace(load, n_batch=value, n_ubatch=min(load.n_ubatch, value))
                ),
                measure=self._prompts,
            ),
            _Variable(
                name="ubatch",
                unit="prompt tok/s",
                values=_with(load.at_once, at_once) if self._knobs.ubatch_on_cpu or not on_cpu else (),
                used=load.at_once,
                change=lambda load, value: _with_draft_room(
                    replace(load, n_batch=max(load.n_batch, value), n_ubatch=value)
                ),
                measure=self._prompts,
            ),
        ]

    def _sweep(self, load: Load, variable: _Variable) -> Load:
        """Measure each value; one that seems faster has to be so beside a fresh measurement of the old one too."""
        base = variable.measure(load, f"{variable.name} {variable.used}")
        rows: list[tuple[str, float, Ratio | None]] = [(str(variable.used), _mean(base), None)]
        best, best_load, best_value = Ratio(1.0, 1.0, 1.0), load, variable.used
        said: list[str] = []
        for value in variable.values:
            if value == variable.used:
                continue
            changed = variable.change(load, value)
            try:
                rates = variable.measure(changed, f"{variable.name} {value}")
            except LocalspecError as error:  # it does not fit, or llama.cpp refuses it
                said.append(f"{value} is left out: {error.message}")
                continue
            ratio = _over(rates, base)
            if beyond_noise(ratio) and ratio.value > best.value:
                ratio = _over(rates, variable.measure(load, f"{variable.name} {variable.used} again"))
                if beyond_noise(ratio) and ratio.value > best.value:
                    best, best_load, best_value = ratio, changed, value
            rows.append((str(value), _mean(rates), ratio))
        if best_value != variable.used and (note := variable.note(best_value)):
            said.append(note)
        self._found(Sweep(variable.name, variable.unit, tuple(rows), str(best_value), " ".join(said)))
        return best_load

    def _decode(self, load: Load, what: str) -> _Rates:
        self._runner.load(load, what)
        result = CellResult(self._cell)
        self._runner.alone(result, _REPEATS, what)
        return result.rates

    def _prompts(self, load: Load, what: str) -> _Rates:
        """The speed of reading the prompts."""
        self._runner.load(load, what)
        found: _Rates = {}
        for _ in range(_REPEATS):
            for number, prompt in enumerate(self._runner.prompts):
                rate = self._runner.prompt_speed(prompt, what)
                if rate is not None:
                    found.setdefault((prompt.kind, number), []).append(rate)
        return found

    def _show(self, load: Load, name: str, values: Sequence[float]) -> None:
        """What the choice gains over no draft at each value of a setting that changes the text."""
        if len(values) < 2:
            return
        runner, before, words = self._runner, self._runner.sampling, name.replace("_", "-")
        changed: dict[str, Any]
        rows: list[tuple[str, float, Ratio | None]] = []
        try:
            runner.load(load, words)
            for value in dict.fromkeys(values):
                changed = {name: value}
                runner.sampling = replace(before, **changed)
                off, cell = CellResult(Cell(OFF)), CellResult(self._cell)
                cells = [] if cell.cell.off else [cell]
                for repeat in range(_REPEATS):
                    for number in range(len(runner.prompts)):
                        runner.block(number, repeat, off, cells, f"{words} {value:g}")
                rows.append((f"{value:g}", (cells or [off])[0].tok_s, cell.speedup if cells else None))
        finally:
            runner.sampling = before
        note = (
            f"The speedup is over no draft. {words[0].upper()}{words[1:]} changes the text: it is yours to choose,"
            " and none is taken for its speed."
        )
        self._found(Sweep(words, "tok/s", tuple(rows), f"{getattr(before, name):g}", note, shown_only=True))


def _computed_by(model: ModelInfo) -> set[str]:
    on_gpu = {model.device} if model.gpu_layers > 0 else set()
    return on_gpu | ({"CPU"} if model.gpu_layers <= model.n_layer else set())


def _with_draft_room(load: Load) -> Load:
    return replace(load, n_draft=min(load.n_draft, load.at_once - 1))


def _with(used: Any, values: Sequence[Any]) -> tuple[Any, ...]:
    """The value in use first; none when there is nothing to compare it with."""
    return (used, *(value for value in dict.fromkeys(values) if value != used)) if values else ()


def _mean(rates: _Rates) -> float:
    return figures.geometric_mean(rate for values in rates.values() for rate in values) or 0.0


def _over(rates: _Rates, base: _Rates) -> Ratio:
    keyed = [
        {f"{kind} {number}": values for (kind, number), values in side.items()} for side in (base, rates)
    ]
    return figures.unpaired(*keyed) or Ratio(1.0, None, None)


def _lossy(value: str) -> str:
    if value in UNQUANTISED:
        return ""
    return f"{value} changes the text a little: localspec verify --kv {value} says how much."
