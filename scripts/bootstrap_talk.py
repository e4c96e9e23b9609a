"""What the set-up says while it works: plain lines, a progress line, and a reader of pip's output."""

from __future__ import annotations

import contextlib
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable


class Stop(Exception):  # noqa: N818 - it is a way to end, not a fault
    """A sentence for the person; the set-up ends."""


def clock(seconds: float) -> str:
    """`3:07`."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def say(text: str) -> None:
    """One line on stderr."""
    print(text, file=sys.stderr, flush=True)


class Progress:
    """A line that moves on a terminal; a line every 30 seconds elsewhere."""

    def __init__(self) -> None:
        self.moving = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self.started = time.monotonic()
        self.last = self.started

    def show(self, text: str) -> None:
        """Show what is being done, with the time it has taken so far."""
        now = time.monotonic()
        if self.moving:
            width = shutil.get_terminal_size().columns - 1
            sys.stderr.write("\r\x1b[K" + f"  {text}  {clock(now - self.started)}"[:width])
            sys.stderr.flush()
        elif now - self.last >= 30:
            self.last = now
            say(f"  {text}  {clock(now - self.started)}")

    def clear(self) -> None:
        """Take the moving line away."""
        if self.moving:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


class PipReader:
    """What pip is doing, in a few words, read from its output line by line."""

    _ninja = re.compile(r"^\s*\[\s*(\d+)/(\d+)\]")
    _make = re.compile(r"^\s*\[\s*(\d+)%\]")
    _words = (
        (re.compile(r"^\s*(?:Downloading|Obtaining) (\S+.*)"), "downloading {}"),
        (re.compile(r"^\s*Collecting (\S+)"), "looking up {}"),
        (re.compile(r"^\s*Installing build dependencies"), "installing build tools"),
        (re.compile(r"^\s*Building wheel for (\S+)"), "building {}"),
        (re.compile(r"^\s*Building editable for (\S+)"), "building {}"),
        (re.compile(r"^\s*Installing collected packages"), "installing packages"),
    )

    def __init__(self) -> None:
        self.text = "starting pip"
        self.fraction = 0.0
        self.began = 0.0

    def read(self, line: str) -> None:
        """Take in one line."""
        ninja, make = self._ninja.match(line), self._make.match(line)
        if ninja and int(ninja[2]) > 0:
            self._compiling(int(ninja[1]) / int(ninja[2]))
        elif make:
            self._compiling(int(make[1]) / 100)
        else:
            for pattern, words in self._words:
                found = pattern.match(line)
                if found:
                    self.text = words.format(*found.groups())
                    break

    def _compiling(self, fraction: float) -> None:
        now = time.monotonic()
        self.began = self.began or now
        self.fraction = min(fraction, 1.0)
        self.text = f"compiling llama.cpp: {self.fraction:.0%}"
        spent = now - self.began
        if self.fraction >= 1:
            self.text = "packing llama.cpp"
        elif self.fraction > 0.05 and spent > 5:
            minutes = spent * (1 - self.fraction) / self.fraction / 60
            self.text += f", about {max(1, round(minutes))} min left,"


def stream(
    command: list[str], env: dict[str, str], on_line: Callable[[str], None], on_tick: Callable[[], None]
) -> int:
    """Run a command, hand over its output line by line, tick twice a second, and return its exit code."""
    lines: queue.Queue[str | None] = queue.Queue()
    with subprocess.Popen(
        command,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,  # so that pip's compilers can be ended with it
    ) as process:

        def pump() -> None:
            assert process.stdout is not None
            for line in process.stdout:
                lines.put(line)
            lines.put(None)

        threading.Thread(target=pump, daemon=True).start()
        try:
            while True:
                try:
                    line = lines.get(timeout=0.5)
                except queue.Empty:
                    on_tick()
                    continue
                if line is None:
                    return process.wait()
                on_line(line)
                on_tick()
        except BaseException:
            _end_group(process)
            raise


def _end_group(process: subprocess.Popen[str]) -> None:
    """End a process and all that it started; it gets five seconds to remove its temporary files."""
    with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
        os.killpg(process.pid, signal.SIGINT)
        process.wait(5)
    with contextlib.suppress(
        ProcessLookupError, PermissionError
    ):  # what is left of it; macOS says the latter
        os.killpg(process.pid, signal.SIGKILL)
