"""Text from outside made harmless, and numbers made readable."""

from __future__ import annotations

from rich.cells import cell_len
from textual.content import Content

MUTED = "$foreground 60%"
"""Style of labels and notes in content (`$text-muted` has its opacity only in style sheets)."""

EIGHTHS_UP = "▁▂▃▄▅▆▇█"
EIGHTHS_RIGHT = "▏▎▍▌▋▊▉█"
NOTHING = "–"
"""What stands for a figure that does not exist yet."""

_BIDI = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"


def _harmless() -> dict[int, str]:
    table = {code: chr(0x2400 + code) for code in range(0x20)}
    table |= dict.fromkeys(range(0x80, 0xA0), "\ufffd")
    table |= {ord(mark): "\ufffd" for mark in _BIDI}
    # Other separators that some line splitters know and some do not: one meaning for all.
    table |= {0x7F: "\u2421", 0x85: "\n", 0x2028: "\n", 0x2029: "\n", ord("\r"): "\n"}
    for kept in "\n\t":
        del table[ord(kept)]
    return table


_HARMLESS = _harmless()
_INVISIBLE = dict.fromkeys([0xAD, 0x200B, *range(0x2060, 0x2065), 0xFEFF, *range(0xE0000, 0xE0080)], "\ufffd")
"""What takes no cell and says nothing: harmless in an answer, a disguise in a name."""


def clean(text: str) -> str:
    """Text that cannot move the cursor, colour the screen or turn the reading order.

    Args:
        text: Anything: model output, a file name, an exception.

    Returns:
        The same text; control characters became visible stand-ins, every line end became a line feed.
    """
    return text.replace("\r\n", "\n").translate(_HARMLESS)


def one_line(text: str, width: int = 0) -> str:
    """Clean text on one line, what cannot be seen made visible; shortened in the middle to `width` cells.

    Args:
        text: Anything, often a name.
        width: Cells of the screen; 0 = as long as it is.
    """
    flat = " ".join(clean(text).translate(_INVISIBLE).split())
    if not width or cells(flat) <= width:
        return flat
    if width < 5:
        return _first_cells(flat, width)
    head = (width - 1) // 2
    return f"{_first_cells(flat, head)}…{_first_cells(flat[::-1], width - 1 - head)[::-1]}"


def cells(text: str) -> int:
    """Cells of the screen that a text takes: wide characters take two."""
    return cell_len(text)


def _first_cells(text: str, width: int) -> str:
    """As many characters from the start as fit into `width` cells."""
    taken = 0
    for place, character in enumerate(text):
        taken += cell_len(character)
        if taken > width:
            return text[:place]
    return text


def token(text: str, width: int = 0) -> str:
    """One token of a model on one line, its white space to be seen; shortened as `one_line` does."""
    for space, shown in (("\n", "⏎"), ("\t", "⇥"), (" ", "·")):
        text = text.replace(space, shown)
    return one_line(text, width)


def rate(value: float | None) -> str:
    """Tokens per second in at most five characters, such as `41.2`, `1,234` or `–`."""
    if value is None:
        return NOTHING
    if value >= 999.5:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value < 99.95 else f"{value:.0f}"


def seconds(value: float | None) -> str:
    """A duration, such as `0.42 s`, `12.3 s` or `2:05 min`."""
    if value is None:
        return NOTHING
    if value < 9.995:
        return f"{value:.2f} s"
    if value < 59.95:
        return f"{value:.1f} s"
    whole = round(value)
    return f"{whole // 60}:{whole % 60:02d} min"


def percent(value: float | None) -> str:
    """A share, such as `72 %`."""
    return NOTHING if value is None else f"{value * 100:.0f} %"


def gibibytes(used: int, total: int) -> str:
    """Memory in use and in all, such as `1.2/15.6 GiB`; only the first where the total is not known."""
    gib = 1024**3
    return f"{used / gib:.1f}/{total / gib:.1f} GiB" if total else f"{used / gib:.1f} GiB"


def column(value: float) -> str:
    """One bar that grows upwards for a share from 0 to 1: `▁` to `█`."""
    return EIGHTHS_UP[min(7, max(0, int(value * 8)))]


def bar(value: float, width: int) -> str:
    """A bar of at most `width` cells that grows to the right, in steps of an eighth of a cell."""
    eighths = round(min(1.0, max(0.0, value)) * width * 8)
    full, rest = divmod(eighths, 8)
    return "█" * full + (EIGHTHS_RIGHT[rest - 1] if rest else "")


def column_part(value: float, level: int, levels: int) -> str:
    """The cell on `level` (0 = lowest) of a bar `levels` cells high: `▁` to `█`, or a space."""
    eighths = max(1, round(min(1.0, max(0.0, value)) * levels * 8)) - level * 8
    return " " if eighths <= 0 else EIGHTHS_UP[min(8, eighths) - 1]


def columns(shares: tuple[float, ...], room: int) -> str:
    """Bars of the acceptance at positions 1, 2, ..., labelled with their positions where `room` cells allow.

    Args:
        shares: Acceptance at each position, 0 to 1.
        room: Cells that may be used.

    Returns:
        `1█ 2▆ 3▄`, or `▇▆▅▃▂ 1-5` in less room, or an empty text.
    """
    if not shares:
        return ""
    labelled = " ".join(f"{place}{column(share)}" for place, share in enumerate(shares, 1))
    if len(labelled) <= room:
        return labelled
    bars = "".join(column(share) for share in shares)
    return f"{bars} 1-{len(shares)}" if len(bars) + 5 <= room else bars[: max(0, room)]


def plain(text: str, style: str = "") -> Content:
    """Outside text as content that no markup parser ever sees."""
    return Content.styled(clean(text), style) if style else Content(clean(text))
