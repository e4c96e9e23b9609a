"""Files that are no usable GGUF, each with its own sentence."""

import os
import shlex
import subprocess

import pytest

from localspec.errors import ModelFileError
from localspec.models.gguf import read_header
from tests import gguf_files as files


def refusal(path) -> ModelFileError:
    with pytest.raises(ModelFileError) as caught:
        read_header(path)
    assert caught.value.hint
    return caught.value


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 16547401248\n"


@pytest.mark.parametrize(
    ("head", "sentence"),
    [
        (b"<!DOCTYPE html><html><body>404", "web page"),
        (b"\n\n  <html lang=en>", "web page"),
        (LFS, "git-LFS pointer"),
        (b"PK\x03\x04\x14\x00rest", "zip archive"),
        (b"\x80\x02\x8a\x0al\xfc\x9c", "PyTorch or pickle"),
        ((300).to_bytes(8, "little") + b'{"__metadata__":{}}', "safetensors"),
        (b"tjgg\x03\x00\x00\x00", "old GGML"),
        (b"lmgg\x01\x00\x00\x00", "old GGML"),
        (b"ggml\x00\x7d\x00\x00", "old GGML"),
        (b"ggjt\x03\x00\x00\x00", "old GGML"),
        (b"FUGG\x00\x00\x00\x03", "big-endian"),
        (b"\x1f\x8b\x08\x00aaaa", "compressed archive"),
        (b'{"error":"Repository not found"}', "JSON"),
        (b"Entry not found", "text file"),
        ("Không tìm thấy tệp".encode(), "text file"),
        (bytes(64), "file of zeros"),
        (bytes(range(128, 256)) * 4, "unknown kind"),
    ],
)
def test_foreign_files(tmp_path, head, sentence):
    path = tmp_path / "x.gguf"
    path.write_bytes(head)
    error = refusal(path)
    assert sentence in error.message
    assert str(path) in error.message
    assert error.why


def test_lfs_pointer_tells_the_real_size(tmp_path):
    path = tmp_path / "x.gguf"
    path.write_bytes(LFS)
    assert "16,547,401,248 bytes" in refusal(path).why


@pytest.mark.parametrize(
    ("version", "sentence"),
    [
        ((1).to_bytes(4, "little"), "version 1"),
        ((99).to_bytes(4, "little"), "version 99"),
        ((3).to_bytes(4, "big"), "big-endian"),
        (bytes(4), "big-endian"),
    ],
)
def test_versions(tmp_path, version, sentence):
    path = files.random_llama(tmp_path / "x.gguf")
    data = path.read_bytes()
    path.write_bytes(data[:4] + version + data[8:])
    assert sentence in refusal(path).message


