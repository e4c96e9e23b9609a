"""One child process: its start, the pipe to it, the thread that reads from it, its end; and its first lines.

Private to `localspec.worker.process`.
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Iterator
from ctypes import c_longlong
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from localspec.worker import log
from localspec.worker.protocol import Command, DraftChanged, Event, MemoryUse, Shutdown

spawn = multiprocessing.get_context("spawn")
_prepare_lock = threading.Lock()

_LOOK_SECONDS = 0.5  # how often a silent child is looked at


def prepare() -> None:
    """Start multiprocessing's helper process while stdout and stderr are still the real ones.

    Textual replaces `sys.stderr` with an object whose `fileno()` is -1. The helper is handed that number, and
    its start fails with "bad value(s) in fds_to_keep". Call this before a full-screen interface starts.
    `Worker` calls it too, and lends the helper the process's own stderr. Safe to call again and from any
    thread.
    """
    if os.name != "posix":
        return
    from multiprocessing import resource_tracker  # noqa: PLC0415  (POSIX only)

    with _prepare_lock:
        shown = sys.stderr
        if not _has_descriptor(shown):
            sys.stderr = sys.__stderr__
        try:
            resource_tracker.ensure_running()
        finally:
            sys.stderr = shown


def _has_descriptor(stream: Any) -> bool:
    try:
        return int(stream.fileno()) >= 0
    except (AttributeError, OSError, ValueError):
        return False


def new_stop_number() -> Any:
    """A number in shared memory, readable by every child that it is handed to."""
    return spawn.RawValue(c_longlong, -1)


class Death:
    """How a child ended."""

    def __init__(self, exit_code: int | None) -> None:
        self.exit_code = exit_code

    @property
    def cause(self) -> str:
        """`SIGSEGV`, `exit code 3`."""
        code = self.exit_code
        if code is None:
            return "unknown cause"
        if code < 0:
            with contextlib.suppress(ValueError):
                return signal.Signals(-code).name
            return f"signal {-code}"
        return f"exit code {code:#x}" if code > 255 else f"exit code {code}"

    def guess(self, phase: str) -> str:
        """What such an end often means."""
        if self.cause == "SIGKILL" and phase == "loading":
            return "The system ends a process like this when memory runs out."
        return ""


class Child:
    """One started process, the pipe to it, and the thread that reads from it."""

    def __init__(self, host: str, stop: Any, log_file: Path) -> None:
        prepare()
        self.log_file = log_file
        self.log_start = log.size(log_file)
        self.ending = False
        self._ended = threading.Event()
        self._death: Death | None = None
        self._outbox: queue.SimpleQueue[tuple[int, Command] | None] = queue.SimpleQueue()
        self._route_lock = threading.Lock()
        self._inboxes: dict[int, queue.SimpleQueue[Event | Death]] = {}
        self._idle: list[Event] = []
        self._conn, theirs = spawn.Pipe(duplex=True)
        self._process = spawn.Process(
            target=_child_main, args=(host, theirs, stop, str(log_file)), name="localspec engine", daemon=True
        )
        try:
            with _sigint_blocked():
                self._process.start()
        except BaseException:
            self._conn.close()
            raise
        finally:
            # The child holds its own copy; with ours open, its death would not end our reading.
            theirs.close()
        self.pid = self._process.pid
        self._writer = threading.Thread(target=self._write, name="localspec engine writer", daemon=True)
        self._writer.start()
        threading.Thread(target=self._read, name="localspec engine reader", daemon=True).start()

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return not self._ended.is_set()

    def open(self, request: int) -> queue.SimpleQueue[Event | Death]:
        """The queue of one request; what came while idle is its first content."""
        inbox: queue.SimpleQueue[Event | Death] = queue.SimpleQueue()
        with self._route_lock:
            for event in self._idle:
                inbox.put(event)
            self._idle = []
            self._inboxes[request] = inbox
            if self._death is not None:
                inbox.put(self._death)
        return inbox

    def close_stream(self, request: int) -> None:
        """Nobody listens to this request any more; its events are dropped."""
        with self._route_lock:
            self._inboxes.pop(request, None)

    def take_idle(self) -> list[Event]:
        """What came while nobody listened."""
        with self._route_lock:
            events, self._idle = self._idle, []
        return events

    def send(self, request: int, command: Command) -> None:
        """Send, without waiting for a child that does not read just now."""
        self._outbox.put((request, command))

    def end(self, timeout: float) -> None:
        """End the process within `timeout` seconds, politely first."""
        self.ending = True
        until = time.monotonic() + timeout
        self.send(0, Shutdown())
        for share, signal_it in ((0.25, self._process.terminate), (0.25, self._process.kill)):
            if self._ended.wait(timeout * share):
                return
            with contextlib.suppress(ValueError, OSError):  # it ended just now
                signal_it()
        self._ended.wait(max(0.0, until - time.monotonic()))

    # ----------------------------------------------------------- the threads

    def _write(self) -> None:
        """Send what is in the outbox. A long conversation fills the pipe while the child is busy: only we wait."""
        # A child that is gone is no error here: the reader tells the streams.
        with contextlib.suppress(OSError):
            while (item := self._outbox.get()) is not None:
                self._conn.send(item)

    def _read(self) -> None:
        """Pass events to their streams until the child is gone, then clean up and tell every stream."""
        # Half a message of a killed child can fail in many ways, all of them the end.
        with contextlib.suppress(Exception):
            alive = True
            while alive:
                # What the child started (a drafter of the person's own may) can hold its end of the pipe beyond its
                # death. What it sent before is still read.
                alive = self._process.is_alive()
                while self._conn.poll(_LOOK_SECONDS):
                    self._route(self._conn.recv())
        death = Death(self._reap())
        self._outbox.put(None)
        self._writer.join(_LOOK_SECONDS)
        if not self._writer.is_alive():  # else nobody reads what it writes
            self._conn.close()
        with self._route_lock:
            self._death = death
            self._ended.set()
            for inbox in self._inboxes.values():
                inbox.put(death)

    def _route(self, events: list[tuple[int, Event]]) -> None:
        with self._route_lock:
            for request, event in events:
                inbox = self._inboxes.get(request)
                if isinstance(event, (DraftChanged, MemoryUse)):
                    # They belong to whoever listens, whatever command caused them.
                    newest = max(self._inboxes, default=None)
                    inbox = None if newest is None else self._inboxes[newest]
                    if inbox is None:
                        self._idle = [e for e in self._idle if type(e) is not type(event)] + [event]
                if inbox is not None:
                    inbox.put(event)

    def _reap(self) -> int | None:
        """Wait for the process, so that no zombie stays, and return its exit code."""
        process = self._process
        process.join(1.0)
        if process.is_alive():  # it closed its pipe and hangs
            process.kill()
            process.join()
        for _ in range(100):
            if process.exitcode is not None:
                break
            time.sleep(0.01)  # another thread that starts a process may be reaping this one just now
        code = process.exitcode
        with contextlib.suppress(ValueError):
            process.close()
        return code


@contextlib.contextmanager
def _sigint_blocked() -> Iterator[None]:
    """Let the child inherit a blocked SIGINT: a Ctrl+C while it starts must not print a traceback."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# ------------------------------------------------------------------- the child


def _child_main(host: str, conn: Connection, stop: Any, log_file: str) -> None:
    """First lines of the child: output to the log, no Ctrl+C, no life without the parent; then the host."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    log.redirect_output(log_file)
    # Threads that wait for each other should soon sleep: beside other programs on the same cores, spinning ones take
    # the very time that the one they wait for needs (measured: 0.3 instead of 62 tokens a second with both of two
    # cores busy, and no difference on an idle machine). Must be set before the OpenMP library is loaded.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_die_with, args=(parent.sentinel,), name="parent watch", daemon=True).start()
    module, _, function = host.partition(":")
    getattr(importlib.import_module(module), function)(conn, stop, log_file)


def _die_with(sentinel: int) -> None:
    """End this process when the parent's ends, whatever native code is doing."""
    wait([sentinel])
    os._exit(1)
