"""Verdicts on pairs."""

import json

import pytest

from localspec.errors import ModelFileError, PairingError
from localspec.models import pairing
from tests import gguf_files as files


@pytest.fixture
def verdict(tmp_path):
    def build(ours=None, theirs=None, *, target=files.random_llama, draft=files.random_llama):
        return pairing.check(
            target(tmp_path / "target.gguf", **({"n_layer": 4} | (ours or {}))),
            draft(tmp_path / "draft.gguf", **({"seed": 1} | (theirs or {}))),
        )

    return build


def failed(verdict) -> list[str]:
    return [check.name for check in verdict.checks if not check.ok]


def test_a_pair_that_belongs_together(verdict):
    found = verdict()
    assert found.ok
    assert not found.can_force
    assert found.reasons == ()
    assert found.warnings == ()
    assert found.differences == ()
    assert len(found.checks) == 12
    found.raise_if_bad()


@pytest.mark.parametrize(
    ("ours", "theirs", "checks", "words"),
    [
        (
            {"add_bos": True},
            {"add_bos": False},
            ["add BOS"],
            "target adds BOS at the start of a prompt, the draft",
        ),
        (
            {"add_bos": False},
            {"add_bos": True},
            ["add BOS"],
            "draft adds BOS at the start of a prompt, the target",
        ),
        ({"bos_id": 1}, {"bos_id": 2}, ["BOS id"], "BOS ids differ: 1 (target) and 2 (draft)"),
        ({"add_eos": True}, {"add_eos": False}, ["add EOS"], "target adds EOS at the end"),
        (
            {"add_eos": True},
            {"add_eos": True, "eos_id": 9},
            ["EOS id"],
            "EOS ids differ: 2 (target) and 9 (draft)",
        ),
        ({"n_vocab": 400}, {"n_vocab": 529}, ["vocabulary size"], "400 (target) and 529 (draft), 129 apart"),
        ({"n_vocab": 529}, {"n_vocab": 400}, ["vocabulary size"], "529 (target) and 400 (draft), 129 apart"),
        (
            {},
            {"edits": {5: "five"}},
            ["token texts"],
            '1 of 300 token texts differs (id 5: "<0x02>" and "five")',
        ),
        (
            {"n_vocab": 310},
            {"n_vocab": 310, "edits": {309: "last"}},
            ["token texts"],
            "all of them padding on one",
        ),
        (
            {"n_vocab": 310},
            {"n_vocab": 310, "edits": {309: "z", 9: "q"}},
            ["token texts"],
            "differ, 1 of them padding",
        ),
        (
            {},
            {"edits": {i: f"x{i}" for i in range(50, 250)}},
            ["token texts"],
            '200 of 300 token texts differ (id 50: "<0x2F>" and "x50"; id 51: "<0x30>" and "x51"; '
            'id 52: "<0x31>" and "x52"; and 197 more).',
        ),
        (
            {},
            {"tokenizer": "gpt2"},
            ["tokenizer type", "token texts"],
            "different types: SPM (target) and BPE (draft)",
        ),
    ],
)
def test_vocabularies_that_differ(verdict, ours, theirs, checks, words):
    found = verdict(ours, theirs)
    assert not found.ok
    assert failed(found) == checks
    assert words in " ".join(found.reasons)
    assert len(found.reasons) == len(checks)
    assert found.can_force
    with pytest.raises(PairingError, match="--force-draft") as caught:
        found.raise_if_bad()
    assert found.reasons[0] in caught.value.why
    assert caught.value.hint.startswith("localspec check ")


@pytest.mark.parametrize(
    ("ours", "theirs", "detail"),
    [
        (
            {"n_vocab": 400},
            {"n_vocab": 528},
            "400 (target) and 528 (draft), 128 apart (128 allowed): the 128 more",
        ),
        (
            {"n_vocab": 528},
            {"n_vocab": 400},
            "528 (target) and 400 (draft), 128 apart (128 allowed): the 128 more",
        ),
        ({}, {"edits": {4: "four"}}, "only ids below 5 differ (4)"),
        ({"add_bos": False}, {"add_bos": False, "bos_id": 7}, "1 and 7, but neither adds it"),
        ({}, {"eos_id": 7}, "2 and 7, but neither adds it"),
        ({"bos_id": None}, {"bos_id": 1}, "both 1"),
    ],
)
def test_differences_that_do_not_matter(verdict, ours, theirs, detail):
    found = verdict(ours, theirs)
    assert found.ok
    assert any(detail in check.detail for check in found.checks)


@pytest.mark.parametrize(
    ("n_words", "said"),
    [
        (0, "the 15 more of the draft are padding only"),
        (10, "of the 15 more of the draft 5 are"),
        (15, "are no padding"),
    ],
)
def test_what_the_extra_ids_are(verdict, n_words, said):
    words = (*files.WORDS, *(f"word{i}" for i in range(n_words)))
    found = verdict({"n_vocab": 300}, {"n_vocab": 315, "words": words})
    assert found.ok
    (size,) = [check.detail for check in found.checks if check.name == "vocabulary size"]
    assert said in size


