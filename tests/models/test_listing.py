"""Which file of a repository is meant: exact, without case, never a sidecar, never a bigger one."""

from __future__ import annotations

import pytest

from localspec.errors import DownloadError
from localspec.models.listing import RepoFile, choose, is_sidecar, items, quant_word

MB = 1_000_000


def listing(*paths: str) -> list[RepoFile]:
    return [RepoFile(path, (number + 1) * MB) for number, path in enumerate(paths)]


def chosen(paths: tuple[str, ...], quant: str = "", candidates: tuple[str, ...] = ()) -> list[str]:
    return [
        file.path for file in choose(listing(*paths), repo="o/r", quant=quant, candidates=candidates).files
    ]


LOWER = (
    "qwen2.5-0.5b-instruct-fp16.gguf",
    "qwen2.5-0.5b-instruct-q4_k_m.gguf",
    "qwen2.5-0.5b-instruct-q8_0.gguf",
)
UD = ("M-UD-Q4_K_M.gguf", "M-UD-Q4_K_XL.gguf", "M-UD-IQ4_XS.gguf", "mmproj-BF16.gguf")
BOTH = ("M-UD-Q4_K_M.gguf", "M-Q4_K_M.gguf", "M-Q4_K_S.gguf")
PROJECTOR_FIRST = (
    "mmproj-M-Q8_0.gguf",
    "M-Q8_0.gguf",
    "mtp-M-Q8_0.gguf",
    "dflash-M-Q8_0.gguf",
    "eagle3-M-Q8_0.gguf",
)
MXFP4 = ("gpt-oss-20b-MXFP4.gguf", "eagle3-gpt-oss-20b-Q8_0.gguf")
SPLIT = (
    *(f"Q8_0/m-Q8_0-0000{n}-of-00002.gguf" for n in (2, 1)),
    *(f"Q4_K_M/m-Q4_K_M-0000{n}-of-00003.gguf" for n in (3, 1, 2)),
)
VENDORS = ("TheDrummer_Model-24B-v4.1-Q8_0.gguf", "TheDrummer_Model-24B-v4.1-Q4_K_M.gguf")
WEIGHTED = ("X.i1-Q4_K_S.gguf", "X.i1-Q4_K_M.gguf")
DOTS = ("BlackSheep-24B.Q8_0.gguf", "BlackSheep-24B.i1-Q4_K_M.gguf", "BlackSheep-24B.Q4_K_M.gguf")


@pytest.mark.parametrize(
    ("paths", "quant", "expected"),
    [
        (LOWER, "Q4_K_M", [LOWER[1]]),
        (LOWER, "fp16", [LOWER[0]]),
        (LOWER, "", [LOWER[1]]),
        (UD, "ud-q4_k_m", [UD[0]]),
        (UD, "UD_Q4_K_M", [UD[0]]),
        (UD, "", [UD[0]]),
        (BOTH, "q4_k_m", [BOTH[1]]),
        (BOTH, "", [BOTH[1]]),
        (PROJECTOR_FIRST, "q8_0", [PROJECTOR_FIRST[1]]),
        (PROJECTOR_FIRST, "", [PROJECTOR_FIRST[1]]),
        (PROJECTOR_FIRST, "mtp-M-Q8_0.gguf", [PROJECTOR_FIRST[2]]),
        (MXFP4, "", [MXFP4[0]]),
        (MXFP4, "mxfp4", [MXFP4[0]]),
        (SPLIT, "q4_k_m", sorted(SPLIT[2:])),
        (SPLIT, "Q8_0", sorted(SPLIT[:2])),
        (SPLIT, "", sorted(SPLIT[2:])),
        (VENDORS, "Q8_0", [VENDORS[0]]),
        (DOTS, "q4_k_m", [DOTS[2]]),
        (DOTS, "i1-q4_k_m", [DOTS[1]]),
        (WEIGHTED, "q4_k_m", [WEIGHTED[1]]),
        (WEIGHTED, "", [WEIGHTED[1]]),
        (SPLIT, "Q4_K_M-00002-of-00003", sorted(SPLIT[2:])),
        (SPLIT, "m-Q4_K_M", sorted(SPLIT[2:])),
        (SPLIT, "m-q4_k_m.gguf", sorted(SPLIT[2:])),
        (BOTH, "M-UD-Q4_K_M", [BOTH[0]]),
        (("M-Q8_0.gguf", "MTP/Q8_0.gguf"), "q8_0", ["M-Q8_0.gguf"]),
        (("M-Compact.gguf", "M-I-Compact.gguf"), "compact", ["M-Compact.gguf"]),
        (("M-Compact.gguf", "M-I-Compact.gguf"), "I-Compact", ["M-I-Compact.gguf"]),
        (("Q4_0/model.gguf", "Q8_0/model.gguf"), "q8_0", ["Q8_0/model.gguf"]),
        (
            ("a-Q4_K_M.gguf", "a-Q4_K_M-00001-of-00002.gguf", "a-Q4_K_M-00002-of-00002.gguf"),
            "q4_k_m",
            ["a-Q4_K_M.gguf"],
        ),
        (("GLM-DRAFT-0.6B-32k-Q4_0.gguf", "README.md"), "q4_0", ["GLM-DRAFT-0.6B-32k-Q4_0.gguf"]),
        (("x/y/Only.GGUF",), "", ["x/y/Only.GGUF"]),
    ],
)
def test_choice(paths: tuple[str, ...], quant: str, expected: list[str]) -> None:
    assert chosen(paths, quant) == expected
    assert chosen(tuple(reversed(paths)), quant) == expected


