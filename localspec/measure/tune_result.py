"""What tune found, as the object of `--json` and as a profile."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from localspec import profiles
from localspec.measure.result import head, machine, ratio_json
from localspec.measure.tune_cells import CellResult, Profile, Sweep
from localspec.measure.tune_found import Tuned
from localspec.settings import Settings
from localspec.worker.protocol import Load

FORMAT = 1
"""Of the JSON object; a change that readers must know of raises it."""


def to_json(tuned: Tuned, *, when: str, target: str, profile: Path | None) -> dict[str, Any]:
    """The object of `localspec tune --json`. Its names are an interface.

    Args:
        tuned: The result.
        when: Date and time of the start, ISO 8601.
        target: The target as the person calls it.
        profile: Where the profile was written; None when it was not.
    """
    ready = tuned.ready
    return {
        **head("tune", FORMAT, when, partial=tuned.partial, error=tuned.error),
        "best": best_json(tuned),
        "tied": [_name(one) for one in tuned.tied],
        "winners_by_kind": {
            kind: {**_name(one), "faster_by": gain} for kind, (one, gain) in tuned.winners.items()
        },
        "cells": [_cell_json(tuned, one) for one in (tuned.off, *tuned.results) if one.answers],
        "drafters": [_drafter_json(one) for one in tuned.profiles],
        "sweeps": [_sweep_json(one) for one in tuned.sweeps],
        "exhaustive": _exhaustive_json(tuned),
        "notes": list(tuned.notes),
        "effort": asdict(tuned.effort),
        "settings": {
            "target": target,
            "ctx": tuned.base.n_ctx,
            "gpu_layers": tuned.base.gpu_layers,
            **asdict(tuned.sampling),
        },
        "versions": dict(ready.versions) if ready else {},
        "device": {
            "target": ready.target.device if ready else None,
            **machine(),
        },
        "profile": str(profile) if profile else None,
        "time_s": tuned.seconds,
    }


def best_json(tuned: Tuned) -> dict[str, Any] | None:
    """The settings to take; None when nothing was measured."""
    choice, load = tuned.choice, tuned.load
    if choice is None or load is None:
        return None
    return {
        "drafter": tuned.candidate(choice.cell).spec.kind,
        "draft": None if choice.cell.off else choice.cell.draft,
        "n_draft": "auto" if choice.cell.auto else choice.cell.n_draft,
        "kv": load.kv_type,
        "threads": load.threads or (tuned.ready.threads if tuned.ready else 0),
        "batch": load.n_batch,
        "ubatch": load.at_once,
        "flash_attn": load.flash_attn,
        "split_mode": load.split_mode,
        **(draft_settings(load) if load.draft.kind in ("model", "mtp") else {}),
        "decode_tok_s": choice.tok_s,
        "baseline_tok_s": baseline(choice),
        **ratio_json(choice.speedup),
        "memory_bytes": choice.memory,
        "verdict": tuned.verdict,
        "confirmed": tuned.confirmed,
    }


def draft_settings(load: Load) -> dict[str, str | int]:
    """Where and how the draft runs, by the names of the settings."""
    spec = load.draft
    return {
        "draft_device": spec.device,
        "draft_gpu_layers": spec.gpu_layers,
        "draft_threads": spec.threads,
        "draft_kv": spec.kv_type,
        "overlap": spec.overlap,
    }


def baseline(choice: CellResult) -> float:
    """The speed without a draft beside which the choice was measured."""
    return choice.tok_s / choice.speedup.value


def _name(one: CellResult) -> dict[str, Any]:
    return {"draft": None if one.cell.off else one.cell.draft, "n_draft": _length(one)}


def _length(one: CellResult) -> int | str:
    return "auto" if one.cell.auto else one.cell.n_draft


def _cell_json(tuned: Tuned, one: CellResult) -> dict[str, Any]:
    return {
        "drafter": tuned.candidate(one.cell).spec.kind,
        **_name(one),
        "predicted_speedup": one.predicted,
        "decode_tok_s": one.tok_s,
        **ratio_json(one.speedup),
        "kinds": {kind: ratio_json(ratio) for kind, ratio in one.kinds.items()},
        "memory_bytes": one.memory,
        "answers": one.answers,
        "given_up": one.given_up,
        "chosen": tuned.choice is not None and one.cell == tuned.choice.cell,
    }


def _drafter_json(one: Profile) -> dict[str, Any]:
    return {
        "draft": one.candidate.name,
        "drafter": one.candidate.spec.kind,
        "size_bytes": one.candidate.size_bytes,
        "cost_ratio": one.cost_ratio,
        "verify_curve": {str(n): value for n, value in one.verify_curve.items()},
        "longest_useful": one.longest,
        "ceiling": one.ceiling,
        "survival": list(one.survival),
        "predicted": [
            {
                "n_draft": each.n_draft,
                "speedup": each.speedup,
                "mean_accepted_length": each.mean_accepted_length,
                "acceptance_rate": each.acceptance_rate,
                "kinds": dict(each.kinds),
            }
            for each in one.predictions
        ],
    }


def _sweep_json(one: Sweep) -> dict[str, Any]:
    return {
        "variable": one.variable,
        "unit": one.unit,
        "used": one.used,
        "shown_only": one.shown_only,
        "note": one.note,
        "rows": [
            {"value": value, "figure": figure, **(ratio_json(ratio) if ratio else {})}
            for value, figure, ratio in one.rows
        ],
    }


def _exhaustive_json(tuned: Tuned) -> dict[str, Any] | None:
    found = tuned.exhaustive
    if found is None:
        return None
    return {
        "time_s": found.seconds,
        "clever_time_s": found.clever_seconds,
        "gap": found.gap,
        "gap_beyond_noise": found.real,
        "best": {**_name(found.best), "decode_tok_s": found.best.tok_s, **ratio_json(found.best.speedup)},
        "cells": [_cell_json(tuned, one) for one in found.results],
    }


def to_profile(tuned: Tuned, *, when: str, target: str, name: str) -> profiles.Profile:
    """What `localspec run` uses from now on.

    Args:
        tuned: Complete.
        when: Date and time, ISO 8601.
        target: The target as the person calls it.
        name: Of the profile; empty = made of target, draft and machine.

    Raises:
        LocalspecError: A model file is gone.
    """
    choice, load = tuned.choice, tuned.load
    assert choice is not None
    assert load is not None
    machine = profiles.this_machine()
    path = Path(load.target)
    settings: dict[str, Any] = {
        "draft": choice.cell.draft,
        "n_draft": "auto" if choice.cell.auto else choice.cell.n_draft,
        "kv": load.kv_type,
    }
    if choice.cell.off:
        del settings["n_draft"]
    if load.threads:
        settings["threads"] = load.threads
    others = {
        "batch": load.n_batch,
        "ubatch": load.n_ubatch,
        "flash_attn": load.flash_attn,
        "split_mode": load.split_mode,
        **(draft_settings(load) if load.draft.kind in ("model", "mtp") else {}),
    }
    settings |= {key: value for key, value in others.items() if value != Settings.model_fields[key].default}
    ratio = choice.speedup
    figures: dict[str, float | str] = {
        "decode_tok_s": choice.tok_s,
        "baseline_tok_s": baseline(choice),
        "speedup": ratio.value,
        "verdict": tuned.verdict,
        "temperature": tuned.sampling.temperature,
    }
    if ratio.low is not None and ratio.high is not None:
        figures |= {"speedup_low": ratio.low, "speedup_high": ratio.high}
    found = tuned.ready.versions if tuned.ready else {}
    made = {"llama-cpp-python": profiles.engine_version()}
    made |= {key: value for key, value in found.items() if key not in made}
    draft = profiles.model_file(choice.cell.draft, Path(load.draft.path)) if load.draft.path else None
    return profiles.Profile(
        name=name or profiles.default_name(path, choice.cell.draft, machine),
        when=when,
        machine=machine,
        target=profiles.model_file(target, path),
        draft=draft,
        settings=settings,
        versions=made,
        figures=figures,
        remarks=_remarks(tuned, when),
    )


def _remarks(tuned: Tuned, when: str) -> list[str]:
    lines = [
        f"Made by localspec tune on {when}. localspec run uses it by itself;",
        "--profile none leaves it out, and deleting this file forgets it.",
        "",
        "Measured (speedup over no draft, answers):",
    ]
    for one in (tuned.off, *tuned.results):
        if one.answers:
            name = "no draft" if one.cell.off else f"{tuned.candidate(one.cell).label}, k={one.cell.length}"
            lines.append(
                f"  {name:<36} {one.tok_s:8.2f} tok/s  {one.speedup.value:5.2f}x  {one.answers:3d} answers"
            )
    for sweep in tuned.sweeps:
        cells = ", ".join(f"{value}: {figure:.2f} {sweep.unit}" for value, figure, _ in sweep.rows)
        taken = "" if sweep.shown_only else f"; taken: {sweep.used}"
        lines.append(f"  {sweep.variable}: {cells}{taken}")
    return lines
