"""Markdown of answers: what is finished goes to Textual's widget once, what is open stays one cheap text.

Textual's widget parses the last block again at every update; for a long list or an open code fence this costs
more than the engine. So an answer is cut at the start of its last top-level block: what stands before it can
no longer change.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

from markdown_it import MarkdownIt
from markdown_it.rules_core import StateCore
from markdown_it.token import Token
from textual.app import ComposeResult
from textual.content import Content, Span
from textual.widgets import Markdown, Static
from textual.widgets._markdown import MarkdownBlock, MarkdownTable

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})[^\n]*\n")
_PARSE_SHARE = 8
"""After a parse of t seconds the next one comes t times this later: parsing takes a ninth of the time."""


def _keep_line_ends(state: StateCore) -> None:
    for token in state.tokens:
        for child in token.children or ():
            if child.type == "softbreak":
                child.type = "hardbreak"


def make_parser() -> MarkdownIt:
    """A parser that loses nothing and opens nothing.

    HTML, links and images stay as they were written, so that an address can be read before anybody follows it
    and no tag swallows text; line ends inside a paragraph stay line ends, since models mean them.
    """
    parser = MarkdownIt("gfm-like", {"html": False, "linkify": False})
    parser.disable(["link", "image", "autolink", "linkify", "reference"])
    parser.core.ruler.push("keep_line_ends", _keep_line_ends)
    return parser


class FlatTable(MarkdownTable):
    """A table drawn as one text: one widget where Textual's own has one for each cell."""

    def compose(self) -> ComposeResult:
        """One text."""
        yield FlatRows(*self._get_headers_and_rows())

    async def _update_from_block(self, block: MarkdownBlock) -> None:
        if isinstance(block, MarkdownTable):
            rows = block._get_headers_and_rows()
            self._blocks = block._blocks
            self.query_one(FlatRows).show(*rows)
        else:
            await super()._update_from_block(block)


class FlatRows(Static):
    """Rows of cells, each column as wide as its content where there is room."""

    def __init__(self, headers: list[Content], rows: list[list[Content]]) -> None:
        super().__init__("", markup=False)
        self._rows = [headers, *rows]

    def show(self, headers: list[Content], rows: list[list[Content]]) -> None:
        """Show other rows."""
        self._rows = [headers, *rows]
        self.on_resize()

    def on_resize(self) -> None:
        """Lay the columns out for the new width."""
        self.update(table(self._rows, self.content_size.width))


def table(rows: list[list[Content]], width: int) -> Content:
    """Rows as text of at most `width` cells where every column can have 3; the first row is the heading.

    Args:
        rows: Cells; rows may be of different lengths.
        width: Cells of the screen.
    """
    count = max((len(row) for row in rows), default=0)
    if not count or width <= 0:
        return Content("")
    rows = [row + [Content("")] * (count - len(row)) for row in rows]
    wish = [max(1, *(row[i].cell_length for row in rows)) for i in range(count)]
    room = max(3 * count, width - 3 * (count - 1))
    while sum(wish) > room:
        # Take from the widest, so that narrow columns stay whole.
        widest = max(range(count), key=wish.__getitem__)
        others = max((wish[i] for i in range(count) if i != widest), default=1)
        wish[widest] = max(3, min(wish[widest] - 1, max(others, wish[widest] - (sum(wish) - room))))
        if max(wish) <= 3:
            break
    lines: list[Content] = []
    for number, row in enumerate(rows):
        cells = [cell.wrap(wish[i]) or [Content("")] for i, cell in enumerate(row)]
        for height in range(max(len(cell) for cell in cells)):
            parts = [cell[height] if height < len(cell) else Content("") for cell in cells]
            padded = [part.pad_right(max(0, wish[i] - part.cell_length)) for i, part in enumerate(parts)]
            line = Content.styled(" │ ", "dim").join(padded)
            lines.append(line.stylize("bold") if number == 0 else line)
        if number == 0:
            lines.append(Content.styled("─┼─".join("─" * each for each in wish), "dim"))
    return Content("\n").join(lines)


class AnswerMarkdown(Markdown):
    """Textual's Markdown with our parser and our tables; links are never opened."""

    BLOCKS: dict[str, type[MarkdownBlock]] = {  # noqa: RUF012  (declared so by Textual)
        **Markdown.BLOCKS,
        "table_open": FlatTable,
    }

    def __init__(self) -> None:
        super().__init__(parser_factory=make_parser, open_links=False)


