"""The `mtp` drafter: the target's own next-token-prediction block."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from localspec.errors import DecodeError, UsageError
from localspec.llama.context import Outputs
from localspec.llama.mtp import NextTokenBlock
from localspec.spec.drafter import Draft, Drafter, GoOn, always, common_prefix, draft_by_steps, label_rows
from localspec.spec.length import Label
from localspec.spec.sampling import Sampler

_KEPT_BYTES = 64 << 20  # hidden states wait in so much memory (of the host) until a draft needs them


class MtpDrafter(Drafter):
    """Drafts with the target's next-token block.

    The block's cache holds at position p the pair (token p, the target's hidden state at p - 1). The drafter watches
    every evaluation of the target and keeps the hidden states that come out, so the block follows whatever the engine
    does: prompts, rounds with and without drafts, another conversation. States are fed late, when the tokens that they
    belong to are certain, in one batch with the first step of the next draft. While nothing is drafted they wait; when
    the room for them is full, they are fed in one go. So drafting can be switched on anywhere, and being off costs next
    to nothing.

    Further steps of a draft feed the block's own hidden state; their pairs are taken out again.

    Args:
        block: The block's context, closed by `close`.
        n_vocab: Size of the target's vocabulary; ids beyond it are never proposed.
        kept_bytes: Room for the hidden states that wait; it is taken when it is needed.
    """

    name = "mtp"
    # What was reported for blocks that were trained for one step: those that survive it are in easy text.
    expected = (0.75, 0.72, 0.70)

    def __init__(self, block: NextTokenBlock, *, n_vocab: int, kept_bytes: int = _KEPT_BYTES) -> None:
        self._block = block
        self._n_vocab = min(n_vocab, block.n_vocab)
        self._seen: list[int] = []  # ids that the target evaluated, or that were fed
        self._fed = 0  # pairs in the block's cache that are the target's own
        # Hidden states that go in beside the tokens at `_base`, `_base + 1`, ...: those of the positions before them.
        # The last one that was fed stays, so that a draft can be made once more.
        self._feed_at = min(max(kept_bytes // (4 * block.n_embd), 1), block.n_ctx)
        self._hidden = np.zeros((self._feed_at + block.n_batch + 2, block.n_embd), np.float32)
        self._base = 0
        self._count = 0
        self._next: Sequence[int] = ()  # what the target will read
        self._lost = False  # the target goes on from something that was not seen
        self._fault: DecodeError | None = None
        block.watch(self._observe)

    @property
    def off_reason(self) -> str:
        """See `Drafter.off_reason`."""
        return "the next-token block did not see this conversation's beginning" if self._lost else ""

    @property
    def _end(self) -> int:
        """The position behind the last one whose hidden input is kept."""
        return self._base + self._count

    def expect(self, ids: Sequence[int], anchors: Sequence[int]) -> None:
        """See `Drafter.expect`."""
        self._next = ids

    def reach(self, keep: int) -> int:
        """See `Drafter.reach`. The target's hidden state at `keep - 1` must be kept, or come out once more."""
        if keep == 0 or self._base <= keep < self._end:
            return keep
        if keep < min(self._fed, len(self._next) - 1) and self._seen[keep] == self._next[keep]:
            return keep  # this pair is there, and the hidden state for the next one comes out again
        return keep - 1 if keep < self._base else max(self._end - 1, 0)

    def begin(self, ids: Sequence[int], *, cancelled: Callable[[], bool] = lambda: False) -> None:
        """See `Drafter.begin`."""
        if not self._follows(ids, since=0):
            self._lose()
        else:
            self._feed(ids, len(ids) - 1, cancelled=cancelled)

    def draft(self, ids: Sequence[int], k: int, sampler: Sampler, go_on: GoOn = always) -> Draft:
        """See `Drafter.draft`."""
        k = min(k, self._block.n_ctx - len(ids) + 1)
        if k < 1 or not self._follows(ids):
            return Draft()
        block = self._block
        self._rewind(len(ids) - 1)
        self._feed(ids, len(ids))
        self._seen[len(ids) - 1 :] = ids[-1:]
        try:
            return draft_by_steps(
                ids,
                k,
                sampler,
                go_on,
                row=lambda: block.logits()[-1][: self._n_vocab],
                step=lambda token: block.decode([token], block.hidden(), "last"),
            )
        finally:
            block.truncate(self._fed)

    def shadow(self, ids: Sequence[int], sampler: Sampler) -> list[Label]:
        """See `Drafter.shadow`: the pairs that were not fed yet, with logits at every row."""
        last = len(ids) - 1  # the last id's successor is not known yet
        if last < 1 or not self._follows(ids):
            return []
        self._rewind(last)
        start = max(self._fed, last - min(self._block.max_outputs, self._block.n_batch))
        if start > self._fed:
            self._feed(ids, start)
        if start == last:
            return []
        self._feed(ids, last, every_row=True)
        rows = (row[: self._n_vocab] for row in self._block.logits())
        return label_rows(rows, start, ids, sampler)

    def clear(self) -> None:
        """See `Drafter.clear`. From here on it follows a conversation whose beginning it sees."""
        self._block.clear()
        self._seen.clear()
        self._fed = self._base = self._count = 0
        self._lost = False
        self._fault = None

    def close(self) -> None:
        """See `Drafter.close`."""
        self._block.close()

    def __call__(self, input_ids: npt.NDArray[np.intc], /, **kwargs: Any) -> npt.NDArray[np.intc]:
        """Not possible: a stock `Llama` does not hand out its hidden states.

        Raises:
            UsageError: Always.
        """
        raise UsageError(
            "The mtp drafter cannot draft for a stock Llama.", why="It needs the target's hidden states."
        )

    # -------------------------------------------------------------- following

    def _follows(self, ids: Sequence[int], since: int | None = None) -> bool:
        """Whether the hidden state before the last id is at hand, and what comes before it is what was seen.

        Args:
            ids: The conversation.
            since: Where the two may differ; None = where nothing is fed yet.

        Raises:
            DecodeError: The block failed while the target was working.
        """
        if self._fault is not None:
            raise self._fault
        last = len(ids) - 1
        first = min(self._fed, last) if since is None else since
        return self._base <= last < self._end and self._seen[first:last] == list(ids[first:last])

    def _observe(self, start: int, tokens: Sequence[int]) -> None:
        """The target evaluated tokens; its cache held `start` before."""
        if self._fault is not None:
            return
        try:
            self._take(start, tokens)
        except DecodeError as error:
            self.clear()
            self._fault = error

    def _take(self, start: int, tokens: Sequence[int]) -> None:
        agreed = start + common_prefix(self._seen[start : start + len(tokens)], tokens)
        self._seen[start:] = tokens
        self._rewind(agreed)
        if start == self._fed == 0:
            self._base, self._count = 0, 1
            self._hidden[0] = 0  # nothing comes before the first token
        elif self._base <= start < self._end:
            self._count = start + 1 - self._base
            if start - self._fed >= self._feed_at:  # all of them are certain: the target went on from them
                self._feed(self._seen, start)
        elif self._fed > start:
            self._base, self._count = start + 1, 0
        else:
            self._lose()
            return
        self._lost = False
        rows = self._block.target_hidden(len(tokens))
        self._hidden[self._count : self._count + len(rows)] = rows
        self._count += len(rows)
        self._trim()

    def _lose(self) -> None:
        """Stop following until a conversation is read from its beginning."""
        self.clear()
        self._lost = True

    def _rewind(self, length: int) -> None:
        """Keep the first `length` pairs of the block's cache."""
        if length < self._fed:
            self._block.truncate(length)
            self._fed = length

    def _feed(
        self,
        ids: Sequence[int],
        end: int,
        *,
        every_row: bool = False,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> None:
        """Put the pairs up to position `end` into the block's cache; the last one gets logits, or every one.

        Args:
            ids: The conversation.
            end: Behind the last pair.
            every_row: Logits for each pair; they must be few enough.
            cancelled: Asked between batches.
        """
        block = self._block
        while self._fed < end and not cancelled():
            upto = min(end, self._fed + block.n_batch)
            first = self._fed - self._base
            rows = self._hidden[first : first + upto - self._fed]
            outputs: Outputs = "all" if every_row else "last" if upto == len(ids) else "none"
            block.decode(ids[self._fed : upto], rows, outputs)
            self._fed = upto
        self._trim()

    def _trim(self) -> None:
        """Keep the hidden states that are still to be fed, and the last one that was."""
        drop = self._fed - 1 - self._base
        if drop > 0:
            left = self._count - drop
            self._hidden[:left] = self._hidden[drop : self._count].copy()
            self._base, self._count = self._base + drop, left
