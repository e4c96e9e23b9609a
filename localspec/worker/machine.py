"""This machine's cores and memory, as far as the engine uses them."""

from __future__ import annotations

import os

import psutil

from localspec.llama import backend
from localspec.memory import devices
from localspec.worker.protocol import MemoryUse


def default_threads() -> int:
    """Threads for computing: the physical cores that this process may use, one of them left free from five on."""
    try:
        usable = len(os.sched_getaffinity(0))
    except AttributeError:  # macOS, Windows
        usable = os.cpu_count() or 1
    cores = min(psutil.cpu_count(logical=False) or usable, usable)
    return max(cores - 1 if cores > 4 else cores, 1)


def memory_use() -> MemoryUse:
    """Memory in use now: of the GPUs where there are any, else of this process."""
    found = devices.gpus(backend.gpus)
    if found:
        total = sum(device.total for device in found)
        return MemoryUse("VRAM", total - sum(device.free for device in found), total)
    return MemoryUse("RAM", devices.process_memory(), devices.system_memory().total)
