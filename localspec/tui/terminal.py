"""Signals: leave in order, and never leave a terminal behind that cannot be used."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable

RESTORE = (
    "\x1b[?2004l\x1b[?7h\x1b[?2048l"  # bracketed paste off, line wrap on, in-band resize off
    "\x1b[?1000l\x1b[?1003l\x1b[?1015l\x1b[?1006l\x1b[?1016l"  # mouse off
    "\x1b[<u\x1b[?1049l\x1b[?25h\x1b[?1004l"  # keyboard protocol off, normal screen, cursor on, focus off
)
PATIENCE_S = 1.5
"""How long an orderly end may take before the hard one."""


class Signals:
    """SIGTERM and SIGHUP end the interface in order; where that hangs, the hard way, terminal restored.

    Args:
        leave: Starts the orderly end; called in the event loop with the exit code.
        abandon: Called in a thread before the hard end, to take the engine's process along.
    """

    def __init__(self, leave: Callable[[int], None], abandon: Callable[[], None]) -> None:
        self._leave = leave
        self._abandon = abandon
        self._settings = _terminal_settings()
        self._installed: list[int] = []

    def install(self) -> None:
        """Install the handlers in the running event loop, where the system and the thread allow it."""
        loop = asyncio.get_running_loop()
        for name in ("SIGTERM", "SIGHUP"):
            number = getattr(signal, name, None)
            if number is None:
                continue
            with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
                loop.add_signal_handler(number, self._received, int(number))
                self._installed.append(number)

    def remove(self) -> None:
        """Give the signals back."""
        loop = asyncio.get_running_loop()
        for number in self._installed:
            loop.remove_signal_handler(number)
        self._installed = []

    def _received(self, number: int) -> None:
        threading.Thread(target=self._insist, args=(number,), name="leave", daemon=True).start()
        self._leave(128 + number)

    def _insist(self, number: int) -> None:
        time.sleep(PATIENCE_S)
        with contextlib.suppress(Exception):
            self._abandon()
        if number == signal.SIGTERM:
            restore(self._settings)
        os._exit(128 + number)


def _terminal_settings() -> list[object] | None:
    with contextlib.suppress(Exception):
        import termios  # noqa: PLC0415  (POSIX only)

        return list(termios.tcgetattr(sys.__stdin__.fileno()))  # type: ignore[union-attr]
    return None


def restore(settings: list[object] | None) -> None:
    """Write what gives the terminal back to the shell, whatever state the interface is in."""
    with contextlib.suppress(Exception):
        import termios  # noqa: PLC0415  (POSIX only)

        if settings is not None:
            termios.tcsetattr(sys.__stdin__.fileno(), termios.TCSANOW, settings)  # type: ignore[union-attr, arg-type]
    with contextlib.suppress(Exception):
        os.write(sys.__stderr__.fileno(), RESTORE.encode())  # type: ignore[union-attr]
