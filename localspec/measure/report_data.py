"""What sections of a report are made of, and how figures are read from the object of `--json` and written as text."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from localspec.measure.figures import interpolate

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a picture."""

    name: str
    """Empty = not in the legend."""
    x: tuple[float, ...]
    y: tuple[float, ...]
    low: tuple[float, ...] = ()
    """Ends of an interval, one a point; empty = none."""
    high: tuple[float, ...] = ()
    style: Literal["measured", "predicted", "computed", "reference"] = "measured"
    """Points joined by a line, small points, a dashed line, or a dotted line that one compares with."""
    colour: int = 0


@dataclass(frozen=True, slots=True)
class Lines:
    """Series over a common axis."""

    x_label: str
    y_label: str
    series: tuple[Series, ...]
    x_names: Mapping[float, str]
    """Labels of the ticks of x; empty = numbers."""
    percent: bool = False
    """y is a share, shown from 0 to 100 %."""
    y_top: float | None = None
    """Where y ends; None = above everything."""


@dataclass(frozen=True, slots=True)
class Intervals:
    """A value with its interval for each row, beside the value that nothing changes."""

    x_label: str
    rows: tuple[tuple[str, float, float | None, float | None, float | None], ...]
    """Name, value, low, high, bound."""


@dataclass(frozen=True, slots=True)
class Bars:
    """Stacked bars, one a row."""

    x_label: str
    rows: tuple[str, ...]
    parts: tuple[tuple[str, tuple[float, ...]], ...]
    """Name, and one value a row."""


Plot = Lines | Intervals | Bars


@dataclass(frozen=True, slots=True)
class Table:
    """Cells as they are shown."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Section:
    """A picture with its sentence and its figures."""

    slug: str
    title: str
    sentence: str
    plot: Plot | None = None
    table: Table | None = None


def number(value: object) -> float | None:
    """A finite number, or None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if math.isfinite(value) else None


def clean(value: object, width: int = 0) -> str:
    """A name from outside as one line of text.

    Args:
        value: What to show.
        width: Longest text; the middle is left out beyond it. 0 = any.
    """
    text = "".join(
        " " if one in "\n\t" else "\ufffd" if unicodedata.category(one)[0] == "C" else one
        for one in str(value)
    )
    if width and len(text) > width:
        text = text[: width // 2] + "…" + text[len(text) - (width - 1 - width // 2) :]
    return text


def short(name: object, width: int = 28) -> str:
    """A model's name without its folder or publisher."""
    text = clean(name).replace("\\", "/").rstrip("/")
    return clean(text.rpartition("/")[2].removesuffix(".gguf"), width)


def at(value: object, *path: str) -> Any:
    """What lies at a path of keys, None where it ends early."""
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def numbers(value: object) -> tuple[float, ...]:
    """The leading finite numbers of a list."""
    found = []
    for one in value if isinstance(value, Sequence) and not isinstance(value, str) else ():
        if (figure := number(one)) is None:
            break
        found.append(figure)
    return tuple(found)


def objects(value: object) -> list[Json]:
    """The objects in a list; none for anything else."""
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list) else []


def curve(result: Json) -> dict[int, float]:
    """V(n), with its one at 1."""
    raw = at(result, "verify_curve")
    found = {
        int(size): value
        for size, one in (raw.items() if isinstance(raw, Mapping) else ())
        if str(size).isascii() and str(size).isdigit() and (value := number(one)) is not None and value > 0
    }
    return dict(sorted({1: 1.0, **found}.items())) if found else {}


def fixed(value: object, digits: int = 2, unit: str = "") -> str:
    """A figure as text, `-` for none."""
    figure = number(value)
    return "-" if figure is None else f"{figure:.{digits}f}{unit}"


def share(value: object) -> str:
    """A share in percent, `-` for none."""
    figure = number(value)
    return "-" if figure is None else f"{figure:.0%}"


def spread(side: object) -> tuple[float, ...]:
    """Slowest and fastest repeat; empty where there was one only."""
    ends = numbers(at(side, "spread"))
    return ends if len(ends) == 2 and ends[0] != ends[1] else ()


def interval(one: object) -> tuple[float, float] | tuple[None, None]:
    """Ends of the interval of a speedup; None where there is none."""
    ends = numbers(at(one, "speedup_interval"))
    return (ends[0], ends[1]) if len(ends) == 2 else (None, None)


def between(value: object, unit: str = "") -> str:
    """An interval as text, empty for none."""
    ends = numbers(value)
    return f"{ends[0]:.2f}{unit} to {ends[1]:.2f}{unit}" if len(ends) == 2 else ""


def size(value: object) -> str:
    """Bytes in powers of ten, as hubs count."""
    figure = number(value)
    if figure is None:
        return "?"
    if figure < 500_000:
        return "< 1 MB"
    scale, unit = unit_of(figure)
    return f"{figure / scale:.{1 if unit == 'GB' else 0}f} {unit}"


def unit_of(greatest: float) -> tuple[float, str]:
    """The divisor and the name of the unit that fits a number of bytes."""
    return (1e9, "GB") if greatest >= 999.5e6 else (1e6, "MB")


def bound_by_length(
    conditional: Sequence[float], steps: Mapping[int, float], ratio: float
) -> dict[int, float]:
    """The bound at each draft length: mean accepted length / (V(k+1) + k c).

    Args:
        conditional: Acceptance at positions 1, 2, ..., of the rounds that accepted all before.
        steps: V(n) by n.
        ratio: c.

    Returns:
        Speedups for k = 1, 2, ..., as far as acceptance and curve were measured.
    """
    found, reached, length = {}, 1.0, 1.0
    for k, rate in enumerate(conditional, 1):
        if k + 1 > max(steps, default=0):
            break
        reached *= rate
        length += reached
        found[k] = length / (interpolate(steps, k + 1) + k * ratio)
    return found
