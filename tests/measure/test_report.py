"""The report's files and texts, from a stored result."""

from __future__ import annotations

import copy
import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

import pytest

from localspec.errors import UsageError
from localspec.measure import report, report_data, report_draw, report_speed
from localspec.measure.report_page import page

SAMPLES = Path(__file__).parent.parent / "data"
SLUGS = (
    "speedup-by-kind",
    "speed-over-draft-length",
    "acceptance",
    "verify-curve",
    "speed-over-depth",
    "memory",
)
HOSTILE = "<script>alert('x')</script>\"&$\\frac$\x1b[31m\x9b2J\u202e\ud800\ufffe"


@pytest.fixture
def result():
    return json.loads((SAMPLES / "bench-sample.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    value = json.loads((SAMPLES / "bench-sample.json").read_text(encoding="utf-8"))
    return report.write(value, tmp_path_factory.mktemp("report"))


class Page(HTMLParser):
    """Tags with their attributes, and the text by section."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, str] = {}
        self._section = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag == "section":
            self._section = dict(attrs)["id"]

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.texts[self._section] = self.texts.get(self._section, "") + data


def page_of(written) -> Page:
    return Page(written.page.read_text(encoding="utf-8"))


def section(result, slug):
    return next(one for one in report.sections(result) if one.slug == slug)


# ------------------------------------------------------------------------- files


def test_writes_the_page_and_each_picture_twice(written):
    names = {path.name for path in written.page.parent.iterdir()}
    assert names == {"report.html", *(f"{slug}.{kind}" for slug in SLUGS for kind in ("svg", "png"))}
    assert {path.name for path in written.pictures} == names - {"report.html"}


def test_pictures_are_whole_files(written):
    for path in written.pictures:
        if path.suffix == ".svg":
            root = ET.fromstring(path.read_text(encoding="utf-8"))
            assert root.tag == "{http://www.w3.org/2000/svg}svg"
            assert any(one.text for one in root.iter("{http://www.w3.org/2000/svg}text"))
        else:
            content = path.read_bytes()
            assert content.startswith(b"\x89PNG\r\n")
            width, height = int.from_bytes(content[16:20], "big"), int.from_bytes(content[20:24], "big")
            assert width > 800
            assert height > 300


def test_the_page_holds_every_picture_with_its_figures(written):
    parsed = page_of(written)
    assert [one["id"] for tag, one in parsed.tags if tag == "section"][:6] == list(SLUGS)
    labels = [one["aria-label"] for tag, one in parsed.tags if tag == "svg"]
    assert len(labels) == 6
    assert labels[0].startswith("Speedup by kind of prompt. All prompts together: 1.63×")
    assert len([1 for tag, one in parsed.tags if tag == "table" and one.get("class") == "figures"]) == 6


def test_the_page_tells_the_circumstances(written):
    text = page_of(written).texts["circumstances"]
    for said in (
        "Example GPU 24 GB",
        "0.3.36",
        "sample-27b-Q4_K_M.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        "1234",
        "n draft",
    ):
        assert said in text
    head = page_of(written).texts[""]
    assert "2026-11-30T10:00:00+00:00" in head
    assert "The draft is faster: 1.63× (1.59× to 1.67×, 95 % interval)." in head


def test_nothing_is_fetched(written):
    text = written.page.read_text(encoding="utf-8")
    assert not re.findall(r"https?:(?!//www\.w3\.org/(?:1999/xlink|2000/svg)\")", text)
    parsed = page_of(written)
    assert not [tag for tag, _ in parsed.tags if tag in ("script", "img", "iframe", "object", "embed")]
    sources = [one[key] for _, one in parsed.tags for key in ("src", "href", "xlink:href") if key in one]
    assert sources
    assert all(source.startswith("#") or source == "data:," for source in sources)
    assert "@import" not in text
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)\)", text))


def test_ids_are_unique_and_references_lead_somewhere(written):
    text = written.page.read_text(encoding="utf-8")
    ids = re.findall(r'\bid="([^"]*)"', text)
    assert len(ids) == len(set(ids))
    used = re.findall(r'(?:href="#|url\(#)([^")]*)', text)
    assert used
    assert set(used) <= set(ids)


def test_pictures_in_the_page_take_its_colours(written):
    text = written.page.read_text(encoding="utf-8")
    drawings = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    for drawing in drawings:
        ET.fromstring(drawing)
        assert not re.findall(r"#[0-9a-f]{6}\b", drawing)
        used = set(re.findall(r"var\(--([a-z0-9-]+)\)", drawing))
        assert {"ink", "faint"} <= used <= set(report_draw.COLOURS)
        assert "<style" not in drawing  # it would reach the whole page


@pytest.mark.parametrize("mode", [0, 1], ids=["light", "dark"])
def test_colours_can_be_told_from_the_page(mode):
    def luminance(colour):
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        parts = [one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in parts]
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]

    def contrast(one, other):
        light, dark = sorted((luminance(one), luminance(other)), reverse=True)
        return (light + 0.05) / (dark + 0.05)

    colours = {name: values[mode] for name, values in report_draw.COLOURS.items()}
    assert contrast(colours["ink"], colours["page"]) > 7
    assert contrast(colours["faint"], colours["page"]) > 4.5
    assert all(
        contrast(one, colours["page"]) > 3 for name, one in colours.items() if name.startswith("series")
    )
    assert len(set(colours.values())) == len(colours)


def test_the_same_result_gives_the_same_bytes(result, written, tmp_path):
    # Another process has another hash seed and another state of the drawing library.
    code = (
        "import json, sys; from pathlib import Path; from localspec.measure.report import write;"
        "write(json.loads(Path(sys.argv[1]).read_text(encoding='utf-8')), Path(sys.argv[2]));"
        "assert 'matplotlib.pyplot' not in sys.modules"  # it would look for a window
    )
    subprocess.run(
        [sys.executable, "-c", code, SAMPLES / "bench-sample.json", tmp_path], check=True, timeout=120
    )
    for path in (written.page, *written.pictures):
        assert (tmp_path / path.name).read_bytes() == path.read_bytes(), path.name


def test_a_second_report_replaces_the_first(result, tmp_path):
    (tmp_path / "mine.txt").write_text("kept", encoding="utf-8")
    depth = {"kind": "localspec bench", "lengths": result["lengths"]}
    report.write(depth, tmp_path)
    assert (tmp_path / "speed-over-depth.png").exists()
    report.write({"kind": "localspec bench", "models": result["models"]}, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {
        "mine.txt",
        "report.html",
        "memory.svg",
        "memory.png",
    }
    assert (tmp_path / "mine.txt").read_text(encoding="utf-8") == "kept"


def test_a_folder_that_cannot_be(result, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("", encoding="utf-8")
    with pytest.raises(UsageError, match="cannot be written"):
        report.write(result, blocked)


def test_leaves_the_drawing_library_as_it_was(result):
    import matplotlib as mpl

    plot = section(result, "memory").plot
    usual = report_draw.svg(plot, "memory", "Memory")
    before = dict(mpl.rcParams)
    with mpl.rc_context({"lines.linewidth": 40, "axes.facecolor": "red", "font.size": 30, "axes.grid": True}):
        assert report_draw.svg(plot, "memory", "Memory") == usual  # whatever the person's own style is
        assert mpl.rcParams["lines.linewidth"] == 40
    assert dict(mpl.rcParams) == before


def test_nothing_heavy_is_imported_before_it_is_drawn():
    code = (
        "import sys, localspec.measure.report, localspec.measure.report_draw, localspec.measure.report_terminal;"
        "print([name for name in ('matplotlib', 'plotext', 'jinja2') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"


# ------------------------------------------------------------------------- names


def hostile(result):
    value = copy.deepcopy(result)
    value["kinds"] = {HOSTILE + name: one for name, one in value["kinds"].items()}
    value["draft"]["name"] = HOSTILE
    value["settings"]["target"] = HOSTILE
    value["models"]["target"]["name"] = HOSTILE
    value["models"]["target"]["memory"][HOSTILE] = 10**9
    value["files"]["target"][0]["name"] = HOSTILE
    value["versions"][HOSTILE] = HOSTILE
    value["advice"][0]["command"] = HOSTILE
    value["surroundings"]["programs"] = [{"pid": 1, "name": HOSTILE, "share": 0.5}]
    value["protocol"]["prompts"][0]["kind"] = HOSTILE
    return value


def test_names_are_text_and_nothing_else(result, tmp_path):
    written = report.write(hostile(result), tmp_path)
    text = written.page.read_text(encoding="utf-8")
    parsed = Page(text)
    assert not [tag for tag, _ in parsed.tags if tag == "script"]
    assert "<script>alert('x')</script>\"&$\\frac$" in "".join(parsed.texts.values())
    assert not re.findall("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", text)
    for path in written.pictures:
        if path.suffix == ".svg":
            root = ET.fromstring(path.read_text(encoding="utf-8"))
            assert not list(root.iter("{http://www.w3.org/2000/svg}script"))
    for drawing in re.findall(r"<svg.*?</svg>", text, re.DOTALL):
        ET.fromstring(drawing)


def test_a_name_of_any_length_stays_in_the_picture(result):
    value = copy.deepcopy(result)
    value["kinds"] = {f"{name} {'long ' * 60}": one for name, one in value["kinds"].items()}
    value["draft"]["name"] = "draft " * 80
    names = [row[0] for row in section(value, "speedup-by-kind").plot.rows]
    assert max(map(len, names)) <= 22
    assert max(len(one.name) for one in section(value, "speed-over-draft-length").plot.series) <= 36


# ----------------------------------------------------------------------- figures


def test_speed_over_draft_length_stands_beside_its_bound(result):
    found = section(result, "speed-over-draft-length")
    lines = {one.name: one for one in found.plot.series}
    measured = lines["Sample 4B Q4_K_M"]
    assert (measured.x, measured.y) == ((4.0,), (62.0,))
    assert (measured.low, measured.high) == ((pytest.approx(60.14),), (pytest.approx(63.24),))
    bound = lines["bound"]
    assert bound.x == (1.0, 2.0, 3.0, 4.0)
    # By hand: 1 + .91 tokens of code in the time V(2) + c, and so on; over kinds the geometric mean.
    first = (1.91 * 1.66 * 1.84 * 1.95) ** 0.25
    assert bound.y[0] == pytest.approx(38.15 * first / (1.04 + 0.19))
    third = [1 + a + a * b + a * b * c for a, b, c in ((0.91, 0.88, 0.86), (0.66, 0.61, 0.58))]
    third += [1 + a + a * b + a * b * c for a, b, c in ((0.84, 0.81, 0.80), (0.95, 0.94, 0.93))]
    mean = (third[0] * third[1] * third[2] * third[3]) ** 0.25
    assert bound.y[2] == pytest.approx(38.15 * mean / (1.11 + 3 * 0.19))
    assert lines["no draft"].y == (38.15, 38.15)
    assert "Fastest measured draft: 62.00 tok/s, Sample 4B Q4_K_M at 4 tokens a round." in found.sentence
    assert ("Sample 4B Q4_K_M", "4", "62.00", "60.14 to 63.24", f"{bound.y[3]:.2f}") in found.table.rows


def test_lookup_says_which_rounds_its_bound_is_about(result):
    assert "For lookup" not in section(result, "speed-over-draft-length").sentence
    result["settings"]["draft"] = "lookup"
    assert "that of the rounds that draft at all" in section(result, "speed-over-draft-length").sentence


def test_one_repeat_has_no_spread(result):
    for side in (result["baseline"], result["drafted"]):
        side["spread"] = [side["decode_tok_s"]] * 2
    found = section(result, "speed-over-draft-length")
    assert "Bars" not in found.sentence
    assert "slowest to fastest" not in found.table.columns
    assert section(result, "speedup-by-kind").table.rows[-1][1] == "38.15"


def test_a_length_chosen_by_price_has_a_place_of_its_own(result):
    result["settings"]["auto"] = True
    found = section(result, "speed-over-draft-length")
    assert found.plot.x_names == {1.0: "1", 2.0: "2", 3.0: "3", 4.0: "4", 5.0: "auto"}
    assert found.plot.series[0].x == (5.0,)
    assert "with the length chosen round by round" in found.sentence
    assert "where the text is easy" in section(result, "acceptance").sentence


def test_the_bound_goes_no_further_than_what_was_measured(result):
    steps = {1: 1.0, 2: 1.1, 3: 1.2}
    assert list(report_data.bound_by_length([0.9, 0.9, 0.9, 0.9], steps, 0.1)) == [1, 2]
    assert list(report_data.bound_by_length([0.9], steps, 0.1)) == [1]
    assert report_data.bound_by_length([], steps, 0.1) == {}
    assert report_data.bound_by_length([0.9], {}, 0.1) == {}


def test_acceptance_tells_which_is_which(result):
    found = section(result, "acceptance")
    assert [(one.name, one.y) for one in found.plot.series] == [
        ("conditional acceptance", (0.84, 0.82, 0.81, 0.79)),
        ("unconditional acceptance", (0.84, 0.6888, 0.5579, 0.4408)),
    ]
    assert "Conditional: of the rounds that accepted everything before this position." in found.sentence
    assert found.table.rows[3] == ("4", "79%", "44%")


def test_the_envelope_is_the_cheapest_batch_that_holds_n(result):
    found = section(result, "verify-curve")
    curve, envelope, single = found.plot.series
    assert curve.y[:4] == (1.0, 1.04, 1.22, 1.11)
    assert envelope.y[:4] == (1.0, 1.04, 1.11, 1.11)
    assert single.x == single.y == (1.0, 16.0)
    assert ("3", "1.22", "1.11") in found.table.rows


def test_depth_memory_and_kinds(result):
    depth = section(result, "speed-over-depth")
    assert [(one.name, one.y) for one in depth.plot.series] == [
        ("no draft", (38.9, 35.2, 31.8)),
        ("with draft", (66.0, 57.1, 49.3)),
    ]
    assert depth.table.rows[2] == ("4000", "31.80", "49.30", "62%")
    memory = section(result, "memory")
    assert memory.plot.rows == ("target", "draft")
    assert memory.plot.parts == (
        ("weights", (16.5, 2.7)),
        ("cache", (1.1, 0.53)),
        ("compute buffers", (0.62, 0.31)),
    )
    assert "The target takes 18.2 GB and the draft takes 3.5 GB." in memory.sentence
    assert "22.1 GB of 25.8 GB VRAM" in memory.sentence
    kinds = section(result, "speedup-by-kind")
    assert kinds.plot.rows[1] == ("prose", 1.04, 0.99, 1.10, 1.12)
    assert [row[0] for row in kinds.plot.rows] == ["code", "prose", "extraction", "edit", "together"]


# ------------------------------------------------------------------ missing parts


def test_a_bench_without_a_draft(result, tmp_path):
    result.update(
        drafted=None, speedup=None, speedup_interval=None, verdict=None, bound=None, cost_ratio=None
    )
    for kind in result["kinds"].values():
        kind.update(drafted=None, speedup=None, speedup_interval=None, verdict=None, bound=None)
    result["draft"] = {"state": "off", "reason": "none was asked for", "name": ""}
    result["models"]["draft"] = None
    result["lengths"] = [one for one in result["lengths"] if not one["drafted"]]
    shown = {one.slug: one for one in report.sections(result)}
    assert [slug for slug, one in shown.items() if one.plot is None] == [
        "speedup-by-kind",
        "speed-over-draft-length",
        "acceptance",
    ]
    assert "so there is no speedup" in shown["speedup-by-kind"].sentence
    assert shown["speedup-by-kind"].table.rows[0][:3] == ("code", "38.1 (37.34 to 38.67)", "-")
    assert "Without one: 38.15 tok/s" in shown["speed-over-draft-length"].sentence
    written = report.write(result, tmp_path)
    text = written.page.read_text(encoding="utf-8")
    assert text.count("<svg") == text.count("<figure") == 3
    assert "Draft off: none was asked for." in text


MISSING = {
    "verify_curve": ({}, "verify-curve", "were not timed"),
    "lengths": ([], "speed-over-depth", "--lengths 200,2000,4000"),
    "models": ({"target": None, "draft": None}, "memory", "did not tell"),
    "drafted": (None, "acceptance", "Nothing was drafted"),
}


@pytest.mark.parametrize("part", MISSING)
def test_what_is_missing_has_no_picture(result, part):
    value, slug, said = MISSING[part]
    result[part] = value
    found = section(result, slug)
    assert found.plot is None
    assert said in found.sentence


def test_the_page_says_what_is_missing(result, tmp_path):
    result.update({part: value for part, (value, _, _) in MISSING.items()})
    texts = page_of(report.write(result, tmp_path)).texts
    for _, slug, said in MISSING.values():
        assert not (tmp_path / f"{slug}.svg").exists()
        assert said in texts[slug]


def test_hardly_anything_is_there(tmp_path):
    written = report.write({"kind": "localspec bench"}, tmp_path)
    assert written.pictures == ()
    assert "<svg" not in written.page.read_text(encoding="utf-8")


@pytest.mark.parametrize("rubbish", [None, "text", [], {}, float("nan"), float("inf"), -1, True, [None, "x"]])
def test_rubbish_is_left_out(result, rubbish):
    for part in ("speedup", "speedup_interval", "cost_ratio", "bound", "kinds", "lengths", "memory", "files"):
        result[part] = rubbish
    result["drafted"]["per_position"] = rubbish
    result["verify_curve"] = {"1": 1.0, "2": rubbish, "x": 3.0, "\u00b2": 4.0}
    result["models"]["draft"] = rubbish
    shown = report.sections(result)
    assert {one.slug for one in shown if one.plot} <= {
        "speed-over-draft-length",
        "acceptance",
        "verify-curve",
        "memory",
    }
    assert not [
        cell for one in shown if one.table for row in one.table.rows for cell in row if "nan" in cell.split()
    ]
    assert page(result).title.startswith("localspec bench")


def test_one_pair_cannot_tell_its_noise(result):
    result["speedup_interval"] = None
    found = section(result, "speedup-by-kind")
    assert found.plot.rows[-1] == ("together", 1.63, None, None, 1.74)
    assert "its noise is not known). Right" in found.sentence, "no verdict without an interval"
    assert "One pair cannot tell noise from gain" in page(result).verdict


def test_partial_and_disturbed_results_say_so(result):
    result["partial"] = True
    result["same_text"] = False
    result["surroundings"]["busy"] = True
    text = " ".join(page(result).warnings)
    assert "Partial: it was stopped before the end." in text
    assert "localspec verify" in text
    assert "Other programs used the machine" in text


def test_many_drafters_fit_in_one_picture():
    points = tuple(report_speed.Point(k, 20.0 + k) for k in range(1, 17))
    drafters = [
        report_speed.Drafter(f"drafter {i}", points, bound={k: 30.0 + k + i for k in range(1, 17)})
        for i in range(8)
    ]
    found = report_speed.section(18.0, drafters)
    names = [one.name for one in found.plot.series if one.name]
    assert names == [*(f"drafter {i}" for i in range(8)), "bound, each in its colour", "no draft"]
    ET.fromstring(report_draw.svg(found.plot, found.slug, found.title))
