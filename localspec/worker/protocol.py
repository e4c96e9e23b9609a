"""What passes through the pipe between the interface and the engine's process.

Commands go down, events come up; all are frozen dataclasses of plain data, so that neither side imports the other.
One answer: `Generate` down; any number of `PromptProgress`, `Round` and `MemoryUse` up; then exactly one of
`Finished` or `Failed`. Stopping does not travel through the pipe: it is a number in shared memory.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from localspec.errors import LocalspecError
from localspec.spec.events import DraftStatus, Finished, PromptProgress, Round, Sampling

# ------------------------------------------------------------------ commands


@dataclass(frozen=True, slots=True)
class DraftSpec:
    """What drafts."""

    kind: Literal["none", "model", "lookup"] = "none"
    path: str = ""
    """The GGUF file of a `model` drafter."""
    gpu_layers: int = -1
    force: bool = False
    """Pair even when the vocabularies differ."""
    off_reason: str = ""
    """With kind `none`: why there is no draft though one was asked for (shown as `draft: off (...)`)."""


@dataclass(frozen=True, slots=True)
class Load:
    """Load a target and its drafter, in place of what is loaded."""

    target: str
    draft: DraftSpec = field(default_factory=DraftSpec)
    n_draft: int = 4
    n_ctx: int = 8192
    """0 = what the model was trained for. Never more than that."""
    n_batch: int = 512
    gpu_layers: int = -1
    """-1 = all that fit."""
    kv_type: str = "f16"
    threads: int = 0
    """0 = chosen by the number of cores."""
    template_file: str = ""
    """A Jinja chat template in place of the file's own."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation."""

    role: Literal["system", "user", "assistant"]
    content: str
    token_ids: tuple[int, ...] = ()
    """An answer's own ids, so that the next turn finds them in the caches again."""
    thinking: str = ""


@dataclass(frozen=True, slots=True)
class Generate:
    """Answer the conversation. `raw_prompt` replaces messages and template when it is set."""

    request: int
    messages: tuple[Message, ...] = ()
    raw_prompt: str | None = None
    sampling: Sampling = field(default_factory=Sampling)
    max_tokens: int = 0
    """0 = until the model stops or the context is full."""
    stop: tuple[str, ...] = ()
    think: bool | None = None
    """`enable_thinking` for templates that know it; None leaves it to the template."""
    ignore_eos: bool = False
    """Go on after the end-of-generation token (measurements)."""


@dataclass(frozen=True, slots=True)
class Configure:
    """Change drafting now, in the middle of an answer too. None leaves a value as it is."""

    draft_on: bool | None = None
    n_draft: int | None = None


@dataclass(frozen=True, slots=True)
class Clear:
    """Forget both caches."""


@dataclass(frozen=True, slots=True)
class Shutdown:
    """End the process."""


Command = Load | Generate | Configure | Clear | Shutdown

# -------------------------------------------------------------------- events


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """Loading: `stage` is `target`, `draft` or `warmup`; `fraction` runs from 0 to 1 in each."""

    stage: Literal["target", "draft", "warmup"]
    fraction: float
    name: str = ""


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Memory in bytes. `label` is `VRAM` (device totals) or `RAM` (this process of the machine's total)."""

    label: Literal["VRAM", "RAM"]
    used: int
    total: int
    """0 = not known."""


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A loaded model."""

    path: str
    name: str
    """`general.name`, or the file's name."""
    architecture: str
    quant: str
    n_params: int
    n_vocab: int
    n_ctx_train: int
    n_layer: int
    gpu_layers: int
    """Layers on a GPU, of n_layer + 1."""
    device: str
    """`CPU`, or the GPU's name."""
    kv_type: str
    memory: dict[str, int]
    """Bytes: `weights`, `cache`, `compute` where known."""


@dataclass(frozen=True, slots=True)
class Ready:
    """Loaded. `notes` are sentences that the person should see once (CPU-only build, fewer layers, ...)."""

    target: ModelInfo
    draft_model: ModelInfo | None
    draft: DraftStatus
    context_size: int
    threads: int
    memory: MemoryUse
    knows_thinking: bool
    """The template knows `enable_thinking`."""
    thinking_tags: tuple[str, str] | None
    versions: dict[str, str]
    """`llama-cpp-python`, `llama.cpp`, `localspec`."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DraftChanged:
    """The answer to `Configure`."""

    draft: DraftStatus


@dataclass(frozen=True, slots=True)
class Cleared:
    """The answer to `Clear`."""


@dataclass(frozen=True, slots=True)
class Failed:
    """A command failed; the worker lives on. `error` is ready to show."""

    error: LocalspecError
    log_file: str = ""


Event = (
    LoadProgress
    | MemoryUse
    | Ready
    | DraftChanged
    | Cleared
    | Failed
    | PromptProgress
    | Round
    | Finished
)


