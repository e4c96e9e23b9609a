"""A model's own next-token-prediction block (MTP), run as a context of its own.

Experimental: llama.cpp offers what is needed here through `llama_cpp.llama_cpp_ext` only, which is no stable part of
llama-cpp-python. Nothing else in localspec may use that module.

The block takes a token together with the target's hidden state of the position before it, and predicts the token
after it. It hands out a hidden state of its own, with which it can go on without the target.
Source: `common/speculative.cpp` (draft-mtp) and `src/models/qwen35.cpp` of llama.cpp.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from localspec.errors import DecodeError, LoadError
from localspec.llama.context import Context, Outputs
from localspec.llama.log import NativeLog
from localspec.llama.model import Model
from localspec.models.gguf_facts import NEXT_TOKEN_ARCHITECTURES

Hidden = npt.NDArray[np.float32]

_FUNCTIONS = ("llama_set_embeddings_nextn", "llama_get_embeddings_nextn", "llama_get_embeddings_nextn_ith")


def unusable(model: Model, target: Model | None = None) -> str:
    """Why the blocks of `model` cannot be run, empty when they can. llama.cpp would abort instead of failing.

    Args:
        model: Where the blocks are: the target itself, or a sidecar file (`mtp-*.gguf`) loaded as a model.
        target: The target, when it is another file.
    """
    name = model.path.name
    if model.n_nextn == 0:
        return f"{name} carries no next-token block, or it was not loaded"
    architecture = model.metadata("general.architecture") or ""
    if architecture not in NEXT_TOKEN_ARCHITECTURES:
        return f"the next-token blocks of {architecture or 'this architecture'} are not supported"
    if model.n_nextn > 1:
        return f"{name} has {model.n_nextn} next-token blocks, and llama.cpp runs one for {architecture}"
    if target is not None and target is not model:
        theirs = target.metadata("general.architecture") or ""
        if theirs != architecture:
            return (
                f"{name} is a block for {architecture}, the target is {theirs or 'of no known architecture'}"
            )
        if target.n_embd != model.n_embd:
            return f"{name} takes hidden states of {model.n_embd} numbers, the target has {target.n_embd}"
    return ""


class NextTokenBlock:
    """The block's context, bound to a target's context, whose hidden states it reads.

    Args:
        model: Loaded with `next_token_blocks=True`: the target's own model, or that of a sidecar file.
        target: The target's context. It hands out hidden states from now on, until `close`.
        target_model: The target's model.
        max_outputs: Rows of logits that one evaluation can give.
        kv_type: See `Context`.
        threads: See `Context`.
        offload: See `Context`.
        log: Where the reason of a failure is found.

    Raises:
        LoadError: The block cannot be used, or llama.cpp could not make the context.
    """

    def __init__(
        self,
        model: Model,
        target: Context,
        target_model: Model,
        *,
        max_outputs: int = 1,
        kv_type: str = "f16",
        threads: int = 1,
        offload: bool = True,
        log: NativeLog | None = None,
    ) -> None:
        reason = unusable(model, target_model)
        if reason:
            raise LoadError(f"The next-token block cannot be used: {reason}.")
        self._ext = _extension()
        self._target = target
        self.n_embd = model.n_embd
        self._context = Context(
            model,
            n_ctx=target.n_ctx,
            n_batch=target.n_batch,
            n_ubatch=target.n_ubatch,
            max_outputs=max_outputs,
            kv_type=kv_type,
            threads=threads,
            offload=offload,
            block_of=target,
            log=log,
        )
        self.n_ctx = self._context.n_ctx
        self.n_batch = self._context.n_batch
        self.n_vocab = self._context.n_vocab
        self.max_outputs = self._context.max_outputs
        self._count = 0  # tokens in the last batch
        try:
            # Not masked: a row for each token of a batch, not only for those with logits.
            self._ext.llama_set_embeddings_nextn(self._context.handle, True, False)
            self._ext.llama_set_embeddings_nextn(target.handle, True, False)
            self.decode([max(model.vocab.bos, 0)], np.zeros((1, self.n_embd), np.float32), "last")  # warm-up
            self.clear()
        except BaseException:
            self.close()  # nobody else has it yet
            raise

    @property
    def length(self) -> int:
        """Pairs in the block's cache."""
        return self._context.length

    def watch(self, callback: Callable[[int, Sequence[int]], None]) -> None:
        """Have `callback(start, tokens)` called after each evaluation of the target.

        `target_hidden` is good until the next one.
        """
        self._target.on_decoded = callback

    def target_hidden(self, count: int) -> Hidden:
        """The target's hidden states of its last evaluation, shape (count, n_embd); a view.

        Raises:
            DecodeError: There are none.
        """
        return self._rows(self._ext.llama_get_embeddings_nextn(self._target.handle), count)

    def decode(self, tokens: Sequence[int], hidden: Hidden, outputs: Outputs) -> None:
        """Evaluate pairs behind what is in the block's cache; see `Context.decode`.

        Args:
            tokens: 1 to `n_batch` ids.
            hidden: For each, the hidden state of the position before it, shape (tokens, n_embd).
            outputs: Which of them get logits: those of the token behind.
        """
        self._context.decode(tokens, outputs, hidden)
        self._count = len(tokens)

    def logits(self) -> Hidden:
        """See `Context.logits`."""
        return self._context.logits()

    def hidden(self) -> Hidden:
        """The block's own hidden state of the last token evaluated, shape (1, n_embd); a view.

        Raises:
            DecodeError: There is none.
        """
        last = self._ext.llama_get_embeddings_nextn_ith(self._context.handle, self._count - 1)
        return self._rows(last, 1)

    def truncate(self, length: int) -> None:
        """Keep the first `length` pairs."""
        if not self._context.truncate(length):
            self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self._context.clear()

    def close(self) -> None:
        """Give the memory back; the target hands out no more hidden states. Before the target is closed."""
        if self._context.handle is None:
            return
        if self._target.handle is not None:
            self._target.on_decoded = None
            self._ext.llama_set_embeddings_nextn(self._target.handle, False, False)
        self._context.close()

    def _rows(self, pointer: Any, count: int) -> Hidden:
        if not pointer:
            raise DecodeError("llama.cpp gave no hidden states.", why="The next-token block needs them.")
        return np.ctypeslib.as_array(pointer, shape=(count, self.n_embd))


def _extension() -> Any:
    try:
        module = importlib.import_module("llama_cpp.llama_cpp_ext")
        for name in _FUNCTIONS:
            getattr(module, name)
    except (ImportError, AttributeError) as error:  # names that the library does not export fail at import
        raise LoadError(
            "This llama-cpp-python cannot run next-token blocks.",
            why=f"{error}.",
            hint="pip install -U llama-cpp-python",
        ) from error
    return module
