"""The `chain` drafter: each round whichever of lookup and another drafter promises to gain more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from localspec.spec.draft_lookup import LookupDrafter
from localspec.spec.drafter import Draft, Drafter, GoOn, always
from localspec.spec.length import Label, LengthPolicy, PricedLength
from localspec.spec.sampling import Sampler


class ChainDrafter(Drafter):
    """Lookup costs nothing and is asked first; where its priced gain is the larger one, its proposal is taken.

    With a fixed length there are no prices, and the other one drafts always.

    Args:
        other: A `model` or `mtp` drafter.
        lookup: With files to search; None = the conversation alone.
    """

    free = True

    def __init__(self, other: Drafter, lookup: LookupDrafter | None = None) -> None:
        self.name = f"lookup + {other.name}"
        self.lookup = lookup or LookupDrafter()
        self.other = other
        self.overlaps, self.waited = other.overlaps, other.waited
        self.expected = other.expected
        self._policy: LengthPolicy | None = None
        self._other_follows = False  # it has seen this conversation
        self._cancelled: Callable[[], bool] = lambda: False

    @property
    def off_reason(self) -> str:
        """See `Drafter.off_reason`; lookup can always propose."""
        return ""

    def bind(self, policy: LengthPolicy) -> None:
        """See `Drafter.bind`."""
        self._policy = policy

    def begin(self, ids: Sequence[int], *, cancelled: Callable[[], bool] = lambda: False) -> None:
        """See `Drafter.begin`."""
        self.lookup.begin(ids)
        self._other_follows = False
        self._cancelled = cancelled
        if self._pays:
            self._show_other(ids)

    def reach(self, keep: int) -> int:
        """See `Drafter.reach`."""
        return self.other.reach(keep)

    def expect(self, ids: Sequence[int], anchors: Sequence[int]) -> None:
        """See `Drafter.expect`."""
        self.other.expect(ids, anchors)

    def draft(self, ids: Sequence[int], k: int, sampler: Sampler, go_on: GoOn = always) -> Draft:
        """See `Drafter.draft`."""
        found = self.lookup.draft(ids, k, sampler)
        # Where the other one does not pay, the price rule has the last word, and lookup is told what was right.
        if not self._pays or (found.tokens and self._prefers(found)):
            return found
        self._show_other(ids)
        return replace(self.other.draft(ids, k, sampler, go_on), source=self.other.name)

    def shadow(self, ids: Sequence[int], sampler: Sampler) -> list[Label]:
        """See `Drafter.shadow`; lookup labels itself in `accept`."""
        self._show_other(ids)
        return self.other.shadow(ids, sampler)

    def accept(self, ids: Sequence[int]) -> None:
        """See `Drafter.accept`."""
        self.lookup.accept(ids)
        if self._other_follows:
            self.other.accept(ids)

    def rest(self) -> None:
        """See `Drafter.rest`."""
        self.other.rest()

    def clear(self) -> None:
        """See `Drafter.clear`."""
        self.lookup.clear()
        self.other.clear()
        self._other_follows = False

    def learned(self) -> dict[str, Any]:
        """See `Drafter.learned`; what a model proposes is judged by the price rule itself."""
        return self.lookup.learned()

    def recall(self, learned: dict[str, Any]) -> None:
        """See `Drafter.recall`."""
        self.lookup.recall(learned)

    def close(self) -> None:
        """See `Drafter.close`."""
        self.other.close()

    @property
    def _pays(self) -> bool:
        """Whether a draft that takes time is worth it in this round."""
        return self._policy is None or not self._policy.off_reason

    def _show_other(self, ids: Sequence[int]) -> None:
        if not self._other_follows:
            self.other.begin(ids, cancelled=self._cancelled)
            self._other_follows = True

    def _prefers(self, found: Draft) -> bool:
        if self.other.off_reason:
            return True
        if isinstance(self._policy, PricedLength):
            return self._policy.gain(found.chances) > max(self._policy.gain_of_drafting(), 0.0)
        return False
