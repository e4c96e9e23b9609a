"""How many cores this process may use: hyperthreads, affinity and a container's share counted."""

from __future__ import annotations

import contextlib
import math
import os
from pathlib import Path

import psutil

from localspec.memory.control_groups import OWN, ROOT, control_groups


def logical_cores(root: Path = ROOT, own: Path = OWN) -> int:
    """Threads that can run at once: those of the machine, less where affinity or a container allows fewer.

    A container's share of the CPU (`docker --cpus 2`) leaves every core visible; more threads than it would wait for
    each other most of the time.
    """
    try:
        count = len(os.sched_getaffinity(0))
    except AttributeError:  # macOS, Windows
        count = os.cpu_count() or 1
    return max(min([count, *_shares(root, own)]), 1)


def physical_cores(root: Path = ROOT, own: Path = OWN) -> int:
    """The same without hyperthreads, as far as the system tells them apart."""
    usable = logical_cores(root, own)
    return min(psutil.cpu_count(logical=False) or usable, usable)


def _shares(root: Path, own: Path) -> list[int]:
    """Cores that the control groups grant, rounded up."""
    found = []
    for group, second in control_groups("cpu", root, own):
        with contextlib.suppress(OSError, ValueError):
            if second:
                quota, period = (group / "cpu.max").read_text().split()
            else:
                quota, period = ((group / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
            if int(quota) > 0 and int(period) > 0:  # "max" is no number and -1 no quota: no limit
                found.append(math.ceil(int(quota) / int(period)))
    return found
