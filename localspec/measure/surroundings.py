"""What else uses this machine while something is measured."""

from __future__ import annotations

import contextlib
import csv
import io
import os
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import psutil

BUSY_SHARE = 0.15
"""Other programs' share of the CPU from which a measurement is called disturbed."""
_BUSY_GPU = 10  # percent
_QUERY_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Program:
    """Another program. `share` is of all cores; `gpu_bytes` is what it holds on a GPU."""

    pid: int
    name: str
    share: float = 0.0
    gpu_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Surroundings:
    """A look at the machine while we do nothing."""

    cpu_share: float
    """Of all cores, in use by anybody."""
    programs: tuple[Program, ...]
    """The busiest ones."""
    gpu_percent: int | None
    """Utilisation of the busiest GPU; None = not known."""
    gpu_programs: tuple[Program, ...]
    """Programs that hold memory on a GPU."""

    @property
    def busy(self) -> bool:
        """Whether a measurement now would be disturbed."""
        return self.cpu_share > BUSY_SHARE or (self.gpu_percent or 0) > _BUSY_GPU

    @property
    def sentence(self) -> str:
        """What is busy, for the person; empty when nothing is."""
        parts = []
        if self.cpu_share > BUSY_SHARE:
            names = ", ".join(f"{one.name} ({one.pid})" for one in self.programs[:3])
            parts.append(f"the CPU is {self.cpu_share:.0%} busy" + (f" with {names}" if names else ""))
        if (self.gpu_percent or 0) > _BUSY_GPU:
            names = ", ".join(f"{one.name} ({one.pid})" for one in self.gpu_programs[:3])
            parts.append(f"the GPU is {self.gpu_percent} % busy" + (f" with {names}" if names else ""))
        return " and ".join(parts)

    def to_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "cpu_share": self.cpu_share,
            "programs": [{"pid": p.pid, "name": p.name, "share": p.share} for p in self.programs],
            "gpu_percent": self.gpu_percent,
            "gpu_programs": [{"pid": p.pid, "name": p.name, "bytes": p.gpu_bytes} for p in self.gpu_programs],
            "busy": self.busy,
        }


def look(seconds: float = 0.5, run: Callable[[Sequence[str]], str] | None = None) -> Surroundings:
    """Watch the machine for a moment. Call it while we compute nothing. Never raises.

    Args:
        seconds: How long.
        run: Runs a command and gives its output, empty when there is no such command.
    """
    run = run or _output
    before = _process_times()
    total = _busy_seconds()
    began = time.monotonic()
    time.sleep(seconds)
    wall = max(time.monotonic() - began, 1e-3) * (psutil.cpu_count() or 1)
    used = (_busy_seconds() - total) / wall
    after = _process_times()
    programs = [
        Program(pid, name, (spent - before[pid][1]) / wall)
        for pid, (name, spent) in after.items()
        if pid in before and pid != os.getpid()
    ]
    programs = sorted((one for one in programs if one.share > 0.02), key=lambda one: -one.share)[:5]
    percent, holders = _nvidia(run)
    return Surroundings(min(max(used, 0.0), 1.0), tuple(programs), percent, holders)


class Watch:
    """How much of the CPU other programs took between two moments.

    Args:
        own: Process ids whose time is ours.
    """

    def __init__(self, own: Sequence[int]) -> None:
        self._own = tuple(own)
        self._began = time.monotonic()
        self._busy = _busy_seconds()
        self._ours = self._own_seconds()

    def others(self) -> float:
        """The others' share of all cores since the watch was started, 0 to 1."""
        wall = max(time.monotonic() - self._began, 1e-3) * (psutil.cpu_count() or 1)
        spent = _busy_seconds() - self._busy - (self._own_seconds() - self._ours)
        return min(max(spent / wall, 0.0), 1.0)

    def _own_seconds(self) -> float:
        total = 0.0
        for pid in self._own:
            with contextlib.suppress(psutil.Error, OSError):
                times = psutil.Process(pid).cpu_times()
                total += times.user + times.system
        return total


def _busy_seconds() -> float:
    """CPU seconds in use since the start of the machine, of all cores together."""
    with contextlib.suppress(psutil.Error, OSError, RuntimeError):
        times = psutil.cpu_times()
        idle = times.idle + getattr(times, "iowait", 0.0)
        guests = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)  # counted as user already
        return float(sum(times) - idle - guests)
    return 0.0


def _process_times() -> dict[int, tuple[str, float]]:
    found = {}
    with contextlib.suppress(psutil.Error, OSError):
        for process in psutil.process_iter(["name", "cpu_times"]):
            times = process.info["cpu_times"]
            if times is not None:
                found[process.pid] = (str(process.info["name"] or "?"), float(times.user + times.system))
    return found


def _nvidia(run: Callable[[Sequence[str]], str]) -> tuple[int | None, tuple[Program, ...]]:
    """Utilisation of the busiest NVIDIA GPU, and who holds memory there."""
    loads = [
        int(row[0])
        for row in _rows(run(["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"]))
        if row[0].isdigit()
    ]
    if not loads:
        return None, ()
    apps = run(
        ["nvidia-smi", "--query-compute-apps=pid,process_name,used_memory", "--format=csv,noheader,nounits"]
    )
    holders = [
        Program(
            int(row[0]),
            row[1].replace("\\", "/").rpartition("/")[2] or "?",
            gpu_bytes=int(row[2]) << 20 if row[2].isdigit() else 0,
        )
        for row in _rows(apps)
        if len(row) == 3 and row[0].isdigit() and int(row[0]) != os.getpid()
    ]
    return max(loads), tuple(sorted(holders, key=lambda one: -one.gpu_bytes))


def _rows(text: str) -> list[list[str]]:
    return [
        [cell.strip() for cell in row] for row in csv.reader(io.StringIO(text), skipinitialspace=True) if row
    ]


def _output(command: Sequence[str]) -> str:
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_QUERY_SECONDS, check=True
        )
        return done.stdout
    return ""
