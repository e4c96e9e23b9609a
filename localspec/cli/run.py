"""`localspec run`: the chat on a terminal; one answer on stdout everywhere else."""

from __future__ import annotations

import select
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from localspec.cli import output, shared
from localspec.errors import UsageError
from localspec.options import OPTIONS

if TYPE_CHECKING:
    from localspec.launch import Launch
    from localspec.settings import Settings

_QUIET_S = 1.0


def command(  # Typer's way to name flags
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="TARGET",
            help=f"{OPTIONS['target'].help} Without one: the last pair, else the demo.",
            show_default=False,
        ),
    ] = None,
    draft: shared.Draft = None,
    n_draft: shared.NDraft = None,
    lookup: shared.Lookup = None,
    prompt: Annotated[
        str | None,
        typer.Option(
            "-p",
            "--prompt",
            metavar="TEXT",
            help="Answer this and leave. What comes on stdin is added below it.",
            show_default=False,
        ),
    ] = None,
    system: Annotated[str | None, shared.option("system", metavar="TEXT")] = None,
    temperature: shared.Temperature = None,
    top_p: shared.TopP = None,
    top_k: shared.TopK = None,
    min_p: shared.MinP = None,
    repeat_penalty: shared.RepeatPenalty = None,
    presence_penalty: Annotated[float | None, shared.option("presence_penalty", metavar="X")] = None,
    frequency_penalty: Annotated[float | None, shared.option("frequency_penalty", metavar="X")] = None,
    seed: shared.Seed = None,
    max_tokens: Annotated[int | None, shared.option("max_tokens", metavar="N")] = None,
    think: shared.Think = None,
    ctx: shared.Ctx = None,
    gpu_layers: shared.GpuLayers = None,
    draft_gpu_layers: shared.DraftGpuLayers = None,
    draft_device: shared.DraftDevice = None,
    draft_threads: shared.DraftThreads = None,
    draft_kv: shared.DraftKv = None,
    overlap: shared.Overlap = None,
    kv: shared.Kv = None,
    flash_attn: Annotated[str | None, shared.option("flash_attn", metavar="WHEN")] = None,
    split_mode: Annotated[str | None, shared.option("split_mode", metavar="MODE")] = None,
    threads: shared.Threads = None,
    batch: shared.Batch = None,
    ubatch: shared.Ubatch = None,
    template: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="A Jinja chat template in place of the model's own.", show_default=False
        ),
    ] = None,
    profile: shared.Profile = "auto",
    go_on: Annotated[
        bool,
        typer.Option("--continue", help="Go on with the conversation of the chat that was changed last."),
    ] = False,
    force_draft: Annotated[
        bool,
        typer.Option(
            "--force-draft", help="Take the draft although its vocabulary differs; the text stays exact."
        ),
    ] = False,
    yes: shared.Yes = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print the answer and its figures as one JSON object.")
    ] = False,
) -> int:
    """Chat with a model, or answer one prompt.

    On a terminal this opens the chat. With -p, with a prompt on stdin or with --json it writes the answer to
    stdout and the figures to stderr.
    """
    flags = shared.settings_typed(locals())
    if system is not None:
        flags["system"] = _as_typed(system)
    from localspec.settings import load_settings

    settings = load_settings(flags)
    chat = prompt is None and not json and output.is_terminal(sys.stdin) and output.is_terminal(sys.stdout)
    if chat and not output.can_draw(sys.stdout):
        raise UsageError(
            "This terminal cannot show the chat.",
            why="TERM is dumb: it knows no codes for the cursor.",
            hint='localspec run -p "Why is the sky blue?"',
        )
    if go_on and not chat:
        raise UsageError(
            "--continue belongs to the chat.",
            why="With -p, --json or a pipe one prompt is answered.",
            hint="localspec run --continue",
        )
    text = "" if chat else read_prompt(prompt)
    from localspec.cli.fetching import ready_to_launch
    from localspec.launch import prepare

    def prepared() -> Launch:
        return prepare(
            target,
            draft,
            settings,
            force_draft=force_draft,
            template_file=str(template) if template else "",
            profile=profile,
        )

    launch = ready_to_launch(prepared, yes=yes)
    settings = launch.settings or settings
    if chat:
        return _chat(launch, settings, go_on=go_on)
    from localspec.cli.answer import answer

    return answer(text, launch, settings, as_json=json)


def read_prompt(prompt: str | None) -> str:
    """The prompt of the flag, with what comes on stdin below it.

    Raises:
        UsageError: There is neither.
    """
    parts = [_as_typed(prompt)] if prompt is not None else []
    if sys.stdin is not None and not output.is_terminal(sys.stdin):
        _say_if_waiting()
        piped = sys.stdin.buffer.read().decode("utf-8", "replace").strip("\r\n")
        parts += [piped] if piped else []
    text = "\n\n".join(parts)
    if not text.strip():
        why = "Give it with -p or on stdin." if prompt is None else ""
        raise UsageError("There is no prompt.", why=why, hint='localspec run -p "Why is the sky blue?"')
    return text


def _say_if_waiting() -> None:
    """A pipe that nobody writes to or closes looks like a program that hangs: say what is waited for."""
    try:
        ready, _, _ = select.select([sys.stdin], [], [], _QUIET_S)
    except (OSError, ValueError):  # Windows can only wait for sockets
        return
    if not ready:
        output.say("Waiting for the prompt on stdin.")


def _as_typed(text: str) -> str:
    """An argument as UTF-8; a locale that is not leaves its bytes as surrogates."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _chat(launch: Launch, settings: Settings, *, go_on: bool) -> int:
    from localspec.chat.store import ConversationStore
    from localspec.tui.app import run_app
    from localspec.worker.process import Worker

    store = ConversationStore()
    last = store.newest() if go_on else None
    if go_on and last is None:
        raise UsageError(
            "There is no conversation to go on with.", why=f"{store.folder} holds none.", hint="localspec run"
        )
    with Worker() as worker:
        session = shared.new_session(
            worker,
            settings,
            store=store,
            about={"target": launch.target.id, "draft": launch.draft_name},
        )
        if last is not None:
            session.resume(last)
        return run_app(session, worker, launch, coloured=settings.show_drafted, theme=settings.theme)
