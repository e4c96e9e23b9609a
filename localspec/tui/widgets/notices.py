"""What stands in the conversation beside answers: the person's messages, notes, confirmations, errors."""

from __future__ import annotations

from typing import Literal

from textual.content import Content
from textual.widgets import Static

from localspec.errors import LocalspecError
from localspec.measure.advice import Advice
from localspec.tui.text import MUTED, clean

Kind = Literal["info", "warning", "error", "advice"]


class UserMessage(Static):
    """What the person asked."""

    def __init__(self, text: str) -> None:
        super().__init__(Content(clean(text)), markup=False)


class Notice(Static):
    """A note of localspec's own."""

    def __init__(self, content: Content | str, kind: Kind = "info") -> None:
        super().__init__(
            Content(clean(content)) if isinstance(content, str) else content, markup=False, classes=kind
        )


def error_content(error: LocalspecError) -> Content:
    """The three sentences of an error, as harmless content."""
    parts: list[str | tuple[str, str]] = [(clean(error.title), "bold $text-error")]
    parts += [f"\n{clean(sentence)}" for sentence in (error.message, error.why) if sentence]
    if error.hint:
        parts += [("\nNext: ", MUTED), (clean(error.hint), "bold")]
    return Content.assemble(*parts)


def advice_content(advice: Advice) -> Content:
    """What was seen, the likely cause, and the command that mends it."""
    return Content.assemble(
        (clean(advice.seen), "bold"),
        f"\n{clean(advice.cause)}",
        ("\nTry: ", MUTED),
        (clean(advice.command), "bold"),
    )