@pytest.mark.parametrize(
    ("paths", "quant", "message", "why"),
    [
        (UD, "Q4_K_M", "has no Q4_K_M", "UD-Q4_K_M (1 MB)"),
        (UD, "q4_k", "has no q4_k", "UD-Q4_K_XL"),
        (("M-F16.gguf", "M-BF16.gguf"), "q4_k_m", "has no q4_k_m", "BF16 (2 MB)"),
        (("M-F16.gguf", "M-BF16.gguf"), "", "2 models", "F16 (1 MB), BF16 (2 MB)"),
        (("A-Q4_K_M.gguf", "B-Q4_K_M.gguf"), "q4_k_m", "2 models that are q4_k_m", "B-Q4_K_M.gguf (2 MB)"),
        (("A-Q4_K_M.gguf", "B-Q4_K_M.gguf"), "", "2 models", "Q4_K_M (1 MB)"),
        (("README.md", "model.safetensors"), "", "no GGUF file", "GGUF"),
        (("mmproj-F16.gguf", "imatrix.gguf", "MTP/mtp-M-Q4_0.gguf"), "", "holds no model", "Projectors"),
        (SPLIT[:1], "", "only 1 of the 2 parts", "not complete"),
        (LOWER, "gone-q4_k_m.gguf", "has no gone-q4_k_m.gguf", "q8_0"),
    ],
)
def test_no_choice(paths: tuple[str, ...], quant: str, message: str, why: str) -> None:
    with pytest.raises(DownloadError) as caught:
        chosen(paths, quant)
    assert message in caught.value.message
    assert why in caught.value.why
    assert caught.value.hint.startswith("localspec ")


def test_hint_of_an_ambiguous_choice_chooses() -> None:
    paths = ("sub dir/A-Q4_K_M.gguf", "B-Q4_K_M.gguf")
    with pytest.raises(DownloadError) as caught:
        chosen(paths, "q4_k_m")
    assert caught.value.hint == "localspec pull 'o/r:sub dir/A-Q4_K_M.gguf'"
    assert chosen(paths, "sub dir/A-Q4_K_M.gguf") == ["sub dir/A-Q4_K_M.gguf"]


def test_candidates_come_first_in_their_order_and_without_case() -> None:
    paths = ("gpt-oss-20b-MXFP4.gguf", "gpt-oss-20b-mxfp4-old.gguf")
    assert chosen(paths, "Q9", ("missing.gguf", "GPT-OSS-20B-mxfp4.gguf")) == [paths[0]]
    assert chosen(SPLIT, "", ("m-q8_0-00001-of-00002.gguf",)) == sorted(SPLIT[:2])


def test_names_are_shown_safely() -> None:
    with pytest.raises(DownloadError) as caught:
        chosen(("a\x1b[2J-\u202eF16.gguf", "b-F16.gguf"), "q4")
    assert "\x1b" not in str(caught.value)
    assert "\u202e" not in str(caught.value)


@pytest.mark.parametrize(
    ("path", "word"),
    [
        ("Qwen3.8-27B-UD-Q4_K_XL.gguf", "UD-Q4_K_XL"),
        ("smollm2-360m-instruct-q8_0.gguf", "q8_0"),
        ("gpt-oss-120b-mxfp4-00001-of-00003.gguf", "mxfp4"),
        ("Model-IQ4_NL.gguf", "IQ4_NL"),
        ("Model-TQ1_0.gguf", "TQ1_0"),
        ("Model-Q4_K_M-imat.gguf", "Q4_K_M-imat"),
        ("Model.gguf", ""),
        ("Qwen3-Q-Star.gguf", ""),
        ("UD-IQ2_M/Model-00001-of-00002.gguf", "UD-IQ2_M"),
        ("BF16/Model-Q8_0.gguf", "Q8_0"),
    ],
)
def test_quant_word(path: str, word: str) -> None:
    assert quant_word(path) == word


@pytest.mark.parametrize(
    "path",
    [
        "mmproj-model-f16.gguf",
        "model.mmproj-Q8_0.gguf",
        "mtp-Qwen3.8-27B-Q4_0.gguf",
        "MTP/anything.gguf",
        "model-MTP-BF16.gguf",
        "model-mtp.gguf",
        "dflash-model-Q8_0.gguf",
        "eagle3-model-Q8_0.gguf",
        "dspark-model-MXFP4.gguf",
        "imatrix.gguf",
        "Model.imatrix.gguf",
        "my-lora-F16.gguf",
        "ggml-vocab-qwen2.gguf",
    ],
)
def test_sidecars(path: str) -> None:
    assert is_sidecar(path)


@pytest.mark.parametrize(
    "path", ["Explorator-Q4_0.gguf", "attempt-Q4_0.gguf", "Model-Q4_K_M.gguf", "eagle-7b-Q4_0.gguf"]
)
def test_models_are_no_sidecars(path: str) -> None:
    assert not is_sidecar(path)


def test_a_split_model_is_one_item() -> None:
    found = items(listing(*SPLIT))
    assert [(item.quant, item.shards, item.complete, item.size) for item in found] == [
        ("Q8_0", 2, True, 3 * MB),
        ("Q4_K_M", 3, True, 12 * MB),
    ]
