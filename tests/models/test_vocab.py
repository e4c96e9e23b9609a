"""Two vocabularies compared."""

import os
import subprocess

import pytest

from localspec.errors import ModelFileError
from localspec.models.gguf import read_header
from localspec.models.text import printable, shell_word
from localspec.models.vocab import compare, extra_ids, is_padding, read_vocabulary
from tests import gguf_files as files


@pytest.fixture
def vocabulary(tmp_path):
    def build(name: str, **options):
        path = files.header_only(tmp_path / f"{name}.gguf", tensors={"token_embd.weight": (4, 32)}, **options)
        return read_vocabulary(read_header(path))

    return build


def found(vocabulary, ours: dict, theirs: dict):
    return compare(vocabulary("target", **ours), vocabulary("draft", **theirs))


def test_equal_vocabularies(vocabulary):
    assert found(vocabulary, {}, {}) == []


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        ({"add_bos": True}, {"add_bos": False}, [("add_bos", "yes", "no", True)]),
        ({"add_eos": False}, {"add_eos": True}, [("add_eos", "no", "yes", True)]),
        ({"bos_id": 1}, {"bos_id": 2}, [("bos", "1", "2", True)]),
        ({"bos_id": 1, "add_bos": False}, {"bos_id": 2, "add_bos": False}, [("bos", "1", "2", False)]),
        ({"eos_id": 2}, {"eos_id": 260}, [("eos", "2", "260", False)]),
        ({"eos_id": 2, "add_eos": True}, {"eos_id": 260, "add_eos": True}, [("eos", "2", "260", True)]),
        (
            {"bos_id": 1, "add_bos": True},
            {"bos_id": 2, "add_bos": False},
            [("add_bos", "yes", "no", True), ("bos", "1", "2", False)],
        ),
        ({"add_bos": None}, {"add_bos": True}, []),  # what SPM does anyway
        ({"add_bos": None}, {"add_bos": False}, [("add_bos", "yes", "no", True)]),
        ({"bos_id": None}, {"bos_id": 1}, []),
        ({"bos_id": 9999}, {"bos_id": 1}, []),  # outside the vocabulary: not stated
        ({"n_vocab": 400}, {"n_vocab": 528}, [("size", "400", "528", False)]),
        ({"n_vocab": 528}, {"n_vocab": 400}, [("size", "528", "400", False)]),
        ({"n_vocab": 400}, {"n_vocab": 529}, [("size", "400", "529", True)]),
        ({"n_vocab": 529}, {"n_vocab": 400}, [("size", "529", "400", True)]),
    ],
)
def test_rules(vocabulary, ours, theirs, expected):
    assert [each[:4] for each in found(vocabulary, ours, theirs)] == expected


@pytest.mark.parametrize(
    ("ids", "blocking"),
    [
        ([4], []),
        ([5], [5]),
        ([0, 1, 2, 3, 4], []),
        ([299], [299]),
        ([4, 5, 299], [5, 299]),
        ([270, 271], [270, 271]),
    ],
)
def test_texts(vocabulary, ids, blocking):
    differences = found(vocabulary, {}, {"edits": {token: f"edited {token}" for token in ids}})
    assert [each.id for each in differences] == ids
    assert [each.id for each in differences if each.blocks] == blocking
    assert {each.what for each in differences} == {"text"}
    assert all(each.draft == f"edited {each.id}" for each in differences)


def test_both_texts_are_given(vocabulary):
    (difference,) = found(vocabulary, {"edits": {260: "ours"}}, {"edits": {260: "theirs"}})
    assert (difference.id, difference.target, difference.draft, difference.blocks) == (
        260,
        "ours",
        "theirs",
        True,
    )


def test_two_hundred_differences_are_all_reported(vocabulary):
    edits = {token: f"other {token}" for token in range(50, 250)}
    differences = found(vocabulary, {}, {"edits": edits})
    assert [each.id for each in differences] == list(range(50, 250))


def test_type_differs_between_sentencepiece_and_byte_level(vocabulary):
    differences = found(vocabulary, {}, {"tokenizer": "gpt2", "add_bos": True})
    assert differences[0][:4] == ("type", "SPM", "BPE", True)


def test_a_difference_with_another_size(vocabulary):
    differences = found(vocabulary, {"n_vocab": 310}, {"n_vocab": 320, "edits": {300: "x", 315: "y"}})
    assert [(each.what, each.id) for each in differences] == [("size", None), ("text", 300)]


