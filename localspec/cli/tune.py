"""`localspec tune`: the fastest settings for this machine and this target, kept as a profile."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from localspec.cli import output, shared, tune_inputs
from localspec.options import AUTO_N_DRAFT, OPTIONS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from localspec.launch import Launch
    from localspec.measure.prompts import Prompt
    from localspec.measure.tune_cells import Candidate
    from localspec.measure.tune_found import Event, Tuned
    from localspec.measure.tune_runs import Effort
    from localspec.measure.tune_sweeps import Knobs
    from localspec.settings import Settings
    from localspec.worker.protocol import Load


def command(  # Typer's way to name flags
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="TARGET", help=f"{OPTIONS['target'].help} Without one: the last one.", show_default=False
        ),
    ] = None,
    drafts: Annotated[
        str,
        typer.Option(
            "--drafts",
            metavar="A,B,...",
            help="Drafters to try, as after --draft. Default: all that are on this disk and match, and lookup.",
            show_default=False,
        ),
    ] = "",
    quick: Annotated[
        bool, typer.Option("--quick", help="A first impression: shorter answers, fewer repeats.")
    ] = False,
    exhaustive: Annotated[
        bool, typer.Option("--exhaustive", help="Measure every draft length too, and say what was missed.")
    ] = False,
    tokens: Annotated[
        int | None,
        typer.Option(
            "--tokens",
            min=32,
            max=100_000,
            metavar="N",
            help="Tokens of each answer. Default: 256, with --quick 128.",
            show_default=False,
        ),
    ] = None,
    repeats: Annotated[
        int | None,
        typer.Option(
            "--repeats",
            min=2,
            max=1000,
            metavar="N",
            help="Answers to each prompt, at the most, in which the choice has to win. Default: 3, with --quick 2.",
            show_default=False,
        ),
    ] = None,
    temperature: Annotated[
        str,
        typer.Option(
            "--temp",
            metavar="T[,T...]",
            help="Temperature to tune for. Others behind it are shown beside it and never chosen: they change the text."
            " Default: 0.7.",
            show_default=False,
        ),
    ] = "",
    top_p: Annotated[
        str,
        typer.Option(
            "--top-p",
            metavar="P[,P...]",
            help="Top-p to tune for. Others behind it are shown beside it and never chosen: they change the text."
            " Default: 0.95.",
            show_default=False,
        ),
    ] = "",
    kv: Annotated[
        str,
        typer.Option(
            "--kv",
            metavar="TYPE[,TYPE...]",
            help="Cache types to try, the first one unless another is faster; one that changes the text a little is"
            " said to. Default: f16,q8_0.",
            show_default=False,
        ),
    ] = "",
    threads: Annotated[
        str,
        typer.Option(
            "--threads",
            metavar="N[,N...]",
            help="CPU threads to try, where the CPU computes. Default: a few around the number of cores.",
            show_default=False,
        ),
    ] = "",
    batch: Annotated[
        str,
        typer.Option(
            "--batch",
            metavar="N[,N...]",
            help="Prompt tokens in one evaluation to try, by prompt speed. Default: not tried.",
            show_default=False,
        ),
    ] = "",
    ubatch: Annotated[
        str,
        typer.Option(
            "--ubatch",
            metavar="N[,N...]",
            help="Tokens computed at once to try, by prompt speed. Default: 128 to 2048 where a GPU computes.",
            show_default=False,
        ),
    ] = "",
    prompt_file: Annotated[
        list[Path] | None,
        typer.Option(
            "--prompt-file",
            metavar="FILE",
            help="Your own prompts in place of ours, as for bench.",
            show_default=False,
        ),
    ] = None,
    report: shared.Report = None,
    name: Annotated[
        str,
        typer.Option(
            "--name",
            metavar="NAME",
            help="Name of the profile. Default: made of target, draft and machine.",
            show_default=False,
        ),
    ] = "",
    lookup: shared.Lookup = None,
    top_k: shared.TopK = None,
    seed: shared.Seed = None,
    think: shared.Think = None,
    ctx: shared.Ctx = None,
    gpu_layers: shared.GpuLayers = None,
    draft_gpu_layers: shared.DraftGpuLayers = None,
    draft_device: Annotated[
        str,
        typer.Option(
            "--draft-device",
            metavar="DEVICE[,DEVICE...]",
            help="Where a draft model runs; with several, the others are tried for the fastest draft. Default: auto.",
            show_default=False,
        ),
    ] = "",
    draft_threads: Annotated[
        str,
        typer.Option(
            "--draft-threads",
            metavar="N[,N...]",
            help="CPU threads of the draft to try, the first one unless another is faster. Default: as the target's.",
            show_default=False,
        ),
    ] = "",
    draft_kv: shared.DraftKv = None,
    overlap: Annotated[
        str,
        typer.Option(
            "--overlap",
            metavar="WHEN[,WHEN...]",
            help="Let the draft model draft on while the target verifies: auto, on or off; several are all tried."
            " Default: tried where target and draft run on different devices.",
            show_default=False,
        ),
    ] = "",
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Download a missing target without asking.")
    ] = False,
    json: shared.Json = False,
) -> int:
    """Find the fastest settings for this machine, and keep them.

    Drafters, draft lengths, cache types and threads are tried. What a draft would earn is predicted from a few answers;
    only the best few settings are measured, beside no draft.
    localspec run uses the result by itself. Ctrl+C shows the best so far; it is saved if it was confirmed by then.
    """
    from localspec.measure.prompts import BUILT_IN, read_prompt_files
    from localspec.profiles import check_name

    if name:
        check_name(name)
    if report is not None:
        from localspec.cli.pictures import make_folder

        make_folder(report)
    lists = tune_inputs.lists(
        temperature=temperature,
        top_p=top_p,
        kv=kv,
        threads=threads,
        batch=batch,
        ubatch=ubatch,
        draft_device=draft_device,
        draft_threads=draft_threads,
        overlap=overlap,
    )
    settings = tune_inputs.settings_of(shared.settings_typed(locals(), *lists), lists)
    prompts = read_prompt_files(prompt_file) if prompt_file else BUILT_IN
    effort = tune_inputs.effort(quick, tokens, repeats)
    launch = shared.prepared(_last_target(settings) if target is None else target, "none", settings, yes=yes)
    shared.check_length(launch, effort.tokens, "tune")
    return _tune(
        launch,
        settings,
        tune_inputs.candidates(launch, drafts),
        prompts,
        effort,
        tune_inputs.knobs(lists, settings),
        exhaustive=exhaustive,
        name=name,
        folder=report,
        as_json=json,
    )


def _last_target(settings: Settings) -> str:
    """What `localspec run` would load."""
    from localspec.launch import prepare

    return prepare(None, None, settings).target.id


def _tune(
    launch: Launch,
    settings: Settings,
    candidates: Sequence[Candidate],
    prompts: Sequence[Prompt],
    effort: Effort,
    knobs: Knobs,
    *,
    exhaustive: bool,
    name: str,
    folder: Path | None,
    as_json: bool,
) -> int:
    from localspec.cli.answer import ctrl_c_stops
    from localspec.errors import LocalspecError
    from localspec.measure.tune import tune
    from localspec.worker.process import Worker

    when, _ = shared.begin()
    output.say(f"Drafters to try: {', '.join(['no draft', *(one.label for one in candidates)])}.")
    if settings.lookup:
        output.say(
            "Lookup searches your files too. They are not kept in the profile: give --lookup to run as well."
        )
    with Worker() as worker, ctrl_c_stops(worker) as interrupted:
        shown = Shown()
        try:
            tuned = tune(
                worker,
                _base(launch, settings),
                candidates,
                prompts,
                effort,
                shared.fixed_sampling(settings),
                knobs=knobs,
                exhaustive=exhaustive,
                think=settings.think,
                tell=shown,
                cancelled=lambda: bool(interrupted),
            )
        except LocalspecError:
            if interrupted:
                return shared.INTERRUPTED
            raise
        finally:
            shown.clear()
    if tuned.choice is None:
        return shared.nothing_measured()
    _finish(tuned, launch, when, name=name, folder=folder, as_json=as_json)
    return shared.end(tuned.error, partial=tuned.partial)


def _base(launch: Launch, settings: Settings) -> Load:
    """What is loaded first, and what everything that is tried differs from."""
    assert launch.load is not None
    return replace(
        launch.load,
        n_draft=min(AUTO_N_DRAFT, launch.load.at_once - 1),
        auto=False,
        lookup_files=settings.lookup_files,
    )


def _finish(
    tuned: Tuned, launch: Launch, when: str, *, name: str, folder: Path | None, as_json: bool
) -> None:
    """Save the profile, then show. What was measured is shown even where it cannot be saved.

    Once drafter and length have won twice they are saved, even if the other settings were not all tried.
    """
    from localspec.cli import pictures
    from localspec.cli.tune_report import report
    from localspec.errors import LocalspecError
    from localspec.measure.tune_result import to_json, to_profile
    from localspec.profiles import save

    file: Path | None = None
    problem: LocalspecError | None = None
    if tuned.confirmed:
        try:
            file = save(to_profile(tuned, when=when, target=launch.target.id, name=name))
        except LocalspecError as error:
            problem = error
    found = to_json(tuned, when=when, target=launch.target.id, profile=file)
    if as_json:
        output.write_json(found)
    else:
        output.write(report(tuned, file))
        pictures.plot(found)
    if folder is not None:
        pictures.write_report(found, folder)
    if problem is not None:
        output.show_error(problem, as_json=False)


class Shown:
    """Talk on stderr: a progress line that is written over, and tables as they come."""

    def __init__(self) -> None:
        from localspec.cli.answer import StatusLine

        self._line = StatusLine()
        self._curve_shown = False

    def __call__(self, event: Event) -> None:
        """Show one event."""
        from localspec.cli import tune_report
        from localspec.measure.tune_cells import Profile, Sweep
        from localspec.measure.tune_runs import Step

        if isinstance(event, Step):
            self._line.show(f"{event.fraction:4.0%}  {event.what}{shared.time_left(event.eta_s)}")
            return
        self._line.clear()
        if isinstance(event, str):
            output.say(event)
        elif isinstance(event, Profile):
            output.say(tune_report.profile_table(event, curve=not self._curve_shown))
            self._curve_shown = True
        elif isinstance(event, Sweep):
            output.say(tune_report.sweep_table(event))
        else:
            output.say(tune_report.race_table(event))

    def clear(self) -> None:
        """Take the progress line away."""
        self._line.clear()
