"""`localspec verify`: does the text stay the same?"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from localspec.cli import output, shared

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from localspec.launch import Launch
    from localspec.measure.prompts import Prompt
    from localspec.measure.verify import Agreement, Check, Difference, Progress
    from localspec.settings import Settings
    from localspec.spec.events import Sampling

_QUICK_QUESTIONS, _QUICK_TOKENS, _TOKENS = 4, 48, 128
_SHOWN = 10
_WARM = 0.7


def command(
    target: Annotated[
        str | None, typer.Argument(metavar="TARGET", help="As for run.", show_default=False)
    ] = None,
    draft: shared.Draft = None,
    n_draft: shared.NDraft = None,
    lookup: shared.Lookup = None,
    quick: Annotated[bool, typer.Option("--quick", help="Four questions, shorter answers.")] = False,
    tokens: Annotated[
        int | None,
        typer.Option(
            "--tokens", min=1, metavar="N", help="Longest answer. Default: 128.", show_default=False
        ),
    ] = None,
    prompt_file: Annotated[
        list[Path] | None,
        typer.Option(
            "--prompt-file",
            metavar="FILE",
            help="Your own questions in place of ours: a text file each, or .jsonl with a prompt a line.",
            show_default=False,
        ),
    ] = None,
    seed: shared.Seed = None,
    think: shared.Think = None,
    ctx: shared.Ctx = None,
    gpu_layers: shared.GpuLayers = None,
    draft_gpu_layers: shared.DraftGpuLayers = None,
    draft_device: shared.DraftDevice = None,
    draft_threads: shared.DraftThreads = None,
    draft_kv: shared.DraftKv = None,
    overlap: shared.Overlap = None,
    kv: shared.Kv = None,
    threads: shared.Threads = None,
    batch: shared.Batch = None,
    ubatch: shared.Ubatch = None,
    profile: shared.Profile = "auto",
    force_draft: shared.ForceDraft = False,
    yes: shared.Yes = False,
    json: Annotated[bool, typer.Option("--json", help="Print the findings as one JSON object.")] = False,
) -> int:
    """Compare answers with and without the draft, token by token.

    Asked at temperature 0 and at 0.7 with a seed. Exit code 0: identical; 1: at least one answer differs. With
    another cache type than f16 it also tells how far that changes the text, which no draft does. Settings that
    localspec tune saved are used as in a chat.
    """
    typed = shared.settings_typed(locals())
    from localspec.settings import load_settings

    settings = load_settings(typed)
    from localspec.measure.prompts import QUESTIONS, read_prompt_files

    questions = read_prompt_files(prompt_file) if prompt_file else QUESTIONS
    if quick:
        questions = questions[:_QUICK_QUESTIONS]
    launch = shared.prepared(target, draft, settings, profile=profile, force_draft=force_draft, yes=yes)
    for sentence in launch.notes:
        output.say(sentence)
    length = tokens or (_QUICK_TOKENS if quick else _TOKENS)
    return _verify(launch, launch.settings or settings, questions, length, as_json=json)


def _samplings(settings: Settings) -> tuple[Sampling, Sampling]:
    """The most likely token always, and a warm one with a seed; the person's truncation and penalties in both."""
    sampling = shared.fixed_sampling(settings)
    return replace(sampling, temperature=0.0), replace(sampling, temperature=settings.temperature or _WARM)


def _verify(
    launch: Launch, settings: Settings, questions: Sequence[Prompt], tokens: int, *, as_json: bool
) -> int:
    from localspec.cli.answer import StatusLine, ctrl_c_stops
    from localspec.errors import LocalspecError, UsageError
    from localspec.measure.verify import REFERENCE_KV, Verifier
    from localspec.worker.process import Worker

    assert launch.load is not None
    drafts, lossy = launch.load.draft.kind != "none", launch.load.kv_type != REFERENCE_KV
    if not drafts and not lossy:
        raise UsageError(
            "There is nothing to verify: no draft, and an f16 cache.",
            why=f"{launch.load.draft.off_reason.capitalize()}." if launch.load.draft.off_reason else "",
            hint=f"localspec verify {launch.target.id} --draft lookup",
        )
    line = StatusLine()
    check: Check | None = None
    agreement: Agreement | None = None
    with Worker() as worker, ctrl_c_stops(worker) as interrupted:
        verifier = Verifier(
            worker,
            questions,
            tokens,
            think=settings.think,
            progress=_shown(line, len(questions)),
            cancelled=lambda: bool(interrupted),
        )
        try:
            if drafts:
                check = verifier.check_draft(launch.load, _samplings(settings))
            if lossy and not interrupted:
                agreement = verifier.compare_cache(launch.load)
        except LocalspecError:
            if interrupted:
                return shared.INTERRUPTED
            raise
        finally:
            line.clear()
    if as_json:
        output.write_json(
            _object(check, agreement) | {"settings": _settings(launch, settings, questions, tokens)}
        )
    else:
        output.write("\n".join(_text(check, agreement, launch, questions)) + "\n")
    if check is not None and not check.identical:
        return 1
    return shared.INTERRUPTED if interrupted else 0


