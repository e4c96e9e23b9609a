"""From a rendered conversation to ids, with those of earlier answers kept, so that the caches still fit.

Nothing here needs llama.cpp: tokenizer and vocabulary are passed in as functions.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence

from localspec.llama.template import AnswerSpan, Rendered
from localspec.worker.protocol import Message


def to_ids(
    rendered: Rendered,
    messages: Sequence[Message],
    tokenize: Callable[[str], list[int]],
    piece: Callable[[int], bytes],
) -> list[int]:
    """The ids of a rendered conversation, with earlier answers under the ids that the model chose for them.

    A tokenizer need not split a text the way a model wrote it. Where an answer's own ids spell what stands in the
    text, they are used, so that the caches of the last turn fit; ids of thinking that the template drops, and of a
    stop string, are left out. All else is tokenised. The ids always spell the rendered text.

    Args:
        rendered: From `ChatTemplate.render`.
        messages: The messages that were rendered.
        tokenize: Ids of a text, special tokens read as such, nothing added at the front or the end.
        piece: The bytes that a token adds to the text; empty for control tokens.

    Returns:
        Ids without BOS.
    """
    text = rendered.text
    ids: list[int] = []
    at = 0
    for span in rendered.answers:
        own = _own_ids(text, at, span, messages[span.message], piece)
        if own is None:
            continue
        start, end, run = own
        before = _tokenize_after(text[at:start], ids, tokenize, piece)
        if before is None:
            continue
        ids += before
        ids += run
        at = end
    rest = _tokenize_after(text[at:], ids, tokenize, piece)
    # A tokenizer that cannot go on in the middle of a text gets the whole.
    return tokenize(text) if rest is None else ids + rest


def _own_ids(
    text: str, floor: int, span: AnswerSpan, message: Message, piece: Callable[[int], bytes]
) -> tuple[int, int, Sequence[int]] | None:
    """The part of an answer's ids that spells a stretch of the text, with where that starts and ends."""
    spelled, ends = _spell(message.token_ids, piece)
    content = text[span.start : span.end]
    begin = spelled.rfind(content) if message.thinking else spelled.find(content)
    if begin < 0:
        return None
    finish = begin + len(content)
    # With all that was written before it (thinking, white space) if that stands in the text too, else from the token
    # that begins it.
    for first in (0, max(number for number, end in enumerate(ends) if 0 <= end <= begin)):
        if text[floor : span.end].endswith(spelled[ends[first] : finish]):
            break
    else:
        return None
    last = max(end for end in ends if end <= finish)
    if last <= ends[first]:
        return None
    return (
        span.end - (finish - ends[first]),
        span.end - (finish - last),
        message.token_ids[first : ends.index(last)],
    )


def _spell(ids: Sequence[int], piece: Callable[[int], bytes]) -> tuple[str, list[int]]:
    """The text of ids, and after how many characters the first 0, 1, 2, ... of them end; -1 inside a character."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    parts, ends, length = [], [0], 0
    for token in ids:
        parts.append(decoder.decode(piece(token)))
        length += len(parts[-1])
        ends.append(-1 if decoder.getstate()[0] else length)
    return "".join(parts), ends


def _tokenize_after(
    text: str, before: Sequence[int], tokenize: Callable[[str], list[int]], piece: Callable[[int], bytes]
) -> list[int] | None:
    """Ids of a text that goes on behind others; None when the tokenizer puts more in front than can be taken away."""
    ids = tokenize(text) if text else []
    if not before or not ids:
        return ids
    # SentencePiece starts every text with a space, which belongs at the start of the conversation only.
    first = piece(ids[0])
    if text.encode("utf-8", "replace").startswith(first):
        return ids
    return ids[1:] if first == b" " else None
