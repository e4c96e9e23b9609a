"""`localspec verify` as a program, on an engine whose text can be made to differ."""

from __future__ import annotations

import json

import pytest

from tests.cli.program import localspec, priced


@pytest.fixture
def verify(on_pair):
    return lambda *arguments, **more: on_pair("verify", "--quick", "--tokens", "30", *arguments, **more)


def test_identical(verify):
    done = verify()
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("identical: 8 answers, 240 tokens, with and without the draft\n")
    found = json.loads(verify("--json").stdout)
    assert found["identical"] is True
    assert found["settings"]["temperatures"] == [0.0, 0.7]
    assert 0 < found["accepted"] < found["drafted"]
    assert found["cache"] is None


def test_the_first_difference_with_both_logits(verify):
    done = verify(prices="part=6,margin=2.5")
    assert done.returncode == 1
    text = done.stdout
    assert text.startswith("different: 8 of 8 answers\n")
    assert "question 1, temperature 0, token 6: Why is the sky blue" in text
    assert "without: 'left'              10.0000           10.0100" in text
    assert "7.5000" in text
    assert "no tie" in text
    assert "\x1b" not in text, "what a model says is never written raw"
    assert max(map(len, text.splitlines())) <= 100
    found = json.loads(verify("--json", prices="part=6").stdout)
    assert found["identical"] is False
    first = found["differences"][0]
    assert (first["position"], first["near_tie"]) == (5, False)
    assert set(first["alone"]["logits"]) == {str(first["token_without"]), str(first["token_with"])}


def test_a_near_tie_is_named(verify):
    done = verify(prices="part=6,margin=0.001")
    assert done.returncode == 1
    assert "near tie: rounding between batch sizes decides it" in done.stdout


def test_a_lossy_cache_is_reported_beside_the_check(verify):
    done = verify("--kv", "q8_0", prices="kv_part=11")
    assert done.returncode == 0, "a draft changed nothing"
    assert "identical: 8 answers" in done.stdout
    assert "q8_0 cache beside f16" in done.stdout
    assert "4 of 4 answers differ; 33.3% of positions come before any difference" in done.stdout
    assert "about one differing choice in 11 tokens" in done.stdout


def test_a_lossy_cache_without_a_draft(verify):
    found = json.loads(verify("--kv", "q8_0", "--json", draft="none").stdout)
    assert found["identical"] is None
    assert found["cache"]["share"] == 1.0


def test_nothing_to_verify(verify):
    done = verify(draft="none")
    assert done.returncode == 2
    assert "nothing to verify" in done.stderr


def test_own_questions(verify, tmp_path):
    (tmp_path / "q.jsonl").write_text('{"prompt": "one"}\n{"prompt": "two"}\n')
    assert "identical: 4 answers" in verify("--prompt-file", str(tmp_path / "q.jsonl")).stdout


@pytest.mark.weights
def test_real_weights_are_identical(tmp_path, demo_pair):
    target, draft = map(str, demo_pair)
    (tmp_path / "q.txt").write_text("Name three rivers.")
    done = localspec(
        tmp_path,
        *(
            "verify",
            target,
            "--draft",
            draft,
            "--n-draft",
            "4",
            "--ctx",
            "512",
            "--threads",
            "1",
            "--tokens",
            "24",
        ),
        *("--prompt-file", str(tmp_path / "q.txt")),
        LOCALSPEC_WORKER_HOST="localspec.worker.host:serve",
    )
    assert done.stdout.startswith("identical: 2 answers"), done.stdout + done.stderr
    assert done.returncode == 0


def test_what_run_would_use_is_verified(tmp_path, models, tuned):
    tuned()
    short = ("verify", models["target"], "--quick", "--tokens", "30", "--json")
    done = priced(tmp_path, *short)
    found = json.loads(done.stdout)
    used = found["settings"]
    assert (used["draft"], used["n_draft"], used["kv"], used["profile"]) == (
        models["draft"],
        2,
        "q8_0",
        "fast",
    )
    assert found["cache"]["kv"] == "q8_0"
    assert "profile fast; --profile none leaves it out" in " ".join(done.stderr.split())
    plain = json.loads(priced(tmp_path, *short, "--draft", "lookup", "--profile", "none").stdout)
    assert (plain["settings"]["kv"], plain["settings"]["profile"], plain["cache"]) == ("f16", None, None)
