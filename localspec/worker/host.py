"""The child's main: takes commands from the pipe, runs the engine, sends its events.

Everything that can abort natively happens here. Commands are `(request, command)`; events go up through a `Bundle`.
While an answer runs, the pipe is looked at each time that events went up, so that a change of the draft acts at once.
"""

from __future__ import annotations

import sys
import time
import traceback
from collections import deque
from multiprocessing.connection import Connection
from typing import Any

from localspec.errors import LoadError, LocalspecError
from localspec.llama.log import NativeLog
from localspec.worker.bundle import Bundle
from localspec.worker.costs import measure_costs
from localspec.worker.loading import Loaded, Loader
from localspec.worker.machine import memory_use
from localspec.worker.peek import peek
from localspec.worker.prompt import to_request
from localspec.worker.protocol import (
    Clear,
    Cleared,
    Command,
    Configure,
    DraftChanged,
    Event,
    Failed,
    Generate,
    Load,
    MeasureCosts,
    Notice,
    Peek,
    Shutdown,
)

_MEMORY_SECONDS = 1.0


def serve(conn: Connection, stop: Any, log_file: str) -> None:
    """Serve commands until `Shutdown`, or until the other end of the pipe is gone.

    Args:
        conn: The pipe.
        stop: A number in shared memory: requests up to it are cancelled.
        log_file: Where this process's output goes, named in errors.
    """
    host = _Host(conn, stop, log_file)
    try:
        host.run()
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # the interface is gone; so are we
    finally:
        host.close()


class _Host:
    def __init__(self, conn: Connection, stop: Any, log_file: str) -> None:
        self._conn = conn
        self._events = Bundle(conn)
        self._stop = stop
        self._log_file = log_file
        self._log = NativeLog(lambda line: print(line, file=sys.stderr))  # noqa: T201  # stderr is the log file
        self._log.install()
        self._loaded: Loaded | None = None
        self._waiting: deque[tuple[int, Command]] = deque()
        self._memory_at = 0.0
        self._told: set[str] = set()  # what was said once about this template is not said again
        self._request = 0
        """The request being served; they are served one after the other."""

    def run(self) -> None:
        while True:
            request, command = self._waiting.popleft() if self._waiting else self._conn.recv()
            if isinstance(command, Shutdown):
                return
            self._request = request
            try:
                self._obey(request, command)
            except LocalspecError as error:
                self._send(request, Failed(error, self._log_file))
            except (EOFError, ConnectionError):
                raise
            except Exception as error:  # a fault of ours must not cost the loaded models
                traceback.print_exc()
                self._send(request, Failed(_fault(error), self._log_file))

    def close(self) -> None:
        if self._loaded is not None:
            self._loaded.close()
            self._loaded = None

    def _obey(self, request: int, command: Command) -> None:
        if isinstance(command, Load):
            self._load(request, command)
        elif isinstance(command, Generate):
            self._generate(request, command)
        elif isinstance(command, Configure):
            self._configure(request, command)
        elif isinstance(command, Clear):
            self._need().engine.clear()
            self._send(request, Cleared())
        elif isinstance(command, MeasureCosts):
            self._send(request, measure_costs(self._need().engine, command, self._cancelled))
        elif isinstance(command, Peek):
            self._send(request, peek(self._need(), command))

    def _load(self, request: int, command: Load) -> None:
        self.close()
        self._told.clear()
        loader = Loader(command, self._log, lambda event: self._send(request, event), self._cancelled)
        self._loaded = loader.load()
        self._send(request, self._loaded.ready)

    def _generate(self, request: int, command: Generate) -> None:
        loaded = self._need()
        loaded.prices.settle()
        engine = loaded.engine
        uncut = any(context.has_state for context in loaded.opened.contexts)
        answer, notes = to_request(
            command, loaded.template, engine.vocab, find_anchors=uncut, context=engine.context
        )
        fresh = tuple(note for note in notes if note not in self._told)
        if fresh:
            self._told.update(fresh)
            self._send(request, Notice(fresh))
        for event in engine.generate(answer, self._cancelled):
            if self._events.send(request, event):
                self._look_around(request)
        loaded.prices.keep()

    def _look_around(self, request: int) -> None:
        """Between two rounds of an answer: take commands, report memory now and then."""
        while self._conn.poll():
            number, command = self._conn.recv()
            if isinstance(command, Configure):
                self._configure(number, command)
            else:
                self._waiting.append((number, command))
                if isinstance(command, Shutdown):
                    self._stop.value = max(self._stop.value, request)
        now = time.monotonic()
        if now - self._memory_at >= _MEMORY_SECONDS:
            self._memory_at = now
            self._send(request, memory_use())

    def _configure(self, request: int, command: Configure) -> None:
        engine = self._need().engine
        if command.draft_on is not None:
            engine.draft_on = command.draft_on
        if command.n_draft is not None:
            self._set_length(command.n_draft, auto=bool(command.auto))
        self._send(request, DraftChanged(engine.status))

    def _set_length(self, n_draft: int, *, auto: bool) -> None:
        loaded = self._need()
        if auto:
            loaded.prices.choose_by_price(n_draft, answering=loaded.engine.answering)
        else:
            loaded.engine.set_length(n_draft)

    def _need(self) -> Loaded:
        if self._loaded is None:
            raise LoadError("No model is loaded.", hint="localspec run")
        return self._loaded

    def _cancelled(self) -> bool:
        return bool(self._stop.value >= self._request)

    def _send(self, request: int, event: Event) -> None:
        self._events.send(request, event)


def _fault(error: Exception) -> LocalspecError:
    return LocalspecError(
        f"The engine failed in its own code ({type(error).__name__}).",
        why=f"{error}." if str(error) else "",
        hint="localspec doctor",
    )
