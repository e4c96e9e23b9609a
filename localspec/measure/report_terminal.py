"""A plot for the terminal: the speed over draft length, else the acceptance by position. Drawn by plotext."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Sequence

from localspec.measure.report_data import Lines, Section, Series

_SHOWN = ("speed-over-draft-length", "acceptance")
_COLOURS = ("blue+", "orange+", "green+", "magenta+", "cyan+")
_POINTS = "●▲■◆▼"
_LINES = {"computed": "·", "reference": "-"}


def terminal_plot(
    sections: Sequence[Section], *, width: int = 80, height: int = 18, colour: bool = True
) -> str:
    """Lines of text that end with a newline; empty when there is nothing to draw.

    Args:
        sections: Of a report; the first picture that a terminal can show is drawn.
        width: Columns.
        height: Lines.
        colour: With the terminal's colours. Without, no escape sequence is in the text; marks tell the series apart.
    """
    plots = {one.slug: (one.title, one.plot) for one in sections if isinstance(one.plot, Lines)}
    for slug in _SHOWN:
        if slug in plots:
            return _draw(*plots[slug], width, height, colour)
    return ""


def _draw(title: str, plot: Lines, width: int, height: int, colour: bool) -> str:
    import plotext

    plotext.clear_figure()
    plotext.limit_size(False, False)  # the caller knows the width, also where there is no terminal
    plotext.plot_size(width, height)
    plotext.theme("clear")
    series = _shown(plot, colour)
    for one in series:
        draw = plotext.scatter if one.style == "measured" else plotext.plot
        draw(
            list(one.x),
            list(one.y),
            marker=_LINES.get(one.style, _POINTS[one.colour % len(_POINTS)]),
            label=_narrow(one.name) or None,
            color=_COLOURS[one.colour % len(_COLOURS)] if colour and one.style != "reference" else None,
        )
    named = sum(bool(one.name) for one in series)
    # The legend lies over the plot, at the top left: the axis goes on above the data until it has room.
    rows = height - 5
    top = (max(max(one.y) for one in series) or 1) * rows / max(rows - named - 1, rows // 3)
    plotext.ylim(0, top)
    step = round_step(top / 6)
    marks = [step * i for i in range(int(top / step) + 1)]
    plotext.yticks(marks, [f"{mark:.0%}" if plot.percent else f"{mark:g}" for mark in marks])
    names = plot.x_names or {x: f"{x:g}" for one in plot.series for x in one.x}
    ticks = sorted(names)[:: -(-len(names) // 14)]
    plotext.xticks(ticks, [names[x] for x in ticks])
    plotext.title(_narrow(title))
    plotext.xlabel(plot.x_label)
    plotext.ylabel(plot.y_label.rpartition(", ")[2] if not plot.percent else "share")
    text = str(plotext.build())
    plotext.clear_figure()
    lines = text.splitlines() if colour else plotext.uncolorize(text).splitlines()
    return "".join(f"{line.rstrip()}\n" for line in lines if line.strip())


def _shown(plot: Lines, colour: bool) -> list[Series]:
    """What so few characters can show, measured points last so that nothing covers them."""
    bounds = sum(one.style == "computed" for one in plot.series)
    hidden = (
        {"predicted"} if colour or bounds == 1 else {"predicted", "computed"}
    )  # only colours tell bounds apart
    return sorted(
        (one for one in plot.series if one.style not in hidden), key=lambda one: one.style == "measured"
    )


def round_step(least: float) -> float:
    """The round number, 1, 2 or 5 with zeros, from `least` on."""
    power: float = 10.0 ** math.floor(math.log10(least))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least)


def _narrow(name: str, width: int = 40) -> str:
    """A name in which each character takes one column."""
    text = "".join(
        "" if unicodedata.combining(one) else "?" if unicodedata.east_asian_width(one) in "WF" else one
        for one in name
    )
    return text if len(text) <= width else text[: width - 1] + "…"
