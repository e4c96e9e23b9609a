"""The parent's end of the engine's process: start it, talk to it, notice its death, end it.

The pipe carries `(request, command)` down, and up lists of `(request, event)`, where `request` is
a number that only grows. Events of an earlier request are dropped when they come late. `stop` is one number
in shared memory: the child gives up every request whose number is not greater.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from localspec.errors import WorkerDiedError
from localspec.spec.events import Finished, Round
from localspec.worker import log
from localspec.worker.child import Child, Death, new_stop_number, prepare
from localspec.worker.protocol import (
    Clear,
    Cleared,
    Command,
    Configure,
    Costs,
    Event,
    Failed,
    Generate,
    Load,
    MeasureCosts,
    Peek,
    Peeked,
    Ready,
)

__all__ = ["Worker", "prepare"]

DEFAULT_HOST = "localspec.worker.host:serve"
HOST_VARIABLE = "LOCALSPEC_WORKER_HOST"
"""Names another child's main, `module:function`. For tests of whole programs without weights."""

_NO_REQUEST = 0
"""Number of commands that no stream waits for; should one fail, nobody is told in its place."""

_PHASES: dict[type, str] = {Load: "loading", MeasureCosts: "measuring", Peek: "measuring"}
_LAST = (Ready, Finished, Cleared, Costs, Peeked)
"""What ends a stream."""
_Answer = TypeVar("_Answer", Costs, Peeked)


