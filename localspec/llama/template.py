"""Chat templates: from messages to the text, and the ids, that a model was trained on.

`ChatTemplate` renders; `to_ids` tokenises what was rendered and keeps the ids of earlier answers, so that the caches
still fit. Nothing here needs llama.cpp: tokenizer and vocabulary are passed in as functions.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import jinja2

from localspec.errors import TemplateError
from localspec.llama import formats
from localspec.llama.repairs import Dicts, repairs_of
from localspec.llama.sandbox import LimitError, PromptEnvironment, RefusalError
from localspec.worker.protocol import Message

_HINT = "localspec run --template FILE"
_BROKEN = "The chat template does not work."
_SWITCHES = ("enable_thinking", "thinking")
# Opening and closing tag, and the literal text by which a template shows that its model uses them.
_THINKING_TAGS = (
    (
        "<|channel|>analysis<|message|>",
        "<|end|><|start|>assistant<|channel|>final<|message|>",
        "<|channel|>analysis",
    ),
    ("<|channel>thought", "<channel|>", "<|channel>thought"),
    ("[THINK]", "[/THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>", "</seed:think>"),
    ("<mm:think>", "</mm:think>", "</mm:think>"),
    ("<|START_THINKING|>", "<|END_THINKING|>", "<|END_THINKING|>"),
    ("<|inner_prefix|>", "<|inner_suffix|>", "<|inner_suffix|>"),
    ("<think>", "</think>", "</think>"),
)
_PROBE, _SYSTEM_PROBE = "localspec asks", "localspec says"
# A noncharacter: no tokenizer, template or honest text has it.
_MARK = "\ufdd0"


@dataclass(frozen=True, slots=True)
class AnswerSpan:
    """Where a message with ids of its own, as a rule an earlier answer, stands in a rendered text.

    `text[start:end]` is its content, at most stripped.
    """

    message: int
    """Index among the messages that were rendered."""
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Rendered:
    """A conversation as the model reads it."""

    text: str
    """Without BOS: the caller adds exactly one, if the model's `add_bos` is set or `had_bos` is."""
    had_bos: bool
    notes: tuple[str, ...] = ()
    """What had to be changed about the messages, in sentences."""
    answers: tuple[AnswerSpan, ...] = ()
    """The messages that have `token_ids`, as far as they stand in the text as they were given."""


@dataclass(frozen=True, slots=True)
class _Again:
    """What it takes to render the same conversation with other texts in it."""

    repair: Callable[[Dicts], Dicts]
    variables: Mapping[str, Any]
    now: datetime


