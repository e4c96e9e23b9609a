"""Where a pair goes: everything on the GPU if it fits, and what is given up first when it does not.

1. Both models with all their layers on the GPU.
2. The target alone, with all its layers: the draft is dropped first, and the plan says so.
3. As many of the target's last layers as fit, the rest in RAM.
4. Not even that: an error with the numbers and a command to try. The context is never shrunk silently.

Explicit numbers of layers are obeyed; they get no safety margin, and an error when they cannot fit. So is a device that
is named for the draft: there it has to fit, and where the target is spread over that device too, it leaves room for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from localspec.errors import OutOfMemoryError
from localspec.memory.devices import Device, human
from localspec.memory.placed import ModelMemory, names, table
from localspec.memory.sizes import ModelSizes, Shape
from localspec.options import UNQUANTISED

if TYPE_CHECKING:
    from localspec.models.gguf import Header

__all__ = ["ModelMemory", "Plan", "plan"]

_MARGIN = 512 << 20
_SMALLEST_CTX = 2048


@dataclass(frozen=True, slots=True)
class Plan:
    """The decision and its numbers."""

    items: tuple[ModelMemory, ...]
    gpu_layers: int
    draft_gpu_layers: int
    keep_draft: bool
    devices: tuple[Device, ...]
    ram: Device
    notes: tuple[str, ...] = ()
    """Sentences for the person: what was given up, and what it costs to keep it."""
    tensor_split: tuple[float, ...] = ()
    """Shares of the target that each of `devices` takes; empty = as llama.cpp spreads it, by free memory."""

    def place(self, role: Literal["target", "draft"]) -> ModelMemory | None:
        """Where a model goes; None for a draft that there is not."""
        return next((item for item in self.items if item.role == role), None)

    @property
    def gpu_bytes(self) -> int:
        """Needed on the GPUs."""
        return sum(item.gpu for item in self.items)

    @property
    def ram_bytes(self) -> int:
        """Needed in RAM."""
        return sum(item.ram for item in self.items)

    def to_json(self) -> dict[str, Any]:
        """The object that `--json` prints; sizes in bytes, null = not known."""
        used = dict.fromkeys((*self.devices, *(device for item in self.items for device in item.devices)))
        memory = (*used, self.ram)
        return {
            "models": [item.to_json() for item in self.items],
            "gpu_layers": self.gpu_layers,
            "draft_gpu_layers": self.draft_gpu_layers,
            "keep_draft": self.keep_draft,
            "needed": {"gpu": self.gpu_bytes, "ram": self.ram_bytes},
            "devices": [
                {
                    "name": device.name,
                    "kind": device.kind,
                    "free": device.free if device.known else None,
                    "total": device.total if device.known else None,
                }
                for device in memory
            ],
            "notes": list(self.notes),
        }

    def table(self) -> list[str]:
        """Lines for the screen, weights, cache and buffers of each model apart."""
        return table(self.items, self.devices, self.ram)


@dataclass(frozen=True, slots=True)
class _Budget:
    """What may be used, in bytes; None = not known, so nothing is refused for its sake."""

    gpu: int | None
    """Of the GPUs that the target is spread over."""
    ram: int | None
    draft: int | None = None
    """Of the GPU that was named for the draft."""
    apart: bool = False
    """That one is none of the target's."""

    def holds(self, items: Sequence[ModelMemory]) -> bool:
        draft = sum(item.gpu for item in items if item.role == "draft")
        gpu = sum(item.gpu for item in items) - (draft if self.apart else 0)
        ram = sum(item.ram for item in items)
        return _fits(gpu, self.gpu) and _fits(draft, self.draft) and _fits(ram, self.ram)


def _fits(size: int, room: int | None) -> bool:
    return room is None or size <= room


