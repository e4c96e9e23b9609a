"""The command line: its commands, and how errors leave it. Importing this module must stay cheap."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from localspec import __version__
from localspec.cli import output
from localspec.cli.shared import INTERRUPTED
from localspec.errors import LocalspecError, UsageError
from localspec.options import OPTIONS

COMMANDS = ("run", "bench", "tune", "verify", "pull", "models", "check", "doctor")
"""Modules of `localspec.cli` in the order of the help; each has one function `command`."""

_SUMMARY = "Run big local GGUF models at reading speed: speculative decoding, exact and measured."
_EXIT_CODES = (
    "Exit codes: 0 done; 1 it failed, or check and verify found a difference; 2 it cannot be done as it was typed; "
    "130 stopped with Ctrl+C; 141 nobody reads the output any more."
)
_SETTINGS = {"help_option_names": ["-h", "--help"]}


def _show_version(wanted: bool) -> None:
    if wanted:
        output.write(f"localspec {__version__}\n")
        raise typer.Exit


def build() -> typer.Typer:
    """The application with all its commands. Command modules import nothing heavy at their top."""
    app = typer.Typer(
        name="localspec",
        help=_SUMMARY,
        epilog=_EXIT_CODES,
        add_completion=False,
        rich_markup_mode=None,  # plain help: quick, and brackets stay brackets
        pretty_exceptions_enable=False,
        context_settings=_SETTINGS,
    )

    @app.callback()
    def main(
        version: Annotated[
            bool,
            typer.Option("--version", help="Print the version.", is_eager=True, callback=_show_version),
        ] = False,
    ) -> None:
        pass

    main.__doc__ = _SUMMARY
    for name in COMMANDS:
        module = importlib.import_module(f"localspec.cli.{name}")
        app.command(name, context_settings=_SETTINGS)(module.command)
    return app


def run(arguments: list[str] | None = None) -> None:
    """Entry point: run one command and end the process with its exit code. Never shows a traceback."""
    arguments = sys.argv[1:] if arguments is None else arguments
    arguments = arguments or ["--help"]
    _fill_standard_streams()
    output.begin()
    as_json = "--json" in arguments
    with _ctrl_c_seen() as seen:
        code = _run(arguments, as_json=as_json, stopped=lambda: bool(seen))
    if as_json and code == INTERRUPTED and not output.has_written():
        # Who reads JSON gets one object in any case.
        _fail(LocalspecError("Stopped before there was a result."), as_json=True)
    try:
        if sys.stdout is not None:  # closed by whoever started us
            sys.stdout.flush()
    except (OSError, ValueError):
        _mute_stdout()
    sys.exit(code)


def _fill_standard_streams() -> None:
    """Put the null device where a standard stream was closed: the next file opened would get its number.

    The engine's pipe would then be what a library takes for stdout.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one


@contextmanager
def _ctrl_c_seen() -> Iterator[list[bool]]:
    """Raise `KeyboardInterrupt` as ever, and remember it: a library may turn it into an error of its own.

    Yields:
        A list that is empty until then.
    """
    seen: list[bool] = []

    def stop(number: int, frame: Any) -> None:
        seen.append(True)
        raise KeyboardInterrupt

    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler:  # ignored in a shell's background, or somebody else's
        yield seen
        return
    signal.signal(signal.SIGINT, stop)
    try:
        yield seen
    finally:
        signal.signal(signal.SIGINT, before)


def _run(arguments: list[str], *, as_json: bool, stopped: Callable[[], bool]) -> int:
    try:
        program: Any = typer.main.get_command(build())
        if name := _command(arguments):
            options = program.commands[name].params
            output.command_typed(name, {"--help", *(flag for one in options for flag in one.opts)})
        returned = program(args=arguments, prog_name="localspec", standalone_mode=False)
    except LocalspecError as error:
        return _fail(error, as_json=as_json)
    except (KeyboardInterrupt, typer.Abort):
        output.say()
        return INTERRUPTED
    except BrokenPipeError:
        return _reader_gone()
    except SystemExit as leaving:
        if isinstance(leaving.__context__, BrokenPipeError):  # Typer made this of it
            return _reader_gone()
        return leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except Exception as error:
        # Typer's usage errors have no public base class; they can all say what is wrong.
        if stopped():
            return INTERRUPTED
        if hasattr(error, "format_message"):
            return _fail(_usage(error, arguments), as_json=as_json)
        return _fail(_unexpected(error), as_json=as_json)
    return returned if isinstance(returned, int) else 0


def _fail(error: LocalspecError, *, as_json: bool) -> int:
    try:
        output.show_error(error, as_json=as_json)
    except BrokenPipeError:
        _mute_stdout()
    except LocalspecError:  # stdout takes nothing: stderr may
        output.show_error(error, as_json=False)
    return error.exit_code


def _command(arguments: list[str]) -> str:
    """The command among what was typed; empty where there is none."""
    return next((word for word in arguments if word in COMMANDS), "")


def _usage(error: Any, arguments: list[str]) -> UsageError:
    command = _command(arguments)
    hint = f"localspec {command} --help" if command else _meant(arguments[0])
    said = str(error.format_message()).strip().replace("\n", " ")
    option = OPTIONS.get(getattr(getattr(error, "param", None), "name", None) or "")
    why = f"Allowed: {option.allowed}." if option is not None else ""
    return UsageError(said if said.endswith((".", "?", "!")) else f"{said}.", why=why, hint=hint)


def _meant(word: str) -> str:
    """What to type in place of a command that does not exist: many begin with the model."""
    from localspec.models.catalog import load_catalog
    from localspec.models.text import shell_word

    try:
        model = word.lower().endswith(".gguf") or "/" in word or load_catalog().knows(word)
    except LocalspecError:
        model = False
    return f"localspec run {shell_word(word)}" if model and not word.startswith("-") else "localspec --help"


def _unexpected(error: Exception) -> LocalspecError:
    """A fault of ours: one sentence here, the traceback in a file (and shown, if `LOCALSPEC_DEBUG` is set)."""
    if os.environ.get("LOCALSPEC_DEBUG"):
        traceback.print_exc()
    from localspec import paths

    file = paths.log_dir() / "error.log"
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a", encoding="utf-8") as log:
            log.write(f"localspec {__version__}, Python {sys.version}\n")
            traceback.print_exc(file=log)
        where = f"The details are in {file}."
    except OSError:
        where = "Set LOCALSPEC_DEBUG=1 to see the details."
    text = " ".join(str(error).split())
    return LocalspecError(
        f"Something unexpected happened ({type(error).__name__}{': ' + text if text else ''}).",
        why=where,
        hint="localspec doctor",
    )


def _reader_gone() -> int:
    _mute_stdout()
    return 128 + getattr(signal, "SIGPIPE", 13)


def _mute_stdout() -> None:
    """Whoever read our output is gone: nothing more is written, at exit neither."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):
        sys.stdout = None
