"""The models, contexts and drafters of one pair: opened, held and closed. Runs in the engine's process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from localspec.errors import LoadError
from localspec.llama.context import Context
from localspec.llama.failures import flash_attention
from localspec.llama.log import NativeLog
from localspec.llama.model import Model
from localspec.llama.mtp import NextTokenBlock
from localspec.memory.devices import system_memory
from localspec.memory.sizes import KV_BLOCKS, copies_budget
from localspec.models.gguf import Header
from localspec.spec.draft_chain import ChainDrafter
from localspec.spec.draft_model import ModelDrafter
from localspec.spec.draft_mtp import MtpDrafter
from localspec.spec.drafter import Drafter
from localspec.worker.placement import Placement
from localspec.worker.prices import SHADOW_ROWS
from localspec.worker.protocol import Event, FlashAttention, Load, LoadProgress
from localspec.worker.sources import Sources


class Opened:
    """What one pair holds open.

    Args:
        command: What to load.
        placement: Where it goes.
        sources: Makes the drafters without a model.
        threads: For the target and for the draft.
        log: llama.cpp's log.
        send: Receives `LoadProgress`.
        cancelled: Whether the request in hand was cancelled, now and later.

    Attributes:
        models: In the order in which they were opened: the target, then the draft.
        contexts: In the same order.
        drafters: Those that hold memory of their own.
    """

    def __init__(
        self,
        command: Load,
        placement: Placement,
        sources: Sources,
        threads: tuple[int, int],
        *,
        log: NativeLog,
        send: Callable[[Event], None],
        cancelled: Callable[[], bool],
    ) -> None:
        self.models: list[Model] = []
        self.contexts: list[Context] = []
        self.drafters: list[Drafter] = []
        self._command = command
        self._placement = placement
        self._sources = sources
        self._threads, self._draft_threads = threads
        self._log = log
        self._send = send
        self._cancelled = cancelled

    def model(
        self,
        header: Header,
        gpu_layers: int,
        stage: Literal["target", "draft"],
        *,
        next_token_blocks: bool = False,
        devices: Sequence[str] | None = None,
        tensor_split: Sequence[float] = (),
    ) -> Model:
        """Open a model.

        Args:
            header: Of its file.
            gpu_layers: How many layers go to GPUs.
            stage: What the progress is called.
            next_token_blocks: Read these too.
            devices: Ids of those to use; None leaves it to llama.cpp.
            tensor_split: The share of each of them.

        Raises:
            LoadError: It cannot be opened, or was stopped.
        """
        shown = -1.0

        def progress(fraction: float) -> bool:
            nonlocal shown
            if fraction >= 1.0 or fraction - shown >= 0.01:
                shown = fraction
                self._send(LoadProgress(stage, fraction, header.path.name))
            return not self._cancelled()

        model = Model(
            header.path,
            gpu_layers=gpu_layers,
            next_token_blocks=next_token_blocks,
            split_mode=self._command.split_mode,
            devices=devices,
            tensor_split=tensor_split,
            log=self._log,
            progress=progress,
        )
        self.models.append(model)
        if self._cancelled():
            raise LoadError(f"Loading {header.path.name} was stopped.")
        return model

    def context(
        self,
        model: Model,
        n_ctx: int,
        *,
        max_outputs: int,
        snapshots: int = 0,
        branches: bool = False,
        draft: bool = False,
    ) -> Context:
        """Make a context.

        Args:
            model: Of this model.
            n_ctx: Tokens that fit.
            max_outputs: The most tokens of a batch whose logits are wanted.
            snapshots: States to keep, where a model has one that cannot be cut.
            branches: It can try one draft and go back.
            draft: It is the draft's.

        Raises:
            LocalspecError: It cannot be made.
        """
        context = Context(
            model,
            n_ctx=n_ctx,
            n_batch=self._command.n_batch,
            n_ubatch=self._command.at_once,
            max_outputs=max_outputs,
            snapshots=snapshots,
            checkpoint_bytes=copies_budget(system_memory().free),
            branches=branches,
            kv_type=self._command.draft_kv_type if draft else self._command.kv_type,
            flash_attn=self._command.flash_attn,
            threads=self._draft_threads if draft else self._threads,
            offload=not (draft and self._placement.draft_stays_on_cpu),
            log=self._log,
        )
        self.contexts.append(context)
        return context

    def drafter(
        self, header: Header | None, target: Model, target_context: Context, gpu_layers: int
    ) -> tuple[Drafter, Model | None]:
        """Make the drafter that the command names, and open what it needs.

        Args:
            header: Of the draft's file, None where it has none.
            target: The target.
            target_context: Its context.
            gpu_layers: How many of the draft's layers go to GPUs.

        Returns:
            The drafter and its model, if it is a file of its own.

        Raises:
            LocalspecError: It cannot be used.
        """
        kind = self._command.draft.kind
        if kind == "lookup":
            return self._sources.lookup(target.vocab), None
        if kind == "custom":
            own = self._sources.custom(target.vocab.n_tokens)
            self.drafters.append(own)
            return own, None
        model = None
        if header is not None:
            named = self._placement.draft
            model = self.model(
                header,
                gpu_layers,
                "draft",
                next_token_blocks=kind == "mtp",
                devices=None if named is None else [device.id for device in named],
            )
        drafter: Drafter = (
            self._block_drafter(model or target, target, target_context)
            if kind == "mtp" or model is None
            else self._model_drafter(model, target, target_context.n_ctx)
        )
        if self._command.auto:
            drafter = ChainDrafter(drafter, self._sources.lookup(target.vocab))
        return drafter, model

    def _model_drafter(self, model: Model, target: Model, n_ctx: int) -> Drafter:
        limit = min(n_ctx, model.n_ctx_train or n_ctx)
        context = self.context(model, limit, max_outputs=SHADOW_ROWS, branches=model.has_state, draft=True)
        return ModelDrafter(context, name=model.path.name, n_vocab=target.vocab.n_tokens)

    def _block_drafter(self, model: Model, target: Model, target_context: Context) -> Drafter:
        block = NextTokenBlock(
            model,
            target_context,
            target,
            max_outputs=SHADOW_ROWS,
            kv_type=self._command.draft_kv_type,
            threads=self._draft_threads,
            offload=not self._placement.draft_stays_on_cpu,
            log=self._log,
        )
        drafter = MtpDrafter(block, n_vocab=target.vocab.n_tokens)
        self.drafters.append(drafter)
        return drafter

    def drop_draft(self) -> None:
        """Give back what a draft that failed half-way holds; the target and its context were made first."""
        self._close(1)

    def close(self) -> None:
        """Give all memory back."""
        self._close(0)

    def _close(self, first: int) -> None:
        """What uses a context goes before the context, contexts before their models."""
        for drafter in self.drafters:
            drafter.close()
        for context in self.contexts[first:]:
            context.close()
        for model in self.models[first:]:
            model.close()
        del self.drafters[:], self.contexts[first:], self.models[first:]


def refuse_unfit_cache(header: Header, kv_type: str, flash_attn: FlashAttention) -> None:
    """See before any weights are read whether a model can have this cache at all.

    Raises:
        LoadError: The type is made of blocks that the heads' sizes are no multiple of.
        UsageError: It needs flash attention, and that is switched off.
    """
    flash_attention(kv_type, flash_attn)
    block, _ = KV_BLOCKS.get(kv_type, (1, 0))
    sizes = (
        header.head_dim_k,
        header.head_dim_v,
        *((header.head_dim_k_sliding, header.head_dim_v_sliding) if header.sliding_layers else ()),
    )
    unfit = next((size for size in sizes if size % block), 0)
    if unfit:
        raise LoadError(
            f"{header.path.name} cannot have a {kv_type} cache.",
            why=f"Its heads have {unfit} numbers, and {kv_type} packs {block} at a time.",
            hint="localspec run --kv f16",
        )
