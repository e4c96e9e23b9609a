"""One answer: the prompt, then rounds of drafting, verifying and choosing until it ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from localspec.errors import AbortedError, ContextFullError, DecodeError, UsageError
from localspec.llama.tokens import Vocab
from localspec.spec.drafter import Draft, common_prefix
from localspec.spec.events import (
    EngineEvent,
    Finished,
    FinishReason,
    Piece,
    PromptProgress,
    Rejected,
    Round,
    Sampling,
)
from localspec.spec.length import Outcome
from localspec.spec.sampling import Sampler
from localspec.spec.stats import Counters
from localspec.spec.text import TextStream

if TYPE_CHECKING:
    from localspec.llama.context import Context
    from localspec.spec.engine import Engine


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
        anchors: Lengths at which later prompts may leave this one: behind each question, since templates drop the
            thinking of answers and a person asks for another one. A memory that cannot be cut is copied there.
    """

    prompt: Sequence[int]
    sampling: Sampling
    max_tokens: int = 0
    stop: tuple[str, ...] = ()
    tags: tuple[str, str] | None = None
    in_thinking: bool = False
    ignore_eos: bool = False
    anchors: tuple[int, ...] = ()


class Answer:
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
        self.unwatched_s = 0.0  # decoding since the drafter that costs was asked last

    def run(self, cancelled: Callable[[], bool]) -> Iterator[EngineEvent]:
        """The whole answer."""
        try:
            yield from self.prompt(cancelled)
            while self.reason is None:
                if cancelled():
                    self.reason = "cancelled"
                elif self.context.room < 1:
                    self.reason = "context"
                else:
                    yield self.round(cancelled)
        except AbortedError:
            self.reason = "cancelled"
        held = self.text.flush()
        if self.text.stopped and self.reason != "cancelled":
            self.reason = "stop"  # it could only be seen now that nothing follows
        if held:
            yield self.report(held)
        yield Finished(
            reason=self.reason,
            text=self.text.answer,
            thinking=self.text.thinking,
            token_ids=tuple(self.token_ids),
            stats=self.counters.snapshot(),
            draft=self.engine.status,
            context_used=len(self.engine.ids),
            context_size=self.context.n_ctx,
        )

    def prompt(self, cancelled: Callable[[], bool]) -> Iterator[EngineEvent]:
        """Bring both caches to the prompt and choose the first token."""
        engine, context = self.engine, self.context
        prompt = list(self.request.prompt)
        if len(prompt) > context.n_ctx:
            raise too_long(len(prompt), context)
        # The last id is evaluated again even when it is cached: its logits choose the first token.
        keep = min(common_prefix(engine.ids, prompt), context.length, len(prompt) - 1)
        if engine.drafter is not None:
            engine.drafter.expect(prompt, self.request.anchors)
        if engine.drafter is not None and engine.drafts:
            keep = engine.drafter.reach(keep)
        engine.cut(keep)
        engine.ids = prompt
        reused = self.counters.reused_tokens = context.length
        yield PromptProgress(reused, len(prompt), reused)
        for done in context.extend(prompt[reused:], cancelled, self.request.anchors):
            yield PromptProgress(reused + done, len(prompt), reused)
        self.counters.prompt_s = time.perf_counter() - self.began
        if context.length < len(prompt):
            self.reason = "cancelled"
            return
        rows = context.logits()
        if engine.begin_round():
            self.follows(cancelled)
        pieces, _ = self.choose(rows, ())
        self.first_at = time.perf_counter()
        self.counters.ttft_s = self.first_at - self.began
        yield self.report(pieces)

    def round(self, cancelled: Callable[[], bool]) -> Round:
        """Draft, verify, choose, and take back what was rejected."""
        began = time.perf_counter()
        engine, context, ids = self.engine, self.context, self.engine.ids
        proposal = self.propose(cancelled)
        drafted_at = time.perf_counter()
        kept = engine.policy.keep(len(proposal.tokens), proposal.chances) if proposal.tokens else 0
        drafted = proposal.tokens[:kept]
        if proposal.tokens:
            engine.used_length(kept)
        behind = ids[context.length : -1]  # empty, unless a removal failed and emptied the cache
        for _ in context.extend(behind, cancelled, self.request.anchors):
            pass
        if context.length < len(ids) - 1:
            raise AbortedError("The evaluation was stopped.")
        context.decode([ids[-1], *drafted], "all")
        rows = context.logits()
        verified_at = time.perf_counter()
        length = len(ids)
        pieces, accepted = self.choose(rows, drafted)
        engine.cut(length + accepted)
        if proposal.tokens and engine.drafter is not None:
            engine.drafter.accept(ids)
        ended = time.perf_counter()
        counters = self.counters
        counters.add_round(kept, accepted, proposal.source)
        counters.draft_s += drafted_at - began
        counters.verify_s += verified_at - drafted_at
        counters.other_s += ended - verified_at
        counters.decode_s = ended - self.first_at
        outcome = Outcome(
            proposal.probabilities,
            proposal.margins,
            proposal.chances,
            proposed=len(proposal.tokens),
            verified=kept,
            accepted=accepted,
            # The bonus token tells whether the first token that was cut was right.
            cut_token_agrees=ids[-1] == proposal.tokens[kept]
            if accepted == kept < len(proposal.tokens) and len(ids) > length + kept
            else None,
            draft_s=drafted_at - began,
            verify_s=verified_at - drafted_at,
            seconds=ended - began,
        )
        engine.policy.learn(outcome)
        engine.plain.saw(outcome.verified + 1, outcome.verify_s)
        self.watch_from_aside(outcome, cancelled)
        fell = len(ids) > length + accepted < length + kept
        return self.report(pieces, self.rejected(proposal, accepted) if fell else None)

    def propose(self, cancelled: Callable[[], bool]) -> Draft:
        """What the drafter proposes, clipped to what can be verified and is wanted."""
        engine = self.engine
        k = min(engine.n_draft, self.context.room - 1)
        if self.request.max_tokens:
            k = min(k, self.request.max_tokens - len(self.token_ids) - 1)
        if k < 1 or not engine.begin_round() or engine.drafter is None:
            return Draft()
        try:
            if not self.follows(cancelled):
                return Draft()
            draft = engine.drafter.draft(engine.ids, k, self.draft_sampler, engine.policy.go_on)
        except DecodeError as error:
            engine.drafter_failed(error)
            return Draft()
        if not draft.source:
            draft = replace(draft, source=engine.drafter.name)
        return _usable(draft, k, self.context.n_vocab)

    def watch_from_aside(self, outcome: Outcome, cancelled: Callable[[], bool]) -> None:
        """While drafting is off by price, ask the drafter now and then what it would have proposed."""
        engine = self.engine
        unseen = not outcome.proposed or bool(outcome.chances)  # the drafter that costs was not asked
        self.unwatched_s = self.unwatched_s + outcome.seconds if unseen else 0.0
        if not engine.drafts or engine.drafter is None or not engine.policy.shadow_due(self.unwatched_s):
            return
        missed_s, self.unwatched_s = self.unwatched_s, 0.0
        began = time.perf_counter()
        try:
            if not self.follows(cancelled):
                return
            labels = engine.drafter.shadow(engine.ids, self.draft_sampler)
        except DecodeError as error:
            engine.drafter_failed(error)
            return
        seconds = time.perf_counter() - began
        self.counters.draft_s += seconds
        engine.policy.shadow(labels, seconds, missed_s)

    def follows(self, cancelled: Callable[[], bool]) -> bool:
        """Whether the drafter knows this conversation; it reads it when it is asked first, and may fail at that."""
        drafter = self.engine.drafter
        if drafter is not None and not self.drafter_follows:
            try:
                drafter.begin(self.engine.ids, cancelled=cancelled)
                self.drafter_follows = True
            except DecodeError as error:
                self.engine.drafter_failed(error)
        return self.drafter_follows

    def choose(
        self, rows: npt.NDArray[np.float32], drafted: tuple[int, ...]
    ) -> tuple[tuple[Piece, ...], int]:
        """The target's choices along the draft, up to the first that differs.

        Args:
            rows: Logits, shape (1 + drafted, n_vocab).
            drafted: The ids that were verified.

        Returns:
            What the choices released, and how many of them were drafted.
        """
        ids = self.engine.ids
        pieces: list[Piece] = []
        accepted = 0
        for row, proposed in zip(rows, (*drafted, None), strict=True):
            token = self.sampler.choose(row, len(ids), ids)
            ids.append(token)
            agrees = token == proposed
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

    def rejected(self, proposal: Draft, at: int) -> Rejected:
        """The proposal's token that differs from the target's newest choice."""
        vocab = self.engine.vocab
        drafted, chosen = (
            (vocab.piece(token) or vocab.text(token).encode()).decode("utf-8", "replace")
            for token in (proposal.tokens[at], self.engine.ids[-1])
        )
        return Rejected(drafted, chosen, next(iter(proposal.probabilities[at:]), None))

    def report(self, pieces: tuple[Piece, ...], rejected: Rejected | None = None) -> Round:
        """A round's event."""
        return Round(
            pieces,
            self.counters.snapshot(),
            self.engine.status,
            len(self.engine.ids),
            self.context.n_ctx,
            rejected,
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
    return replace(
        draft,
        tokens=draft.tokens[:count],
        probabilities=draft.probabilities[:count],
        margins=draft.margins[:count],
        chances=draft.chances[:count],
    )


def _control_markers(vocab: Vocab, tags: tuple[str, str] | None) -> dict[int, bytes]:
    """The text of control tokens in thinking tags; as pieces they have none."""
    return {
        token: vocab.text(token).encode()
        for tag in tags or ()
        for token in vocab.tokenize(tag)
        if vocab.is_control(token)
    }


def too_long(length: int, context: Context, *, about: bool = False) -> ContextFullError:
    """The error for a conversation that does not fit.

    Args:
        length: Its tokens.
        context: Where it should go.
        about: They were estimated.
    """
    trained = context.n_ctx_train
    why = "Nothing is dropped from it without your word."
    if 0 < trained <= length:  # no context that can be had is large enough
        why = f"The model was trained for {trained} tokens, and no larger context is made."
        hint = "a shorter prompt; in the chat, /clear"
    else:
        size = 1 << length.bit_length()
        hint = f"localspec run --ctx {min(size, trained) if trained else size}"
    count = f"about {length}" if about else f"{length}"
    return ContextFullError(
        f"The conversation has {count} tokens, the context holds {context.n_ctx}.", why=why, hint=hint
    )
