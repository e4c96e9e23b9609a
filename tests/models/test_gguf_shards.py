"""Models in several files."""

import shutil
import subprocess

import pytest

from localspec.errors import ModelFileError
from localspec.models.gguf import read_header
from tests import gguf_files as files
from tests.models.hub_helpers import split_part


@pytest.fixture
def shards(tmp_path):
    files.random_llama(tmp_path / "m.gguf", split_max_tensors=8)
    found = sorted(tmp_path.glob("m-*.gguf"))
    assert [path.name for path in found] == [f"m-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    return found


@pytest.mark.parametrize("picked", [0, 1, 2])
def test_any_shard_leads_to_all(tmp_path, shards, picked):
    header = read_header(shards[picked])
    whole = read_header(files.random_llama(tmp_path / "whole.gguf"))
    assert header.path == shards[0]
    assert header.files == tuple(shards)
    assert header.size_bytes == sum(path.stat().st_size for path in shards)
    assert header.n_params == whole.n_params
    assert {t.name: t.shape for t in header.tensors} == {t.name: t.shape for t in whole.tensors}
    assert (header.full_attention_layers, header.n_vocab, header.tied_output) == (2, 300, False)
    for tensor in header.tensors:
        here = shards[tensor.shard].read_bytes()[tensor.offset : tensor.offset + tensor.n_bytes]
        twin = next(t for t in whole.tensors if t.name == tensor.name)
        assert here == whole.path.read_bytes()[twin.offset : twin.offset + twin.n_bytes]


@pytest.mark.parametrize("missing", [[0], [1], [0, 2]])
def test_missing_shards_are_named(shards, missing):
    for i in missing:
        shards[i].unlink()
    with pytest.raises(ModelFileError) as caught:
        read_header(shards[2 if 2 not in missing else 1])
    assert f"{len(missing)} of the 3 files" in caught.value.message
    for i in range(3):
        assert (shards[i].name in caught.value.why) == (i in missing)


def test_cut_shard_is_named(shards):
    shards[1].write_bytes(shards[1].read_bytes()[:-200])
    with pytest.raises(ModelFileError, match=r"m-00002-of-00003\.gguf has") as caught:
        read_header(shards[0])
    assert "incomplete" in caught.value.why


@pytest.mark.parametrize("number", [1, 2])
def test_renamed_shard_gets_its_name_back(shards, number):
    wrong = shards[number - 1].with_name("renamed.gguf")
    shards[number - 1].rename(wrong)
    with pytest.raises(ModelFileError, match=f"shard {number} of 3 under a name") as caught:
        read_header(wrong)
    subprocess.run(["bash", "-c", caught.value.hint], check=True)
    assert wrong.with_name(f"renamed-0000{number}-of-00003.gguf").exists()


def test_joined_with_cat(shards):
    joined = shards[0].with_name("joined.gguf")
    joined.write_bytes(b"".join(path.read_bytes() for path in shards))
    with pytest.raises(ModelFileError, match="joined end to end") as caught:
        read_header(joined)
    assert "llama-gguf-split --merge" in caught.value.hint


def test_mixed_up_shards(shards):
    shutil.copyfile(shards[2], shards[1])
    with pytest.raises(ModelFileError, match="is not shard 2 of 3"):
        read_header(shards[0])


def test_shard_of_another_model(tmp_path, shards):
    files.random_llama(tmp_path / "other" / "m.gguf", split_max_tensors=8, n_layer=2, n_vocab=301)
    other = tmp_path / "other" / "m-00003-of-00003.gguf"
    keep = read_header(other).tensors
    shutil.copyfile(other, shards[2])
    header = read_header(shards[0])  # the same tensors by name: nothing to see in the headers
    assert len(header.tensors) == len(keep)
    files.random_gemma3(tmp_path / "gemma" / "m.gguf", split_max_tensors=30)
    shutil.copyfile(tmp_path / "gemma" / "m-00003-of-00003.gguf", shards[2])
    with pytest.raises(ModelFileError, match=r"hold \d+ of 21 tensors"):
        read_header(shards[0])


def test_a_name_that_only_looks_like_a_shard(tmp_path):
    path = files.random_llama(tmp_path / "m-00001-of-00001.gguf")
    assert read_header(path).files == (path,)


def test_a_part_that_repeats_tensors_of_another_is_said(tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    for folder, names in ((tmp_path, ("a", "b")), (other, ("c", "a"))):
        for number, name in enumerate(names):
            split = {"split.no": number, "split.count": 2, "split.tensors.count": 2}
            split_part(folder / f"m-{number + 1:05d}-of-00002.gguf", name, split, first=number == 0)
    assert len(read_header(tmp_path / "m-00001-of-00002.gguf").tensors) == 2
    shutil.copy(other / "m-00002-of-00002.gguf", tmp_path)
    with pytest.raises(ModelFileError, match="hold 1 of 2 tensors") as caught:
        read_header(tmp_path / "m-00001-of-00002.gguf")
    assert "mixed up" in caught.value.why
