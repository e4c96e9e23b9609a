"""What to change about a conversation that a chat template refuses.

The changes keep every word: system text moves, and neighbouring messages of one role become one.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

Dicts = list[dict[str, Any]]
Repair = Callable[[Dicts], Dicts]

_GATHERED = "The chat template wants one system message, at the beginning; it was put there."
_FOLDED = "The chat template takes no system message; its text was put in front of the first user message."
_MERGED = "The chat template wants roles to alternate; neighbouring messages of one role were merged."


def repairs_of(messages: Dicts, *, no_system: bool) -> list[tuple[Repair, tuple[str, ...]]]:
    """Changes to try, the least first; some of them may change nothing about these messages.

    Args:
        messages: Dictionaries with `role` and `content`.
        no_system: The template is known to leave system messages out.

    Returns:
        Functions from messages to messages, each with sentences on what it does to these. The first one changes
        nothing, unless system text would be lost.
    """
    has_system = any(message["role"] == "system" for message in messages)
    ways: list[tuple[Repair, tuple[str, ...]]] = []
    if not (no_system and has_system):
        ways += [
            (list, ()),
            (gather, (_GATHERED,)),
            (lambda given: merge(gather(given)), (_GATHERED, _MERGED)),
        ]
    ways += [(fold, (_FOLDED,)), (lambda given: merge(fold(given)), (_FOLDED, _MERGED))]
    return [(repair, tuple(note for note in notes if _applies(note, messages))) for repair, notes in ways]


def _applies(note: str, messages: Dicts) -> bool:
    if note == _GATHERED:
        return gather(messages) != messages
    if note == _FOLDED:
        return fold(messages) != messages
    roles = [message["role"] for message in fold(messages)]
    return any(one == other for one, other in pairwise(roles))


def gather(messages: Dicts) -> Dicts:
    """All system text in one message at the front."""
    texts, rest = _split(messages)
    return [{"role": "system", "content": "\n\n".join(texts)}, *rest] if texts else rest


def fold(messages: Dicts) -> Dicts:
    """All system text in front of the first user message."""
    texts, rest = _split(messages)
    if not texts:
        return rest
    first = next((index for index, message in enumerate(rest) if message["role"] == "user"), None)
    if first is None:
        return [{"role": "user", "content": "\n\n".join(texts)}, *rest]
    asked = rest[first] | {"content": "\n\n".join([*texts, rest[first]["content"]])}
    return [*rest[:first], asked, *rest[first + 1 :]]


def merge(messages: Dicts) -> Dicts:
    """Neighbours of one role as one message."""
    merged: Dicts = []
    for message in messages:
        if merged and merged[-1]["role"] == message["role"]:
            content = merged[-1]["content"] + "\n\n" + message["content"]
            merged[-1] = merged[-1] | message | {"content": content}
        else:
            merged.append(message)
    return merged


def _split(messages: Dicts) -> tuple[list[str], Dicts]:
    texts = [message["content"] for message in messages if message["role"] == "system"]
    return texts, [message for message in messages if message["role"] != "system"]
