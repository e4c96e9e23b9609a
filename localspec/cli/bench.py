"""`localspec bench`: measure a pair honestly, and compare two measurements."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from localspec.cli import output, shared
from localspec.errors import UsageError
from localspec.options import OPTIONS

if TYPE_CHECKING:
    from localspec.launch import Launch
    from localspec.measure.bench import Measured, Progress, Protocol
    from localspec.measure.surroundings import Surroundings
    from localspec.settings import Settings


def command(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="TARGET", help=f"{OPTIONS['target'].help} Without one: the last pair.", show_default=False
        ),
    ] = None,
    draft: shared.Draft = None,
    n_draft: shared.NDraft = None,
    lookup: shared.Lookup = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="A first impression: shorter answers, two repeats.")
    ] = False,
    tokens: Annotated[
        int | None,
        typer.Option(
            "--tokens", metavar="N", help="Tokens of each answer. Default: 512.", show_default=False
        ),
    ] = None,
    skip: Annotated[
        int | None,
        typer.Option(
            "--skip",
            metavar="N",
            help="Tokens left out at the start of each. Default: 112.",
            show_default=False,
        ),
    ] = None,
    repeats: Annotated[
        int | None,
        typer.Option("--repeats", metavar="N", help="Pairs of each prompt. Default: 3.", show_default=False),
    ] = None,
    lengths: Annotated[
        str,
        typer.Option(
            "--lengths",
            metavar="N,N,...",
            help="Also tell the speed at these lengths of an answer, such as 200,2000,4000.",
            show_default=False,
        ),
    ] = "",
    prompt_file: Annotated[
        list[Path] | None,
        typer.Option(
            "--prompt-file",
            metavar="FILE",
            help='Your own prompts in place of ours: a text file each, or .jsonl with {"prompt", "kind", "system"}.',
            show_default=False,
        ),
    ] = None,
    compare: Annotated[
        tuple[Path, Path] | None,
        typer.Option(
            "--compare",
            metavar="A.json B.json",
            help="Measure nothing: say what changed between two results of --json.",
            show_default=False,
        ),
    ] = None,
    report: shared.Report = None,
    temperature: shared.Temperature = None,
    top_p: shared.TopP = None,
    top_k: shared.TopK = None,
    min_p: shared.MinP = None,
    repeat_penalty: shared.RepeatPenalty = None,
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
    json: shared.Json = False,
) -> int:
    """Measure a target with and without its draft, in pairs.

    Both sides run in alternating order on the same loaded models, from empty caches, with the same seed. Speed is
    told for the tokens after the first 112 of 512. Settings that localspec tune saved are used as in a chat. Ctrl+C
    keeps what was measured.
    """
    if compare is not None:
        return _compare(compare, as_json=json)
    typed = shared.settings_typed(locals())
    from localspec.settings import load_settings

    settings = load_settings(typed)
    protocol = _protocol(quick, {"tokens": tokens, "skip": skip, "repeats": repeats}, lengths)
    protocol.check()
    from localspec.measure.prompts import BUILT_IN, read_prompt_files

    prompts = read_prompt_files(prompt_file) if prompt_file else BUILT_IN
    if report is not None:
        from localspec.cli.pictures import make_folder

        make_folder(report)
    launch = shared.prepared(target, draft, settings, profile=profile, force_draft=force_draft, yes=yes)
    shared.check_length(launch, protocol.tokens, "bench")
    return _bench(launch, launch.settings or settings, protocol, prompts, as_json=json, folder=report)


def _protocol(quick: bool, given: dict[str, int | None], lengths: str) -> Protocol:
    from localspec.measure.bench import QUICK, Protocol

    wanted: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    protocol = replace(QUICK if quick else Protocol(), **wanted)
    if "tokens" in wanted and "skip" not in wanted and protocol.skip >= protocol.tokens:
        protocol = replace(protocol, skip=max(protocol.tokens * 112 // 512, 1))
    try:
        points = tuple(int(part) for part in lengths.replace(" ", ",").split(",") if part)
        if lengths and not points:
            raise ValueError(lengths)
    except ValueError as error:
        raise UsageError(
            f"--lengths {lengths} is not allowed.",
            why="Allowed: whole numbers with commas between them.",
            hint="localspec bench --lengths 200,2000,4000",
        ) from error
    return replace(protocol, lengths=points)


def _compare(files: tuple[Path, Path], *, as_json: bool) -> int:
    from localspec.cli.bench_report import comparison
    from localspec.measure.compare import compare, read_result

    found = compare(read_result(files[0]), read_result(files[1]))
    if as_json:
        output.write_json(found.to_json())
    else:
        output.write(comparison(found, (str(files[0]), str(files[1]))))
    return 0


def _bench(
    launch: Launch,
    settings: Settings,
    protocol: Protocol,
    prompts: Any,
    *,
    as_json: bool,
    folder: Path | None,
) -> int:
    from localspec.cli.answer import ctrl_c_stops
    from localspec.errors import LocalspecError
    from localspec.measure.bench import measure
    from localspec.worker.process import Worker

    assert launch.load is not None
    for sentence in launch.notes:
        output.say(sentence)
    far = [length for length in protocol.lengths if length >= launch.load.n_ctx > 0]
    if far:
        size, names = launch.load.n_ctx, ", ".join(map(str, far))
        output.say(f"Note: a context of {size} tokens ends before {names}; --ctx makes it longer.")
    when, surroundings = shared.begin()
    with Worker() as worker, ctrl_c_stops(worker) as interrupted:
        shown = ProgressLine()
        try:
            measured = measure(
                worker,
                launch.load,
                prompts,
                protocol,
                shared.fixed_sampling(settings),
                think=settings.think,
                progress=shown,
                cancelled=lambda: bool(interrupted),
            )
        except LocalspecError:
            if interrupted:
                return shared.INTERRUPTED
            raise
        finally:
            shown.clear()
    if not measured.runs:
        return shared.nothing_measured()
    for sentence in measured.ready.notes:
        output.say(sentence)
    _show(measured, launch, surroundings, when, as_json=as_json, folder=folder)
    return shared.end(measured.error, partial=measured.partial)


def _show(
    measured: Measured,
    launch: Launch,
    surroundings: Surroundings,
    when: str,
    *,
    as_json: bool,
    folder: Path | None,
) -> None:
    from localspec.cli import pictures
    from localspec.cli.bench_report import report
    from localspec.measure.advice import advise
    from localspec.measure.result import summarise, to_json
    from localspec.measure.seen import from_result
    from localspec.memory.hardware import seen_gpus

    result = summarise(measured)
    names = {"target": launch.target.id, "draft": shared.typed_draft(launch)}
    advice = advise(from_result(result, **names, surroundings=surroundings, gpus=seen_gpus()))
    if not as_json:
        output.write(report(result, advice, surroundings.sentence))
    found = to_json(
        result,
        when=when,
        names=names,
        profile=launch.profile,
        files=_files(measured) if as_json or folder is not None else {},
        surroundings=surroundings.to_json(),
        advice=[one.to_json() for one in advice],
    )
    if as_json:
        output.write_json(found)
    else:
        pictures.plot(found)
    if folder is not None:
        pictures.write_report(found, folder)


def _files(measured: Measured) -> dict[str, list[dict[str, Any]]]:
    """Hashes of what was measured. A partial result does not wait for them."""
    from localspec.cli.answer import StatusLine
    from localspec.measure.hashes import identify
    from localspec.models.gguf import read_header

    line = StatusLine()

    def progress(path: Path, share: float) -> bool:
        line.show(f"Reading {path.name} for its hash: {share:.0%}")
        return not measured.partial

    load = measured.load
    found = {
        role: identify(read_header(Path(path)).files, progress)
        for role, path in (("target", load.target), ("draft", load.draft.path))
        if path
    }
    line.clear()
    return found


class ProgressLine:
    """Where the measurement is, on stderr: a line that is written over, and one line for each complete answer."""

    def __init__(self) -> None:
        from localspec.cli.answer import StatusLine

        self._line = StatusLine()

    def __call__(self, event: Progress) -> None:
        """Show one event."""
        if event.run is not None:
            self._line.clear()
            output.say(f"{_where(event):<36} {event.run.tok_s:8.2f} tok/s{shared.time_left(event.eta_s)}")
        elif event.stage == "load":
            self._line.show(f"Loading the {event.kind}: {event.fraction:.0%}")
        else:
            words = {"warm-up": "Warming up", "costs": "Timing the parts of a round"}
            what = words.get(event.stage) or _where(event)
            self._line.show(f"{event.fraction:4.0%}  {what}{shared.time_left(event.eta_s)}")

    def clear(self) -> None:
        """Take the line away."""
        self._line.clear()


def _where(event: Progress) -> str:
    side = "with draft" if event.drafted else "baseline"
    if event.stage == "lengths":
        return f"speed over depth, {side}"
    return f"{event.kind[:16]}, {event.repeat}, {side}"
