"""The `lookup` drafter: what followed the last time the conversation read like this."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from localspec.spec.drafter import Draft, Drafter, GoOn, always, common_prefix
from localspec.spec.sampling import Sampler

_REMEMBERED = 8  # positions kept for each pair of ids
_LONGEST = 64  # how far back a match is compared
_LENGTH_CLASSES = 6  # matches of 2-3, 4-7, ... 64 tokens
_FULL = 60.0  # counts are halved at this, so that the rates follow the text


class LookupDrafter(Drafter):
    """Finds the longest earlier occurrence of the last tokens and proposes what followed; the newest one on ties.

    An index from each pair of ids to its last positions finds candidates; comparing backwards from there finds the
    longest match. It costs no model and no memory to speak of, and pays on edits, code, quotations and lists.

    How often a proposal is right depends on the length of the match, and even more on whether all occurrences agree
    about what follows. Both are counted, and give each proposed token its chance.
    """

    name = "lookup"
    max_draft = 31
    free = True

    def __init__(self) -> None:
        self._ids: list[int] = []
        self._positions: dict[tuple[int, int], list[int]] = {}
        # Beta(2, 1) for each class of match length, agreed or not: [right, all].
        self._counts = {(c, a): [2.0, 3.0] for c in range(_LENGTH_CLASSES) for a in (False, True)}
        self._open: list[
            tuple[int, tuple[int, bool]]
        ] = []  # the last proposal: token and what it was based on
        self._open_at = 0

    def begin(self, ids: Sequence[int], *, cancelled: Callable[[], bool] = lambda: False) -> None:
        """See `Drafter.begin`."""
        self._open = []
        if common_prefix(self._ids, ids) < len(self._ids):
            self.clear()
        self._add(ids)

    def draft(self, ids: Sequence[int], k: int, sampler: Sampler, go_on: GoOn = always) -> Draft:
        """See `Drafter.draft`."""
        self._add(ids)
        matches = self._matches()
        if not matches:
            return Draft()
        length, start = max(matches)
        tokens = self._ids[start : start + k]
        basis = self._basis(tokens, length, [place for _, place in matches])
        self._open, self._open_at = list(zip(tokens, basis, strict=True)), len(self._ids)
        chances = [self._counts[key][0] / self._counts[key][1] for key in basis]
        return Draft(tuple(tokens), chances=tuple(chances))

    def accept(self, ids: Sequence[int]) -> None:
        """See `Drafter.accept`: count the proposal's tokens, as far as they stood on true text."""
        for (token, key), known in zip(self._open, ids[self._open_at :], strict=False):
            counts = self._counts[key]
            counts[0] += token == known
            counts[1] += 1.0
            if counts[1] >= _FULL:
                counts[:] = [counts[0] / 2, counts[1] / 2]
            if token != known:
                break
        self._open = []

    def clear(self) -> None:
        """See `Drafter.clear`; what was learned about matches stays."""
        self._ids.clear()
        self._positions.clear()
        self._open = []

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

    def _matches(self) -> list[tuple[int, int]]:
        """Length of each match and where the text behind it begins."""
        ids, end = self._ids, len(self._ids)
        if end < 2:
            return []
        found = []
        for start in self._positions[(ids[-2], ids[-1])]:
            if start >= end:
                continue
            length = 2
            while length < min(_LONGEST, start) and ids[start - 1 - length] == ids[end - 1 - length]:
                length += 1
            found.append((length, start))
        return found

    def _basis(self, tokens: Sequence[int], length: int, places: list[int]) -> list[tuple[int, bool]]:
        """For each proposed token: the class of its match, and whether all occurrences that got so far agree."""
        basis = []
        for offset, token in enumerate(tokens):
            following = [place for place in places if place + offset < len(self._ids)]
            agreed = all(self._ids[place + offset] == token for place in following)
            size_class = min((length + offset).bit_length() - 2, _LENGTH_CLASSES - 1)
            basis.append((size_class, agreed))
            places = [place for place in following if self._ids[place + offset] == token]
        return basis
