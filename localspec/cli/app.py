"""The command line: its commands, and how errors leave it. Importing this module must stay cheap."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import traceback
from typing import Annotated, Any

import typer

from localspec import __version__
from localspec.cli import output
from localspec.cli.shared import INTERRUPTED
from localspec.errors import LocalspecError, UsageError

COMMANDS = ("run", "bench", "tune", "verify", "pull", "models", "check", "doctor")
"""Modules of `localspec.cli` in the order of the help; each has one function `command`."""

_SUMMARY = "Run big local GGUF models at reading speed: speculative decoding, exact and measured."
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
    output.use_utf8()
    code = _run(arguments, as_json="--json" in arguments)
    try:
        if sys.stdout is not None:  # closed by whoever started us
            sys.stdout.flush()
    except (OSError, ValueError):
        _mute_stdout()
    sys.exit(code)


def _run(arguments: list[str], *, as_json: bool) -> int:
    try:
        returned = typer.main.get_command(build())(
            args=arguments, prog_name="localspec", standalone_mode=False
        )
    except LocalspecError as error:
        return _fail(error, as_json=as_json)
    except (KeyboardInterrupt, typer.Abort):
        output.say()
        return INTERRUPTED
    except BrokenPipeError:
        _mute_stdout()
        return 128 + getattr(signal, "SIGPIPE", 13)
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except Exception as error:
        # Typer's usage errors have no public base class; they can all say what is wrong.
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


def _usage(error: Any, arguments: list[str]) -> UsageError:
    command = next((name for name in COMMANDS if name in arguments), "")
    hint = f"localspec {command} --help" if command else "localspec --help"
    said = str(error.format_message()).strip().replace("\n", " ")
    return UsageError(said if said.endswith((".", "?", "!")) else f"{said}.", hint=hint)


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


def _mute_stdout() -> None:
    """Whoever read our output is gone: nothing more is written, at exit neither."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):
        sys.stdout = None
