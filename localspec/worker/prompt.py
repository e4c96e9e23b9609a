"""From a conversation to the ids that the engine goes on from. Runs in the engine's process."""

from __future__ import annotations

from dataclasses import replace

from localspec.llama.template import ChatTemplate, to_ids
from localspec.llama.tokens import Vocab
from localspec.spec.engine import Request
from localspec.worker.protocol import Generate, Message


def to_request(command: Generate, template: ChatTemplate, vocab: Vocab) -> tuple[Request, tuple[str, ...]]:
    """The engine's request for a command, and sentences about what had to be changed for the template.

    The ids of earlier answers are taken as they were generated, so that the caches hold them already: a text can have
    several tokenisations, and the model need not have written the one that the tokenizer prefers.

    Raises:
        TemplateError: The template refuses these messages.
    """
    if command.raw_prompt is not None:
        ids = vocab.tokenize(command.raw_prompt, add_bos=vocab.adds_bos)
        return _request(command, ids), ()
    messages = [_as_typed(message, vocab) for message in command.messages]
    rendered = template.render(messages, think=command.think)
    ids = to_ids(rendered, messages, vocab.tokenize, vocab.piece)
    if (vocab.adds_bos or rendered.had_bos) and vocab.bos >= 0:
        ids.insert(0, vocab.bos)  # exactly one, whether template, tokenizer or both would add it
    request = _request(
        command,
        ids,
        stop=template.extra_stop,
        tags=template.thinking_tags,
        in_thinking=template.starts_thinking(rendered.text),
    )
    return request, rendered.notes


def _as_typed(message: Message, vocab: Vocab) -> Message:
    """A message as the text that it is: `<|im_end|>` pasted into a question must not end the turn."""
    if message.role == "assistant" or message.token_ids:
        return message
    literal = vocab.tokenize(message.content, special=False)
    if literal == vocab.tokenize(message.content):
        return message
    return replace(message, token_ids=tuple(literal))


def _request(
    command: Generate,
    ids: list[int],
    *,
    stop: tuple[str, ...] = (),
    tags: tuple[str, str] | None = None,
    in_thinking: bool = False,
) -> Request:
    return Request(
        prompt=ids,
        sampling=command.sampling,
        max_tokens=command.max_tokens,
        stop=(*command.stop, *stop),
        tags=tags,
        in_thinking=in_thinking,
        ignore_eos=command.ignore_eos,
    )
