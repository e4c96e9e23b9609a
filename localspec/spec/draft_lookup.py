"""The `lookup` drafter: what followed the last time the conversation read like this."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from localspec.spec.drafter import Draft, Drafter, GoOn, always, common_prefix
from localspec.spec.sampling import Sampler

_REMEMBERED = 8  # positions kept for each pair of ids
_LONGEST = 64  # how far back a match is compared


class LookupDrafter(Drafter):
    """Finds the longest earlier occurrence of the last tokens and proposes what followed; the newest one on ties.

    An index from each pair of ids to its last positions finds candidates; comparing backwards from there finds the
    longest match. It costs no model and no memory to speak of, and pays on edits, code, quotations and lists.
    """

    name = "lookup"

    def __init__(self) -> None:
        self._ids: list[int] = []
        self._positions: dict[tuple[int, int], list[int]] = {}

    def begin(self, ids: Sequence[int], *, cancelled: Callable[[], bool] = lambda: False) -> None:
        """See `Drafter.begin`."""
        if common_prefix(self._ids, ids) < len(self._ids):
            self.clear()
        self._add(ids)

    def draft(self, ids: Sequence[int], k: int, sampler: Sampler, go_on: GoOn = always) -> Draft:
        """See `Drafter.draft`."""
        self._add(ids)
        start = self._find()
        return Draft(tuple(self._ids[start : start + k])) if start else Draft()

    def clear(self) -> None:
        """See `Drafter.clear`."""
        self._ids.clear()
        self._positions.clear()

    def _add(self, ids: Sequence[int]) -> None:
        """Index what is new; the ids before are known to agree."""
        for position in range(len(self._ids), len(ids)):
            self._ids.append(ids[position])
            if position >= 1:
                pair = (ids[position - 1], ids[position])
                places = self._positions.setdefault(pair, [])
                places.append(position + 1)
                if len(places) > _REMEMBERED + 1:  # the newest is the end of the text itself
                    del places[0]

    def _find(self) -> int:
        """Where the text behind the best match begins, 0 when there is none."""
        ids = self._ids
        end = len(ids)
        if end < 2:
            return 0
        best, best_length = 0, 0
        for start in reversed(self._positions[(ids[-2], ids[-1])]):
            if start >= end:
                continue
            length = 2
            while length < _LONGEST and length < start and ids[start - 1 - length] == ids[end - 1 - length]:
                length += 1
            if length > best_length:
                best, best_length = start, length
        return best
