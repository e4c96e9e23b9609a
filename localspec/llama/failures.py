"""What a context cannot be made of, and what llama.cpp's refusals mean."""

from __future__ import annotations

from localspec.errors import DecodeError, LoadError, UsageError
from localspec.llama.log import NativeLog
from localspec.llama.model import Model
from localspec.options import UNQUANTISED
from localspec.worker.protocol import FlashAttention

_FLASH = {"auto": -1, "off": 0, "on": 1}  # llama_flash_attn_type


def flash_attention(kv_type: str, wanted: FlashAttention) -> int:
    """The `llama_flash_attn_type` for a cache.

    Raises:
        UsageError: The cache needs flash attention, and it is not wanted.
    """
    quantised = kv_type not in UNQUANTISED
    if quantised and wanted == "off":
        raise UsageError(
            f"A {kv_type} cache needs flash attention, and it is switched off.",
            why="llama.cpp computes with a quantised V cache in flash attention only.",
            hint="localspec run --kv f16",
        )
    return _FLASH["on" if quantised else wanted]


def context_error(model: Model, n_ctx: int, kv_type: str, log: NativeLog | None) -> LoadError:
    """Why a context could not be made, and what to try."""
    line = log.last_error if log is not None else ""
    if kv_type not in UNQUANTISED and ("block size" in line or "lash" in line or "quantized" in line):
        return LoadError(
            f"{model.path.name} cannot have a {kv_type} cache.",
            why=f"A quantised cache needs flash attention and fitting head sizes; llama.cpp said: {line}.",
            hint="localspec run --kv f16",
        )
    return LoadError(
        f"No context of {n_ctx} tokens could be made for {model.path.name}.",
        why=f"llama.cpp said: {line or 'nothing; memory is the usual reason'}.",
        hint=f"localspec run --ctx {max(n_ctx // 2, 256)}",
    )


def decode_error(status: int, count: int, start: int, n_ctx: int, log: NativeLog | None) -> DecodeError:
    """Why tokens could not be evaluated."""
    line = log.last_error if log is not None else ""
    meaning = {1: "no free cells were left in the cache", -1: "the batch was refused"}
    return DecodeError(
        f"llama.cpp could not evaluate {count} tokens at position {start} of {n_ctx} (status {status}).",
        why=f"It said: {line}." if line else f"Meaning: {meaning.get(status, 'computing failed')}.",
    )
