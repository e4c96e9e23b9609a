"""The speculative loop.

Each round the drafter proposes up to k tokens; the target evaluates them in one batch behind the last accepted token
and chooses at every position for itself, with noise that depends on seed, position and id only. A drafted token is
accepted when it equals the target's choice. So the text is the target's own, whatever was drafted, and each round
yields one token more than it accepted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from localspec.errors import ContextFullError, DecodeError, UsageError
from localspec.llama.context import Context
from localspec.llama.tokens import Vocab
from localspec.spec.drafter import Draft, Drafter, common_prefix
from localspec.spec.events import (
    DraftStatus,
    EngineEvent,
    Finished,
    FinishReason,
    Piece,
    PromptProgress,
    Round,
    Sampling,
)
from localspec.spec.sampling import Sampler
from localspec.spec.stats import Counters
from localspec.spec.text import TextStream


@dataclass(frozen=True, slots=True)
class Request:
    """One answer to make.

    Attributes:
        prompt: Ids of the whole conversation, at least one.
        sampling: How tokens are chosen.
        max_tokens: 0 = no limit but the context.
        stop: Strings that end the answer.
        tags: The model's thinking tags, if it has any.
        in_thinking: The prompt ends inside the thinking.
        ignore_eos: Go on behind the end-of-generation token.
    """

    prompt: Sequence[int]
    sampling: Sampling
    max_tokens: int = 0
    stop: tuple[str, ...] = ()
    tags: tuple[str, str] | None = None
    in_thinking: bool = False
    ignore_eos: bool = False


class Engine:
    """A target with its cache, and a drafter that can be switched while it runs.

    Args:
        context: The target's context, with `max_outputs` of at least n_draft + 1. The caller closes it.
        vocab: The target's vocabulary.
        drafter: None = plain decoding.
        n_draft: Tokens drafted a round.
        off_reason: Why there is no drafter though one was asked for.
    """

    def __init__(
        self,
        context: Context,
        vocab: Vocab,
        *,
        drafter: Drafter | None = None,
        n_draft: int = 4,
        off_reason: str = "",
    ) -> None:
        self.context = context
        self.vocab = vocab
        self.drafter = drafter
        self._off_reason = off_reason
        self._fault = ""
        self._draft_on = drafter is not None
        self._n_draft = 0
        self._ids: list[int] = []  # the conversation; the cache holds a prefix of it
        self.n_draft = n_draft

    # ------------------------------------------------------------- drafting

    @property
    def n_draft_limit(self) -> int:
        """The greatest draft length that this context can verify and take back."""
        limit = min(self.context.max_outputs, self.context.n_batch) - 1
        return min(limit, self.context.snapshots) if self.context.has_state else limit

    @property
    def n_draft(self) -> int:
        """Tokens drafted a round."""
        return self._n_draft

    @n_draft.setter
    def n_draft(self, value: int) -> None:
        if value < 0:
            raise UsageError(f"A draft length of {value} cannot be.", why="It is a number of tokens.")
        self._n_draft = min(value, self.n_draft_limit)

    @property
    def draft_on(self) -> bool:
        """The person's switch; see `status` for whether drafting happens."""
        return self._draft_on

    @draft_on.setter
    def draft_on(self, value: bool) -> None:
        self._draft_on = value
        self._fault = ""  # switching on again is another try

    def drafter_failed(self, error: DecodeError) -> None:
        """Go on without the drafter, and say so; the text does not depend on it."""
        self._fault = f"the draft failed: {error.message}"
        if self.drafter is not None:
            self.drafter.clear()

    @property
    def _standing_reason(self) -> str:
        """Why nothing is drafted whatever the conversation; empty when something is."""
        if self.drafter is None:
            return self._off_reason or "no draft was asked for"
        if not self._draft_on:
            return "switched off"
        if self.n_draft_limit < 1:
            return "this target cannot take rejected tokens back"
        if self._n_draft == 0:
            return "the draft length is 0"
        return self._fault

    @property
    def drafts(self) -> bool:
        """Whether the drafter is asked each round. It may still have nothing to propose."""
        return not self._standing_reason

    @property
    def status(self) -> DraftStatus:
        """Whether tokens are drafted now, and why not."""
        name = self.drafter.name if self.drafter is not None else ""
        reason = self._standing_reason or (self.drafter.off_reason if self.drafter is not None else "")
        return DraftStatus("off" if reason else "on", reason, name, 0 if reason else self._n_draft)

    # ------------------------------------------------------------ answering

    def clear(self) -> None:
        """Forget the conversation in both caches."""
        self._ids = []
        self.context.clear()
        if self.drafter is not None:
            self.drafter.clear()

    def generate(
        self, request: Request, cancelled: Callable[[], bool] = lambda: False
    ) -> Iterator[EngineEvent]:
        """Answer; see `localspec.spec.events`.

        Prefixes that the caches hold from earlier answers are not evaluated again. However this ends, the caches hold
        a prefix of the accepted conversation and the engine can go on.

        Args:
            request: What to answer and how.
            cancelled: Asked between rounds and between chunks of the prompt.

        Yields:
            `PromptProgress`, then a `Round` for each verify pass, then `Finished`.

        Raises:
            ContextFullError: The prompt leaves no room for a token.
            DecodeError: llama.cpp failed.
        """
        answer = _Answer(self, request)
        try:
            yield from answer.run(cancelled)
        finally:
            self._settle()

    def _settle(self) -> None:
        """Bring the cache back to a prefix of the conversation."""
        if self.context.length > len(self._ids):
            self._cut(len(self._ids))

    def _cut(self, length: int) -> None:
        if not self.context.truncate(length):
            self.context.clear()


