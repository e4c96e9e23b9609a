"""Against llama.cpp's own `draft-mtp`, on the same files and the same text: it must accept no more than ours.

Run by hand, with the programs of scripts/build_llama_cpp (the folder that holds `llama-speculative-simple`):

    LOCALSPEC_TEST_LLAMA_CPP=.../bin pytest tests/spec/test_native_mtp.py -s
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import gguf
import numpy as np
import pytest

from localspec.spec.engine import Request
from localspec.spec.events import Round, Sampling
from tests import gguf_files
from tests.gguf_writer import FIRST_BYTE
from tests.spec.conftest import Bench
from tests.spec.test_engine import loop
from tests.spec.test_mtp import Made, tiny

FOLDER = os.environ.get("LOCALSPEC_TEST_LLAMA_CPP", "")
pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(not FOLDER, reason="LOCALSPEC_TEST_LLAMA_CPP names no folder"),
]

START, TOKENS = FIRST_BYTE + ord("A"), 120
LETTERS = loop(
    START, 24
)  # letters are bytes in this vocabulary, so a prompt of letters has the ids that we mean


class Counts(NamedTuple):
    drafted: int
    accepted: int
    rounds: int


def native(path: Path, prompt: str, k: int) -> tuple[Counts, bytes]:
    """What llama.cpp counts, and what it wrote."""
    program = Path(FOLDER) / "llama-speculative-simple"
    flags = (
        f"--spec-type draft-mtp --spec-draft-n-max {k} -n {TOKENS} --temp 0 -c 512 -t 1 --ignore-eos".split()
    )
    for _ in range(10):  # its log now and then loses lines
        done = subprocess.run(
            [program, "-m", path, *flags, "-p", prompt], check=True, capture_output=True, timeout=120
        )
        said = done.stdout + done.stderr
        found = dict(re.findall(rb"\bn_(predict|drafted|accept) += (\d+)", said))
        if len(found) == 3 and b"<s>" in said:
            break
    else:
        raise AssertionError(said.decode(errors="replace"))
    predicted, drafted, accepted = (int(found[name]) for name in (b"predict", b"drafted", b"accept"))
    written = said.split(b"<s>", 1)[1].split(b"\n\n", 1)[0]
    return Counts(
        drafted, accepted, predicted - accepted
    ), written  # a round gives one token beyond the accepted ones


def ours(bench: Bench, path: Path, prompt: str, k: int, rounds: int) -> Counts:
    """The same after as many rounds."""
    made = Made(bench, path, k)
    vocab = made.engine.vocab
    ids = vocab.tokenize(prompt, add_bos=True)
    for event in made.engine.generate(Request(ids, Sampling(temperature=0), ignore_eos=True)):
        if isinstance(event, Round) and event.stats.rounds == rounds:
            return Counts(event.stats.drafted, event.stats.accepted, rounds)
    raise AssertionError("the answer was too short")


def script(bench: Bench, block: str, wrong: Sequence[int] = ()) -> Path:
    """A scripted file whose block is right except behind some letters (counted from 0)."""
    path = bench.folder / f"native-{block}-{len(wrong)}.gguf"
    if path.exists():
        return path
    gguf_files.script_qwen35(path, LETTERS, block=block)
    for tensor in gguf.GGUFReader(path, "r+").tensors:
        if tensor.name.endswith("nextn.eh_proj.weight"):
            offset = 0 if block == "token" else tensor.data.shape[0]
            for letter in wrong:  # what it makes of this letter leads to another one's successor
                column = tensor.data[:, offset + START + letter]
                column[:] = np.roll(column, 5)
            tensor.data.flush()
    return path


WRONG = {"never": (), "thrice": (3, 4, 13), "often": tuple(range(0, 24, 2))}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("block", ["token", "hidden"])
@pytest.mark.parametrize("k", [1, 2, 3, 4, 8])
def test_llama_cpp_accepts_no_more_on_scripted_files(bench: Bench, block: str, k: int, wrong: str) -> None:
    """Its first draft is made behind the prompt, ours behind the first token: so it gets one letter more."""
    path = script(bench, block, WRONG[wrong])
    theirs, written = native(path, "AB", k)
    alphabet = bytes(ord("A") + i % 24 for i in range(TOKENS))
    assert written.strip().startswith(alphabet)
    got = ours(bench, path, "A", k, theirs.rounds)
    print(f"\n{block}, wrong {wrong}, k={k}: ours {got}, llama.cpp {theirs}")
    assert got.accepted >= theirs.accepted
    assert theirs.accepted > 0 or wrong == "often"
    if wrong == "never":
        assert got.accepted == got.drafted == k * got.rounds


@pytest.mark.parametrize("k", [1, 3, 8])
@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_llama_cpp_accepts_no_more_on_random_weights(bench: Bench, k: int, noise: float) -> None:
    """A block of random weights, and a scripted file under noise."""
    path = tiny(bench)
    if noise:
        path = bench.folder / f"native-noise-{noise}.gguf"
        if not path.exists():
            gguf_files.perturbed(script(bench, "hidden"), path, noise=noise)
    theirs, _ = native(path, "AB", k)
    got = ours(bench, path, "A" if noise else "AB", k, theirs.rounds)
    print(f"\nrandom, noise {noise}, k={k}: ours {got}, llama.cpp {theirs}")
    assert got.accepted >= theirs.accepted
