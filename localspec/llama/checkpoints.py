"""Copies of a memory's state, for going back where it cannot be cut.

A recurrent state holds everything that was read in one lump: a few tokens can be taken back by its snapshots, more
only by reading from the beginning, or by putting back a copy that was made on the way. The attention layers of the same
model keep a cell for each token and are cut as usual, so the copy holds the state only: 150 MB for a 27B target.
Source: `llama_state_seq_get_data_ext` with `LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY` in `llama.h`.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import llama_cpp
import numpy as np
import numpy.typing as npt

_MOST = 4  # later prompts leave a conversation behind one of its last questions
_SEQUENCE = 0
_PARTIAL = llama_cpp.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY


@dataclass(frozen=True, slots=True)
class _Copy:
    length: int
    """Tokens that had been read."""
    data: npt.NDArray[np.uint8]


class Checkpoints:
    """The copies of one context's state, of the newest places only.

    They are good for as long as the cache begins with the tokens that it held then: whoever cuts or empties it calls
    `forget_beyond`.

    Args:
        handle: The context's native pointer.
        budget: Bytes of memory that all copies may take; 0 = none are made.
    """

    def __init__(self, handle: Any, budget: int) -> None:
        self._handle = handle
        self._budget = budget
        self._copies: list[_Copy] = []  # by length

    @property
    def places(self) -> tuple[int, ...]:
        """How many tokens were read at each copy, ascending."""
        return tuple(copy.length for copy in self._copies)

    @property
    def size_bytes(self) -> int:
        """What the copies take."""
        return sum(copy.data.nbytes for copy in self._copies)

    @property
    def capacity(self) -> int:
        """How many copies can be held, as far as their size is known."""
        size = self._copies[-1].data.nbytes if self._copies else 1
        return min(_MOST, self._budget // size)

    def take(self, length: int) -> None:
        """Copy the state as it is, after `length` tokens. Where there is no memory for it, there is no copy."""
        if length < 1 or any(copy.length == length for copy in self._copies):
            return
        size = int(llama_cpp.llama_state_seq_get_size_ext(self._handle, _SEQUENCE, _PARTIAL))
        if not 0 < size <= self._budget:
            return
        while self._copies and (len(self._copies) >= _MOST or self.size_bytes + size > self._budget):
            del self._copies[0]
        try:
            data = np.empty(size, np.uint8)
        except MemoryError:
            return
        written = llama_cpp.llama_state_seq_get_data_ext(
            self._handle, _address(data), size, _SEQUENCE, _PARTIAL
        )
        if written == size:
            self._copies.append(_Copy(length, data))
            self._copies.sort(key=lambda copy: copy.length)

    def put_back(self, length: int) -> int:
        """Put the newest state of at most `length` tokens back.

        Returns:
            How many tokens it had read; 0 when there is none, or when llama.cpp did not take it. The state is then
            not to be used.
        """
        copy = next((copy for copy in reversed(self._copies) if copy.length <= length), None)
        if copy is None:
            return 0
        size = copy.data.nbytes
        read = llama_cpp.llama_state_seq_set_data_ext(
            self._handle, _address(copy.data), size, _SEQUENCE, _PARTIAL
        )
        return copy.length if read == size else 0

    def forget_beyond(self, length: int) -> None:
        """Drop the copies of more than `length` tokens."""
        self._copies = [copy for copy in self._copies if copy.length <= length]


def _address(data: npt.NDArray[np.uint8]) -> Any:
    return data.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
