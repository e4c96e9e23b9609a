"""The table and the JSON of a measurement."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from scripts.peers.answers import Prices
from scripts.peers.runner import OURS, SCREEN, Cell, Sample
from scripts.peers.targets import Target


@dataclass(frozen=True, slots=True)
class Row:
    """One program in one configuration on one prompt: medians over its repeats."""

    cell: Cell
    tool: str
    config: str
    runs: int
    tok_s: float
    low: float
    high: float
    acceptance: float | None
    tokens_per_round: float | None
    to_ours: float | None
    """Its speed over localspec's in the same group: at the same draft length where there is one, else the default."""
    to_bound: float | None
    same_text: bool | None
    """Whether it says what localspec says in the group, as far as both go; where tokens are drawn, of ours only."""

    def to_json(self) -> dict[str, object]:
        """For `--json`."""
        cell = self.cell
        return {
            "part": cell.part,
            "model": cell.model,
            "drafter": cell.drafter,
            "kind": cell.kind,
            "temperature": cell.temperature,
            "tool": self.tool,
            "config": self.config,
            "runs": self.runs,
            "tok_s": self.tok_s,
            "tok_s_min": self.low,
            "tok_s_max": self.high,
            "acceptance": self.acceptance,
            "tokens_per_round": self.tokens_per_round,
            "ratio_to_ours": self.to_ours,
            "ratio_to_bound": self.to_bound,
            "same_text": self.same_text,
        }


def rows(samples: Sequence[Sample], prices: Callable[[str, str], Prices]) -> list[Row]:
    """The table, in the order in which things were measured."""
    together: dict[tuple[Cell, str, str], list[Sample]] = {}
    groups: dict[tuple[int, int], list[Sample]] = {}
    for sample in samples:
        together.setdefault((sample.cell, sample.tool, sample.config), []).append(sample)
        groups.setdefault((sample.group, sample.repeat), []).append(sample)
    found = [_row(key, some, groups, prices) for key, some in together.items()]
    order = {cell: number for number, cell in enumerate(dict.fromkeys(sample.cell for sample in samples))}
    return sorted(found, key=lambda row: (order[row.cell], row.tool != OURS, row.tool, row.config))


def _row(
    key: tuple[Cell, str, str],
    samples: Sequence[Sample],
    groups: Mapping[tuple[int, int], Sequence[Sample]],
    prices: Callable[[str, str], Prices],
) -> Row:
    cell, tool, config = key
    speeds = [sample.answer.tok_s for sample in samples]
    drafted = sum(sample.answer.drafted for sample in samples)
    ratios, bounds, same = [], [], []
    for sample in samples:
        ours = _counterpart(sample, groups[sample.group, sample.repeat])
        if ours is not None and ours.answer.tok_s > 0:
            ratios.append(sample.answer.tok_s / ours.answer.tok_s)
            agrees = sample.answer.agrees(ours.answer)
            comparable = cell.temperature == 0 or tool == OURS  # ours draws the same whatever the draft does
            if comparable and ours is not sample and cell.part != "deep" and agrees is not None:
                same.append(agrees)
        pair = prices(cell.model, cell.drafter)
        # Costs are timed at the depth of a short answer; they say nothing about a long one.
        bound = pair.bound(sample.answer) if sample.answer.drafted and cell.part != "long" else None
        if bound:
            bounds.append(sample.answer.tok_s / bound)
    steps = [sample.answer.tokens_per_round for sample in samples]
    return Row(
        cell=cell,
        tool=tool,
        config=config,
        runs=len(samples),
        tok_s=median(speeds),
        low=min(speeds),
        high=max(speeds),
        acceptance=sum(sample.answer.accepted for sample in samples) / drafted if drafted else None,
        tokens_per_round=median(value for value in steps if value is not None) if any(steps) else None,
        to_ours=median(ratios) if ratios else None,
        to_bound=median(bounds) if bounds else None,
        same_text=all(same) if same else None,
    )


def _counterpart(sample: Sample, group: Sequence[Sample]) -> Sample | None:
    """Our run to compare with: a rival's at the same draft length where there is one, else our default, else plain."""
    ours = {one.config: one for one in group if one.tool == OURS}
    wanted = next((word for word in sample.config.split() if word.startswith("k=")), sample.config)
    if wanted in ours and sample.tool != OURS:
        return ours[wanted]
    for config in ("auto", "plain"):
        if config in ours:
            return ours[config]
    return next(iter(ours.values()), None)


def print_table(found: Sequence[Row], say: Callable[[str], None]) -> None:
    """Each cell under a heading of its own; the short answers of the screen are counted only."""
    short = [row for row in found if row.cell.part == SCREEN]
    if short:
        say(
            f"\nscreen: {sum(row.runs for row in short)} short answers; they only choose what follows (--json has them)"
        )
    head = f"  {'':<17} {'':<26} {'tok/s':>7} {'(spread)':>15} {'accepted':>9} {'tok/round':>10}"
    head += f" {'to ours':>8} {'to bound':>9}"
    cell = None
    for row in found:
        if row.cell.part == SCREEN:
            continue
        if row.cell != cell:
            cell = row.cell
            name = " · ".join(filter(None, (cell.part, cell.model, cell.drafter, cell.kind)))
            say(f"\n{name}{f' · T {cell.temperature:g}' if cell.temperature else ''}\n{head}")
        spread = f"({row.low:.2f}-{row.high:.2f})" if row.runs > 1 else "(one run)"
        other = "  other text" if row.same_text is False else ""
        share = f"{row.acceptance:.0%}" if row.acceptance is not None else "-"
        say(
            f"  {row.tool:<17} {row.config:<26} {row.tok_s:>7.2f} {spread:>15} {share:>9}"
            f" {_number(row.tokens_per_round):>10} {_number(row.to_ours):>8} {_number(row.to_bound):>9}{other}"
        )


def print_targets(targets: Mapping[str, Target], say: Callable[[str], None]) -> None:
    """One line each."""
    say("\nTargets")
    for name, target in targets.items():
        state = {True: "met", False: "MISSED", None: "-"}[target.met]
        wanted = f">= {target.target:.2f}" if target.target is not None else ""
        say(f"  {name:<40} {_number(target.figure, 3):>7} {wanted:>8} {state:<7} {target.how}")


def spent(samples: Sequence[Sample]) -> dict[str, dict[str, float]]:
    """What each part made: answers, tokens, the target's steps, tokens drafted, and seconds after the first tokens."""
    found: dict[str, dict[str, float]] = {}
    for sample in samples:
        answer = sample.answer
        part = found.setdefault(sample.cell.part, {})
        for name, value in (
            ("answers", 1),
            ("tokens", answer.tokens),
            ("rounds", answer.rounds),
            ("drafted", answer.drafted),
            ("seconds", answer.seconds),
        ):
            part[name] = part.get(name, 0) + value
    return found


def machine() -> dict[str, object]:
    """What it was measured on."""
    from localspec import __version__
    from localspec.llama import backend

    return {
        "system": platform.platform(),
        "cpus": os.cpu_count(),
        "load": os.getloadavg() if hasattr(os, "getloadavg") else None,
        "localspec": __version__,
        **backend.versions(),
        "instructions": _instructions(),
    }


def _instructions() -> str:
    import llama_cpp

    return str(llama_cpp.llama_print_system_info().decode("utf-8", "replace"))


def _number(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
