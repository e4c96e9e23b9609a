"""Tiny GGUF models for the tests, written on the spot: real files that llama.cpp loads, each under 3 MB.

Three kinds:

- `random_*`: seeded random weights of one architecture. Logits are well spread and every layer looks at the
  history, so a wrong cache cell changes the text. `perturbed` makes a draft that agrees now and then.
- `script_model`: the text is fully scripted, "after token a comes token b". It does not look at the history.
- `header_only`: metadata and, if wanted, tensors of our choice, for everything that reads headers only.

All take the options of `gguf_writer.Options` as keywords (vocabulary, names, chat template). The ids: 0 is
`<unk>`, 1 `<s>`, 2 `</s>`, 3-258 the 256 bytes, from 259 the named tokens, then `[PADn]` up to the size.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Quant

from tests.gguf_writer import (
    BOS,
    EOS,
    FIRST_BYTE,
    FIRST_NAMED,
    TEMPLATE,
    UNK,
    WORDS,
    File,
    Options,
    Weights,
    sizes,
    start,
)

__all__ = [
    "BOS",
    "EOS",
    "FIRST_BYTE",
    "FIRST_NAMED",
    "TEMPLATE",
    "UNK",
    "WORDS",
    "Options",
    "chain",
    "header_only",
    "perturbed",
    "random_gemma3",
    "random_glm4moe",
    "random_lfm2",
    "random_llama",
    "random_mamba",
    "random_qwen3next",
    "random_qwen35",
    "script_model",
    "script_qwen35",
]


def random_llama(
    path: Path, *, seed: int = 0, n_layer: int = 2, n_embd: int = 64, scale: float = 1.0, **options: Any
) -> Path:
    """A `llama` with random weights, 4 heads on 2 key-value heads."""
    file, weights = start(path, "llama", seed, scale, options)
    head, n_ff = n_embd // 4, 2 * n_embd
    sizes(file, n_layer=n_layer, n_embd=n_embd, n_ff=n_ff, heads=(4, 2), head=head)
    weights.ends(n_embd)
    for i in range(n_layer):
        block = f"blk.{i}"
        weights.vector(f"{block}.attn_norm.weight", n_embd)
        weights.attention(block, n_embd, (4, 2), head)
        weights.vector(f"{block}.ffn_norm.weight", n_embd)
        weights.feed_forward(block, n_embd, n_ff)
    return file.close()


def random_gemma3(
    path: Path,
    *,
    seed: int = 0,
    n_layer: int = 6,
    n_embd: int = 64,
    sliding_window: int = 32,
    scale: float = 1.0,
    **options: Any,
) -> Path:
    """A `gemma3`: five of six layers see `sliding_window` tokens only."""
    file, weights = start(path, "gemma3", seed, scale, options)
    head, n_ff = n_embd // 4, 2 * n_embd
    sizes(file, n_layer=n_layer, n_embd=n_embd, n_ff=n_ff, heads=(4, 2), head=head)
    file.key(".attention.sliding_window", sliding_window)
    weights.ends(n_embd)
    for i in range(n_layer):
        block = f"blk.{i}"
        for norm in ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"):
            weights.vector(f"{block}.{norm}.weight", n_embd)
        weights.attention(block, n_embd, (4, 2), head)
        weights.vector(f"{block}.attn_q_norm.weight", head)
        weights.vector(f"{block}.attn_k_norm.weight", head)
        weights.feed_forward(block, n_embd, n_ff)
    return file.close()


def _delta_net_keys(file: File, state: int, key_heads: int, value_heads: int) -> None:
    file.key(".ssm.conv_kernel", 4)
    file.key(".ssm.state_size", state)
    file.key(".ssm.group_count", key_heads)
    file.key(".ssm.time_step_rank", value_heads)
    file.key(".ssm.inner_size", state * value_heads)


def _delta_net(weights: Weights, block: str, n_embd: int, state: int, heads: tuple[int, int]) -> None:
    """The gated delta-net layer that `qwen35` and `qwen3next` share (without its beta and alpha)."""
    key, value = state * heads[0], state * heads[1]
    weights.matrix(f"{block}.attn_qkv.weight", 2 * key + value, n_embd, 2.0)
    weights.matrix(f"{block}.attn_gate.weight", value, n_embd, 2.0)
    weights.matrix(f"{block}.ssm_conv1d.weight", 2 * key + value, 4)
    weights.vector(f"{block}.ssm_dt.bias", heads[1], -1.0, 1.0)
    weights.vector(f"{block}.ssm_a", heads[1], -0.5, -0.05)
    weights.vector(f"{block}.ssm_norm.weight", state)
    weights.matrix(f"{block}.ssm_out.weight", n_embd, value, 2.0)


def random_qwen35(
    path: Path,
    *,
    seed: int = 0,
    n_layer: int = 4,
    n_embd: int = 64,
    full_attention_interval: int = 4,
    n_nextn: int = 0,
    sidecar: bool = False,
    scale: float = 1.0,
    **options: Any,
) -> Path:
    """A `qwen35` hybrid: gated delta-net layers, every fourth layer full attention.

    `n_nextn` adds next-token-prediction blocks after the trunk (the block count includes them). `sidecar` leaves the
    trunk out: the blocks of the file with the same seed, in a file of their own.
    """
    file, weights = start(path, "qwen35", seed, scale, options)
    if sidecar:
        file.leave_out = tuple(f"blk.{i}." for i in range(n_layer))
    head, n_ff, state, heads = n_embd // 4, 2 * n_embd, 16, (2, 4)
    sizes(file, n_layer=n_layer + n_nextn, n_embd=n_embd, n_ff=n_ff, heads=(4, 2), head=head)
    file.key(".rope.dimension_sections", [head // 4, head // 8, head // 8, 0])
    file.key(".full_attention_interval", full_attention_interval)
    if n_nextn:
        file.key(".nextn_predict_layers", n_nextn)
    _delta_net_keys(file, state, *heads)
    weights.ends(n_embd)
    for i in range(n_layer + n_nextn):
        block = f"blk.{i}"
        weights.vector(f"{block}.attn_norm.weight", n_embd)
        weights.vector(f"{block}.post_attention_norm.weight", n_embd)
        if i >= n_layer or (i + 1) % full_attention_interval == 0:
            weights.attention(block, n_embd, (4, 2), head, q_gain=2)
            weights.vector(f"{block}.attn_q_norm.weight", head)
            weights.vector(f"{block}.attn_k_norm.weight", head)
        else:
            _delta_net(weights, block, n_embd, state, heads)
            weights.matrix(f"{block}.ssm_beta.weight", heads[1], n_embd)
            weights.matrix(f"{block}.ssm_alpha.weight", heads[1], n_embd)
        weights.feed_forward(block, n_embd, n_ff)
        if i >= n_layer:
            _next_token_block(weights, block, n_embd)
    return file.close()


def random_mamba(
    path: Path, *, seed: int = 0, n_layer: int = 2, n_embd: int = 64, scale: float = 1.0, **options: Any
) -> Path:
    """A `mamba`: recurrent throughout, and llama.cpp cannot roll its state back."""
    file, weights = start(path, "mamba", seed, scale, options)
    inner, state, rank = 2 * n_embd, 8, 4
    sizes(file, n_layer=n_layer, n_embd=n_embd, n_ff=0, heads=(0, 0), head=0)
    for name, value in (
        ("conv_kernel", 4),
        ("inner_size", inner),
        ("state_size", state),
        ("time_step_rank", rank),
    ):
        file.key(f".ssm.{name}", value)
    weights.ends(n_embd)
    for i in range(n_layer):
        block = f"blk.{i}"
        weights.vector(f"{block}.attn_norm.weight", n_embd)
        weights.matrix(f"{block}.ssm_in.weight", 2 * inner, n_embd, 2.0)
        weights.matrix(f"{block}.ssm_conv1d.weight", inner, 4)
        weights.vector(f"{block}.ssm_conv1d.bias", inner, -0.1, 0.1)
        weights.matrix(f"{block}.ssm_x.weight", rank + 2 * state, inner, 2.0)
        weights.matrix(f"{block}.ssm_dt.weight", inner, rank)
        weights.vector(f"{block}.ssm_dt.bias", inner, -1.0, 1.0)
        file.tensor(f"{block}.ssm_a", -weights.rng.uniform(0.05, 0.5, (inner, state)))
        weights.vector(f"{block}.ssm_d", inner)
        weights.matrix(f"{block}.ssm_out.weight", n_embd, inner, 2.0)
    return file.close()


def random_lfm2(
    path: Path, *, seed: int = 0, n_layer: int = 4, n_embd: int = 64, scale: float = 1.0, **options: Any
) -> Path:
    """An `lfm2` hybrid: short convolutions, every second layer full attention; can be rolled back."""
    file, weights = start(path, "lfm2", seed, scale, options)
    n_ff = 2 * n_embd
    heads_kv = [2 * (i % 2) for i in range(n_layer)]
    sizes(file, n_layer=n_layer, n_embd=n_embd, n_ff=n_ff, heads=(4, heads_kv), head=0)
    file.key(".shortconv.l_cache", 3)
    weights.ends(n_embd, norm="token_embd_norm")
    for i in range(n_layer):
        block = f"blk.{i}"
        weights.vector(f"{block}.attn_norm.weight", n_embd)
        weights.vector(f"{block}.ffn_norm.weight", n_embd)
        if heads_kv[i]:
            weights.attention(block, n_embd, (4, 2), n_embd // 4)
            weights.vector(f"{block}.attn_q_norm.weight", n_embd // 4)
            weights.vector(f"{block}.attn_k_norm.weight", n_embd // 4)
        else:
            weights.matrix(f"{block}.shortconv.conv.weight", n_embd, 3)
            weights.matrix(f"{block}.shortconv.in_proj.weight", 3 * n_embd, n_embd, 2.0)
            weights.matrix(f"{block}.shortconv.out_proj.weight", n_embd, n_embd, 2.0)
        weights.feed_forward(block, n_embd, n_ff)
    return file.close()


def random_qwen3next(
    path: Path, *, seed: int = 0, n_layer: int = 4, n_embd: int = 64, scale: float = 1.0, **options: Any
) -> Path:
    """A `qwen3next`: like `qwen35`, with experts, and without rollback in llama.cpp."""
    file, weights = start(path, "qwen3next", seed, scale, options)
    head, n_ff, state, heads, experts = n_embd // 4, n_embd // 2, 16, (2, 4), 4
    sizes(file, n_layer=n_layer, n_embd=n_embd, n_ff=n_ff, heads=(4, 2), head=head)
    file.key(".full_attention_interval", 4)
    file.key(".expert_count", experts)
    file.key(".expert_used_count", 2)
    file.key(".expert_feed_forward_length", n_ff)
    file.key(".expert_shared_feed_forward_length", n_ff)
    _delta_net_keys(file, state, *heads)
    weights.ends(n_embd)
    for i in range(n_layer):
        block = f"blk.{i}"
        weights.vector(f"{block}.attn_norm.weight", n_embd)
        weights.vector(f"{block}.post_attention_norm.weight", n_embd)
        if (i + 1) % 4 == 0:
            weights.attention(block, n_embd, (4, 2), head, q_gain=2)
            weights.vector(f"{block}.attn_q_norm.weight", head)
            weights.vector(f"{block}.attn_k_norm.weight", head)
        else:
            _delta_net(weights, block, n_embd, state, heads)
            weights.matrix(f"{block}.ssm_ba.weight", 2 * heads[1], n_embd)
        weights.vector(f"{block}.ffn_gate_inp_shexp.weight", n_embd, -0.2, 0.2)
        _experts(weights, block, n_embd, n_ff, experts)
    return file.close()


def _experts(weights: Weights, block: str, n_embd: int, n_ff: int, experts: int) -> None:
    """A router, its experts, and one expert that is always asked."""
    weights.matrix(f"{block}.ffn_gate_inp.weight", experts, n_embd)
    for part, rows, columns in (("gate", n_ff, n_embd), ("up", n_ff, n_embd), ("down", n_embd, n_ff)):
        stack = weights.rng.normal(0, weights.scale / np.sqrt(columns), (experts, rows, columns))
        weights.file.tensor(f"{block}.ffn_{part}_exps.weight", stack)
        weights.matrix(f"{block}.ffn_{part}_shexp.weight", rows, columns)


def random_glm4moe(
    path: Path,
    *,
    seed: int = 0,
    n_layer: int = 2,
    n_embd: int = 64,
    n_nextn: int = 0,
    scale: float = 1.0,
    **options: Any,
) -> Path:
    """A `glm4moe`: attention only, a dense layer and then experts; `n_nextn` as in `random_qwen35`."""
    file, weights = start(path, "glm4moe", seed, scale, options)
    head, n_ff, experts = n_embd // 4, n_embd // 2, 4
    sizes(file, n_layer=n_layer + n_nextn, n_embd=n_embd, n_ff=n_ff, heads=(4, 2), head=head)
    file.key(".expert_count", experts)
    file.key(".expert_used_count", 2)
    file.key(".expert_shared_count", 1)
    file.key(".expert_feed_forward_length", n_ff)
    file.key(".leading_dense_block_count", 1)
    if n_nextn:
        file.key(".nextn_predict_layers", n_nextn)
    weights.ends(n_embd)
    for i in range(n_layer + n_nextn):
        block = f"blk.{i}"
        weights.vector(f"{block}.attn_norm.weight", n_embd)
        weights.vector(f"{block}.post_attention_norm.weight", n_embd)
        weights.attention(block, n_embd, (4, 2), head)
        if i:
            _experts(weights, block, n_embd, n_ff, experts)
            weights.vector(f"{block}.exp_probs_b.bias", experts, -0.1, 0.1)
        else:
            weights.feed_forward(block, n_embd, n_ff)
        if i >= n_layer:
            _next_token_block(weights, block, n_embd)
    return file.close()


def _next_token_block(weights: Weights, block: str, n_embd: int) -> None:
    """What a next-token block has beyond an ordinary one."""
    weights.matrix(f"{block}.nextn.eh_proj.weight", n_embd, 2 * n_embd)
    for norm in ("enorm", "hnorm", "shared_head_norm"):
        weights.vector(f"{block}.nextn.{norm}.weight", n_embd)


def script_model(
    path: Path,
    table: Mapping[int, int],
    *,
    default: int = EOS,
    n_layer: int = 1,
    quant: str = "f32",
    **options: Any,
) -> Path:
    """A `llama` whose text is scripted: after token a comes `table[a]`, else `default`.

    The embedding is one-hot, attention output and FFN down are zero, so the residual says only which token
    was last; the output matrix is the table. All of it survives `quant="q4_0"` exactly. The right token has a
    logit of about 18, all others 0.
    """
    file = File(Path(path), "llama", Options(**options))
    n_vocab = file.options.n_vocab
    n_embd = -(-n_vocab // 32) * 32
    head = 32
    sizes(file, n_layer=n_layer, n_embd=n_embd, n_ff=32, heads=(1, 1), head=head)
    if quant == "q4_0":
        file.options.file_type = 2
    file.tensor("token_embd.weight", np.eye(n_vocab, n_embd), quant)
    output = np.zeros((n_vocab, n_embd))
    for token in range(n_vocab):
        output[table.get(token, default), token] = 1
    file.tensor("output_norm.weight", np.ones(n_embd))
    file.tensor("output.weight", output, quant)
    shapes = {
        **dict.fromkeys(("attn_q", "attn_k", "attn_v", "ffn_gate", "ffn_up"), (head, n_embd)),
        **dict.fromkeys(("attn_output", "ffn_down"), (n_embd, head)),
    }
    for i in range(n_layer):
        for name in ("attn_norm", "ffn_norm"):
            file.tensor(f"blk.{i}.{name}.weight", np.ones(n_embd))
        for name, shape in shapes.items():
            file.tensor(f"blk.{i}.{name}.weight", np.zeros(shape), quant)
    return file.close()


def script_qwen35(
    path: Path, table: Mapping[int, int], *, block: str, default: int = EOS, **options: Any
) -> Path:
    """A `qwen35` whose text is scripted as in `script_model`, with a next-token block that predicts it perfectly.

    The trunk passes the one-hot embedding of the last token through. What the block looks at tells which input a wrong
    wiring loses: with `block="token"` it passes on the token's embedding only; with `block="hidden"` only the hidden
    state (which is that of the token before), each token's moved to its successor's.
    """
    file_options = Options(**options)
    n_vocab = file_options.n_vocab
    n_embd = -(-n_vocab // 32) * 32
    random_qwen35(path, n_nextn=1, n_embd=n_embd, **options)
    follows = np.zeros((n_vocab, n_embd))
    for token in range(n_vocab):
        follows[table.get(token, default), token] = 1
    halves = np.zeros((2, n_embd, n_embd))  # what is made of the token's embedding, and of the hidden state
    if block == "token":
        halves[0] = np.eye(n_embd)
    else:
        halves[1, :n_vocab] = follows
    for tensor in gguf.GGUFReader(path, "r+").tensors:
        name, data = tensor.name, tensor.data
        if name == "token_embd.weight":
            data[:] = np.eye(n_vocab, n_embd)
        elif name == "output.weight":
            data[:] = follows
        elif name.endswith("nextn.eh_proj.weight"):
            data[:] = np.concatenate(halves, axis=1)
        elif name.endswith(("attn_output.weight", "ssm_out.weight", "ffn_down.weight")):
            data[:] = 0
        elif data.ndim == 1 and "norm" in name:
            data[:] = 1
        data.flush()
    return Path(path)


def chain(*tokens: int) -> dict[int, int]:
    """A table for `script_model` that runs through these tokens, each of which may appear once."""
    if len(set(tokens[:-1])) != len(tokens) - 1:
        raise ValueError("a scripted token has one successor only")
    return dict(itertools.pairwise(tokens))


def perturbed(path_in: Path, path_out: Path, *, noise: float = 0.1, seed: int = 1) -> Path:
    """A copy whose f32 matrices get Gaussian noise of `noise` times their own deviation.

    A draft for the model it came from: the smaller the noise, the more often both choose the same token.
    """
    shutil.copyfile(path_in, path_out)
    rng = np.random.default_rng(seed)
    for tensor in gguf.GGUFReader(path_out, "r+").tensors:
        data = tensor.data
        if tensor.tensor_type == Quant.F32 and data.ndim == 2:
            data += rng.normal(0, noise * float(data.std()), data.shape).astype(np.float32)
            data.flush()
    return Path(path_out)


def header_only(
    path: Path, *, arch: str = "llama", tensors: Mapping[str, tuple[int, ...]] | None = None, **options: Any
) -> Path:
    """Metadata with all-zero tensors of the given numpy shapes (none: a vocabulary-only file)."""
    file = File(Path(path), arch, Options(**options))
    for name, shape in (tensors or {}).items():
        file.tensor(name, np.zeros(shape))
    return file.close()
