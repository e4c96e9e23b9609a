"""Help: keys, commands, and what each figure means."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from localspec.tui.commands import COMMANDS

KEYS = (
    ("Enter", "send; while an answer runs: send when it is done"),
    ("Ctrl+J, Shift+Enter", "new line (Ctrl+J works in every terminal)"),
    ("Up, in an empty box", "the prompt before"),
    ("Esc", "stop the answer and keep its text"),
    ("Ctrl+C", "copy what is selected; else stop the answer; twice: leave"),
    (
        "Ctrl+Q, /quit",
        "leave; so does Ctrl+D in an empty box. What is typed is there again with run --continue",
    ),
    ("PgUp, PgDn", "scroll; Ctrl+End follows the answer again"),
    ("Tab", "complete a command"),
    ("F2", "show or hide the stats: speed over the answer, acceptance, a round's time, net speedup"),
    ("F3", "fold or unfold the thinking"),
    ("F4", "colour accepted draft tokens apart from the target's own, and show the rejected ones"),
    ("F1, Esc", "open and close this help"),
)

FIGURES = (
    ("now", "tokens per second over the last moments; thinking counts"),
    ("answer", "tokens after the first, over the time after the first"),
    ("TTFT", "time to first token: from Enter until the first token of the answer"),
    (
        "prompt",
        "prompt tokens evaluated per second; tokens from an earlier turn cost nothing and do not count",
    ),
    ("accepted", "acceptance rate: accepted / drafted tokens"),
    ("mean length", "mean accepted length: 1 + accepted / rounds, tokens that one pass of the target yields"),
    ("k", "draft length: tokens drafted in a round"),
    ("at position", "of the rounds that accepted the positions before, the share that accepted this one"),
    (
        "drafted → chosen",
        "the last drafted tokens that the target did not take, what it chose instead, and how sure the draft was; · is "
        "a space. With F4 they stand where they were, in ‹ ›",
    ),
    ("net", "net speedup: tokens per second over what this target makes here without a draft"),
    (
        "time of a round",
        "draft: the small model guesses; verify: the target checks; own code: choosing, text, bookkeeping",
    ),
    ("context", "tokens in the context / its size"),
    ("VRAM, RAM", "memory in use / in all: of the devices (VRAM), or of this process and machine (RAM)"),
    ("draft", "on, or off and why; the draft never changes the text, only the speed"),
)

_BESIDE = (
    "What counts when the models load (context, cache, overlap, devices, another draft) is not changed in a chat: "
    "typed as a command, as in /overlap on, it tells how to go on with it.\n"
    "A message that starts with // is sent with one slash."
)


class Table(Static):
    """A title and two columns; the right one wraps inside itself."""

    def __init__(self, title: str, rows: tuple[tuple[str, str], ...]) -> None:
        super().__init__("", markup=False)
        self._title = title
        self._rows = rows

    def on_resize(self) -> None:
        """Wrap for the new width."""
        left = max(len(name) for name, _ in self._rows) + 2
        room = self.content_size.width - left
        lines = [Content.styled(self._title, "bold $text-primary")]
        for name, meaning in self._rows:
            if room < 16:
                lines += [Content.styled(name, "bold"), Content(meaning)]
                continue
            first, *more = Content(meaning).wrap(room)
            lines.append(Content.styled(f"{name:<{left}}", "bold") + first)
            lines += [Content(" " * left) + line for line in more]
        self.update(Content("\n").join(lines))


class Help(ModalScreen[None]):
    """Closed with Esc, F1, Enter or q."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,f1,enter,q", "dismiss", "close", priority=True),
        Binding("up,k", "scroll(-1)", show=False),
        Binding("down,j", "scroll(1)", show=False),
        Binding("pageup", "scroll(-10)", show=False, priority=True),
        Binding("pagedown,space", "scroll(10)", show=False, priority=True),
    ]

    def compose(self) -> ComposeResult:
        """Three tables."""
        commands = tuple((f"{each.name} {each.argument}".strip(), each.help) for each in COMMANDS)
        with VerticalScroll(id="help"):
            for title, rows in (("Keys", KEYS), ("Commands", commands), ("Figures", FIGURES)):
                yield Table(title, rows)
            yield Static(_BESIDE, markup=False)
            yield Static("Esc closes this help.", markup=False, classes="muted")

    def action_scroll(self, lines: int) -> None:
        """Scroll the help."""
        self.query_one("#help", VerticalScroll).scroll_relative(y=lines, animate=False)
