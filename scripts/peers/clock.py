"""Time inside llama.cpp, so that what is left of a round is ours."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import llama_cpp

NATIVE = (
    "llama_decode",
    "llama_synchronize",
    "llama_get_logits",
    "llama_memory_seq_rm",
    "llama_memory_clear",
)


class NativeClock:
    """Adds up the time spent inside llama.cpp, in `seconds`, from when it is made until it is stopped.

    Args:
        now: What tells the time, in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self.seconds = 0.0
        self._now = now
        self._before = {name: getattr(llama_cpp, name) for name in NATIVE}
        for name, function in self._before.items():
            setattr(llama_cpp, name, self._timed(function))

    def stop(self) -> None:
        """Leave llama.cpp as it was."""
        for name, function in self._before.items():
            setattr(llama_cpp, name, function)

    def _timed(self, function: Any) -> Any:
        def call(*arguments: Any) -> Any:
            began = self._now()
            try:
                return function(*arguments)
            finally:
                self.seconds += self._now() - began

        return call
