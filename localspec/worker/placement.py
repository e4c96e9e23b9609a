"""Where target and draft go on this machine, as the person wants it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from localspec.llama.model import Model
from localspec.memory import devices
from localspec.memory.devices import Device
from localspec.memory.plan import ModelMemory
from localspec.models.gguf import Header
from localspec.worker.protocol import Load, ModelInfo


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
            memory={part: sum(sizes) for part, sizes in memory.items()},
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
