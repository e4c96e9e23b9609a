"""The bytes of a GGUF header: metadata and tensor list, read without loading any weight.

Why not the `gguf` package: its reader makes one numpy view per array element and needs seconds for a
vocabulary of 250,000 tokens. Here long arrays are only stepped over and read when somebody asks.

Nothing in a file is believed: every count and length is checked against the bytes that are there, so that a
cut, damaged or hostile file ends in a `ModelFileError` soon and in little memory.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from localspec.errors import ModelFileError
from localspec.models.gguf_facts import REMOVED_TENSOR_TYPES, TENSOR_TYPES
from localspec.models.text import printable, shell_word, shown

MAGIC = b"GGUF"
VOCABULARY = "tokenizer.ggml."
"""Arrays under these keys are always `LazyArray`s."""
VERSIONS = (2, 3)
_STRING, _ARRAY, _BOOL = 8, 9, 7
_FORMATS = {
    **{0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f"},
    **{7: "?", 10: "Q", 11: "q", 12: "d"},
}
_SIZES = {kind: struct.calcsize("<" + code) for kind, code in _FORMATS.items()}
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")

# Far above anything that exists (about 60 keys, 10,000 tensors, 520,000 merges, a template of 200 kB), far
# below what would take long or much memory.
_MAX_KEYS = 4096
_MAX_TENSORS = 200_000
_MAX_STRINGS = 4_000_000
_MAX_TEXT_BYTES = 64 << 20
"""Of all texts of a header together, long arrays aside."""
_MAX_HEADER_BYTES = 512 << 20
_MAX_NAME = 64
_MAX_DIMENSIONS = 4
_SHORT_ARRAY = 1024
"""Arrays up to this length are read at once (per-layer numbers), longer ones when asked for."""


class _CutOffError(Exception):
    """The file ends before the header does."""


class _BadHeaderError(Exception):
    """The header says something that cannot be."""


class TensorInfo(NamedTuple):
    """One tensor of a file."""

    name: str
    shape: tuple[int, ...]
    """Fastest dimension first, as GGUF writes it."""
    type: str
    """`F32`, `Q4_K`, ..."""
    n_bytes: int
    offset: int
    """From the start of its file, in bytes."""
    shard: int = 0
    """Index of its file in `Header.files`."""

    @property
    def n_values(self) -> int:
        """Number of weights."""
        total = 1
        for length in self.shape:
            total *= length
        return total


@dataclass(frozen=True, slots=True)
class LazyArray:
    """A long array that stays in the file until it is asked for."""

    path: Path
    kind: int
    """GGUF value type of the elements; 8 = text."""
    count: int
    start: int
    """Offset of the first element, in bytes."""
    end: int

    def __len__(self) -> int:
        return self.count

    @property
    def is_text(self) -> bool:
        """The elements are texts."""
        return self.kind == _STRING

    def raw(self) -> bytes:
        """The array as it stands in the file, length prefixes of texts included.

        Raises:
            ModelFileError: The file changed since its header was read, or cannot be read any more.
        """
        try:
            with self.path.open("rb") as file:
                file.seek(self.start)
                data = file.read(self.end - self.start)
        except OSError as error:
            raise ModelFileError(
                f"{shown(self.path)} cannot be read any more.",
                why=f"{error.strerror or error}.",
                hint=f"ls -l {shell_word(self.path)}",
            ) from error
        if len(data) != self.end - self.start:
            raise _changed(self.path)
        return data

    def texts(self) -> list[bytes]:
        """The elements of an array of texts, as bytes.

        Raises:
            ModelFileError: As `raw`; or the elements are no texts.
        """
        if not self.is_text:
            raise ModelFileError(
                f"{shown(self.path)} has numbers where texts belong.",
                why="It is damaged, or made by a broken converter.",
                hint="localspec models",
            )
        data, position = self.raw(), 0
        found: list[bytes] = []
        unpack, append, end = _U64.unpack_from, found.append, self.end - self.start
        for _ in range(self.count):
            if position + 8 > end:
                raise _changed(self.path)
            start = position + 8
            position = start + unpack(data, position)[0]
            append(data[start:position])
        if position != end:
            raise _changed(self.path)
        return found

    def numbers(self) -> tuple[Any, ...]:
        """The elements of an array of numbers.

        Raises:
            ModelFileError: As `raw`; or the elements are texts.
        """
        if self.is_text:
            raise ModelFileError(
                f"{shown(self.path)} has texts where numbers belong.",
                why="It is damaged, or made by a broken converter.",
                hint="localspec models",
            )
        return struct.unpack(f"<{self.count}{_FORMATS[self.kind]}", self.raw())


def _changed(path: Path) -> ModelFileError:
    return ModelFileError(
        f"{shown(path)} changed while it was being read.",
        why="Perhaps it is still downloading.",
        hint=f"ls -l {shell_word(path)}",
    )


@dataclass(slots=True)
class RawHeader:
    """What one file says."""

    path: Path
    version: int
    metadata: dict[str, Any]
    tensors: list[TensorInfo]
    size_bytes: int
    expected_bytes: int
    """Where the last tensor ends; 0 without tensors."""
    alignment: int
    data_start: int


@dataclass(slots=True)
class _Cursor:
    """Walks over the mapped bytes of a file."""

    data: mmap.mmap | bytes
    path: Path
    end: int
    position: int = 0
    strings: int = 0
    text_bytes: int = 0

    def take(self, n_bytes: int) -> int:
        """Step over `n_bytes`; the position before."""
        start = self.position
        if start + n_bytes > self.end:
            raise _CutOffError
        if start + n_bytes > _MAX_HEADER_BYTES:
            raise _BadHeaderError(f"its header would be longer than {_MAX_HEADER_BYTES >> 20} MiB")
        self.position = start + n_bytes
        return start

    def u32(self) -> int:
        return int(_U32.unpack_from(self.data, self.take(4))[0])

    def u64(self) -> int:
        return int(_U64.unpack_from(self.data, self.take(8))[0])

    def text(self) -> bytes:
        length = self.u64()
        self.text_bytes += length
        if self.text_bytes > _MAX_TEXT_BYTES:
            raise _BadHeaderError(f"the texts of its header claim to have {self.text_bytes:,} bytes and more")
        start = self.take(length)
        return bytes(self.data[start : start + length])

    def value(self, kind: int, short: int) -> Any:
        if kind == _STRING:
            return self.text().decode("utf-8", errors="replace")
        if kind == _ARRAY:
            return self.array(short)
        code = _FORMATS.get(kind)
        if code is None:
            raise _BadHeaderError(f"a value in its header has the unknown type {kind}")
        if kind == _BOOL:
            return self.data[self.take(1)] != 0
        return struct.unpack_from("<" + code, self.data, self.take(_SIZES[kind]))[0]

    def array(self, short: int) -> Any:
        """An array of at most `short` elements as a tuple, a longer one as a `LazyArray`."""
        kind, count = self.u32(), self.u64()
        if kind == _STRING:
            return self.text_array(count, short)
        if kind not in _FORMATS:
            raise _BadHeaderError(f"an array in its header has elements of the unusable type {kind}")
        if count > _MAX_HEADER_BYTES:
            raise _BadHeaderError(f"an array in its header claims to have {count:,} elements")
        start = self.take(count * _SIZES[kind])
        if count <= short:
            if kind == _BOOL:
                return tuple(byte != 0 for byte in self.data[start : start + count])
            return struct.unpack_from(f"<{count}{_FORMATS[kind]}", self.data, start)
        return LazyArray(self.path, kind, count, start, self.position)

    def text_array(self, count: int, short: int) -> Any:
        self.strings += count
        if self.strings > _MAX_STRINGS:
            raise _BadHeaderError(f"an array in its header claims to have {count:,} texts")
        if count * 8 > self.end - self.position:
            raise _CutOffError
        start = self.position
        position = _after_texts(self.data, start, count, self.end)
        self.take(position - start)
        if count > short:
            return LazyArray(self.path, _STRING, count, start, position)
        self.position = start
        return tuple(self.text().decode("utf-8", errors="replace") for _ in range(count))


def _after_texts(data: mmap.mmap | bytes, position: int, count: int, end: int) -> int:
    """The position after `count` length-prefixed texts: the one loop that runs for every token."""
    unpack: Callable[[Any, int], tuple[Any, ...]] = _U64.unpack_from
    last = end - 8
    for _ in range(count):
        if position > last:
            raise _CutOffError
        position += 8 + unpack(data, position)[0]
    if position > end:
        raise _CutOffError
    return position


def parse(path: Path) -> RawHeader:
    """Read the header of one GGUF file whose first four bytes are known to be right.

    Args:
        path: A regular file.

    Returns:
        Its metadata and tensors. Long arrays are `LazyArray`s.

    Raises:
        ModelFileError: Cut off, damaged, or a version or tensor type that llama.cpp does not read.
        OSError: The file cannot be opened.
    """
    size = path.stat().st_size
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        cursor = _Cursor(data, path, size, position=4)
        try:
            return _header(cursor, path, size)
        except _CutOffError:
            raise ModelFileError(
                f"{shown(path)} ends in the middle of its header: it has {size:,} bytes only.",
                why="The download is incomplete.",
            ) from None
        except (_BadHeaderError, OverflowError, struct.error) as error:
            why = f"{str(error)[:1].upper()}{str(error)[1:]}."
            raise ModelFileError(f"{shown(path)} is damaged.", why=why) from None


def _header(cursor: _Cursor, path: Path, size: int) -> RawHeader:
    version = cursor.u32()
    _check_version(path, version)
    n_tensors, n_keys = cursor.u64(), cursor.u64()
    if n_tensors > _MAX_TENSORS or n_keys > _MAX_KEYS:
        raise _BadHeaderError(f"its header claims to have {n_tensors:,} tensors and {n_keys:,} keys")
    metadata: dict[str, Any] = {}
    for _ in range(n_keys):
        key = cursor.text().decode("utf-8", errors="replace")
        if not key or key in metadata:
            raise _BadHeaderError(f"its header has the key {printable(key[:80])!r} twice or an empty one")
        # The vocabulary is compared byte by byte, so its texts are never decoded here.
        short = -1 if key.startswith(VOCABULARY) else _SHORT_ARRAY
        metadata[key] = cursor.value(cursor.u32(), short)
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1) or alignment > 1 << 20:
        raise _BadHeaderError("its alignment is no power of two")
    infos = [_tensor(cursor) for _ in range(n_tensors)]
    data_start = -(-cursor.position // alignment) * alignment
    tensors = [info._replace(offset=info.offset + data_start) for info in infos]
    if len({info.name for info in tensors}) != len(tensors):
        raise _BadHeaderError("two of its tensors have the same name")
    expected = max((info.offset + info.n_bytes for info in tensors), default=0)
    if expected > 1 << 62:
        raise _BadHeaderError("its tensors claim to be longer than any disk")
    return RawHeader(path, version, metadata, tensors, size, expected, alignment, data_start)


def _tensor(cursor: _Cursor) -> TensorInfo:
    name = cursor.text()
    if not 0 < len(name) < _MAX_NAME:
        raise _BadHeaderError(f"a tensor's name has {len(name)} bytes")
    n_dimensions = cursor.u32()
    if n_dimensions > _MAX_DIMENSIONS:
        raise _BadHeaderError(f"a tensor claims to have {n_dimensions} dimensions")
    shape = tuple(cursor.u64() for _ in range(n_dimensions))
    kind, offset = cursor.u32(), cursor.u64()
    text = name.decode("utf-8", errors="replace")
    block = TENSOR_TYPES.get(kind)
    if block is None:
        removed = REMOVED_TENSOR_TYPES.get(kind)
        if removed:
            raise _BadHeaderError(f"it has tensors of the type {removed}, which llama.cpp no longer reads")
        raise _BadHeaderError(
            f"its tensor {printable(text)} has the type {kind}, which is newer than llama.cpp here"
        )
    values = 1
    for length in shape:
        values *= length
    if values > 1 << 60 or offset > 1 << 62:
        raise _BadHeaderError(f"its tensor {printable(text)} claims to be longer than any disk")
    if shape and shape[0] % block.values:
        raise _BadHeaderError(f"a row of its tensor {printable(text)} does not fit the type {block.name}")
    return TensorInfo(text, shape, block.name, values // block.values * block.n_bytes, offset)


def _check_version(path: Path, version: int) -> None:
    if version in VERSIONS:
        return
    if version == 1:
        message, why = (
            "is GGUF version 1, which llama.cpp no longer reads.",
            "Get a newer conversion of the model.",
        )
    elif version == 0 or version & 0xFFFF == 0:
        message, why = (
            "is a big-endian GGUF, made for another kind of machine.",
            "Get the usual (little-endian) file.",
        )
    else:
        message = f"is GGUF version {version}; llama.cpp here reads versions 2 and 3."
        why = "The file is damaged, or newer than the installed llama-cpp-python."
    raise ModelFileError(f"{shown(path)} {message}", why=why)
