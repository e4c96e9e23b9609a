"""The parts that need no screen: harmless text, bars, figures, cutting Markdown, speed."""

from __future__ import annotations

import random

import pytest
from textual.content import Content
from textual.widgets import Static

from localspec.spec.events import DraftStatus
from localspec.spec.stats import Stats
from localspec.tui import text
from localspec.tui.app import light_terminal
from localspec.tui.markdown import BlockSplitter, make_parser, preview, table
from localspec.tui.speed import Speedometer
from localspec.tui.widgets.chunks import Chunks
from localspec.tui.widgets.figures import Figures, panel, strip
from localspec.worker.protocol import MemoryUse

GIB = 1024**3


def test_clean_leaves_no_control_character() -> None:
    everything = "".join(map(chr, range(0x300))) + "\u202e\u2066\u200f\u2028\u061c"
    cleaned = text.clean(everything)
    assert not [c for c in cleaned if ord(c) < 0x20 and c not in "\n\t"]
    assert not [c for c in cleaned if 0x7F <= ord(c) < 0xA0]
    assert not set(cleaned) & set("\u202e\u2066\u200f\u2028\u061c")
    assert text.clean("a\r\nb\rc\x85d") == "a\nb\nc\nd"
    assert text.clean("é 漢字 🙂 \u200d") == "é 漢字 🙂 \u200d"


@pytest.mark.parametrize(
    ("value", "shown"), [(None, "–"), (0.04, "0.0"), (41.23, "41.2"), (99.96, "100"), (999.6, "1,000")]
)
def test_rate(value: float | None, shown: str) -> None:
    assert text.rate(value) == shown


