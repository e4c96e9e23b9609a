"""The stats panel: speed over the answer, acceptance by position, where a round's time goes, and the net speedup."""

from __future__ import annotations

import plotext
from textual.content import Content
from textual.widgets import Static

from localspec.spec.stats import Stats
from localspec.tui import text
from localspec.tui.speed import Course
from localspec.tui.widgets.figures import NEAR, Figures, net_style, position_columns

SIDE_BY_SIDE = 66
"""From this width on the plot stands beside the rest."""
LEFT_OVER = 12
"""Lines of the screen that the panel leaves to everything else, the prompt and the figures included."""
_LOW = 12
"""Up to so many lines each one counts."""
_LEAST_PLOT = 5
_PLOT = 9
_TALL_PLOT = 14
_PLAIN_MARK = "╌"


class StatsPanel(Static):
    """Shown and hidden with F2; draws only while it is shown, and only what has changed."""

    def __init__(self) -> None:
        super().__init__("", id="stats", markup=False)
        self.display = False
        self._figures = Figures()
        self._course = Course()
        self._shown: Content | None = None
        self._height = 0

    def show(self, figures: Figures, course: Course) -> None:
        """Show new figures."""
        self._figures, self._course = figures, course
        if self.display:
            self._paint()

    def toggle(self) -> None:
        """Show the panel, or hide it."""
        self.display = not self.display
        self.call_after_refresh(self._paint)

    def on_resize(self) -> None:
        """Draw for the new size."""
        self._paint()

    def _paint(self) -> None:
        width = self.content_size.width
        if width <= 0 or not self.display:
            return
        room = self.screen.size.height - LEFT_OVER
        lines = draw(self._figures, self._course, width, max(room, 3))
        content = Content("\n").join(lines)
        if self._shown is not None and content.is_same(self._shown):
            return
        self.update(content, layout=len(lines) != self._height)
        self._shown, self._height = content, len(lines)


