"""`localspec tune` as a whole program, on an engine with set prices."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from localspec.settings import tomllib
from tests.cli.program import environment, localspec, priced
from tests.gguf_files import script_model

PAYS = "plain=0.05,curve=0.02,step=0.005,accept=0.85"


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return {
        "target": str(script_model(folder / "target.gguf", {}, n_layer=15)),
        "draft": str(script_model(folder / "draft.gguf", {}, n_layer=1)),
        "other": str(script_model(folder / "other.gguf", {}, n_layer=1, n_vocab=700)),
    }


def tune(home, *arguments, prices=PAYS, **more):
    return priced(home, "tune", *arguments, "--quick", prices=prices, **more)


def test_the_fastest_draft_is_found_saved_and_used_by_run(tmp_path, models):
    done = tune(tmp_path, models["target"], "--name", "fast")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("Fastest: draft, k=") or lines[0].startswith("Fastest: lookup, k=")
    assert "localspec run uses it by itself; --profile none leaves it out." in lines
    assert all(len(line) <= 80 for line in lines if "/" not in line)
    file = tmp_path / "data" / "profiles" / "fast.toml"
    assert f"Saved as {file}" in lines
    profile = tomllib.loads(file.read_text(encoding="utf-8"))
    assert profile["measured"]["speedup"] > 1.5
    assert profile["target"]["path"] == models["target"]

    used = localspec(tmp_path, "run", models["target"], "-p", "hi", script="n=3")
    assert f"Tuned on {profile['when'][:10]}: --draft" in used.stderr
    assert "profile fast; --profile none leaves it out" in used.stderr
    plain = localspec(tmp_path, "run", models["target"], "-p", "hi", "--profile", "none", script="n=3")
    assert "profile" not in plain.stderr
    assert plain.returncode == used.returncode == 0
    answer = localspec(
        tmp_path, "run", models["target"], "-p", "hi", "--json", "--n-draft", "2", script="n=3"
    )
    assert json.loads(answer.stdout)["settings"]["n_draft"] == 2


def test_the_tables_and_the_left_out_are_told_on_stderr(tmp_path, models):
    done = tune(tmp_path, models["target"])
    assert "other is left out: " in done.stderr
    assert "Drafters to try: no draft, draft, lookup." in done.stderr
    assert "A batch of n tokens takes, in target steps:  2: 1.02" in done.stderr
    assert done.stderr.count("A batch of n tokens") == 1
    assert "draft: a draft step is 0.10 of a target step" in done.stderr
    assert "draft length, everything else fixed (predicted)" in done.stderr
    assert "draft, measured beside no draft, in all and by kind of prompt" in done.stderr
    assert "kv, everything else as chosen" in done.stderr
    assert all(len(line) <= 80 for line in done.stderr.splitlines() if line.startswith(" "))
    assert "\x1b" not in done.stderr


def test_json_is_one_object_with_the_names_that_stay(tmp_path, models):
    done = tune(
        tmp_path,
        models["target"],
        "--drafts",
        models["draft"],
        "--kv",
        "f16",
        "--json",
        "--exhaustive",
        "--report",
        str(tmp_path / "page"),
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    best = found["best"]
    assert (best["drafter"], best["draft"], best["kv"]) == ("model", models["draft"], "f16")
    assert best["n_draft"] == "auto" or 1 <= best["n_draft"] <= 16
    assert best["threads"] > 0
    assert best["speedup"] == pytest.approx(best["decode_tok_s"] / best["baseline_tok_s"])
    assert (best["verdict"], best["confirmed"]) == ("faster", True)
    assert found["time_s"] > 0
    cells = found["cells"]
    assert cells[0]["draft"] is None
    assert {cell["drafter"] for cell in cells} == {"none", "model"}
    assert any(cell["chosen"] for cell in cells)
    assert all(set(cell["kinds"]) == {"code", "prose", "extraction", "edit"} for cell in cells)
    assert len(found["drafters"][0]["predicted"]) == 16
    assert len(found["exhaustive"]["cells"]) == 17
    assert found["exhaustive"]["gap"] < 0.1
    assert Path(found["profile"]).is_file()
    page = (tmp_path / "page" / "report.html").read_text(encoding="utf-8")
    assert "localspec tune" in page
    assert "Measured settings" in page


PLACED = (
    *("--draft-device", "cpu", "--draft-threads", "2,1", "--draft-kv", "q8_0", "--overlap", "on"),
    *("--ubatch", "64,128"),
)
USED = {"draft_device": "cpu", "draft_threads": 2, "draft_kv": "q8_0", "overlap": "on"}


def test_where_the_draft_runs_is_saved_and_used_by_run(tmp_path, models):
    done = tune(
        tmp_path, models["target"], "--drafts", models["draft"], "--kv", "f16", *PLACED, "--name", "p"
    )
    assert done.returncode == 0, done.stderr
    assert "--draft-device cpu --draft-threads 2 --draft-kv q8_0 --overlap on" in " ".join(
        done.stdout.split()
    )
    assert "ubatch, everything else as chosen" in done.stderr
    assert "draft threads, everything else as chosen" in done.stderr
    profile = tomllib.loads((tmp_path / "data" / "profiles" / "p.toml").read_text(encoding="utf-8"))
    kept = {key: profile["settings"][key] for key in (*USED, "ubatch")}
    assert kept == {**USED, "ubatch": 64}
    assert "draft_gpu_layers" not in profile["settings"]
    used = localspec(tmp_path, "run", models["target"], "-p", "hi", "--json", script="n=3")
    assert "--draft-device cpu --draft-threads 2 --draft-kv q8_0 --overlap on" in used.stderr
    settings = json.loads(used.stdout)["settings"]
    assert {key: settings[key] for key in kept} == kept


def test_the_settings_of_a_draft_are_not_saved_without_one(tmp_path, models):
    prices = "plain=0.05,curve=0.3,step=0.03,accept=0.2"
    done = tune(
        tmp_path, models["target"], "--drafts", models["draft"], *PLACED, "--name", "off", prices=prices
    )
    assert done.stdout.startswith("Off is fastest")
    profile = tomllib.loads((tmp_path / "data" / "profiles" / "off.toml").read_text(encoding="utf-8"))
    assert not [key for key in profile["settings"] if key.startswith("draft_") or key == "overlap"]


def test_what_changes_the_text_is_a_table_of_its_own(tmp_path, models):
    wanted = ("--temp", "0.7,0", "--top-p", "0.95,1", "--kv", "f16", "--tokens", "64", "--json")
    done = tune(tmp_path, models["target"], "--drafts", models["draft"], *wanted)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    shown = [sweep for sweep in found["sweeps"] if sweep["shown_only"]]
    assert [(one["variable"], one["used"], [row["value"] for row in one["rows"]]) for one in shown] == [
        ("temperature", "0.7", ["0.7", "0"]),
        ("top-p", "0.95", ["0.95", "1"]),
    ]
    assert (found["settings"]["temperature"], found["settings"]["top_p"]) == (0.7, 0.95)
    said = " ".join(done.stderr.split())
    assert "Top-p changes the text: it is yours to choose, and none is taken for its speed." in said


def test_off_is_fastest_is_an_answer(tmp_path, models):
    prices = "plain=0.05,curve=0.3,step=0.03,accept=0.2"
    done = tune(tmp_path, models["target"], "--drafts", models["draft"], "--name", "off", prices=prices)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Off is fastest: no draft, ")
    used = localspec(tmp_path, "run", models["target"], "-p", "hi", script="n=3")
    assert "draft: off (no draft was the fastest when it was tuned)" in used.stderr


def test_a_draft_deeper_than_the_target_returns_off(tmp_path, models):
    done = tune(
        tmp_path,
        models["target"],
        "--drafts",
        models["draft"],
        "--json",
        prices="plain=0.05,step=0.4,accept=0.99",
    )
    best = json.loads(done.stdout)["best"]
    assert (best["drafter"], best["draft"], best["n_draft"], best["verdict"]) == (
        "none",
        None,
        0,
        "off is fastest",
    )
    assert "Cannot pay: if every drafted token were accepted" in done.stderr


def test_a_kind_that_wants_no_draft_is_warned_of(tmp_path, models):
    # The built-in prose prompt begins with "Write a story", so its kind cannot be told by the word alone.
    prompts = tmp_path / "prompts.jsonl"
    kinds = {"code": "Code", "prose": "Story", "edit": "Edit"}
    prompts.write_text(
        "".join(
            json.dumps({"prompt": f"{word} please", "kind": kind}) + "\n" for kind, word in kinds.items()
        ),
        encoding="utf-8",
    )
    done = tune(
        tmp_path, models["target"], "--drafts", models["draft"], "--prompt-file", str(prompts), "--kv", "f16",
        prices="plain=0.05,curve=0.05,step=0.01,accept=0.95,Story=0.05",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "! prose: no draft is " in done.stdout
    assert "% faster there." in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--drafts", "OTHER"), "Target and draft do not match"),
        (("--kv", "f16,q9"), "--kv q9 is not allowed."),
        (("--temp", "hot"), "--temp hot is not allowed."),
        (("--top-p", "0.9,7"), "--top-p 7.0 is not allowed."),
        (("--overlap", "on,perhaps"), "--overlap perhaps is not allowed."),
        (("--tokens", "8192"), "Answers of 8192 tokens do not fit into a context of 8192."),
        (("--threads", "1,-2"), "--threads -2 is not allowed."),
        (("--ubatch", "64,4"), "--ubatch 4 is not allowed."),
        (("--draft-threads", "1,-2"), "--draft-threads -2 is not allowed."),
        (("--draft-device", "cpu", "--draft-gpu-layers", "3"), "exclude each other"),
        (("--name", "none"), "A profile cannot be called none."),
        (("--drafts", "nothing-like-it"), "no model called nothing-like-it"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_loaded(tmp_path, models, arguments, message):
    arguments = [models["other"] if word == "OTHER" else word for word in arguments]
    done = tune(tmp_path, models["target"], *arguments)
    assert done.returncode != 0
    assert message in done.stderr
    assert done.stdout == ""
    assert not (tmp_path / "state" / "logs").exists(), "no engine was started"


def test_ctrl_c_names_the_best_so_far_and_saves_nothing(tmp_path, models):
    program = subprocess.Popen(
        [sys.executable, "-m", "localspec", "tune", models["target"], "--drafts", models["draft"]],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(tmp_path, LOCALSPEC_WORKER_HOST="tests.cli.slow_host:serve", LOCALSPEC_PRICED=PAYS),
    )
    seen = ""
    while "measured" not in seen:
        line = program.stderr.readline()
        assert line, seen
        seen += line
    time.sleep(0.3)
    program.send_signal(signal.SIGINT)
    out, _ = program.communicate(timeout=30)
    assert program.returncode == 130
    assert out.startswith("Fastest so far (not confirmed): draft, k=")
    assert "Stopped before the end: the best so far, and no profile was saved." in out
    assert not (tmp_path / "data" / "profiles").exists()


def test_a_profile_that_cannot_be_written_costs_no_result(tmp_path, models):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "profiles").write_text("in the way", encoding="utf-8")
    done = tune(tmp_path, models["target"], "--drafts", models["draft"], "--kv", "f16")
    assert done.stdout.startswith("Fastest: draft, k=")
    assert "cannot be written" in done.stderr


def test_a_profile_that_does_not_exist_is_a_sentence(tmp_path, models):
    done = localspec(tmp_path, "run", models["target"], "-p", "hi", "--profile", "nope")
    assert done.returncode == 2
    assert "There is no profile called nope." in done.stderr
    assert "Try: localspec tune" in done.stderr


def test_the_effort_can_be_set(tmp_path, models):
    done = tune(tmp_path, models["target"], "--tokens", "64", "--repeats", "4", "--json")
    assert done.returncode == 0, done.stderr
    effort = json.loads(done.stdout)["effort"]
    assert {key: effort[key] for key in ("tokens", "skip", "label_tokens", "repeats", "race")} == {
        "tokens": 64,
        "skip": 12,
        "label_tokens": 48,
        "repeats": 4,
        "race": 2,
    }
    assert tune(tmp_path, models["target"], "--tokens", "31").returncode == 2
    once = tune(tmp_path, models["target"], "--repeats", "1")  # one pair could never win
    assert once.returncode == 2
    assert "--repeats" in once.stderr


def test_files_to_look_up_are_searched_and_not_kept(tmp_path, models):
    (tmp_path / "notes.txt").write_text("some text")
    files = ("--lookup", str(tmp_path / "notes.txt"))
    done = tune(tmp_path, models["target"], "--drafts", "lookup", "--kv", "f16", *files, "--name", "p")
    assert done.returncode == 0, done.stderr
    assert "Lookup searches your files too. They are not kept in the profile" in done.stderr
    gone = tune(tmp_path, models["target"], "--drafts", "lookup", "--lookup", str(tmp_path / "gone.txt"))
    assert gone.returncode == 2
    assert "There is no file" in gone.stderr
