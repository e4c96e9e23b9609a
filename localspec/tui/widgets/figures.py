"""The live figures: a few lines under the prompt, or a panel beside the conversation where there is room."""

from __future__ import annotations

from dataclasses import dataclass, field

from textual.content import Content
from textual.widgets import Static

from localspec.spec.events import DraftStatus
from localspec.spec.stats import Stats
from localspec.tui import text
from localspec.worker.protocol import MemoryUse

Part = tuple[str, str]
"""A text and its style."""

_LABEL = text.MUTED
_VALUE = "bold"
_GAP: Part = ("   ", "")
NEAR = 1.03
"""Up to this factor two speeds are called the same."""


@dataclass(frozen=True, slots=True)
class Figures:
    """All that the figures show."""

    draft: DraftStatus = field(default_factory=lambda: DraftStatus("off", "nothing is loaded yet"))
    stats: Stats = field(default_factory=Stats)
    now_tok_s: float | None = None
    context_used: int = 0
    context_size: int = 0
    memory: MemoryUse | None = None
    target_on: str = ""
    """Where the target runs: `CPU`, or the GPU's name; empty while nothing is loaded."""
    draft_on: str = ""
    """The same of a draft model; empty without one."""

    @property
    def tok_s(self) -> float | None:
        """Tokens per second now; after the answer, of the whole answer."""
        return self.stats.decode_tok_s if self.now_tok_s is None else self.now_tok_s

    @property
    def plain_tok_s(self) -> float | None:
        """What this target makes on this machine without a draft, as far as it is known."""
        return 1 / self.draft.plain_s if self.draft.plain_s > 0 else None

    @property
    def net_speedup(self) -> float | None:
        """Speed over plain decoding's; None while one of the two is not known, and where nothing was drafted."""
        tok_s, plain = self.tok_s, self.plain_tok_s
        return tok_s / plain if tok_s and plain and self.stats.drafted else None


class FiguresView(Static):
    """Shows `Figures`; paints only when what it would show has changed."""

    def __init__(self, *, id: str) -> None:
        super().__init__("", id=id, markup=False)
        self._figures = Figures()
        self._panel = False
        self._shown: Content | None = None
        self._lines = 0

    def show(self, figures: Figures) -> None:
        """Show new figures."""
        self._figures = figures
        self._paint()

    def lay_out(self, *, panel: bool) -> None:
        """As a panel of one figure a line, or as few lines as the width allows."""
        self._panel = panel
        self._paint()

    def on_resize(self) -> None:
        """Lay the figures out for the new width."""
        self._paint()

    def _paint(self) -> None:
        width = self.content_size.width
        if width <= 0:
            return
        lines = panel(self._figures, width) if self._panel else strip(self._figures, width)
        content = Content("\n").join(lines)
        if self._shown is not None and content.is_same(self._shown):
            return
        count = len(lines)
        self.update(content, layout=count != self._lines)
        self._shown, self._lines = content, count


def draft_parts(draft: DraftStatus) -> list[Part]:
    """`draft: on` and its name, or `draft: off` and why."""
    name = text.one_line(draft.name)
    if draft.state == "on":
        name += ", overlapped" if draft.overlap else ""
        return [("draft: ", _LABEL), ("on", "bold $text-success"), (f"  {name}", "")]
    reason = text.one_line(draft.reason) or "no reason was given"
    return [("draft: ", _LABEL), ("off", "bold $text-warning"), (f": {reason}", "$text-warning")]


def _figure(label: str, value: str, unit: str = "") -> list[Part]:
    return [(f"{label} ", _LABEL), (value, _VALUE), (f" {unit}" if unit else "", _LABEL)]


def _length(parts: list[Part]) -> int:
    return sum(text.cells(part[0]) for part in parts)


def _content(parts: list[Part]) -> Content:
    return Content.assemble(*(part if part[1] else part[0] for part in parts))


def _common(figures: Figures) -> tuple[str, str, str, str]:
    stats = figures.stats
    mean = stats.mean_accepted_length
    return (
        text.rate(figures.now_tok_s),
        text.rate(stats.decode_tok_s),
        text.seconds(stats.ttft_s or None),
        text.NOTHING if mean is None else f"{mean:.2f}",
    )