class BlockSplitter:
    """Cuts a growing Markdown text into finished blocks and an open tail.

    The finished texts and the tail, joined, are always the whole text.
    """

    def __init__(self) -> None:
        self.tail = ""
        """What can still change."""
        self._parser = make_parser()
        self._closing: re.Pattern[str] | None = None
        self._searched = 0
        self._next_parse = 0.0

    @property
    def in_code(self) -> bool:
        """Whether the tail is a code fence that is still open."""
        return self._closing is not None

    def feed(self, text: str) -> str:
        """Take more text.

        Args:
            text: The next part, clean.

        Returns:
            Finished blocks, ready to be appended to a Markdown widget; often empty.
        """
        self.tail += text
        finished: list[str] = []
        while (cut := self._cut()) > 0:
            finished.append(self.tail[:cut])
            self.tail = self.tail[cut:]
        return "".join(finished)

    def _cut(self) -> int:
        if self._closing is None and (opened := _FENCE.match(self.tail)):
            mark = opened[1]
            self._closing = re.compile(
                rf"^ {{0,3}}{re.escape(mark[0])}{{{len(mark)},}}[ \t]*\n", re.MULTILINE
            )
            self._searched = opened.end()
        if self._closing is not None:
            closed = self._closing.search(self.tail, self._searched)
            if closed is None:
                self._searched = max(self._searched, self.tail.rfind("\n") + 1)
                return 0
            self._closing = None
            return closed.end()
        started = time.monotonic()
        if started < self._next_parse or "\n" not in self.tail:
            return 0
        line = last_block_line(self._parser.parse(self.tail))
        now = time.monotonic()
        self._next_parse = 0.0 if line else now + (now - started) * _PARSE_SHARE
        return _offset(self.tail, line)


def last_block_line(tokens: list[Token]) -> int:
    """The line on which the last top-level block starts."""
    return next((token.map[0] for token in reversed(tokens) if token.level == 0 and token.map), 0)


def _offset(text: str, line: int) -> int:
    offset = 0
    for _ in range(line):
        offset = text.index("\n", offset) + 1
    return offset


_INLINE = {"em": "italic", "strong": "bold", "s": "strike"}


def preview(text: str, parser: MarkdownIt) -> Content:
    """An open block as one styled text, near to what the Markdown widget will make of it.

    Args:
        text: Clean Markdown, short (it is parsed as a whole).
        parser: From `make_parser`.
    """
    parts: list[str] = []
    spans: list[Span] = []
    position = 0

    def add(piece: str, style: str = "") -> None:
        nonlocal position
        if style:
            spans.append(Span(position, position + len(piece), style))
        parts.append(piece)
        position += len(piece)

    for piece, style in _flatten(parser.parse(text)):
        add(piece, style)
    return Content("".join(parts).rstrip("\n"), spans)


_FIXED: dict[str, tuple[str, str]] = {
    "heading_close": ("\n\n", ""),
    "hr": ("─────\n", "dim"),
    "tr_close": ("\n", ""),
    "th_close": (" │ ", "dim"),
    "td_close": (" │ ", "dim"),
}


def _flatten(tokens: list[Token]) -> Iterator[tuple[str, str]]:
    depth = 0
    heading = ""
    for token in tokens:
        kind = token.type
        if kind in ("bullet_list_open", "ordered_list_open"):
            depth += 1
        elif kind in ("bullet_list_close", "ordered_list_close"):
            depth -= 1
        elif kind == "list_item_open":
            yield "  " * (depth - 1) + (f"{token.info}. " if token.info else "• "), "bold"
        elif kind in ("heading_open", "heading_close"):
            heading = "bold" if kind == "heading_open" else ""
        elif kind == "paragraph_close":
            yield ("\n" if token.hidden else "\n\n"), ""
        elif kind in ("fence", "code_block"):
            yield token.content, "dim"
        elif kind == "inline":
            yield from _inline(token.children or [], heading)
        if kind in _FIXED:
            yield _FIXED[kind]


def _inline(children: list[Token], base: str) -> Iterator[tuple[str, str]]:
    styles = [base] if base else []
    for child in children:
        name, _, edge = child.type.rpartition("_")
        if edge == "open" and name in _INLINE:
            styles.append(_INLINE[name])
        elif edge == "close" and name in _INLINE:
            styles.remove(_INLINE[name])
        elif child.type == "hardbreak":
            yield "\n", ""
        elif child.type == "code_inline":
            yield child.content, "$text-accent"
        else:
            yield child.content, " ".join(styles)
