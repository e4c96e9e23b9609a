"""`localspec run` in a pipe: what goes where, byte for byte."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from localspec.cli import app, output
from localspec.cli import run as run_module
from localspec.errors import UsageError
from localspec.settings import load_state
from localspec.worker.process import Worker
from tests.cli.program import environment, localspec
from tests.gguf_files import random_llama


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
    assert answer["device"] == {"target": "CPU", "draft": "CPU"}
    assert answer["draft"] == {
        "state": "on",
        "reason": "",
        "name": "draft.gguf",
        "predicted_speedup": None,
        "overlap": False,
        "overlap_reason": "",
    }
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
        ([], b"\xef\xbb\xbfmarked\r\n", "marked"),
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
        assert running.stderr.readline().startswith(b"Waiting for stdin to end;")
        out, _ = running.communicate(b"late", timeout=20)
    assert out == b"flag\n\nlate\n"


def test_stdin_that_does_not_end_is_refused(monkeypatch):
    monkeypatch.setattr(run_module, "_MOST_BYTES", 1 << 16)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"x" * (1 << 16))))
    assert len(run_module.read_prompt(None)) == 1 << 16
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BufferedReader(Endless())))
    with pytest.raises(UsageError, match="There is more than"):
        run_module.read_prompt("question")


class Endless(io.RawIOBase):
    def readable(self):
        return True

    def readinto(self, buffer):
        buffer[:] = b"y" * len(buffer)
        return len(buffer)


@pytest.mark.skipif(os.name != "posix", reason="a shell of POSIX")
def test_stdin_that_cannot_be_read_is_said(tmp_path, models):
    command = f"{sys.executable} -m localspec run {models['target']} -p hi 0>{tmp_path / 'written'}"
    done = subprocess.run(
        ["bash", "-c", command], env=environment(tmp_path), check=False, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stderr.startswith("Cannot do that: stdin cannot be read.\n  Bad file descriptor.\n  Try: ")


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
        *("--stop", "\n\n", "--stop", "End"),
        script="echo=command",
    )
    sent = json.loads(done.stdout)
    assert [(m["role"], m["content"]) for m in sent["messages"]] == [("system", "Be brief."), ("user", "hi")]
    assert (sent["max_tokens"], sent["think"], sent["stop"]) == (9000, False, ["\n\n", "End"])
    sampling = sent["sampling"]
    assert (sampling["temperature"], sampling["top_k"], sampling["min_p"], sampling["seed"]) == (0, 7, 0.1, 3)
    assert sampling["presence_penalty"] == 0.5
    assert "seed" not in done.stderr  # greedy text has none


def test_an_empty_stop_text_is_refused(tmp_path, models):
    done = localspec(tmp_path, "run", models["target"], "-p", "hi", "--stop", "x", "--stop", "")
    assert done.returncode == 2
    assert "--stop is empty." in done.stderr


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


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_ctrl_c_during_the_load(tmp_path, models, monkeypatch, capsys, flags):
    """Who reads JSON gets an object in any case."""
    for name, value in environment(tmp_path, "load_s=30").items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.stdin", None)
    real, sent = Worker.load, []

    def load(worker, command):
        for event in real(worker, command):
            if not sent:
                sent.append(signal.raise_signal(signal.SIGINT))
            yield event

    monkeypatch.setattr(Worker, "load", load)
    with pytest.raises(SystemExit) as leaving:
        app.run(["run", models["target"], "--draft", "none", "-p", "hi", *flags])
    assert leaving.value.code == 130
    out = capsys.readouterr().out
    if flags:
        assert json.loads(out)["error"]["message"] == "Stopped before there was a result."
    else:
        assert out == ""


def test_ctrl_c_between_the_load_and_the_answer_is_not_lost(tmp_path, models, monkeypatch, capsys):
    """The stop names the last request, and at that moment there is none that runs."""
    for name, value in environment(tmp_path, "tok_s=20,n=1000,text=tick ").items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.stdin", None)
    monkeypatch.setattr(output, "draft_line", lambda draft: signal.raise_signal(signal.SIGINT) or "loaded")
    began = time.monotonic()
    with pytest.raises(SystemExit) as leaving:
        app.run(["run", models["target"], "--draft", "none", "-p", "hi", "--json"])
    assert leaving.value.code == 130
    assert time.monotonic() - began < 20  # the whole answer takes 50 seconds
    assert json.loads(capsys.readouterr().out)["finish_reason"] == "cancelled"


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
def test_a_reader_that_leaves_ends_the_answer_quietly(tmp_path, models):
    answer = f"{sys.executable} -m localspec run {models['target']} --draft none -p hi"
    command = f"{answer} | head -c 5; exit ${{PIPESTATUS[0]}}"
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
    assert (done.stdout, done.returncode) == ("tick ", 141)  # as whoever is ended by SIGPIPE
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr
    assert time.monotonic() - began < 15


REAL_ENGINE = {"LOCALSPEC_WORKER_HOST": "localspec.worker.host:serve"}


def test_a_drafter_of_ones_own_from_the_current_folder(tmp_path, monkeypatch):
    """The whole way, on the real engine: the parent runs none of the code, the engine's process does."""
    target = str(random_llama(tmp_path / "tiny.gguf", n_embd=128))
    (tmp_path / "own_drafts.py").write_text(
        "import multiprocessing\n"
        "assert multiprocessing.parent_process() is not None, 'it was run in the parent'\n"
        "print('said by the drafter')\n"
        "def draft(input_ids):\n    return input_ids[-3:]\n"
        "class Fails:\n    def __call__(self, input_ids): raise ValueError('no\\x1b[31m idea')\n"
    )
    monkeypatch.chdir(tmp_path)
    short = ("--temp", "0", "--max-tokens", "12", "--ctx", "256", "--threads", "1")
    base = ("run", target, "-p", "hi", *short, "--json")
    found = {}
    for draft in ("none", "own_drafts:draft", "own_drafts:Fails"):
        done = localspec(tmp_path, *base, "--draft", draft, "--n-draft", "3", **REAL_ENGINE)
        assert done.returncode == 0, done.stderr
        assert "said by the drafter" not in done.stdout
        found[draft] = json.loads(done.stdout)
    plain, own, fails = found.values()
    assert own["token_ids"] == fails["token_ids"] == plain["token_ids"]
    assert (own["draft"]["state"], own["draft"]["name"]) == ("on", "own_drafts:draft")
    assert own["stats"]["by_source"]["own_drafts:draft"]["drafted"] == own["stats"]["drafted"] > 0
    assert own["settings"]["draft"] == "own_drafts:draft"
    assert fails["draft"]["reason"] == "the drafter raised ValueError: no\\x1b[31m idea"
    wrong = localspec(tmp_path, *base[:-1], "--draft", "own_drafts:drift", **REAL_ENGINE)
    assert wrong.returncode == 2
    assert "own_drafts has no drift.\n  Did you mean draft?" in wrong.stderr


def test_files_to_look_up(tmp_path):
    target = str(random_llama(tmp_path / "tiny.gguf", n_embd=128))
    (tmp_path / "a.txt").write_text("hi there, hi there")
    base = ("run", target, "-p", "hi", "--temp", "0", "--max-tokens", "8", "--ctx", "256", "--threads", "1")
    files = ("--lookup", str(tmp_path / "a.txt"), "--lookup", str(tmp_path / "tiny.gguf"))
    done = localspec(tmp_path, *base, *files[:2], "--n-draft", "4", "--json", **REAL_ENGINE)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["draft"]["name"] == "lookup"
    assert "Lookup also searches a.txt: " in done.stderr
    refused = localspec(tmp_path, *base, *files)
    assert refused.returncode == 2
    assert "tiny.gguf is not text" in refused.stderr
    assert "Traceback" not in refused.stderr
