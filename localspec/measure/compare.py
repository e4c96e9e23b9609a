"""Two results of bench side by side: what changed, and whether the figures differ beyond noise."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localspec.errors import UsageError
from localspec.measure import figures
from localspec.measure.result import FORMAT
from localspec.models.text import printable

FLOOR = 0.02
"""Smaller differences of speed are never called real: another hour's temperature and memory layout make that much."""
_Z95 = 1.96


@dataclass(frozen=True, slots=True)
class Difference:
    """One figure in both results."""

    name: str
    before: float
    after: float
    low: float | None
    """95 % interval of after / before; None where the noise is not known."""
    high: float | None
    real: bool
    """Beyond noise."""

    @property
    def change(self) -> float:
        """After over before, less 1."""
        return self.after / self.before - 1 if self.before else math.nan

    def to_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "name": self.name,
            "before": self.before,
            "after": self.after,
            "change": self.change,
            "interval": None if self.low is None else [self.low, self.high],
            "beyond_noise": self.real,
        }


@dataclass(frozen=True, slots=True)
class Comparison:
    """What `--compare` says."""

    changed: tuple[tuple[str, str, str], ...]
    """Circumstances: (name, before, after)."""
    differences: tuple[Difference, ...]
    warnings: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "kind": "localspec bench comparison",
            "changed": [
                {"name": name, "before": before, "after": after} for name, before, after in self.changed
            ],
            "differences": [one.to_json() for one in self.differences],
            "warnings": list(self.warnings),
        }


def read_result(path: Path) -> dict[str, Any]:
    """A file that `localspec bench --json` wrote.

    Raises:
        UsageError: It cannot be read, or is something else.
    """
    hint = f"localspec bench --json > {path.name}"
    try:
        value = json.loads(path.read_bytes())  # as a shell wrote it: PowerShell makes UTF-16
    except OSError as error:
        raise UsageError(f"{path} cannot be read.", why=f"{error.strerror or error}.", hint=hint) from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not JSON.", why=f"{error}.", hint=hint) from error
    if not isinstance(value, dict) or value.get("kind") != "localspec bench" or not _has_runs(value):
        raise UsageError(f"{path} is no result of localspec bench.", hint=hint)
    if value.get("format", FORMAT) != FORMAT:
        raise UsageError(
            f"{path} was written by another version of localspec, in a form that this one does not know.",
            why=f"Its format is {printable(str(value.get('format')))}, this one knows {FORMAT}.",
            hint=hint,
        )
    return value


def _has_runs(value: Mapping[str, Any]) -> bool:
    runs = value.get("runs")
    return (
        isinstance(runs, list)
        and bool(runs)
        and all(
            isinstance(run, dict)
            and isinstance(run.get("kind"), str)
            and isinstance(run.get("decode_tok_s"), (int, float))
            and run["decode_tok_s"] > 0
            for run in runs
        )
    )


def compare(before: Mapping[str, Any], after: Mapping[str, Any]) -> Comparison:
    """Compare two results, the older one first."""
    changed = _changed(before, after)
    found: list[Difference] = []
    for drafted, side in ((False, "baseline"), (True, "drafted")):
        kinds = _rates(before, drafted), _rates(after, drafted)
        shared = [kind for kind in kinds[0] if kind in kinds[1]]
        if not shared:
            continue
        found.append(_speed(f"{side} tok/s", *({kind: one[kind] for kind in shared} for one in kinds)))
        if len(shared) > 1:
            found += [
                _speed(f"{side} tok/s, {kind}", {kind: kinds[0][kind]}, {kind: kinds[1][kind]})
                for kind in shared
            ]
    speedup = _speedup(before, after)
    if speedup is not None:
        found.append(speedup)
    acceptance = _acceptance(before, after)
    if acceptance is not None:
        found.append(acceptance)
    return Comparison(tuple(changed), tuple(found), tuple(_warnings(before, after)))


def _rates(result: Mapping[str, Any], drafted: bool) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for run in result["runs"]:
        if bool(run.get("drafted")) == drafted:
            found.setdefault(run["kind"], []).append(float(run["decode_tok_s"]))
    return found


def _speed(
    name: str, before: Mapping[str, Sequence[float]], after: Mapping[str, Sequence[float]]
) -> Difference:
    ratio = figures.unpaired(before, after)
    assert ratio is not None
    levels = [
        figures.geometric_mean(figures.geometric_mean(rates) or 0.0 for rates in side.values()) or 0.0
        for side in (before, after)
    ]
    return Difference(
        name, levels[0], levels[1], ratio.low, ratio.high, _real(ratio.value, ratio.low, ratio.high)
    )


