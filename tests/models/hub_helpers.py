"""What the tests of the downloads share."""

from __future__ import annotations

import hashlib
from pathlib import Path

import gguf
import numpy as np

from localspec.models import hub, hubcache
from localspec.models.catalog import load_catalog
from localspec.models.progress import Progress
from localspec.models.ref import ModelRef

REPO = "owner/Model-GGUF"
FILE = "Model-Q4_K_M.gguf"


def ref(name: str = f"{REPO}:Q4_K_M") -> ModelRef:
    return load_catalog().resolve(name)


def fetch(name: str = f"{REPO}:Q4_K_M") -> tuple[Path, list[Progress]]:
    events: list[Progress] = []
    return hub.fetch(ref(name), events.append), events


def partial_of(data: bytes, repo: str = REPO) -> Path:
    return hubcache.partial(repo, hashlib.sha256(data).hexdigest())


def leave_partial(data: bytes, size: int) -> Path:
    file = partial_of(data)
    file.parent.mkdir(parents=True)
    file.write_bytes(data[:size])
    return file


def split_model(folder: Path, count: int) -> list[bytes]:
    """A GGUF model in parts, as llama.cpp splits it."""
    found = []
    for number in range(count):
        metadata = {"split.no": number, "split.count": count, "split.tensors.count": count}
        file = split_part(
            folder / f"part{number}.gguf", f"blk.{number}.ffn_up.weight", metadata, first=number == 0
        )
        found.append(file.read_bytes())
    return found


def split_part(path: Path, tensor: str, metadata: dict[str, int], *, first: bool) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in metadata.items():
        writer.add_int32(key, value) if key.endswith("tensors.count") else writer.add_uint16(key, value)
    if first:
        writer.add_name("Split")
        writer.add_block_count(3)
        writer.add_context_length(64)
        writer.add_embedding_length(64)
        writer.add_head_count(4)
        writer.add_feed_forward_length(64)
        writer.add_tokenizer_model("llama")
        writer.add_token_list([f"t{n}" for n in range(64)])
    writer.add_tensor(tensor, np.ones((64, 64), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
