"""A growing text that stays cheap to paint."""

from __future__ import annotations

from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Static

_CHUNK = 1_500  # characters after which the next line goes into a new widget
_LONGEST = 12_000  # of a line without an end, which then breaks here


class Chunks(Vertical):
    """Styled text that only grows. Only its last widget is laid out again."""

    def __init__(self, *, classes: str = "") -> None:
        super().__init__(classes=classes)
        self._parts: list[tuple[str, str]] = []
        self._length = 0
        self._last: Static | None = None
        self._lines = 0

    def write(self, runs: list[tuple[str, str]]) -> None:
        """Append text.

        Args:
            runs: Clean texts and their styles (empty = none), in reading order.
        """
        for text, style in runs:
            rest = text
            while rest:
                line_end = rest.find("\n", max(_CHUNK - self._length, 0))
                most = max(_LONGEST - self._length, 1)
                if 0 <= line_end <= most:
                    self._add(rest[:line_end], style)
                    rest = rest[line_end + 1 :]
                elif len(rest) > most:
                    self._add(rest[:most], style)
                    rest = rest[most:]
                else:
                    self._add(rest, style)
                    break
                self._finish()
        self._paint()

    def clear(self) -> None:
        """Start again with nothing."""
        self._parts, self._length, self._last, self._lines = [], 0, None, 0
        self.remove_children()

    def _add(self, text: str, style: str) -> None:
        if not text:
            return
        if self._parts and self._parts[-1][1] == style:
            self._parts[-1] = (self._parts[-1][0] + text, style)
        else:
            self._parts.append((text, style))
        self._length += len(text)

    def _finish(self) -> None:
        # The line end that starts the new widget is not repeated in it.
        if not self._parts:
            self._parts.append((" ", ""))
        self._paint()
        self._parts, self._length, self._last, self._lines = [], 0, None, 0

    def _paint(self) -> None:
        if not self._parts:
            return
        content = Content.assemble(*(part if part[1] else part[0] for part in self._parts))
        if self._last is None:
            self._last = Static(content, markup=False)
            self.mount(self._last)
        else:
            lines = content.get_height({}, max(1, self._last.content_size.width))
            self._last.update(content, layout=lines != self._lines)
            self._lines = lines
