"""llama.cpp's log: kept, never printed. The last error line explains a failed load."""

from __future__ import annotations

import contextlib
import ctypes
import re
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import llama_cpp

# Where prompts are computed in another number of parts than single tokens: "5 / 3".
_SPLITS = re.compile(r"\bsplits = (?:\d+ / )?(\d+)")
_LEVEL_INFO, _LEVEL_WARN, _LEVEL_ERROR, _LEVEL_CONT = 2, 3, 4, 5  # ggml_log_level


class NativeLog:
    """Collects what llama.cpp and ggml log.

    Args:
        write: Receives each complete line, for the log file. Called on whatever thread logs.
    """

    def __init__(self, write: Callable[[str], None] | None = None) -> None:
        self._write = write
        self._lock = threading.Lock()
        self._partial = ""
        self._level = _LEVEL_INFO
        self._errors: deque[str] = deque(maxlen=20)
        self._lines: deque[str] = deque(maxlen=400)

    def install(self) -> None:
        """Make this log the process's log, in place of stderr.

        `Llama(verbose=False)` would move file descriptors 1 and 2 to null for the whole process instead.
        """
        global _installed, _callback  # noqa: PLW0603  # the C side holds one callback for the process
        _installed = self
        if _callback is None:
            _callback = llama_cpp.llama_log_callback(_on_log)
            llama_cpp.llama_log_set(_callback, ctypes.c_void_p(0))

    @property
    def lines(self) -> tuple[str, ...]:
        """The last lines, oldest first."""
        with self._lock:
            return tuple(self._lines)

    def forget_errors(self) -> None:
        """Start a step whose errors should be told from earlier ones."""
        with self._lock:
            self._errors.clear()

    @property
    def splits(self) -> int:
        """Parts in which the context that was made last computes a token, one after the other; 0 = not told.

        One for the CPU, which looks up the token, and one for each GPU; more where the work goes back and forth.
        """
        for line in reversed(self.lines):
            if found := _SPLITS.search(line):
                return int(found[1])
        return 0

    @property
    def last_error(self) -> str:
        """The most telling error line since `forget_errors`: the first one, which later ones only repeat."""
        with self._lock:
            return self._errors[0] if self._errors else ""

    def receive(self, level: int, text: str) -> None:
        """Take a fragment of the log; lines are put together here."""
        with self._lock:
            if level != _LEVEL_CONT:
                self._level = level
            *complete, self._partial = (self._partial + text).split("\n")
            for line in filter(None, map(str.rstrip, complete)):
                self._lines.append(line)
                if self._level == _LEVEL_ERROR:
                    self._errors.append(line)
                if self._write is not None and self._level in (_LEVEL_INFO, _LEVEL_WARN, _LEVEL_ERROR):
                    self._write(line)


_installed: NativeLog | None = None
_callback: Any = None  # kept alive: the C side calls it for as long as the process lives


def _on_log(level: int, text: bytes, _user_data: object) -> None:
    if _installed is not None:
        with contextlib.suppress(Exception):  # none may unwind into C
            _installed.receive(level, text.decode("utf-8", "replace"))
