"""From a `Load` command to an engine that can answer. Runs in the engine's process."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from localspec import __version__
from localspec.errors import LoadError, LocalspecError
from localspec.llama import backend
from localspec.llama.context import Context
from localspec.llama.log import NativeLog
from localspec.llama.model import Model
from localspec.llama.mtp import NextTokenBlock
from localspec.llama.template import ChatTemplate
from localspec.memory import devices, hardware
from localspec.memory.plan import Plan, plan
from localspec.models.gguf import Header, read_header
from localspec.spec.draft_chain import ChainDrafter
from localspec.spec.draft_lookup import LookupDrafter
from localspec.spec.draft_model import ModelDrafter
from localspec.spec.draft_mtp import MtpDrafter
from localspec.spec.drafter import Drafter
from localspec.spec.engine import Engine
from localspec.worker.prices import SHADOW_ROWS, Prices
from localspec.worker.protocol import DraftSpec, Event, Load, LoadProgress, MemoryUse, ModelInfo, Ready

MAX_DRAFT = 16
"""The longest draft that a target with a plain cache can be asked to verify later on (`/n-draft`)."""


_LONG_STEP_SECONDS = 0.05
"""From here on a stop must reach into an evaluation, and asking for it is not felt."""
_CHUNK_SECONDS = 0.25
_AUTO_SNAPSHOTS = 7  # each is a whole recurrent state: 150 MB for a 27B target


@dataclass(slots=True)
class Loaded:
    """Everything that one pair holds open."""

    engine: Engine
    template: ChatTemplate
    ready: Ready
    prices: Prices
    drafters: list[Drafter]
    """Those that hold native memory of their own."""
    contexts: list[Context]
    models: list[Model]

    def close(self) -> None:
        """Give all memory back: what uses a context before the context, contexts before their models."""
        _close(self.drafters, self.contexts, self.models)


class Loader:
    """Loads one pair.

    Args:
        command: What to load.
        log: llama.cpp's log.
        send: Receives `LoadProgress`.
        cancelled: Whether the request in hand was cancelled, now and later.
    """

    def __init__(
        self, command: Load, log: NativeLog, send: Callable[[Event], None], cancelled: Callable[[], bool]
    ) -> None:
        self._command = command
        self._log = log
        self._send = send
        self._cancelled = cancelled
        self._models: list[Model] = []
        self._contexts: list[Context] = []
        self._drafters: list[Drafter] = []
        self._notes: list[str] = []
        self._threads = command.threads or default_threads()

    def load(self) -> Loaded:
        """Load target and draft.

        Raises:
            LocalspecError: The target cannot be used. A draft that cannot be used is left out, and the status says why.
        """
        try:
            return self._load()
        except BaseException:
            self._close()
            raise

    def _load(self) -> Loaded:
        command = self._command
        header = read_header(Path(command.target))
        header.require_model("target")
        draft_header, off_reason = self._draft_header(command.draft)
        n_ctx = min(command.n_ctx or header.n_ctx_train, header.n_ctx_train or command.n_ctx) or 4096
        if command.n_ctx > n_ctx:
            self._notes.append(f"The context is {n_ctx} tokens, what {header.path.name} was trained for.")
        if command.draft.kind != "none" and _has_state(header) and not header.supports_rollback:
            off_reason = f"{header.architecture} targets cannot take rejected tokens back"
            draft_header = None
        drafts = not off_reason and command.draft.kind != "none"
        longest = (
            min(command.n_draft, _AUTO_SNAPSHOTS) if command.auto and _has_state(header) else command.n_draft
        )
        snapshots = max(longest, 1) if drafts and _has_state(header) else 0
        inside = drafts and command.draft.kind == "mtp" and not command.draft.path
        memory_plan = self._plan(header, draft_header, n_ctx, snapshots, next_token_blocks=inside)
        if draft_header is not None and not memory_plan.keep_draft:
            draft_header, drafts = None, False
            off_reason = "target and draft do not fit into memory together"

        target = self._model(header, memory_plan.gpu_layers, "target", next_token_blocks=inside)
        context = self._context(
            target,
            n_ctx,
            max_outputs=1 + max(MAX_DRAFT, longest) if drafts else 1,
            snapshots=snapshots,
        )
        drafter, draft_model = None, None
        if drafts:
            try:
                drafter, draft_model = self._drafter(
                    draft_header, target, context, memory_plan.draft_gpu_layers
                )
            except LocalspecError as error:
                if self._cancelled():
                    raise
                self._drop_draft()
                off_reason = f"the draft could not be loaded: {error.message.rstrip('.')}"
        self._send(LoadProgress("warmup", 0.0, header.path.name))
        steps = [self._warm_up(made, target) for made in self._contexts]
        self._send(LoadProgress("warmup", 1.0, header.path.name))
        engine = Engine(context, target.vocab, drafter=drafter, n_draft=longest, off_reason=off_reason)
        engine.plain_s = steps[0]  # the target's context was made first
        prices = Prices(engine, self._price_key(header, draft_header, memory_plan), self._cancelled)
        if command.auto:
            prices.choose_by_price(longest)
        template = self._template(target, header)
        ready = Ready(
            target=self._info(target, header, memory_plan.gpu_layers, "target", memory_plan),
            draft_model=self._info(
                draft_model, draft_header, memory_plan.draft_gpu_layers, "draft", memory_plan
            )
            if draft_model is not None and draft_header is not None
            else None,
            draft=engine.status,
            context_size=context.n_ctx,
            threads=self._threads,
            memory=memory_use(),
            knows_thinking=template.knows_thinking,
            thinking_tags=template.thinking_tags,
            versions={"localspec": __version__, **backend.versions()},
            notes=tuple(self._notes),
        )
        return Loaded(engine, template, ready, prices, self._drafters, self._contexts, self._models)

    def _draft_header(self, spec: DraftSpec) -> tuple[Header | None, str]:
        """The draft's header, and why there is no draft."""
        if spec.kind != "model" and not (spec.kind == "mtp" and spec.path):
            return None, spec.off_reason
        try:
            header = read_header(Path(spec.path))
            if spec.kind == "model":
                header.require_model("draft")
        except LocalspecError as error:
            return None, error.message.rstrip(".")
        return header, ""

    def _plan(
        self, target: Header, draft: Header | None, n_ctx: int, snapshots: int, *, next_token_blocks: bool
    ) -> Plan:
        command = self._command
        found = devices.gpus(backend.gpus) if backend.supports_gpu_offload() else ()
        if not backend.supports_gpu_offload():
            self._notes.extend(
                f"{gpu.name} is not used: this llama-cpp-python is built for the CPU only. `localspec doctor` tells "
                "how to build one that uses it."
                for gpu in hardware.seen_gpus()[:1]
            )
        result = plan(
            target,
            draft,
            devices=found,
            ram=devices.system_memory(),
            n_ctx=n_ctx,
            n_batch=command.n_batch,
            kv_type=command.kv_type,
            gpu_layers=command.gpu_layers,
            draft_gpu_layers=command.draft.gpu_layers,
            n_rs_seq=snapshots,
            n_outputs=1 + max(MAX_DRAFT, command.n_draft),
            next_token_blocks=next_token_blocks,
        )
        self._notes.extend(result.notes)
        return result

    def _model(
        self, header: Header, gpu_layers: int, stage: str, *, next_token_blocks: bool = False
    ) -> Model:
        shown = -1.0

        def progress(fraction: float) -> bool:
            nonlocal shown
            if fraction >= 1.0 or fraction - shown >= 0.01:
                shown = fraction
                self._send(LoadProgress(stage, fraction, header.path.name))  # type: ignore[arg-type]
            return not self._cancelled()

        model = Model(
            header.path,
            gpu_layers=gpu_layers,
            next_token_blocks=next_token_blocks,
            split_mode=self._command.split_mode,
            log=self._log,
            progress=progress,
        )
        self._models.append(model)
        if self._cancelled():
            raise LoadError(f"Loading {header.path.name} was stopped.")
        return model

    def _context(
        self, model: Model, n_ctx: int, *, max_outputs: int, snapshots: int = 0, branches: bool = False
    ) -> Context:
        context = Context(
            model,
            n_ctx=n_ctx,
            n_batch=self._command.n_batch,
            max_outputs=max_outputs,
            snapshots=snapshots,
            branches=branches,
            kv_type=self._command.kv_type,
            flash_attn=self._command.flash_attn,
            threads=self._threads,
            log=self._log,
        )
        self._contexts.append(context)
        return context

    def _drafter(
        self, header: Header | None, target: Model, target_context: Context, gpu_layers: int
    ) -> tuple[Drafter, Model | None]:
        kind = self._command.draft.kind
        if kind == "lookup":
            return LookupDrafter(), None
        model = None
        if header is not None:
            model = self._model(header, gpu_layers, "draft", next_token_blocks=kind == "mtp")
        drafter = (
            self._block_drafter(model or target, target, target_context)
            if kind == "mtp" or model is None
            else self._model_drafter(model, target, target_context.n_ctx)
        )
        return ChainDrafter(drafter) if self._command.auto else drafter, model

    def _model_drafter(self, model: Model, target: Model, n_ctx: int) -> Drafter:
        limit = min(n_ctx, model.n_ctx_train or n_ctx)
        context = self._context(model, limit, max_outputs=SHADOW_ROWS, branches=model.has_state)
        return ModelDrafter(context, name=model.path.name, n_vocab=target.vocab.n_tokens)

    def _block_drafter(self, model: Model, target: Model, target_context: Context) -> Drafter:
        block = NextTokenBlock(
            model,
            target_context,
            target,
            max_outputs=SHADOW_ROWS,
            kv_type=self._command.kv_type,
            threads=self._threads,
            log=self._log,
        )
        drafter = MtpDrafter(block, n_vocab=target.vocab.n_tokens)
        self._drafters.append(drafter)
        return drafter

    def _price_key(self, target: Header, draft: Header | None, memory_plan: Plan) -> tuple[object, ...]:
        """What the times of a round depend on."""
        command = self._command
        models = [header for header in (target, draft) if header is not None]
        files = [(str(h.path), h.size_bytes, h.path.stat().st_mtime_ns) for h in models]
        devices_used = [device.name for device in memory_plan.devices]
        layers = (memory_plan.gpu_layers, memory_plan.draft_gpu_layers)
        how = (command.draft.kind, command.kv_type, command.flash_attn, command.split_mode, self._threads)
        return (backend.versions(), files, devices_used, layers, how)

    def _template(self, target: Model, header: Header) -> ChatTemplate:
        vocab = target.vocab
        source = header.chat_template
        if self._command.template_file:
            path = Path(self._command.template_file)
            try:
                source = path.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise LoadError(f"The template {path.name} could not be read.", why=f"{error}.") from error
        template, notes = ChatTemplate.from_model(
            source,
            bos=vocab.text(vocab.bos),
            eos=vocab.text(vocab.eos),
            architecture=header.architecture,
            has_token=vocab.has_token,
        )
        self._notes.extend(notes)
        return template

    def _warm_up(self, context: Context, target: Model) -> float:
        """The first evaluation allocates and builds; it should not count as anybody's first token.

        Returns:
            Seconds of the second one.
        """
        token = max(target.vocab.bos, 0)
        for _ in range(2):
            began = time.perf_counter()
            context.decode([token], "last")
            context.logits()
            took = time.perf_counter() - began
        context.clear()
        if took > _LONG_STEP_SECONDS:
            context.stop_when(self._cancelled)
        else:
            context.chunk = _chunk(context, token)
        context.evaluated = 0
        return took

    def _info(self, model: Model, header: Header, gpu_layers: int, role: str, memory_plan: Plan) -> ModelInfo:
        found = backend.gpus()
        on_gpu = min(gpu_layers, model.n_layer + 1) if found and gpu_layers > 0 else 0
        return ModelInfo(
            path=str(header.path),
            name=header.name or header.path.name,
            architecture=header.architecture,
            quant=header.quant,
            n_params=model.n_params,
            n_vocab=model.vocab.n_tokens,
            n_ctx_train=model.n_ctx_train,
            n_layer=model.n_layer,
            gpu_layers=on_gpu,
            device=(found[0].description or found[0].name) if on_gpu else "CPU",
            kv_type=self._command.kv_type,
            memory=_bytes_of(memory_plan, role),
        )

    def _drop_draft(self) -> None:
        """Give back what a draft that failed half-way holds; the target and its context were made first."""
        _close(self._drafters, self._contexts[1:], self._models[1:])
        del self._drafters[:], self._contexts[1:], self._models[1:]

    def _close(self) -> None:
        _close(self._drafters, self._contexts, self._models)


def _chunk(context: Context, token: int) -> int:
    """Tokens of a prompt that take about a quarter of a second, a power of two; more would make a stop wait."""
    count = min(64, context.n_batch, context.n_ctx)
    for _ in range(2):
        began = time.perf_counter()
        context.decode([token] * count, "last")
        context.logits()
        took = time.perf_counter() - began
        context.clear()
    fitting = int(_CHUNK_SECONDS * count / took)
    return max(32, min(1 << (fitting.bit_length() - 1) if fitting else 1, context.n_batch))


def _close(drafters: Sequence[Drafter], contexts: Sequence[Context], models: Sequence[Model]) -> None:
    for drafter in drafters:
        drafter.close()
    for context in contexts:
        context.close()
    for model in models:
        model.close()


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


def _has_state(header: Header) -> bool:
    return header.is_hybrid or header.is_recurrent


def _bytes_of(memory_plan: Plan, role: str) -> dict[str, int]:
    for item in memory_plan.items:
        if item.role == role:
            return {"weights": sum(item.weights), "cache": sum(item.cache), "compute": sum(item.compute)}
    return {}
