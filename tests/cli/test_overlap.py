"""`--overlap`: the flag, the whole path with a real engine, and how the lines say what came of it."""

from __future__ import annotations

import json

from localspec.cli import output
from localspec.options import OPTIONS
from localspec.spec.events import DraftStatus
from tests.cli.program import localspec
from tests.gguf_files import perturbed, random_llama


def test_the_draft_line_says_that_it_overlaps():
    on = DraftStatus("on", "", "d.gguf", 3, overlap=True)
    assert output.draft_line(on) == "draft: on (d.gguf, k=3, overlapped)"
    auto = DraftStatus("on", "", "d.gguf", 3, auto=True, overlap=True)
    assert output.draft_line(auto) == "draft: on (d.gguf, k=auto, overlapped)"
    assert output.draft_line(DraftStatus("on", "", "d.gguf", 3, no_overlap="x")) == "draft: on (d.gguf, k=3)"


def test_the_text_is_the_same_and_json_tells_what_was_used(tmp_path):
    target = random_llama(tmp_path / "target.gguf")
    draft = perturbed(target, tmp_path / "draft.gguf")
    found = {}
    for mode in ("on", "off", "auto"):
        done = localspec(
            tmp_path,
            *("run", str(target), "--draft", str(draft), "--overlap", mode, "--n-draft", "3", "-p", "hi"),
            *("--seed", "5", "--max-tokens", "30", "--json"),
            LOCALSPEC_WORKER_HOST="localspec.worker.host:serve",
        )
        assert done.returncode == 0, done.stderr
        found[mode] = json.loads(done.stdout)
        assert ("k=3, overlapped)" in done.stderr) == (mode == "on")
        assert ("share the CPU" in done.stderr) == (mode == "on")
        assert found[mode]["settings"]["overlap"] == mode
    assert len(found["on"]["token_ids"]) == 30
    assert found["on"]["token_ids"] == found["off"]["token_ids"] == found["auto"]["token_ids"]
    told = {mode: (one["draft"]["overlap"], one["draft"]["overlap_reason"]) for mode, one in found.items()}
    assert told == {
        "on": (True, ""),
        "off": (False, "switched off"),
        "auto": (False, "target and draft both compute on the CPU"),
    }


def test_a_value_that_cannot_be_is_explained(tmp_path):
    done = localspec(tmp_path, "run", "--overlap", "maybe", "-p", "x")
    assert done.returncode == 2
    assert "--overlap maybe is not allowed" in done.stderr
    assert f"Allowed: {OPTIONS['overlap'].allowed}." in done.stderr
