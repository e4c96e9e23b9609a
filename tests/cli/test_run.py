"""`localspec run` in a pipe: what goes where, byte for byte."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from localspec.settings import load_state
from tests.cli.program import environment, localspec


def test_the_answer_goes_to_stdout_and_everything_else_to_stderr(tmp_path, models):
    done = localspec(
        tmp_path,
        *("run", models["target"], "--draft", models["draft"], "--n-draft", "3", "-p", "hi", "--seed", "5"),
        script="n=9,notes=This build uses the CPU only.,text=one two three ",
    )
    assert done.stdout == "one two three one two three one two three \n"
    assert done.returncode == 0
    lines = done.stderr.splitlines()
    assert lines[:2] == ["This build uses the CPU only.", "draft: on (draft.gguf, k=3)"]
    assert "tok/s" in lines[2]
    assert "9 tokens" in lines[2]
    assert "accepted " in lines[2]
    assert "tokens a round" in lines[2]
    assert lines[3] == "seed 5 (the same text again: --seed 5)"
    assert "\x1b" not in done.stderr
    assert "\r" not in done.stderr


def test_the_pair_is_remembered(tmp_path, models, monkeypatch):
    localspec(tmp_path, "run", models["target"], "--draft", models["draft"], "-p", "hi", script="n=1")
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path))
    assert load_state().target == models["target"]
    done = localspec(tmp_path, "run", "-p", "hi", script="n=1")
    assert "draft: on (draft.gguf, k=auto)" in done.stderr


def test_json_is_one_object_with_the_names_that_stay(tmp_path, models):
    done = localspec(
        tmp_path,
        *(
            "run",
            models["target"],
            "--draft",
            models["draft"],
            "-p",
            "hi",
            "--json",
            "--temp",
            "0.3",
            "--ctx",
            "512",
        ),
        *("--seed", "11", "--kv", "q8_0"),
        script="n=40,think=3,text=été [/red] ",
    )
    answer = json.loads(done.stdout)
    assert done.stdout.count("\n") == 1
    assert answer["text"] == "été [/red] " * 20
    assert answer["thinking"] == "Let me think "
    assert answer["token_ids"] == list(range(100, 143))
    assert answer["finish_reason"] == "stop"
    assert answer["draft"] == {"state": "on", "reason": "", "name": "draft.gguf"}
    stats = answer["stats"]
    assert {
        *(
            "prompt_tokens",
            "completion_tokens",
            "ttft_s",
            "prompt_tok_s",
            "decode_tok_s",
            "rounds",
            "drafted",
        ),
        *("accepted", "acceptance_rate", "mean_accepted_length", "per_position"),
    } <= set(stats)
    assert stats["completion_tokens"] == 43
    assert stats["acceptance_rate"] == pytest.approx(stats["accepted"] / stats["drafted"])
    settings = answer["settings"]
    assert (settings["temperature"], settings["ctx"], settings["seed"], settings["kv"]) == (
        0.3,
        512,
        11,
        "q8_0",
    )
    assert (settings["target"], settings["draft"], settings["n_draft"]) == (
        models["target"],
        models["draft"],
        "auto",
    )


@pytest.mark.parametrize(
    ("flags", "script", "reason"),
    [(["--max-tokens", "5"], "n=20", "length"), (["--ctx", "64"], "n=200", "context")],
)
def test_finish_reasons(tmp_path, models, flags, script, reason):
    base = ("run", models["target"], "--draft", "none", "-p", "hi", *flags)
    done = localspec(tmp_path, *base, "--json", script=script)
    assert json.loads(done.stdout)["finish_reason"] == reason
    assert json.loads(done.stdout)["draft"]["reason"] == "switched off with --draft none"
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("flags", "stdin", "sent"),
    [
        ([], "from stdin\n", "from stdin"),
        (["-p", "flag"], "", "flag"),
        (["-p", "summarise"], "line 1\nline 2\n", "summarise\n\nline 1\nline 2"),
        ([], b"\xff\xc3\xa9", "\ufffd\u00e9"),
    ],
)
def test_prompts_come_from_the_flag_and_from_stdin(tmp_path, models, flags, stdin, sent):
    done = localspec(tmp_path, "run", models["target"], *flags, stdin=stdin, script="echo=last")
    assert done.stdout == sent + "\n"


@pytest.mark.parametrize("flags", [[], ["-p", ""], ["-p", " \n"]])
def test_no_prompt_is_said(tmp_path, models, flags):
    done = localspec(tmp_path, "run", models["target"], *flags)
    assert done.returncode == 2
    assert "There is no prompt." in done.stderr


@pytest.mark.skipif(os.name != "posix", reason="a pipe of POSIX")
def test_a_pipe_that_nobody_writes_to_is_named(tmp_path, models):
    with subprocess.Popen(
        [sys.executable, "-m", "localspec", "run", models["target"], "-p", "flag"],
        env=environment(tmp_path, "echo=last"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as running:
        assert running.stderr.readline() == b"Waiting for the prompt on stdin.\n"
        out, _ = running.communicate(b"late", timeout=20)
    assert out == b"flag\n\nlate\n"


def test_flags_reach_the_engine(tmp_path, models):
    done = localspec(
        tmp_path,
        *(
            "run",
            models["target"],
            "-p",
            "hi",
            "--system",
            "Be brief.",
            "--temp",
            "0",
            "--top-k",
            "7",
            "--min-p",
            "0.1",
        ),
        *("--max-tokens", "9000", "--no-think", "--seed", "3", "--presence-penalty", "0.5"),
        script="echo=command",
    )
    sent = json.loads(done.stdout)
    assert [(m["role"], m["content"]) for m in sent["messages"]] == [("system", "Be brief."), ("user", "hi")]
    assert (sent["max_tokens"], sent["think"]) == (9000, False)
    sampling = sent["sampling"]
    assert (sampling["temperature"], sampling["top_k"], sampling["min_p"], sampling["seed"]) == (0, 7, 0.1, 3)
    assert sampling["presence_penalty"] == 0.5
    assert "seed" not in done.stderr  # greedy text has none


def test_thinking_is_not_part_of_the_output(tmp_path, models):
    done = localspec(tmp_path, "run", models["target"], "-p", "hi", script="n=2,think=4,text=a b")
    assert done.stdout == "a b\n"
    assert "think" not in done.stderr


def test_bytes_pass_a_pipe_unchanged_in_any_locale(tmp_path, models):
    text = "\x1b[31mred 👨‍👩‍👧 [b +"
    done = localspec(
        tmp_path,
        "run",
        models["target"],
        "-p",
        text,
        script="echo=last",
        LC_ALL="C",
        PYTHONUTF8="0",
        PYTHONIOENCODING="latin-1",
    )
    assert done.stdout == text + "\n"


def test_the_answer_streams(tmp_path, models):
    with subprocess.Popen(
        [sys.executable, "-m", "localspec", "run", models["target"], "--draft", "none", "-p", "hi"],
        env=environment(tmp_path, "tok_s=10,n=8,text=tick "),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as running:
        first = running.stdout.read(5)
        at = time.monotonic()
        rest = running.stdout.read()
        assert first == b"tick "
        assert time.monotonic() - at > 0.4  # seven more at 10 a second
        assert rest == b"tick " * 7 + b"\n"


# ------------------------------------------------------------------ trouble


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
@pytest.mark.parametrize(("phase", "shown"), [("load", ""), ("decode:3", "one two \n")])
def test_a_death_of_the_engine_is_a_sentence(tmp_path, models, phase, shown):
    done = localspec(
        tmp_path,
        *("run", models["target"], "--draft", "none", "-p", "hi"),
        script=f"n=9,crash={phase},kind=abort,text=one two ",
    )
    assert done.stdout == shown
    assert done.returncode == 1
    assert "Engine stopped: The engine stopped while" in done.stderr
    assert "(SIGABRT)" in done.stderr
    assert "GGML_ASSERT(n_tokens > 0) failed" in done.stderr
    assert "Its log is " in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("script", "title"),
    [
        ("fail=load", "Model could not be loaded: "),
        ("fail=decode,n=30", "Evaluation failed: "),
    ],
)
def test_failures_are_sentences(tmp_path, models, script, title):
    done = localspec(tmp_path, "run", models["target"], "-p", "hi", script=script)
    assert done.returncode == 1
    assert title in done.stderr


def test_a_failure_as_json(tmp_path, models):
    done = localspec(tmp_path, "run", models["target"], "-p", "hi", "--json", script="fail=context")
    assert set(json.loads(done.stdout)["error"]) == {"kind", "message", "why", "hint"}
    assert done.returncode == 1


def test_a_pair_that_does_not_match_is_refused_and_can_be_forced(tmp_path, models):
    base = ("run", models["target"], "--draft", models["other"], "-p", "hi")
    done = localspec(tmp_path, *base, script="n=1")
    assert done.returncode == 1
    assert "Target and draft do not match: " in done.stderr
    assert "--force-draft" in done.stderr
    assert localspec(tmp_path, *base, "--force-draft", script="n=1").returncode == 0


def test_what_is_missing_is_offered_with_its_size(tmp_path):
    done = localspec(tmp_path, "run", "--draft", "4b", "--n-draft", "8", "-p", "hi")
    assert done.returncode == 1
    assert "qwen3.8-27b   19.0 GB" in done.stderr
    assert "qwen3.5-4b     2.7 GB" in done.stderr
    assert "localspec run demo" in done.stderr
    assert done.stderr.endswith("  Try: localspec pull qwen3.8-27b --draft qwen3.5-4b\n")
    demo = localspec(tmp_path, "run", "demo", "-p", "hi")
    assert demo.stderr.endswith("  Try: localspec pull demo\n")


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_sigint_stops_and_prints_what_there_is(tmp_path, models, flags):
    with subprocess.Popen(
        [sys.executable, "-m", "localspec", "run", models["target"], "--draft", "none", "-p", "hi", *flags],
        env=environment(tmp_path, "tok_s=20,n=1000,text=tick "),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        running.stderr.readline()  # draft: off (...)
        time.sleep(0.6)
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=10)
    assert running.returncode == 130
    assert "Traceback" not in err
    if flags:
        assert json.loads(out)["finish_reason"] == "cancelled"
        assert json.loads(out)["text"].startswith("tick tick ")
    else:
        assert out.startswith("tick tick ")
        assert out.endswith("\n")
        assert "(stopped)" in err
        assert "tok/s" in err


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
def test_a_reader_that_leaves_ends_the_answer_quietly(tmp_path, models):
    command = f"{sys.executable} -m localspec run {models['target']} --draft none -p hi | head -c 5"
    began = time.monotonic()
    done = subprocess.run(
        ["bash", "-c", command],
        env=environment(tmp_path, "tok_s=50,n=100000,text=tick "),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.stdout == "tick "
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr
    assert time.monotonic() - began < 15