def _shown(line: Any, questions: int) -> Callable[[Progress], None]:
    def show(event: Progress) -> None:
        if event.stage == "load":
            line.show(f"Loading: {event.fraction:.0%}")
        else:
            what = "with and without the draft" if event.stage == "draft" else "with another cache"
            line.show(f"{event.fraction:4.0%}  question {event.question} of {questions}, {what}")

    return show


# ------------------------------------------------------------------------ text


def _text(
    check: Check | None, agreement: Agreement | None, launch: Launch, questions: Sequence[Prompt]
) -> list[str]:
    lines = []
    if check is not None:
        lines += _check_lines(check, questions)
    if agreement is not None:
        lines += ([""] if lines else []) + _agreement_lines(agreement)
    return lines


def _check_lines(check: Check, questions: Sequence[Prompt]) -> list[str]:
    partial = " (partial: stopped before the end)" if check.partial else ""
    answers = f"{check.answers} answer{'' if check.answers == 1 else 's'}"
    share = f"{check.accepted} of {check.drafted} drafted tokens were accepted"
    if check.identical:
        return [f"identical: {answers}, {check.tokens} tokens, with and without the draft{partial}", share]
    lines = [f"different: {len(check.differences)} of {answers}{partial}", share]
    for one in check.differences[:_SHOWN]:
        lines += ["", *_difference_lines(one, questions)]
    if len(check.differences) > _SHOWN:
        lines += ["", f"... and {len(check.differences) - _SHOWN} more (--json has all)"]
    return lines


def _difference_lines(one: Difference, questions: Sequence[Prompt]) -> list[str]:
    text = " ".join(questions[one.question].text.split())
    lines = [
        f"question {one.question + 1}, temperature {one.temperature:g}, token {one.position + 1}: {text[:40]}"
    ]
    if one.peeked is None:
        ended = "without" if one.without is None else "with" if one.with_draft is None else ""
        how = (
            f"the answer {ended} the draft ended here" if ended else f"token {one.without} / {one.with_draft}"
        )
        return [*lines, f"  {how}"]
    texts, alone, batched = one.peeked.texts, one.peeked.alone, one.peeked.batched
    lines.append(f"  {'':<26}{'alone':>10}{f'in a batch of {one.peeked.width}':>18}")
    for name, token in (("without", one.without), ("with draft", one.with_draft)):
        if token is not None:
            shown = f"{name}: {texts.get(token, '')!r}"[:26]
            lines.append(f"  {shown:<26}{alone.logits[token]:>10.4f}{batched.logits[token]:>18.4f}")
    if one.near_tie:
        said = "near tie: rounding between batch sizes decides it, not the draft"
    else:
        said = "no tie: rounding does not explain it; please report this"
    return [*lines, f"  margin {alone.margin:.4f} alone, {batched.margin:.4f} in the batch; {said}"]


def _agreement_lines(agreement: Agreement) -> list[str]:
    if not agreement.questions or agreement.share is None:
        return [f"{agreement.kv} cache beside f16: stopped before anything was compared"]
    every = agreement.tokens_per_difference
    return [
        f"{agreement.kv} cache beside f16, most likely tokens, no draft"
        + (" (partial)" if agreement.partial else ""),
        f"  {agreement.different} of {agreement.questions} answers differ;"
        f" {agreement.share:.1%} of positions come before any difference",
        "  about one differing choice in "
        + (f"{every:.0f} tokens" if every is not None else f"more than {agreement.agreed} tokens"),
        "  The cache type changes the text a little; a draft never does.",
    ]


def _object(check: Check | None, agreement: Agreement | None) -> dict[str, Any]:
    return {
        "kind": "localspec verify",
        "identical": check.identical if check else None,
        "answers": check.answers if check else 0,
        "tokens": check.tokens if check else 0,
        "drafted": check.drafted if check else 0,
        "accepted": check.accepted if check else 0,
        "partial": bool((check and check.partial) or (agreement and agreement.partial)),
        "differences": [one.to_json() for one in check.differences] if check else [],
        "cache": agreement.to_json() if agreement else None,
        "versions": dict(check.ready.versions) if check else None,
    }


def _settings(launch: Launch, settings: Settings, questions: Sequence[Prompt], tokens: int) -> dict[str, Any]:
    return {
        "target": launch.target.id,
        "draft": shared.typed_draft(launch),
        "profile": launch.profile or None,
        "n_draft": launch.load.n_draft if launch.load else None,
        "auto": launch.load.auto if launch.load else None,
        "kv": settings.kv,
        "tokens": tokens,
        "temperatures": [one.temperature for one in _samplings(settings)],
        "seed": _samplings(settings)[0].seed,
        "prompts": [one.digest for one in questions],
    }
