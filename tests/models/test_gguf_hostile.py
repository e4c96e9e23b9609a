"""Damaged and hostile files end in a sentence: soon, in little memory, and never in another exception."""

import random
import struct
import tracemalloc

import pytest

from localspec.errors import ModelFileError
from localspec.models.gguf import Header, read_header
from localspec.models.vocab import read_vocabulary
from tests import gguf_files as files

pytestmark = pytest.mark.timeout(60)


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def gguf(
    *, keys: bytes = b"", n_keys: int = 0, tensors: bytes = b"", n_tensors: int = 0, tail: bytes = b""
) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, n_tensors, n_keys) + keys + tensors + tail


def tensor(name=b"t", shape=(32,), kind=0, offset=0, n_dimensions=None) -> bytes:
    count = len(shape) if n_dimensions is None else n_dimensions
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", count, *shape, kind, offset)


ARCH = text(b"general.architecture") + struct.pack("<I", 8) + text(b"llama")
HUGE = 1 << 62


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (gguf(n_keys=HUGE), "damaged"),
        (gguf(n_tensors=HUGE), "damaged"),
        (gguf(n_keys=1, keys=struct.pack("<Q", HUGE)), "damaged"),
        (gguf(n_keys=1, keys=struct.pack("<Q", 1 << 20)), "bytes only"),
        (gguf(n_keys=1, keys=text(b"k") + struct.pack("<IQ", 8, HUGE)), "damaged"),
        (gguf(n_keys=1, keys=text(b"k") + struct.pack("<I", 77)), "damaged"),
        (gguf(n_keys=1, keys=text(b"k") + struct.pack("<IIQ", 9, 4, HUGE)), "damaged"),
        (gguf(n_keys=1, keys=text(b"k") + struct.pack("<IIQ", 9, 8, HUGE)), "damaged"),
        (gguf(n_keys=1, keys=text(b"k") + struct.pack("<IIQ", 9, 8, 1_000_000)), "bytes only"),
        (
            gguf(n_keys=1, keys=text(b"k") + struct.pack("<IIQ", 9, 8, 1) + struct.pack("<Q", HUGE)),
            "bytes only",
        ),
        (gguf(n_keys=1, keys=text(b"k") + struct.pack("<IIQ", 9, 9, 1)), "damaged"),
        (gguf(n_keys=1, keys=text(b"k") + struct.pack("<IIQ", 9, 13, 1)), "damaged"),
        (gguf(n_keys=2, keys=ARCH + ARCH), "damaged"),
        (gguf(n_keys=1, keys=text(b"") + struct.pack("<IB", 0, 0)), "damaged"),
        (gguf(n_keys=1, keys=text(b"general.alignment") + struct.pack("<II", 4, 0)), "damaged"),
        (gguf(n_keys=1, keys=text(b"general.alignment") + struct.pack("<II", 4, 33)), "damaged"),
        (gguf(n_keys=1, keys=text(b"general.alignment") + struct.pack("<If", 6, 32.0)), "damaged"),
        (gguf(n_keys=1, keys=ARCH, n_tensors=1, tensors=tensor(kind=4)), "no longer reads"),
        (gguf(n_keys=1, keys=ARCH, n_tensors=1, tensors=tensor(kind=31)), "no longer reads"),
        (gguf(n_keys=1, keys=ARCH, n_tensors=1, tensors=tensor(kind=4000)), "newer than llama.cpp"),
        (gguf(n_keys=1, keys=ARCH, n_tensors=1, tensors=tensor(shape=(33,), kind=2)), "does not fit"),
        (
            gguf(n_keys=1, keys=ARCH, n_tensors=1, tensors=tensor(shape=(1 << 40, 1 << 40))),
            "longer than any disk",
        ),
        (
            gguf(n_keys=1, keys=ARCH, n_tensors=1, tensors=tensor(offset=(1 << 64) - 1)),
            "longer than any disk",
        ),
        (
            gguf(n_keys=1, keys=ARCH, n_tensors=1, tensors=tensor(n_dimensions=5, shape=(1,) * 5)),
            "dimensions",
        ),
        (gguf(n_keys=1, keys=ARCH, n_tensors=1, tensors=tensor(n_dimensions=0xFFFFFFFF)), "dimensions"),
        (gguf(n_keys=1, keys=ARCH, n_tensors=1, tensors=tensor(name=b"n" * 64)), "name has 64 bytes"),
        (gguf(n_keys=1, keys=ARCH, n_tensors=1, tensors=tensor(name=b"")), "name has 0 bytes"),
        (gguf(n_keys=1, keys=ARCH, n_tensors=2, tensors=tensor() * 2, tail=bytes(256)), "the same name"),
        (gguf(n_keys=1, keys=ARCH, n_tensors=1, tensors=tensor(shape=(1 << 30,))), "bytes (0 %)"),
        (gguf(), "which architecture"),
        (gguf(n_keys=1, keys=text(b"general.architecture") + struct.pack("<II", 4, 3)), "which architecture"),
    ],
)
def test_impossible_headers(tmp_path, data, sentence):
    path = tmp_path / "x.gguf"
    path.write_bytes(data)
    tracemalloc.start()
    try:
        with pytest.raises(ModelFileError) as caught:
            read_header(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert sentence in str(caught.value)
    assert caught.value.hint
    assert peak < 4_000_000


def test_a_sparse_terabyte_is_not_walked_through(tmp_path):
    """A hundred billion empty texts: all zeros, so every length is valid."""
    path = tmp_path / "x.gguf"
    keys = text(b"tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, 100_000_000_000)
    path.write_bytes(gguf(n_keys=1, keys=keys))
    with path.open("r+b") as file:
        try:
            file.truncate(1 << 40)
        except OSError:
            pytest.skip("this file system has no sparse files of that size")
    with pytest.raises(ModelFileError, match="damaged"):
        read_header(path)


def test_memory_stays_small_whatever_a_sparse_file_claims(tmp_path):
    """Sixty keys with texts of 60 MB of zeros each, in a file that takes no room on the disk."""
    path, at = tmp_path / "x.gguf", 24
    with path.open("wb") as file:
        file.write(gguf(n_keys=60))
        for i in range(60):
            file.seek(at)
            head = text(b"key%d" % i) + struct.pack("<IQ", 8, 60_000_000)
            file.write(head)
            at += len(head) + 60_000_000
        file.truncate(at)
    tracemalloc.start()
    try:
        with pytest.raises(ModelFileError, match="damaged"):
            read_header(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 250_000_000


def outcome(path) -> str:
    """`ok` or `refused`; anything else is an exception and fails the test."""
    try:
        header = read_header(path)
        repr(header)
        header.require_model("target")
        read_vocabulary(header).texts()
    except ModelFileError:
        return "refused"
    assert isinstance(header, Header)
    return "ok"


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> bytes:
    return files.random_qwen35(tmp_path_factory.mktemp("whole") / "x.gguf", n_nextn=1).read_bytes()


@pytest.fixture(scope="module")
def header_bytes(whole) -> int:
    """Everything before the weights."""
    return whole.rindex(b"blk.") + 120


@pytest.mark.parametrize("seed", range(8))
def test_flipped_bytes(tmp_path, whole, header_bytes, seed):
    rng = random.Random(seed)
    path = tmp_path / "x.gguf"
    outcomes = []
    for _ in range(60):
        data = bytearray(whole)
        for _ in range(rng.choice((1, 1, 4, 30))):
            data[rng.randrange(header_bytes)] = rng.randrange(256)
        path.write_bytes(data)
        outcomes.append(outcome(path))
    assert outcomes.count("refused") >= 5


@pytest.mark.parametrize("seed", range(4))
def test_numbers_made_extreme(tmp_path, whole, header_bytes, seed):
    rng = random.Random(100 + seed)
    path = tmp_path / "x.gguf"
    for _ in range(60):
        data = bytearray(whole)
        at = rng.randrange(4, header_bytes)
        data[at : at + 8] = rng.choice(
            (bytes(8), b"\xff" * 8, struct.pack("<Q", 1 << 31), struct.pack("<Q", 1 << 63))
        )
        path.write_bytes(data)
        outcome(path)


@pytest.mark.parametrize("seed", range(4))
def test_cut_anywhere(tmp_path, whole, header_bytes, seed):
    rng = random.Random(200 + seed)
    path = tmp_path / "x.gguf"
    for _ in range(60):
        path.write_bytes(whole[: rng.choice((rng.randrange(header_bytes), rng.randrange(len(whole))))])
        assert outcome(path) == "refused"


@pytest.mark.parametrize("seed", range(4))
def test_pieces_taken_out_or_doubled(tmp_path, whole, header_bytes, seed):
    rng = random.Random(300 + seed)
    path = tmp_path / "x.gguf"
    for _ in range(60):
        start = rng.randrange(header_bytes)
        length = rng.randrange(1, 200)
        piece = whole[start : start + length] * rng.choice((0, 2))
        path.write_bytes(whole[:start] + piece + whole[start + length :])
        outcome(path)
