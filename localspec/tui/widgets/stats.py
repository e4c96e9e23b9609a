"""The stats panel: speed over the answer, acceptance by position, where a round's time goes, and the net speedup."""

from __future__ import annotations

from textual.content import Content
from textual.widgets import Static

from localspec.spec.events import Rejected
from localspec.spec.stats import Stats
from localspec.tui import plotting, text
from localspec.tui.plotting import DASHES, LEAST_HEIGHT, LINE, REFERENCE, Series
from localspec.tui.speed import Course
from localspec.tui.widgets.figures import NEAR, Figures, net_style, position_columns

SIDE_BY_SIDE = 66
"""From this width on the plot stands beside the rest."""
LEFT_OVER = 12
"""Lines of the screen that the panel leaves to everything else, the prompt and the figures included."""
_LOW = 12
"""Up to so many lines each one counts."""
_PLOT = 9
_TALL_PLOT = 14
_TITLE = "tok/s over this answer"
REJECTED = 6
"""Rejected drafts that are listed."""


class StatsPanel(Static):
    """Shown and hidden with F2; draws only while it is shown, and only what has changed."""

    def __init__(self) -> None:
        super().__init__("", id="stats", markup=False)
        self.display = False
        self._figures = Figures()
        self._course = Course()
        self._rejected: tuple[Rejected, ...] = ()
        self._shown: Content | None = None
        self._height = 0

    def show(self, figures: Figures, course: Course, rejected: tuple[Rejected, ...]) -> None:
        """Show new figures, and the last rejected drafts, the newest first."""
        self._figures, self._course, self._rejected = figures, course, rejected
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
        lines = draw(self._figures, self._course, width, max(room, 3), self._rejected)
        content = Content("\n").join(lines)
        if self._shown is not None and content.is_same(self._shown):
            return
        self.update(content, layout=len(lines) != self._height)
        self._shown, self._height = content, len(lines)


def draw(
    figures: Figures, course: Course, width: int, room: int, rejected: tuple[Rejected, ...] = ()
) -> list[Content]:
    """The panel's lines.

    Args:
        figures: The answer's figures.
        course: Its speed over time.
        width: Cells of a line.
        room: Lines at most. Where they are few the least needed parts are left out.
        rejected: The last rejected drafts, the newest first.
    """
    if width < SIDE_BY_SIDE:
        words = _words(figures, width)
        height = min(_PLOT, room - len(words))
        plot = _plot(figures, course, width, height) if height >= LEAST_HEIGHT else []
        lines = [*words[:1], *plot, *words[1:], *_places(figures, width)][:room]
        return lines + _rejections(rejected, width, room - len(lines))
    right = min(48, width // 2 + 2)
    left = width - right - 3
    words = _words(figures, right, levels=3 if room > _LOW else 2)
    if len(words) > room:
        words = _few_words(figures, right)[:room]
    words += _places(figures, right)[: room - len(words)]
    words += _rejections(rejected, right, room - len(words))
    plot = _plot(figures, course, left, min(room, max(len(words), _TALL_PLOT if room > 20 else _PLOT)))
    rows = max(len(words), len(plot))
    words += [Content("")] * (rows - len(words))
    plot += [Content(" " * left)] * (rows - len(plot))
    return [_fit(one, left) + "   " + other for one, other in zip(plot, words, strict=True)]


def net_sentence(figures: Figures) -> Content:
    """`1.80×: 63.1 tok/s, plain 35.0`, or what is missing for it.

    A fixed length makes no plain step, so what one would take is told from the rounds: `~35.0`.
    """
    net, tok_s, plain = figures.net_speedup, figures.tok_s, figures.plain_tok_s
    if plain is None:
        return Content.styled("net speedup: what plain decoding makes is not known yet", text.MUTED)
    if net is None:
        why = "drafting is off" if figures.draft.state == "off" else "nothing was drafted yet"
        return Content.assemble(
            ("net speedup: ", text.MUTED), why, (f"; plain makes {text.rate(plain)} tok/s", text.MUTED)
        )
    beside = text.rate(plain) if figures.draft.auto else f"~{text.rate(plain)}"
    if net < 1 / NEAR:
        said = f"{net:.2f}×: slower than plain"
        return Content.assemble((said, net_style(net)), f" ({text.rate(tok_s)} / {beside})")
    return Content.assemble((f"{net:.2f}×", net_style(net)), f": {text.rate(tok_s)} tok/s, plain {beside}")


def _words(figures: Figures, width: int, levels: int = 3) -> list[Content]:
    stats = figures.stats
    positions = position_columns(stats.per_position, width, levels)
    if not positions:
        positions = [Content.styled("accepted at position: no draft yet", text.MUTED)]
    return [*net_sentence(figures).wrap(width), *positions, *_sources(stats, width), *_split(stats, width)]


def _sources(stats: Stats, width: int) -> list[Content]:
    """What each source of drafts got accepted, where there is more than one."""
    if len(stats.by_source) < 2:
        return []
    lines = []
    for name, source in stats.by_source.items():
        figure = f"{source.accepted:,} of {source.drafted:,} {text.percent(source.acceptance_rate):>5}"
        label = text.one_line(name, max(width - len(figure) - 1, 5))
        gap = " " * max(width - text.cells(label) - len(figure), 1)
        lines.append(Content.assemble((label, text.MUTED), gap, figure)[:width])
    return lines


def _places(figures: Figures, width: int) -> list[Content]:
    """Where each model runs."""
    if not figures.target_on:
        return []
    said = f"target on {figures.target_on}"
    if figures.draft_on:
        said += f", draft on {figures.draft_on}"
        why_not = figures.draft.no_overlap
        more = ", overlapped" if figures.draft.overlap else f"; no overlap: {why_not}" if why_not else ""
        said += more if len(said) + len(more) <= width else ""
    return [Content.styled(text.one_line(said, width), text.MUTED)]


def _rejections(rejected: tuple[Rejected, ...], width: int, room: int) -> list[Content]:
    """A line for each rejected draft: its token, what the target chose in its place, and the draft's probability."""
    if not rejected or room < 2:
        return []
    lines = [Content.styled("drafted → chosen, probability in the draft"[:width], text.MUTED)]
    part = max((width - 9) // 2, 3)
    for one in rejected[: room - 1]:
        pair = Content.assemble(
            (text.token(one.drafted, part), "$text-error"), (" → ", text.MUTED), text.token(one.chosen, part)
        )
        figure = "" if one.probability is None else text.percent(one.probability)
        lines.append(_fit(pair, max(width - 6, 0)) + f"{figure:>6}")
    return lines


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
    points = course.rates(max(2, width - 8))
    if not points or height < LEAST_HEIGHT:
        title = Content.styled(_TITLE, text.MUTED)
        return [title, Content.styled("no round yet" if not points else "", text.MUTED)]
    plain = figures.plain_tok_s
    series = [Series("", tuple(points), LINE)]
    if plain is not None:
        reference = ((0.0, plain), (course.seconds, plain))
        series.insert(0, Series("plain", reference, DASHES, REFERENCE))
    ends = {0.0: "0", course.seconds: text.seconds(course.seconds)}
    return plotting.draw(_TITLE, series, width, height, x_names=ends)


def _fit(line: Content, width: int) -> Content:
    return line + " " * (width - line.cell_length) if line.cell_length < width else line[:width]