def _draft_length(figures: Figures) -> str:
    """`4`, or `4 auto` where each round's length is chosen by price; before there was a round `≤31 auto`."""
    draft = figures.draft
    shown = str(draft.n_draft) if draft.n_draft else text.NOTHING
    if not draft.auto:
        return shown
    return f"{shown} auto" if figures.stats.rounds or not draft.n_draft else f"≤{shown} auto"


def _acceptance(stats: Stats) -> str:
    # A round that drafted nothing is no failure of the draft: no figure rather than 0 %.
    return text.percent(stats.acceptance_rate)


def _context(figures: Figures) -> str:
    return f"{figures.context_used:,}/{figures.context_size:,}" if figures.context_size else text.NOTHING


def strip(figures: Figures, width: int) -> list[Content]:
    """The figures in as few lines as `width` cells allow; the draft's state is never cut."""
    stats = figures.stats
    now, answer, ttft, mean = _common(figures)
    k = _draft_length(figures)
    speeds = [_figure("now", f"{now:>5}"), _figure("answer", f"{answer:>5}", "tok/s")]
    accepts = [_figure("accepted", f"{_acceptance(stats):>5}"), _figure("mean length", f"{mean:>5}")]
    speed = [*speeds[0], ("  ", ""), *speeds[1]]
    accepted = [*accepts[0], ("  ", ""), *accepts[1]]
    first = _figure("TTFT", f"{ttft:>6}")
    context = _figure("context", _context(figures))
    net = _net(figures)
    columns = [max(_length(speed), _length(accepted)), max(_length(first), len(f"k {k}"))]
    room = width - sum(columns) - 2 * len(_GAP[0])
    if room < max(_length(context), len("at position ") + 6):
        groups = [*speeds, net, first, context, *accepts, _figure("k", k), *_bars(stats, width)]
        lines, net = _flow([group for group in groups if group], width), []
    else:
        lines = [
            [*_pad(speed, columns[0]), _GAP, *_pad(first, columns[1]), _GAP, *context],
            [*_pad(accepted, columns[0]), _GAP, *_pad(_figure("k", k), columns[1]), _GAP],
        ]
        lines[1] += [part for group in _bars(stats, room) for part in group]
    return [_content(line) for line in lines] + _last_lines(figures, width, net)


def _net(figures: Figures) -> list[Part]:
    """The net speedup, in the warning's colour where the draft loses."""
    net = figures.net_speedup
    if net is None:
        return []
    return [("net ", _LABEL), (f"{net:.2f}×", net_style(net))]


def _predicted(draft: DraftStatus) -> list[Part]:
    return [] if draft.predicted is None else [(f" ({draft.predicted:.2f}× predicted)", _LABEL)]


def net_style(net: float) -> str:
    """How a net speedup is coloured."""
    return "bold $text-warning" if net < 1 / NEAR else "bold $text-success" if net > NEAR else _VALUE


def _last_lines(figures: Figures, width: int, net: list[Part]) -> list[Content]:
    """The draft's state; at the end of its line `net` if it fits, and the memory, else on a line of its own."""
    lines = _wrap(draft_parts(figures.draft), width)
    memory = figures.memory
    used = _figure(memory.label, text.gibibytes(memory.used, memory.total)) if memory is not None else []
    behind = [_GAP, *used] if used else []
    long = [*net, *_predicted(figures.draft), *behind]
    for end in (long, [*net, *behind], used) if net else (used,):
        gap = width - lines[-1].cell_length - _length(end)
        if end and gap >= len(_GAP[0]):
            return [*lines[:-1], lines[-1] + " " * gap + _content(end)]
    return [*lines, _content(used)] if used else lines


def _bars(stats: Stats, room: int) -> list[list[Part]]:
    label = "at position "
    bars = text.columns(stats.per_position, room - len(label))
    return [[(label, _LABEL), (bars, "$text-accent")]] if bars else []


