"""The pictures of a report, drawn with Matplotlib.

Inside the page they are SVG that follows its colours; for elsewhere they are SVG and PNG on white.
"""

from __future__ import annotations

import io
import logging
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from localspec.measure.report_data import Bars, Intervals, Lines, Plot, Series

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Name of the page's colour: its value on a light and on a dark page. Told apart with every kind of colour vision
# (after Okabe and Ito, darker or lighter for 3:1 against the page); lines differ in marks and dashes too.
COLOURS: Mapping[str, tuple[str, str]] = {
    "page": ("#ffffff", "#10151b"),
    "ink": ("#1b1f24", "#e6eaef"),
    "faint": ("#535c66", "#a3adb9"),
    "grid": ("#d9dee3", "#2c343d"),
    "series-1": ("#0071b1", "#56b4e9"),
    "series-2": ("#c24f00", "#f2955c"),
    "series-3": ("#00785a", "#3ecfa3"),
    "series-4": ("#9a4c86", "#e39bca"),
    "series-5": ("#766300", "#e8d84a"),
}
_SERIES = [name for name in COLOURS if name.startswith("series")]
_MARKS = "osD^vPX"
_DASHES: dict[str, Any] = {
    "measured": "-",
    "predicted": "",
    "computed": (0, (5, 2.5)),
    "reference": (0, (1, 2)),
}
_WIDTH, _HEIGHT = 4.8, 2.75  # inches; small, so that letters stay readable on a phone
_DPI = 200


def light(name: str) -> str:
    """A colour on a light page."""
    return COLOURS[name][0]


def svg(plot: Plot, slug: str, title: str) -> str:
    """A file of its own, with a title, on white."""
    return _svg(plot, slug, title)


def inline_svg(plot: Plot, slug: str, label: str) -> str:
    """A picture for a page that defines `COLOURS` as custom properties: no title, no background, the page's font.

    Args:
        plot: What to draw.
        slug: Prefix of its ids, so that several fit in one page.
        label: What it shows, for those who do not see it; already safe inside an attribute.
    """
    text = _svg(plot, slug, "")
    text = text[text.index("<svg") :]
    text = re.sub(r"<style.*?</style>", "", text, flags=re.DOTALL)  # its `*` would reach the whole page
    text = re.sub(r'(<svg[^>]*?) width="[^"]*" height="[^"]*"', r"\1", text, count=1)
    text = text.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)
    for name, (value, _) in COLOURS.items():
        text = text.replace(value, f"var(--{name})")
    return re.sub(r"font-family: [^;\"]*", "font-family: inherit", text)


def png(plot: Plot, slug: str, title: str) -> bytes:
    """The same as a bitmap of twice a screen's resolution."""
    with _drawn(plot, slug, title) as figure:
        target = io.BytesIO()
        figure.savefig(target, format="png", dpi=_DPI, metadata={"Software": None})
        return target.getvalue()


def _svg(plot: Plot, slug: str, title: str) -> str:
    with _drawn(plot, slug, title) as figure:
        target = io.BytesIO()
        nothing = dict.fromkeys(("Date", "Creator", "Type", "Format"))
        figure.savefig(target, format="svg", metadata=nothing)
    text = target.getvalue().decode("utf-8")
    # Ids of two pictures in one page must differ.
    return re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{slug}-", text)


@contextmanager
def _drawn(plot: Plot, slug: str, title: str) -> Iterator[Figure]:
    """A figure without a window, and without a trace in Matplotlib's global state."""
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # it talks about its font cache
    import matplotlib as mpl
    from matplotlib.figure import Figure

    style: Any = {
        "font.size": 9.5,
        "font.family": "DejaVu Sans",
        "axes.edgecolor": light("faint"),
        "axes.labelcolor": light("ink"),
        "text.color": light("ink"),
        "xtick.color": light("faint"),
        "ytick.color": light("faint"),
        "xtick.labelcolor": light("ink"),
        "ytick.labelcolor": light("ink"),
        "grid.color": light("grid"),
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.axisbelow": True,
        "legend.frameon": False,
        "text.parse_math": False,  # a `$` in a name is a `$`
        "svg.fonttype": "none",
        "svg.hashsalt": slug,  # otherwise ids change from run to run
    }
    with mpl.rc_context(), warnings.catch_warnings():
        mpl.rcdefaults()  # the person's own style would change what we checked
        mpl.rcParams.update(style)
        warnings.simplefilter("ignore")  # letters that the font lacks: the page has its own
        figure = Figure(figsize=(_WIDTH, _height(plot)), layout="constrained")
        figure.set_facecolor(light("page") if title else "none")
        axes = figure.add_subplot()
        axes.set_facecolor("none")
        order: list[str] = []
        if isinstance(plot, Lines):
            _lines(axes, plot)
            order = [one.name for one in plot.series]
        elif isinstance(plot, Intervals):
            _intervals(axes, plot)
        else:
            _bars(axes, plot)
        _legend(figure, axes, order, title)
        yield figure


