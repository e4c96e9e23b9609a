"""From a measurement to the figures that advice looks at."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from localspec.measure.advice import Seen
from localspec.measure.result import Result
from localspec.measure.surroundings import BUSY_SHARE, Surroundings
from localspec.memory.hardware import SeenGpu, reinstall_command


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
