"""The result of tune while it grows, and what is told meanwhile."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from localspec.errors import LocalspecError
from localspec.measure.tune_cells import (
    NO_DRAFT,
    OFF,
    Candidate,
    Cell,
    CellResult,
    Noise,
    Profile,
    Sweep,
    beyond_noise,
)
from localspec.measure.tune_runs import Effort, Step
from localspec.spec.events import Sampling
from localspec.worker.protocol import Load, Ready

Verdict = Literal["faster", "off is fastest", "within noise"]


@dataclass(frozen=True, slots=True)
class Raced:
    """The measured cells of one drafter."""

    candidate: Candidate
    off: CellResult
    """On the same load."""
    cells: tuple[CellResult, ...]


@dataclass(frozen=True, slots=True)
class Exhaustive:
    """Every cell measured, for the proof."""

    results: tuple[CellResult, ...]
    seconds: float
    clever_seconds: float
    best: CellResult
    gap: float
    """How much slower the chosen cell is than the best one, both as measured here."""
    real: bool = False
    """The gap is beyond noise. The best of many noisy figures lies above its own speed."""


Event = Step | Profile | Raced | Sweep | str
"""What tune tells while it works; a string is a sentence for the person."""


@dataclass(slots=True)
class Tuned:
    """All that was found."""

    base: Load
    effort: Effort
    sampling: Sampling
    candidates: tuple[Candidate, ...]
    ready: Ready | None = None
    profiles: list[Profile] = field(default_factory=list)
    noise: Noise = field(default_factory=Noise)
    """Of all measured cells."""
    off: CellResult = field(default_factory=lambda: CellResult(Cell(OFF)))
    results: list[CellResult] = field(default_factory=list)
    """Of all cells but no draft."""
    choice: CellResult | None = None
    """The cell to take, with its last figures; None = nothing was measured."""
    fastest: CellResult | None = None
    """The fastest one in the race."""
    tied: tuple[CellResult, ...] = ()
    """What the fastest one does not beat beyond noise."""
    confirmed: bool = False
    """The choice won on fresh blocks too, or is no draft."""
    winners: dict[str, tuple[CellResult, float]] = field(default_factory=dict)
    """Kinds of prompts that want another cell, and how much faster it is there."""
    sweeps: list[Sweep] = field(default_factory=list)
    load: Load | None = None
    """What to load: the choice with the other settings that were found."""
    exhaustive: Exhaustive | None = None
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0
    partial: bool = False
    """It was stopped before the end."""
    error: LocalspecError | None = None
    """What ended it."""

    @property
    def verdict(self) -> Verdict:
        """What the choice is worth beside no draft."""
        if self.choice is not None and not self.choice.cell.off:
            return "faster" if beyond_noise(self.choice.speedup) else "within noise"
        if self.fastest is None or self.fastest.cell.off or self.fastest.speedup.value < 1:
            return "off is fastest"
        return "within noise"

    def candidate(self, cell: Cell) -> Candidate:
        """The drafter of a cell."""
        return next((one for one in self.candidates if one.name == cell.draft), NO_DRAFT)
