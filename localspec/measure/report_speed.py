"""Speed over draft length, one drafter beside the other, with what the measured parts allow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from localspec.measure.figures import geometric_mean
from localspec.measure.report_data import (
    Json,
    Lines,
    Section,
    Series,
    Table,
    at,
    bound_by_length,
    curve,
    fixed,
    number,
    numbers,
    short,
    spread,
)

_SLUG, _TITLE = "speed-over-draft-length", "Speed over draft length"
AUTO = "auto"
SPARSE = ("lookup", "chain")
"""Drafters that have nothing to propose in some rounds."""
_LEGEND = ("measured", "predicted", "computed", "reference")


@dataclass(frozen=True, slots=True)
class Point:
    """The speed at one draft length."""

    n_draft: int | str
    """Drafted tokens a round, or `auto`."""
    tok_s: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Drafter:
    """What is known of one drafter."""

    name: str
    measured: tuple[Point, ...] = ()
    predicted: tuple[Point, ...] = ()
    """From the measured parts, not from a run."""
    bound: Mapping[int, float] = field(default_factory=dict)
    """tok/s by draft length."""
    sparse: bool = False
    """It does not draft in every round."""


def from_bench(result: Json) -> tuple[float | None, tuple[Drafter, ...]]:
    """The baseline in tok/s, and the drafter of a bench."""
    baseline = number(at(result, "baseline", "decode_tok_s"))
    rate = number(at(result, "drafted", "decode_tok_s"))
    if rate is None:
        return baseline, ()
    length = number(at(result, "settings", "n_draft"))
    where = AUTO if at(result, "settings", "auto") or not length else int(length)
    low, high = spread(at(result, "drafted")) or (None, None)
    speeds = {k: value * baseline for k, value in _bounds(result).items()} if baseline else {}
    name = short(at(result, "draft", "name") or at(result, "settings", "draft") or "draft")
    sparse = at(result, "settings", "draft") in SPARSE
    return baseline, (Drafter(name, (Point(where, rate, low, high),), bound=speeds, sparse=sparse),)


def _bounds(result: Json) -> dict[int, float]:
    """The bound at each length, over kinds of prompts the geometric mean, as the bound of a bench is."""
    ratio, steps = number(at(result, "cost_ratio")), curve(result)
    if ratio is None:
        return {}
    kinds = at(result, "kinds")
    sides = [*kinds.values()] if isinstance(kinds, Mapping) else []
    profiles = [numbers(at(one, "drafted", "per_position")) for one in sides] or [
        numbers(at(result, "drafted", "per_position"))
    ]
    found = [bound_by_length(profile, steps, ratio) for profile in profiles if profile]
    shared = [k for k in found[0] if all(k in one for one in found)] if found else []
    return {k: geometric_mean(one[k] for one in found) or 0.0 for k in shared}


def section(baseline: float | None, drafters: Sequence[Drafter], ends: str = "slowest to fastest") -> Section:
    """The picture of all drafters.

    Args:
        baseline: tok/s without a draft.
        drafters: In the order of the legend.
        ends: What `low` and `high` of the points are.
    """
    known = [one for one in drafters if one.measured or one.predicted]
    if not known:
        said = "" if baseline is None else f" Without one: {baseline:.2f} tok/s."
        return Section(_SLUG, _TITLE, f"No draft was measured, so there is no speed over draft length.{said}")
    lengths = sorted(
        {
            k
            for one in known
            for k in (*one.bound, *(point.n_draft for point in (*one.measured, *one.predicted)))
            if isinstance(k, int)
        }
    )
    autos = any(point.n_draft == AUTO for one in known for point in (*one.measured, *one.predicted))
    last = (lengths[-1] if lengths else 0) + 1
    series = [
        line for index, one in enumerate(known) for line in _series(one, index, len(known), float(last))
    ]
    series.sort(key=lambda line: _LEGEND.index(line.style))
    span = (float(lengths[0] if lengths else last), float(last if autos else lengths[-1]))
    if baseline is not None:
        span = (span[0] - 0.4, span[1] + 0.4)
        series.append(Series("no draft", span, (baseline, baseline), style="reference", colour=len(known)))
    names = {float(k): str(k) for k in lengths} | ({float(last): AUTO} if autos else {})
    plot = Lines("draft length, tokens a round", "decode speed, tok/s", tuple(series), names)
    return Section(_SLUG, _TITLE, _sentence(baseline, known, ends), plot, _table(baseline, known, ends))


def _series(one: Drafter, colour: int, drafters: int, auto: float) -> list[Series]:
    """Measured lengths in a line, `auto` apart from them, then prediction and bound.

    Where there are several drafters, the legend explains prediction and bound once.
    """
    auto += (colour - (drafters - 1) / 2) * 0.8 / drafters  # beside each other
    alone = drafters == 1
    found: list[Series] = []
    fixed_lengths = sorted(
        (point for point in one.measured if isinstance(point.n_draft, int)),
        key=lambda point: int(point.n_draft),
    )
    for points in (fixed_lengths, [point for point in one.measured if point.n_draft == AUTO]):
        if points:
            found.append(
                Series(
                    one.name if not found else "",
                    tuple(auto if point.n_draft == AUTO else float(point.n_draft) for point in points),
                    tuple(point.tok_s for point in points),
                    tuple(point.tok_s if point.low is None else point.low for point in points),
                    tuple(point.tok_s if point.high is None else point.high for point in points),
                    colour=colour,
                )
            )
    predicted = sorted(
        (float(point.n_draft), point.tok_s) for point in one.predicted if isinstance(point.n_draft, int)
    )
    if predicted:
        x, y = zip(*predicted, strict=True)
        name = "predicted" if alone else "" if colour else "predicted, each in its colour"
        name = name if found else f"{one.name}, predicted only"
        found.append(Series(name, x, y, style="predicted", colour=colour))
    if one.bound:
        x = tuple(float(k) for k in one.bound)
        name = "bound" if alone else "" if colour else "bound, each in its colour"
        found.append(Series(name, x, tuple(one.bound.values()), style="computed", colour=colour))
    return found


def _sentence(baseline: float | None, drafters: Sequence[Drafter], ends: str) -> str:
    points = [(point.tok_s, one.name, point.n_draft) for one in drafters for point in one.measured]
    parts = []
    if points:
        speed, name, k = max(points, key=lambda point: point[0])
        where = (
            "with the length chosen round by round"
            if k == AUTO
            else f"at {k} token{'' if k == 1 else 's'} a round"
        )
        parts.append(f"Fastest measured draft: {speed:.2f} tok/s, {name} {where}.")
    if baseline is not None:
        parts.append(f"Without a draft: {baseline:.2f} tok/s, the dotted line.")
    if any(point.low is not None for one in drafters for point in one.measured):
        parts.append(f"Bars: {ends}.")
    if any(one.bound for one in drafters):
        parts.append(
            "Dashed: the bound, what acceptance, verify curve and draft step allow at each length."
            + (
                " For lookup it is that of the rounds that draft at all."
                if any(one.sparse for one in drafters)
                else ""
            )
        )
    if any(one.predicted for one in drafters):
        parts.append("Small points were predicted from the measured parts, not run.")
    return " ".join(parts)


def _table(baseline: float | None, drafters: Sequence[Drafter], ends: str) -> Table:
    rows = [] if baseline is None else [("no draft", "0", fixed(baseline), "-", "-", "-")]
    for one in drafters:
        measured = {point.n_draft: point for point in one.measured}
        predicted = {point.n_draft: point for point in one.predicted}
        lengths: set[int | str] = {*measured, *predicted, *one.bound}
        order: list[int | str] = sorted(k for k in lengths if isinstance(k, int))
        for k in (*order, *([AUTO] if AUTO in lengths else [])):
            point = measured.get(k)
            between = "-"
            if point is not None and point.low is not None and point.high is not None:
                between = f"{point.low:.2f} to {point.high:.2f}"
            bound = one.bound.get(k) if isinstance(k, int) else None
            guess = predicted.get(k)
            rows.append(
                (
                    one.name,
                    str(k),
                    fixed(point.tok_s if point else None),
                    between,
                    fixed(guess.tok_s if guess else None),
                    fixed(bound),
                )
            )
    columns = ("drafter", "length", "tok/s", ends, "predicted", "bound")
    empty = [i for i in (3, 4, 5) if all(row[i] == "-" for row in rows)]
    kept = [i for i in range(len(columns)) if i not in empty]
    return Table(tuple(columns[i] for i in kept), tuple(tuple(row[i] for i in kept) for row in rows))
