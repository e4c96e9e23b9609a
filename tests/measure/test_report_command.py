"""`localspec bench` with its pictures, on an engine with set prices."""

from __future__ import annotations

import json
import re
import sys

import pexpect
import pytest

from tests.cli.program import environment, localspec
from tests.gguf_files import script_model

PRICES = {
    "LOCALSPEC_WORKER_HOST": "tests.measure.priced_host:serve",
    "LOCALSPEC_PRICED": "plain=0.05,step=0.01,curve=0.1,accept=0.8",
}


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    target = str(script_model(folder / "target.gguf", {}, n_layer=2))
    draft = str(script_model(folder / "draft.gguf", {}))
    return (target, "--draft", draft, "--n-draft", "4", "--tokens", "60", "--skip", "20", "--repeats", "2")


def test_writes_a_report_beside_the_text(pair, tmp_path):
    folder = tmp_path / "new" / "report"
    done = localspec(tmp_path, "bench", *pair, "--lengths", "40,90", "--report", str(folder), **PRICES)
    assert done.returncode == 0, done.stderr
    assert "together" in done.stdout
    assert "┌" not in done.stdout, "a plot is for a terminal"
    assert f"Report: {folder / 'report.html'}" in done.stderr
    names = {path.name for path in folder.iterdir()}
    pictures = (
        "speedup-by-kind",
        "speed-over-draft-length",
        "acceptance",
        "verify-curve",
        "speed-over-depth",
        "memory",
    )
    assert names == {"report.html", *(f"{name}.{kind}" for name in pictures for kind in ("svg", "png"))}
    text = (folder / "report.html").read_text(encoding="utf-8")
    assert "target.gguf" in text
    assert re.search("sha256 [0-9a-f]{64}", text)


def test_json_stays_one_object(pair, tmp_path):
    done = localspec(tmp_path, "bench", *pair, "--json", "--report", str(tmp_path / "report"), **PRICES)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["kind"] == "localspec bench"
    assert (tmp_path / "report" / "report.html").exists()


def test_a_folder_that_cannot_be_is_known_before_the_measurement(pair, tmp_path):
    (tmp_path / "file").write_text("", encoding="utf-8")
    done = localspec(tmp_path, "bench", *pair, "--report", str(tmp_path / "file"), **PRICES)
    assert done.returncode == 2
    assert "The report cannot be written to" in done.stderr
    assert "tok/s" not in done.stderr + done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("colour", [True, False], ids=["colour", "no colour"])
def test_a_terminal_gets_a_plot(pair, tmp_path, colour):
    more = {**PRICES, "TERM": "xterm-256color", "NO_COLOR": "" if colour else "1"}
    seen = pexpect.run(
        " ".join([sys.executable, "-m", "localspec", "bench", *pair]),
        env=environment(tmp_path, **more),
        timeout=60,
        encoding="utf-8",
        dimensions=(40, 100),
    )
    _, _, plot = seen.partition("Speed over draft length")
    assert "no draft" in plot
    assert "●" in plot
    assert ("\x1b[38;5;" in plot) is colour
    lines = re.sub(r"\x1b\[[0-9;]*m", "", seen).splitlines()
    drawn = [line for line in lines if "│" in line or "┌" in line or "└" in line]
    assert len(drawn) > 10
    assert max(map(len, drawn)) <= 80
