"""Which drafters tune tries."""

from __future__ import annotations

import shutil

import pytest

from localspec.errors import CatalogError, PairingError, UsageError
from localspec.measure.tune_drafts import named, on_disk
from localspec.models import hubcache
from localspec.models.catalog import load_catalog
from localspec.models.gguf import read_header
from localspec.settings import State
from localspec.worker.protocol import DraftSpec
from tests.gguf_files import header_only, random_qwen35, script_model

CATALOG = load_catalog()


@pytest.fixture
def folder(tmp_path):
    script_model(tmp_path / "target.gguf", {}, n_layer=15)
    script_model(tmp_path / "small.gguf", {}, n_layer=1)
    script_model(tmp_path / "medium.gguf", {}, n_layer=3)
    return tmp_path


def target(folder, name="target.gguf"):
    return CATALOG.resolve(str(folder / name), role="target", target=None)


def names(found):
    return [one.label for one in found]


def test_smaller_files_beside_the_target_and_lookup(folder):
    script_model(folder / "larger.gguf", {}, n_layer=20)
    (folder / "broken.gguf").write_bytes(b"GGUF nothing")
    header_only(folder / "empty.gguf")
    found, notes = on_disk(target(folder), CATALOG, State())
    assert names(found) == ["small", "medium", "lookup"]
    assert [one.spec.kind for one in found] == ["model", "model", "lookup"]
    assert found[0].spec.path == str(folder / "small.gguf")
    assert found[0].size_bytes < found[1].size_bytes
    assert notes == []


def test_what_does_not_match_is_left_out_with_a_sentence(folder):
    script_model(folder / "other.gguf", {}, n_layer=1, n_vocab=700)
    found, notes = on_disk(target(folder), CATALOG, State())
    assert "other" not in names(found)
    (note,) = notes
    assert note.startswith("other is left out: ")


def test_the_last_draft_of_the_target_is_tried_wherever_it_lies(folder, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    draft = shutil.copy(folder / "small.gguf", tmp_path / "elsewhere" / "last.gguf")
    ref = target(folder)
    like = DraftSpec("lookup", gpu_layers=3, device="gpu1")
    found, _ = on_disk(ref, CATALOG, State(drafts={ref.id: str(draft)}), like=like)
    assert names(found)[0] == "last"
    spec = found[0].spec
    assert (spec.kind, spec.path, spec.gpu_layers, spec.device) == ("model", str(draft), 3, "gpu1")
    assert found[-1].spec == DraftSpec("lookup")
    gone, _ = on_disk(ref, CATALOG, State(drafts={ref.id: str(tmp_path / "gone.gguf")}))
    assert names(gone) == ["small", "medium", "lookup"]


def test_drafts_of_the_catalogue_are_tried_in_every_quant_that_is_here(folder, monkeypatch):
    ref = CATALOG.resolve("qwen3-8b", role="target", target=None)
    entry = CATALOG.file.models[ref.drafts[0]]
    here = {
        (ref.repo, ref.quant): folder / "target.gguf",
        **{
            (source.repo, source.quant): shutil.copy(folder / "small.gguf", folder / f"{index}.gguf")
            for index, source in enumerate(entry.sources)
        },
    }
    monkeypatch.setattr(hubcache, "find", lambda repo, *, quant, **_: here.get((repo, quant)))
    found, _ = on_disk(ref, CATALOG, State())
    assert names(found)[0] == ref.drafts[0]
    first: dict[str, str] = {}
    for source in entry.sources:  # a second source of a quant is the same model from elsewhere
        first.setdefault(source.quant, str(here[source.repo, source.quant]))
    assert len(first) > 1
    assert {one.spec.path for one in found if one.spec.kind == "model"} == set(first.values())


def test_a_target_with_its_own_block_tries_it(tmp_path):
    random_qwen35(tmp_path / "target.gguf")
    found, _ = on_disk(target(tmp_path), CATALOG, State())
    assert ("mtp" in names(found)) == read_header(tmp_path / "target.gguf").next_token_block
    assert names(found)[-1] == "lookup"


def test_named_drafters_are_taken_in_their_order_once(folder):
    ref = target(folder)
    small = str(folder / "small.gguf")
    found = named(["lookup", "none", small, small, " LOOKUP"], ref, CATALOG)
    assert names(found) == ["lookup", "small"]


def test_a_named_drafter_that_cannot_be_is_an_error(folder):
    script_model(folder / "other.gguf", {}, n_layer=1, n_vocab=700)
    ref = target(folder)
    with pytest.raises(PairingError):
        named([str(folder / "other.gguf")], ref, CATALOG)
    with pytest.raises(CatalogError):
        named(["no-such-model"], ref, CATALOG)
    with pytest.raises(UsageError, match="is not on this disk") as failed:
        named(["qwen3-0.6b"], ref, CATALOG)
    assert failed.value.hint.startswith("localspec pull ")


def test_code_of_ones_own_is_not_tried(folder):
    """A profile names its drafter, and a chat would then run that code unasked."""
    with pytest.raises(UsageError) as caught:
        named(["my_module:Drafter"], target(folder), CATALOG)
    assert caught.value.hint.endswith("--draft my_module:Drafter")
