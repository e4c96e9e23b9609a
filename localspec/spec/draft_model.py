"""The `model` drafter: a second, smaller GGUF of the same vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from localspec.llama.context import Context
from localspec.spec.drafter import Draft, Drafter, GoOn, always, common_prefix, draft_by_steps, label_rows
from localspec.spec.length import Label
from localspec.spec.sampling import Row, Sampler


class ModelDrafter(Drafter):
    """Drafts with a model, one token after the other.

    Its cache follows the accepted text. Rejected tokens are cut off where the memory is a list of cells. A recurrent
    state cannot be cut behind single steps (llama.cpp keeps snapshots of the last batch only, and does not notice), so
    such a model drafts in a fork of its memory, and the accepted tokens are evaluated once more as one batch.

    Args:
        context: The draft model's context; the caller closes it and its model. A context with state needs
            `branches=True`.
        name: Shown on screen.
        n_vocab: Size of the target's vocabulary; ids beyond it are never proposed.
    """

    def __init__(self, context: Context, *, name: str, n_vocab: int) -> None:
        self.name = name
        self._context = context
        self._n_vocab = min(n_vocab, context.n_vocab)
        self._cached: list[int] = []  # ids in the context's cache
        self._known = 0  # how many of them are known to agree with the conversation
        self._full = False
        self._anchors: tuple[int, ...] = ()
        self._cancelled: Callable[[], bool] = lambda: False

    @property
    def off_reason(self) -> str:
        """See `Drafter.off_reason`."""
        return f"context of the draft ({self._context.n_ctx} tokens) is full" if self._full else ""

    @property
    def n_ctx(self) -> int:
        """Tokens that its context holds."""
        return self._context.n_ctx

    @property
    def can_rewind(self) -> bool:
        """Its memory is a list of cells: tokens can be taken back one by one."""
        return not self._context.has_state

    def begin(self, ids: Sequence[int], *, cancelled: Callable[[], bool] = lambda: False) -> None:
        """See `Drafter.begin`."""
        self._known = 0
        self._cancelled = cancelled
        self._full = len(ids) > self._context.n_ctx
        self._follow(ids)
        if self._full:
            return
        # The last id is left to `draft`, which needs its logits.
        missing = list(ids[len(self._cached) : -1])
        if missing:
            self._evaluate(missing)

    def expect(self, ids: Sequence[int], anchors: Sequence[int]) -> None:
        """See `Drafter.expect`."""
        self._anchors = tuple(anchors)

    def draft(self, ids: Sequence[int], k: int, sampler: Sampler, go_on: GoOn = always) -> Draft:
        """See `Drafter.draft`."""
        context = self._context
        k = min(k, context.n_ctx - len(ids) + 1)
        self._full = k < 1
        if self._full:
            return Draft()
        self._follow(ids)
        self._evaluate(list(ids[len(self._cached) :]))
        self._known = len(self._cached)
        if self._known < len(ids):
            return Draft()  # stopped half-way

        def step(token: int) -> None:
            context.decode([token], "last")
            if not context.has_state:
                self._cached.append(token)

        if context.has_state and k > 1:
            context.fork()
        try:
            return draft_by_steps(ids, k, sampler, go_on, row=self._row, step=step)
        finally:
            if context.has_state:
                context.join()
                if context.length != len(self._cached):  # a failure emptied it
                    self.clear()

    def shadow(self, ids: Sequence[int], sampler: Sampler) -> list[Label]:
        """See `Drafter.shadow`: one batch of the last tokens, with logits at every row."""
        self._follow(ids)
        context = self._context
        count = min(context.max_outputs, context.n_batch, len(ids) - 1)
        if len(ids) > context.n_ctx or count < 1:
            return []
        start = len(ids) - 1 - count  # the last id's successor is not known yet
        if len(self._cached) < start:
            self._evaluate(list(ids[len(self._cached) : start]))
            if len(self._cached) < start:
                return []  # stopped half-way
        start = len(self._cached)
        batch = list(ids[start:-1])
        if not batch:
            return []
        context.decode(batch, "all")
        self._cached.extend(batch)
        self._known = len(self._cached)
        rows = (row[: self._n_vocab] for row in context.logits())
        return label_rows(rows, start, ids, sampler)

    def accept(self, ids: Sequence[int]) -> None:
        """See `Drafter.accept`."""
        self._follow(ids)

    def clear(self) -> None:
        """See `Drafter.clear`."""
        self._context.clear()
        self._cached.clear()
        self._known = 0
        self._full = False

    def rewind(self, length: int) -> None:
        """What its cache holds beyond `length` tokens may be no part of the conversation: compare it again."""
        self._known = min(self._known, length)

    def _row(self) -> Row:
        row: Row = self._context.logits()[-1][: self._n_vocab]
        return row

    def _follow(self, ids: Sequence[int]) -> None:
        """Cut the cache to what it has in common with `ids`, less the last one, whose logits are needed again."""
        agreed = common_prefix(self._cached, ids, self._known)
        keep = min(agreed, len(ids) - 1)
        if keep < len(self._cached):
            del self._cached[self._context.rewind(keep) :]
        self._known = min(self._known, len(self._cached))

    def _evaluate(self, tokens: list[int]) -> None:
        before = self._context.length
        try:
            for _ in self._context.extend(tokens, self._cancelled, self._anchors):
                pass
        finally:
            done = self._context.length - before
            if done >= 0:
                self._cached.extend(tokens[:done])
            else:  # a failure cost a part of the cache
                del self._cached[self._context.length :]
                self._known = min(self._known, len(self._cached))
