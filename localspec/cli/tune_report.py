"""The tables of `localspec tune`, at most 80 columns wide. No colour, no markup."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

from localspec.cli.output import size
from localspec.cli.shared import clock
from localspec.measure.tune_cells import CellResult, Profile, Sweep

if TYPE_CHECKING:
    from localspec.measure.figures import Ratio
    from localspec.measure.tune_found import Raced, Tuned
    from localspec.worker.protocol import Load

_WIDTH = 80
_KINDS = 4
_SHOWN_SIZES = (2, 3, 4, 5, 6, 8, 9, 16, 17)


def profile_table(found: Profile, *, curve: bool) -> str:
    """What a drafter costs, and what each of its lengths should earn.

    Args:
        found: The drafter.
        curve: Show the target's curve too; it is the same for all.
    """
    points = "  ".join(f"{n}: {found.verify_curve[n]:.2f}" for n in _SHOWN_SIZES if n in found.verify_curve)
    lines = _wrapped(f"A batch of n tokens takes, in target steps:  {points}", first="") if curve else []
    free = (
        ", costs nothing"
        if found.candidate.free
        else f": a draft step is {found.cost_ratio:.2f} of a target step"
    )
    lines += ["", f"{found.candidate.label}{free}"]
    if not found.predictions:
        lines += _wrapped(
            f"Cannot pay: if every drafted token were accepted, k={found.longest} would make it {found.ceiling:.2f}x."
            " Nothing more is measured."
        )
        return "\n".join(lines)
    best = max(found.predictions, key=lambda one: one.speedup)
    lines.append("  draft length, everything else fixed (predicted)")
    lines.append(f"  {'k':>4}{'accepted':>10}{'tokens a round':>16}{'speedup':>9}")
    for one in found.predictions:
        mark = "  best" if one is best else ""
        lines.append(
            f"  {one.n_draft:>4}{one.acceptance_rate:>10.0%}{one.mean_accepted_length:>16.2f}"
            f"{one.speedup:>8.2f}x{mark}"
        )
    if found.longest < max(found.verify_curve) - 1:
        lines += _wrapped(
            f"Longer ones cannot be better, even if everything were accepted (k>{found.longest})."
        )
    return "\n".join(lines)


def race_table(raced: Raced) -> str:
    """The measured cells of one drafter beside no draft."""
    kinds = list(dict.fromkeys(kind for kind, _ in raced.off.rates))[:_KINDS]
    head = "".join(f"{kind[:7]:>9}" for kind in kinds)
    lines = [f"  {raced.candidate.label}, measured beside no draft, in all and by kind of prompt"]
    lines.append(f"  {'k':<6}{'tok/s':>9}{'speedup':>9} {'95 %':<14}{head}")
    lines.append(f"  {'none':<6}{raced.off.tok_s:>9.2f}{1:>8.2f}x")
    for one in raced.cells:
        by_kind = one.kinds
        cells = "".join(f"{by_kind[kind].value:>8.2f}x" if kind in by_kind else f"{'':>9}" for kind in kinds)
        interval = _interval(one.speedup) or ("given up" if one.given_up else "")
        lines.append(
            f"  {one.cell.length:<6}{one.tok_s:>9.2f}{one.speedup.value:>8.2f}x {interval:<14}{cells}".rstrip()
        )
    return "\n".join(lines)


def sweep_table(sweep: Sweep) -> str:
    """One variable, everything else as chosen."""
    lines = ["", f"{sweep.variable}, everything else as chosen", f"  {'':<8}{sweep.unit:>13}{'speedup':>9}"]
    for value, figure, ratio in sweep.rows:
        beside = f"{ratio.value:>8.2f}x {_interval(ratio)}" if ratio is not None else ""
        mark = "" if value != sweep.used else "  yours" if sweep.shown_only else "  taken"
        lines.append(f"  {value:<8}{figure:>13.2f}{beside}{mark}".rstrip())
    if sweep.note:
        lines += _wrapped(sweep.note)
    return "\n".join(lines)


def report(tuned: Tuned, profile: Path | None) -> str:
    """The result for a person."""
    blocks = [_verdict(tuned)]
    if tuned.winners:
        blocks.append(_winners(tuned))
    if tuned.exhaustive is not None:
        blocks.append(_proof(tuned))
    blocks.append(_settings(tuned))
    blocks.append(_ending(tuned, profile))
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def name(tuned: Tuned, one: CellResult) -> str:
    """A cell in words."""
    return "no draft" if one.cell.off else f"{tuned.candidate(one.cell).label}, k={one.cell.length}"


def _verdict(tuned: Tuned) -> list[str]:
    choice, fastest = tuned.choice, tuned.fastest
    assert choice is not None
    lines: list[str] = []
    if not choice.cell.off:
        word = "Fastest" if tuned.confirmed else "Fastest so far (not confirmed)"
        rate = f"{choice.tok_s:.2f} tok/s, {choice.speedup.value:.2f}x no draft"
        lines += _wrapped(f"{word}: {name(tuned, choice)}: {rate} {_of(choice.speedup)}".rstrip(), first="")
    elif tuned.verdict == "off is fastest":
        so_far = "" if tuned.confirmed else " so far"
        lines += _wrapped(f"Off is fastest{so_far}: no draft, {choice.tok_s:.2f} tok/s.", first="")
        if fastest is not None and not fastest.cell.off:
            gain = fastest.speedup
            lines += _wrapped(
                f"The best drafter is {name(tuned, fastest)}: {gain.value:.2f}x {_of(gain)}".rstrip()
            )
    else:
        lines += _wrapped(
            f"A tie: no draft is as fast as any, within noise ({choice.tok_s:.2f} tok/s).", first=""
        )
        lines += _wrapped("No draft needs the least memory, so it is taken.")
    others = [one for one in tuned.tied if one.cell != choice.cell and not one.cell.off]
    if others and not choice.cell.off:
        names = "; ".join(f"{name(tuned, one)} ({one.speedup.value:.2f}x)" for one in others[:5])
        drafts = {one.cell.draft for one in others} - {choice.cell.draft}
        why = " Of these the choice needs the least memory." if drafts else ""
        lines += _wrapped(f"Tied within noise: {names}.{why}")
    return lines


def _winners(tuned: Tuned) -> list[str]:
    """Kinds of text that want other settings."""
    lines: list[str] = []
    for kind, (one, gain) in tuned.winners.items():
        lines += _wrapped(f"{kind}: {name(tuned, one)} is {gain:.0%} faster there.", first="! ", rest="  ")
    lines += _wrapped(
        "The choice is the best for all kinds together; --n-draft and --draft change it for one chat."
    )
    return lines


def _proof(tuned: Tuned) -> list[str]:
    proof = tuned.exhaustive
    assert proof is not None
    share = proof.clever_seconds / proof.seconds if proof.seconds else 0.0
    noise = "" if proof.real or proof.gap <= 0 else " (within noise)"
    best = f"{name(tuned, proof.best)} at {proof.best.tok_s:.2f} tok/s"
    return [
        *_wrapped(
            f"Exhaustive: {len(proof.results)} cells in {clock(proof.seconds)} min; the best is {best}.",
            first="",
        ),
        *_wrapped(
            f"The choice is {max(proof.gap, 0.0):.1%} slower than that{noise}, found in"
            f" {clock(proof.clever_seconds)} min ({share:.0%} of the time)."
        ),
    ]


def _settings(tuned: Tuned) -> list[str]:
    load, choice = tuned.load, tuned.choice
    assert load is not None
    assert choice is not None
    threads = load.threads or (tuned.ready.threads if tuned.ready else 0)
    words = [
        f"--draft {choice.cell.draft}",
        *([] if choice.cell.off else [f"--n-draft {choice.cell.length}"]),
        f"--kv {load.kv_type}",
        f"--threads {threads}",
        *([f"--flash-attn {load.flash_attn}"] if load.flash_attn != tuned.base.flash_attn else []),
        *([f"--split-mode {load.split_mode}"] if load.split_mode != tuned.base.split_mode else []),
        *([f"--batch {load.n_batch}"] if load.n_batch != tuned.base.n_batch else []),
        *([f"--ubatch {load.n_ubatch}"] if load.n_ubatch else []),
        *([] if choice.cell.off else _draft_flags(load)),
    ]
    lines = ["Settings: " + " ".join(words)]
    if not choice.cell.off and choice.memory:
        lines += _wrapped(f"The draft takes {size(choice.memory)} of memory.")
    return lines


def _draft_flags(load: Load) -> list[str]:
    spec = load.draft
    return [
        *([f"--draft-device {spec.device}"] if spec.device != "auto" else []),
        *([f"--draft-gpu-layers {spec.gpu_layers}"] if spec.gpu_layers >= 0 else []),
        *([f"--draft-threads {spec.threads}"] if spec.threads else []),
        *([f"--draft-kv {spec.kv_type}"] if spec.kv_type else []),
        *([f"--overlap {spec.overlap}"] if spec.overlap != "auto" else []),
    ]


def _ending(tuned: Tuned, profile: Path | None) -> list[str]:
    lines = [f"{clock(tuned.seconds)} min in all, temperature {tuned.sampling.temperature:g}."]
    if profile is not None:
        if tuned.partial:
            lines.append("Stopped before every other setting was tried; drafter and length are complete.")
        lines += [f"Saved as {profile}", "localspec run uses it by itself; --profile none leaves it out."]
    elif tuned.partial:
        lines.append("Stopped before the end: the best so far, and no profile was saved.")
    return lines


def _of(ratio: Ratio) -> str:
    return "" if ratio.low is None or ratio.high is None else f"(95 %: {ratio.low:.2f} to {ratio.high:.2f})"


def _interval(ratio: Ratio) -> str:
    return "" if ratio.low is None or ratio.high is None else f"{ratio.low:.2f} to {ratio.high:.2f}"


def _wrapped(text: str, first: str = "  ", rest: str = "  ") -> list[str]:
    return textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=first,
        subsequent_indent=rest,
        break_on_hyphens=False,
        break_long_words=False,
    )
