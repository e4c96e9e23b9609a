"""What tune measures and what it finds: drafters, cells, figures of cells, and the order among them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from localspec.measure import figures
from localspec.measure.compare import FLOOR
from localspec.measure.figures import Ratio, Window
from localspec.measure.tune_predict import Prediction
from localspec.worker.protocol import DraftSpec

OFF = "none"
KIND_FLOOR = 0.05
"""A kind of prompt is said to want other settings from this gain on."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A drafter to try."""

    name: str
    """As typed after `--draft`: an id, a path, `lookup`."""
    spec: DraftSpec
    label: str
    """Short, for tables."""
    size_bytes: int = 0

    @property
    def free(self) -> bool:
        """Its drafts take no time."""
        return self.spec.kind == "lookup"


NO_DRAFT = Candidate(OFF, DraftSpec("none", off_reason="tune measures without a draft"), "no draft")


@dataclass(frozen=True, slots=True)
class Cell:
    """One setting: a drafter and its length."""

    draft: str
    """`Candidate.name`, or `none`."""
    n_draft: int = 0
    auto: bool = False
    """The length is chosen by price; `n_draft` is then the greatest."""

    @property
    def off(self) -> bool:
        """Without a draft."""
        return self.draft == OFF

    @property
    def length(self) -> str:
        """The length as it is typed after `--n-draft`."""
        return "auto" if self.auto else str(self.n_draft)


@dataclass(slots=True)
class Noise:
    """The noise of timing on this machine: how far repeats of the same pair lie apart, over all cells.

    A cell that was measured once on each prompt cannot tell its own noise, but the others can: answers of one length
    on one machine scatter alike, whatever drafts.
    """

    _cells: list[CellResult] = field(default_factory=list)

    def cell(self, cell: Cell, memory: int = 0, predicted: float | None = None) -> CellResult:
        """A new cell that shares this noise."""
        made = CellResult(cell, memory, predicted, noise=self)
        self._cells.append(made)
        return made

    @property
    def groups(self) -> list[list[float]]:
        """Ratios of the same setting on the same prompt: they differ by noise alone."""
        found: dict[tuple[Cell, tuple[str, int]], list[float]] = {}
        for one in self._cells:
            for prompt, values in one.ratios.items():
                found.setdefault((one.cell, prompt), []).extend(values)
        return [values for values in found.values() if len(values) > 1]


@dataclass(slots=True, eq=False)
class CellResult:
    """Everything that was measured of a cell on one load."""

    cell: Cell
    memory: int = 0
    """Bytes of weights, caches and buffers of the drafter."""
    predicted: float | None = None
    rates: dict[tuple[str, int], list[float]] = field(default_factory=dict)
    """tok/s of each answer, by prompt (kind and number)."""
    ratios: dict[tuple[str, int], list[float]] = field(default_factory=dict)
    """The same over no draft in the same block."""
    windows: list[Window] = field(default_factory=list)
    given_up: bool = False
    """It left the race: it cannot be the choice."""
    noise: Noise | None = None
    """Where it comes from; None = from its own repeats alone."""

    @property
    def tok_s(self) -> float:
        """The geometric mean over the prompts of their median speeds."""
        return figures.geometric_mean(median(values) for values in self.rates.values() if values) or 0.0

    @property
    def speedup(self) -> Ratio:
        """Over no draft."""
        found, _ = figures.paired(self.ratios, self.scatter)
        return found or Ratio(1.0, None, None)

    @property
    def kinds(self) -> dict[str, Ratio]:
        """Over no draft, by kind of prompt."""
        return figures.paired(self.ratios, self.scatter)[1]

    @property
    def scatter(self) -> list[list[float]] | None:
        """For `figures.paired`."""
        return None if self.noise is None else self.noise.groups

    @property
    def answers(self) -> int:
        """How many were measured."""
        return sum(len(values) for values in self.rates.values())

    def add(self, kind: str, number: int, rate: float, baseline: float, window: Window) -> None:
        """Count one answer and its partner without a draft."""
        self.rates.setdefault((kind, number), []).append(rate)
        self.ratios.setdefault((kind, number), []).append(rate / baseline)
        self.windows.append(window)

    def take(self, other: CellResult) -> None:
        """Count the answers of the same cell from another load."""
        for own, theirs in ((self.rates, other.rates), (self.ratios, other.ratios)):
            for key, values in theirs.items():
                own.setdefault(key, []).extend(values)
        self.windows += other.windows