def test_cut_in_the_weights_says_how_much_is_there(tmp_path):
    whole = files.random_llama(tmp_path / "x.gguf").read_bytes()
    path = tmp_path / "x.gguf"
    path.write_bytes(whole[: len(whole) * 6 // 10])
    error = refusal(path)
    assert f"has {len(whole) * 6 // 10:,} of {len(whole):,} bytes (59 %)" in error.message
    assert error.hint.startswith("localspec pull")


def test_one_missing_byte_is_not_called_whole(tmp_path):
    path = files.random_llama(tmp_path / "x.gguf")
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    assert "(99 %)" in refusal(path).message
    path.write_bytes(whole + b"padding")
    assert read_header(path).size_bytes == len(whole) + 7


@pytest.mark.parametrize("length", [0, 3, 10, 24, 100, 2000, 7000])
def test_cut_in_the_header(tmp_path, length):
    path = files.random_llama(tmp_path / "x.gguf")
    path.write_bytes(path.read_bytes()[:length])
    error = refusal(path)
    assert any(word in error.message for word in ("empty", f"{length:,} bytes only"))
    assert error.hint.startswith("localspec pull")


def test_hint_names_the_repo_of_a_file_in_the_hubs_cache(tmp_path):
    folder = tmp_path / "hub" / "models--unsloth--Qwen3.8-27B-GGUF" / "snapshots" / "abc"
    path = files.random_llama(folder / "Qwen3.8-27B-UD-Q4_K_M.gguf")
    path.write_bytes(path.read_bytes()[:-9])
    assert refusal(path).hint == "localspec pull unsloth/Qwen3.8-27B-GGUF:UD-Q4_K_M"


def test_missing_folder_and_dead_link(tmp_path):
    assert "does not exist" in refusal(tmp_path / "no.gguf").message
    assert "folder" in refusal(tmp_path).message
    files.random_llama(tmp_path / "inside.gguf")
    assert "inside.gguf" in refusal(tmp_path).why
    link = tmp_path / "link.gguf"
    link.symlink_to(tmp_path / "gone.gguf")
    assert "link to a file that is gone" in refusal(link).message
    loop = tmp_path / "loop.gguf"
    loop.symlink_to(loop)
    assert "cannot be read" in refusal(loop).message
    assert "cannot be read" in refusal(tmp_path / ("x" * 300 + ".gguf")).message
    assert "cannot be read" in refusal(tmp_path / "inside.gguf" / "deeper.gguf").message


def test_link_to_a_model_works(tmp_path):
    path = files.random_llama(tmp_path / "real.gguf")
    (tmp_path / "link.gguf").symlink_to(path)
    assert read_header(tmp_path / "link.gguf").n_vocab == 300


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
@pytest.mark.timeout(10)
def test_pipes_and_devices_do_not_hang(tmp_path):
    os.mkfifo(tmp_path / "pipe.gguf")
    assert "device or a pipe" in refusal(tmp_path / "pipe.gguf").message
    assert "device or a pipe" in refusal(os.devnull).message


@pytest.mark.parametrize("step", ["stat", "open"])
def test_no_permission(tmp_path, monkeypatch, step):
    path = files.random_llama(tmp_path / "x.gguf")

    def deny(*_args, **_options):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(type(path), step, deny)
    error = refusal(path)
    assert "cannot be read" in error.message
    assert error.why == "Permission denied."
    assert error.hint == f"ls -l {path}"


@pytest.mark.parametrize("folder", ["模型 ё é 🤖", "with space and 'quote'", "[red]markup[/red]"])
def test_odd_names_work(tmp_path, folder):
    assert read_header(files.random_llama(tmp_path / folder / "x.gguf")).n_layer == 2


def test_name_that_is_no_utf8(tmp_path):
    raw = os.fsencode(tmp_path) + b"/bad\xff.gguf"
    try:
        os.close(os.open(raw, os.O_CREAT | os.O_WRONLY))
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")
    path = tmp_path / os.fsdecode(b"bad\xff.gguf")
    path.write_bytes(files.random_llama(tmp_path / "good.gguf").read_bytes())
    error = refusal(path)
    assert "not valid UTF-8" in error.message
    assert r"bad\xff.gguf" in error.message
    error.message.encode("utf-8")
    subprocess.run(["bash", "-c", error.hint], check=True)
    assert read_header(tmp_path / "model.gguf").n_vocab == 300


def test_control_characters_of_a_name_are_shown_escaped(tmp_path):
    error = refusal(tmp_path / "\x1b[31mred\u202e.gguf")
    assert "\x1b" not in str(error)
    assert r"\x1b[31mred\u202e.gguf" in error.message


@pytest.mark.parametrize(
    "style", ["{stem}.gguf.part{i}of2", "{stem}.gguf-part-{i}-of-2", "{stem}.part{i}of2.gguf"]
)
@pytest.mark.parametrize("picked", [1, 2])
def test_pieces_of_one_file_get_the_joining_command(tmp_path, style, picked):
    whole = files.random_llama(tmp_path / "whole.gguf")
    data = whole.read_bytes()
    names = [style.format(stem="my model", i=i) for i in (1, 2)]
    for name, piece in zip(names, (data[:90_000], data[90_000:]), strict=True):
        (tmp_path / name).write_bytes(piece)
    error = refusal(tmp_path / names[picked - 1])
    assert f"piece {picked} of 2" in error.message
    assert shlex.split(error.hint)[:3] == ["cat", *(str(tmp_path / name) for name in names)]
    subprocess.run(["bash", "-c", error.hint], check=True)
    assert (tmp_path / "my model.gguf").read_bytes() == data


def test_missing_pieces_are_named(tmp_path):
    (tmp_path / "m.gguf.part2of3").write_bytes(b"x")
    assert "m.gguf.part1of3, m.gguf.part3of3" in refusal(tmp_path / "m.gguf.part2of3").why


def test_lettered_pieces(tmp_path):
    data = files.random_llama(tmp_path / "whole.gguf").read_bytes()
    (tmp_path / "m.gguf-split-a").write_bytes(data[:5000])
    (tmp_path / "m.gguf-split-b").write_bytes(data[5000:])
    subprocess.run(["bash", "-c", refusal(tmp_path / "m.gguf-split-b").hint], check=True)
    assert (tmp_path / "m.gguf").read_bytes() == data