@pytest.mark.parametrize(
    ("ours", "theirs", "same"),
    [
        ("", "[EMPTY_270]", True),  # the name that llama.cpp gives an empty text
        ("", "[EMPTY_271]", False),
        ("ab\0cd", "ab\0xy", True),  # C compares up to the zero byte
        ("ab\0cd", "ab", True),
        ("ab\0cd", "abc", False),
    ],
)
def test_texts_are_compared_as_c_does(vocabulary, ours, theirs, same):
    differences = found(vocabulary, {"edits": {270: ours}}, {"edits": {270: theirs}})
    assert (differences == []) is same


def test_padding_is_told_apart(vocabulary):
    edits = {309: "<|tool|>", 260: "[PAD260]", 261: "word"}
    differences = found(vocabulary, {"n_vocab": 310}, {"n_vocab": 310, "edits": edits})
    assert {each.id: each.padding for each in differences} == {260: True, 261: False, 309: True}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"[PAD151665]", True),
        (b"<unused42>", True),
        (b"<|reserved_special_token_7|>", True),
        (b"<|extra_12|>", True),
        (b"[unused3]", True),
        (b"<pad12>", True),
        (b"<pad>", False),
        (b"<|im_end|>", False),
        (b"<|tool_call|>", False),
        (b"the", False),
        (b"", False),
    ],
)
def test_names_of_padding(text, expected):
    assert is_padding(text) is expected


def test_extra_ids(vocabulary):
    small, large = vocabulary("a", n_vocab=310), vocabulary("b", n_vocab=330, edits={320: "real"})
    assert extra_ids(small, large) == (20, 20)  # still marked as unused
    assert extra_ids(large, small) == (20, 20)
    assert extra_ids(small, small) == (0, 0)


def test_extra_ids_that_are_words(vocabulary):
    words = (*files.WORDS, *(f"word{i}" for i in range(10)))
    assert extra_ids(vocabulary("a", n_vocab=300), vocabulary("b", n_vocab=320, words=words)) == (20, 10)


@pytest.mark.parametrize("length", [33, 40, 64, 128])
def test_long_tokens(vocabulary, length):
    ours, theirs = "-" * length, "-" * (length - 1) + "="
    (difference,) = found(vocabulary, {"edits": {270: ours}}, {"edits": {270: theirs}})
    assert (difference.target, difference.draft) == (ours, theirs)


def test_texts_that_are_no_utf8_or_hold_control_characters(vocabulary):
    ours, theirs = b"\xff\xfe", "\x1b[31m\u202e\n"
    (difference,) = found(vocabulary, {"edits": {270: ours}}, {"edits": {270: theirs}})
    assert (difference.target, difference.draft) == (r"\xff\xfe", r"\x1b[31m\u202e\n")


def test_without_vocabulary(tmp_path):
    header = read_header(files.random_llama(tmp_path / "x.gguf", tokenizer="no_vocab"))
    with pytest.raises(ModelFileError, match="no vocabulary"):
        read_vocabulary(header)


def test_unknown_tokenizer_is_named(vocabulary):
    differences = found(vocabulary, {}, {"tokenizer": "future"})
    assert differences[0][:4] == ("type", "SPM", "unknown (future)", True)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain text", "plain text"),
        ("ünïcode 模型 🤖", "ünïcode 模型 🤖"),
        ("\x1b]0;title\x07", r"\x1b]0;title\x07"),
        ("\x9b31m", r"\x9b31m"),
        ("a\nb\tc\r", r"a\nb\tc\r"),
        ("\u200f\u2028", r"\u200f\u2028"),
        ("\U000e0041", r"\U000e0041"),
        (b"ok \xf0\x9f\xa4\x96", "ok 🤖"),
        (b"cut \xf0\x9f", r"cut \xf0\x9f"),
        ("\udcff", r"\xff"),
        ("\udce6\udca8\udca1 \udcff", r"模 \xff"),
        ("\ud83d", r"\ud83d"),
    ],
)
def test_printable(text, expected):
    assert printable(text) == expected
    assert printable(expected) == expected  # escaping twice changes nothing


@pytest.mark.parametrize(
    "name",
    [
        "plain.gguf",
        "with space",
        "it's",
        "$(rm -rf x)",
        "a;b",
        "模型",
        "new\nline",
        "no utf8 \udcff",
        "\x1b[1m'\\",
    ],
)
def test_shell_word_survives_a_shell(tmp_path, name):
    command = f"printf %s {shell_word(name)}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, check=True)
    assert os.fsdecode(done.stdout) == name
