"""Which layers of a model see everything, which a window, which keep a recurrent state.

The tensors of a layer are the more reliable witness: a layer with state-space or short-convolution tensors
keeps a state, one with a key projection has attention. Metadata decide what tensors cannot tell (the window),
and everything where the tensors are named in a way that we do not know.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from localspec.models import gguf_facts as facts

_BLOCK = re.compile(r"blk\.(\d+)\.(.+)")
_STATE = ("ssm_", "shortconv.", "time_mix_")
MAX_LAYERS = 4096


@dataclass(frozen=True, slots=True)
class Layout:
    """The memory of each trunk layer, counted."""

    n_layer: int
    """Trunk layers, without next-token blocks."""
    n_nextn: int
    full: int
    """Layers whose attention sees the whole context."""
    sliding: int
    """Layers whose attention sees `window` tokens."""
    recurrent: int
    """Layers with a recurrent state. A layer can have both this and attention (falcon-h1)."""
    attention: tuple[bool, ...]
    """Per trunk layer: it has attention."""
    window: int
    """Tokens; 0 = no layer has a window."""


def integer(metadata: Mapping[str, Any], key: str, default: int = 0) -> int:
    """A whole number of the metadata (of an array the first); `default` where it is missing or not sane."""
    value = metadata.get(key, default)
    if isinstance(value, tuple):
        value = value[0] if value else default
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 40:
        return default
    return value


def per_layer(
    metadata: Mapping[str, Any], key: str, n_layer: int, default: tuple[int, ...]
) -> tuple[int, ...]:
    """A number per layer, from one number for all or from an array."""
    value = metadata.get(key)
    if isinstance(value, tuple) and all(isinstance(each, int) for each in value) and len(value) >= n_layer:
        return tuple(int(each) for each in value[:n_layer])
    if isinstance(value, int) and not isinstance(value, bool):
        return (value,) * n_layer
    return default


def read_layout(metadata: Mapping[str, Any], architecture: str, tensor_names: Iterable[str]) -> Layout:
    """Count the layers of each memory.

    Args:
        metadata: Of the (first) file.
        architecture: `general.architecture`.
        tensor_names: Of all shards.
    """
    n_all = min(integer(metadata, f"{architecture}.block_count"), MAX_LAYERS)
    blocks = _blocks(tensor_names, n_all)
    n_nextn = min(integer(metadata, f"{architecture}.nextn_predict_layers"), n_all)
    n_layer = n_all - n_nextn
    trunk = range(n_layer)
    recurrent = _recurrent(metadata, architecture, blocks, n_layer)
    parallel = architecture in facts.PARALLEL
    attention = [_has_attention(blocks.get(i), recurrent[i] and not parallel) for i in trunk]
    window, in_window = _windows(metadata, architecture, n_layer, recurrent)
    sliding = sum(attention[i] and in_window[i] for i in trunk)
    return Layout(
        n_layer=n_layer,
        n_nextn=n_nextn,
        full=sum(attention) - sliding,
        sliding=sliding,
        recurrent=sum(recurrent),
        attention=tuple(attention),
        window=window if sliding else 0,
    )


def _blocks(tensor_names: Iterable[str], n_all: int) -> dict[int, set[str]]:
    """The tensor names of each block, without `blk.N.`."""
    blocks: dict[int, set[str]] = {}
    for name in tensor_names:
        match = _BLOCK.fullmatch(name)
        if match and len(match[1]) < 6 and int(match[1]) < n_all:
            blocks.setdefault(int(match[1]), set()).add(match[2])
    return blocks


def _recurrent(
    metadata: Mapping[str, Any], architecture: str, blocks: Mapping[int, set[str]], n_layer: int
) -> list[bool]:
    """Which trunk layers keep a recurrent state."""
    by_name = [any(part.startswith(_STATE) for part in blocks.get(i, ())) for i in range(n_layer)]
    if any(by_name):
        return by_name
    if architecture in facts.RECURRENT:
        return [True] * n_layer
    if architecture not in facts.HYBRID:
        return [False] * n_layer
    flags = metadata.get(f"{architecture}.attention.recurrent_layers")
    if isinstance(flags, tuple) and len(flags) >= n_layer:
        return [bool(flag) for flag in flags[:n_layer]]
    interval = integer(
        metadata,
        f"{architecture}.full_attention_interval",
        facts.FULL_ATTENTION_INTERVAL.get(architecture, 0),
    )
    if interval:
        return [(i + 1) % interval != 0 for i in range(n_layer)]
    heads = per_layer(metadata, f"{architecture}.attention.head_count_kv", n_layer, (1,) * n_layer)
    return [count == 0 for count in heads]


def _has_attention(parts: set[str] | None, only_state: bool) -> bool:
    if only_state:  # linear attention has key projections too (kimi-linear, minimax-01), but keeps no keys
        return False
    if parts is None:  # a layer without any tensor that we know: believe the metadata
        return True
    return any(part.startswith("attn_") and "norm" not in part for part in parts)


def _windows(
    metadata: Mapping[str, Any], architecture: str, n_layer: int, recurrent: list[bool]
) -> tuple[int, list[bool]]:
    """The window's length in tokens, and which layers look through it."""
    nothing = 0, [False] * n_layer
    habit = facts.SLIDING.get(architecture)
    key = f"{architecture}.attention.sliding_window"
    window = integer(metadata, key, habit.window if habit and key not in metadata else 0)
    if window == 0 or architecture in facts.IGNORES_SLIDING_WINDOW:
        return nothing
    pattern = metadata.get(f"{key}_pattern")
    if isinstance(pattern, tuple) and len(pattern) >= n_layer:
        return window, [bool(flag) for flag in pattern[:n_layer]]
    if architecture in ("lfm2", "lfm2moe"):
        return window, [not state for state in recurrent]
    if habit is None:  # llama.cpp reads the key for architectures of the list only
        return nothing
    period = integer(metadata, f"{key}_pattern", habit.period)
    if period == 0:
        return window, [True] * n_layer
    if habit.full_first:
        return window, [i % period != 0 for i in range(n_layer)]
    return window, [i % period < period - 1 for i in range(n_layer)]
