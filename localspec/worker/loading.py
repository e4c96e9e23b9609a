"""From a `Load` command to an engine that can answer. Runs in the engine's process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from localspec import __version__
from localspec.errors import AbortedError, DrafterError, LoadError, LocalspecError
from localspec.llama import backend
from localspec.llama.context import Context
from localspec.llama.log import NativeLog
from localspec.llama.model import Model
from localspec.llama.template import ChatTemplate
from localspec.memory import devices, hardware
from localspec.memory.plan import Plan, plan
from localspec.models.gguf import Header, read_header
from localspec.spec.drafter import Drafter
from localspec.spec.engine import Engine
from localspec.worker.costs import round_time
from localspec.worker.kept import Kept
from localspec.worker.machine import default_threads, memory_use
from localspec.worker.opening import Opened, refuse_unfit_cache
from localspec.worker.overlap import OverlapChoice, share_cores, split_threads
from localspec.worker.placement import Placement, computed_elsewhere, idle_gpu, place, unused
from localspec.worker.prices import Prices
from localspec.worker.prompt import read_template
from localspec.worker.protocol import DraftSpec, Event, Load, LoadProgress, Ready
from localspec.worker.sources import Sources
from localspec.worker.warmup import warm_up

MAX_DRAFT = 16
"""The longest draft that a target with a plain cache can be asked to verify later on (`/n-draft`)."""

_AUTO_SNAPSHOTS = 7  # each is a whole recurrent state: 150 MB for a 27B target


@dataclass(slots=True)
class Loaded:
    """A pair that can answer."""

    engine: Engine
    template: ChatTemplate
    ready: Ready
    prices: Prices
    opened: Opened

    def close(self) -> None:
        """Give all memory back."""
        self.opened.close()


@dataclass(slots=True)
class _Pair:
    """What is to be loaded."""

    target: Header
    draft: Header | None
    """Of the draft's file, where it has one."""
    drafts: bool
    """Whether a drafter is to be tried."""
    off_reason: str
    """Why nothing drafts."""
    n_ctx: int
    longest: int
    """The longest draft, in tokens."""
    snapshots: int
    """States that a recurrent target keeps to go back to."""
    inside: bool
    """Whether the draft is the target's own next-token block."""
    memory: Plan


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
        self._notes: list[str] = []
        self._threads = command.threads or default_threads()
        self._draft_threads = command.draft.threads or self._threads
        self._placement = Placement((), ())
        self._sources = Sources(command, send, cancelled)

    def load(self) -> Loaded:
        """Load target and draft.

        Raises:
            LocalspecError: The target cannot be used, or the load was stopped. A draft that cannot be used is left out,
                and the status says why.
        """
        pair = self._decide()
        opened = Opened(
            self._command,
            self._placement,
            self._sources,
            (self._threads, self._draft_threads),
            log=self._log,
            send=self._send,
            cancelled=self._cancelled,
        )
        try:
            loaded = self._open(pair, opened)
            if self._cancelled():
                raise AbortedError("The load was stopped.")
            return loaded
        except BaseException as error:
            opened.close()
            if isinstance(error, LocalspecError) and self._cancelled():
                raise LoadError(f"Loading {pair.target.path.name} was stopped.") from error
            raise

    def _open(self, pair: _Pair, opened: Opened) -> Loaded:
        target, context = self._target(pair, opened)
        drafter, draft_model = self._try_drafter(pair, opened, target, context)
        steps_s = self._warm_up(opened, target, pair)
        engine = Engine(
            context, target.vocab, drafter=drafter, n_draft=pair.longest, off_reason=pair.off_reason
        )
        prices = self._price(engine, pair, opened, steps_s)
        self._send(LoadProgress("warmup", 1.0, pair.target.path.name))
        template, notes = read_template(self._command.template_file, pair.target, target.vocab)
        self._notes.extend(notes)
        ready = self._ready(pair, target, draft_model, engine, template)
        return Loaded(engine, template, ready, prices, opened)

    def _decide(self) -> _Pair:
        """What is loaded and where, before any weights are read."""
        command = self._command
        header = read_header(Path(command.target))
        header.require_model("target")
        refuse_unfit_cache(header, command.kv_type, command.flash_attn)
        draft, off_reason = self._draft_header(command.draft)
        n_ctx = min(command.n_ctx or header.n_ctx_train, header.n_ctx_train or command.n_ctx) or 4096
        if command.n_ctx > n_ctx:
            self._notes.append(f"The context is {n_ctx} tokens, what {header.path.name} was trained for.")
        has_state = header.is_hybrid or header.is_recurrent
        if command.draft.kind != "none" and has_state and not header.supports_rollback:
            off_reason = f"{header.architecture} targets cannot take rejected tokens back"
            draft = None
        drafts = not off_reason and command.draft.kind != "none"
        longest = min(command.n_draft, _AUTO_SNAPSHOTS) if command.auto and has_state else command.n_draft
        snapshots = max(longest, 1) if drafts and has_state else 0
        inside = drafts and command.draft.kind == "mtp" and not command.draft.path
        self._placement = self._place(draft)
        memory = self._plan(header, draft, n_ctx, snapshots, next_token_blocks=inside)
        if draft is not None and not memory.keep_draft:
            draft, drafts = None, False
            off_reason = "target and draft do not fit into memory together"
        if drafts and command.draft.kind == "model" and command.draft.overlap == "on":
            self._share_cores(memory)
        return _Pair(header, draft, drafts, off_reason, n_ctx, longest, snapshots, inside, memory)

    def _target(self, pair: _Pair, opened: Opened) -> tuple[Model, Context]:
        memory = pair.memory
        model = opened.model(
            pair.target,
            memory.gpu_layers,
            "target",
            next_token_blocks=pair.inside,
            # Named only where a share is: llama.cpp's own choice leaves out what it sees twice.
            devices=[device.id for device in memory.devices] if memory.tensor_split else None,
            tensor_split=memory.tensor_split,
        )
        context = opened.context(
            model,
            pair.n_ctx,
            max_outputs=1 + max(MAX_DRAFT, pair.longest) if pair.drafts else 1,
            snapshots=pair.snapshots,
        )
        self._notes += computed_elsewhere(memory.place("target"), self._log.splits, self._command.kv_type)
        return model, context

    def _try_drafter(
        self, pair: _Pair, opened: Opened, target: Model, context: Context
    ) -> tuple[Drafter | None, Model | None]:
        """The drafter and its model; without one where it fails, which the pair then gives as the reason."""
        if not pair.drafts:
            return None, None
        try:
            return opened.drafter(pair.draft, target, context, pair.memory.draft_gpu_layers)
        except LocalspecError as error:
            if self._cancelled():
                raise
            opened.drop_draft()
            self._explain(error)
            pair.off_reason = _why_not(error)
            return None, None

    def _explain(self, error: LocalspecError) -> None:
        """The line that tells that there is no draft has no room for what llama.cpp said."""
        if error.why and not isinstance(error, DrafterError):
            self._notes.append(f"There is no draft: {error}")

    def _warm_up(self, opened: Opened, target: Model, pair: _Pair) -> list[float]:
        """Seconds of a plain step, and of a step of the draft model where there is one."""
        self._send(LoadProgress("warmup", 0.0, pair.target.path.name))
        token = max(target.vocab.bos, 0)
        alone = self._target_key(pair.target, pair.memory)  # the text must not depend on the draft
        seen = bool(self._placement.found)
        parts: tuple[tuple[tuple[object, ...], bool], ...] = (
            ((), seen),
            (
                ("draft", pair.draft and _identity(pair.draft)),
                seen and not self._placement.draft_stays_on_cpu,
            ),
        )
        # The target's context was made first.
        return [
            warm_up(context, token, self._cancelled, Kept("chunks", (*alone, *also)), gpu=gpu)
            for context, (also, gpu) in zip(opened.contexts, parts, strict=False)
        ]

    def _price(self, engine: Engine, pair: _Pair, opened: Opened, steps_s: Sequence[float]) -> Prices:
        """Let the engine know what its rounds take, and choose by it what is to be chosen by price."""
        engine.plain.know({1: steps_s[0]})
        key = self._price_key(pair.target, pair.draft, pair.memory)
        prices = self._overlap(engine, pair.memory, key, opened)
        if self._command.auto:
            prices.choose_by_price(pair.longest, now=steps_s)
        elif times := round_time(engine, steps_s[0], self._cancelled):
            engine.plain.know(times)
        return prices

    def _ready(
        self, pair: _Pair, target: Model, draft: Model | None, engine: Engine, template: ChatTemplate
    ) -> Ready:
        places, memory = self._placement, pair.memory
        drafting = None
        if draft is not None and pair.draft is not None:
            drafting = places.describe(
                draft,
                pair.draft,
                memory.place("draft"),
                kv_type=self._command.draft_kv_type,
                threads=self._draft_threads,
            )
        return Ready(
            target=places.describe(
                target,
                pair.target,
                memory.place("target"),
                kv_type=self._command.kv_type,
                threads=self._threads,
            ),
            draft_model=drafting,
            draft=engine.status,
            context_size=engine.context.n_ctx,
            threads=self._threads,
            memory=memory_use(),
            knows_thinking=template.knows_thinking,
            thinking_tags=template.thinking_tags,
            versions={"localspec": __version__, **backend.versions()},
            notes=(*self._notes, *self._sources.notes),
        )

    def _share_cores(self, memory_plan: Plan) -> None:
        """Threads for two models that compute on the CPU at the same time; more than cores would hinder each other."""
        if not share_cores(memory_plan):
            return
        for_target, for_draft = split_threads(self._threads)
        if not self._command.draft.threads:
            self._draft_threads = for_draft
        if not self._command.threads:
            self._threads = for_target
        self._notes.append(
            f"With --overlap on, target and draft share the CPU: {self._threads} threads and {self._draft_threads}."
        )

    def _overlap(self, engine: Engine, memory_plan: Plan, key: Sequence[object], opened: Opened) -> Prices:
        """Let the draft model draft while the target verifies, where that is wanted and pays.

        Returns:
            The prices of the order that was chosen: what is hidden behind the target costs less.
        """

        def progress(share: float) -> None:
            self._send(LoadProgress("warmup", share, Path(self._command.target).name))

        plain = Prices(engine, key, self._cancelled, progress)
        overlapped = Prices(engine, (*key, "overlap"), self._cancelled, progress)
        choice = OverlapChoice(
            engine,
            self._command.draft.overlap,
            memory_plan,
            key,
            auto=self._command.auto,
            acceptance=overlapped.acceptance or plain.acceptance,
            cancelled=self._cancelled,
        )
        drafter = choice.apply()
        if drafter is not None:
            opened.drafters.append(drafter)
        elif choice.worth_saying:
            self._notes.append(f"The draft does not run beside the target (--overlap): {engine.no_overlap}.")
        return plain if drafter is None else overlapped

    def _draft_header(self, spec: DraftSpec) -> tuple[Header | None, str]:
        """The draft's header, and why there is no draft."""
        if spec.kind != "model" and not (spec.kind == "mtp" and spec.path):
            return None, spec.off_reason or self._sources.find_custom()
        try:
            header = read_header(Path(spec.path))
            if spec.kind == "model":
                header.require_model("draft")
            refuse_unfit_cache(header, self._command.draft_kv_type, self._command.flash_attn)
        except LocalspecError as error:
            self._explain(error)
            return None, error.message.rstrip(".")
        return header, ""

    def _place(self, draft: Header | None) -> Placement:
        self._notes.extend(unused(self._command))
        provider = backend.gpus if backend.supports_gpu_offload() else None
        return place(self._command, provider, draft_model=draft is not None)

    def _plan(
        self, target: Header, draft: Header | None, n_ctx: int, snapshots: int, *, next_token_blocks: bool
    ) -> Plan:
        command = self._command
        if not backend.supports_gpu_offload():
            self._notes.extend(
                f"{gpu.name} is not used: {idle_gpu(backend.gpu_backends(), self._log.lines)}"
                for gpu in hardware.seen_gpus()[:1]
            )
        result = plan(
            target,
            draft,
            devices=self._placement.target,
            ram=devices.system_memory(),
            n_ctx=n_ctx,
            n_ubatch=command.at_once,
            kv_type=command.kv_type,
            gpu_layers=command.gpu_layers,
            draft_gpu_layers=command.draft.gpu_layers,
            n_rs_seq=snapshots,
            n_outputs=1 + max(MAX_DRAFT, command.n_draft),
            next_token_blocks=next_token_blocks,
            draft_devices=self._placement.draft,
            draft_kv_type=self._command.draft_kv_type,
        )
        self._notes.extend(result.notes)
        return result

    def _target_key(self, target: Header, memory_plan: Plan) -> tuple[object, ...]:
        """What the times of the target alone depend on."""
        command, item = self._command, memory_plan.items[0]
        how = (command.kv_type, command.flash_attn, command.split_mode, command.n_batch, command.at_once)
        devices_used = [(device.id, device.name) for device in item.devices]
        return (backend.versions(), _identity(target), devices_used, item.gpu_layers, how, self._threads)

    def _price_key(self, target: Header, draft: Header | None, memory_plan: Plan) -> tuple[object, ...]:
        """What the times of a round depend on."""
        command = self._command
        models = [header for header in (target, draft) if header is not None]
        files = [_identity(header) for header in models]
        # By name too: another card in the same slot has the same id.
        devices_used = [[(device.id, device.name) for device in item.devices] for item in memory_plan.items]
        layers = (memory_plan.gpu_layers, memory_plan.draft_gpu_layers)
        how = (
            command.draft.kind,
            command.kv_type,
            command.draft_kv_type,
            command.flash_attn,
            command.split_mode,
        )
        numbers = (self._threads, self._draft_threads, command.at_once, self._placement.draft_stays_on_cpu)
        drafter = (command.draft.code, bool(command.lookup_files))
        return (backend.versions(), files, devices_used, layers, how, numbers, drafter)


def _identity(header: Header) -> tuple[object, ...]:
    try:
        changed = header.path.stat().st_mtime_ns
    except OSError:  # somebody took it away; what is loaded works on
        changed = 0
    return str(header.path), header.size_bytes, changed


def _why_not(error: LocalspecError) -> str:
    """Why a draft that failed to load is off; a drafter of somebody's own says what failed itself."""
    said = error.message.rstrip(".")
    return said if isinstance(error, DrafterError) else f"the draft could not be loaded: {said}"
