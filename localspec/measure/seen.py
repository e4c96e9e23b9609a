"""From a measurement to the figures that advice looks at."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from localspec.measure import figures
from localspec.measure.advice import Seen
from localspec.measure.result import Result
from localspec.measure.surroundings import BUSY_SHARE, Surroundings
from localspec.memory.hardware import SeenGpu, reinstall_command
from localspec.spec.events import Finished, Sampling
from localspec.worker.protocol import Load, MemoryUse, Ready

_LEAST_TOKENS = 64
"""An answer shorter than that tells nothing about speed."""
_LEAST_ROUNDS = 16
"""Rounds with a draft from which on acceptance is more than luck."""


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
    disturbed = (surroundings.gpu_percent or 0) > 10
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
        gpu_programs=tuple(one.name for one in surroundings.gpu_programs[:3]),
        gpu_busy=disturbed,
        others_cpu=cpu,
        busy_programs=tuple(one.name for one in surroundings.programs[:3]),
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
    """
    stats, status = finished.stats, finished.draft
    long = stats.completion_tokens >= _LEAST_TOKENS
    drafting = long and stats.drafted_rounds >= _LEAST_ROUNDS
    tok_s = stats.decode_tok_s if drafting and status.plain_s > 0 else None
    on = wanted and load.n_draft > 0
    # A length chosen by price switches off by itself where drafting loses: that is no trouble.
    refused = ready.draft.state == "off" or (status.state == "off" and not load.auto)
    off = (status.reason if status.state == "off" else ready.draft.reason) if on and refused else ""
    vram = memory if memory is not None and memory.label == "VRAM" else None
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
        threads=ready.threads,
        target_layers=ready.target.n_layer,
        draft_layers=ready.draft_model.n_layer if ready.draft_model else 0,
        target_on_gpu=long and ready.target.gpu_layers > 0,
        draft_on_gpu=bool(ready.draft_model and ready.draft_model.gpu_layers > 0),
        vram_used=vram.used if vram else 0,
        vram_total=vram.total if vram else 0,
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
        gpu_programs=tuple(one.name for one in surroundings.gpu_programs[:3]),
        gpu_busy=(surroundings.gpu_percent or 0) > 10,
        gpu_held=max(held, vram_total - vram_free),
        vram_total=vram_total,
        ram_free=ram_free,
        ram_total=ram_total,
    )
