"""The speculative loop.

Each round the drafter proposes up to k tokens; the target evaluates them in one batch behind the last accepted token
and chooses at every position for itself, with noise that depends on seed, position and id only. A drafted token is
accepted when it equals the target's choice. So the text is the target's own, whatever was drafted, and each round
yields one token more than it accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from localspec.errors import DecodeError, DrafterError, UsageError
from localspec.llama.context import Context
from localspec.llama.tokens import Vocab
from localspec.spec.acceptance import EXPECTED
from localspec.spec.answer import Answer, Request
from localspec.spec.curve import Costs
from localspec.spec.drafter import Drafter
from localspec.spec.events import DraftStatus, EngineEvent
from localspec.spec.length import FixedLength, LengthPolicy, PricedLength
from localspec.spec.plain import PlainStep

__all__ = ["Engine", "Request"]


class Engine:
    """A target with its cache, and a drafter that can be switched while it runs.

    Args:
        context: The target's context, with `max_outputs` of at least n_draft + 1. The caller closes it.
        vocab: The target's vocabulary.
        drafter: None = plain decoding.
        n_draft: Tokens drafted a round (see `set_length`).
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
        self.ids: list[int] = []
        """The conversation; the target's cache holds a prefix of it."""
        self.no_overlap = ""
        """Why no draft model drafts on while the target verifies, where somebody decided that."""
        self.plain = PlainStep()
        """What a step without a draft takes, for fixed lengths."""
        self.answering = False
        """Whether a `generate` is under way."""
        self.policy: LengthPolicy = FixedLength(0)
        self._last_length = 0
        self.set_length(n_draft)

    # ------------------------------------------------------------- drafting

    @property
    def n_draft_limit(self) -> int:
        """The greatest draft length that this context can verify and take back."""
        limit = min(self.context.max_outputs, self.context.n_batch) - 1
        return min(limit, self.context.snapshots) if self.context.has_state else limit

    def set_length(self, n_draft: int, costs: Costs | None = None) -> None:
        """Choose the draft length.

        Args:
            n_draft: Tokens drafted a round, at most `n_draft_limit`; with `costs`, the greatest number of them.
            costs: The prices by which each round's length is chosen; None = always `n_draft`.

        Raises:
            UsageError: A negative length.
        """
        if n_draft < 0:
            raise UsageError(f"A draft length of {n_draft} cannot be.", why="It is a number of tokens.")
        limit = min(n_draft, self.n_draft_limit)
        self._last_length = limit
        self.policy = FixedLength(limit)
        if costs is not None and limit > 0:
            expected = self.drafter.expected if self.drafter is not None else EXPECTED
            self.policy = PricedLength(costs, limit, expected=expected)
        if self.drafter is not None:
            self.drafter.bind(self.policy)

    @property
    def n_draft(self) -> int:
        """The greatest number of tokens that a round drafts."""
        return self.policy.longest

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
        self._fault = (
            error.message if isinstance(error, DrafterError) else f"the draft failed: {error.message}"
        )
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
        if self.n_draft == 0:
            return "the draft length is 0"
        return self._fault

    @property
    def drafts(self) -> bool:
        """Whether the drafter is asked each round. It may still have nothing to propose."""
        return not self._standing_reason

    def begin_round(self) -> bool:
        """Start a round: whether the drafter is asked in it."""
        if self.drafter is None or not self.drafts:
            return False
        self.policy.at(len(self.ids))
        return self.policy.begin() or self.drafter.free  # whose labels cost nothing

    @property
    def status(self) -> DraftStatus:
        """Whether tokens are drafted now, and why not."""
        name = self.drafter.name if self.drafter is not None else ""
        reason = self._standing_reason
        if not reason and self.drafter is not None:
            reason = self.drafter.off_reason
            if not reason and (self.policy.blocked or not self.drafter.free):
                reason = self.policy.off_reason
        policy = self.policy
        auto = isinstance(policy, PricedLength)
        plain_s = policy.costs.plain_step if isinstance(policy, PricedLength) else self.plain.seconds
        length = 0 if reason else self._last_length
        predicted = None if reason else policy.predicted
        overlap = not reason and self.drafter is not None and self.drafter.overlaps
        return DraftStatus(
            "off" if reason else "on",
            reason,
            name,
            length,
            auto,
            plain_s,
            predicted,
            overlap,
            self.no_overlap,
        )

    def used_length(self, k: int) -> None:
        """Take note of the length that a round verifies, for the status."""
        self._last_length = k if isinstance(self.policy, PricedLength) else self._last_length

    # ------------------------------------------------------------ answering

    def clear(self) -> None:
        """Forget the conversation in both caches."""
        self.ids = []
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
        answer = Answer(self, request)
        self.answering = True
        try:
            yield from answer.run(cancelled)
        finally:
            self.answering = False
            self._settle()

    def _settle(self) -> None:
        """Bring the cache back to a prefix of the conversation, and the drafter to rest."""
        if self.drafter is not None:
            self.drafter.rest()
        if self.context.length > len(self.ids):
            self.cut(len(self.ids))

    def cut(self, length: int) -> None:
        """Keep the first `length` tokens in the target's cache, or the most below that to which it can go back."""
        self.context.rewind(length)
