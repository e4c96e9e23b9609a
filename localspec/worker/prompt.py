"""A model's chat template, and from a conversation to the ids that the engine goes on from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from localspec.errors import LoadError, TemplateError
from localspec.llama.context import Context
from localspec.llama.template import ChatTemplate
from localspec.llama.template_ids import to_ids
from localspec.llama.tokens import Vocab
from localspec.models.gguf import Header
from localspec.models.text import edit_command, shown
from localspec.spec.answer import too_long
from localspec.spec.engine import Request
from localspec.worker.protocol import Generate, Message

_BYTES_PER_TOKEN = 8
"""More than a token has on the average, in nearly all texts."""


def read_template(file: str, header: Header, vocab: Vocab) -> tuple[ChatTemplate, tuple[str, ...]]:
    """A model's chat template.

    Args:
        file: One to take in place of the model's own; empty for none.
        header: Of the model's file.
        vocab: The model's.

    Returns:
        The template, and sentences that say what was chosen in place of the model's own and why.

    Raises:
        LoadError: The file cannot be used: it was asked for, so nothing is taken in its place.
    """
    if file:
        return _own_template(Path(file), vocab), ()
    return ChatTemplate.from_model(
        header.chat_template,
        bos=vocab.text(vocab.bos),
        eos=vocab.text(vocab.eos),
        architecture=header.architecture,
        has_token=vocab.has_token,
    )


def _own_template(path: Path, vocab: Vocab) -> ChatTemplate:
    try:
        source = path.read_text(encoding="utf-8-sig")
        return ChatTemplate(source, bos=vocab.text(vocab.bos), eos=vocab.text(vocab.eos))
    except OSError as error:
        why = error.strerror or str(error)
    except UnicodeDecodeError:
        why = "It is not text in UTF-8"
    except TemplateError as error:
        why = error.why
    raise LoadError(
        f"The chat template {shown(path)} cannot be used.", why=f"{why.rstrip('.')}.", hint=edit_command(path)
    )


def to_request(
    command: Generate,
    template: ChatTemplate,
    vocab: Vocab,
    *,
    find_anchors: bool = False,
    context: Context | None = None,
) -> tuple[Request, tuple[str, ...]]:
    """The engine's request for a command, and sentences about what had to be changed for the template.

    The ids of earlier answers are taken as they were generated, so that the caches hold them already: a text can have
    several tokenisations, and the model need not have written the one that the tokenizer prefers.

    Args:
        command: The command.
        template: Makes the text.
        vocab: Makes the ids.
        find_anchors: Fill in `Request.anchors`, for models whose memory cannot be cut.
        context: Where the ids go. A text that is far too long for it is refused before all of it is tokenised.

    Raises:
        ContextFullError: A message does not fit into the context, whatever is dropped beside it.
        TemplateError: The template refuses these messages.
    """
    if context is not None:
        for text in (command.raw_prompt or "", *(message.content for message in command.messages)):
            _refuse_far_too_long(text, vocab, context)
    if command.raw_prompt is not None:
        ids = vocab.tokenize(command.raw_prompt, add_bos=vocab.adds_bos)
        return _request(command, ids), ()
    messages = [_as_typed(message, vocab) for message in command.messages]
    now = datetime.fromtimestamp(command.now) if command.now else None
    rendered = template.render(messages, think=command.think, find_questions=find_anchors, now=now)
    ids = to_ids(rendered, messages, vocab.tokenize, vocab.piece)
    anchors = _ids_before(rendered.questions, rendered.text, ids, vocab)
    if (vocab.adds_bos or rendered.had_bos) and vocab.bos >= 0:
        ids.insert(0, vocab.bos)  # exactly one, whether template, tokenizer or both would add it
        anchors = [anchor + 1 for anchor in anchors]
    request = _request(
        command,
        ids,
        stop=template.extra_stop,
        tags=template.thinking_tags,
        in_thinking=template.starts_thinking(rendered.text),
        anchors=tuple(anchors),
    )
    return request, rendered.notes


def _refuse_far_too_long(text: str, vocab: Vocab, context: Context) -> None:
    """Tokenise a beginning, then longer ones, until it has clearly more tokens than fit: 50 MB take minutes."""
    size = _BYTES_PER_TOKEN * context.n_ctx
    if len(text) * 4 <= size:  # a character has four bytes at most
        return
    data = text.encode("utf-8", "replace")
    while size < len(data):
        count = len(vocab.tokenize(data[:size].decode("utf-8", "ignore"), special=False))
        if (
            count > context.n_ctx * 1.25
        ):  # the end of a beginning may be cut into more tokens than it would be
            raise too_long(count * len(data) // size, context, about=True)
        size *= 4


def _as_typed(message: Message, vocab: Vocab) -> Message:
    """A message as the text that it is: `<|im_end|>` pasted into a question must not end the turn."""
    if message.role == "assistant" or message.token_ids:
        return message
    literal = vocab.tokenize(message.content, special=False)
    if literal == vocab.tokenize(message.content):
        return message
    return replace(message, token_ids=tuple(literal))


def _ids_before(places: Sequence[int], text: str, ids: Sequence[int], vocab: Vocab) -> list[int]:
    """How many ids come before places of a text, all of each id's text counted.

    Args:
        places: Indices of the text, ascending.
        text: What the ids spell, but for spaces that a tokenizer puts in or leaves out beside control tokens.
        ids: All of its ids.
        vocab: Their vocabulary.

    Returns:
        A number for each place; fewer, when from some place on the ids spell something else.
    """
    data = text.encode("utf-8", "replace")
    ends, before, start = [], 0, 0
    for place in places:
        before += len(text[start:place].encode("utf-8", "replace"))
        start = place
        ends.append(before)
    found: list[int] = []
    at = 0
    for count, token in enumerate(ids):
        if len(found) == len(ends):
            break
        piece = vocab.piece(token) or vocab.text(token).encode()
        if not data.startswith(piece, at):
            stripped = piece.removeprefix(b" ")
            blank = len(data) - at - len(data[at:].lstrip())
            if data.startswith(stripped, at):
                piece = stripped
            elif data.startswith(piece, at + blank):
                at += blank
            else:
                break
        at += len(piece)
        while len(found) < len(ends) and at > ends[len(found)]:
            found.append(count)
    return found


def _request(
    command: Generate,
    ids: list[int],
    *,
    stop: tuple[str, ...] = (),
    tags: tuple[str, str] | None = None,
    in_thinking: bool = False,
    anchors: tuple[int, ...] = (),
) -> Request:
    return Request(
        prompt=ids,
        sampling=command.sampling,
        max_tokens=command.max_tokens,
        stop=(*command.stop, *stop),
        tags=tags,
        in_thinking=in_thinking,
        ignore_eos=command.ignore_eos,
        anchors=anchors,
    )