class _Answer:
    """The state of one answer."""

    def __init__(self, engine: Engine, request: Request) -> None:
        if not request.prompt:
            raise UsageError("The prompt is empty.", why="There is no token to go on from.")
        self.engine = engine
        self.context = engine.context
        self.request = request
        self.began = time.perf_counter()
        self.first_at = 0.0
        self.sampler = Sampler(request.sampling)
        self.draft_sampler = self.sampler.for_draft()
        self.text = TextStream(stop=request.stop, tags=request.tags, in_thinking=request.in_thinking)
        self.markers = _control_markers(engine.vocab, request.tags)
        self.counters = Counters(prompt_tokens=len(request.prompt))
        self.token_ids: list[int] = []
        self.reason: FinishReason | None = None
        self.drafter_follows = False  # the drafter has seen this conversation

    def run(self, cancelled: Callable[[], bool]) -> Iterator[EngineEvent]:
        """The whole answer."""
        yield from self.prompt(cancelled)
        while self.reason is None:
            if cancelled():
                self.reason = "cancelled"
            elif self.context.room < 1:
                self.reason = "context"
            else:
                yield self.round(cancelled)
        held = self.text.flush()
        if held:
            yield self.report(held)
        yield Finished(
            reason=self.reason,
            text=self.text.answer,
            thinking=self.text.thinking,
            token_ids=tuple(self.token_ids),
            stats=self.counters.snapshot(),
            draft=self.engine.status,
            context_used=len(self.engine._ids),
            context_size=self.context.n_ctx,
        )

    def prompt(self, cancelled: Callable[[], bool]) -> Iterator[EngineEvent]:
        """Bring both caches to the prompt and choose the first token."""
        engine, context = self.engine, self.context
        prompt = list(self.request.prompt)
        if len(prompt) > context.n_ctx:
            raise ContextFullError(
                f"The conversation has {len(prompt)} tokens, the context holds {context.n_ctx}.",
                why="Nothing is dropped from it without your word.",
                hint=f"localspec run --ctx {1 << len(prompt).bit_length()}",
            )
        # The last id is evaluated again even when it is cached: its logits choose the first token.
        keep = min(common_prefix(engine._ids, prompt), context.length, len(prompt) - 1)
        engine._cut(keep)
        engine._ids = prompt
        reused = self.counters.reused_tokens = context.length
        yield PromptProgress(reused, len(prompt), reused)
        for done in context.extend(prompt[reused:], cancelled):
            yield PromptProgress(reused + done, len(prompt), reused)
        self.counters.prompt_s = time.perf_counter() - self.began
        if context.length < len(prompt):
            self.reason = "cancelled"
            return
        rows = context.logits()
        if engine.drafts:
            self.show_drafter(cancelled)
        pieces, _ = self.choose(rows, Draft())
        self.first_at = time.perf_counter()
        self.counters.ttft_s = self.first_at - self.began
        yield self.report(pieces)

    def round(self, cancelled: Callable[[], bool]) -> Round:
        """Draft, verify, choose, and take back what was rejected."""
        began = time.perf_counter()
        ids, context = self.engine._ids, self.context
        draft = self.propose(cancelled)
        drafted_at = time.perf_counter()
        behind = ids[context.length : -1]  # empty, unless a removal failed and emptied the cache
        if behind:
            for _ in context.extend(behind):
                pass
        context.decode([ids[-1], *draft.tokens], "all")
        rows = context.logits()
        verified_at = time.perf_counter()
        length = len(ids)
        pieces, accepted = self.choose(rows, draft)
        self.engine._cut(length + accepted)
        if draft.tokens and self.engine.drafter is not None:
            self.engine.drafter.accept(ids)
        counters = self.counters
        counters.add_round(len(draft.tokens), accepted)
        ended = time.perf_counter()
        counters.draft_s += drafted_at - began
        counters.verify_s += verified_at - drafted_at
        counters.other_s += ended - verified_at
        counters.decode_s = ended - self.first_at
        return self.report(pieces)

    def propose(self, cancelled: Callable[[], bool]) -> Draft:
        """What the drafter proposes, clipped to what can be verified and is wanted."""
        engine = self.engine
        k = min(engine.n_draft, self.context.room - 1)
        if self.request.max_tokens:
            k = min(k, self.request.max_tokens - len(self.token_ids) - 1)
        if k < 1 or engine.drafter is None or not engine.drafts:
            return Draft()
        try:
            if not self.drafter_follows:
                self.show_drafter(cancelled)
            draft = engine.drafter.draft(engine._ids, k, self.draft_sampler)
        except DecodeError as error:
            engine.drafter_failed(error)
            return Draft()
        return _usable(draft, k, self.context.n_vocab)

    def show_drafter(self, cancelled: Callable[[], bool]) -> None:
        """Let the drafter read the conversation."""
        drafter = self.engine.drafter
        if drafter is None:
            return
        try:
            drafter.begin(self.engine._ids, cancelled=cancelled)
            self.drafter_follows = True
        except DecodeError as error:
            self.engine.drafter_failed(error)

    def choose(self, rows: npt.NDArray[np.float32], draft: Draft) -> tuple[tuple[Piece, ...], int]:
        """The target's choices along the draft, up to the first that differs.

        Args:
            rows: Logits, shape (1 + drafted, n_vocab).
            draft: What was verified.

        Returns:
            What the choices released, and how many of them were drafted.
        """
        ids = self.engine._ids
        pieces: list[Piece] = []
        accepted = 0
        for row, drafted in zip(rows, (*draft.tokens, None), strict=True):
            token = self.sampler.choose(row, len(ids), ids)
            ids.append(token)
            agrees = token == drafted
            accepted += agrees
            pieces += self.take(token, agrees)
            if self.reason is not None or not agrees:
                break
        return tuple(pieces), accepted

    def take(self, token: int, drafted: bool) -> tuple[Piece, ...]:
        """Add a token to the answer; sets the reason when the answer ends with it."""
        vocab = self.engine.vocab
        if vocab.is_eog(token) and not self.request.ignore_eos:
            self.reason = "stop"
            return ()
        self.token_ids.append(token)
        self.counters.completion_tokens += 1
        pieces = self.text.push(token, self.markers.get(token) or vocab.piece(token), drafted)
        if self.text.stopped:
            self.reason = "stop"
        elif len(self.token_ids) == self.request.max_tokens:
            self.reason = "length"
        return pieces

    def report(self, pieces: tuple[Piece, ...]) -> Round:
        """A round's event."""
        return Round(
            pieces, self.counters.snapshot(), self.engine.status, len(self.engine._ids), self.context.n_ctx
        )


def _usable(draft: Draft, k: int, n_vocab: int) -> Draft:
    """The part of a proposal that can be put into a batch; a foreign drafter may propose anything."""
    count = 0
    for token in draft.tokens[:k]:
        if not 0 <= token < n_vocab:
            break
        count += 1
    if count == len(draft.tokens):
        return draft
    return Draft(draft.tokens[:count], draft.probabilities[:count], draft.margins[:count])


def _control_markers(vocab: Vocab, tags: tuple[str, str] | None) -> dict[int, bytes]:
    """Thinking tags that are control tokens, which have no text of their own."""
    markers = {}
    for tag in tags or ():
        token_ids = vocab.tokenize(tag)
        if len(token_ids) == 1 and vocab.is_control(token_ids[0]):
            markers[token_ids[0]] = tag.encode()
    return markers
