"""Drafting while the target verifies.

A thread drafts on behind its own line: it takes for granted that all of the last proposal is accepted and that its own
next token is the bonus. The engine takes what is ready and still agrees with the text; where they part, the thread goes
back to the last token that they share. The noise behind every choice depends on seed, position and id only, so neither
the thread's timing nor a wrong guess can change the text: the target chooses alone.

After AMUSD (McDanel, "AMUSD: Asynchronous Multi-Device Speculative Decoding for LLM Acceleration", 2024), which drafts
greedily; shared noise makes the same free-running order exact at any temperature.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from localspec.errors import UsageError
from localspec.spec.draft_model import ModelDrafter
from localspec.spec.drafter import Draft, Drafter, GoOn, always
from localspec.spec.events import Sampling
from localspec.spec.length import Label
from localspec.spec.sampling import Sampler

MOST_AHEAD = 7
"""Tokens drafted behind the next bonus at most: longer lines seldom hold."""
_TYPICAL = 3  # tokens of a proposal, of which `least` are waited for
_LEAST_WAITED = 0.05


class OverlapDrafter(Drafter):
    """A draft model on a thread of its own, which drafts on between two proposals.

    The draft's context belongs to the thread from the first `draft` of an answer on, and to the caller again after
    `begin`, `shadow`, `clear`, `alone` or `close`, which wait for the step in hand.

    Args:
        inner: The model; one whose memory can be cut back.
        least: Tokens that a proposal waits for when fewer are ready. 0 never waits: the target then makes a plain step
            where the draft has nothing.

    Raises:
        UsageError: The model carries a recurrent state, which cannot be taken back behind single steps.
    """

    overlaps = True

    def __init__(self, inner: ModelDrafter, *, least: int = 1) -> None:
        if not inner.can_rewind:
            raise UsageError(
                f"{inner.name} cannot draft ahead.", why="A recurrent state cannot be taken back."
            )
        self.name = inner.name
        self.least = least
        self.waited = min(max(least / _TYPICAL, _LEAST_WAITED), 1.0)
        self._inner = inner
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        # All below is guarded by `_changed`; line, choices and sampler change in the thread only, while it runs.
        self._line: list[int] = []  # the conversation as far as the thread knows it, then what it drafted
        self._drafted: list[Draft] = []  # one token each
        self._sampler = Sampler(Sampling())
        self._news: list[int] = []  # accepted tokens that the thread has not compared yet
        self._end = 0  # the line's length at which it rests
        self._running = False
        self._busy = False
        self._closed = False
        self._fault: Exception | None = None

    @property
    def off_reason(self) -> str:
        """See `Drafter.off_reason`."""
        return self._inner.off_reason

    def expect(self, ids: Sequence[int], anchors: Sequence[int]) -> None:
        """See `Drafter.expect`."""
        self.alone().expect(ids, anchors)

    def begin(self, ids: Sequence[int], *, cancelled: Callable[[], bool] = lambda: False) -> None:
        """See `Drafter.begin`."""
        self.alone().begin(ids, cancelled=cancelled)

    def draft(self, ids: Sequence[int], k: int, sampler: Sampler, go_on: GoOn = always) -> Draft:
        """See `Drafter.draft`; `go_on` is told about the tokens, but those that are ready cost nothing any more.

        Raises:
            DecodeError: The thread failed since the last call.
        """
        n_ctx = self._inner.n_ctx
        if len(ids) > n_ctx:
            return self.alone().draft(ids, k, sampler, go_on)  # which says that it is full
        k = min(k, n_ctx - len(ids) + 1)
        ahead = min(k, MOST_AHEAD)
        with self._changed:
            self._raise_fault()
            self._tell(ids, sampler)
            self._end = len(ids) + ahead
            self._changed.notify_all()
            self._changed.wait_for(lambda: len(self._ready()) >= min(self.least, k) or not self._running)
            self._raise_fault()
            taken = self._ready()[:k]
            # All of it accepted, the bonus guessed, and as much again behind it.
            self._end = len(ids) + len(taken) + 1 + ahead
            self._changed.notify_all()
        draft = Draft(
            tuple(each.tokens[0] for each in taken),
            tuple(each.probabilities[0] for each in taken),
            tuple(each.margins[0] for each in taken),
        )
        for probability, margin in zip(draft.probabilities, draft.margins, strict=True):
            go_on(probability, margin)
        return draft

    def accept(self, ids: Sequence[int]) -> None:
        """See `Drafter.accept`; the thread goes back at once where it was wrong."""
        with self._changed:
            if self._running:
                self._tell(ids, self._sampler)
                self._changed.notify_all()

    def shadow(self, ids: Sequence[int], sampler: Sampler) -> list[Label]:
        """See `Drafter.shadow`."""
        with self._changed:
            self._raise_fault()
        return self.alone().shadow(ids, sampler)

    def clear(self) -> None:
        """See `Drafter.clear`."""
        self.alone().clear()

    def rest(self) -> None:
        """See `Drafter.rest`; the step in hand is not waited for."""
        with self._changed:
            self._running = False

    def alone(self) -> ModelDrafter:
        """The model itself, for the plain order; the thread has let go of it until the next `draft`."""
        with self._changed:
            self._running = False
            self._changed.wait_for(lambda: not self._busy)
            self._fault = None
        return self._inner

    def close(self) -> None:
        """See `Drafter.close`: ends the thread."""
        with self._changed:
            self._running, self._closed = False, True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
        self._inner.close()

    # ------------------------------------------- both sides, with `_changed` held

    def _tell(self, ids: Sequence[int], sampler: Sampler) -> None:
        """Let the thread know the conversation; it runs from here on."""
        if self._running and sampler is self._sampler:
            known = len(self._line) - len(self._drafted) + len(self._news)
            self._news += ids[known:]
            return
        self._running = False
        self._changed.wait_for(lambda: not self._busy)
        self._line, self._drafted, self._news = list(ids), [], []
        self._sampler, self._fault = sampler, None
        self._inner.rewind(0)  # it compares its cache with the new line from the start
        self._running = not self._closed
        if self._thread is None and self._running:
            self._thread = threading.Thread(target=self._run, name="localspec draft ahead", daemon=True)
            self._thread.start()

    def _ready(self) -> list[Draft]:
        """What was drafted behind the conversation as it is now; nothing where the line has left it."""
        seen = len(self._news)
        if seen > len(self._drafted):
            return []
        agree = all(each.tokens[0] == token for each, token in zip(self._drafted, self._news, strict=False))
        return self._drafted[seen:] if agree else []

    def _raise_fault(self) -> None:
        fault, self._fault = self._fault, None
        if fault is not None:
            raise fault

    # -------------------------------------------------------------- the thread

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._has_work())
                if self._closed:
                    return
                self._compare()
                if not self._wants_token():
                    self._changed.notify_all()  # it rests
                    continue
                self._busy = True
            made, fault = Draft(), None
            try:
                made = self._inner.draft(self._line, 1, self._sampler)
            except Exception as error:  # the caller's next `draft` raises it
                fault = error
            with self._changed:
                self._busy = False
                if made.tokens:
                    self._line.append(made.tokens[0])
                    self._drafted.append(made)
                else:  # it failed, or the answer was stopped
                    self._fault, self._running = fault, False
                self._changed.notify_all()

    def _has_work(self) -> bool:
        return self._running and (bool(self._news) or self._wants_token())

    def _wants_token(self) -> bool:
        return len(self._line) < self._end and len(self._line) <= self._inner.n_ctx

    def _compare(self) -> None:
        """Bring the line to the accepted text."""
        known = len(self._line) - len(self._drafted)
        for index, token in enumerate(self._news):
            if index < len(self._drafted) and self._line[known + index] == token:
                continue
            self._inner.rewind(known + index)
            self._line[known + index :] = self._news[index:]
            self._drafted = []
            break
        else:
            del self._drafted[: len(self._news)]
        self._news = []
