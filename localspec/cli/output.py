"""What every command writes: output on stdout, talk on stderr, nothing raw from outside on a terminal."""

from __future__ import annotations

import json
import math
import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from collections.abc import Collection

    from localspec.errors import LocalspecError
    from localspec.spec.events import DraftStatus
    from localspec.spec.stats import Stats


def _visible() -> dict[int, str]:
    table = {code: chr(0x2400 + code) for code in range(0x20)}  # ␀ to ␟
    table[0x7F] = "␡"
    table |= {code: f"\\x{code:02x}" for code in range(0x80, 0xA0)}
    # Marks that turn the reading order can make a line say what it does not.
    table |= {code: f"\\u{code:04x}" for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A))}
    table |= {0xD: ""}
    for kept in "\n\t":
        del table[ord(kept)]
    return table


_VISIBLE = _visible()
_written: set[str] = set()


def printable(text: str) -> str:
    """Text with its lines and tabs kept and every other control character made visible.

    Characters are looked at one by one, so that a stream may be passed piece by piece.
    """
    return text.translate(_VISIBLE)


def begin() -> None:
    """Make stdout and stderr UTF-8 whatever the locale says; what cannot be encoded becomes an escape."""
    _written.clear()
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(encoding="utf-8", errors="backslashreplace")


def is_terminal(stream: TextIO | None) -> bool:
    """Whether a person sees what is written there (or types what is read there)."""
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # closed
        return False


def can_draw(stream: TextIO | None) -> bool:
    """Whether a person sees it on a terminal that knows the codes for colours and for the cursor."""
    return is_terminal(stream) and os.environ.get("TERM") != "dumb"


def say(text: str = "", *, end: str = "\n") -> None:
    """One line of talk on stderr. A stderr that is gone is no reason to stop."""
    stream = sys.stderr
    if stream is None:
        return
    try:
        stream.write((printable(text) if is_terminal(stream) else text) + end)
        stream.flush()
    except (OSError, ValueError):
        return


def say_dim(text: str) -> None:
    """Text in a faint colour, without a line end; for a terminal's stderr."""
    faint, plain = ("\x1b[2m", "\x1b[22m") if can_draw(sys.stderr) else ("", "")
    sys.stderr.write(f"{faint}{printable(text)}{plain}")
    sys.stderr.flush()


def has_written() -> bool:
    """Whether anything was written to stdout since `begin`."""
    return bool(_written)


def write(text: str) -> None:
    """Output on stdout, at once; on a terminal control characters are made visible."""
    _written.add("stdout")
    if sys.stdout is None:  # closed by whoever started us
        return
    try:
        sys.stdout.write(printable(text) if is_terminal(sys.stdout) else text)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        from localspec.errors import LocalspecError

        why = f"{error.strerror or error}."
        raise LocalspecError("The output could not be written.", why=why, hint="df -h .") from error


def write_json(value: object) -> None:
    """One JSON object on stdout, in one line. Numbers that are none become null."""
    write(json.dumps(_finite(value), ensure_ascii=False, allow_nan=False) + "\n")


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value


@dataclass(slots=True)
class _Typed:
    command: str = "run"
    flags: frozenset[str] = frozenset()


_typed = _Typed()


def command_typed(name: str, flags: Collection[str]) -> None:
    """From now on hints speak of this command in place of `run`, where it knows the flags that they name.

    Code that several commands share names `localspec run` in its hints.

    Args:
        name: The command.
        flags: All that it knows.
    """
    _typed.command, _typed.flags = name, frozenset(flags)


def _of_the_command(hint: str) -> str:
    start = "localspec run "
    if not hint.startswith(start):
        return hint
    flags = [word for word in hint.split() if word.startswith("-") and not word[1:].isdecimal()]
    known = flags and _typed.flags.issuperset(flags)
    return f"localspec {_typed.command} {hint.removeprefix(start)}" if known else hint


def show_error(error: LocalspecError, *, as_json: bool) -> None:
    """Three sentences on stderr; with `--json` one object on stdout instead."""
    error.hint = _of_the_command(error.hint)
    if as_json:
        write_json({"error": error.to_json()})
        return
    say(f"{error.title}: {error.message}")
    if error.why:
        say(f"  {error.why}")
    if error.hint:
        say(f"  Try: {error.hint}")


def size(count: int | None) -> str:
    """Bytes for people, in powers of ten as hubs and disks count: `16.5 GB`, `93 MB`, `?` when not known."""
    if count is None:
        return "?"
    if count < 1000:
        return f"{count} B"
    value, units = count / 1000, ["kB", "MB", "GB", "TB"]
    while value >= 999.5 and len(units) > 1:
        value /= 1000
        del units[0]
    digits = 1 if value < 99.95 and units[0] in ("GB", "TB") else 0
    return f"{value:.{digits}f} {units[0]}"


def draft_line(draft: DraftStatus) -> str:
    """`draft: on (name, k=4)`, `draft: on (name, k=auto, overlapped)` or `draft: off (reason)`."""
    if draft.state == "on":
        length = "k=auto" if draft.auto else f"k={draft.n_draft}"
        return f"draft: on ({draft.name}, {length}{', overlapped' if draft.overlap else ''})"
    return f"draft: off ({draft.reason})"


def figures(stats: Stats, draft: DraftStatus) -> str:
    """One line about an answer. A figure that does not exist is left out, never shown as 0."""
    parts = []
    if stats.decode_tok_s is not None:
        parts.append(f"{stats.decode_tok_s:.1f} tok/s")
    parts.append(f"{stats.completion_tokens} token{'' if stats.completion_tokens == 1 else 's'}")
    if stats.completion_tokens:
        parts.append(f"first after {stats.ttft_s:.2f} s")
    if stats.prompt_tok_s is not None:
        parts.append(f"prompt {stats.prompt_tok_s:.0f} tok/s")
    if stats.acceptance_rate is not None and stats.mean_accepted_length is not None:
        parts.append(f"accepted {stats.accepted} of {stats.drafted} ({stats.acceptance_rate:.0%})")
        if len(stats.by_source) > 1:
            shares = (f"{name} {one.accepted} of {one.drafted}" for name, one in stats.by_source.items())
            parts.append(f"of these {', '.join(shares)}")
        parts.append(f"{stats.mean_accepted_length:.2f} tokens a round")
    elif draft.state == "on":
        parts.append("no draft tokens")
    parts.append(draft_line(draft))
    return " · ".join(parts)
