"""A loaded GGUF file and its vocabulary."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import llama_cpp

from localspec.errors import LoadError
from localspec.llama import backend
from localspec.llama.log import NativeLog
from localspec.llama.tokens import Vocab
from localspec.worker.protocol import SplitMode

_SPLIT_MODES = {
    "none": llama_cpp.LLAMA_SPLIT_MODE_NONE,
    "layer": llama_cpp.LLAMA_SPLIT_MODE_LAYER,
    "row": llama_cpp.LLAMA_SPLIT_MODE_ROW,
}


class Model:
    """Weights in memory. Close it; using it afterwards is an error.

    Args:
        path: The GGUF file (its first part, when it is split).
        gpu_layers: Layers to put on the GPU; -1 = all.
        next_token_blocks: Load the file's next-token-prediction blocks too (see `localspec.llama.mtp`).
        split_mode: How several GPUs share the weights.
        devices: Names of the GPUs to use, see `backend.handles`; empty = the CPU alone, None = as llama.cpp chooses.
        tensor_split: Shares of the weights that each of the GPUs takes; empty = by free memory.
        log: Where the reason of a failure is found.
        progress: Called with 0..1 while loading; returning False stops.

    Raises:
        LoadError: llama.cpp refused the file, or `progress` stopped it.
    """

    def __init__(
        self,
        path: Path,
        *,
        gpu_layers: int = -1,
        next_token_blocks: bool = False,
        split_mode: SplitMode = "layer",
        devices: Sequence[str] | None = None,
        tensor_split: Sequence[float] = (),
        log: NativeLog | None = None,
        progress: Callable[[float], bool] | None = None,
    ) -> None:
        backend.start()
        self.path = path
        self._handle: Any = None
        stopped = False

        def on_progress(fraction: float, _user_data: object) -> bool:
            nonlocal stopped
            if progress is not None and not progress(fraction):
                stopped = True
            return not stopped

        params = llama_cpp.llama_model_default_params()
        params.n_gpu_layers = gpu_layers if gpu_layers >= 0 else 1_000_000
        params.load_mtp = next_token_blocks
        params.split_mode = _SPLIT_MODES[split_mode]
        # Kept with the model: llama.cpp holds on to the pointers.
        self._devices = backend.handles(devices) if devices is not None else None
        self._shares = (ctypes.c_float * llama_cpp.llama_max_devices())(*tensor_split)
        if self._devices is not None:
            params.devices = ctypes.cast(self._devices, ctypes.c_void_p)
        if tensor_split:
            params.tensor_split = self._shares
        callback = llama_cpp.llama_progress_callback(on_progress)
        params.progress_callback = callback
        if log is not None:
            log.forget_errors()
        self._handle = llama_cpp.llama_model_load_from_file(os.fsencode(path), params)
        if not self._handle:
            if stopped:
                raise LoadError(f"Loading {path.name} was stopped.")
            raise _load_error(path, gpu_layers, log)
        self.vocab = Vocab(llama_cpp.llama_model_get_vocab(self._handle))
        self.is_recurrent = bool(llama_cpp.llama_model_is_recurrent(self._handle))
        self.is_hybrid = bool(llama_cpp.llama_model_is_hybrid(self._handle))
        self.n_ctx_train = int(llama_cpp.llama_model_n_ctx_train(self._handle))
        self.n_embd = int(llama_cpp.llama_model_n_embd_out(self._handle))
        """Width of the hidden state that comes out."""
        self.n_nextn = int(llama_cpp.llama_model_n_layer_nextn(self._handle)) if next_token_blocks else 0
        """Next-token-prediction blocks that are loaded."""
        self.n_layer = int(llama_cpp.llama_model_n_layer(self._handle))
        self.n_params = int(llama_cpp.llama_model_n_params(self._handle))
        self.size_bytes = int(llama_cpp.llama_model_size(self._handle))

    @property
    def handle(self) -> Any:
        """The native pointer.

        Raises:
            LoadError: The model was closed.
        """
        if self._handle is None:
            raise LoadError(f"{self.path.name} was closed.")
        return self._handle

    @property
    def has_state(self) -> bool:
        """Recurrent layers: the memory holds a state that cannot be cut like a list of cells."""
        return self.is_recurrent or self.is_hybrid

    def metadata(self, key: str) -> str | None:
        """A value of the file's metadata, as text."""
        size = 256
        while True:
            buffer = ctypes.create_string_buffer(size)
            length = llama_cpp.llama_model_meta_val_str(self.handle, key.encode(), buffer, size)
            if length < 0:
                return None
            if length < size:
                return buffer.value.decode("utf-8", "replace")
            size = length + 1

    def close(self) -> None:
        """Give the memory back. Closing twice is fine."""
        if self._handle is not None:
            llama_cpp.llama_model_free(self._handle)
            self._handle = None


def _load_error(path: Path, gpu_layers: int, log: NativeLog | None) -> LoadError:
    line = log.last_error if log is not None else ""
    version = backend.versions()["llama-cpp-python"]
    hint = "pip install -U llama-cpp-python"
    if "split buffers" in line:  # rows are shared by few backends; CUDA's does not any more
        hint = "localspec run --split-mode layer"
    elif "out of memory" in line or "unable to allocate" in line or "failed to allocate" in line:
        hint = f"localspec run --gpu-layers {gpu_layers * 3 // 4}" if gpu_layers > 1 else "localspec models"
    return LoadError(
        f"llama.cpp could not load {path.name}.",
        why=f"llama.cpp said: {line}." if line else f"This is llama-cpp-python {version}.",
        hint=hint,
    )
