"""One line under everything: the keys that matter now. And the commands that a slash could become."""

from __future__ import annotations

from textual.content import Content
from textual.widgets import Static

from localspec.tui.commands import Command
from localspec.tui.text import MUTED

Hint = tuple[str, str]
"""A key and what it does."""

IDLE: tuple[Hint, ...] = (
    ("Enter", "send"),
    ("Ctrl+J", "new line"),
    ("F1", "help"),
    ("Ctrl+C twice", "leave"),
    ("/", "commands"),
    ("F2", "stats"),
    ("F4", "colour"),
    ("PgUp/PgDn", "scroll"),
)
BUSY: tuple[Hint, ...] = (
    ("Esc", "stop"),
    ("Ctrl+J", "new line"),
    ("F1", "help"),
    ("Ctrl+C twice", "leave"),
    ("/", "commands"),
    ("F2", "stats"),
    ("F4", "colour"),
    ("PgUp/PgDn", "scroll"),
)


class Keys(Static):
    """As many hints as fit, the most needed first."""

    def __init__(self) -> None:
        super().__init__("", markup=False)
        self._hints = IDLE
        self._message = ""

    def show(self, hints: tuple[Hint, ...], message: str = "") -> None:
        """Show keys, or a message in their place."""
        if (hints, message) != (self._hints, self._message):
            self._hints, self._message = hints, message
            self._paint()

    def on_resize(self) -> None:
        """Fit the hints into the new width."""
        self._paint()

    def _paint(self) -> None:
        if self._message:
            self.update(Content.styled(self._message, "bold $text-warning"))
            return
        parts: list[str | tuple[str, str]] = []
        used = 0
        for key, does in self._hints:
            need = len(key) + len(does) + 1 + (3 if parts else 0)
            if used + need > self.content_size.width:
                break
            parts += ["   " if parts else "", (key, "bold $text-accent"), (f" {does}", MUTED)]
            used += need
        self.update(Content.assemble(*parts))


class Suggestions(Static):
    """The commands that match what is typed."""

    LIMIT = 6

    def __init__(self) -> None:
        super().__init__("", markup=False)
        self.display = False

    def show(self, commands: list[Command]) -> None:
        """Show the first matches; nothing where there are none."""
        self.display = bool(commands)
        rows: list[Content] = []
        for command in commands[: self.LIMIT]:
            call = f"{command.name} {command.argument}".strip()
            rows.append(Content.assemble((f"{call:<22} ", "bold $text-accent"), (command.help, MUTED)))
        if len(commands) > self.LIMIT:
            rows.append(Content.styled(f"and {len(commands) - self.LIMIT} more: /help", MUTED))
        self.update(Content("\n").join(rows))
