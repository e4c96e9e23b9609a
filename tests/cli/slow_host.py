"""The engine with set prices, but each answer takes a moment, so that somebody can interrupt it."""

from __future__ import annotations

from multiprocessing.connection import Connection
from typing import Any

from localspec.worker.protocol import Generate
from tests.measure.priced_host import Priced


class Slow(Priced):
    def generate(self, command: Generate) -> None:
        self.sleep(0.05)
        super().generate(command)


def serve(conn: Connection, stop: Any, log_file: str) -> None:
    """The child's main."""
    try:
        Slow(conn, stop, log_file).run()
    except (EOFError, BrokenPipeError):
        return
