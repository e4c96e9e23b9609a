"""The plot in the terminal."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from localspec.measure.report import sections
from localspec.measure.report_terminal import terminal_plot


@pytest.fixture
def result():
    path = Path(__file__).parent.parent / "data" / "bench-sample.json"
    return json.loads(path.read_text(encoding="utf-8"))


def test_draws_the_speed_and_fits(result):
    text = terminal_plot(sections(result), width=80, colour=False)
    lines = text.splitlines()
    assert "Speed over draft length" in lines[0]
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 18
    assert all(said in text for said in ("bound", "no draft", "tok/s", "tokens a round"))
    assert text.count("●") == 3  # two in the legend
    assert "\x1b" not in text


def test_the_point_stands_over_its_length_between_baseline_and_bound(result):
    lines = terminal_plot(sections(result), colour=False).splitlines()
    legend = next(i for i, line in enumerate(lines) if "Sample 4B" in line)
    plot = lines[legend + 1 :]
    point = next(i for i, line in enumerate(plot) if "●" in line)
    baseline = next(i for i, line in enumerate(plot) if "-----" in line)
    ticks = next(line for line in plot if re.search(r"\b1 +2 +3 +4\b", line))
    assert point < baseline
    assert abs(plot[point].index("●") - ticks.index("4")) <= 1


@pytest.mark.parametrize("width", [40, 60, 100])
def test_any_width(result, width):
    assert max(map(len, terminal_plot(sections(result), width=width, colour=False).splitlines())) <= width


def test_colour_only_colours(result):
    plain = terminal_plot(sections(result), colour=False)
    coloured = terminal_plot(sections(result), colour=True)
    assert "\x1b[38;5;" in coloured
    stripped = re.sub(r"\x1b\[[0-9;]*m", "", coloured)
    assert [line.rstrip() for line in stripped.splitlines()] == plain.splitlines()


def test_acceptance_where_there_is_no_speed(result):
    shown = [one for one in sections(result) if one.slug != "speed-over-draft-length"]
    text = terminal_plot(shown, colour=False)
    assert "Acceptance by position" in text
    assert "conditional acceptance" in text
    assert "80%" in text


def test_nothing_to_draw(result):
    result["drafted"] = None
    assert terminal_plot(sections(result)) == ""


def test_names_cannot_reach_the_terminal(result):
    result["draft"]["name"] = "\x1b[31m\x9b2J模型\u202e"
    text = terminal_plot(sections(result), colour=False)
    assert not re.findall("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]", text)
    assert "??" in text
    assert max(map(len, text.splitlines())) <= 80
