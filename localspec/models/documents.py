"""Text files of a person's own, for lookup."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from localspec.errors import UsageError
from localspec.models.text import shell_word, shown

MOST_BYTES = 16 << 20
"""Of all files together; they are about as many tokens as a quarter of that."""


def read_documents(files: Sequence[str | Path]) -> list[tuple[Path, str]]:
    """The texts of some files, each with its path.

    Args:
        files: Text in UTF-8, with or without a byte order mark.

    Raises:
        UsageError: A file that is missing, a folder, too large, or not text.
    """
    found: list[tuple[Path, str]] = []
    left = MOST_BYTES
    for file in files:
        path = Path(file).expanduser()
        data = _read(path, left)
        left -= len(data)
        found.append((path, _text(path, data)))
    return found


def _read(path: Path, left: int) -> bytes:
    try:
        if path.is_dir():
            raise UsageError(
                f"{shown(path)} is a folder.",
                why="--lookup takes one file; it can be given several times.",
                hint=f"ls {shell_word(path)}",
            )
        if not path.exists():
            raise UsageError(f"There is no file {shown(path)}.", hint=f"ls {shell_word(path.parent)}")
        if not path.is_file():
            raise UsageError(f"{shown(path)} is no ordinary file.", hint=f"ls -l {shell_word(path)}")
        with path.open("rb") as opened:
            data = opened.read(left + 1)
    except (OSError, ValueError) as error:
        said = getattr(error, "strerror", None) or str(error)
        raise UsageError(
            f"{shown(path)} cannot be read.", why=f"{said}.", hint=f"ls -l {shell_word(path)}"
        ) from error
    if len(data) > left:
        raise UsageError(
            f"{shown(path)} is too large for --lookup.",
            why=f"All files together may have {MOST_BYTES >> 20} MiB.",
            hint=f"ls -l {shell_word(path)}",
        )
    return data


def _text(path: Path, data: bytes) -> str:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{shown(path)} is not text in UTF-8.",
            why=f"The byte at {error.start:,} does not belong there.",
            hint=f"file {shell_word(path)}",
        ) from error
    if "\0" in text:
        raise UsageError(
            f"{shown(path)} is not text.",
            why="It holds bytes of 0, as programs and pictures do.",
            hint=f"file {shell_word(path)}",
        )
    return text