def draw(figures: Figures, course: Course, width: int, room: int) -> list[Content]:
    """The panel's lines.

    Args:
        figures: The answer's figures.
        course: Its speed over time.
        width: Cells of a line.
        room: Lines at most. Where they are few the least needed parts are left out.
    """
    if width < SIDE_BY_SIDE:
        words = _words(figures, width)
        height = min(_PLOT, room - len(words))
        plot = _plot(figures, course, width, height) if height >= _LEAST_PLOT else []
        return [*words[:1], *plot, *words[1:]][:room]
    right = min(48, width // 2 + 2)
    left = width - right - 3
    words = _words(figures, right, levels=3 if room > _LOW else 2)
    if len(words) > room:
        words = _few_words(figures, right)[:room]
    plot = _plot(figures, course, left, min(room, max(len(words), _TALL_PLOT if room > 20 else _PLOT)))
    rows = max(len(words), len(plot))
    words += [Content("")] * (rows - len(words))
    plot += [Content(" " * left)] * (rows - len(plot))
    return [_fit(one, left) + "   " + other for one, other in zip(plot, words, strict=True)]


def net_sentence(figures: Figures) -> Content:
    """`1.80×: 63.1 tok/s, plain 35.0`, or what is missing for it."""
    net, tok_s, plain = figures.net_speedup, figures.tok_s, figures.plain_tok_s
    if plain is None:
        return Content.styled("net speedup: what plain decoding makes is not known yet", text.MUTED)
    if net is None:
        why = "drafting is off" if figures.draft.state == "off" else "nothing was drafted yet"
        return Content.assemble(
            ("net speedup: ", text.MUTED), why, (f"; plain makes {text.rate(plain)} tok/s", text.MUTED)
        )
    if net < 1 / NEAR:
        said = f"{net:.2f}×: slower than plain"
        return Content.assemble((said, net_style(net)), f" ({text.rate(tok_s)} / {text.rate(plain)})")
    return Content.assemble(
        (f"{net:.2f}×", net_style(net)), f": {text.rate(tok_s)} tok/s, plain {text.rate(plain)}"
    )


def _words(figures: Figures, width: int, levels: int = 3) -> list[Content]:
    stats = figures.stats
    positions = position_columns(stats.per_position, width, levels)
    if not positions:
        positions = [Content.styled("accepted at position: no draft yet", text.MUTED)]
    return [*net_sentence(figures).wrap(width), *positions, *_split(stats, width)]


def _few_words(figures: Figures, width: int) -> list[Content]:
    """The same with the bars of the positions in one line."""
    label = "at position "
    bars = text.columns(figures.stats.per_position, width - len(label)) or text.NOTHING
    position = Content.assemble((label, text.MUTED), (bars, "$text-accent"))
    return [*net_sentence(figures).wrap(width), position, *_split(figures.stats, width)]


def _split(stats: Stats, width: int) -> list[Content]:
    """A round's time: draft, verify, our own."""
    parts = {"draft": stats.draft_s, "verify": stats.verify_s, "own code": stats.other_s}
    spent = sum(parts.values())
    if not stats.rounds or spent <= 0:
        return [Content.styled("time of a round: no round yet", text.MUTED)]
    whole = spent / stats.rounds
    lines = [Content.assemble(("time of a round ", text.MUTED), (f"{whole * 1000:.1f} ms", "bold"))]
    for (name, seconds), style in zip(parts.items(), ("$text-accent", "$text-primary", ""), strict=True):
        share = seconds / spent
        figure = f"{seconds / stats.rounds * 1000:>7.1f} ms {text.percent(share):>5}"
        room = max(0, width - 9 - len(figure) - 2)
        lines.append(
            Content.assemble((f"{name:<9}", text.MUTED), figure, "  ", (text.bar(share, room), style))
        )
    return lines


def _plot(figures: Figures, course: Course, width: int, height: int) -> list[Content]:
    """tok/s over the answer, from 0 on, beside what plain decoding makes."""
    title = Content.styled("tok/s over this answer", text.MUTED)
    points = course.rates(max(2, width - 8))
    if not points or height < _LEAST_PLOT:
        return [title, Content.styled("no round yet" if not points else "", text.MUTED)]
    plain = figures.plain_tok_s
    if plain is not None:
        title = title + Content.styled(f"  {_PLAIN_MARK * 2} plain", "$text-warning")
    top = max([rate for _, rate in points] + ([plain] if plain else [])) * 1.1
    # plotext keeps one figure for the whole program; nothing else draws while the interface runs.
    plotext.clear_figure()
    plotext.limit_size(False, False)
    plotext.plot_size(width, height - 1)
    plotext.theme("clear")
    if plain is not None:
        plotext.plot([0, course.seconds], [plain, plain], marker=_PLAIN_MARK)
    plotext.plot([at for at, _ in points], [rate for _, rate in points], marker="braille")
    plotext.ylim(0, top)
    plotext.xlim(0, course.seconds)
    marks = [0.0, top / 2, top]
    plotext.yticks(marks, [f"{mark:.0f}" if top >= 10 else f"{mark:.1f}" for mark in marks])
    plotext.xticks([0, course.seconds], ["0", text.seconds(course.seconds)])
    drawn = plotext.uncolorize(plotext.build())
    plotext.clear_figure()
    return [title, *(_colour(line) for line in drawn.splitlines() if line.strip())]


def _colour(line: str) -> Content:
    """The curve, the plain line and the frame each in their own style."""
    parts: list[tuple[str, str]] = []
    for character in line:
        style = "$text-success" if "\u2801" <= character <= "\u28ff" else text.MUTED
        style = "$text-warning" if character == _PLAIN_MARK else style
        if parts and parts[-1][1] == style:
            parts[-1] = (parts[-1][0] + character, style)
        else:
            parts.append((character, style))
    return Content.assemble(*parts)


def _fit(line: Content, width: int) -> Content:
    return line + " " * (width - line.cell_length) if line.cell_length < width else line[:width]
