"""The figures that advice looks at, and how a bench, an answer or a look at the machine gives them."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from localspec.custom import looks_custom
from localspec.measure import figures
from localspec.measure.result import Result
from localspec.measure.surroundings import BUSY_SHARE, Program, Surroundings
from localspec.memory.hardware import SeenGpu, reinstall_command
from localspec.spec.events import Finished, Sampling
from localspec.worker.protocol import Load, MemoryUse, Ready

LEAST_TOKENS = 64
"""An answer shorter than that tells nothing about speed."""
_LEAST_ROUNDS = 16
"""Rounds with a draft from which on acceptance is more than luck."""
_BUSY_GPU = 10
"""Percent from which others disturb."""
_CLEAR = 1.1
"""A single answer's speedup is not told from none below this factor."""
_CLEAR_OF_ESTIMATE = 1.25
"""The same where no plain step was made in it."""


@dataclass(frozen=True, slots=True)
class Seen:
    """Measured figures. What is not known stays as it is here; nothing is concluded from it."""

    target: str = ""
    """As typed in a command."""
    draft: str = ""
    """As typed in a command: a model, `lookup`, `mtp` or `none`."""
    draft_off_reason: str = ""
    """Why a draft that was asked for is off."""
    n_draft: int = 0
    auto: bool = False
    """The draft length is chosen round by round."""
    temperature: float = 0.0
    kv: str = "f16"
    n_ctx: int = 0
    speedup: float | None = None
    one_answer: bool = False
    """All is of one answer of a chat: `speedup` is against the plain step as it is known, and has no interval."""
    speeds: str = ""
    """The two speeds of `speedup`, in words."""
    low: float | None = None
    high: float | None = None
    acceptance_rate: float | None = None
    mean_accepted_length: float | None = None
    per_position: tuple[float, ...] = ()
    """Conditional."""
    bound: float | None = None
    cost_ratio: float | None = None
    verify_curve: tuple[tuple[int, float], ...] = ()
    """(n, V(n))."""
    repetition: float = 0.0
    acceptance_by_length: tuple[tuple[int, float], ...] = ()
    """(tokens of the answer, of a chat tokens in the context; acceptance there)."""
    threads: int = 0
    """CPU threads of the engine; 0 = not known."""
    target_layers: int = 0
    draft_layers: int = 0
    target_on_gpu: bool = False
    draft_on_gpu: bool = False
    vram_used: int = 0
    vram_total: int = 0
    out_of_memory: str = ""
    """The sentence of the error."""
    gpu_programs: tuple[str, ...] = ()
    """Others that hold GPU memory."""
    gpu_busy: bool = False
    """Others computed on the GPU while we did not."""
    gpu_percent: int = 0
    """How busy it was then."""
    others_cpu: float = 0.0
    busy_programs: tuple[str, ...] = ()
    context_used: int = 0
    """Tokens in the context of a chat, of `n_ctx`."""
    gpu_held: int = 0
    """Bytes on the GPU that other programs hold."""
    ram_free: int = 0
    ram_total: int = 0
    idle_gpu: str = ""
    """A GPU of this machine that this build cannot use."""
    gpu_build: str = ""
    """The command that installs a build for it."""

    @property
    def is_model(self) -> bool:
        """Whether a second model drafts."""
        return self.draft not in ("", "none", "lookup", "mtp") and not looks_custom(self.draft)

    @property
    def gains(self) -> bool:
        """The draft is faster beyond noise."""
        if self.one_answer:
            return self.speedup is not None and self.speedup > self._clear
        return self.low is not None and self.low > 1

    @property
    def loses(self) -> bool:
        """The draft is slower beyond noise."""
        if self.one_answer:
            return self.speedup is not None and self.speedup < 1 / self._clear
        return self.high is not None and self.high < 1

    @property
    def _clear(self) -> float:
        return _CLEAR if self.auto else _CLEAR_OF_ESTIMATE


def from_result(
    result: Result, *, target: str, draft: str, surroundings: Surroundings, gpus: Sequence[SeenGpu]
) -> Seen:
    """What a bench saw.

    Args:
        result: Its figures.
        target: The target's name or path.
        draft: The draft's name or path, `lookup`, `mtp` or `none`.
        surroundings: What else used the machine before it began.
        gpus: The machine's GPUs, whether the engine can use them or not.
    """
    measured, together = result.measured, result.together
    ready, load = measured.ready, measured.load
    speedup = together.speedup
    window = together.drafted.window if together.drafted else None
    memory = measured.memory or ready.memory
    # The engine reports VRAM as soon as its build sees a GPU.
    idle = gpus[0] if gpus and memory.label == "RAM" and load.gpu_layers != 0 else None
    off = ready.draft.reason if ready.draft.state == "off" else ""
    no_room = off.capitalize() + "." if "do not fit into memory" in off else ""
    disturbed = (surroundings.gpu_percent or 0) > _BUSY_GPU
    # What was busy before counts too: it may not have shown in the engine's own time.
    cpu = max(result.others_cpu, surroundings.cpu_share if surroundings.cpu_share > BUSY_SHARE else 0.0)
    return Seen(
        target=shlex.quote(target),
        draft=shlex.quote(draft),
        draft_off_reason="" if no_room else off,
        n_draft=load.n_draft,
        auto=load.auto,
        temperature=measured.sampling.temperature,
        kv=load.kv_type,
        n_ctx=ready.context_size,
        speedup=speedup.value if speedup else None,
        low=speedup.low if speedup else None,
        high=speedup.high if speedup else None,
        acceptance_rate=window.acceptance_rate if window else None,
        mean_accepted_length=window.mean_accepted_length if window else None,
        per_position=window.per_position if window else (),
        bound=together.bound,
        cost_ratio=result.cost_ratio,
        verify_curve=tuple(sorted(result.verify_curve.items())),
        repetition=together.repetition,
        acceptance_by_length=tuple(
            (point.length, point.window.acceptance_rate)
            for point in measured.depths
            if point.window.acceptance_rate is not None
        ),
        threads=ready.threads,
        target_layers=ready.target.n_layer,
        draft_layers=ready.draft_model.n_layer if ready.draft_model else 0,
        target_on_gpu=ready.target.gpu_layers > 0,
        draft_on_gpu=bool(ready.draft_model and ready.draft_model.gpu_layers > 0),
        vram_used=memory.used if memory.label == "VRAM" else 0,
        vram_total=memory.total if memory.label == "VRAM" else 0,
        out_of_memory=no_room,
        gpu_programs=_names(surroundings.gpu_programs),
        gpu_busy=disturbed,
        others_cpu=cpu,
        busy_programs=_names(surroundings.programs),
        idle_gpu=idle.name if idle else "",
        gpu_build=reinstall_command(idle) if idle else "",
    )


