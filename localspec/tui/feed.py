"""Events of the engine, from a thread to the screen. The thread only ever puts into a queue."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from localspec.worker.protocol import Event


@dataclass(frozen=True, slots=True)
class Ended:
    """A stream of events ended, by itself or by an exception."""

    error: BaseException | None = None


class Feed:
    """One stream of events, read by a thread of its own.

    The thread is a daemon and never waits for the screen, so leaving the interface never waits for it either.

    Args:
        source: Called in the thread; gives the events.
        name: Name of the thread.
    """

    def __init__(self, source: Callable[[], Iterable[Event]], name: str) -> None:
        self._source = source
        self._queue: queue.SimpleQueue[Event | Ended] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            for event in self._source():
                self._queue.put(event)
        except BaseException as error:  # whatever it is, the screen says it
            self._queue.put(Ended(error))
        else:
            self._queue.put(Ended())

    def drain(self) -> list[Event | Ended]:
        """All that has arrived since the last call. Never waits."""
        arrived: list[Event | Ended] = []
        while True:
            try:
                arrived.append(self._queue.get_nowait())
            except queue.Empty:
                return arrived

    def join(self, timeout: float) -> None:
        """Wait for the thread to end, `timeout` seconds at most."""
        self._thread.join(timeout)
