"""What one model takes: weights, cache and compute buffers, layer by layer, from the file's header alone.

Weights and caches are exact. The compute buffer is an estimate (see `activations`). Facts about llama.cpp's
allocation are from the sources that llama-cpp-python 0.3.36 carries: `llama-model.cpp` (which layer lands
where), `llama-kv-cache*.cpp`, `llama-memory-recurrent.cpp`, `llama-hparams.cpp` (sizes of recurrent states).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING

from localspec.errors import UsageError
from localspec.models.gguf_facts import PARALLEL

if TYPE_CHECKING:
    from localspec.models.gguf import Header, TensorInfo

# Cache types: elements in a block, bytes of a block.
KV_BLOCKS: dict[str, tuple[int, int]] = {
    "f32": (1, 4),
    "f16": (1, 2),
    "bf16": (1, 2),
    "q8_0": (32, 34),
    "q5_1": (32, 24),
    "q5_0": (32, 22),
    "q4_1": (32, 20),
    "q4_0": (32, 18),
    "iq4_nl": (32, 18),
}

_BLOCK = re.compile(r"blk\.(\d+)\.(.+)")
_INPUT = ("token_embd.", "per_layer_token_embd.", "position_embd.", "token_types.", "token_embd_norm.")
_RECURRENT = ("ssm_", "shortconv.", "time_mix_")
_INDEXER = ("indexer.attn_k.weight", "indexer.k_proj.weight")

STATE_COPIES = 4
"""Places of a conversation whose recurrent state is copied to RAM at most, to go back to them."""


def copies_budget(free: int) -> int:
    """Bytes that all copies of one model's states may take, of what is free in RAM."""
    return min(512 << 20, free // 8)


@dataclass(frozen=True, slots=True)
class Layer:
    """One block of the file."""

    weights: int
    """Bytes."""
    k_row: int
    """Elements that one token puts into the K cache; 0 = no cache."""
    v_row: int
    state: int
    """Floats of the recurrent state; 0 = no recurrent layer."""


@dataclass(frozen=True, slots=True)
class Shape:
    """How a model will be run."""

    n_ctx: int
    """Cells of the cache; 0 = as trained."""
    n_ubatch: int = 512
    """Tokens that are computed at once."""
    kv_type: str = "f16"
    n_rs_seq: int = 0
    """Snapshots of a recurrent state."""
    n_outputs: int = 32
    """Rows of logits that one batch can give."""
    next_token_blocks: bool = False
    """The file's next-token blocks are loaded too, with a cache of their own."""
    block_kv_type: str = ""
    """Type of that cache; empty = `kv_type`."""
    n_sequences: int = 1
    """Lines of tokens at once: they share the cells of the cache, and each has a recurrent state of its own."""


class ModelSizes:
    """The sizes of one model.

    Args:
        header: The file's header.
        shape: How it will be run.

    Raises:
        UsageError: Unknown cache type.
    """

    def __init__(self, header: Header, shape: Shape) -> None:
        for kv_type in (shape.kv_type, shape.block_kv_type or shape.kv_type):
            if kv_type not in KV_BLOCKS:
                raise UsageError(
                    f"There is no cache type {kv_type!r}.",
                    why=f"Known: {', '.join(KV_BLOCKS)}.",
                    hint="localspec run --kv f16",
                )
        self.header = header
        self.shape = shape
        wanted = shape.n_ctx or header.n_ctx_train
        if header.n_ctx_train:
            wanted = min(wanted, header.n_ctx_train)
        self.n_ctx = -(-wanted // 256) * 256
        self.snapshots = shape.n_rs_seq if header.supports_rollback else 0

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        """The blocks in order. Next-token blocks are in the file; unless they are run, they are not loaded."""
        blocks: dict[int, dict[str, TensorInfo]] = {}
        for tensor in self.header.tensors:
            match = _BLOCK.match(tensor.name)
            if match:
                blocks.setdefault(int(match[1]), {})[match[2]] = tensor
        count = max(blocks, default=-1) + 1
        trunk = count - self.header.n_nextn
        shared = self._key("attention.shared_kv_layers")
        return tuple(
            self._layer(i, blocks.get(i, {}), has_cache=i < trunk - shared)
            if i < trunk
            else self._layer(i, blocks.get(i, {}), has_cache=True)
            if self.shape.next_token_blocks
            else Layer(0, 0, 0, 0)
            for i in range(count)
        )

    @cached_property
    def input_weights(self) -> int:
        """Bytes of what is looked up by token id: always in RAM."""
        return sum(tensor.n_bytes for tensor in self.header.tensors if tensor.name.startswith(_INPUT))

    @cached_property
    def output_weights(self) -> int:
        """Bytes of what follows the last block, without a tied output matrix."""
        return sum(
            tensor.n_bytes
            for tensor in self.header.tensors
            if not _BLOCK.match(tensor.name) and not tensor.name.startswith(_INPUT)
        )

    @cached_property
    def tied_copy(self) -> int:
        """Bytes of the second copy of the token embedding that a tied model needs on the GPU."""
        if not self.header.tied_output:
            return 0
        return sum(t.n_bytes for t in self.header.tensors if t.name == "token_embd.weight")

    @property
    def all_layers(self) -> int:
        """The number of layers that means "everything": the blocks and the output."""
        return len(self.layers) + 1

    def on_gpu(self, gpu_layers: int) -> range:
        """Indices of the blocks that land on the GPU: the output counts first, then the last blocks."""
        return range(max(self.all_layers - gpu_layers, 0), len(self.layers))

    def weights(self, gpu_layers: int) -> tuple[int, int]:
        """Bytes of weights (on the GPU, in RAM)."""
        gpu = sum(self.layers[i].weights for i in self.on_gpu(gpu_layers))
        ram = sum(layer.weights for layer in self.layers) - gpu + self.input_weights
        if gpu_layers > 0:
            return gpu + self.output_weights + self.tied_copy, ram
        return 0, ram + self.output_weights

    def cache(self, gpu_layers: int) -> tuple[int, int]:
        """Bytes of cache and recurrent state (on the GPU, in RAM). Each layer's lies where the layer is."""
        inside = set(self.on_gpu(gpu_layers))
        trunk = len(self.layers) - self.header.n_nextn
        block_kv_type = self.shape.block_kv_type or self.shape.kv_type
        sizes = [
            self._cells(layer, self.n_ctx, self.shape.kv_type if i < trunk else block_kv_type)
            + self._state(layer)
            for i, layer in enumerate(self.layers)
        ]
        gpu = sum(size for i, size in enumerate(sizes) if i in inside)
        return gpu, sum(sizes) - gpu

    @property
    def kv_bytes(self) -> int:
        """All K and V cells, at full size in sliding-window layers too."""
        return sum(self._cells(layer, self.n_ctx) for layer in self.layers)

    @property
    def state_bytes(self) -> int:
        """All recurrent states, with their snapshots."""
        return sum(self._state(layer) for layer in self.layers)

    def copies(self, free: int) -> int:
        """Bytes of RAM that copies of recurrent states may come to take, `free` bytes being free now."""
        return min(STATE_COPIES * 4 * sum(layer.state for layer in self.layers), copies_budget(free))

    @property
    def windowed_kv_bytes(self) -> int:
        """K and V cells if sliding-window layers kept their window only (and could take no tokens back)."""
        window, sliding = self.header.sliding_window, self.header.sliding_layers
        cached = [layer for layer in self.layers if layer.k_row]
        if not window or not sliding or not cached:
            return self.kv_bytes
        small = min(self.n_ctx, -(-(min(self.n_ctx, window + self.shape.n_ubatch)) // 256) * 256)
        # The header counts the sliding layers and does not name them; within a model their rows are alike.
        share = min(1.0, sliding / len(cached))
        saved = self.kv_bytes - sum(self._cells(layer, small) for layer in cached)
        return self.kv_bytes - round(saved * share)

    @property
    def activations(self) -> int:
        """An estimate of the compute buffer on the device that runs the layers, in bytes.

        Per token of a batch: four rows of the embedding and three of the widest inner layer, six of a
        recurrent one's or four of what attention compresses, in float32; beside it the attention mask in float16
        (two with a sliding window), and the snapshots of one layer's state. Found by comparing with what llama.cpp
        0.3.36 reports on the CPU with flash attention: equal within 1 % for SmolLM2-135M, up to 60 % too much for
        tiny models. The logits of one batch must fit too.
        """
        header, n = self.header, self.shape.n_ubatch
        width = self._key("feed_forward_length")
        experts = (self._key("expert_feed_forward_length") or width) * header.n_expert_used
        experts += self._key("expert_shared_feed_forward_length")
        convolved = self._key("ssm.inner_size")
        convolved += 2 * self._key("ssm.group_count") * self._key("ssm.state_size")
        if not any(layer.state for layer in self.layers):  # next-token blocks alone
            convolved = 0
        latent = max(_largest(header.n_head) * header.head_dim_k, self._key("attention.kv_lora_rank"))
        compressed = 4 * latent if self._key("attention.kv_lora_rank") else 0
        inner = max(3 * max(width, experts), 6 * convolved, compressed)
        scores = self._key("attention.indexer.head_count") * self.n_ctx
        state = max((self._state(layer) for layer in self.layers), default=0) if self.snapshots else 0
        rows = 4 * n * (4 * header.n_embd + 2 * header.n_expert + inner + scores) + state
        return max(rows, self.logits) + self.masks

    @property
    def masks(self) -> int:
        """Bytes of the attention masks of one batch."""
        if not any(layer.k_row for layer in self.layers):
            return 0
        return 2 * self.shape.n_ubatch * self.n_ctx * (2 if self.header.sliding_layers else 1)

    @property
    def logits(self) -> int:
        """Bytes of the rows of logits that one batch can give."""
        return 4 * self.shape.n_outputs * self.header.n_vocab

    def compute(self, gpu_layers: int, n_devices: int = 1) -> tuple[int, int]:
        """Bytes of compute buffers (on the GPUs, in RAM). The next-token blocks beside a trunk have theirs too."""
        contexts = 2 if self.shape.next_token_blocks and self.header.kind == "model" else 1
        if gpu_layers <= 0:
            return 0, contexts * (self.activations + self.logits)
        whole = gpu_layers >= self.all_layers
        ram = 4 * self.shape.n_ubatch * self.header.n_embd + self.masks if whole else self.activations
        return contexts * self.activations * n_devices, contexts * (ram + self.logits)

    # ------------------------------------------------------------- one layer

    def _key(self, name: str) -> int:
        value = self.header.metadata.get(f"{self.header.architecture}.{name}", 0)
        return (
            int(_largest(value))
            if isinstance(value, int | float | Sequence) and not isinstance(value, str)
            else 0
        )

    def _layer(self, index: int, tensors: dict[str, TensorInfo], *, has_cache: bool) -> Layer:
        weights = sum(tensor.n_bytes for tensor in tensors.values())
        recurrent = any(name.startswith(_RECURRENT) for name in tensors)
        # Linear attention has key projections too, and keeps no keys.
        only_state = recurrent and self.header.architecture not in PARALLEL
        k_row, v_row = self._rows(index, tensors) if has_cache and not only_state else (0, 0)
        return Layer(weights, k_row, v_row, self._state_floats() if recurrent else 0)

    def _rows(self, index: int, tensors: dict[str, TensorInfo]) -> tuple[int, int]:
        """Elements of K and V that one token adds; what an index over the keys keeps counts as K."""
        k_row, v_row = self._attention_rows(index, tensors)
        return k_row + sum(tensors[name].shape[1] for name in _INDEXER if name in tensors), v_row

    def _attention_rows(self, index: int, tensors: dict[str, TensorInfo]) -> tuple[int, int]:
        header = self.header
        heads = _at(header.n_head_kv, index)
        if "attn_kv_a_mqa.weight" in tensors:  # latent attention: one compressed row in place of K and V
            if "attn_k_b.weight" in tensors:
                return self._key("attention.kv_lora_rank") + self._key("rope.dimension_count"), 0
            return _at(header.n_head, index) * header.head_dim_k, _at(
                header.n_head, index
            ) * header.head_dim_v
        if "attn_k.weight" in tensors and header.n_embd:
            k_row = prod(tensors["attn_k.weight"].shape) // header.n_embd
            v_tensor = tensors.get("attn_v.weight")
            return k_row, prod(v_tensor.shape) // header.n_embd if v_tensor else k_row
        if "attn_qkv.weight" in tensors:
            return heads * header.head_dim_k, heads * header.head_dim_v
        return 0, 0

    def _state_floats(self) -> int:
        """Floats of one recurrent state: the convolution's part and the state proper."""
        header = self.header
        head_size = self._key("wkv.head_size")
        if head_size:
            shifts = self._key("token_shift_count") or 2
            return header.n_embd * (shifts + head_size)
        short = self._key("shortconv.l_cache")
        if short:
            return header.n_embd * (short - 1)
        kernel, inner = self._key("ssm.conv_kernel"), self._key("ssm.inner_size")
        groups, state = self._key("ssm.group_count"), self._key("ssm.state_size")
        delta = self._key("kda.head_dim")
        if delta:
            heads = _largest(header.n_head)
            return delta * heads * (3 * max(kernel - 1, 0) + delta)
        return max(kernel - 1, 0) * (inner + 2 * groups * state) + state * inner

    def _cells(self, layer: Layer, n_ctx: int, kv_type: str = "") -> int:
        block, size = KV_BLOCKS[kv_type or self.shape.kv_type]
        return n_ctx * size * (-(-layer.k_row // block) + -(-layer.v_row // block))

    def _state(self, layer: Layer) -> int:
        return 4 * layer.state * self.shape.n_sequences * (1 + self.snapshots)


def _at(value: int | Sequence[int], index: int) -> int:
    """Entry of a per-layer tuple, or the one value for all layers."""
    if isinstance(value, int):
        return value
    return int(value[index]) if index < len(value) else int(value[-1]) if value else 0


def _largest(value: int | float | Sequence[int]) -> int:
    return int(value) if isinstance(value, int | float) else max((int(v) for v in value), default=0)