def from_answer(
    ready: Ready,
    load: Load,
    finished: Finished,
    *,
    target: str,
    draft: str,
    sampling: Sampling,
    memory: MemoryUse | None,
    wanted: bool,
    depths: tuple[tuple[int, float], ...] = (),
    others_cpu: float = 0.0,
    surroundings: Surroundings | None = None,
) -> Seen:
    """What one answer of a chat showed. Of a short one only the context and the memory count.

    Args:
        ready: What is loaded.
        load: How; with the draft length as it is now.
        finished: The end of the answer.
        target: The target's name or path.
        draft: The draft's name or path, `lookup`, `mtp` or `none`.
        sampling: How its tokens were chosen.
        memory: The use after it.
        wanted: The person has not switched drafting off.
        depths: Acceptance early and late in the conversation, where the two differ beyond noise.
        others_cpu: Other programs' share of the CPU during the answer.
        surroundings: A look at the machine after it, without our own processes; None = nobody looked.
    """
    stats, status = finished.stats, finished.draft
    long = stats.completion_tokens >= LEAST_TOKENS
    drafting = long and stats.drafted_rounds >= _LEAST_ROUNDS
    tok_s = stats.decode_tok_s if drafting and status.plain_s > 0 else None
    on = wanted and load.n_draft > 0
    # A length chosen by price switches off by itself where drafting loses: that is no trouble.
    refused = ready.draft.state == "off" or (status.state == "off" and not load.auto)
    off = (status.reason if status.state == "off" else ready.draft.reason) if on and refused else ""
    vram = memory if memory is not None and memory.label == "VRAM" else None
    on_gpu = ready.target.gpu_layers > 0
    around = surroundings if long else None
    return Seen(
        target=shlex.quote(target),
        draft=shlex.quote(draft),
        draft_off_reason=off if long else "",
        n_draft=load.n_draft,
        auto=load.auto,
        temperature=sampling.temperature,
        kv=load.kv_type,
        n_ctx=finished.context_size,
        context_used=finished.context_used,
        speedup=tok_s * status.plain_s if tok_s else None,
        one_answer=True,
        speeds=f"{tok_s:.1f} tok/s, plain {1 / status.plain_s:.1f}" if tok_s else "",
        acceptance_rate=stats.acceptance_rate if drafting else None,
        mean_accepted_length=stats.mean_accepted_length if drafting else None,
        per_position=stats.per_position if drafting else (),
        cost_ratio=stats.draft_s / stats.drafted / status.plain_s if tok_s and stats.drafted else None,
        repetition=figures.repetition(finished.token_ids) if long else 0.0,
        acceptance_by_length=depths if drafting else (),
        threads=ready.threads,
        target_layers=ready.target.n_layer,
        draft_layers=ready.draft_model.n_layer if ready.draft_model else 0,
        target_on_gpu=long and on_gpu,
        draft_on_gpu=bool(ready.draft_model and ready.draft_model.gpu_layers > 0),
        vram_used=vram.used if vram else 0,
        vram_total=vram.total if vram else 0,
        gpu_programs=_names(around.gpu_programs) if around else (),
        gpu_busy=bool(around and on_gpu and (around.gpu_percent or 0) > _BUSY_GPU),
        gpu_percent=(around.gpu_percent or 0) if around else 0,
        others_cpu=others_cpu if long and not on_gpu else 0.0,
        busy_programs=_names(around.programs) if around else (),
    )


def from_machine(
    surroundings: Surroundings, *, vram_free: int, vram_total: int, ram_free: int, ram_total: int
) -> Seen:
    """What a look at the idle machine showed; sizes in bytes, 0 = not known.

    Args:
        surroundings: What uses it now.
        vram_free: Of all GPUs together.
        vram_total: Of all GPUs together.
        ram_free: Available without swapping.
        ram_total: Of the machine.
    """
    held = sum(one.gpu_bytes for one in surroundings.gpu_programs)
    return Seen(
        gpu_programs=_names(surroundings.gpu_programs),
        gpu_busy=(surroundings.gpu_percent or 0) > _BUSY_GPU,
        gpu_held=max(held, vram_total - vram_free),
        vram_total=vram_total,
        ram_free=ram_free,
        ram_total=ram_total,
    )


def _names(programs: Sequence[Program]) -> tuple[str, ...]:
    """The first three, each once."""
    return tuple(dict.fromkeys(one.name for one in programs))[:3]
