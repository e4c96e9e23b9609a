"""The prompt box."""

from __future__ import annotations

import time
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.timer import Timer
from textual.widgets import TextArea

from localspec.tui.text import clean

BURST_S = 0.04
"""Keys that follow an Enter within these seconds were pasted: nobody types 25 keys in a second."""


NEW_LINE = ("ctrl+j", "shift+enter", "alt+enter")


class Prompt(TextArea):
    """Where the person types. Enter sends; a paste never does, with or without bracketed paste."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "older", "last prompt", show=False),
        Binding("down", "newer", "next prompt", show=False),
    ]

    class Sent(Message):
        """Enter was pressed."""

    class Complete(Message):
        """Tab was pressed."""

    class Left(Message):
        """Ctrl+D was pressed in an empty box."""

    def __init__(self, *, id: str) -> None:
        super().__init__(
            id=id,
            placeholder="Ask something, or / for commands",
            soft_wrap=True,
            tab_behavior="focus",
            show_line_numbers=False,
            compact=True,
        )
        self._history: list[str] = []
        self._place = 0
        self._recalled: str | None = None
        self._enter: Timer | None = None
        self._pasted_at = 0.0

    # ------------------------------------------------------- Enter and pastes

    async def _on_key(self, event: events.Key) -> None:
        # No priority bindings here: those run as soon as a key arrives and would overtake letters that are
        # still on their way to this widget.
        pasting = self._enter is not None or time.monotonic() - self._pasted_at < BURST_S
        if pasting:
            self._line_of_paste()
        if event.key == "enter":
            if not pasting:
                self._enter = self.set_timer(BURST_S, self._send)
            elif self._enter is None:
                self._enter = self.set_timer(BURST_S, self._end_line)
        elif event.key in NEW_LINE:
            self.insert("\n")
        elif event.key == "tab":
            self.post_message(self.Complete())
        elif event.key == "ctrl+d" and not self.text:
            self.post_message(self.Left())
        else:
            await super()._on_key(event)
            return
        event.stop()
        event.prevent_default()

    def _send(self) -> None:
        """Nothing followed the Enter: it was pressed."""
        self._enter = None
        self.post_message(self.Sent())

    def _end_line(self) -> None:
        """Nothing followed the last Enter of a paste: it is a line end like the others."""
        self._enter = None
        self.insert("\n")

    def _line_of_paste(self) -> None:
        """Keys follow each other too fast for fingers: an Enter among them was a line end."""
        if self._enter is not None:
            self._enter.stop()
            self._enter = None
            self.insert("\n")
        self._pasted_at = time.monotonic()

    async def _on_paste(self, event: events.Paste) -> None:
        event.stop()
        event.prevent_default()
        if result := self._replace_via_keyboard(clean(event.text), *self.selection):
            self.move_cursor(result.end_location)

    # ---------------------------------------------------------------- history

    def remember(self, text: str) -> None:
        """Keep a sent text for the arrow keys."""
        if text and (not self._history or self._history[-1] != text):
            self._history.append(text)
        self._place = len(self._history)
        self._recalled = None

    def put(self, text: str) -> None:
        """Replace the text and go to its end."""
        self.text = text
        self.move_cursor(self.document.end)

    def action_older(self) -> None:
        """In an empty box, or on a recalled text: the prompt before. Else one line up."""
        if self._browsing and self._place > 0:
            self._recall(self._place - 1)
        else:
            self.action_cursor_up()

    def action_newer(self) -> None:
        """On a recalled text: the prompt after it. Else one line down."""
        if self._recalled is not None and self._browsing:
            self._recall(self._place + 1)
        else:
            self.action_cursor_down()

    @property
    def _browsing(self) -> bool:
        return not self.text or self.text == self._recalled

    def _recall(self, place: int) -> None:
        self._place = min(place, len(self._history))
        self._recalled = self._history[self._place] if self._place < len(self._history) else None
        self.put(self._recalled or "")