class _Planner:
    """The pair, the machine and the wishes, for trying out placements."""

    def __init__(
        self,
        target: Header,
        draft: Header | None,
        devices: Sequence[Device],
        ram: Device,
        shape: Shape,
        *,
        draft_devices: Sequence[Device] | None = None,
        draft_kv_type: str = "",
    ) -> None:
        self.headers = {"target": target, "draft": draft}
        self.devices = _used_devices(devices)
        self.draft_devices = self.devices if draft_devices is None else tuple(draft_devices)
        self.named = self.draft_devices if draft_devices is not None else ()
        self.ram = ram
        self.shape = shape
        self.target = ModelSizes(target, shape)
        # A draft's context is as long as the target's. A state goes back to what it was before a second line of tokens.
        self.draft = (
            ModelSizes(
                draft,
                replace(
                    shape,
                    n_ctx=self.target.n_ctx,
                    kv_type=draft_kv_type or shape.kv_type,
                    n_rs_seq=0,
                    n_sequences=2 if draft.recurrent_layers else 1,
                    next_token_blocks=draft.kind == "draft-head",
                ),
            )
            if draft is not None
            else None
        )

    def budget(self, *, margin: bool) -> _Budget:
        gpu: int | None = 0
        for device in self.devices:
            gpu = None if gpu is None or not device.known else gpu + _usable(device, margin)
        draft = [_usable(device, margin) for device in self.named if device.known]
        return _Budget(
            gpu,
            _usable(self.ram, margin) if self.ram.known else None,
            draft[0] if draft else None,
            apart=any(device not in self.devices for device in self.named),
        )

    def place(self, role: Literal["target", "draft"], gpu_layers: int) -> ModelMemory:
        sizes = self.target if role == "target" else self.draft
        assert sizes is not None
        header = sizes.header
        devices = self.devices if role == "target" else self.draft_devices
        layers = min(gpu_layers, sizes.all_layers) if devices else 0
        return ModelMemory(
            role=role,
            name=header.name or header.path.name,
            weights=sizes.weights(layers),
            cache=sizes.cache(layers),
            compute=sizes.compute(layers, len(devices)),
            gpu_layers=layers,
            all_layers=sizes.all_layers,
            devices=devices if layers > 0 else (),
            copies=sizes.copies(self.ram.free) if self.ram.known else 0,
        )

    def most_layers(self, budget: _Budget) -> ModelMemory | None:
        """The target alone with as many layers on the GPU as fit, or None when nothing does."""
        for layers in range(self.target.all_layers if self.devices else 0, -1, -1):
            item = self.place("target", layers)
            if budget.holds([item]):
                return item
        return None


def plan(
    target: Header,
    draft: Header | None,
    *,
    devices: Sequence[Device],
    ram: Device,
    n_ctx: int,
    n_ubatch: int = 512,
    kv_type: str = "f16",
    gpu_layers: int = -1,
    draft_gpu_layers: int = -1,
    n_rs_seq: int = 0,
    n_outputs: int = 32,
    next_token_blocks: bool = False,
    draft_devices: Sequence[Device] | None = None,
    draft_kv_type: str = "",
) -> Plan:
    """Decide where weights, caches and buffers of a pair go.

    Args:
        target: Header of the target.
        draft: Header of the draft model, or None without one.
        devices: GPUs of this build with their free memory (`devices.gpus`); empty = run on the CPU.
        ram: `devices.system_memory()`.
        n_ctx: Cells of both caches; 0 = as the target was trained. Padded to 256 as llama.cpp does.
        n_ubatch: Tokens computed at once.
        kv_type: Cache type, a key of `sizes.KV_BLOCKS`.
        gpu_layers: Layers of the target on the GPU; -1 = all that fit.
        draft_gpu_layers: The same for the draft.
        n_rs_seq: Snapshots of a recurrent state; the state is kept 1 + n_rs_seq times.
        n_outputs: Rows of logits that one batch can give.
        next_token_blocks: The target's own next-token blocks are run as its drafter.
        draft_devices: The one GPU that was named for the draft, or none for the CPU alone. None = the target's.
        draft_kv_type: Cache type of the draft, or of the next-token blocks; empty = `kv_type`.

    Returns:
        The plan. `keep_draft` is False when the draft was dropped, and a note says so.

    Raises:
        OutOfMemoryError: Not even the target alone fits, or not the layers that were asked for.
        UsageError: Unknown cache type.
    """
    shape = Shape(n_ctx, n_ubatch, kv_type, n_rs_seq, n_outputs, next_token_blocks, draft_kv_type)
    planner = _Planner(
        target, draft, devices, ram, shape, draft_devices=draft_devices, draft_kv_type=draft_kv_type
    )
    all_target = planner.target.all_layers
    wanted = planner.place("target", gpu_layers if gpu_layers >= 0 else all_target)
    budget = planner.budget(margin=gpu_layers < 0)
    notes = _notes_before(planner, gpu_layers, draft_gpu_layers)

    if planner.draft is not None:
        both = [
            wanted,
            planner.place("draft", draft_gpu_layers if draft_gpu_layers >= 0 else planner.draft.all_layers),
        ]
        if budget.holds(both):
            return _finish(planner, both, notes)
        notes.append(_dropped(planner, both, budget))
    if budget.holds([wanted]):
        return _finish(planner, [wanted], notes)
    if gpu_layers < 0:
        fewer = planner.most_layers(budget)
        if fewer is not None:
            if planner.devices:
                notes.append(
                    f"{fewer.gpu_layers} of {fewer.all_layers} layers of the target fit on "
                    f"{names(planner.devices)}; the others run on the CPU, which is much slower."
                )
            return _finish(planner, [fewer], notes)
    raise _too_big(planner, wanted, budget, gpu_layers)


def _finish(planner: _Planner, items: Sequence[ModelMemory], notes: Sequence[str]) -> Plan:
    draft = items[1] if len(items) > 1 else None
    return Plan(
        items=tuple(items),
        gpu_layers=items[0].gpu_layers,
        draft_gpu_layers=draft.gpu_layers if draft else 0,
        keep_draft=draft is not None,
        devices=planner.devices,
        ram=planner.ram,
        notes=tuple(notes),
        tensor_split=_split(planner, draft),
    )


