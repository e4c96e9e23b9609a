"""The log of the engine's process: its file, what goes into it, and its last complaint."""

from __future__ import annotations

import contextlib
import faulthandler
import io
import os
import re
import sys
import tempfile
import time
from pathlib import Path

from localspec import paths

KEEP = 20
"""Log files that stay; older ones are removed when a new one is made."""

_COMPLAINT = re.compile(
    r"error|fail|assert|abort|exception|out of memory|cannot|unable to|invalid", re.IGNORECASE
)
# Lines of Python's own crash report and of llama.cpp's backtrace say where, not what.
_NOISE = re.compile(
    r'^\s*(File "|Fatal Python error|Current thread|Thread 0x|Extension modules|Traceback|#\d+|\[New LWP)'
    r"|^.*failed to decode, ret = 2$"  # somebody stopped an evaluation
)


def new_log_file() -> Path:
    """Name a new log file of the engine, in the temporary folder when `paths.log_dir()` cannot be written."""
    name = time.strftime(f"engine-%Y%m%d-%H%M%S-{os.getpid()}.log")
    folder = paths.log_dir()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).touch(mode=0o600)
    except OSError:
        return Path(tempfile.gettempdir()) / name
    for old in sorted(folder.glob("engine-*.log"))[:-KEEP]:
        with contextlib.suppress(OSError):
            old.unlink()
    return folder / name


def size(log_file: Path) -> int:
    """Bytes that the file has now; 0 when it does not exist."""
    try:
        return log_file.stat().st_size
    except OSError:
        return 0


def redirect_output(log_file: str) -> None:
    """Send file descriptors 1 and 2 of this process to the log: native code cannot write to the terminal.

    Where the file cannot be opened the output goes nowhere. A native crash leaves Python's stack in the log.
    """
    try:
        target = os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    except OSError:
        target = os.open(os.devnull, os.O_WRONLY)
    for number in (1, 2):
        os.dup2(target, number)
    if target > 2:
        os.close(target)
    # The interpreter's own objects may be missing or belong to a closed console.
    sys.stdout, sys.stderr = _text(1), _text(2)
    faulthandler.enable(sys.stderr)


def _text(number: int) -> io.TextIOWrapper:
    raw = io.FileIO(number, "w", closefd=False)
    return io.TextIOWrapper(raw, "utf-8", "backslashreplace", line_buffering=True)


def last_error(log_file: Path, start: int = 0) -> str:
    """The last line after byte `start` that complains, as a sentence part; empty when there is none."""
    try:
        with log_file.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(start, end - 65536))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ""
    for line in reversed(text.splitlines()):
        if _COMPLAINT.search(line) and not _NOISE.match(line):
            said = line.strip()
            return f"It said: {said[:300]}{'' if said[-1] in '.!?' else '.'}"
    return ""
