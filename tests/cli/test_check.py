"""`localspec check` as a person runs it."""

import json
import os

import pytest

from tests import gguf_files as files
from tests.cli.program import localspec


@pytest.fixture
def home(tmp_path):
    return tmp_path / "home"


@pytest.fixture
def pair(tmp_path):
    target = files.random_llama(tmp_path / "target.gguf", n_layer=4)
    return target, files.random_llama(tmp_path / "draft.gguf", seed=1)


def test_a_match(home, pair):
    done = localspec(home, "check", *map(str, pair))
    assert done.returncode == 0
    assert done.stdout.rstrip().endswith("They match.")
    assert done.stdout.count("  ok  ") == 12
    assert "FAIL" not in done.stdout
    assert done.stderr == ""
    assert str(pair[0]) in done.stdout.splitlines()[0]
    assert "300 tokens" in done.stdout.splitlines()[1]


def test_no_match_shows_every_failed_check_and_the_first_texts(home, pair, tmp_path):
    edits = {token: f"other{token}" for token in (4, *range(50, 250))}
    draft = files.random_llama(tmp_path / "other.gguf", edits=edits, add_bos=False, n_layer=2)
    done = localspec(home, "check", str(pair[0]), str(draft))
    assert done.returncode == 1
    assert done.stdout.count("FAIL") == 2
    assert "FAIL  add BOS" in done.stdout
    assert "200 of 300 token texts differ" in done.stdout
    assert '"<0x01>" | "other4"  (not compared)' in done.stdout
    assert '"<0x2F>" | "other50"' in done.stdout
    assert "and 191 more: --json lists all" in done.stdout
    assert "--force-draft" in done.stdout
    assert done.stderr == ""


def test_json_of_both_verdicts(home, pair, tmp_path):
    done = localspec(home, "check", *map(str, pair), "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["ok"] is True
    edits = {token: f"other{token}" for token in range(50, 250)}
    draft = files.random_llama(tmp_path / "other.gguf", edits=edits)
    done = localspec(home, "check", str(pair[0]), str(draft), "--json")
    data = json.loads(done.stdout)
    assert done.returncode == 1
    assert [each["id"] for each in data["differences"]["texts"]] == list(range(50, 250))
    assert data["can_force"] is True


def test_a_target_that_cannot_roll_back(home, pair, tmp_path):
    target = files.random_mamba(tmp_path / "mamba.gguf", n_layer=6)
    done = localspec(home, "check", str(target), str(pair[1]))
    assert done.returncode == 1
    assert "FAIL  target memory" in done.stdout
    assert "--force-draft" not in done.stdout


def test_a_projector(home, pair, tmp_path):
    projector = files.header_only(tmp_path / "mmproj.gguf", arch="clip", tensors={"v.x": (32,)})
    done = localspec(home, "check", str(pair[0]), str(projector))
    assert done.returncode == 1
    assert "vision or audio projector, not a language model" in done.stdout


def test_warnings_are_notes(home, pair):
    done = localspec(home, "check", str(pair[1]), str(pair[0]))
    assert done.returncode == 0
    assert "  note  The draft" in done.stdout


@pytest.mark.parametrize("same", ["target.gguf", "./target.gguf", "link.gguf"])
def test_the_same_file(home, pair, tmp_path, same):
    (tmp_path / "link.gguf").symlink_to(pair[0])
    name = str(tmp_path / same) if not same.startswith(".") else f"{tmp_path}/{same}"
    done = localspec(home, "check", str(pair[0]), name)
    assert done.returncode == 1
    assert "the same file" in done.stdout


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda path: None, "does not exist"),
        (lambda path: path.mkdir(), "folder"),
        (lambda path: path.write_bytes(b"<html>"), "web page"),
        (lambda path: path.write_bytes(b""), "empty"),
        (lambda path: path.write_bytes(b"plain text"), "text file"),
    ],
)
@pytest.mark.parametrize("as_json", [False, True])
def test_files_that_cannot_be_read(home, pair, tmp_path, make, sentence, as_json):
    path = tmp_path / "x.gguf"
    make(path)
    done = localspec(home, "check", str(pair[0]), str(path), *(["--json"] if as_json else []))
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    if as_json:
        assert sentence in json.loads(done.stdout)["error"]["message"]
    else:
        assert sentence in done.stderr
        assert done.stdout == ""