def _pad(parts: list[Part], width: int) -> list[Part]:
    return [*parts, (" " * (width - _length(parts)), "")]


def _flow(groups: list[list[Part]], width: int) -> list[list[Part]]:
    lines: list[list[Part]] = []
    for group in groups:
        if lines and _length(lines[-1]) + _length([_GAP]) + _length(group) <= width:
            lines[-1] = [*lines[-1], _GAP, *group]
        else:
            lines.append(group)
    return lines


def _wrap(parts: list[Part], width: int) -> list[Content]:
    return list(_content(parts).wrap(width)) if width > 0 else []


def panel(figures: Figures, width: int) -> list[Content]:
    """The figures one to a line, for a panel of `width` cells."""
    stats = figures.stats
    now, answer, ttft, mean = _common(figures)
    lines: list[Content] = []

    def head(title: str) -> None:
        if lines:
            lines.append(Content(""))
        lines.append(Content.styled(title, "bold $text-primary"))

    def row(label: str, value: str, unit: str = "", style: str = _VALUE) -> None:
        gap = max(1, width - len(label) - text.cells(value) - 6)
        lines.append(_content([(label, _LABEL), (" " * gap, ""), (value, style), (f" {unit:<5}", _LABEL)]))

    head("Speed")
    row("now", now, "tok/s")
    row("this answer", answer, "tok/s")
    net = figures.net_speedup
    row("net speedup", text.NOTHING if net is None else f"{net:.2f}×", "", net_style(net or 1.0))
    if figures.draft.predicted is not None:
        row("predicted speedup", f"{figures.draft.predicted:.2f}×")
    row("prompt", text.rate(stats.prompt_tok_s), "tok/s")
    row("time to first token", *_unit(ttft))
    row("tokens", f"{stats.completion_tokens:,}" if stats.completion_tokens else text.NOTHING)
    head("Drafting")
    lines.extend(_wrap(draft_parts(figures.draft), width))
    row("draft length k", _draft_length(figures))
    row("acceptance rate", *_unit(_acceptance(stats)))
    row("mean accepted length", mean)
    lines.extend(position_columns(stats.per_position, width))
    head("Memory")
    if figures.target_on:
        row("target", text.one_line(figures.target_on, max(width - 13, 3)))
    if figures.draft_on:
        row("draft", text.one_line(figures.draft_on, max(width - 13, 3)))
    row("context", _context(figures))
    if figures.context_size:
        lines.append(_meter(figures.context_used / figures.context_size, width))
    if figures.memory is not None:
        row(figures.memory.label, *_unit(text.gibibytes(figures.memory.used, figures.memory.total)))
        if figures.memory.total:
            lines.append(_meter(figures.memory.used / figures.memory.total, width))
    return lines


def _unit(value: str) -> tuple[str, str]:
    number, _, unit = value.partition(" ")
    return number, unit


def position_columns(shares: tuple[float, ...], width: int, levels: int = 3) -> list[Content]:
    """Columns of `levels` cells' height, each over its position and, where they are wide enough, its share."""
    if not shares:
        return []
    step = max(2, min(6, width // len(shares)))
    shown = shares[: width // step]
    lines = [Content.styled("accepted at position, once reached"[:width], _LABEL)]
    for level in reversed(range(levels)):
        cells = [text.column_part(share, level, levels) * (1 if step < 4 else 2) for share in shown]
        lines.append(Content.styled("".join(f"{cell:<{step}}" for cell in cells), "$text-accent"))
    places = "".join(f"{place:<{step}}" for place in range(1, len(shown) + 1))
    lines.append(Content.styled(places if len(shown) < 10 or step > 2 else "1 2 3 4 5 6 7 8 9", _LABEL))
    if step > 4:
        lines.append(Content("".join(f"{share:<{step}.0%}" for share in shown)))
    return lines


def _meter(share: float, width: int) -> Content:
    full = round(min(1.0, max(0.0, share)) * width)
    style = "$text-error" if share > 0.9 else "$text-primary"
    return _content([("━" * full, style), ("━" * (width - full), "$foreground 15%")])
