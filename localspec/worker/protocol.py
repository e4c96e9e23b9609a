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

FlashAttention = Literal["auto", "on", "off"]
SplitMode = Literal["layer", "row", "none"]
OverlapMode = Literal["auto", "on", "off"]

# ------------------------------------------------------------------ commands


@dataclass(frozen=True, slots=True)
class DraftSpec:
    """What drafts."""

    kind: Literal["none", "model", "lookup", "mtp", "custom"] = "none"
    path: str = ""
    """The GGUF file of a `model` drafter; of `mtp` the sidecar, or empty where the target carries the block."""
    code: str = ""
    """With kind `custom`: `package.module:Class`."""
    folder: str = ""
    """With kind `custom`: where its module is looked for first."""
    gpu_layers: int = -1
    force: bool = False
    """Pair even when the vocabularies differ."""
    off_reason: str = ""
    """With kind `none`: why there is no draft though one was asked for (shown as `draft: off (...)`)."""
    device: str = "auto"
    """Where the draft model lives: `auto` as llama.cpp chooses, `cpu`, or a GPU (see `memory.devices.named`)."""
    threads: int = 0
    """CPU threads of the draft; 0 = as many as the target's."""
    kv_type: str = ""
    """Cache type of the draft; empty = the target's."""
    overlap: OverlapMode = "auto"
    """Whether a draft model drafts on while the target verifies; `auto` where that was measured to pay."""


@dataclass(frozen=True, slots=True)
class Load:
    """Load a target and its drafter, in place of what is loaded."""

    target: str
    draft: DraftSpec = field(default_factory=DraftSpec)
    n_draft: int = 4
    """Tokens drafted a round, or with `auto` the most."""
    auto: bool = False
    """Choose each round's draft length by price, and chain a model with lookup."""
    n_ctx: int = 8192
    """0 = what the model was trained for. Never more than that."""
    n_batch: int = 512
    """Prompt tokens in one evaluation."""
    n_ubatch: int = 0
    """Tokens computed at once, at most `n_batch`; 0 = `n_batch`."""
    gpu_layers: int = -1
    """-1 = all that fit."""
    kv_type: str = "f16"
    flash_attn: FlashAttention = "auto"
    split_mode: SplitMode = "layer"
    threads: int = 0
    """0 = chosen by the number of cores."""
    template_file: str = ""
    """A Jinja chat template in place of the file's own."""
    lookup_files: tuple[str, ...] = ()
    """Texts that lookup searches beside the conversation, where lookup is in play."""

    @property
    def at_once(self) -> int:
        """Tokens computed at once."""
        return min(self.n_ubatch or self.n_batch, self.n_batch)

    @property
    def draft_kv_type(self) -> str:
        """Type of the draft's cache."""
        return self.draft.kv_type or self.kv_type


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
    now: float = 0.0
    """The time that a template is told, in seconds since 1970; 0 = that of the answer. One that moves on changes the
    beginning of the conversation, which no cache then holds."""


@dataclass(frozen=True, slots=True)
class Configure:
    """Change drafting now, in the middle of an answer too. None leaves a value as it is."""

    draft_on: bool | None = None
    n_draft: int | None = None
    auto: bool | None = None
    """What `n_draft` means from now on, see `Load`."""


@dataclass(frozen=True, slots=True)
class Clear:
    """Forget both caches."""


@dataclass(frozen=True, slots=True)
class Shutdown:
    """End the process."""


@dataclass(frozen=True, slots=True)
class MeasureCosts:
    """Time what a round is made of. The answer is `Costs`."""

    sizes: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 8, 9, 12, 16, 17)
    """Batches of the target to time; 1 is always among them, what the context cannot verify is left out."""
    depth: int = 0
    """Tokens in both caches meanwhile; 0 = as they are now. Another number leaves them empty."""
    seconds: float = 6.0
    """About how long it may take; `passes` passes are made whatever it says."""
    passes: int = 3


@dataclass(frozen=True, slots=True)
class Peek:
    """Choose one token of an answer again, evaluated alone and at the end of a batch. The answer is `Peeked`.

    Both caches are empty afterwards.
    """

    question: Generate
    answer: tuple[int, ...]
    """The answer's ids before that token."""
    candidates: tuple[int, ...]
    """Ids whose logits are wanted."""
    width: int
    """Tokens in the batch."""


Command = Load | Generate | Configure | Clear | Shutdown | MeasureCosts | Peek

# -------------------------------------------------------------------- events


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """Loading: `stage` is `target`, `draft`, `lookup` (reading files for it) or `warmup`.

    `fraction` runs from 0 to 1 in each.
    """

    stage: Literal["target", "draft", "lookup", "warmup"]
    fraction: float
    name: str = ""

    @property
    def doing(self) -> str:
        """The stage in words."""
        others = {"lookup": "Reading for lookup", "warmup": "Warming up"}
        return others.get(self.stage, f"Loading the {self.stage}")


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
    """Bytes: `weights`, `cache`, `compute` where known, and what `copies` of a recurrent state may take at most."""
    threads: int = 0
    """CPU threads that compute it, where the CPU does."""


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
class Notice:
    """Sentences about an answer that the person should see (a system message that the template refused, ...)."""

    sentences: tuple[str, ...]


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


@dataclass(frozen=True, slots=True)
class Costs:
    """What a round is made of, in seconds; medians."""

    depth: int
    """Tokens in the target's cache while it was measured."""
    plain_s: float
    """The target evaluates one token."""
    verify: dict[int, float]
    """The target evaluates a batch of n tokens, with logits of all."""
    draft_step_s: float | None
    """The drafter proposes one token, our own choosing included; None without a drafter."""


@dataclass(frozen=True, slots=True)
class Choosing:
    """The target's choice of one token, and how near the second best was."""

    token: int
    margin: float
    """Best minus second best score as they were compared: logits at temperature 0, else with the noise."""
    logits: dict[int, float]
    """Of the candidates asked for."""


@dataclass(frozen=True, slots=True)
class Peeked:
    """The same choice in two batches; between them only rounding differs."""

    alone: Choosing
    batched: Choosing
    width: int
    """Tokens in the batch of `batched`."""
    texts: dict[int, str]
    """Of the candidates."""


Event = (
    LoadProgress
    | MemoryUse
    | Ready
    | Notice
    | DraftChanged
    | Cleared
    | Failed
    | PromptProgress
    | Round
    | Finished
    | Costs
    | Peeked
)