def against(one: CellResult, other: CellResult) -> Ratio:
    """Speed of a cell over that of another one, with the noise of both.

    Cells of one load met in the same blocks, so their answers are compared in pairs. Cells of two loads are compared
    by what each gains over no draft in its own load; no draft itself gains nothing, exactly.
    """
    if one.cell.off and other.cell.off:
        return Ratio(1.0, 1.0, 1.0)
    if one.cell.draft == other.cell.draft:
        shared = {
            key: [a / b for a, b in zip(values, other.ratios[key], strict=False)]
            for key, values in one.ratios.items()
            if key in other.ratios
        }
        return figures.paired(shared, one.scatter)[0] or Ratio(1.0, None, None)
    return _quotient(_EXACT if one.cell.off else one.speedup, _EXACT if other.cell.off else other.speedup)


_EXACT = Ratio(1.0, 1.0, 1.0)
"""No draft over no draft."""


def _quotient(first: Ratio, second: Ratio) -> Ratio:
    """Of two speedups measured apart: the logarithm of the quotient has the noise of both."""
    value = first.value / second.value
    if first.low is None or first.high is None or second.low is None or second.high is None:
        return Ratio(value, None, None)
    width = math.hypot(math.log(first.high / first.low) / 2, math.log(second.high / second.low) / 2)
    return Ratio(value, value * math.exp(-width), value * math.exp(width))


def pooled(one: CellResult, other: CellResult) -> CellResult:
    """All answers of a cell from two loads."""
    found = CellResult(one.cell, one.memory, one.predicted)
    found.take(one)
    found.take(other)
    return found


def beyond_noise(ratio: Ratio) -> bool:
    """Whether a speed over another one is really greater."""
    return ratio.verdict == "faster" and ratio.value >= 1 + FLOOR


def choose(results: Sequence[CellResult]) -> tuple[CellResult, CellResult, tuple[CellResult, ...]]:
    """The cell to take, from a race.

    Args:
        results: Measured cells, no draft among them.

    Returns:
        The choice; the fastest one as measured; and all that the fastest one does not beat beyond noise, itself
        included. Of these the one that needs the least memory is the choice, and of one drafter's the length that
        follows the text, else the fastest. Whether the choice beats no draft is left to a test of its own, unless
        nothing seems to.
    """
    fastest = max(results, key=lambda one: one.speedup.value)
    tied = tuple(
        one for one in results if one is fastest or not (one.given_up or beyond_noise(against(fastest, one)))
    )
    seems = fastest.speedup.value >= 1 + FLOOR
    choice = min(
        (one for one in tied if not (seems and one.cell.off)),
        key=lambda one: (one.memory, not one.cell.off, not one.cell.auto, -one.speedup.value),
    )
    return choice, fastest, tied


def other_winners(choice: CellResult, results: Sequence[CellResult]) -> dict[str, tuple[CellResult, float]]:
    """Kinds of prompts on which another cell is faster, beyond noise, with by how much."""
    found: dict[str, tuple[CellResult, float]] = {}
    own = choice.kinds
    names = dict.fromkeys(kind for one in results for kind in one.kinds)
    for kind in names:
        for one in results:
            gain = _kind_gain(one, choice, kind, own)
            if gain is not None and (kind not in found or gain > found[kind][1]):
                found[kind] = (one, gain)
    return found


def _kind_gain(one: CellResult, choice: CellResult, kind: str, own: Mapping[str, Ratio]) -> float | None:
    first = _EXACT if one.cell.off else one.kinds.get(kind)
    second = _EXACT if choice.cell.off else own.get(kind)
    if one is choice or first is None or second is None:
        return None
    ratio = _quotient(first, second)
    return ratio.value - 1 if ratio.verdict == "faster" and ratio.value >= 1 + KIND_FLOOR else None


@dataclass(frozen=True, slots=True)
class Profile:
    """What was found out about a drafter before its cells were measured."""

    candidate: Candidate
    cost_ratio: float
    verify_curve: dict[int, float]
    longest: int
    """No longer draft can be better, whatever is accepted."""
    ceiling: float
    """The speedup at the best length if everything were accepted."""
    survival: tuple[float, ...] = ()
    """Of the drafts of the greatest length, the share whose first 1, 2, ... tokens were accepted."""
    predictions: tuple[Prediction, ...] = ()
    """Of every fixed length; empty where the drafter cannot pay."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """One variable at a time, everything else as chosen."""

    variable: str
    """`kv`, `threads`, `ubatch`, `temperature`, ..."""
    unit: str
    rows: tuple[tuple[str, float, Ratio | None], ...]
    """Value, figure, and over the value in use; None for that one itself."""
    used: str
    """The value that is taken."""
    note: str = ""
    shown_only: bool = False
    """None is taken: `used` is the person's own, and the ratios are over no draft."""
