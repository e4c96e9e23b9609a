"""What memory there is: RAM, within the limits of a container, and the GPUs that the engine reports."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import psutil

from localspec.errors import UsageError
from localspec.memory.control_groups import OWN, ROOT, control_groups
from localspec.models.text import printable

Kind = Literal["gpu", "igpu", "cpu"]

_GIB, _MIB = 1 << 30, 1 << 20
_UNLIMITED = 1 << 60  # cgroup v1 writes a huge number where there is no limit


@dataclass(frozen=True, slots=True)
class Device:
    """Something that holds weights and caches. `free` and `total` are bytes; a total of 0 means not known."""

    name: str
    kind: Kind
    free: int
    total: int
    id: str = ""
    """The engine's own name, such as `CUDA1`; no two devices share it."""

    @property
    def known(self) -> bool:
        """Whether the memory sizes are known."""
        return self.total > 0


def human(size: int | None) -> str:
    """Bytes for people: `15.3 GiB`, `310 MiB`; `?` for None (not known)."""
    if size is None:
        return "?"
    if size >= _GIB:
        return f"{size / _GIB:.1f} GiB"
    return f"{size / _MIB:.0f} MiB" if size >= 10 * _MIB else f"{size / _MIB:.1f} MiB"


def system_memory(cgroup_root: Path = ROOT, proc: Path = OWN) -> Device:
    """RAM: what the machine has and can give, or what a container may still take when that is less."""
    try:
        memory = psutil.virtual_memory()
    except (OSError, RuntimeError, psutil.Error):
        return Device("RAM", "cpu", 0, 0)
    free, total = int(memory.available), int(memory.total)
    for limit, used in _cgroup_limits(cgroup_root, proc):
        total = min(total, limit)
        free = min(free, max(0, limit - used))
    return Device("RAM", "cpu", free, total)


def process_memory(pid: int | None = None) -> int:
    """Resident bytes of a process (default: this one); 0 when it cannot be read."""
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except (psutil.Error, OSError):
        return 0


def all_gpus(provider: Callable[[], Iterable[Any]]) -> tuple[Device, ...]:
    """The devices of kind `gpu` and `igpu` that `provider` reports, in its order: `gpu0`, `gpu1`, ...

    Args:
        provider: Gives objects with `name`, `description`, `kind`, `free` and `total`. One that fails means
            none: a look at the memory never ends a program.
    """
    try:
        return tuple(
            Device(
                str(item.description or item.name),
                item.kind,
                int(item.free),
                int(item.total),
                id=str(item.name),
            )
            for item in provider()
            if item.kind in ("gpu", "igpu")
        )
    except Exception:
        return ()


def gpus(provider: Callable[[], Iterable[Any]]) -> tuple[Device, ...]:
    """Those of kind `gpu`, or else `igpu`: what llama.cpp uses when it is told nothing. See `all_gpus`."""
    found = all_gpus(provider)
    return tuple(device for device in found if device.kind == "gpu") or found


def named(wanted: str, found: Sequence[Device]) -> Device | None:
    """The device that a person means.

    Args:
        wanted: `cpu`, a number, `gpu` and a number, or the engine's own name; case does not matter.
        found: `all_gpus`.

    Returns:
        The device, or None for the CPU.

    Raises:
        UsageError: There is none of that name; it lists those that are.
    """
    word = wanted.strip().lower()
    if word == "cpu":
        return None
    for number, device in enumerate(found):
        if word in (str(number), f"gpu{number}", device.id.lower()):
            return device
    listed = [f"gpu{number} ({device.id}, {device.name})" for number, device in enumerate(found)]
    raise UsageError(
        f"There is no device {printable(wanted)} for the draft.",
        why=f"There is: {', '.join(['cpu', *listed])}."
        + ("" if found else " This build of llama.cpp sees no GPU."),
        hint="localspec doctor",
    )


def label(devices: Sequence[Device], among: Sequence[Device] = ()) -> str:
    """Devices for people: `GeForce RTX 3090`, `2 x GeForce RTX 3090`; `CPU` for none.

    Args:
        devices: One or several.
        among: All that there are; one with a name that another has too is told with its id.
    """
    if not devices:
        return "CPU"
    names = [device.name for device in devices]
    if len(names) == 1 and sum(device.name == names[0] for device in among) > 1:
        return f"{names[0]} ({devices[0].id})"
    counted = ((name, names.count(name)) for name in dict.fromkeys(names))
    return " + ".join(name if count == 1 else f"{count} x {name}" for name, count in counted)


def _cgroup_limits(root: Path, proc: Path) -> list[tuple[int, int]]:
    """(limit, used) in bytes of this process's control group and of each group above it."""
    found = []
    for group, second in control_groups("memory", root, proc):
        names = (
            ("memory.max", "memory.current") if second else ("memory.limit_in_bytes", "memory.usage_in_bytes")
        )
        with contextlib.suppress(OSError, ValueError):
            limit, used = (int((group / name).read_text()) for name in names)  # "max" is no number: no limit
            if limit < _UNLIMITED:
                # Page cache that can be dropped counts as used there, yet it is free to whoever needs it.
                cache = _statistic(
                    group / "memory.stat", "inactive_file" if second else "total_inactive_file"
                )
                found.append((limit, max(0, used - cache)))
    return found


def _statistic(path: Path, key: str) -> int:
    with contextlib.suppress(OSError, ValueError):
        for line in path.read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == key:
                return int(value)
    return 0