class ChatTemplate:
    """A model's chat template.

    Args:
        source: Jinja, as found under `tokenizer.chat_template` or in a file.
        bos: Text of the BOS token, empty if there is none.
        eos: Text of the EOS token, empty if there is none.
        name: What to call it, empty for the model's own.
        extra_stop: Stop strings that the format needs because it has no token that ends an answer.

    Attributes:
        knows_thinking: The template has a switch for thinking.
        thinking_tags: Opening and closing tag of the model's thinking, if the template shows any.

    Raises:
        TemplateError: It is no Jinja, or it cannot render a single question.
    """

    def __init__(
        self, source: str, *, bos: str, eos: str, name: str = "", extra_stop: tuple[str, ...] = ()
    ) -> None:
        self.name = name
        self.extra_stop = extra_stop
        self._bos = bos
        self._eos = eos
        self._environment = PromptEnvironment()
        try:
            self._template, expects, literals = self._environment.load(source)
        except Exception as error:
            raise TemplateError(
                "The chat template could not be read.", why=_why(error), hint=_HINT
            ) from error
        self._switches = tuple(switch for switch in _SWITCHES if switch in expects)
        self.knows_thinking = bool(self._switches)
        self.thinking_tags = next(((a, b) for a, b, sign in _THINKING_TAGS if sign in literals), None)
        self._typed, self._tools = self._learn_needs()
        self._drops_system = self._loses_system_message()

    @classmethod
    def from_model(
        cls, source: str | None, *, bos: str, eos: str, architecture: str, has_token: Callable[[str], bool]
    ) -> tuple[ChatTemplate, tuple[str, ...]]:
        """The template of a model file, or a built-in format where that has none that works.

        Args:
            source: The file's template, None if it has none.
            bos: Text of the BOS token.
            eos: Text of the EOS token.
            architecture: `general.architecture`, for the note.
            has_token: Whether a text is one token of the vocabulary.

        Returns:
            The template, and sentences that say what was chosen in place of the file's own and why.
        """
        reason = "The model file has no chat template"
        if source is not None and source.strip():
            try:
                return cls(source, bos=bos, eos=eos), ()
            except TemplateError as error:
                reason = f"{error.message.rstrip('.')}: {error.why.rstrip('.')}"
        form = formats.choose(has_token)
        if form.tokens:
            choice = f"using {form.name}, because the vocabulary has {form.tokens[0]}"
        else:
            choice = f"using {form.name}, because the vocabulary ({architecture}) has no known chat tokens"
        template = cls(form.source, bos=bos, eos=eos, name=form.name, extra_stop=form.extra_stop)
        return template, (f"{reason}; {choice}.",)

    def starts_thinking(self, text: str) -> bool:
        """Whether a rendered prompt ends with the opening tag, so that the model goes on inside its thinking."""
        return self.thinking_tags is not None and text.rstrip().endswith(self.thinking_tags[0])

    def render(
        self,
        messages: Sequence[Message | Mapping[str, Any]],
        *,
        think: bool | None = None,
        add_generation_prompt: bool = True,
    ) -> Rendered:
        """The text of a conversation.

        A template that refuses the messages, or leaves system text out, is tried again with changed ones; see
        `localspec.llama.repairs`.

        Args:
            messages: Any order of roles. An answer's `thinking` is given to the template as `reasoning_content`.
            think: Switches thinking on or off where the template knows how; None leaves it to the template.
            add_generation_prompt: End with the opening of the next answer.

        Raises:
            TemplateError: It fails, with the template's own message as the reason.
        """
        given = [_to_dict(message) for message in messages]
        variables: dict[str, Any] = {"add_generation_prompt": add_generation_prompt}
        if think is not None:
            variables |= dict.fromkeys(self._switches, think)
        now = datetime.now()
        tried: list[Dicts] = []
        result: Rendered | None = None
        failure: Exception | None = None
        for repair, notes in repairs_of(given, no_system=self._drops_system):
            repaired = repair(given)
            if repaired in tried:
                continue
            tried.append(repaired)
            try:
                full = self._run(repaired, variables, now)
            except Exception as error:
                failure = error
                if isinstance(error, LimitError):
                    break
                continue
            text = self._without_bos(full)
            again = _Again(repair, variables, now)
            spans = self._find_answers(text, given, messages, again)
            result = result or Rendered(text, text != full, notes, spans)
            if self._loses_late_system_text(given, again):
                continue
            return Rendered(text, text != full, notes, spans)
        if result is not None:
            return result
        refused = isinstance(failure, RefusalError)
        what = "The chat template refuses this conversation." if refused else "The chat template failed."
        raise TemplateError(what, why=_why(failure), hint=_HINT) from failure

    def _run(self, messages: Dicts, variables: Mapping[str, Any], now: datetime) -> str:
        if self._typed:
            messages = [m | {"content": [{"type": "text", "text": m["content"]}]} for m in messages]
        given = {
            "messages": messages,
            "bos_token": self._bos,
            "eos_token": self._eos,
            "tools": self._tools,
            "documents": None,
        }
        return self._environment.run(self._template, given | dict(variables), now=now, scale=len(messages))

    def _without_bos(self, text: str) -> str:
        while self._bos and text.startswith(self._bos):
            text = text[len(self._bos) :]
        return text

    def _learn_needs(self) -> tuple[bool, list[Any] | None]:
        """How the template must be asked so that it shows what the user says.

        Returns:
            Whether messages are lists of parts, as for models that also see; and what "no tools" is: None for most
            templates, an empty list for those that loop over the tools unasked.

        Raises:
            TemplateError: It shows the question in no way.
        """
        failure: Exception | None = None
        system, user = {"role": "system", "content": _SYSTEM_PROBE}, {"role": "user", "content": _PROBE}
        ways: tuple[tuple[bool, list[Any] | None], ...] = ((False, None), (True, None), (False, []))
        for needs in ways:
            self._typed, self._tools = needs
            for messages in ([user], [system, user]):
                try:
                    if _PROBE in self._run(messages, {"add_generation_prompt": True}, datetime.now()):
                        return needs
                except LimitError as error:
                    raise TemplateError(_BROKEN, why=_why(error), hint=_HINT) from error
                except Exception as error:
                    failure = failure or error
        why = _why(failure) if failure else "It leaves out what the user says."
        raise TemplateError(_BROKEN, why=why, hint=_HINT) from failure

    def _loses_system_message(self) -> bool:
        """Whether a system message would be left out in silence."""
        messages = [{"role": "system", "content": _SYSTEM_PROBE}, {"role": "user", "content": _PROBE}]
        try:
            return _SYSTEM_PROBE not in self._run(messages, {"add_generation_prompt": True}, datetime.now())
        except Exception:
            return False  # not in silence: `render` deals with it

    def _loses_late_system_text(self, given: Dicts, again: _Again) -> bool:
        """Whether a system message that is not the first message is left out in silence."""
        late = [index for index, message in enumerate(given) if index and message["role"] == "system"]
        if not late:
            return False
        marked = list(given)
        for index in late:
            marked[index] = marked[index] | {"content": f"{_MARK}{index}{_MARK}"}
        try:
            text = self._run(again.repair(marked), again.variables, again.now)
        except Exception:
            return False  # it looks into the text, so it does not leave it out
        return any(marked[index]["content"] not in text for index in late)

    def _find_answers(
        self,
        text: str,
        given: Dicts,
        messages: Sequence[Message | Mapping[str, Any]],
        again: _Again,
    ) -> tuple[AnswerSpan, ...]:
        """Render once more with marks for the answers; the real text must be the same but for the marks.

        Searching for an answer in the text would find the word "user" in the wrong places.
        """
        wanted = [
            index
            for index, message in enumerate(messages)
            if isinstance(message, Message) and message.token_ids and message.content.strip()
        ]
        if not wanted or _MARK in text:
            return ()
        marked = list(given)
        for index in wanted:
            marked[index] = marked[index] | {"content": f"{_MARK}{index}{_MARK}"}
        try:
            pattern = self._without_bos(self._run(again.repair(marked), again.variables, again.now))
        except Exception:
            return ()  # the template reads what is in an answer, and does not like marks
        between, spans, at = re.split(f"{_MARK}([0-9]+){_MARK}", pattern), [], 0
        for place, part in enumerate(between):
            if place % 2 == 0:
                if not text.startswith(part, at):
                    return ()
                at += len(part)
                continue
            content = given[int(part)]["content"]
            following = between[place + 1]
            for form in (content, content.rstrip(), content.lstrip(), content.strip()):
                if text.startswith(form + following, at):
                    spans.append(AnswerSpan(int(part), at, at + len(form)))
                    at += len(form)
                    break
            else:
                return ()
        return tuple(spans) if at == len(text) else ()


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


def _to_dict(message: Message | Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(message, Message):
        return dict(message)
    plain = {"role": message.role, "content": message.content}
    return plain | ({"reasoning_content": message.thinking} if message.thinking else {})


def _why(error: BaseException | None) -> str:
    """A reason in one line, with the line of the template where it is known."""
    if isinstance(error, RefusalError):
        return str(error)
    line = error.lineno if isinstance(error, jinja2.TemplateSyntaxError) else None
    trace = error.__traceback__ if error is not None else None
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == "<template>":
            line = trace.tb_lineno
        trace = trace.tb_next
    if isinstance(error, RecursionError):
        reason = "it is nested too deeply"
    elif isinstance(error, MemoryError):
        reason = "it needs too much memory"
    else:
        reason = re.sub(r"\s+", " ", str(error)).strip() or type(error).__name__
    return f"line {line}: {reason}" if line else reason
