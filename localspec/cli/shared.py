"""What several commands share: their flags, what to load, how a measurement begins and ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from localspec.cli import output
from localspec.errors import LocalspecError, UsageError
from localspec.options import OPTIONS

if TYPE_CHECKING:
    from localspec.chat.session import Session
    from localspec.chat.store import ConversationStore
    from localspec.launch import Launch
    from localspec.measure.surroundings import Surroundings
    from localspec.settings import Settings
    from localspec.spec.events import Sampling
    from localspec.worker.process import Worker

INTERRUPTED = 130


def option(name: str, **extra: Any) -> Any:
    """A flag with the words of `localspec.options`."""
    found = OPTIONS[name]
    return typer.Option(found.flag, help=found.sentence, show_default=False, **extra)


Draft = Annotated[str | None, option("draft", metavar="DRAFT")]
Lookup = Annotated[list[str] | None, option("lookup", metavar="FILE")]
NDraft = Annotated[str | None, option("n_draft", metavar="N")]
Temperature = Annotated[float | None, option("temperature", metavar="T")]
TopP = Annotated[float | None, option("top_p", metavar="P")]
TopK = Annotated[int | None, option("top_k", metavar="K")]
MinP = Annotated[float | None, option("min_p", metavar="P")]
RepeatPenalty = Annotated[float | None, option("repeat_penalty", metavar="X")]
Seed = Annotated[int | None, option("seed", metavar="N")]
Think = Annotated[bool | None, option("think")]
Ctx = Annotated[int | None, option("ctx", metavar="N")]
GpuLayers = Annotated[int | None, option("gpu_layers", metavar="N")]
DraftGpuLayers = Annotated[int | None, option("draft_gpu_layers", metavar="N")]
DraftDevice = Annotated[str | None, option("draft_device", metavar="DEVICE")]
DraftThreads = Annotated[int | None, option("draft_threads", metavar="N")]
Overlap = Annotated[str | None, option("overlap", metavar="WHEN")]
DraftKv = Annotated[str | None, option("draft_kv", metavar="TYPE")]
Kv = Annotated[str | None, option("kv", metavar="TYPE")]
Batch = Annotated[int | None, option("batch", metavar="N")]
Ubatch = Annotated[int | None, option("ubatch", metavar="N")]
Threads = Annotated[int | None, option("threads", metavar="N")]
ForceDraft = Annotated[
    bool, typer.Option("--force-draft", help="Take the draft although its vocabulary differs.")
]
Report = Annotated[
    Path | None,
    typer.Option(
        "--report",
        metavar="DIR",
        help="Also write a page with pictures there: report.html, and each picture as SVG and PNG.",
        show_default=False,
    ),
]
Profile = Annotated[
    str,
    typer.Option(
        "--profile",
        metavar="NAME",
        help="Settings that localspec tune saved: auto takes the target's newest, none leaves them out.",
        show_default=False,
    ),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Download what is missing without asking.")]
Json = Annotated[bool, typer.Option("--json", help="Print everything as one JSON object.")]


def settings_typed(values: Mapping[str, Any], *without: str) -> dict[str, Any]:
    """The settings among the `locals()` of a command; None where nothing was typed.

    Args:
        values: Arguments by name.
        without: Names that do not hold one value of a setting here. Target and draft never do.
    """
    return {
        name: value
        for name, value in values.items()
        if name in OPTIONS and name not in ("target", "draft", *without)
    }


def prepared(
    target: str | None,
    draft: str | None,
    settings: Settings,
    *,
    profile: str = "none",
    force_draft: bool = False,
    yes: bool,
) -> Launch:
    """What to load, with everything on this disk."""
    from localspec.cli.fetching import ready_to_launch
    from localspec.launch import prepare

    return ready_to_launch(
        lambda: prepare(target, draft, settings, force_draft=force_draft, profile=profile), yes=yes
    )


def typed_draft(launch: Launch) -> str:
    """The draft as it is typed after `--draft`."""
    if launch.draft is not None:
        return launch.draft.id
    return launch.load.draft.code or launch.load.draft.kind if launch.load else "none"


def new_session(
    worker: Worker,
    settings: Settings,
    *,
    stops: tuple[str, ...] = (),
    store: ConversationStore | None = None,
    about: dict[str, Any] | None = None,
) -> Session:
    """A conversation with these settings."""
    from localspec.chat.session import Session

    return Session(
        worker,
        system=settings.system,
        sampling=settings.sampling(),
        seed=settings.seed,
        max_tokens=settings.max_tokens,
        stops=stops,
        think=settings.think,
        store=store,
        about=about,
    )


def fixed_sampling(settings: Settings) -> Sampling:
    """The sampling with a seed in any case: the same text in every measurement, unless `--seed` says otherwise."""
    from localspec.measure.prompts import SEED

    return replace(settings.sampling(), seed=SEED if settings.seed is None else settings.seed)


def begin() -> tuple[str, Surroundings]:
    """Date and time, ISO 8601, and what else uses the machine; a busy machine is told."""
    from datetime import datetime, timezone

    from localspec.measure.surroundings import look

    when = datetime.now(timezone.utc).isoformat(timespec="seconds")
    surroundings = look()
    if surroundings.busy:
        output.say(f"Note: {surroundings.sentence}; figures will be low and vary.")
    return when, surroundings


def check_length(launch: Launch, tokens: int, program: str) -> None:
    """Refuse answers that no context holds, before anything is loaded for them.

    Args:
        launch: Of the pair.
        tokens: Of each answer.
        program: The command that measures, for the hint.

    Raises:
        UsageError: The context is too small.
    """
    size = launch.load.n_ctx if launch.load is not None else 0
    if 0 < size <= tokens:
        raise UsageError(
            f"Answers of {tokens} tokens do not fit into a context of {size}.",
            why="The prompt needs room there too.",
            hint=f"localspec {program} --tokens {size // 2}",
        )


def nothing_measured() -> int:
    """Say so. Returns the exit code."""
    output.say("Stopped before anything was measured.")
    return INTERRUPTED


def end(error: LocalspecError | None, *, partial: bool) -> int:
    """Tell what ended a measurement early, if something did. Returns the exit code."""
    if error is not None:
        output.show_error(error, as_json=False)
        return error.exit_code
    return INTERRUPTED if partial else 0


def clock(seconds: float) -> str:
    """Minutes and seconds."""
    minutes, rest = divmod(round(min(seconds, 359_999)), 60)
    return f"{minutes}:{rest:02d}"


def time_left(eta_s: float | None) -> str:
    """The end of a progress line; empty while it is not known."""
    return f"   {clock(eta_s)} left" if eta_s is not None else ""