@pytest.mark.parametrize(
    ("role", "build", "kind"),
    [
        ("target", files.random_mamba, "recurrent"),
        ("target", files.random_qwen3next, "hybrid"),
        ("draft", files.random_mamba, "recurrent"),
        ("draft", files.random_qwen3next, "hybrid"),
    ],
)
def test_memory_without_rollback(verdict, role, build, kind):
    found = verdict(**{role: build})
    assert failed(found) == [f"{role} memory"]
    assert f"has a {kind} memory" in found.reasons[0]
    assert not found.can_force
    with pytest.raises(PairingError) as caught:
        found.raise_if_bad()
    assert "--force-draft" not in caught.value.why


@pytest.mark.parametrize("build", [files.random_qwen35, files.random_lfm2, files.random_gemma3])
def test_memory_with_rollback(verdict, build):
    assert failed(verdict(target=build)) == []
    assert failed(verdict(draft=build)) == []


@pytest.mark.parametrize("role", ["target", "draft"])
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"arch": "clip", "general_type": "mmproj"}, "projector"),
        ({"arch": "llama", "general_type": "adapter"}, "LoRA adapter"),
        ({"arch": "bert"}, "embedding model"),
        ({"arch": "t5"}, "encoder-decoder"),
        ({"arch": "eagle3"}, "draft head"),
        ({"arch": "llama", "tokenizer": "no_vocab"}, "no tokenizer"),
    ],
)
def test_no_language_model(verdict, role, options, words):
    def build(path, **_):
        return files.header_only(path, tensors={"token_embd.weight": (4, 32)}, **options)

    found = verdict(**{role: build})
    assert failed(found) == [f"{role} kind"]
    assert words in found.reasons[0]
    assert f"it cannot be the {role}" in found.reasons[0]
    assert not found.can_force


@pytest.mark.parametrize("link", [None, "symlink", "hardlink"])
def test_same_file(tmp_path, link):
    path = files.random_llama(tmp_path / "m.gguf")
    other = path
    if link is not None:
        other = tmp_path / "other.gguf"
        other.symlink_to(path) if link == "symlink" else other.hardlink_to(path)
    found = pairing.check(path, other)
    assert failed(found) == ["files"]
    assert "the same file" in found.reasons[0]
    assert found.can_force


def test_the_same_file_by_another_shard(tmp_path):
    files.random_llama(tmp_path / "m.gguf", split_max_tensors=8)
    shards = sorted(tmp_path.glob("m-*.gguf"))
    assert failed(pairing.check(shards[0], shards[2])) == ["files"]


def test_a_draft_that_will_not_pay_is_a_warning(verdict):
    found = verdict({"n_layer": 1}, {"n_layer": 4})
    assert found.ok
    assert "is not smaller than the target" in found.warnings[0]


def test_a_draft_of_a_shorter_context_is_a_warning(verdict):
    found = verdict({"n_ctx": 4096}, {"n_ctx": 512})
    assert found.ok
    assert len(found.warnings) == 1
    assert "trained for 512 tokens, the target for 4,096" in found.warnings[0]


@pytest.mark.parametrize(
    ("target", "draft", "said"),
    [
        ({"tokenizer": "gpt2", "tokenizer_pre": None}, {"tokenizer": "gpt2"}, True),
        (
            {"tokenizer": "gpt2"},
            {"tokenizer": "gpt2", "tokenizer_pre": None},
            False,
        ),  # it is given the target's tokens
        ({"tokenizer_pre": None}, {}, False),  # SentencePiece needs none
    ],
)
def test_a_target_that_splits_text_wrongly_is_a_warning(verdict, target, draft, said):
    found = verdict(target, draft)
    assert found.ok
    assert ["pre-tokenizer" in warning for warning in found.warnings] == [True] * said


def test_another_pre_tokenizer_alone_changes_nothing(verdict):
    found = verdict({"tokenizer": "gpt2", "tokenizer_pre": "tekken"}, {"tokenizer": "gpt2"})
    assert found.ok
    assert found.warnings == ()


def test_unreadable_file_is_an_error_not_a_verdict(tmp_path):
    path = files.random_llama(tmp_path / "m.gguf")
    with pytest.raises(ModelFileError, match="does not exist"):
        pairing.check(path, tmp_path / "gone.gguf")


def test_json_holds_every_difference(verdict):
    edits = {token: f"x{token}" for token in (4, *range(50, 250))}
    data = json.loads(json.dumps(verdict({}, {"edits": edits, "bos_id": 9, "name": "\x1b[1m"}).to_json()))
    assert data["ok"] is False
    assert data["differences"]["count"] == 202
    assert [each["id"] for each in data["differences"]["texts"]] == [4, *range(50, 250)]
    assert data["differences"]["texts"][0] == {
        "id": 4,
        "target": "<0x01>",
        "draft": "x4",
        "blocks": False,
        "padding": False,
    }
    assert data["differences"]["rules"] == [{"what": "bos", "target": "1", "draft": "9", "blocks": True}]
    assert [each["name"] for each in data["checks"] if not each["ok"]] == ["BOS id", "token texts"]
    assert data["reasons"] == [each["detail"] for each in data["checks"] if not each["ok"]]
    assert data["target"]["n_vocab"] == 300
    assert data["draft"]["name"] == r"\x1b[1m"


def test_control_characters_of_tokens_never_reach_a_sentence(verdict):
    found = verdict({}, {"edits": {270: "\x1b]0;pwned\x07", 271: b"\xff\x9b"}})
    text = " ".join(found.reasons) + json.dumps(found.to_json(), ensure_ascii=False)
    assert not any(char < " " or "\x7f" <= char < "\xa0" for char in text)
    assert r"\x1b]0;pwned\x07" in found.reasons[0]
