"""Text to ids and back, on llama.cpp's tokenizer."""

from __future__ import annotations

import ctypes
from typing import Any

import llama_cpp


class Vocab:
    """The vocabulary of a loaded model.

    Args:
        handle: `llama_vocab` pointer; valid for as long as its model is open.
    """

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self._pieces: dict[int, bytes] = {}
        self._buffer = ctypes.create_string_buffer(64)
        self.n_tokens = int(llama_cpp.llama_vocab_n_tokens(handle))
        self.bos = int(llama_cpp.llama_vocab_bos(handle))
        self.eos = int(llama_cpp.llama_vocab_eos(handle))
        self.adds_bos = bool(llama_cpp.llama_vocab_get_add_bos(handle))

    def is_eog(self, token: int) -> bool:
        """Whether the token ends an answer (EOS, end of turn, ...)."""
        return bool(llama_cpp.llama_vocab_is_eog(self._handle, token))

    def is_control(self, token: int) -> bool:
        """Whether the token steers the model and is not text."""
        return bool(llama_cpp.llama_vocab_is_control(self._handle, token))

    def text(self, token: int) -> str:
        """The token as the vocabulary writes it (`<|im_end|>`), empty for none."""
        if not 0 <= token < self.n_tokens:
            return ""
        return (llama_cpp.llama_vocab_get_text(self._handle, token) or b"").decode("utf-8", "replace")

    def tokenize(self, text: str, *, add_bos: bool = False, special: bool = True) -> list[int]:
        """The ids of a text.

        Args:
            text: Any text; lone surrogates are replaced.
            add_bos: Put the BOS (and what else the tokenizer adds) in front.
            special: Read `<|im_start|>` and the like as the tokens that they name.
        """
        data = text.encode("utf-8", "replace")
        size = len(data) + 8
        while True:
            ids = (llama_cpp.llama_token * size)()
            count = llama_cpp.llama_tokenize(self._handle, data, len(data), ids, size, add_bos, special)
            if count >= 0:
                return list(ids[:count])
            size = -count

    def piece(self, token: int) -> bytes:
        """The bytes that a token adds to the text; empty for control tokens, and for what is no token."""
        known = self._pieces.get(token)
        if known is None:
            if not 0 <= token < self.n_tokens:  # llama.cpp would end the process
                return b""
            known = self._pieces[token] = self._render(token, special=False)
        return known

    def _render(self, token: int, *, special: bool) -> bytes:
        # Tokens of more than 32 bytes are common (1,401 of them in Qwen3): the buffer grows to what is asked for.
        while True:
            size = len(self._buffer)
            length = llama_cpp.llama_token_to_piece(self._handle, token, self._buffer, size, 0, special)
            if length >= 0:
                return self._buffer.raw[:length]
            self._buffer = ctypes.create_string_buffer(-length)

    def ids_of(self, text: str) -> list[int]:
        """The ids that a marker such as `<think>` is made of, nothing added in front."""
        return self.tokenize(text, add_bos=False, special=True)

    def has_token(self, text: str) -> bool:
        """Whether the text is one token of the vocabulary."""
        ids = self.ids_of(text)
        return len(ids) == 1 and self.text(ids[0]) == text
