"""From token bytes to text that can be shown: characters, thinking, stop strings.

One `TextStream` reads one answer. It holds back what cannot be decided yet (half a character, the start of a
tag, the start of a stop string) and releases it with a later token, so that whatever has been shown never has
to be taken back. The work per token depends on the length of the token, of the tags and of the stop strings,
never on the length of the answer.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence
from enum import Enum, auto

from localspec.spec.events import Piece

# Where thinking has a channel of its own, the answer has one too, and a notice on the way to it a third.
_CHANNEL = "<|channel|>"
_FINAL = "<|channel|>final<|message|>"
_COMMENTARY = "<|channel|>commentary<|message|>"
_BREAK = "\n\n"
"""Between two blocks of a kind."""


class _Phase(Enum):
    OPENING = auto()  # nothing but white space and perhaps half an opening tag so far
    THINKING = auto()
    AFTER = auto()  # the closing tag was read, the answer has not begun
    ANSWER = auto()


class TextStream:
    r"""Turns the tokens of one answer into `Piece`s.

    UTF-8 is decoded across token borders; bytes that are no UTF-8 become U+FFFD and what follows is kept.

    Thinking is recognised by two tags. The opening tag counts only at the very start of the answer (after
    white space, if any), the closing tag only inside thinking: the same words further on, in a code block for
    example, are text. Tags are never text themselves, and white space that only separates (at the start and
    the end of the thinking, at the start of the answer after it) is dropped. Thinking that is never closed
    stays thinking. Where the tags are channels (gpt-oss), blocks of thinking (analysis) and answer (commentary,
    final) may follow one another in any order and number; an empty line stands between two of a kind.

    Stop strings are looked for in the answer only: they describe where the *answer* ends (`"\nUser:"`, a
    closing fence), and a model that weighs such a line while it thinks would otherwise end without an answer.
    Of several stop strings the one that starts first wins, whatever the token borders; the text from there on
    is dropped.

    Args:
        stop: Stop strings. Empty ones are ignored.
        tags: Opening and closing tag of the model's thinking, or None for a model that does not think. White
            space around them does not count.
        in_thinking: True when the prompt already ends with the opening tag. A model that repeats the tag is
            forgiven.

    Attributes:
        stopped: True when a stop string was completed; the engine must end the answer then. `flush` can set
            it too: with the stop strings `abc` and `b`, the text `ab` is cut only when no `c` can come.

    Raises:
        ValueError: A tag is empty, or `in_thinking` is set without tags.
    """

    def __init__(
        self, *, stop: Sequence[str] = (), tags: tuple[str, str] | None = None, in_thinking: bool = False
    ) -> None:
        if in_thinking and tags is None:
            raise ValueError("in_thinking needs tags")
        self._open, self._close = (tags[0].strip(), tags[1].strip()) if tags is not None else ("", "")
        if tags is not None and not (self._open and self._close):
            raise ValueError("a thinking tag is empty")
        self._openings = {self._open: _Phase.THINKING}
        self._closings = {self._close: _Phase.AFTER}
        self._turns: dict[str, _Phase] = {}  # what ends a block of the answer and begins another block
        if self._open.startswith(_CHANNEL):
            self._openings |= dict.fromkeys((_FINAL, _COMMENTARY), _Phase.AFTER)
            before = self._close.partition(_CHANNEL)[0]
            self._turns = {before + tag: phase for tag, phase in self._openings.items()} if before else {}
            self._closings |= self._turns
        self._stops = tuple(sorted({s for s in stop if s}, key=lambda s: (-len(s), s)))
        self._stop_pattern = re.compile("|".join(map(re.escape, self._stops))) if self._stops else None
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._phase = _Phase.OPENING if tags is not None else _Phase.ANSWER
        self._prompted = in_thinking
        # Text that is not released yet: white space first, then what may become a tag or a stop string.
        self._space: list[str] = []
        self._held = ""
        self._answer: list[str] = []
        self._thinking: list[str] = []
        self._last: tuple[int, bool] | None = None
        self._ended = False
        self.stopped = False

    @property
    def answer(self) -> str:
        """The answer released so far, without the thinking."""
        return "".join(self._answer)

    @property
    def thinking(self) -> str:
        """The thinking released so far."""
        return "".join(self._thinking)

    @property
    def in_thinking(self) -> bool:
        """True while the model thinks: what comes next is thinking, unless it is the closing tag."""
        return self._phase is _Phase.THINKING or (self._phase is _Phase.OPENING and self._prompted)

    def push(self, token_id: int, data: bytes, drafted: bool) -> tuple[Piece, ...]:
        """Takes the next token.

        Args:
            token_id: The token's id, passed on in the pieces.
            data: The token's bytes, as they are in the vocabulary. Tags need their text here, even where they
                are control tokens.
            drafted: True for an accepted draft token.

        Returns:
            One piece, possibly without text; two when the token ends the thinking and begins the answer.

        Raises:
            RuntimeError: The answer was stopped or flushed before.
        """
        if self.stopped or self._ended:
            raise RuntimeError("the answer has ended")
        self._last = (token_id, drafted)
        pieces = self._run(self._decode(data), last=False)
        return pieces or (Piece(token_id, "", drafted, self.in_thinking),)

    def flush(self) -> tuple[Piece, ...]:
        """Ends the answer and releases what was held back; an incomplete character becomes one U+FFFD.

        Returns:
            Pieces with text, under the id of the last token. Empty when nothing was held.
        """
        if self.stopped or self._ended:
            return ()
        self._ended = True
        return self._run(self._decode(b"", True), last=True)

    def _run(self, text: str, *, last: bool) -> tuple[Piece, ...]:
        """Passes new text through the phases; joins what came out into at most one piece of each kind."""
        marks = len(self._thinking), len(self._answer)
        # Each phase returns the text that it leaves to the next one, or None when it has used up all.
        rest: str | None = text
        while rest is not None:
            if self._phase is _Phase.OPENING:
                rest = self._read_opening(rest, last)
            elif self._phase is _Phase.THINKING:
                rest = self._read_thinking(rest, last)
            elif self._phase is _Phase.AFTER:
                rest = self._read_after(rest)
            else:
                rest = self._read_answer(rest, last)
        if self._last is None:
            return ()
        token_id, drafted = self._last
        thought, said = "".join(self._thinking[marks[0] :]), "".join(self._answer[marks[1] :])
        pieces = (Piece(token_id, thought, drafted, True), Piece(token_id, said, drafted, False))
        return tuple(piece for piece in pieces if piece.text)

    def _read_opening(self, text: str, last: bool) -> str | None:
        if not self._held:
            body = text.lstrip()
            self._space.append(text[: len(text) - len(body)])
        else:
            body = self._held + text
        for tag, phase in self._openings.items():
            if body.startswith(tag):
                self._phase, self._space, self._held = phase, [], ""
                return body[len(tag) :]
        if not last and any(tag.startswith(body) for tag in self._openings):
            self._held = body
            return None
        rest = "".join(self._space) + body
        self._phase = _Phase.THINKING if self._prompted else _Phase.ANSWER
        self._space, self._held = [], ""
        return rest

    def _read_thinking(self, text: str, last: bool) -> str | None:
        text = self._held + text
        tag, end = _first(text, self._closings)
        if tag:
            self._think(text[:end])
            return self._turn(self._closings[tag], text[end + len(tag) :])
        cut = len(text) if last else _open_end(text, tuple(self._closings))
        self._held = text[cut:]
        self._think(text[:cut])
        return None

    def _turn(self, phase: _Phase, rest: str) -> str:
        """Begins another block."""
        self._phase, self._held = phase, ""
        self._space = [_BREAK] if phase is _Phase.THINKING and self._thinking else []
        return rest

    def _think(self, text: str) -> None:
        """Releases thinking; white space waits for the word after it."""
        if not self._thinking:
            text = text.lstrip()
        body = text.rstrip()
        if body:
            self._thinking.append("".join(self._space) + body)
            self._space = []
        if len(text) > len(body):
            self._space.append(text[len(body) :])

    def _read_after(self, text: str) -> str | None:
        text = text.lstrip()
        if not text:
            return None
        self._phase = _Phase.ANSWER
        if self._answer:
            self._answer.append(_BREAK)
        return text

    def _read_answer(self, text: str, last: bool) -> str | None:
        text = self._held + text
        self._held = ""
        tag, end = _first(text, self._turns)
        words = self._stops + tuple(self._turns)
        cut = end if tag else len(text) if last or not words else _open_end(text, words)
        match = self._stop_pattern.search(text) if self._stop_pattern is not None else None
        # A stop string that starts earlier may still be under way: then a finished later one has to wait.
        if match is not None and match.start() <= cut:
            self.stopped = True
            tag, cut = "", match.start()
        elif not tag:
            self._held = text[cut:]
        if cut:
            self._answer.append(text[:cut])
        return self._turn(self._turns[tag], text[end + len(tag) :]) if tag else None


def _first(text: str, tags: dict[str, _Phase]) -> tuple[str, int]:
    """The tag that stands first in a text, and where; an empty tag for none."""
    found = ((at, tag) for tag in tags if (at := text.find(tag)) >= 0)
    at, tag = min(found, default=(0, ""))
    return tag, at


def _open_end(text: str, words: tuple[str, ...]) -> int:
    """Where the longest tail of `text` starts that is the beginning, but not the whole, of one of `words`.

    Returns:
        The index of the tail; the length of the text when there is none.
    """
    longest = max(map(len, words))
    for start in range(max(0, len(text) - longest + 1), len(text)):
        tail = text[start:]
        if any(len(word) > len(tail) and word.startswith(tail) for word in words):
            return start
    return len(text)
