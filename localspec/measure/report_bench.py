"""What the report of a bench shows, worked out from the object of `--json`: figures of pictures, tables, sentences.

Nothing is drawn here. A part that was not measured becomes a section with a sentence and without a picture.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from localspec.measure import report_speed
from localspec.measure.figures import VERDICTS
from localspec.measure.report_data import (
    Bars,
    Intervals,
    Json,
    Lines,
    Section,
    Series,
    Table,
    at,
    between,
    clean,
    curve,
    fixed,
    interval,
    number,
    numbers,
    objects,
    share,
    size,
    spread,
    unit_of,
)

_MODES = {"weights": "weights", "cache": "cache", "compute": "compute buffers"}


def sections(result: Json) -> tuple[Section, ...]:
    """Everything that a bench can show.

    Args:
        result: The object of `localspec bench --json`.
    """
    return (
        kinds(result),
        report_speed.section(*report_speed.from_bench(result)),
        acceptance(result),
        verify(result),
        depth(result),
        memory(result),
    )


def acceptance(result: Json) -> Section:
    """Acceptance by position, both ways of counting."""
    slug, title = "acceptance", "Acceptance by position"
    conditional = numbers(at(result, "drafted", "per_position"))
    plain = numbers(at(result, "drafted", "per_position_unconditional"))
    if not conditional and not plain:
        return Section(
            slug, title, "Nothing was drafted in the measured part, so there is no acceptance to show."
        )
    first = conditional[0] if conditional else plain[0]
    sentence = (
        f"The first drafted token of a round is accepted {first:.0%} of the time. Conditional: of the rounds that "
        "accepted everything before this position. Unconditional: of all rounds that drafted this position."
    )
    if at(result, "settings", "auto"):
        sentence += " The length was chosen round by round, so late positions were reached only where the text is easy."
    found = (
        ("conditional acceptance", "conditional", conditional),
        ("unconditional acceptance", "unconditional", plain),
    )
    return Section(slug, title, sentence, *by_position(found))


def by_position(found: Sequence[tuple[str, str, Sequence[float]]]) -> tuple[Lines, Table]:
    """Picture and table of shares by position in the draft.

    Args:
        found: For each line, its name in the legend, its name in the table, and the shares at positions 1, 2, ...
    """
    lines = tuple(
        Series(name, tuple(float(i + 1) for i in range(len(values))), tuple(values), colour=index)
        for index, (name, _, values) in enumerate(found)
        if values
    )
    rows = tuple(
        (str(i + 1), *(share(_item(values, i)) for _, _, values in found))
        for i in range(max(len(values) for _, _, values in found))
    )
    plot = Lines("position in the draft", "accepted, % of rounds", lines, {}, percent=True)
    return plot, Table(("position", *(column for _, column, _ in found)), rows)


def verify(result: Json) -> Section:
    """The verify curve and what padding makes of it."""
    slug, title = "verify-curve", "Verify curve V(n)"
    measured = curve(result)
    if len(measured) < 2:
        return Section(slug, title, "The parts of a round were not timed, so there is no verify curve.")
    sizes = tuple(measured)
    envelope = tuple(min(measured[m] for m in sizes if m >= n) for n in sizes)
    ends = (float(sizes[0]), float(sizes[-1]))
    x = tuple(float(n) for n in sizes)
    steps = (
        Series("V(n), measured", x, tuple(measured.values()), colour=0),
        Series("envelope W(n)", x, envelope, style="computed", colour=1),
        Series("n single steps", ends, ends, style="reference", colour=2),
    )
    last = sizes[-1]
    plain = number(at(result, "costs", "plain_s"))
    depth = at(result, "costs", "depth")
    unit = "" if plain is None else f" One step took {plain * 1000:.2f} ms at {clean(depth)} tokens."
    sentence = (
        f"The target checks {last} tokens in the time of {measured[last]:.2f} single steps; the further a point lies "
        "under the dotted line, the more a draft can gain. The envelope is the cheapest batch that holds n tokens: "
        f"where a larger one is faster, the batch is filled up to it.{unit}"
    )
    ratio = number(at(result, "cost_ratio"))
    if ratio is not None:
        sentence += f" A drafted token costs {ratio:.2f} of a step (cost ratio c)."
    rows = tuple((str(n), fixed(measured[n]), fixed(low)) for n, low in zip(sizes, envelope, strict=True))
    plot = Lines(
        "n, tokens in the batch",
        "time, in steps of one token",
        steps,
        {},
        y_top=max(measured.values()) * 1.25,
    )
    return Section(slug, title, sentence, plot, Table(("n", "V(n)", "envelope"), rows))


def depth(result: Json) -> Section:
    """Speed at several lengths of the answer."""
    slug, title = "speed-over-depth", "Speed over depth"
    points: dict[tuple[bool, float], tuple[float, Any]] = {}
    for one in objects(at(result, "lengths")):
        length, rate = number(at(one, "length")), number(at(one, "decode_tok_s"))
        if length is not None and rate is not None:
            points[bool(at(one, "drafted")), length] = rate, at(one, "acceptance_rate")
    if not points:
        return Section(
            slug, title, "Speed over depth was not measured; localspec bench --lengths 200,2000,4000 does."
        )
    lines = []
    for drafted, name in ((False, "no draft"), (True, "with draft")):
        x = tuple(sorted(length for side, length in points if side == drafted))
        if x:
            y = tuple(points[drafted, length][0] for length in x)
            lines.append(Series(name, x, y, colour=int(drafted)))
    lengths = sorted({length for _, length in points})
    rows = tuple(
        (
            f"{length:g}",
            fixed(_item(points.get((False, length)), 0)),
            fixed(_item(points.get((True, length)), 0)),
            share(_item(points.get((True, length)), 1)),
        )
        for length in lengths
    )
    told = [
        f"{one.name} from {one.y[0]:.1f} to {one.y[-1]:.1f} tok/s" for one in lines if len(one.x) > 1
    ] or [f"{one.name} {one.y[0]:.1f} tok/s" for one in lines]
    where = (
        f"From {lengths[0]:g} to {lengths[-1]:g} tokens" if len(lengths) > 1 else f"At {lengths[0]:g} tokens"
    )
    sentence = f"{where} of one answer: {'; '.join(told)}. Each point is one answer's speed over the tokens before it."
    plot = Lines("tokens of the answer", "decode speed, tok/s", tuple(lines), {})
    columns = ("tokens", "no draft, tok/s", "with draft, tok/s", "accepted")
    return Section(slug, title, sentence, plot, Table(columns, rows))


def memory(result: Json) -> Section:
    """Memory by model and by use."""
    slug, title = "memory", "Memory by model"
    models = {
        role: {key: value for key, one in parts.items() if (value := number(one)) is not None}
        for role in ("target", "draft")
        if isinstance(parts := at(result, "models", role, "memory"), Mapping) and parts
    }
    models = {role: parts for role, parts in models.items() if parts}
    if not models:
        return Section(slug, title, "The engine did not tell its memory by model.")
    totals = {role: sum(parts.values()) for role, parts in models.items()}
    scale, unit = unit_of(max(totals.values()))
    keys = list(dict.fromkeys((*_MODES, *(key for parts in models.values() for key in parts))))
    keys = [key for key in keys if any(key in parts for parts in models.values())]
    parts = tuple(
        (_MODES.get(key, clean(key, 24)), tuple(one.get(key, 0.0) / scale for one in models.values()))
        for key in keys
    )
    rows = tuple(
        (role, *(size(one[key]) if key in one else "-" for key in keys), size(totals[role]))
        for role, one in models.items()
    )
    sentence = f"{' and '.join(f'The {role} takes {size(total)}' for role, total in totals.items())}."
    sentence = sentence.replace(" and The", " and the")
    if at(result, "models", "draft") is None:
        sentence += " No draft model was loaded."
    used, total = number(at(result, "memory", "used")), number(at(result, "memory", "total"))
    if used is not None:
        of = f" of {size(total)}" if total else ""
        sentence += (
            f" At the peak {size(used)}{of} {clean(at(result, 'memory', 'label') or '')} was in use in all."
        )
    columns = ("model", *(name for name, _ in parts), "together")
    return Section(slug, title, sentence, Bars(f"memory, {unit}", tuple(models), parts), Table(columns, rows))


def kinds(result: Json) -> Section:
    """Speedups by kind of prompt."""
    slug, title = "speedup-by-kind", "Speedup by kind of prompt"
    found = at(result, "kinds")
    sides = {clean(name): one for name, one in found.items()} if isinstance(found, Mapping) else {}
    if len(sides) != 1:
        sides = {**sides, "together": result}
    marks = []
    for name, one in sides.items():
        value = number(at(one, "speedup"))
        low, high = interval(one)
        if value is not None and value > 0:
            marks.append((clean(name, 22), value, low, high, number(at(one, "bound"))))
    table = _kinds_table(sides)
    if not marks:
        return Section(
            slug,
            title,
            "No pair with and without a draft was completed, so there is no speedup.",
            None,
            table,
        )
    value, low = marks[-1][1], marks[-1][2]
    ends = between(at(list(sides.values())[-1], "speedup_interval"), "×")
    noise = f" (95 % interval {ends})" if low is not None else " (one pair: its noise is not known)"
    words = {str(name): said[0].lower() + said[1:] for name, said in VERDICTS.items()}
    verdict = "" if low is None else words.get(str(at(result, "verdict")), "")
    sentence = (
        f"All prompts together: {value:.2f}×{noise}{'; ' + verdict if verdict else ''}. Right of the line at 1× "
        "the draft pays; where an interval crosses it, the figures cannot tell."
    )
    return Section(slug, title, sentence, Intervals("speedup over no draft, ×", tuple(marks)), table)


def _kinds_table(sides: Mapping[str, Any]) -> Table:
    columns = (
        "prompts",
        "no draft, tok/s",
        "with draft, tok/s",
        "speedup",
        "95 % interval",
        "bound",
        "accepted",
        "tokens a round",
    )
    rows = tuple(
        (
            clean(name, 32),
            _rate(at(one, "baseline")),
            _rate(at(one, "drafted")),
            fixed(at(one, "speedup"), unit="×"),
            between(at(one, "speedup_interval"), "×") or "-",
            fixed(at(one, "bound"), unit="×"),
            share(at(one, "drafted", "acceptance_rate")),
            fixed(at(one, "drafted", "mean_accepted_length")),
        )
        for name, one in sides.items()
    )
    return Table(columns, rows)


def _rate(side: object) -> str:
    rate, ends = number(at(side, "decode_tok_s")), spread(side)
    if rate is None:
        return "-"
    return f"{rate:.4g}" + (f" ({ends[0]:.4g} to {ends[1]:.4g})" if ends else "")


def _item(values: Sequence[Any] | None, index: int) -> Any:
    return values[index] if values is not None and index < len(values) else None