def _real(value: float, low: float | None, high: float | None) -> bool:
    return low is not None and high is not None and not low <= 1 <= high and abs(value - 1) >= FLOOR


def _speedup(before: Mapping[str, Any], after: Mapping[str, Any]) -> Difference | None:
    """Both intervals are wide by their own noise; the difference of their logarithms has both."""
    values = [one.get("speedup") for one in (before, after)]
    if not all(isinstance(value, (int, float)) and value > 0 for value in values):
        return None
    first, second = (float(value) for value in values)  # type: ignore[arg-type]
    widths = [_half_width(one) for one in (before, after)]
    if None in widths:
        return Difference("speedup", first, second, None, None, False)
    width = math.hypot(*(one for one in widths if one is not None))
    ratio = second / first
    low, high = ratio * math.exp(-width), ratio * math.exp(width)
    return Difference("speedup", first, second, low, high, _real(ratio, low, high))


def _half_width(result: Mapping[str, Any]) -> float | None:
    interval = result.get("speedup_interval")
    if not isinstance(interval, list) or len(interval) != 2 or not all(_positive(one) for one in interval):
        return None
    return math.log(interval[1] / interval[0]) / 2


def _positive(value: object) -> bool:
    return isinstance(value, (int, float)) and value > 0


def _acceptance(before: Mapping[str, Any], after: Mapping[str, Any]) -> Difference | None:
    """Two shares: beyond noise when they differ by more than counting so many tokens scatters.

    Repeats of one prompt with one seed give the same text, so only the first one counts.
    """
    counts = [_counts(one) for one in (before, after)]
    if not all(drafted for drafted, _ in counts):
        return None
    (n, a), (m, b) = counts
    first, second = a / n, b / m
    pooled = (a + b) / (n + m)
    error = math.sqrt(pooled * (1 - pooled) * (1 / n + 1 / m))
    margin = _Z95 * error
    if not first:
        return Difference("acceptance", first, second, None, None, second > margin)
    low, high = (second - margin) / first, (second + margin) / first
    return Difference("acceptance", first, second, max(low, 0.0), high, abs(second - first) > margin)


def _counts(result: Mapping[str, Any]) -> tuple[int, int]:
    runs = [run for run in result["runs"] if run.get("drafted") and not run.get("repeat")]
    return sum(int(run.get("drafted_tokens") or 0) for run in runs), sum(
        int(run.get("accepted") or 0) for run in runs
    )


# --------------------------------------------------------------- circumstances


def _changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    found = []
    for part in ("versions", "device", "settings", "protocol"):
        first, second = _flat(part, before.get(part)), _flat(part, after.get(part))
        found += [
            (name, first.get(name, "-"), second.get(name, "-"))
            for name in dict.fromkeys((*first, *second))
            if first.get(name) != second.get(name)
        ]
    for role in ("target", "draft"):
        first_files, second_files = _files(before, role), _files(after, role)
        if first_files != second_files:
            found.append((f"files.{role}", first_files, second_files))
    return found


def _flat(name: str, value: object) -> dict[str, str]:
    if isinstance(value, dict):
        return {
            key: text for one, inner in value.items() for key, text in _flat(f"{name}.{one}", inner).items()
        }
    return {name: json.dumps(value) if not isinstance(value, str) else value}


def _files(result: Mapping[str, Any], role: str) -> str:
    files = result.get("files", {}).get(role) or []
    return (
        ", ".join(
            f"{one.get('name')} ({(one.get('sha256') or 'hash not known')[:12]}, {one.get('size')} bytes)"
            for one in files
        )
        or "-"
    )


def _warnings(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    found = []
    for name, result in (("first", before), ("second", after)):
        if result.get("partial"):
            found.append(f"The {name} result is partial.")
        surroundings = result.get("surroundings") or {}
        if surroundings.get("busy") or (surroundings.get("others_cpu_share") or 0) > 0.15:
            found.append(f"The machine was busy with other programs when the {name} result was made.")
    if (before.get("protocol") or {}).get("prompts") != (after.get("protocol") or {}).get("prompts"):
        found.append("The prompts differ, so the texts do; only kinds with the same name are compared.")
    if before.get("device") != after.get("device"):
        found.append("The machines differ.")
    return found
