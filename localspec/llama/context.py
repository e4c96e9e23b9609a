"""A model's cache and the evaluation of tokens into it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import llama_cpp
import numpy as np
import numpy.typing as npt

from localspec.errors import AbortedError, DecodeError, UsageError
from localspec.llama.backend import KV_TYPES
from localspec.llama.checkpoints import Checkpoints
from localspec.llama.failures import context_error, decode_error, flash_attention
from localspec.llama.log import NativeLog
from localspec.llama.model import Model
from localspec.worker.protocol import FlashAttention

Outputs = Literal["none", "last", "all"]

_ABORTED = 2


class Context:
    """One conversation's cache in one model: a list of evaluated tokens that can be extended and cut.

    Only `max_outputs` rows of logits exist, whatever the batch or the context: a row of a 248,320-token vocabulary is
    1 MB, and llama.cpp would reserve a whole batch of them.

    Args:
        model: The loaded weights.
        n_ctx: Cells of the cache.
        n_batch: Tokens per evaluation.
        n_ubatch: Tokens computed at once, at most `n_batch`; llama.cpp cuts an evaluation into such pieces. 0 = all.
        max_outputs: Rows of logits that one evaluation can give.
        snapshots: States that a recurrent or hybrid model keeps for taking tokens back (`n_rs_seq`).
        checkpoint_bytes: Memory (of the host) for copies of such a state, see `rewind`.
        branches: Room for a second line of tokens (see `fork`).
        kv_type: A key of `KV_TYPES`.
        flash_attn: A quantised cache needs it, so it is on there unless it is forbidden.
        threads: For single tokens and small batches, and for prompts.
        offload: Let GPUs compute what lies in RAM too. Without, a model that is on the CPU stays there with everything.
        block_of: The target's context, when this one is to run the next-token blocks of `model` instead of its trunk
            (see `localspec.llama.mtp`). Its batches carry a hidden state beside each token.
        log: Where the reason of a failure is found.

    Raises:
        UsageError: Unknown `kv_type`, or a quantised one without flash attention.
        LoadError: llama.cpp could not make the context.
    """

    def __init__(
        self,
        model: Model,
        *,
        n_ctx: int,
        n_batch: int = 512,
        n_ubatch: int = 0,
        max_outputs: int = 1,
        snapshots: int = 0,
        checkpoint_bytes: int = 512 << 20,
        branches: bool = False,
        kv_type: str = "f16",
        flash_attn: FlashAttention = "auto",
        threads: int = 1,
        offload: bool = True,
        block_of: Context | None = None,
        log: NativeLog | None = None,
    ) -> None:
        if kv_type not in KV_TYPES:
            raise UsageError(f"There is no cache type {kv_type!r}.", why=f"Known: {', '.join(KV_TYPES)}.")
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = n_ctx
        n_batch = min(n_batch, n_ctx)  # as llama.cpp cuts it, which what follows must know
        params.n_batch, params.n_ubatch = n_batch, min(n_ubatch or n_batch, n_batch)
        params.n_seq_max = 2 if branches else 1
        params.kv_unified = True  # branches share the cells that they have in common
        self.has_state = model.has_state and block_of is None  # the blocks have attention only
        # llama.cpp keeps snapshots + 1 tokens of a batch together and aborts when they fill it.
        params.n_rs_seq = max(min(snapshots, params.n_ubatch - 2), 0) if self.has_state else 0
        if block_of is not None:
            params.ctx_type = llama_cpp.LLAMA_CONTEXT_TYPE_MTP
            params.ctx_other = block_of.handle
        params.n_outputs_max = max(max_outputs, params.n_seq_max)
        params.n_threads = params.n_threads_batch = threads
        params.offload_kqv = params.op_offload = offload
        params.type_k = params.type_v = KV_TYPES[kv_type]
        params.flash_attn_type = flash_attention(kv_type, flash_attn)
        params.swa_full = True  # a small window cache cannot take rejected tokens back
        params.no_perf = True
        if log is not None:
            log.forget_errors()
        self._handle = llama_cpp.llama_init_from_model(model.handle, params)
        if not self._handle:
            raise context_error(model, n_ctx, kv_type, log)
        self._log = log
        self._model = model
        self._memory = llama_cpp.llama_get_memory(self._handle)
        self.n_vocab = model.vocab.n_tokens
        self.n_ctx_train = model.n_ctx_train
        self.n_ctx = min(n_ctx, int(llama_cpp.llama_n_ctx(self._handle)))  # llama.cpp rounds up to 256
        self.n_batch = int(llama_cpp.llama_n_batch(self._handle))
        self.n_ubatch = int(llama_cpp.llama_n_ubatch(self._handle))
        self.max_outputs = max_outputs
        self.snapshots = int(llama_cpp.llama_n_rs_seq(self._handle))
        self._length = [0, 0]
        self._undo = 0  # how many of the last tokens a state can take back
        self.checkpoints = Checkpoints(self._handle, checkpoint_bytes)
        n_hidden = 0 if block_of is None else model.n_embd
        self._batches = [_Batch(self.n_batch, sequence, n_hidden) for sequence in range(params.n_seq_max)]
        self._branch = 0
        self._rows: dict[int, npt.NDArray[np.float32]] = {}
        self._n_outputs = 0
        self.chunk = 64
        """Tokens of a prompt that are evaluated at once. It stays as it is while the context lives: other chunks round
        otherwise, and the same seed would not always give the same text."""
        self.evaluated = 0
        """Tokens evaluated since the context was made."""
        self.on_decoded: Callable[[int, Sequence[int]], None] | None = None
        """Called after each evaluation with the position of its first token and its tokens; must not raise."""

    def stop_when(self, wanted: Callable[[], bool] | None) -> None:
        """Let an evaluation on the CPU be stopped half-way; `decode` then raises `AbortedError`.

        The question is asked before every operation of the graph, which is felt where a step takes a few
        milliseconds: for models whose steps are long. Devices other than the CPU do not ask.

        Args:
            wanted: Whether to stop now; None = do not ask.
        """
        callback = llama_cpp.ggml_abort_callback
        # Kept alive: the C side calls it.
        self._abort = callback() if wanted is None else callback(lambda _data: wanted())
        llama_cpp.llama_set_abort_callback(self._handle, self._abort, None)

    @property
    def handle(self) -> Any:
        """The native pointer; None when the context was closed."""
        return self._handle

    @property
    def length(self) -> int:
        """Tokens in the cache."""
        return self._length[self._branch]

    @property
    def room(self) -> int:
        """Free cells."""
        return self.n_ctx - self.length

    def decode(
        self, tokens: Sequence[int], outputs: Outputs, hidden: npt.NDArray[np.float32] | None = None
    ) -> None:
        """Evaluate tokens behind what is in the cache.

        Args:
            tokens: 1 to `n_batch` ids.
            outputs: Which of them get a row of logits.
            hidden: What goes in beside each token, shape (tokens, n_embd); for a context with `block_of` only.

        Raises:
            AbortedError: See `stop_when`.
            DecodeError: llama.cpp failed. The cache then holds what it held before, or less when even that is not
                certain (`length` tells).
        """
        count = len(tokens)
        wanted = {"none": 0, "last": 1, "all": count}[outputs]
        if not 0 < count <= self.n_batch or wanted > self.max_outputs:
            raise UsageError(f"A batch of {count} tokens with {wanted} outputs does not fit this context.")
        start = self.length
        batch = self._batches[self._branch]
        batch.fill(tokens, start, wanted, hidden)
        if self._log is not None:
            self._log.forget_errors()
        status = llama_cpp.llama_decode(self._handle, batch.native)
        if status != 0:
            self._restore(start)
            if status == _ABORTED:
                raise AbortedError("The evaluation was stopped.")
            raise decode_error(status, count, start, self.n_ctx, self._log)
        self._length[self._branch] = start + count
        self._n_outputs = wanted
        self.evaluated += count
        # Snapshots are written for the tokens of this batch only; older ones are stale though llama.cpp offers them.
        self._undo = min(self.snapshots, count - 1)
        if self.on_decoded is not None:
            self.on_decoded(start, tokens)

    def logits(self) -> npt.NDArray[np.float32]:
        """Rows of the last `decode`, shape (outputs, n_vocab); a view that the next `decode` overwrites.

        Raises:
            DecodeError: There are none.
        """
        pointer = llama_cpp.llama_get_logits(self._handle)
        if not pointer or not self._n_outputs:
            raise DecodeError("llama.cpp gave no logits.", why="The last evaluation asked for none.")
        address = ctypes.addressof(pointer.contents)
        rows = self._rows.get(address)
        if rows is None or len(rows) < self._n_outputs:
            rows = np.ctypeslib.as_array(pointer, shape=(self._n_outputs, self.n_vocab))
            self._rows = {address: rows}
        return rows[: self._n_outputs]

    def extend(
        self,
        tokens: Sequence[int],
        cancelled: Callable[[], bool] = lambda: False,
        anchors: Sequence[int] = (),
    ) -> Iterator[int]:
        """Evaluate many tokens in chunks of `chunk` tokens, so that a stop is heard between them.

        The last token gets its row of logits.

        Args:
            tokens: Any number of ids.
            cancelled: Asked before each chunk; what is evaluated by then stays.
            anchors: Lengths of the cache to which a later `rewind` may want to go. A memory with a state is copied
                there, at the last few of them. It starts a new chunk at each, whether a copy is made or was put back:
                so the same conversation is always evaluated in the same chunks.

        Yields:
            The number of tokens done, after each chunk.

        Raises:
            DecodeError: llama.cpp failed.
        """
        start, done = self.length, 0
        ends = sorted(a - start for a in set(anchors) if 0 <= a - start <= len(tokens) and self.has_state)
        copied = ends[max(len(ends) - self.checkpoints.capacity, 0) :]
        while True:
            if done in copied:
                self.checkpoints.take(start + done)
            if done == len(tokens) or cancelled():
                return
            end = min([done + min(self.chunk, self.n_batch), *(e for e in ends if e > done), len(tokens)])
            self.decode(tokens[done:end], "last" if end == len(tokens) else "none")
            llama_cpp.llama_synchronize(self._handle)
            done = end
            yield done

    def truncate(self, length: int) -> bool:
        """Keep the first `length` tokens.

        Returns:
            False when the memory cannot take the others back; nothing has changed then. A recurrent state goes back
            only within the last evaluated batch, at most `snapshots` tokens, and once.
        """
        back = self.length - length
        if back <= 0:
            return True
        if length > 0 and self.has_state and back > self._undo:
            return False
        if not llama_cpp.llama_memory_seq_rm(self._memory, self._branch, length, -1):
            return False
        self._length[self._branch] = length
        self._undo = 0
        self.checkpoints.forget_beyond(length)
        return True

    def rewind(self, length: int) -> int:
        """Keep the first `length` tokens, or the most below that to which the memory can go back. Not in a fork.

        Returns:
            The tokens in the cache now: `length`, those of a checkpoint (see `extend`), or none.
        """
        if not self.truncate(length):
            self._return_to_checkpoint(length)
        return self.length

    def clear(self) -> None:
        """Forget everything."""
        llama_cpp.llama_memory_clear(self._memory, True)
        self._length = [0, 0]
        self._undo = 0
        self._branch = 0
        self.checkpoints.forget_beyond(0)

    def fork(self) -> None:
        """Go on in a copy of the cache; `join` drops it. The first line keeps its state, whatever the copy does."""
        llama_cpp.llama_memory_seq_cp(self._memory, 0, 1, -1, -1)
        self._length[1] = self._length[0]
        self._branch = 1

    def join(self) -> None:
        """Drop the copy and go on where `fork` was called."""
        if self._branch:
            llama_cpp.llama_memory_seq_rm(self._memory, 1, -1, -1)
            self._branch = 0
            self._undo = 0

    def close(self) -> None:
        """Give the memory back. Closing twice is fine."""
        if self._handle is not None:
            self._rows = {}
            self.checkpoints.forget_beyond(0)
            for batch in self._batches:
                batch.free()
            llama_cpp.llama_free(self._handle)
            self._handle = None

    def _restore(self, length: int) -> None:
        # After a failure llama.cpp may have kept a part of the batch.
        self._n_outputs = 0
        self._undo = 0
        if self._branch == 0 and self.has_state:
            self._return_to_checkpoint(length)
        elif self.has_state or not llama_cpp.llama_memory_seq_rm(self._memory, self._branch, length, -1):
            self.clear()

    def _return_to_checkpoint(self, length: int) -> None:
        kept = self.checkpoints.put_back(length)
        if kept and llama_cpp.llama_memory_seq_rm(self._memory, 0, kept, -1):
            self._length[0] = kept
            self._undo = 0
            self.checkpoints.forget_beyond(kept)
        else:
            self.clear()


class _Batch:
    """llama.cpp's batch of one sequence.

    Args:
        size: The most tokens it can hold.
        sequence: The sequence of all of them.
        n_hidden: Width of the hidden state beside each token, 0 for none.
    """

    def __init__(self, size: int, sequence: int, n_hidden: int = 0) -> None:
        self.native = llama_cpp.llama_batch_init(size, n_hidden, 1)
        self._hidden: npt.NDArray[np.float32] | None = None
        if n_hidden:  # llama.cpp allocates either ids or embeddings; the ids of such a batch are our own
            self._hidden = np.ctypeslib.as_array(self.native.embd, shape=(size, n_hidden))
            self.native.token = (llama_cpp.llama_token * size)()
        self._tokens, self._positions = self.native.token, self.native.pos
        self._outputs = self.native.logits
        for index in range(size):
            self.native.n_seq_id[index] = 1
            self.native.seq_id[index][0] = sequence

    def fill(
        self, tokens: Sequence[int], start: int, outputs: int, hidden: npt.NDArray[np.float32] | None
    ) -> None:
        """Set ids and positions; the last `outputs` tokens get logits."""
        count = len(tokens)
        if self._hidden is not None:
            self._hidden[:count] = hidden
        self.native.n_tokens = count
        # Most batches are of a few tokens, where plain assignments are quicker than arrays.
        for index, token in enumerate(tokens):
            self._tokens[index] = token
            self._positions[index] = start + index
            self._outputs[index] = index >= count - outputs

    def free(self) -> None:
        """Give the memory back."""
        if self._hidden is not None:
            self.native.token = None
        llama_cpp.llama_batch_free(self.native)
