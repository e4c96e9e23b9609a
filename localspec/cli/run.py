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
_MOST_BYTES = 16 << 20
"""Of a prompt on stdin: some four million tokens, more than any context holds."""


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
    stop: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TEXT",
            help="End an answer before this text. May be given several times.",
            show_default=False,
        ),
    ] = None,
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
    stops = tuple(_as_typed(text) for text in stop or ())
    if "" in stops:
        raise UsageError("--stop is empty.", why="Allowed: text.", hint="localspec run --help")
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
        return _chat(launch, settings, go_on=go_on, stops=stops)
    from localspec.cli.answer import answer

    return answer(text, launch, settings, stops=stops, as_json=json)


def read_prompt(prompt: str | None) -> str:
    """The prompt of the flag, with what comes on stdin below it.

    Raises:
        UsageError: There is neither, or stdin cannot be read or does not end.
    """
    parts = [_as_typed(prompt)] if prompt is not None else []
    if sys.stdin is not None and not output.is_terminal(sys.stdin):
        _say_if_waiting(added=prompt is not None)
        piped = _read_stdin().decode("utf-8-sig", "replace").strip("\r\n")
        parts += [piped] if piped else []
    text = "\n\n".join(parts)
    if not text.strip():
        why = "Give it with -p or on stdin." if prompt is None else ""
        raise UsageError("There is no prompt.", why=why, hint='localspec run -p "Why is the sky blue?"')
    return text


def _read_stdin() -> bytes:
    try:
        data: bytes = sys.stdin.buffer.read(_MOST_BYTES + 1)
    except (OSError, ValueError) as error:  # open for writing only
        why = f"{getattr(error, 'strerror', None) or error}."
        raise UsageError("stdin cannot be read.", why=why, hint="localspec run < question.txt") from error
    if len(data) > _MOST_BYTES:
        raise UsageError(
            f"There is more than {_MOST_BYTES >> 20} MiB on stdin.",
            why="No model's context holds such a prompt.",
            hint="head -c 20000 FILE | localspec run",
        )
    return data


def _say_if_waiting(*, added: bool) -> None:
    """A pipe that nobody writes to or closes looks like a program that hangs: say what is waited for.

    It is waited for all the same: a slow program's output must not be left out of the prompt in silence.
    """
    try:
        ready, _, _ = select.select([sys.stdin], [], [], _QUIET_S)
    except (OSError, ValueError):  # Windows can only wait for sockets
        return
    if not ready:
        more = "Waiting for stdin to end; its text is added to the prompt (< /dev/null adds none)."
        output.say(more if added else "Waiting for the prompt on stdin.")


def _as_typed(text: str) -> str:
    """An argument as UTF-8; a locale that is not leaves its bytes as surrogates."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _chat(launch: Launch, settings: Settings, *, go_on: bool, stops: tuple[str, ...]) -> int:
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
            stops=stops,
            store=store,
            about={"target": launch.target.id, "draft": launch.draft_name},
        )
        if last is not None:
            session.resume(last)
        return run_app(session, worker, launch, coloured=settings.show_drafted, theme=settings.theme)
