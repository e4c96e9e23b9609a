"""Text from files made safe to show: no control character ever reaches a terminal raw."""

from __future__ import annotations

import os
import unicodedata
from pathlib import Path

_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
# Zs is kept: a plain space is one of them. Cf holds the marks that turn text around (U+202E).
_HIDDEN = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")


def printable(text: str | bytes) -> str:
    r"""The text with everything that is no visible character written as an escape.

    Args:
        text: Text, or bytes that should be UTF-8; a byte that is not becomes `\xNN`.

    Returns:
        Text without control, format, surrogate or unassigned characters: `\n`, `\x1b`, `\u202e`, ...
    """
    if isinstance(text, bytes):
        text = text.decode("utf-8", errors="surrogateescape")
    if text.isprintable():  # false for all that is hidden, and for wide spaces
        return text
    return "".join(_escape(char) for char in _rejoined(text))


def _rejoined(text: str) -> str:
    """File names that Python read byte by byte (in the C locale) put together again where they are UTF-8."""
    try:
        return text.encode("utf-8", errors="surrogateescape").decode("utf-8", errors="surrogateescape")
    except UnicodeEncodeError:  # half of a UTF-16 pair
        return text


def _escape(char: str) -> str:
    if char in _SHORT:
        return _SHORT[char]
    if unicodedata.category(char) not in _HIDDEN:
        return char
    code = ord(char)
    if 0xDC80 <= code <= 0xDCFF:  # a byte that was no UTF-8, as surrogateescape keeps it
        return f"\\x{code - 0xDC00:02x}"
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def shown(path: Path) -> str:
    """The path, safe to print."""
    return printable(os.fspath(path))


def edit_command(path: Path) -> str:
    """The command that opens a text file, to be pasted into a shell."""
    return f"{'notepad' if os.name == 'nt' else '${EDITOR:-nano}'} {shell_word(path)}"


def with_variable(name: str, value: str, command: str = "") -> str:
    """The command that sets a variable of the environment, for another command or for all that follow."""
    if os.name == "nt":  # PowerShell, which Windows opens by itself
        return f"$env:{name} = '{value}'" + (f"; {command}" if command else "")
    return f"{name}={shell_word(value)} {command}" if command else f"export {name}={shell_word(value)}"


def without_variables(*names: str) -> str:
    """The command that removes variables of the environment."""
    if os.name == "nt":
        return f"Remove-Item {', '.join(f'Env:{name}' for name in names)}"
    return f"unset {' '.join(names)}"


def variables_like(word: str) -> str:
    """The command that shows the variables of the environment with a word in their names."""
    return f"Get-ChildItem Env:*{word}*" if os.name == "nt" else f"env | grep -i {word}"


def shell_word(path: Path | str) -> str:
    """The path as one word of a command that can be pasted into a shell."""
    text = _rejoined(os.fspath(path))
    if printable(text) != text:
        data = text.encode("utf-8", errors="surrogateescape")
        raw = "".join(chr(b) if 0x20 < b < 0x7F and b not in b"'\\" else f"\\x{b:02x}" for b in data)
        return f"$'{raw}'"
    if os.name == "nt":
        return f'"{text}"' if " " in text else text
    safe = all(char.isalnum() or char in "@%+=:,./-_" for char in text)
    return text if safe and text else "'" + text.replace("'", "'\"'\"'") + "'"
