"""The llama.cpp build in use: versions, devices, cache types."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any, Literal

import llama_cpp
from llama_cpp import _ggml
from llama_cpp.llama_speculative import LlamaDraftModel

from localspec.errors import LoadError

__all__ = [
    "KV_TYPES",
    "LlamaDraftModel",
    "NativeDevice",
    "devices",
    "gpu_backends",
    "gpus",
    "handles",
    "start",
    "supports_gpu_offload",
    "versions",
]

DeviceKind = Literal["cpu", "gpu", "igpu", "accel"]

# What a cache can be made of, by llama.cpp's own names.
KV_TYPES: dict[str, int] = {
    "f32": llama_cpp.GGML_TYPE_F32,
    "f16": llama_cpp.GGML_TYPE_F16,
    "bf16": 30,
    "q8_0": llama_cpp.GGML_TYPE_Q8_0,
    "q5_1": llama_cpp.GGML_TYPE_Q5_1,
    "q5_0": llama_cpp.GGML_TYPE_Q5_0,
    "q4_1": llama_cpp.GGML_TYPE_Q4_1,
    "q4_0": llama_cpp.GGML_TYPE_Q4_0,
    "iq4_nl": llama_cpp.GGML_TYPE_IQ4_NL,
}

_NO_GPU = ("", "CPU", "BLAS", "RPC")
_KINDS: dict[int, DeviceKind] = {0: "cpu", 1: "gpu", 2: "igpu", 3: "accel"}  # ggml_backend_dev_type


@dataclass(frozen=True, slots=True)
class NativeDevice:
    """A compute device as ggml sees it; memory in bytes, 0 = not known."""

    name: str
    description: str
    kind: DeviceKind
    free: int
    total: int


@functools.cache
def start() -> None:
    """Initialise llama.cpp, once in a process."""
    llama_cpp.llama_backend_init()


def _ggml_function(name: str, restype: Any, *argtypes: Any) -> Any:
    # Which of the libraries exports a symbol differs between systems.
    for library in (_ggml.libggml, llama_cpp.llama_cpp._lib):
        function = getattr(library, name, None)
        if function is not None:
            function.restype = restype
            function.argtypes = list(argtypes)
            return function
    return None


def versions() -> dict[str, str]:
    """Versions of the binding, of llama.cpp and of ggml, as far as the build tells them."""
    found = {
        "llama-cpp-python": metadata.version("llama-cpp-python"),
        "llama.cpp": (llama_cpp.llama_version() or b"?").decode(),
    }
    for key, symbol in (("ggml", "ggml_version"), ("ggml commit", "ggml_commit")):
        function = _ggml_function(symbol, ctypes.c_char_p)
        if function is not None:
            found[key] = (function() or b"?").decode()
    return found


def supports_gpu_offload() -> bool:
    """Whether layers can be put on a GPU: this build of llama.cpp is made for one and found one."""
    start()
    return bool(llama_cpp.llama_supports_gpu_offload())


def gpu_backends() -> tuple[str, ...]:
    """What this build is made to compute with beside the CPU (`CUDA`), whether it finds such a device or not."""
    start()
    pointer = ctypes.c_void_p
    count = _ggml_function("ggml_backend_reg_count", ctypes.c_size_t)
    get = _ggml_function("ggml_backend_reg_get", pointer, ctypes.c_size_t)
    name = _ggml_function("ggml_backend_reg_name", ctypes.c_char_p, pointer)
    if None in (count, get, name):
        return ()
    names = ((name(get(index)) or b"").decode("utf-8", "replace") for index in range(count()))
    return tuple(each for each in names if each not in _NO_GPU)


def devices() -> tuple[NativeDevice, ...]:
    """All devices of this build with their free memory now."""
    start()
    pointer = ctypes.c_void_p
    name = _ggml_function("ggml_backend_dev_name", ctypes.c_char_p, pointer)
    description = _ggml_function("ggml_backend_dev_description", ctypes.c_char_p, pointer)
    kind = _ggml_function("ggml_backend_dev_type", ctypes.c_int, pointer)
    size = ctypes.POINTER(ctypes.c_size_t)
    memory = _ggml_function("ggml_backend_dev_memory", None, pointer, size, size)
    if None in (name, description, kind, memory):
        return ()
    found = []
    for device in _pointers():
        free, total = ctypes.c_size_t(0), ctypes.c_size_t(0)
        memory(device, ctypes.byref(free), ctypes.byref(total))
        found.append(
            NativeDevice(
                name=(name(device) or b"").decode("utf-8", "replace"),
                description=(description(device) or b"").decode("utf-8", "replace"),
                kind=_KINDS.get(kind(device), "accel"),
                free=free.value,
                total=total.value,
            )
        )
    return tuple(found)


def _pointers() -> list[Any]:
    count = _ggml_function("ggml_backend_dev_count", ctypes.c_size_t)
    get = _ggml_function("ggml_backend_dev_get", ctypes.c_void_p, ctypes.c_size_t)
    return [get(index) for index in range(count())] if count is not None and get is not None else []


def handles(names: Sequence[str]) -> Any:
    """A list of devices as llama.cpp takes it: pointers with a null behind them. An empty one is the CPU alone.

    Args:
        names: `NativeDevice.name` of each.

    Raises:
        LoadError: One of them is gone.
    """
    known = dict(zip((device.name for device in devices()), _pointers(), strict=False))
    for name in names:
        if name not in known:
            raise LoadError(f"The device {name} is gone.", hint="localspec doctor")
    return (ctypes.c_void_p * (len(names) + 1))(*(known[name] for name in names), None)


def gpus() -> tuple[NativeDevice, ...]:
    """The devices that layers can be put on."""
    return tuple(device for device in devices() if device.kind in ("gpu", "igpu"))
