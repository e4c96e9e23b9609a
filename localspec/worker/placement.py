"""Where target and draft go on this machine, as the person wants it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from localspec.llama.model import Model
from localspec.memory import devices
from localspec.memory.devices import Device
from localspec.memory.plan import ModelMemory
from localspec.models.gguf import Header
from localspec.worker.protocol import Load, ModelInfo

_FEW_SPLITS = 8  # some models have operations that belong to the CPU


@dataclass(frozen=True, slots=True)
class Placement:
    """The devices of a pair."""

    found: tuple[Device, ...]
    """All that this build can put layers on."""
    target: tuple[Device, ...]
    """Those that the target is spread over."""
    draft: tuple[Device, ...] | None = None
    """The one that was named for the draft, or none for the CPU alone. None = the target's."""

    @property
    def draft_stays_on_cpu(self) -> bool:
        """No GPU may take part in the draft, not even for long prompts."""
        return self.draft == ()

    def describe(
        self, model: Model, header: Header, item: ModelMemory | None, *, kv_type: str, threads: int
    ) -> ModelInfo:
        """A loaded model and where it is.

        Args:
            model: The model.
            header: Of its file.
            item: Its part of the memory plan.
            kv_type: Of its cache.
            threads: Of its context.
        """
        placed = item.devices if item is not None else ()
        memory = (
            {} if item is None else {"weights": item.weights, "cache": item.cache, "compute": item.compute}
        )
        return ModelInfo(
            path=str(header.path),
            name=header.name or header.path.name,
            architecture=header.architecture,
            quant=header.quant,
            n_params=model.n_params,
            n_vocab=model.vocab.n_tokens,
            n_ctx_train=model.n_ctx_train,
            n_layer=model.n_layer,
            gpu_layers=min(item.gpu_layers, model.n_layer + 1) if item is not None and placed else 0,
            device=devices.label(placed, self.found),
            kv_type=kv_type,
            memory={part: sum(sizes) for part, sizes in memory.items()}
            | ({"copies": item.copies} if item is not None and item.copies else {}),
            threads=threads,
        )


def place(command: Load, provider: Callable[[], Iterable[Any]] | None, *, draft_model: bool) -> Placement:
    """The devices for what is to be loaded.

    Args:
        command: With the person's wishes.
        provider: `backend.gpus`; None where the build has no use for a GPU.
        draft_model: The draft is a file of its own; anything else goes nowhere by itself.

    Raises:
        UsageError: The device that was named for the draft is not there.
    """
    found = devices.all_gpus(provider) if provider is not None else ()
    usable = tuple(device for device in found if device.kind == "gpu") or found
    target = usable[:1] if command.split_mode == "none" else usable
    if not draft_model or command.draft.device == "auto":
        return Placement(found, target)
    named = devices.named(command.draft.device, found)
    return Placement(found, target, () if named is None else (named,))


def idle_gpu(made_for: Sequence[str], log: Sequence[str]) -> str:
    """Why a GPU that is in the machine cannot be used.

    Args:
        made_for: `backend.gpu_backends`.
        log: What llama.cpp said.
    """
    if not made_for:
        return (
            "this llama-cpp-python is built for the CPU only. `localspec doctor` tells how to get one for it."
        )
    said = next((line for line in log if "failed to initialize" in line), "")
    reason = f" It said: {said}." if said else " A missing or old driver is the usual reason."
    return f"llama.cpp is built for {' and '.join(made_for)} and finds no device.{reason} See `localspec doctor`."


def computed_elsewhere(item: ModelMemory | None, splits: int, kv_type: str) -> list[str]:
    """A sentence where the CPU computes parts of a model that is on GPUs with all its layers.

    llama.cpp does so without a word where a GPU lacks an operation, and it costs most of the speed.

    Args:
        item: The model's part of the memory plan.
        splits: See `NativeLog.splits`.
        kv_type: Of its cache.
    """
    if item is None or not item.devices or item.gpu_layers < item.all_layers:
        return []
    if splits <= _FEW_SPLITS + 2 * len(item.devices):
        return []
    return [
        f"{item.name} is slowed down: all its layers are on {devices.label(item.devices)}, which cannot compute parts "
        f"of them, so the CPU does ({splits} changes between the two for a token). "
        + (
            f"A {kv_type} cache is the likely reason: try --kv q8_0 or --kv f16."
            if kv_type not in ("f16", "q8_0")
            else "Try --flash-attn off."
        )
    ]


def unused(command: Load) -> list[str]:
    """Sentences about wishes for the draft that mean nothing to this drafter."""
    spec = command.draft
    where = [
        flag
        for flag, given in (
            ("--draft-device", spec.device != "auto"),
            ("--draft-gpu-layers", spec.gpu_layers >= 0),
        )
        if given
    ]
    how = [flag for flag, given in (("--draft-threads", spec.threads), ("--draft-kv", spec.kv_type)) if given]
    if spec.kind == "mtp" and not spec.path and where:
        return [
            f"{_list(where)} nothing: the next-token block is a part of the target and runs where that does."
        ]
    if spec.kind == "lookup" and where + how:
        return [f"{_list(where + how)} nothing: lookup drafts without a model."]
    if spec.kind == "custom" and where + how:
        return [f"{_list(where + how)} nothing: a drafter of your own decides that itself."]
    return []


def _list(flags: list[str]) -> str:
    return f"{', '.join(flags[:-1])} and {flags[-1]} change" if len(flags) > 1 else f"{flags[0]} changes"
