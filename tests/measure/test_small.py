"""Prompts, file hashes, and what else uses the machine."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from types import SimpleNamespace

import psutil
import pytest

from localspec.errors import UsageError
from localspec.measure import hashes, surroundings
from localspec.measure.prompts import BUILT_IN, QUESTIONS, Prompt, read_prompt_files
from localspec.measure.surroundings import Surroundings, Watch, look


def test_the_built_in_prompts_are_of_four_kinds_and_differ():
    assert [prompt.kind for prompt in BUILT_IN] == ["code", "prose", "extraction", "edit"]
    assert len({prompt.digest for prompt in (*BUILT_IN, *QUESTIONS)}) == 16
    edit = BUILT_IN[-1].text
    assert "rename" in edit
    assert "def read_rows(path):" in edit


def test_the_digest_names_text_and_system():
    assert Prompt("a", "x").digest == Prompt("b", "x").digest
    assert Prompt("a", "x").digest != Prompt("a", "x", "be brief").digest
    assert [m.role for m in Prompt("a", "x", "be brief").messages] == ["system", "user"]


def test_prompt_files(tmp_path):
    (tmp_path / "mail.txt").write_text("Write a mail.\nBe kind.\n", encoding="utf-8")
    (tmp_path / "many.jsonl").write_text(
        '{"prompt": "one", "kind": "code"}\n\n{"prompt": "two", "system": "s"}\n"three"\n',
        encoding="utf-8-sig",
    )
    found = read_prompt_files([tmp_path / "mail.txt", tmp_path / "many.jsonl"])
    assert found == (
        Prompt("mail", "Write a mail.\nBe kind."),
        Prompt("code", "one"),
        Prompt("many", "two", "s"),
        Prompt("many", "three"),
    )


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.txt", None, "cannot be read"),
        ("a.txt", b"  \n", "is empty"),
        ("a.txt", b"\xff\xfe\x00", "cannot be read"),
        ("a.jsonl", b'{"prompt": "x"}\nnot json', "line 2 is not JSON"),
        ("a.jsonl", b'{"text": "x"}', "line 1 has no prompt"),
        ("a.jsonl", b'{"prompt": 3}', "line 1 has no prompt"),
        ("a.jsonl", b"[1]", "line 1 has no prompt"),
        ("a.jsonl", b"\n", "is empty"),
        ("a.txt", b"x" * 1_000_001, "larger than"),
    ],
)
def test_bad_prompt_files_get_their_sentence(tmp_path, name, content, words):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UsageError, match=words):
        read_prompt_files([tmp_path / name])


def test_a_file_is_hashed_once(tmp_path):
    file = tmp_path / "model.gguf"
    file.write_bytes(b"weights" * 1000)
    digest = hashlib.sha256(b"weights" * 1000).hexdigest()
    first, second = hashes.identify([file]), hashes.identify([file])
    assert first == [{"name": "model.gguf", "size": 7000, "sha256": digest, "from": "read"}]
    assert second == [{"name": "model.gguf", "size": 7000, "sha256": digest, "from": "memory"}]


def test_a_changed_file_is_hashed_again(tmp_path):
    file = tmp_path / "model.gguf"
    file.write_bytes(b"one")
    hashes.identify([file])
    file.write_bytes(b"two")
    os.utime(file, ns=(1, 1))
    assert hashes.identify([file])[0]["sha256"] == hashlib.sha256(b"two").hexdigest()


def test_the_hubs_cache_names_the_hash(tmp_path):
    digest = "ab" * 32
    blob = tmp_path / "blobs" / digest
    blob.parent.mkdir()
    blob.write_bytes(b"x")
    link = tmp_path / "model.gguf"
    link.symlink_to(blob)
    assert hashes.identify([link]) == [{"name": "model.gguf", "size": 1, "sha256": digest, "from": "hub"}]


def test_hashing_can_be_stopped_and_a_gone_file_is_said(tmp_path):
    file = tmp_path / "model.gguf"
    file.write_bytes(b"x")
    assert hashes.identify([file], lambda path, share: False)[0]["sha256"] is None
    assert hashes.identify([tmp_path / "gone.gguf"])[0]["from"] == "gone"


def nvidia(utilisation, apps=""):
    def run(command):
        return apps if any("compute-apps" in part for part in command) else utilisation

    return run


def test_gpu_programs_are_named():
    found = look(
        0.01, nvidia("3\n71\n", '4711, "C:\\\\Games\\\\game.exe", 2048\n99, /usr/bin/blender, 4096\n')
    )
    assert found.gpu_percent == 71
    assert [(one.pid, one.name, one.gpu_bytes >> 20) for one in found.gpu_programs] == [
        (99, "blender", 4096),
        (4711, "game.exe", 2048),
    ]
    assert found.busy
    assert "the GPU is 71 % busy with blender (99), game.exe (4711)" in found.sentence


def test_without_a_gpu_nothing_is_claimed():
    found = look(0.01, nvidia(""))
    assert found.gpu_percent is None
    assert found.gpu_programs == ()


def test_what_is_idle_is_not_busy():
    found = Surroundings(0.05, (), 0, ())
    assert not found.busy
    assert found.sentence == ""
    assert found.to_json()["busy"] is False


def test_another_program_is_seen():
    spin = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        pids = [one.pid for one in look(1.0, nvidia("")).programs]
        assert spin.pid in pids or len(pids) >= 5  # the busiest are named; here there may be busier ones
    finally:
        spin.kill()
        spin.wait()


def test_what_our_own_processes_took_is_not_the_others(monkeypatch):
    """Two seconds pass on four cores: 5 core seconds are spent, 3 of them by us."""
    clock, busy, ours = iter([10.0, 12.0]), iter([100.0, 105.0]), iter([7.0, 10.0])
    monkeypatch.setattr(surroundings, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    monkeypatch.setattr(surroundings, "_busy_seconds", lambda: next(busy))
    monkeypatch.setattr(surroundings.psutil, "cpu_count", lambda: 4)
    monkeypatch.setattr(Watch, "_own_seconds", lambda self: next(ours))
    assert Watch([1]).others() == pytest.approx((5 - 3) / (2 * 4))


def test_the_own_seconds_are_those_of_the_named_processes():
    mine = psutil.Process().cpu_times()
    assert Watch([os.getpid()])._own_seconds() >= mine.user + mine.system
    assert Watch([])._own_seconds() == 0.0
    assert Watch([2**22 + 1])._own_seconds() == 0.0  # it ended meanwhile