def _legend(figure: Figure, axes: Axes, order: list[str], title: str) -> None:
    """The legend above the picture, under its title; a single series needs none."""
    found = list(zip(*axes.get_legend_handles_labels(), strict=True))
    # Matplotlib puts lines before points with intervals; measured ones come first here.
    found.sort(key=lambda pair: order.index(pair[1]) if pair[1] in order else pair[1] == "bound")
    handles, labels = [handle for handle, _ in found], [label for _, label in found]
    if len(labels) > 1:
        columns = 1 if max(map(len, labels)) > 26 else 2 if max(map(len, labels)) > 15 else 3
        figure.legend(
            handles,
            labels,
            loc="outside upper left",
            ncols=columns,
            fontsize=9,
            # Matplotlib would lay a title of the figure over the legend.
            title=title or None,
            title_fontproperties={"size": 10, "weight": "bold"},
            alignment="left",
        )
    elif title:
        figure.suptitle(title, fontsize=10, fontweight="bold", x=0.01, ha="left")


def _height(plot: Plot) -> float:
    if isinstance(plot, Lines):
        return _HEIGHT + 0.17 * sum(bool(one.name) for one in plot.series)
    return 1.1 + 0.34 * max(len(plot.rows), 2)


def _lines(axes: Axes, plot: Lines) -> None:
    for index, one in enumerate(plot.series):
        _line(axes, one, index)
    axes.set_xlabel(plot.x_label)
    axes.set_ylabel(plot.y_label)
    axes.grid(axis="y", linewidth=0.6)
    top = max(max((*one.y, *one.high)) for one in plot.series)
    axes.set_ylim(0, 1.03 if plot.percent else plot.y_top or top * 1.08 or 1)
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    if plot.percent:
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    _ticks(axes, plot)


def _line(axes: Axes, one: Series, index: int) -> None:
    pointed = one.style in ("measured", "predicted")
    colour = light("faint" if one.style == "reference" else _SERIES[one.colour % len(_SERIES)])
    look: dict[str, Any] = {
        "color": colour,
        "linestyle": _DASHES[one.style],
        "linewidth": 1.6 if pointed else 1.4,
        "marker": _MARKS[one.colour % len(_MARKS)] if pointed else "",
        "markersize": 3 if one.style == "predicted" else 5.5,
        "label": one.name or "_",
        "zorder": 2
        if one.style == "reference"
        else 3
        if pointed
        else 4,  # dashes stay visible on a line below
    }
    if one.low and one.high:
        down = [max(y - low, 0.0) for y, low in zip(one.y, one.low, strict=True)]
        up = [max(high - y, 0.0) for y, high in zip(one.y, one.high, strict=True)]
        axes.errorbar(one.x, one.y, yerr=[down, up], capsize=3, elinewidth=1.2, **look)
    else:
        axes.plot(one.x, one.y, **look)


def _ticks(axes: Axes, plot: Lines) -> None:
    from matplotlib.ticker import MaxNLocator

    if not plot.x_names:
        axes.xaxis.set_major_locator(MaxNLocator(9, integer=True, steps=[1, 2, 5, 10]))
        return
    names = dict(sorted(plot.x_names.items()))
    step = -(-len(names) // 12)
    kept = [x for i, (x, name) in enumerate(names.items()) if i % step == 0 or not name.isdigit()]
    axes.set_xticks(kept, [names[x] for x in kept])
    axes.set_xlim(min(names) - 0.5, max(names) + 0.5)


def _intervals(axes: Axes, plot: Intervals) -> None:
    y = [float(-index) for index in range(len(plot.rows))]
    axes.axvline(1.0, color=light("faint"), linestyle=_DASHES["reference"], linewidth=1.6)
    bounds = [(row[4], at) for row, at in zip(plot.rows, y, strict=True) if row[4] is not None]
    if bounds:
        axes.plot(
            [value for value, _ in bounds],
            [at for _, at in bounds],
            color=light("series-2"),
            linestyle="",
            marker="|",
            markersize=13,
            markeredgewidth=2,
            label="bound",
        )
    values = [row[1] for row in plot.rows]
    down = [row[1] - row[2] if row[2] is not None else 0.0 for row in plot.rows]
    up = [row[3] - row[1] if row[3] is not None else 0.0 for row in plot.rows]
    axes.errorbar(
        values,
        y,
        xerr=[[max(one, 0.0) for one in down], [max(one, 0.0) for one in up]],
        color=light("series-1"),
        linestyle="",
        marker="o",
        markersize=5.5,
        capsize=3,
        elinewidth=1.4,
        label="measured, 95 % interval" if any(row[2] is not None for row in plot.rows) else "measured",
    )
    axes.set_yticks(y, [row[0] for row in plot.rows])
    axes.set_ylim(min(y) - 0.6, 0.6)
    reach = max(1.0, *(number for row in plot.rows for number in row[1:] if isinstance(number, float)))
    axes.set_xlim(0, reach * 1.06)
    axes.set_xlabel(plot.x_label)
    axes.grid(axis="x", linewidth=0.6)


def _bars(axes: Axes, plot: Bars) -> None:
    y = [float(-index) for index in range(len(plot.rows))]
    left = [0.0] * len(plot.rows)
    for index, (name, values) in enumerate(plot.parts):
        axes.barh(
            y,
            values,
            left=left,
            height=0.55,
            color=light(_SERIES[index % len(_SERIES)]),
            edgecolor=light("page"),
            linewidth=1.0,
            label=name,
        )
        left = [a + b for a, b in zip(left, values, strict=True)]
    axes.set_yticks(y, list(plot.rows))
    axes.set_ylim(min(y) - 0.5, 0.5)
    axes.set_xlim(0, max(left) * 1.05 or 1)
    axes.set_xlabel(plot.x_label)
    axes.grid(axis="x", linewidth=0.6)
