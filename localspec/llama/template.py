"""Chat templates: from messages to the text that a model was trained on. Nothing here needs llama.cpp."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
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
    questions: tuple[int, ...] = ()
    """Where the users' messages end in the text, when that was asked for and can be told."""


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
        find_questions: bool = False,
        now: datetime | None = None,
    ) -> Rendered:
        """The text of a conversation.

        A template that refuses the messages, or leaves system text out, is tried again with changed ones; see
        `localspec.llama.repairs`.

        Args:
            messages: Any order of roles. An answer's `thinking` is given to the template as `reasoning_content`.
            think: Switches thinking on or off where the template knows how; None leaves it to the template.
            add_generation_prompt: End with the opening of the next answer.
            find_questions: Fill in `Rendered.questions`.
            now: What `strftime_now` tells; None = the time of this call.

        Raises:
            TemplateError: It fails, with the template's own message as the reason.
        """
        given = [_to_dict(message) for message in messages]
        variables: dict[str, Any] = {"add_generation_prompt": add_generation_prompt}
        if think is not None:
            variables |= dict.fromkeys(self._switches, think)
        now = now or datetime.now()
        own = _with_own_ids(messages)
        asked = [index for index, m in enumerate(given) if find_questions and m["role"] == "user"]
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
            again = _Again(repair, variables, now)
            found = replace(self._rendered(full, given, own, asked, again), notes=notes)
            result = result or found
            if self._loses_late_system_text(given, again):
                continue
            return found
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

    def _rendered(
        self, full: str, given: Dicts, own: Sequence[int], asked: Sequence[int], again: _Again
    ) -> Rendered:
        """A text, with the places of the messages that have ids of their own and of those that ask."""
        text = self._without_bos(full)
        spans = self._find(text, given, own, again)
        ends = tuple(span.end for span in self._find(text, given, asked, again))
        return Rendered(text, text != full, answers=spans, questions=ends)

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

    def _find(
        self, text: str, given: Dicts, messages: Sequence[int], again: _Again
    ) -> tuple[AnswerSpan, ...]:
        """Render once more with marks for some messages; the real text must be the same but for the marks.

        Searching for an answer in the text would find the word "user" in the wrong places.
        """
        wanted = [index for index in messages if given[index]["content"].strip()]
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


def _with_own_ids(messages: Sequence[Message | Mapping[str, Any]]) -> list[int]:
    return [index for index, m in enumerate(messages) if isinstance(m, Message) and m.token_ids]


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
