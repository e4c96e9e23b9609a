"""The report of a tuning, from a stored result."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from localspec.measure import report
from localspec.measure.report_page import page
from localspec.measure.report_terminal import terminal_plot
from localspec.measure.report_tune import drafters


@pytest.fixture
def result():
    path = Path(__file__).parent.parent / "data" / "tune-sample.json"
    return json.loads(path.read_text(encoding="utf-8"))


def section(result, slug):
    return next(one for one in report.sections(result) if one.slug == slug)


def test_every_drafter_with_prediction_and_bound(result):
    baseline, found = drafters(result)
    assert baseline == 38.15
    assert [one.name for one in found] == ["sample-0.8b", "sample-4b-Q4_K_M", "lookup"]
    small = found[0]
    assert [point.n_draft for point in small.measured] == [5, 7, "auto"]
    assert small.measured[0].tok_s == pytest.approx(1.57 * 38.15)
    assert small.measured[0].low == pytest.approx(1.5386 * 38.15)
    assert [point.n_draft for point in small.predicted] == list(range(1, 13))
    # By hand: 1 + .66 tokens in V(2) + c.
    assert small.bound[1] == pytest.approx(38.15 * 1.66 / (1.03 + 0.06))
    # 1 + .66 + .4338 tokens in V(3) + 2 c, from the shares as they were measured.
    assert small.bound[2] == pytest.approx(
        38.15 * (1.66 + result["drafters"][0]["survival"][1]) / (1.2 + 0.12)
    )


def test_the_picture_shows_all_and_explains_once(result):
    found = section(result, "speed-over-draft-length")
    names = [one.name for one in found.plot.series if one.name]
    assert names == [
        "sample-0.8b",
        "sample-4b-Q4_K_M",
        "lookup",
        "predicted, each in its colour",
        "bound, each in its colour",
        "no draft",
    ]
    autos = [
        one.x for one in found.plot.series if one.style == "measured" and len(one.x) == 1 and one.x[0] > 16
    ]
    assert len(set(autos)) == 3, "beside each other"
    assert "Bars: 95 % interval." in found.sentence
    assert ("sample-0.8b", "5", "59.90", "58.70 to 61.09", "64.66", "67.35") in found.table.rows


def test_cells_acceptance_curve_and_other_settings(result):
    cells = section(result, "cells")
    assert [row[0] for row in cells.plot.rows][:2] == ["sample-4b-Q4_K_M, auto", "sample-0.8b, auto"]
    assert cells.table.rows[0][:4] == ("no draft", "0", "38.15", "1.00×")
    assert cells.table.rows[3] == (
        "sample-4b-Q4_K_M",
        "3",
        "62.18",
        "1.63×",
        "1.60× to 1.66×",
        "1.72×",
        "3.5 GB",
    )
    accepted = section(result, "acceptance")
    assert "Unconditional acceptance" in accepted.sentence
    assert [one.y[0] for one in accepted.plot.series] == [0.66, 0.84, 0.48]
    assert section(result, "verify-curve").plot.series[0].y[:3] == (1.0, 1.03, 1.2)
    other = section(result, "other-settings")
    assert other.plot is None
    assert ("kv", "f16, taken", "63.30 tok/s", "-") in other.table.rows
    assert ("kv", "q8_0", "62.10 tok/s", "0.98× (0.96× to 1.00×)") in other.table.rows


def test_the_proof_adds_its_cells(result):
    cell = dict(result["cells"][1], n_draft=2, speedup=1.7, speedup_interval=[1.68, 1.72])
    result["exhaustive"] = {"time_s": 9.0, "clever_time_s": 2.0, "gap": 0.0235, "best": {}, "cells": [cell]}
    measured = drafters(result)[1][0].measured
    assert [point.n_draft for point in measured] == [5, 7, "auto", 2]
    assert "the choice loses 2.4%" in section(result, "cells").sentence


def test_words_around_the_pictures(result):
    words = page(result)
    assert words.title == "localspec tune: sample-27b"
    assert words.verdict == "Chosen: sample-0.8b, the length chosen round by round: 1.66× of no draft."
    assert "sample-9b is left out: the weights do not fit into memory." in words.warnings
    assert "For edit alone, lookup at length auto is faster by 21%." in words.warnings
    assert ("speedup", "1.66×", "1.62× to 1.70×") in words.key
    facts = dict(words.facts)
    assert ("label tokens", "192") in facts["Method"]
    assert ("time of all", "611 s") in facts["Method"]


def test_off_is_a_valid_answer(result):
    result["best"].update(draft=None, drafter="none", n_draft=0, verdict="off is fastest")
    assert page(result).verdict == "Off is fastest: take no draft."
    result["cells"] = result["cells"][:1]
    result["drafters"] = []
    shown = {one.slug: one for one in report.sections(result)}
    assert all(one.plot is None for one in shown.values())
    assert "No draft was measured" in shown["cells"].sentence
    assert terminal_plot(tuple(shown.values())) == ""


@pytest.mark.parametrize("rubbish", [None, "text", [], {}, -1, True, [None, "x"], [{}]])
def test_rubbish_is_left_out(result, rubbish):
    for part in ("cells", "drafters", "sweeps", "exhaustive", "notes", "winners_by_kind", "effort"):
        report.sections({**result, part: rubbish})
        page({**result, part: rubbish})


def test_files_and_terminal(result, tmp_path):
    written = report.write(result, tmp_path)
    assert {path.stem for path in written.pictures} == {
        "speed-over-draft-length",
        "cells",
        "acceptance",
        "verify-curve",
    }
    for path in written.pictures:
        if path.suffix == ".svg":
            ET.fromstring(path.read_text(encoding="utf-8"))
    text = written.page.read_text(encoding="utf-8")
    assert "/models/" not in text, "a folder of this machine"
    plot = terminal_plot(report.sections(result), colour=False)
    assert all(name in plot for name in ("sample-0.8b", "sample-4b-Q4_K_M", "lookup", "auto"))
    assert max(map(len, plot.splitlines())) <= 80
    # Without colours nobody could tell whose bound it is; with them, the measured points lie on top.
    assert "bound" not in plot
    coloured = terminal_plot(report.sections(result), colour=True)
    assert "bound, each in its colour" in coloured
    plain = re.sub(r"\x1b\[[0-9;]*m", "", coloured)
    assert plain.count("●") == 2 + 3, "two in the legend, three points"