def _split(planner: _Planner, draft: ModelMemory | None) -> tuple[float, ...]:
    """The target is loaded first and spread by free memory: where the draft is to go it takes less."""
    devices = planner.devices
    taken = [draft.gpu if draft is not None and device in planner.named else 0 for device in devices]
    if len(devices) < 2 or not any(taken) or not all(device.known for device in devices):
        return ()
    return tuple(float(max(device.free - size, 1)) for device, size in zip(devices, taken, strict=True))


def _used_devices(devices: Sequence[Device]) -> tuple[Device, ...]:
    """llama.cpp uses an integrated GPU only where there is no other."""
    return tuple(d for d in devices if d.kind == "gpu") or tuple(d for d in devices if d.kind == "igpu")


def _usable(device: Device, margin: bool) -> int:
    """Free bytes less the smaller of 5 % and 512 MiB: drivers and estimates need room."""
    kept = min(device.total // 20, _MARGIN) if margin else 0
    return max(0, device.free - kept)


# ---------------------------------------------------------------------- talk


def _notes_before(planner: _Planner, gpu_layers: int, draft_gpu_layers: int) -> list[str]:
    notes = []
    if not planner.devices and max(gpu_layers, draft_gpu_layers) > 0:
        asked = gpu_layers if gpu_layers > 0 else draft_gpu_layers
        notes.append(
            f"{asked} layers were asked for on a GPU, and this build sees none: everything is on the CPU."
        )
    for device in dict.fromkeys((*planner.devices, *planner.named)):
        if not device.known:
            notes.append(f"The memory of {device.name} is not known, so nothing was checked against it.")
    for role, sizes in (("target", planner.target), ("draft", planner.draft)):
        if sizes is not None and sizes.windowed_kv_bytes < sizes.kv_bytes:
            notes.append(
                f"The {role} has sliding-window layers. Its cache takes {human(sizes.kv_bytes)} at full "
                "size, which taking tokens back needs; kept to the window it would be "
                f"{human(sizes.windowed_kv_bytes)}."
            )
    return notes


def _dropped(planner: _Planner, both: Sequence[ModelMemory], budget: _Budget) -> str:
    who, where, need, usable = "target and draft need", "RAM", sum(item.ram for item in both), budget.ram
    draft = both[1].gpu
    gpu = sum(item.gpu for item in both) - (draft if budget.apart else 0)
    if not _fits(draft, budget.draft):
        who, where, need, usable = "it needs", f"memory on {names(planner.named)}", draft, budget.draft
    elif not _fits(gpu, budget.gpu):
        where, need, usable = f"memory on {names(planner.devices)}", gpu, budget.gpu
    elsewhere = "--draft-device cpu, a" if where != "RAM" and draft else "A"
    return (
        f"The draft was dropped: {who} {human(need)} of {where}, and {human(usable)} "
        f"can be used. {elsewhere} shorter --ctx, --kv q8_0 or a smaller draft makes room."
    )


def _too_big(planner: _Planner, wanted: ModelMemory, budget: _Budget, gpu_layers: int) -> OutOfMemoryError:
    if gpu_layers > 0 and planner.devices:
        fewer = planner.most_layers(planner.budget(margin=True))
        if fewer is not None:
            return OutOfMemoryError(
                f"{wanted.gpu_layers} layers of {wanted.name} do not fit on {names(planner.devices)}.",
                why=_numbers(planner, wanted),
                hint=f"localspec run --gpu-layers {fewer.gpu_layers}",
            )
    smallest = planner.place("target", 0 if planner.devices else wanted.gpu_layers)
    return OutOfMemoryError(
        f"{wanted.name} does not fit into the free memory of this machine.",
        why=_numbers(planner, smallest),
        hint=_smaller(planner, budget),
    )


def _numbers(planner: _Planner, item: ModelMemory) -> str:
    lines = table([item], planner.devices, planner.ram)
    return "\n  ".join(["Needed and free:", *lines])


def _smaller(planner: _Planner, budget: _Budget) -> str:
    """The mildest change with which the target would fit, as a command."""
    lengths = [planner.target.n_ctx]
    while lengths[-1] > _SMALLEST_CTX:
        lengths.append(max(_SMALLEST_CTX, lengths[-1] // 2))
    header = planner.headers["target"]
    assert header is not None
    kv_types = [planner.shape.kv_type] + (["q8_0"] if planner.shape.kv_type in UNQUANTISED else [])
    for n_ctx in lengths:
        for kv_type in kv_types:
            shape = replace(planner.shape, n_ctx=n_ctx, kv_type=kv_type)
            if _Planner(header, None, planner.devices, planner.ram, shape).most_layers(budget) is not None:
                flags = (f" --ctx {n_ctx}" if n_ctx != lengths[0] else "") + (
                    f" --kv {kv_type}" if kv_type != planner.shape.kv_type else ""
                )
                return f"localspec run{flags}"
    return "localspec models"
