"""The conversation: follows its end, unless the person has scrolled up."""

from __future__ import annotations

from textual.containers import VerticalScroll
from textual.content import Content
from textual.widget import AwaitMount, Widget
from textual.widgets import Static

from localspec.tui.text import MUTED
from localspec.tui.widgets.answer import Answer
from localspec.tui.widgets.notices import Notice

_WELCOME = (
    ("Type a question and press Enter.", ""),
    ("", ""),
    ("A small model guesses ahead and the big one checks: the text is the big", MUTED),
    ("model's own, only faster. The figures below show what that earns; F1", MUTED),
    ("explains each of them.", MUTED),
)


class Welcome(Static):
    """What to do first."""

    def __init__(self) -> None:
        rows = [Content.styled(line, style) if style else Content(line) for line, style in _WELCOME]
        super().__init__(Content("\n").join(rows), markup=False)


class Conversation(VerticalScroll, can_focus=False):
    """Messages, answers and notes in the order in which they came."""

    def on_mount(self) -> None:
        """Follow the end."""
        self.anchor()
        self.mount(Welcome())

    def add(self, widget: Widget) -> AwaitMount:
        """Append something; may be awaited until it is there. The welcome stays until a conversation begins."""
        if not isinstance(widget, Notice):
            self.query(Welcome).remove()
        return self.mount(widget)

    def follow(self) -> None:
        """Go to the end and follow it again."""
        self.anchor()
        self._anchor_released = False

    def restart(self) -> None:
        """Remove everything."""
        self.remove_children()
        self.mount(Welcome())

    def answers(self) -> list[Answer]:
        """All answers, oldest first."""
        return list(self.query(Answer))
