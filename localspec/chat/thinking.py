"""Thinking, for whoever shows messages; the engine tells it apart from the answer (`Piece.thinking`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

from localspec.spec.events import Piece


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of text of one kind."""

    text: str
    thinking: bool
    drafted: bool = False
    """True where every token of it was drafted and accepted."""


def segments(pieces: Iterable[Piece]) -> Iterator[Segment]:
    """Join neighbouring pieces of the same kind; pieces without text vanish."""
    shown = (piece for piece in pieces if piece.text)
    for (thinking, drafted), group in groupby(shown, key=lambda piece: (piece.thinking, piece.drafted)):
        yield Segment("".join(piece.text for piece in group), thinking, drafted)


def note(reason: str, *, content: str, thinking: str) -> str:
    """What stands below an answer that did not end by itself, or is empty; empty when there is nothing to say.

    Args:
        reason: How it ended: a `FinishReason`, `died`, `failed`, or empty.
        content: The answer's text.
        thinking: The answer's thinking.
    """
    said = {
        "length": "the limit of tokens was reached",
        "context": "the context is full",
        "cancelled": "stopped",
        "died": "the engine stopped here",
        "failed": "an error ended the answer here",
    }.get(reason, "")
    if thinking.strip() and not content.strip():
        return f"no answer yet: {said or 'it ended while thinking'}"
    if reason == "stop" and not content.strip():
        return "the model ended its answer before any text"
    return said
