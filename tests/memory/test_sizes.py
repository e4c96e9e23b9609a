"""Our sizes against those that llama.cpp logs when it loads the same file."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from localspec.errors import UsageError
from localspec.memory.sizes import KV_BLOCKS, ModelSizes, Shape
from localspec.models.gguf import TensorInfo, read_header
from tests import gguf_files

MIB = 1 << 20
# The log rounds to 0.01 MiB.
STEP = 0.0051

CASES: dict[str, tuple[Callable[..., Path], dict[str, Any], dict[str, Any]]] = {
    "llama": (gguf_files.random_llama, {}, {}),
    "llama padded context": (gguf_files.random_llama, {}, {"n_ctx": 700}),
    "llama q8_0 cache": (gguf_files.random_llama, {"n_embd": 128, "n_layer": 5}, {"kv_type": "q8_0"}),
    "llama q4_0 cache": (gguf_files.random_llama, {"n_embd": 128, "n_layer": 5}, {"kv_type": "q4_0"}),
    "llama small batch": (gguf_files.random_llama, {}, {"n_ubatch": 64}),
    "large vocabulary": (gguf_files.random_llama, {"n_vocab": 20000}, {"n_outputs": 64}),
    "gemma3 full": (gguf_files.random_gemma3, {}, {}),
    "gemma3 windowed": (gguf_files.random_gemma3, {"sliding_window": 32}, {"full_window": False}),
    "qwen35": (gguf_files.random_qwen35, {}, {}),
    "qwen35 snapshots": (gguf_files.random_qwen35, {"n_embd": 128}, {"snapshots": 9}),
    "qwen35 next-token block": (gguf_files.random_qwen35, {"n_nextn": 1}, {"snapshots": 9}),
    "qwen3next cannot roll back": (gguf_files.random_qwen3next, {}, {"snapshots": 9}),
    "qwen35 two sequences": (gguf_files.random_qwen35, {"n_embd": 128}, {"n_sequences": 2}),
    "qwen35 block beside the trunk": (
        gguf_files.random_qwen35,
        {"n_nextn": 1},
        {"snapshots": 9, "block": "inside"},
    ),
    "qwen35 sidecar": (
        gguf_files.random_qwen35,
        {"n_nextn": 1, "sidecar": True},
        {"block": gguf_files.random_qwen35},
    ),
    "experts": (gguf_files.random_glm4moe, {"n_embd": 128}, {}),
    "experts and a block": (gguf_files.random_glm4moe, {"n_nextn": 1}, {"block": "inside"}),
    "lfm2 snapshots": (gguf_files.random_lfm2, {}, {"snapshots": 40}),
    "mamba": (gguf_files.random_mamba, {"n_embd": 128}, {}),
}


@pytest.fixture(scope="module")
def measured(
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, tuple[ModelSizes, dict[str, float], bool]]:
    """Of each case our sizes and those of the log. One process for all: starting it takes the time."""
    folder = tmp_path_factory.mktemp("sizes")
    asked, ours = [], []
    for i, (write, options, run) in enumerate(CASES.values()):
        path = write(folder / f"{i}.gguf", n_ctx=2048, **options)
        case = {
            "n_ctx": 1024,
            "n_ubatch": 256,
            "kv_type": "f16",
            "snapshots": 0,
            "n_outputs": 16,
            "n_sequences": 1,
        }
        case |= run
        full_window, block = case.pop("full_window", True), case.pop("block", "")
        if callable(block):
            block = str(block(folder / f"{i}-target.gguf", n_ctx=2048))
        asked.append({"path": str(path), "full_window": full_window, "block": block, **case})
        case |= {"n_rs_seq": case.pop("snapshots"), "next_token_blocks": bool(block)}
        ours.append((ModelSizes(read_header(path), Shape(**case)), full_window))
    command = [sys.executable, "-m", "tests.memory.native_sizes", json.dumps(asked)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    native = json.loads(done.stdout)
    return {name: (sizes, log, full) for name, (sizes, full), log in zip(CASES, ours, native, strict=True)}


@pytest.mark.parametrize("name", CASES)
def test_cache_is_what_the_log_says(name: str, measured: dict[str, Any]) -> None:
    sizes, log, full_window = measured[name]
    kv = sizes.kv_bytes if full_window else sizes.windowed_kv_bytes
    assert kv / MIB == pytest.approx(log["kv"], abs=2 * STEP)  # two caches with a sliding window
    assert sizes.state_bytes / MIB == pytest.approx(log["state"], abs=STEP)
    assert sum(sizes.cache(0)) == sizes.kv_bytes + sizes.state_bytes


@pytest.mark.parametrize("name", CASES)
def test_weights_are_what_the_log_says(name: str, measured: dict[str, Any]) -> None:
    sizes, log, _ = measured[name]
    gpu, ram = sizes.weights(0)
    assert gpu == 0
    # llama.cpp maps the file from its first tensor to its last and so counts what lies between.
    assert ram / MIB == pytest.approx(log["weights"], rel=0.05, abs=2 * STEP)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case[2].get("full_window", True)])
def test_buffers_are_estimated_from_above(name: str, measured: dict[str, Any]) -> None:
    sizes, log, _ = measured[name]
    ours = sizes.compute(0)[1] / MIB
    contexts = 2 if sizes.shape.next_token_blocks and sizes.header.kind == "model" else 1
    assert log["compute"] <= ours + STEP
    assert ours - contexts * sizes.logits / MIB <= 1.6 * log["compute"]


def test_the_window_is_cheaper_than_the_full_size(tmp_path: Path) -> None:
    path = gguf_files.random_gemma3(tmp_path / "g.gguf", n_ctx=8192, sliding_window=32)
    sizes = ModelSizes(read_header(path), Shape(n_ctx=8192, n_ubatch=64))
    # 5 of 6 layers keep 256 cells (32 + 64, padded) in place of 8192.
    row = sizes.kv_bytes // 6 // 8192
    assert sizes.windowed_kv_bytes == pytest.approx(row * (8192 + 5 * 256), rel=0.001)


def test_layers_go_to_the_gpu_output_first_then_from_the_end(tmp_path: Path) -> None:
    path = gguf_files.random_llama(tmp_path / "m.gguf", n_layer=4)
    header = read_header(path)
    sizes = ModelSizes(header, Shape(n_ctx=512))
    by_name = {tensor.name: tensor.n_bytes for tensor in header.tensors}
    block = sum(size for name, size in by_name.items() if name.startswith("blk.3."))
    output = by_name["output.weight"] + by_name["output_norm.weight"]
    assert sizes.all_layers == 5
    assert sizes.weights(0) == (0, sum(by_name.values()))
    assert sizes.weights(1) == (output, 4 * block + by_name["token_embd.weight"])
    assert sizes.weights(3) == (output + 2 * block, 2 * block + by_name["token_embd.weight"])
    assert sizes.weights(99) == (output + 4 * block, by_name["token_embd.weight"])
    assert sizes.cache(3)[0] == sizes.cache(3)[1] == sizes.kv_bytes // 2
    assert sizes.cache(99) == (sizes.kv_bytes, 0)


def test_a_tied_embedding_is_copied_to_the_gpu(tmp_path: Path) -> None:
    header = read_header(gguf_files.random_gemma3(tmp_path / "g.gguf"))
    sizes = ModelSizes(header, Shape(n_ctx=512))
    embedding = next(t.n_bytes for t in header.tensors if t.name == "token_embd.weight")
    if header.tied_output:
        assert sizes.tied_copy == embedding
        assert sum(sizes.weights(99)) == sum(sizes.weights(0)) + embedding
    else:
        assert sizes.tied_copy == 0


def test_linear_attention_keeps_no_keys_though_it_projects_some(tmp_path: Path) -> None:
    """As kimi-linear does; a layer that has both (falcon-h1) keeps both."""
    qwen = read_header(gguf_files.random_qwen35(tmp_path / "q.gguf"))
    keys = tuple(
        TensorInfo(f"blk.{i}.attn_{part}.weight", (qwen.n_embd, 32), "F32", 0, 0)
        for i in range(3)
        for part in "kv"
    )
    linear = replace(qwen, tensors=qwen.tensors + keys)
    alone = ModelSizes(qwen, Shape(n_ctx=512)).kv_bytes
    assert ModelSizes(linear, Shape(n_ctx=512)).kv_bytes == alone
    both = ModelSizes(replace(linear, architecture="falcon-h1"), Shape(n_ctx=512))
    assert both.kv_bytes == alone + 3 * 512 * 2 * (32 + 32)


def test_an_index_over_the_keys_is_kept_beside_them(tmp_path: Path) -> None:
    plain = read_header(gguf_files.random_llama(tmp_path / "m.gguf"))
    index = TensorInfo("blk.1.indexer.attn_k.weight", (plain.n_embd, 128), "F32", 0, 0)
    with_index = ModelSizes(replace(plain, tensors=(*plain.tensors, index)), Shape(n_ctx=512))
    assert with_index.kv_bytes == ModelSizes(plain, Shape(n_ctx=512)).kv_bytes + 512 * 2 * 128


def test_the_context_is_never_more_than_trained(tmp_path: Path) -> None:
    header = read_header(gguf_files.random_llama(tmp_path / "m.gguf", n_ctx=1024))
    assert ModelSizes(header, Shape(n_ctx=0)).n_ctx == 1024
    assert ModelSizes(header, Shape(n_ctx=9000)).n_ctx == 1024
    assert ModelSizes(header, Shape(n_ctx=300)).n_ctx == 512


def test_unknown_cache_type(tmp_path: Path) -> None:
    header = read_header(gguf_files.random_llama(tmp_path / "m.gguf"))
    with pytest.raises(UsageError, match="q3_k"):
        ModelSizes(header, Shape(n_ctx=512, kv_type="q3_k"))


def test_cache_types_are_those_of_the_engine() -> None:
    script = "from localspec.llama.backend import KV_TYPES; print(*sorted(KV_TYPES))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == sorted(KV_BLOCKS)
