"""What the report of a tuning shows: every cell beside its prediction and bound, acceptance, the other settings."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from localspec.measure import report_bench, report_speed
from localspec.measure.report_data import (
    Intervals,
    Json,
    Section,
    Table,
    at,
    between,
    bound_by_length,
    clean,
    curve,
    fixed,
    interval,
    number,
    numbers,
    objects,
    short,
    size,
)
from localspec.measure.report_speed import AUTO, SPARSE, Drafter, Point

_OFF = "none"
_SHOWN_CELLS = 16


def sections(result: Json) -> tuple[Section, ...]:
    """Everything that a tuning can show.

    Args:
        result: The object of `localspec tune --json`.
    """
    profiles = objects(at(result, "drafters"))
    steps = next((one for one in profiles if len(curve(one)) > 1), {})
    return (
        report_speed.section(*drafters(result), ends="95 % interval"),
        _cells(result),
        _acceptance(profiles),
        report_bench.verify({"verify_curve": at(steps, "verify_curve")}),
        _other_settings(objects(at(result, "sweeps"))),
    )


def drafters(result: Json) -> tuple[float | None, tuple[Drafter, ...]]:
    """The speed without a draft in tok/s, and every drafter.

    A speed here is what the cell gains over no draft in its own load, times the speed without a draft: that is how
    cells of two loads are compared.
    """
    cells = _all_cells(result)
    off = next((one for one in cells if _draft(one) == _OFF), {})
    baseline = number(at(off, "decode_tok_s"))
    profiles = {_draft(one): one for one in objects(at(result, "drafters"))}
    names = dict.fromkeys([*map(_draft, cells), *profiles])
    return baseline, tuple(
        _drafter([one for one in cells if _draft(one) == name], profiles.get(name, {}), baseline)
        for name in names
        if name != _OFF
    )


def _all_cells(result: Json) -> list[Json]:
    """The cells of the race, and of the proof those that were not in it."""
    found: dict[tuple[str, int | str | None], Json] = {}
    for one in (*objects(at(result, "cells")), *objects(at(result, "exhaustive", "cells"))):
        found.setdefault((_draft(one), _length(one)), one)
    return list(found.values())


def _draft(one: Json) -> str:
    return str(at(one, "draft") or _OFF)


def _label(one: Json) -> str:
    return "no draft" if _draft(one) == _OFF else short(_draft(one))


def _drafter(cells: Sequence[Json], profile: Json, baseline: float | None) -> Drafter:
    rate = baseline or 1.0
    measured = []
    for one in cells:
        speedup, ends = number(at(one, "speedup")), interval(one)
        if speedup is not None and (length := _length(one)) is not None:
            low, high = (None if end is None else end * rate for end in ends)
            measured.append(Point(length, speedup * rate, low, high))
    predicted = [
        Point(length, speedup * rate)
        for one in objects(at(profile, "predicted"))
        if (speedup := number(at(one, "speedup"))) is not None and (length := _length(one)) is not None
    ]
    ratio = number(at(profile, "cost_ratio"))
    allowed = {} if ratio is None else bound_by_length(_conditional(profile), curve(profile), ratio)
    bound = {k: speedup * rate for k, speedup in allowed.items()}
    sparse = any(at(one, "drafter") in SPARSE for one in (profile, *cells))
    return Drafter(_label(profile or cells[0]), tuple(measured), tuple(predicted), bound, sparse)


def _length(one: Json) -> int | str | None:
    if at(one, "auto") or at(one, "n_draft") == AUTO:
        return AUTO
    length = number(at(one, "n_draft"))
    return int(length) if length else None


def _conditional(profile: Json) -> tuple[float, ...]:
    """Acceptance at each position of the drafts that were accepted so far."""
    reached = (1.0, *numbers(at(profile, "survival")))
    return tuple(after / before for before, after in pairwise(reached) if before)


def _cells(result: Json) -> Section:
    slug, title = "cells", "Measured settings"
    found = [one for one in _all_cells(result) if number(at(one, "speedup")) is not None]
    drafted = sorted((one for one in found if _draft(one) != _OFF), key=lambda one: -float(one["speedup"]))
    if not drafted:
        return Section(
            slug, title, "No draft was measured: none was on the disk, or none could gain anything."
        )
    marks = []
    for one in drafted[:_SHOWN_CELLS]:
        low, high = interval(one)
        marks.append((clean(f"{_label(one)}, {_length(one)}", 26), float(one["speedup"]), low, high, None))
    rows = tuple(
        (
            _label(one),
            "0" if _draft(one) == _OFF else str(_length(one)),
            fixed(at(one, "decode_tok_s")),
            fixed(at(one, "speedup"), unit="×"),
            between(at(one, "speedup_interval"), "×") or "-",
            fixed(at(one, "predicted_speedup"), unit="×"),
            size(at(one, "memory_bytes")) if at(one, "memory_bytes") else "-",
        )
        for one in [*(one for one in found if _draft(one) == _OFF), *drafted]
    )
    more = len(drafted) - len(marks)
    gap = number(at(result, "exhaustive", "gap"))
    sentence = (
        f"Fastest: {_label(drafted[0])} at length {_length(drafted[0])}, {fixed(drafted[0]['speedup'])}× of no draft. "
        "What the fastest does not beat beyond noise counts as tied with it; of these the one with the least memory "
        "is chosen."
        + (f" The picture shows the first {len(marks)} of {len(drafted)}." if more else "")
        + (
            ""
            if gap is None
            else f" Beside the best of all {len(drafted)}, measured one by one, the choice loses {gap:.1%}."
        )
    )
    columns = ("drafter", "length", "tok/s", "speedup", "95 % interval", "predicted", "memory")
    return Section(
        slug, title, sentence, Intervals("speedup over no draft, ×", tuple(marks)), Table(columns, rows)
    )


def _acceptance(profiles: Sequence[Json]) -> Section:
    slug, title = "acceptance", "Acceptance by drafter"
    found = [
        (_label(one), _label(one), values) for one in profiles if (values := numbers(at(one, "survival")))
    ]
    if not found:
        return Section(
            slug, title, "No drafter was asked what it would accept, so there is no acceptance to show."
        )
    sentence = (
        "Unconditional acceptance: of the rounds that drafted as many tokens as could pay, the share in which this "
        "token and all before it were accepted."
    )
    return Section(slug, title, sentence, *report_bench.by_position(found))


def _other_settings(sweeps: Sequence[Json]) -> Section:
    slug, title = "other-settings", "Other settings, one at a time"
    rows = []
    for one in sweeps:
        for row in objects(at(one, "rows")):
            value, used = at(row, "value"), at(one, "used")
            ratio = fixed(at(row, "speedup"), unit="×")
            ends = between(at(row, "speedup_interval"), "×")
            rows.append(
                (
                    clean(at(one, "variable"), 24),
                    clean(value, 24) + (", taken" if str(value) == str(used) else ""),
                    f"{fixed(at(row, 'figure'))} {clean(at(one, 'unit') or '', 16)}",
                    f"{ratio} ({ends})" if ends else ratio,
                )
            )
    if not rows:
        return Section(slug, title, "No other setting was varied.")
    sentence = (
        "Everything else stays as it was chosen; each figure stands beside that of the value in use before."
    )
    return Section(
        slug,
        title,
        sentence,
        None,
        Table(("setting", "value", "figure", "over the value in use"), tuple(rows)),
    )