def test_a_broken_catalogue_does_not_stop_paths(home, pair):
    (home / "config").mkdir(parents=True)
    (home / "config" / "models.toml").write_text("this is [no toml")
    assert localspec(home, "check", *map(str, pair)).returncode == 0


def test_a_model_of_the_catalogue_that_is_not_here(home, pair):
    done = localspec(home, "check", "qwen3.8-27b", str(pair[1]))
    assert done.returncode == 1
    assert "qwen3.8-27b is not on this disk" in done.stderr
    assert "localspec pull qwen3.8-27b" in done.stderr


def test_the_command_to_get_a_model_can_be_pasted(home, pair):
    done = localspec(home, "check", "owner/repo:A (1).gguf", str(pair[1]))
    assert done.returncode == 1
    assert "Try: localspec pull 'owner/repo:A (1).gguf'" in done.stderr


def test_a_draft_by_its_size(home, pair, tmp_path):
    target = files.random_llama(tmp_path / "Qwen3.8-27B-Q4_K_M.gguf", n_layer=4)
    done = localspec(home, "check", str(target), "4b")
    assert done.returncode == 1
    assert "localspec pull qwen3.5-4b" in done.stderr


@pytest.mark.parametrize("name", ["", "no-such-model", "a\tb", "x" * 5000])
def test_unknown_names(home, pair, name):
    done = localspec(home, "check", str(pair[0]), name)
    assert done.returncode in (1, 2)
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert done.stderr


@pytest.mark.parametrize("arguments", [[], ["one.gguf"], ["a.gguf", "b.gguf", "c.gguf"], ["--nope"]])
def test_wrong_use(home, arguments):
    done = localspec(home, "check", *arguments)
    assert done.returncode == 2
    assert "localspec check --help" in done.stderr


def test_control_characters_are_never_raw(home, pair, tmp_path):
    draft = files.random_llama(
        tmp_path / "\x1b[2Jx.gguf", edits={270: "\x1b]0;pwned\x07", 271: b"\x9b31m\xff"}, name="\x1b[1m"
    )
    for option in ([], ["--json"]):
        done = localspec(home, "check", str(pair[0]), str(draft), *option)
        assert done.returncode == 1
        assert "pwned" in done.stdout
        assert not any((char < " " and char != "\n") or "\x7f" <= char < "\xa0" for char in done.stdout)


def test_odd_file_names(home, tmp_path):
    folder = tmp_path / "模型 [red] 'ё' 🤖"
    target = files.random_llama(folder / "t.gguf", n_layer=4)
    draft = files.random_llama(folder / "d.gguf", seed=1)
    done = localspec(home, "check", str(target), str(draft), LC_ALL="C", PYTHONUTF8="0")
    assert done.returncode == 0
    assert "模型 [red] 'ё' 🤖" in done.stdout


@pytest.mark.skipif(os.name == "nt", reason="names are UTF-16 there")
def test_name_that_is_no_utf8(home, pair, tmp_path):
    bad = os.path.join(os.fsencode(tmp_path), b"bad\xff.gguf")  # noqa: PTH118  # bytes
    try:
        with open(bad, "wb") as file:  # noqa: PTH123
            file.write(pair[1].read_bytes())
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")
    done = localspec(home, "check", str(pair[0]), os.fsdecode(bad))
    assert done.returncode == 1
    assert "not valid UTF-8" in done.stderr
    assert "mv " in done.stderr
