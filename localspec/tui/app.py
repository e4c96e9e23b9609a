"""The terminal interface as a program: themes, signals, leaving, and what happens when it fails itself."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from typing import ClassVar

from textual.app import App
from textual.binding import Binding, BindingType
from textual.theme import Theme

from localspec import paths
from localspec.chat.session import Session
from localspec.tui.screens.chat import ChatScreen
from localspec.tui.screens.events import Pair
from localspec.tui.screens.measuring import Measuring
from localspec.tui.terminal import Signals
from localspec.worker.process import Worker, prepare

TWICE_S = 2.0
"""Within this time a second Ctrl+C leaves."""
CLOSE_S = 1.2
"""How long the engine's process may take to end."""
SETTLE_S = 0.5
"""How long the end of an answer may take to be kept after that."""

log = logging.getLogger(__name__)

DARK = Theme(
    name="localspec-dark",
    primary="#7aa2f7",
    secondary="#9aa5ce",
    accent="#7dcfff",
    foreground="#c8d0e8",
    background="#14161f",
    surface="#191c27",
    panel="#20242f",
    success="#9ece6a",
    warning="#e0af68",
    error="#f7768e",
    dark=True,
)
LIGHT = Theme(
    name="localspec-light",
    primary="#2e59b8",
    secondary="#5a648c",
    accent="#006d8f",
    foreground="#23283a",
    background="#fbfbfd",
    surface="#f3f4f8",
    panel="#e8eaf1",
    success="#3a7a1e",
    warning="#96590b",
    error="#b3203f",
    dark=False,
)


def light_terminal(environ: Mapping[str, str]) -> bool:
    """Whether the terminal says that its background is light (`COLORFGBG`, set by several terminals)."""
    return environ.get("COLORFGBG", "").rpartition(";")[2] in {"7", "15"}


class LocalspecApp(App[None]):
    """The chat.

    Args:
        session: The conversation.
        worker: The engine's process.
        launch: What to load first.
        coloured: Begin with the tokens coloured by who chose them.
        theme: Name of a theme; empty or unknown = ours, dark or light as the terminal says.
    """

    TITLE = "localspec"
    CSS_PATH = "app.tcss"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+c", "interrupt", "copy, stop or leave", priority=True, show=False),
        Binding("ctrl+q", "leave", "leave", priority=True, show=False),
    ]

    def __init__(
        self, session: Session, worker: Worker, launch: Pair, *, coloured: bool = False, theme: str = ""
    ) -> None:
        super().__init__()
        self.worker = worker
        self.chat = ChatScreen(session, worker, launch, coloured=coloured)
        self.failure: Exception | None = None
        self._interrupted_at = -TWICE_S
        self._signals = Signals(self._leave_with, self._abandon)
        self.register_theme(DARK)
        self.register_theme(LIGHT)
        ours = LIGHT if light_terminal(os.environ) else DARK
        self.theme = theme if theme in self.available_themes else ours.name

    def get_default_screen(self) -> ChatScreen:
        """The chat is the only screen; the help lies over it."""
        return self.chat

    def on_mount(self) -> None:
        """Take the signals."""
        if threading.current_thread() is threading.main_thread() and not self.is_headless:
            self._signals.install()

    def on_unmount(self) -> None:
        """Give the signals back."""
        self._signals.remove()

    # ------------------------------------------------------------------ leaving

    def action_interrupt(self) -> None:
        """Ctrl+C: copy a selection, else stop the answer; pressed twice, leave."""
        selected = self.chat.selected_text()
        if selected:
            self.chat.unselect()
            self.chat.copy(selected)
            return
        if isinstance(self.screen, Measuring):
            self.screen.stop()
        now = time.monotonic()
        if now - self._interrupted_at < TWICE_S:
            self.action_leave()
            return
        self._interrupted_at = now
        if self.chat.answering:
            self.chat.action_stop()
        self.chat.warn("Press Ctrl+C again to leave")
        self.set_timer(TWICE_S, self.chat.unwarn)

    def action_leave(self) -> None:
        """Leave now, whatever runs."""
        self._leave_with(0)

    def _leave_with(self, code: int) -> None:
        self.worker.stop()
        self.exit(return_code=code)

    def _abandon(self) -> None:
        self.worker.close(timeout=0.3)
        self.chat.settle(timeout=0.3)

    # ------------------------------------------------------------------ failing

    def _handle_exception(self, error: Exception) -> None:
        # Textual would print a traceback with local variables; a person gets a sentence, the log the rest.
        log.critical("the interface failed", exc_info=error)
        self.failure = self.failure or error
        super()._handle_exception(error)

    def _print_error_renderables(self) -> None:
        self._exit_renderables.clear()


def run_app(
    session: Session, worker: Worker, launch: Pair, *, coloured: bool = False, theme: str = ""
) -> int:
    """Run the interface until the person leaves.

    Args:
        session: The conversation, whose engine is `worker`.
        worker: The engine's process; closed at the end.
        launch: What to load (`localspec.launch.Launch`).
        coloured: Begin with the tokens coloured by who chose them.
        theme: Name of a theme; empty = ours.

    Returns:
        The exit code: 0, 1 when the interface itself failed, 128 + n after signal n.
    """
    log_file = _log_to_file()
    prepare()
    app = LocalspecApp(session, worker, launch, coloured=coloured, theme=theme)
    try:
        with _painting_on_the_terminal():
            app.run()
    finally:
        worker.close(timeout=CLOSE_S)
        app.chat.settle(timeout=SETTLE_S)
    if app.failure is not None:
        sys.stderr.write(
            f"The interface failed: {type(app.failure).__name__}. The conversation is kept.\n"
            f"The details are in {log_file}.\nNext: localspec run --continue\n"
        )
        return 1
    return app.return_code or 0


@contextlib.contextmanager
def _painting_on_the_terminal() -> Iterator[None]:
    """Textual paints on stderr; with `2> file` it would paint into the file, so lend it stdout then."""
    real, output = sys.__stderr__, sys.__stdout__
    lend = output is not None and output.isatty() and not (real is not None and real.isatty())
    if lend:
        sys.__stderr__ = output  # type: ignore[misc]
    try:
        yield
    finally:
        sys.__stderr__ = real  # type: ignore[misc]


def _log_to_file() -> str:
    folder = paths.log_dir()
    file = folder / "tui.log"
    package = logging.getLogger("localspec")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handler: logging.Handler = logging.FileHandler(file, encoding="utf-8")
        handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(levelname)s %(message)s"))
    except OSError:
        handler = logging.NullHandler()
    package.addHandler(handler)
    package.propagate = False
    return str(file)
