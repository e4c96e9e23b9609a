"""`localspec bench` as a program, on an engine with set prices."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys

import pytest

from tests.cli.program import PRICED_HOST, environment, localspec, priced

SHORT = ("--tokens", "80", "--skip", "20")


@pytest.fixture
def bench(on_pair):
    return lambda *arguments, **more: on_pair("bench", *SHORT, *arguments, **more)


def test_the_report_has_every_figure_and_fits_80_columns(bench):
    done = bench("--lengths", "40,90", prices="plain=0.05,step=0.01,curve=0.1,accept=0.8,fade=3")
    assert done.returncode == 0, done.stderr
    text = done.stdout
    for words in (
        "draft.gguf Q4_K_M",
        "80 tokens an answer, the first 20 left out, 3 repeats",
        "baseline tok/s",
        "speedup (95 % interval)",
        "code 20.0 (20.0 to 20.0)",
        "together",
        "tokens/round",
        "of bound",
        "The draft is faster: ",
        "first token after",
        "target 50 ms a token",
        "draft 10 ms: cost ratio c = 0.20",
        "2: 1.10",
        "5: 1.40",
        "memory target 14.1 GB (weights 13.5 GB, cache 500 MB, compute 100 MB)",
        "20.1 GB of 24.0 GB VRAM in use",
        "the same ids with and without the draft",
    ):
        assert words in " ".join(text.split()), words
    rows = [line.split() for line in text.splitlines() if line.startswith(("40 ", "90 "))]
    assert [row[:2] for row in rows] == [["40", "20.0"], ["90", "20.0"]]
    assert max(len(line) for line in text.splitlines() if "Try: " not in line) <= 80
    assert "\x1b" not in text + done.stderr
    assert "\r" not in done.stderr
    assert done.stderr.count("tok/s") == 4 * 3 * 2
    assert "left" in done.stderr


def test_json_has_the_names_that_stay(bench, models):
    done = bench("--json", "--seed", "9", prices="plain=0.05,step=0.01,curve=0.1,accept=0.8")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1
    found = json.loads(done.stdout)
    assert found["partial"] is False
    assert found["baseline"]["decode_tok_s"] == pytest.approx(20)
    assert found["drafted"]["decode_tok_s"] == pytest.approx(20 * found["speedup"])
    assert found["speedup"] == pytest.approx(found["bound"])
    assert found["measured_over_bound"] == pytest.approx(1)
    assert found["verdict"] == "faster"
    assert list(found["kinds"]) == ["code", "prose", "extraction", "edit"]
    for kind in found["kinds"].values():
        assert {"baseline", "drafted", "speedup", "speedup_interval", "bound", "same_text"} <= set(kind)
        assert len(kind["drafted"]["per_position"]) == 4
        assert kind["drafted"]["acceptance_rate"] == pytest.approx(
            kind["drafted"]["accepted"] / kind["drafted"]["drafted_tokens"]
        )
    assert len(found["runs"]) == 24
    assert all(run["tokens"] == 80 for run in found["runs"])
    assert found["cost_ratio"] == pytest.approx(0.2)
    assert found["verify_curve"]["5"] == pytest.approx(1.4)
    assert found["settings"]["seed"] == 9
    assert found["settings"]["n_draft"] == 4
    assert found["protocol"]["skip"] == 20
    assert len(found["protocol"]["prompts"]) == 4
    assert {"llama-cpp-python", "llama.cpp", "localspec"} <= set(found["versions"])
    assert "llama_cpp_commit" in found
    target = found["files"]["target"][0]
    assert (target["name"], len(target["sha256"])) == ("target.gguf", 64)
    assert found["device"]["target"] == "CPU"
    assert found["models"]["draft"]["memory"]["weights"] == 2_000_000_000


def test_off_is_fastest_is_said_with_the_command(bench, models):
    done = bench("--repeats", "2", prices="plain=0.01,step=0.02,curve=0.5,accept=0.5")
    assert done.returncode == 0
    assert "Off is fastest: the draft is slower: 0." in done.stdout
    assert f"Try: localspec run {models['target']} --draft none" in done.stdout
    assert f"Try: localspec bench {models['target']} --draft lookup" in done.stdout


def test_a_draft_length_of_0_is_said(bench, models):
    done = bench("--n-draft", "0", prices="plain=0.05")
    assert "draft   off: the draft length is 0" in done.stdout
    assert "drafted tok/s" not in done.stdout
    assert f"--draft {models['draft']} --n-draft auto" in done.stdout


def test_a_drafter_that_proposed_nothing_is_said(bench):
    done = bench(prices="plain=0.05,shy=1")
    assert "Nothing was drafted: it had nothing to propose" in done.stdout
    assert "is faster" not in done.stdout


def test_noise_is_called_noise(bench):
    done = bench(prices="plain=0.05,step=0,accept=0,jitter=0.15")
    assert "Within noise: neither is faster: " in done.stdout
    assert "No speedup beyond noise" in done.stdout


def test_kinds_that_disagree_are_named(bench, tmp_path):
    (tmp_path / "easy.txt").write_text("Easy one")
    (tmp_path / "[red]hard.txt").write_text("Hard one")
    done = bench(
        *("--prompt-file", str(tmp_path / "easy.txt"), "--prompt-file", str(tmp_path / "[red]hard.txt")),
        prices="plain=0.05,step=0.005,curve=0.1,Easy=1.0,Hard=0.0",
    )
    assert "Not so for [red]hard (slower)" in done.stdout
    assert "easy" in done.stdout


def test_quick_is_shorter(tmp_path, models):
    more = {"LOCALSPEC_WORKER_HOST": PRICED_HOST}
    base = ("bench", models["target"], "--draft", "lookup", "--n-draft", "4", "--quick", "--json")
    found = json.loads(localspec(tmp_path, *base, **more).stdout)
    assert found["protocol"]["tokens"] < 512
    assert len(found["runs"]) == 16
    assert found["draft"]["name"] == "lookup"


def test_without_a_draft_the_baseline_stands_alone(bench):
    done = bench("--repeats", "1", draft="none")
    assert done.returncode == 0
    assert "draft   off: switched off with --draft none" in done.stdout
    assert "speedup" not in done.stdout
    assert "Nothing was drafted" not in done.stdout


def test_a_death_in_the_middle_keeps_the_rest(bench):
    done = bench(prices="die=6")
    assert done.returncode == 1
    assert "PARTIAL: stopped after 4 answers" in done.stdout
    assert "SIGKILL" in done.stderr
    assert "Traceback" not in done.stderr
    assert json.loads(bench("--json", prices="die=6").stdout)["error"]["kind"] == "WorkerDiedError"


def test_ctrl_c_prints_what_there_is(tmp_path, models):
    arguments = ("bench", models["target"], "--draft", models["draft"], "--n-draft", "2", "--repeats", "4000")
    process = subprocess.Popen(
        [sys.executable, "-m", "localspec", *arguments, *SHORT, "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(tmp_path, LOCALSPEC_WORKER_HOST=PRICED_HOST),
    )
    for _ in range(3):
        while b"tok/s" not in process.stderr.readline():
            assert process.poll() is None
    os.kill(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=30)
    found = json.loads(out)
    assert found["partial"] is True
    assert found["error"] is None
    assert 3 <= len(found["runs"]) < 8 * 4000
    assert process.returncode == 130
    assert b"Traceback" not in err


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--skip", "80"], "nothing to measure"),
        (["--repeats", "0"], "one repeat"),
        (["--lengths", "many"], "--lengths many is not allowed"),
        (["--prompt-file", "/no/such/file"], "cannot be read"),
    ],
)
def test_bad_flags_end_before_anything_is_loaded(bench, flags, words):
    done = bench(*flags)
    assert done.returncode == 2
    assert words in done.stderr
    assert done.stdout == ""


def test_compare_two_results(bench, tmp_path):
    for name, prices in (("a.json", "accept=0.9"), ("b.json", "accept=0.5,jitter=0.01")):
        (tmp_path / name).write_text(bench("--json", prices=prices).stdout)
    pair = (str(tmp_path / "a.json"), str(tmp_path / "b.json"))
    done = localspec(tmp_path, "bench", "--compare", *pair)
    assert done.returncode == 0, done.stderr
    lines = {line[:26].strip(): line for line in done.stdout.splitlines()}
    assert "yes" in lines["acceptance"]
    assert "yes" in lines["drafted tok/s"]
    assert "no" in lines["baseline tok/s"].split("%", 1)[1]
    assert "Nothing changed" in done.stdout
    found = json.loads(localspec(tmp_path, "bench", "--compare", *pair, "--json").stdout)
    assert found["changed"] == []
    assert {one["name"] for one in found["differences"] if one["beyond_noise"]} >= {"acceptance", "speedup"}


def test_compare_what_is_no_result(tmp_path):
    (tmp_path / "a.json").write_text("{}")
    done = localspec(tmp_path, "bench", "--compare", str(tmp_path / "a.json"), str(tmp_path / "b.json"))
    assert done.returncode == 2
    assert "is no result of localspec bench" in done.stderr


@pytest.mark.weights
def test_the_whole_way_on_real_weights(tmp_path, demo_pair):
    target, draft = map(str, demo_pair)
    prompt = tmp_path / "count.txt"
    prompt.write_text("Count from one to fifty in words.")
    done = localspec(
        tmp_path,
        *("bench", target, "--draft", draft, "--n-draft", "3", "--ctx", "512", "--threads", "1", "--json"),
        *("--tokens", "24", "--skip", "4", "--repeats", "2", "--prompt-file", str(prompt)),
        LOCALSPEC_WORKER_HOST="localspec.worker.host:serve",
    )
    found = json.loads(done.stdout)
    kind = found["kinds"]["count"]
    assert kind["same_text"] is True
    assert kind["drafted"]["drafted_tokens"] > 0
    assert 1 <= kind["drafted"]["mean_accepted_length"] <= 4
    assert found["bound"] > 0
    assert {"1", "2", "3", "4"} <= set(found["verify_curve"])
    assert found["cost_ratio"] > 0
    assert found["files"]["draft"][0]["sha256"]
    assert found["llama_cpp_commit"]


def test_what_run_would_use_is_measured(tmp_path, models, tuned):
    """Settings that tune saved count here as in a chat, and are told; what was typed goes before them."""
    tuned()
    short = ("bench", models["target"], *SHORT, "--repeats", "1", "--json")
    done = priced(tmp_path, *short)
    used = json.loads(done.stdout)["settings"]
    assert {key: used[key] for key in ("draft", "n_draft", "auto", "kv_type", "profile")} == {
        "draft": models["draft"],
        "n_draft": 2,
        "auto": False,
        "kv_type": "q8_0",
        "profile": "fast",
    }
    assert "(profile fast; --profile none leaves it out)" in " ".join(done.stderr.split())
    assert done.stderr.index("profile fast") < done.stderr.index("tok/s"), "before the measurement"

    typed = json.loads(priced(tmp_path, *short, "--n-draft", "3").stdout)["settings"]
    assert (typed["n_draft"], typed["kv_type"], typed["profile"]) == (3, "q8_0", "fast")
    without = priced(tmp_path, *short, "--profile", "none", "--draft", "lookup")
    used = json.loads(without.stdout)["settings"]
    assert (used["draft"], used["kv_type"], used["profile"]) == ("lookup", "f16", None)
    assert "profile" not in without.stderr


def test_where_tune_found_no_draft_only_plain_is_measured(tmp_path, models, tuned):
    tuned("none")
    done = priced(tmp_path, "bench", models["target"], *SHORT, "--repeats", "1")
    assert done.returncode == 0, done.stderr
    assert "draft off: no draft was the fastest when it was tuned" in " ".join(done.stdout.split())
    assert "Tuned on 2026-11-30: --draft none" in done.stderr


def test_lengths_beyond_the_context_cost_no_answer(tmp_path, models):
    """The part that fits is measured; the rest is said before and after, and no answer runs into the end for it."""
    base = ("bench", models["target"], "--draft", "lookup", "--n-draft", "4", *SHORT, "--repeats", "1")
    done = priced(tmp_path, *base, "--ctx", "600", "--lengths", "100,50000")
    assert done.returncode == 0, done.stderr
    assert "Note: a context of 600 tokens ends before 50000; --ctx makes it longer." in done.stderr
    assert re.search(r"^100 +", done.stdout, re.MULTILINE)
    assert "tokens ended before 50000" in done.stdout
    none = priced(tmp_path, *base, "--ctx", "600", "--lengths", "50000", "--json")
    assert json.loads(none.stdout)["lengths"] == []


@pytest.mark.parametrize("lengths", [",", "a", "1", "200,x"])
def test_lengths_that_are_none_are_refused(tmp_path, models, lengths):
    done = priced(tmp_path, "bench", models["target"], *SHORT, "--repeats", "1", "--lengths", lengths)
    assert done.returncode == 2
    assert "Try: localspec bench --lengths 200,2000,4000" in done.stderr
