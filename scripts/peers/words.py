"""How the measuring scripts talk: stderr, and errors as the command does."""

from __future__ import annotations

import sys
from pathlib import Path

from localspec.errors import LocalspecError, UsageError


def say(text: str) -> None:
    """Talk on stderr; stdout is for results."""
    print(text, file=sys.stderr, flush=True)


def explain(error: LocalspecError) -> int:
    """Say what happened, why, and what to type next.

    Returns:
        The exit code.
    """
    say("\n".join(filter(None, (error.message, error.why, error.hint and f"Try: {error.hint}"))))
    return error.exit_code


def check_files(out: Path | None, *needed: Path | None) -> None:
    """Look at what was named before an hour is spent.

    Args:
        out: Where results will be written; None and `-` are nowhere.
        needed: Files that are read; None was not named.

    Raises:
        UsageError: A file is not there, or cannot be written there.
    """
    for path in needed:
        if path is not None and not path.is_file():
            raise UsageError(f"There is no file {path}.", hint=f"ls {path.parent}")
    if out is not None and out != Path("-"):
        if out.is_dir():
            raise UsageError(f"{out} is a folder; the results need a file.", hint=f"ls {out}")
        if not out.absolute().parent.is_dir():
            raise UsageError(f"There is no folder {out.parent} to write to.", hint=f"mkdir -p {out.parent}")


def check_folder(folder: Path | None) -> None:
    """The same for a folder that is made where it is not there.

    Raises:
        UsageError: It is no folder.
    """
    if folder is not None and folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is no folder.", hint=f"ls {folder.parent}")
