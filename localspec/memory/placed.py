"""Where a model lies, in bytes, and the lines that tell it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from localspec.memory.devices import Device, human


@dataclass(frozen=True, slots=True)
class ModelMemory:
    """What one model takes, in bytes, each as (on the GPU, in RAM)."""

    role: Literal["target", "draft"]
    name: str
    weights: tuple[int, int]
    cache: tuple[int, int]
    compute: tuple[int, int]
    gpu_layers: int
    all_layers: int
    devices: tuple[Device, ...] = ()
    """The GPUs that hold a part of it; empty = all of it is in RAM."""
    copies: int = 0
    """Bytes of RAM that copies of a recurrent state may take beyond this. They are made later, of what is free then,
    and nothing is given up for them."""

    @property
    def gpu(self) -> int:
        """Bytes on the GPU."""
        return self.weights[0] + self.cache[0] + self.compute[0]

    @property
    def ram(self) -> int:
        """Bytes in RAM."""
        return self.weights[1] + self.cache[1] + self.compute[1]

    def to_json(self) -> dict[str, Any]:
        """The object that `--json` prints."""
        parts = {"weights": self.weights, "cache": self.cache, "compute": self.compute}
        return {
            "role": self.role,
            "name": self.name,
            **{name: {"gpu": gpu, "ram": ram} for name, (gpu, ram) in parts.items()},
            "copies": self.copies,
            "gpu_layers": self.gpu_layers,
            "all_layers": self.all_layers,
            "devices": [device.name for device in self.devices],
        }


def names(devices: Sequence[Device]) -> str:
    """The devices by name."""
    return " + ".join(device.name for device in devices)


def table(items: Sequence[ModelMemory], devices: Sequence[Device], ram: Device) -> list[str]:
    """Weights, cache and buffers of each model apart, then what is free; one line each."""
    lines = [f"{'':8}{'weights':>10}{'cache':>10}{'buffers':>10}{'total':>10}  where"]
    for item in items:
        for place, index in (("GPU", 0), ("RAM", 1)):
            parts = [item.weights[index], item.cache[index], item.compute[index]]
            if not any(parts):
                continue
            numbers = "".join(f"{human(number):>10}" for number in (*parts, sum(parts)))
            layers = f", {item.gpu_layers} of {item.all_layers} layers" if place == "GPU" else ""
            # A device that was named for the draft is told by its name.
            where = names(item.devices) if place == "GPU" and item.devices != tuple(devices) else place
            lines.append(f"{item.role:8}{numbers}  {where}{layers}")
        if item.copies:
            lines.append(f"{item.role:8}{human(item.copies):>40}  RAM at most, for copies of its state")
    used = dict.fromkeys((*devices, *(device for item in items for device in item.devices)))
    for device in (*used, ram):
        free = human(device.free) if device.known else "?"
        total = human(device.total) if device.known else "?"
        lines.append(f"{'free':8}{free:>10} of {total}  {device.name}")
    return lines
