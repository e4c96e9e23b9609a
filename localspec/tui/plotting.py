"""Plots in the chat: plotext draws the characters, the theme colours them, so they are right in light and dark."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import plotext
from textual.content import Content

from localspec.measure.report_terminal import round_step
from localspec.tui import text

LINE = "braille"
"""A thin line; a cell is divided into eight dots."""
DASHES = "╌"
"""For what one compares with."""
POINTS = "●▲■◆▼★"
STYLES = ("$text-success", "$text-accent", "$text-primary", "$text-error", "$text-secondary")
"""Of series that are equal in rank; each is readable on light and dark ground."""
REFERENCE = "$text-warning"

LEAST_HEIGHT = 6
"""Lines below which a plot, its title included, tells nothing."""
LEAST_WIDTH = 24
_FIRST = 16  # plotext's numbers of colours from here on stand for our series
_SHOWN_SERIES = 16
_TALL = 12
_LEGEND = 24
_COLOURED = re.compile(r"\x1b\[(?:38;5;(\d+)|0)m")


@dataclass(frozen=True, slots=True)
class Series:
    """Points, or a line through them."""

    name: str
    """For the legend; empty = not in it. May come from outside."""
    points: tuple[tuple[float, float], ...]
    marker: str = LINE
    style: str = STYLES[0]

    @property
    def joined(self) -> bool:
        """Whether a line goes through the points."""
        return self.marker in (LINE, DASHES)


def draw(
    title: str,
    series: Sequence[Series],
    width: int,
    height: int,
    *,
    unit: str = "",
    x_names: Mapping[float, str] | None = None,
) -> list[Content]:
    """A plot from 0 upwards: a line that tells what is shown, then the picture.

    Args:
        title: What is shown. Ours; the names of the series may come from outside.
        series: Later ones lie over earlier ones. Points that are no numbers are left out.
        width: Cells of a line.
        height: Lines in all.
        unit: Written behind the numbers of the upright axis.
        x_names: Labels of the other axis by place; None = the first and the last place as numbers.

    Returns:
        At most `height` lines of at most `width` cells; empty where there is no room or nothing to show.
    """
    shown = [one for one in (_finite(one) for one in series[-_SHOWN_SERIES:]) if one.points]
    if not shown or height < LEAST_HEIGHT or width < LEAST_WIDTH:
        return []
    heading = _legend(title, shown, width)
    return [*heading, *_picture(shown, width, height - len(heading), unit, x_names)]


def _finite(series: Series) -> Series:
    points = tuple((x, y) for x, y in series.points if math.isfinite(x) and math.isfinite(y))
    return Series(series.name, points, series.marker, series.style)


def _legend(title: str, series: Sequence[Series], width: int) -> list[Content]:
    """The title with the names behind it; what has no room goes into a second line, and no further."""
    lines = [Content.styled(title[:width], text.MUTED)]
    for one in series:
        if not one.name:
            continue
        mark = {LINE: "━━", DASHES: DASHES * 2}.get(one.marker, one.marker)
        name = Content.assemble((f"{mark} ", one.style), text.one_line(one.name, _LEGEND))
        if lines[-1].cell_length + 2 + name.cell_length <= width:
            lines[-1] = lines[-1] + "  " + name
        elif len(lines) < 2 and name.cell_length <= width:
            lines.append(name)
        else:
            break
    return lines


def _picture(
    series: Sequence[Series], width: int, height: int, unit: str, x_names: Mapping[float, str] | None
) -> list[Content]:
    places = [*(x_names or ()), *(x for one in series for x, _ in one.points)]
    left, right = min(places), max(places)
    top = max(y for one in series for _, y in one.points) * 1.1 or 1.0
    # plotext keeps one figure for the whole program; nothing else draws while the interface runs.
    plotext.clear_figure()
    plotext.limit_size(False, False)
    plotext.plot_size(width, height)
    plotext.theme("clear")
    for number, one in enumerate(series, _FIRST):
        place = plotext.plot if one.joined and len(one.points) > 1 else plotext.scatter
        place([x for x, _ in one.points], [y for _, y in one.points], marker=one.marker, color=number)
    plotext.ylim(0, top)
    plotext.xlim(left, right if right > left else left + 1)
    step = round_step(top / (6 if height >= _TALL else 3))
    marks = [step * part for part in range(int(top / step) + 1)]
    plotext.yticks(marks, [f"{mark:g}{unit}" for mark in marks])
    names = x_names or {left: f"{left:g}", right: f"{right:g}"}
    plotext.xticks(list(names), list(names.values()))
    drawn = str(plotext.build())
    plotext.clear_figure()
    styles = {number: one.style for number, one in enumerate(series, _FIRST)}
    return [_coloured(line, styles) for line in drawn.splitlines() if _COLOURED.sub("", line).strip()]


def _coloured(line: str, styles: Mapping[int, str]) -> Content:
    """A line with the theme's colours in place of plotext's numbers."""
    parts: list[tuple[str, str]] = []
    style, at = text.MUTED, 0
    for found in _COLOURED.finditer(line):
        if found.start() > at:
            parts.append((line[at : found.start()], style))
        style = styles.get(int(found[1]), text.MUTED) if found[1] else text.MUTED
        at = found.end()
    parts.append((line[at:].rstrip(), text.MUTED))
    return Content.assemble(*(part for part in parts if part[0]))
