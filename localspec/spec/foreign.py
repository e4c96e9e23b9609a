"""Somebody else's code, run so that nothing it does can stop an answer."""

from __future__ import annotations

import contextlib
import ctypes
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from localspec.errors import AbortedError, DrafterError
from localspec.models.text import printable

T = TypeVar("T")

PATIENCE_S = 30.0
"""After so long without an answer a drafter is given up."""
_LOOK_S = 0.05
_LONGEST = 160  # characters of somebody's message that are shown


class Unusable(Exception):  # noqa: N818  # it is no error of ours: the sentence says what came back
    """What foreign code gave cannot be used. The text completes "the drafter ..."."""


class Foreign:
    """Runs calls one after the other in a thread of their own.

    So a stop reaches past a call that hangs, and whatever is raised becomes one sentence. The traceback goes to
    stderr, which is the log in the engine's process.

    Args:
        cancelled: Whether the request in hand was stopped.
        patience_s: Seconds that a call may take.
    """

    def __init__(self, cancelled: Callable[[], bool] = lambda: False, patience_s: float = PATIENCE_S) -> None:
        self._cancelled = cancelled
        self._patience_s = patience_s
        self._jobs: queue.SimpleQueue[_Job[Any] | None] = queue.SimpleQueue()
        self._last: _Job[Any] | None = None
        self._thread: threading.Thread | None = None

    def run(self, call: Callable[[], T], *, patience_s: float | None = None) -> T:
        """The result of a call.

        Args:
            call: What to do; it may take any time and raise anything.
            patience_s: In place of the usual time.

        Raises:
            DrafterError: It raised something, or took too long.
            AbortedError: The request was stopped meanwhile.
        """
        until = time.monotonic() + (self._patience_s if patience_s is None else patience_s)
        if self._last is not None:
            self._wait(self._last, until)  # one that was left behind still runs
        job = self._last = _Job(call)
        if self._thread is None:
            self._thread = threading.Thread(
                target=_serve, args=(self._jobs,), name="foreign drafter", daemon=True
            )
            self._thread.start()
        self._jobs.put(job)
        self._wait(job, until)
        if job.problem is not None:
            raise DrafterError(f"the drafter {job.problem}")
        result: T = job.result
        return result

    @property
    def busy(self) -> bool:
        """Whether a call that nobody waits for any more still runs."""
        return self._last is not None and not self._last.done.is_set()

    def close(self) -> None:
        """End the thread when its call ends; nobody waits for that. Another `run` starts a new one."""
        self._jobs.put(None)
        self._jobs, self._thread = queue.SimpleQueue(), None

    def _wait(self, job: _Job[Any], until: float) -> None:
        while not job.done.wait(_LOOK_S):
            if self._cancelled():
                raise AbortedError("The drafter was not waited for.")
            if time.monotonic() > until:
                self._interrupt()
                raise DrafterError("the drafter did not answer in time")

    def _interrupt(self) -> None:
        """Raise an exception in the thread: it ends a loop in Python, so that it takes no time from the target."""
        if self._thread is not None and self._thread.ident is not None:
            identity = ctypes.c_ulong(self._thread.ident)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(identity, ctypes.py_object(_GivenUp))


class _GivenUp(BaseException):
    """Raised in the middle of foreign code."""


class _Job(Generic[T]):
    """One call."""

    result: T

    def __init__(self, call: Callable[[], T]) -> None:
        self._call = call
        self.done = threading.Event()
        self.problem: str | None = None

    def do(self) -> None:
        try:
            self.result = self._call()
        except Unusable as unusable:
            self.problem = str(unusable)
        except BaseException as error:  # SystemExit and KeyboardInterrupt too: it is not ours to end
            self.problem = f"raised {said(error)}"
            with contextlib.suppress(Exception):
                traceback.print_exception(type(error), error, error.__traceback__, file=sys.stderr)
        finally:
            self.done.set()


def _serve(jobs: queue.SimpleQueue[_Job[Any] | None]) -> None:
    while True:
        with contextlib.suppress(_GivenUp):  # it can come late, between two calls
            job = jobs.get()
            if job is None:
                return
            job.do()


def said(error: BaseException) -> str:
    """`ValueError: no such id`, in one line."""
    try:
        lines = str(error).splitlines()
    except Exception:  # somebody's own `__str__`
        lines = []
    message = printable(lines[0].strip())[:_LONGEST].rstrip(".") if lines else ""
    name = printable(type(error).__name__)
    return f"{name}: {message}" if message else name