def test_other_numbers() -> None:
    assert [text.seconds(s) for s in (None, 0.421, 12.34, 125.0)] == ["–", "0.42 s", "12.3 s", "2:05 min"]
    assert text.gibibytes(GIB * 3 // 2, 16 * GIB) == "1.5/16.0 GiB"
    assert text.gibibytes(GIB, 0) == "1.0 GiB"
    assert text.one_line("a\n b\tc") == "a b c"
    assert text.one_line("abcdefghij", 7) == "abc…hij"


def test_names_are_measured_in_cells_and_hide_nothing() -> None:
    for name in ("模型" * 20, "👩‍👩‍👧" * 9 + "x", "é" * 50, "a" * 50):
        for width in range(1, 30):
            assert text.cells(text.one_line(name, width)) <= width
    assert text.one_line("模型模型模型", 7) == "模…型"
    assert text.one_line("a\u200bb\ufeff\u00adc") == "a\ufffdb\ufffd\ufffdc"
    assert text.token(" a\n\t") == "·a⏎⇥"


def test_bars() -> None:
    assert "".join(text.column(i / 7) for i in range(8)) == "▁▂▃▄▅▆▇█"
    assert text.columns((1.0, 0.5, 0.0), 20) == "1█ 2▅ 3▁"
    assert text.columns((0.9,) * 12, 20) == "█" * 12 + " 1-12"
    assert len(text.columns((0.9,) * 12, 8)) == 8
    assert text.columns((), 20) == ""
    assert text.bar(0.5, 4) == "██"
    assert text.bar(0.03125, 4) == "▏"
    assert [text.column_part(0.5, level, 2) for level in (1, 0)] == [" ", "█"]


def figures(reason: str = "", positions: int = 4) -> Figures:
    stats = Stats(
        prompt_tokens=100,
        completion_tokens=301,
        rounds=100,
        drafted_rounds=100,
        drafted=100 * positions,
        accepted=75 * positions,
        drafted_at=(100,) * positions,
        accepted_at=tuple(range(99, 99 - positions, -1)),
        prompt_s=0.5,
        ttft_s=0.6,
        decode_tokens=300,
        decode_s=6.0,
    )
    draft = DraftStatus("off", reason, "d.gguf") if reason else DraftStatus("on", "", "d.gguf", positions)
    return Figures(draft, stats, 48.7, 1234, 8192, MemoryUse("RAM", GIB, 16 * GIB))


@pytest.mark.parametrize("positions", [1, 4, 16])
def test_strip_shows_every_figure_at_80_columns(positions: int) -> None:
    lines = strip(figures(positions=positions), 76)
    shown = "\n".join(line.plain for line in lines)
    for part in (
        "48.7",
        "50.0 tok/s",
        "0.60 s",
        "75 %",
        "1.75" if positions == 1 else "mean length",
        "1,234/8,192",
    ):
        assert part in shown, part
    assert "RAM 1.0/16.0 GiB" in shown
    assert "draft: on  d.gguf" in shown
    assert "at position" in shown
    assert max(line.cell_length for line in lines) <= 76
    assert len(lines) == 3


@pytest.mark.parametrize("width", [28, 40, 60, 76, 120])
def test_no_width_cuts_the_reason(width: int) -> None:
    reason = (
        "a reason that is rather long, since it names token 1234 and both of its texts, “[/red]” and “ x”"
    )
    for lines in (strip(figures(reason), width), *([panel(figures(reason), width)] if width > 35 else [])):
        shown = " ".join(" ".join(line.plain for line in lines).split())
        assert f"draft: off: {reason}" in shown
        assert max(line.cell_length for line in lines) <= width


def test_nothing_drafted_is_no_zero_percent() -> None:
    plain = Figures(stats=Stats(completion_tokens=5, rounds=5))
    assert "0 %" not in "".join(line.plain for line in strip(plain, 76))
    assert "0 %" not in "".join(line.plain for line in panel(plain, 36))


SAMPLES = [
    "para one\nline two\n\n- a\n- b\n  - c\n\n1. x\n\n```py"
    "\ncode\n\n\nmore\n```\nafter\n\n| a | b |\n|--|--|\n| 1 | 2 |\n\nend",
    "````md\n```\ninner\n```\n````\n\n~~~\n```\n~~~\n> q\n> r\n\n# h\ntext\n***\n",
    "no newline at all",
    "\n\n\n",
    "- item\n\n  ```\n  fenced in a list\n  ```\n\n- next\n\n    indented\n",
    "```\nnever closed\n\n# not a heading\n",
]


@pytest.mark.parametrize("sample", SAMPLES)
def test_splitter_never_loses_a_character(sample: str) -> None:
    rng = random.Random(4)
    for _ in range(30):
        splitter, done, at = BlockSplitter(), "", 0
        splitter._next_parse = 0
        while at < len(sample):
            size = rng.randint(1, 9)
            done += splitter.feed(sample[at : at + size])
            splitter._next_parse = 0.0
            at += size
            assert done + splitter.tail == sample[: min(at, len(sample))]


def test_splitter_cuts_where_nothing_can_change() -> None:
    splitter = BlockSplitter()
    assert splitter.feed("one paragraph\n\n") == ""
    splitter._next_parse = 0.0
    assert splitter.feed("```py\nx = 1\n\n") == "one paragraph\n\n"
    assert splitter.in_code
    assert splitter.feed("# no heading\n") == ""
    assert splitter.feed("```\n") == "```py\nx = 1\n\n# no heading\n```\n"
    assert not splitter.in_code
    assert splitter.tail == ""


def test_preview_reads_like_the_end_result() -> None:
    shown = preview(
        "**bold** and `code`\n\n- a\n  - b\n\n1. c\n\n| x | y |\n|--|--|\n| [1] | 2 |\n", make_parser()
    )
    assert shown.plain.startswith("bold and code\n\n• a\n  • b\n")
    assert "1. c" in shown.plain
    assert "[1] │ 2" in shown.plain
    assert any(str(span.style) == "bold" for span in shown.spans)


@pytest.mark.parametrize("width", [1, 3, 10, 30, 80])
def test_table_fits(width: int) -> None:
    rows = [
        [Content("name"), Content("what it is for")],
        [Content("a" * 30), Content("[0] 漢字")],
        [Content("x")],
    ]
    drawn = table(rows, width)
    assert drawn.plain.count("a") >= 30
    if width >= 10:
        assert max(line.cell_length for line in drawn.split("\n")) <= width
    if width == 80:
        assert drawn.plain.splitlines()[0].split("│")[0].strip() == "name"
    assert table([], width).plain == ""


def test_speedometer_reads_counters_not_events() -> None:
    meter = Speedometer()
    assert meter.tok_s is None
    for second in range(10):  # 8 tokens each second, in one event
        meter.add(Stats(decode_tokens=8 * second, decode_s=float(second)))
    assert meter.tok_s == pytest.approx(8)
    for step in range(1, 41):  # then 80 a second, in bursts
        meter.add(Stats(decode_tokens=72 + 8 * step, decode_s=9 + step / 10))
    assert meter.tok_s == pytest.approx(80)
    meter.reset()
    assert meter.tok_s is None


def test_light_terminals() -> None:
    assert light_terminal({"COLORFGBG": "0;15"})
    assert light_terminal({"COLORFGBG": "0;default;7"})
    assert not light_terminal({"COLORFGBG": "15;0"})
    assert not light_terminal({})


def test_a_growing_text_is_cut_into_small_widgets_and_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    monkeypatch.setattr(Chunks, "mount", lambda _, widget: made.append(str(widget.content)))
    monkeypatch.setattr(Static, "update", lambda _, content, **more: made.__setitem__(-1, str(content)))
    lines = "\n".join(f"line {i} " + "w " * (i % 40) for i in range(200))
    for text_of in (lines, "x" * 15_000, "\n" * 2_000):
        for step in (1_997, len(text_of)):
            made.clear()
            chunks = Chunks()
            for start in range(0, len(text_of), step):
                chunks.write([(text_of[start : start + step], "")])
            assert max(map(len, made)) <= 12_000
            assert "".join("".join(made).split()) == "".join(text_of.split())
            if text_of == lines:
                assert "\n".join(made) == lines
                assert max(map(len, made)) < 1_700