class Worker:
    """The engine in its own process.

    `load`, `generate` and `clear` belong to one thread at a time; `stop`, `configure`, `close` and the
    properties may be used from any thread at any moment. A stream that its consumer closes or drops cancels
    its request.

    A command that fails raises its `LocalspecError` out of the stream (the child's `Failed` is not passed
    on); the child lives on. A child that dies raises `WorkerDiedError` out of the stream, after all the
    events that it had sent; the next `load` or `generate` starts a new child, and `generate` first loads the
    same models again.

    Args:
        host: The child's main as `module:function`; the default is the real engine.
        log_file: Where the child's output goes; by default a new file under `paths.log_dir()`.
    """

    def __init__(self, host: str | None = None, log_file: Path | None = None) -> None:
        self._host = host or os.environ.get(HOST_VARIABLE) or DEFAULT_HOST
        self._log_file = log_file
        self._stop = new_stop_number()
        self._lock = threading.RLock()  # guards the fields below
        self._last_request = 0
        self._child: Child | None = None
        self._load_command: Load | None = None
        self._draft_on: bool | None = None
        self._ready: Ready | None = None
        self._closed = False

    # ------------------------------------------------------------- properties

    @property
    def alive(self) -> bool:
        """Whether a child runs now."""
        child = self._child
        return child is not None and child.alive

    @property
    def pid(self) -> int | None:
        """The running child's process id."""
        child = self._child
        return child.pid if child is not None and child.alive else None

    @property
    def ready(self) -> Ready | None:
        """What is loaded, None before the first load, after a failed one and after the child's death."""
        return self._ready if self.alive else None

    @property
    def loaded(self) -> Load | None:
        """The last load with the draft length as it was changed since; what a restarted child loads again."""
        return self._load_command

    @property
    def draft_on(self) -> bool:
        """Whether drafting is wanted: not switched off since the load."""
        return self._draft_on is not False

    @property
    def log_file(self) -> Path:
        """Where the child's output goes. The file exists once a child was started."""
        with self._lock:
            if self._log_file is None:
                self._log_file = log.new_log_file()
            return self._log_file

    # --------------------------------------------------------------- commands

    def load(self, command: Load) -> Generator[Event, None, None]:
        """Load a target and its draft, in a fresh process: what was loaded before gives back all its memory.

        Yields:
            `LoadProgress` and `MemoryUse`, last `Ready`.

        Raises:
            LocalspecError: The load failed or was stopped (`LoadError`), the child died (`WorkerDiedError`).
        """
        with self._lock:
            return self._load(self._next_request(), command)

    def generate(self, command: Generate) -> Generator[Event, None, None]:
        """Answer. The `request` field of the command is filled in here.

        Yields:
            `PromptProgress`, `Round`, `MemoryUse` and `DraftChanged`, last `Finished`. Where the child has to
            be started again, first the events of a load, `Ready` among them.

        Raises:
            LocalspecError: The answer failed, or the child died (`WorkerDiedError`).
        """
        with self._lock:
            reload = self._next_request()
            return self._generate(reload, self._next_request(), command)

    def stop(self) -> None:
        """Cancel what runs now, a load too. Takes no lock, waits for nothing; harmless when nothing runs."""
        self._stop.value = self._last_request

    def configure(self, command: Configure) -> None:
        """Change drafting now. `DraftChanged` comes in the running stream, or in `idle_events`."""
        with self._lock:
            if command.draft_on is not None:
                self._draft_on = command.draft_on
            if command.n_draft is not None and self._load_command is not None:
                self._load_command = replace(
                    self._load_command, n_draft=command.n_draft, auto=bool(command.auto)
                )
            if self._child is not None and self._child.alive:
                self._child.send(_NO_REQUEST, command)

    def clear(self) -> None:
        """Forget both caches, and wait for that. Without a live child there is nothing to forget."""
        child = self._child
        if child is None or not child.alive or self._ready is None:
            return
        with self._lock:
            request = self._next_request()
        with contextlib.suppress(WorkerDiedError):
            for _ in self._stream(child, request, Clear()):
                pass

    def costs(self, command: MeasureCosts) -> Costs:
        """Time what a round is made of.

        Raises:
            LocalspecError: Nothing is loaded, it was stopped, or the child died.
        """
        return self._single(command, Costs)

    def peek(self, command: Peek) -> Peeked:
        """Choose one token of an answer again, alone and in a batch.

        Raises:
            LocalspecError: Nothing is loaded, llama.cpp failed, or the child died.
        """
        return self._single(command, Peeked)

    def idle_events(self) -> list[Event]:
        """`DraftChanged` and `MemoryUse` that came while no stream was running; each is handed out once."""
        child = self._child
        return child.take_idle() if child is not None else []

    def close(self, timeout: float = 2.0) -> None:
        """End the child: ask, then terminate, then kill, all within `timeout` seconds. Closing twice is fine.

        A stream that still runs in another thread ends with `WorkerDiedError`; so does every later command.
        """
        with self._lock:
            self._closed = True
            child, self._child = self._child, None
            self._ready = None
        self.stop()
        if child is not None:
            child.end(timeout)

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---------------------------------------------------------------- streams

    def _next_request(self) -> int:
        self._last_request += 1
        return self._last_request

    def _single(self, command: MeasureCosts | Peek, kind: type[_Answer]) -> _Answer:
        """The one event that a measuring command is answered with."""
        child = self._child
        if child is None or self.ready is None:
            self._refuse_if_closed()
            raise WorkerDiedError("No model is loaded.", hint="localspec run")
        with self._lock:
            request = self._next_request()
        found = [event for event in self._stream(child, request, command) if isinstance(event, kind)]
        return found[-1]

    def _load(self, request: int, command: Load) -> Generator[Event, None, None]:
        with self._lock:
            self._load_command = command
            self._draft_on = None
        yield from self._load_again(request)

    def _load_again(self, request: int) -> Generator[Event, None, None]:
        """Start a child and load `_load_command`, with drafting switched as it was."""
        child = self._new_child()
        command = self._load_command
        assert command is not None
        for event in self._stream(child, request, command):
            if isinstance(event, Ready):
                with self._lock:  # it may be switched just now: the last word counts
                    self._ready = event
                    if self._draft_on is not None:
                        child.send(_NO_REQUEST, Configure(draft_on=self._draft_on))
            yield event

    def _generate(self, reload: int, request: int, command: Generate) -> Generator[Event, None, None]:
        if self.ready is None:
            if self._load_command is None:
                self._refuse_if_closed()
                raise WorkerDiedError("No model is loaded.", hint="localspec run")
            yield from self._load_again(reload)
        child = self._child
        if child is None:
            raise _closed()
        yield from self._stream(child, request, replace(command, request=request))

    def _stream(self, child: Child, request: int, command: Command) -> Generator[Event, None, None]:
        inbox = child.open(request)
        finished = False
        phase = _PHASES.get(type(command), "reading the prompt")
        try:
            child.send(request, command)
            while not finished:
                event = _get(inbox)
                if isinstance(event, Death):
                    finished = True
                    raise self._obituary(child, event, phase)
                if self._closed and isinstance(event, (*_LAST, Failed)):
                    # What the child still says of the stop depends on how fast it is; the end must not.
                    finished = True
                    raise _closed()
                if isinstance(event, Failed):
                    finished = True
                    raise event.error
                if isinstance(event, Round):
                    phase = "answering"
                finished = isinstance(event, _LAST)
                yield event
        finally:
            child.close_stream(request)
            if not finished:
                self._stop.value = max(self._stop.value, request)

    def _obituary(self, child: Child, death: Death, phase: str) -> WorkerDiedError:
        if self._closed or child.ending:
            return _closed()
        reasons = [
            log.last_error(child.log_file, child.log_start),
            death.guess(phase),
            f"Its log is {child.log_file}.",
        ]
        return WorkerDiedError(
            f"The engine stopped while {phase} ({death.cause}).",
            why=" ".join(filter(None, reasons)),
            hint="localspec doctor",
        )

    # ------------------------------------------------------------ the process

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise _closed()

    def _new_child(self) -> Child:
        """A child in which nothing was loaded; the one before it ends first."""
        with self._lock:
            self._refuse_if_closed()
            old, self._child, self._ready = self._child, None, None
        if old is not None:
            old.end(2.0)
        with self._lock:
            self._refuse_if_closed()
            try:
                self._child = Child(self._host, self._stop, self.log_file)
            except OSError as error:
                said = error.strerror or str(error)
                raise WorkerDiedError(
                    "The engine's process could not be started.",
                    why=f"The system says: {said}.",
                    hint="localspec doctor",
                ) from error
            return self._child


def _closed() -> WorkerDiedError:
    return WorkerDiedError("The engine was closed.", hint="localspec run")


def _get(inbox: queue.SimpleQueue[Event | Death]) -> Event | Death:
    while True:
        # A wait without a limit cannot be interrupted with Ctrl+C on Windows.
        with contextlib.suppress(queue.Empty):
            return inbox.get(timeout=0.5)
