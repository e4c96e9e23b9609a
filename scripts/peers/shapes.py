"""Files in the shape of a model and with its cost, but with weights that were drawn: what they say means nothing.

They are written block by block, so that a 27B file needs no more memory than a tiny one.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType as Quant

from localspec.errors import UsageError
from tests.gguf_writer import sizes as write_sizes
from tests.gguf_writer import start

Bytes = npt.NDArray[np.uint8]

_PIECE = 1 << 14  # blocks that are drawn at once
_CONTEXT = 32_768
_LEAST_VOCABULARY = 512


@dataclass(frozen=True, slots=True)
class Shape:
    """Of a `llama`.

    Attributes:
        name: In the file's name.
        layers: Blocks.
        width: Of the residual.
        ffn: Of the feed-forward part.
        heads: Of attention.
        kv_heads: Key-value heads.
        head: Width of a head.
    """

    name: str
    layers: int
    width: int
    ffn: int
    heads: int
    kv_heads: int
    head: int

    def matrices(self, vocabulary: int) -> Iterator[tuple[str, int, int]]:
        """Name, rows and columns of all matrices, as a file has them."""
        yield "token_embd.weight", vocabulary, self.width
        yield "output.weight", vocabulary, self.width
        queries, keys = self.heads * self.head, self.kv_heads * self.head
        for number in range(self.layers):
            block = f"blk.{number}"
            yield f"{block}.attn_q.weight", queries, self.width
            yield f"{block}.attn_k.weight", keys, self.width
            yield f"{block}.attn_v.weight", keys, self.width
            yield f"{block}.attn_output.weight", self.width, queries
            yield f"{block}.ffn_gate.weight", self.ffn, self.width
            yield f"{block}.ffn_up.weight", self.ffn, self.width
            yield f"{block}.ffn_down.weight", self.width, self.ffn

    def parameters(self, vocabulary: int) -> int:
        """Weights in matrices."""
        return sum(rows * columns for _, rows, columns in self.matrices(vocabulary))


SHAPES = {
    shape.name: shape
    for shape in (
        Shape("27b", 64, 5120, 20_480, 40, 8, 128),
        Shape("14b", 40, 5120, 17_408, 40, 8, 128),
        Shape("8b", 36, 4096, 12_288, 32, 8, 128),
        Shape("4b", 36, 2560, 9728, 32, 8, 128),
        Shape("1.7b", 28, 2048, 6144, 16, 8, 128),
        Shape("0.6b", 28, 1024, 3072, 16, 8, 128),
        Shape("0.3b", 20, 1024, 2816, 16, 4, 64),
        Shape("0.05b", 8, 512, 1536, 8, 2, 64),
    )
}
"""The dense models that people run, about."""


def shape_of(said: str) -> Shape:
    """A shape by its name, or by `LAYERSxWIDTHxFFN`.

    Raises:
        UsageError: It is neither.
    """
    if said.lower() in SHAPES:
        return SHAPES[said.lower()]
    match = re.fullmatch(r"(\d+)x(\d+)x(\d+)", said)
    if match is None:
        raise UsageError(
            f"There is no shape {said!r}.",
            why=f"Known: {', '.join(SHAPES)}, or LAYERSxWIDTHxFFN, for instance 36x2560x9728.",
            hint="scripts/bench_shapes --help",
        )
    layers, width, ffn = (int(number) for number in match.groups())
    head = 128 if width >= 2048 else 64
    heads = width // head
    if not (layers and ffn and heads) or width % head:
        raise UsageError(
            f"The shape {said} cannot be.", why=f"Its width is no multiple of {head}, or something is 0."
        )
    return Shape(said, layers, width, ffn, heads, heads // 4 if heads % 4 == 0 else heads, head)


# ----------------------------------------------------------------------------------------------------------- blocks


@dataclass(frozen=True, slots=True)
class Format:
    """A quantisation.

    Attributes:
        kind: As a file names it.
        weights: In a block.
        size: Bytes of a block.
        file_type: As a file names it.
        draw: Makes blocks; its arguments are a random generator, their number, and the deviation of their weights.
    """

    kind: Quant
    weights: int
    size: int
    file_type: int
    draw: Callable[[np.random.Generator, int, float], Bytes]


def _bytes(rng: np.random.Generator, blocks: int, size: int) -> Bytes:
    found: Bytes = np.frombuffer(rng.bytes(blocks * size), np.uint8).reshape(blocks, size).copy()
    return found


def _halves(values: npt.ArrayLike, blocks: int) -> Bytes:
    halves = np.broadcast_to(np.asarray(values, np.float16), (blocks,)).copy()
    found: Bytes = halves.view(np.uint8).reshape(blocks, 2)
    return found


def _signed(rng: np.random.Generator, blocks: int, value: float) -> Bytes:
    """The scales have either sign, since the numbers that they scale are not centred."""
    return _halves(np.where(rng.integers(0, 2, blocks) == 0, -value, value), blocks)


def _q4_0(rng: np.random.Generator, blocks: int, deviation: float) -> Bytes:
    found = _bytes(rng, blocks, 18)
    found[:, :2] = _signed(rng, blocks, deviation / np.sqrt((16**2 - 1) / 12))
    return found


def _q8_0(rng: np.random.Generator, blocks: int, deviation: float) -> Bytes:
    found = _bytes(rng, blocks, 34)
    found[:, :2] = _signed(rng, blocks, deviation / np.sqrt((256**2 - 1) / 12))
    return found


def _q4_k(rng: np.random.Generator, blocks: int, deviation: float) -> Bytes:
    """All scales and minima of the sub-blocks are 32 (of 6 bits): 32 * (d * q - 7.5 d) is centred."""
    found = _bytes(rng, blocks, 144)
    scale = deviation / (32 * np.sqrt((16**2 - 1) / 12))
    found[:, 0:2], found[:, 2:4] = _halves(scale, blocks), _halves(7.5 * scale, blocks)
    found[:, 4:12], found[:, 12:16] = 0b10100000, 0
    return found


FORMATS = {
    "q4_0": Format(Quant.Q4_0, 32, 18, 2, _q4_0),
    "q4_k": Format(Quant.Q4_K, 256, 144, 15, _q4_k),
    "q8_0": Format(Quant.Q8_0, 32, 34, 7, _q8_0),
}


class Blocks:
    """A matrix that is drawn while it is written; as much of an array as `GGUFWriter` looks at."""

    dtype = np.dtype(np.uint8)

    def __init__(self, made: Format, rows: int, columns: int, seed: int) -> None:
        self._made, self._seed = made, seed
        self._deviation = 1 / np.sqrt(columns)
        self._blocks = rows * (columns // made.weights)
        self.shape = (rows, columns // made.weights * made.size)
        self.nbytes = self._blocks * made.size

    def tofile(self, out: IO[bytes]) -> None:
        """Write it, piece by piece."""
        rng = np.random.default_rng(self._seed)
        for first in range(0, self._blocks, _PIECE):
            out.write(self._made.draw(rng, min(_PIECE, self._blocks - first), self._deviation).tobytes())


# ------------------------------------------------------------------------------------------------------------ files


def file_name(shape: Shape, quant: str, vocabulary: int) -> str:
    """What the file is called."""
    return f"random-{shape.name}-{quant}-{vocabulary}.gguf"


def file_size(shape: Shape, quant: str, vocabulary: int) -> int:
    """Bytes of its matrices."""
    made = FORMATS[quant]
    return shape.parameters(vocabulary) // made.weights * made.size


def write(path: Path, shape: Shape, quant: str, vocabulary: int, seed: int = 1) -> Path:
    """Write a file; it appears complete or not at all.

    Args:
        path: The file.
        shape: Of the model.
        quant: A key of `FORMATS`; of all matrices.
        vocabulary: Tokens.
        seed: Of the weights.

    Raises:
        UsageError: The shape does not go into such blocks, or the disk has no room.
    """
    made = FORMATS[quant]
    if any(columns % made.weights for _, _, columns in shape.matrices(vocabulary)):
        raise UsageError(
            f"The shape {shape.name} cannot be written in {quant}.",
            why=f"Its widths are no multiples of {made.weights}, the weights of a block.",
            hint="scripts/bench_shapes --quant q4_0",
        )
    if vocabulary < _LEAST_VOCABULARY:
        raise UsageError(f"A vocabulary of {vocabulary} is too small.", why=f"At least {_LEAST_VOCABULARY}.")
    path.parent.mkdir(parents=True, exist_ok=True)
    needed, free = file_size(shape, quant, vocabulary), shutil.disk_usage(path.parent).free
    if needed > free:
        raise UsageError(
            f"{path.name} takes {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free in {path.parent}.",
            hint="scripts/bench_shapes --folder FOLDER_ON_ANOTHER_DISK",
        )
    partial = path.with_name(f"{path.name}.partial")
    options = {
        "n_vocab": vocabulary,
        "n_ctx": _CONTEXT,
        "name": f"random {shape.name}",
        "file_type": made.file_type,
    }
    file, _ = start(partial, "llama", seed, 1.0, options)
    write_sizes(
        file,
        n_layer=shape.layers,
        n_embd=shape.width,
        n_ff=shape.ffn,
        heads=(shape.heads, shape.kv_heads),
        head=shape.head,
    )
    writer: Any = file.writer
    for number, (name, rows, columns) in enumerate(shape.matrices(vocabulary)):
        writer.add_tensor(name, Blocks(made, rows, columns, seed * 100_003 + number), raw_dtype=made.kind)
    for name in (
        "output_norm",
        *(f"blk.{n}.{norm}" for n in range(shape.layers) for norm in ("attn_norm", "ffn_norm")),
    ):
        writer.add_tensor(f"{name}.weight", np.ones(shape.width, np.float32))
    try:
        file.close()
        return partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
