"""This machine's cores and memory, as far as the engine uses them."""

from __future__ import annotations

from localspec.llama import backend
from localspec.memory import devices
from localspec.memory.cores import physical_cores
from localspec.worker.protocol import MemoryUse


def default_threads() -> int:
    """Threads for computing: the physical cores that this process may use, one of them left free from five on."""
    cores = physical_cores()
    return max(cores - 1 if cores > 4 else cores, 1)


def memory_use() -> MemoryUse:
    """Memory in use now: of the GPUs where there are any, else of this process."""
    found = devices.gpus(backend.gpus)
    if found:
        total = sum(device.total for device in found)
        return MemoryUse("VRAM", total - sum(device.free for device in found), total)
    return MemoryUse("RAM", devices.process_memory(), devices.system_memory().total)
