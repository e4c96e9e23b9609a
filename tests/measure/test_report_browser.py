"""The report in a browser without a window: light and dark, wide and narrow."""

from __future__ import annotations

import copy
import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path

import pytest

from localspec.measure import report

BROWSER = next(
    (
        found
        for name in ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
        if (found := shutil.which(name))
    ),
    None,
)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium or Chrome on PATH")

# Looks at what the browser made of the page: what each text's contrast is, which texts of a picture lie on each other
# or outside of it, and whether the page is wider than its window.
PROBE = """
<style>.alone { background: #fff; overflow: hidden; } .alone svg { width: 480px; height: auto; }</style>
<script>
const errors = [];
addEventListener("error", event => errors.push(String(event.message)));
addEventListener("load", () => {
  const rgb = text => { const p = text.match(/[\\d.]+/g).map(Number); return p.length < 4 ? [...p, 1] : p; };
  const light = p => { const [r, g, b] = p.slice(0, 3).map(v => v / 255)
    .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); return 0.2126*r + 0.7152*g + 0.0722*b; };
  const behind = e => { for (; e; e = e.parentElement) {
    const p = rgb(getComputedStyle(e).backgroundColor); if (p[3] > 0.99) return p; } return [255, 0, 255]; };
  const texts = [...document.querySelectorAll("body *")].filter(e => !["script", "style"].includes(e.localName) &&
    [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()));
  const low = [], sizes = [];
  for (const e of texts) {
    const style = getComputedStyle(e), drawn = e.namespaceURI.endsWith("svg");
    const [a, b] = [light(rgb(drawn ? style.fill : style.color)), light(behind(e))].sort((x, y) => y - x);
    const contrast = (a + 0.05) / (b + 0.05);
    if (contrast < 4.5 || +style.opacity < 1) low.push([e.textContent.slice(0, 40), contrast]);
    if (drawn) sizes.push(parseFloat(style.fontSize) * Math.hypot(e.getScreenCTM().a, e.getScreenCTM().b));
  }
  const overlaps = [], outside = [];
  for (const svg of document.querySelectorAll("svg")) {
    const frame = svg.getBoundingClientRect();
    const boxes = [...svg.querySelectorAll("text")].map(e => [e.textContent, e.getBoundingClientRect()]);
    boxes.forEach(([name, a], i) => {
      if (a.left < frame.left - 1 || a.right > frame.right + 1 || a.top < frame.top - 1 || a.bottom > frame.bottom + 1)
        outside.push(name);
      boxes.slice(i + 1).forEach(([other, b]) => {
        if (Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1 &&
            Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 3) overlaps.push([name, other]); });
    });
  }
  const found = {dark: matchMedia("(prefers-color-scheme: dark)").matches, page: behind(document.body),
    texts: texts.length, drawings: document.querySelectorAll("svg").length, low, overlaps, outside, errors,
    smallest: Math.min(...sizes), width: innerWidth, needed: document.documentElement.scrollWidth,
    loaded: performance.getEntriesByType("resource").map(e => e.name).filter(n => !n.startsWith("data:"))};
  const out = document.createElement("pre"); out.id = "probe"; out.textContent = JSON.stringify(found);
  document.body.append(out);
});
</script>
"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """A usual report and one with the longest names, each with the probe inside."""
    result = json.loads(
        (Path(__file__).parent.parent / "data" / "bench-sample.json").read_text(encoding="utf-8")
    )
    long = copy.deepcopy(result)
    long["kinds"] = {
        f"{name} WWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWW": one for name, one in result["kinds"].items()
    }
    long["draft"]["name"] = long["models"]["target"]["name"] = "W" * 300
    long["settings"]["auto"] = True
    long["drafted"]["per_position"] = [0.9] * 15
    found = {}
    for name, value in (("usual", result), ("long", long)):
        folder = tmp_path_factory.mktemp(name)
        page = report.write(value, folder).page
        found[name] = folder / "probe.html"
        text = page.read_text(encoding="utf-8")
        files = [path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.svg"))]
        alone = "".join(f'<div class="alone">{one[one.index("<svg") :]}</div>' for one in files)
        text = text.replace("</main>", "</main>" + alone, 1)
        found[name].write_text(text.replace("<title>", PROBE + "<title>", 1), encoding="utf-8")
    return found


def look(page: Path, profile: Path, *, dark: bool, width: int):
    done = subprocess.run(
        [
            str(BROWSER),
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--no-first-run",
            "--enable-logging=stderr",
            f"--user-data-dir={profile}",
            f"--window-size={width},900",
            f"--blink-settings=preferredColorScheme={0 if dark else 1}",
            "--dump-dom",
            page.as_uri(),
        ],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    said = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    match = re.search(r'<pre id="probe">(.*?)</pre>', done.stdout, re.DOTALL)
    assert match, done.stderr[-2000:]
    return json.loads(unescape(match[1])), said


@pytest.mark.parametrize(
    ("name", "dark", "width"),
    [("usual", False, 1280), ("usual", True, 390), ("long", True, 1280), ("long", False, 390)],
)
def test_can_be_read(pages, tmp_path, name, dark, width):
    seen, said = look(pages[name], tmp_path, dark=dark, width=width)
    assert seen["dark"] is dark
    assert (sum(seen["page"][:3]) < 150) is dark
    assert seen["width"] <= 500 or width > 500, "the window is not as narrow as it should be"
    assert said == []
    assert seen["errors"] == []
    assert seen["loaded"] == []
    assert seen["texts"] > 150
    assert seen["drawings"] == 12, "in the page, and each file for itself"
    assert seen["low"] == []
    assert seen["overlaps"] == []
    assert seen["outside"] == []
    assert seen["smallest"] >= 8.5
    assert seen["needed"] <= seen["width"], "the page has to be scrolled sideways"
