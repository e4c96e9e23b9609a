"""The `lookup` drafter: what followed the last time the conversation read like this."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from localspec.spec.drafter import Draft, Drafter, GoOn, always, common_prefix
from localspec.spec.lookup_index import TextIndex
from localspec.spec.match_rates import Basis, MatchRates, basis
from localspec.spec.sampling import Sampler

_REMEMBERED = 8  # positions kept for each pair of ids
_LONGEST = 64  # how far back a match is compared
FILES = "lookup in files"
"""The source of a proposal that comes from a file."""


class LookupDrafter(Drafter):
    """Finds the longest earlier occurrence of the last tokens and proposes what followed; the newest one on ties.

    An index from each pair of ids to its last positions finds candidates; comparing backwards from there finds the
    longest match. It costs no model and no memory to speak of, and pays on edits, code, quotations and lists.

    A text that has said the same twice in a row is taken to go on like that, beyond what there is to copy.

    How often a proposal is right depends on the length of the match, and even more on whether all occurrences agree
    about what follows. Both are counted, and give each proposed token its chance.

    Args:
        files: Texts to search beside the conversation, which goes first where matches are equally long. How often they
            are right is counted apart.
    """

    name = "lookup"
    free = True

    def __init__(self, files: TextIndex | None = None) -> None:
        self.files = files
        self._ids: list[int] = []
        self._positions: dict[tuple[int, int], list[int]] = {}
        self._rates, self._file_rates = MatchRates(), MatchRates()
        self._open: list[tuple[int, Basis]] = []  # the last proposal: token and what it was based on
        self._open_rates = self._rates
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
        length, start = max(matches, default=(0, len(self._ids)))
        following = [self._behind(place, matched, k) for matched, place in matches]
        tokens, rates, source = self._behind(start, length, k), self._rates, self.name
        if self.files is not None:
            elsewhere, places = self.files.find(self._ids, _LONGEST)
            if elsewhere > length:
                following = [self.files.behind(place, k) for place in places]
                length, tokens, rates, source = elsewhere, following[-1], self._file_rates, FILES
        if not tokens:
            return Draft()
        bases = _bases(tokens, length, following)
        self._open, self._open_at = list(zip(tokens, bases, strict=True)), len(self._ids)
        self._open_rates = rates
        return Draft(tuple(tokens), chances=rates.chances(bases), source=source)

    def accept(self, ids: Sequence[int]) -> None:
        """See `Drafter.accept`: count the proposal's tokens, as far as they stood on true text."""
        for (token, key), known in zip(self._open, ids[self._open_at :], strict=False):
            self._open_rates.learn(key, token == known)
            if token != known:
                break
        self._open = []

    def clear(self) -> None:
        """See `Drafter.clear`; what was learned about matches stays."""
        self._ids.clear()
        self._positions.clear()
        self._open = []

    def learned(self) -> dict[str, Any]:
        """See `Drafter.learned`."""
        files = {} if self.files is None else {"files": self._file_rates.learned()}
        return self._rates.learned() | files

    def recall(self, learned: dict[str, Any]) -> None:
        """See `Drafter.recall`."""
        self._rates.recall(learned)
        if self.files is not None and "files" in learned:
            self._file_rates.recall(learned["files"])

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

    def _behind(self, start: int, matched: int, k: int) -> list[int]:
        """The k ids from `start` on. Where the text has been repeating itself up to its end, it goes on doing so."""
        found = self._ids[start : start + k]
        period = len(self._ids) - start
        if 0 < period <= matched:
            while len(found) < k:
                found.append(found[-period])
        return found

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


def _bases(tokens: Sequence[int], length: int, following: list[list[int]]) -> list[Basis]:
    """For each proposed token: the class of its match, and whether all occurrences that got so far agree.

    Args:
        tokens: The proposal.
        length: Of its match.
        following: What comes behind each occurrence.
    """
    bases = []
    for offset, token in enumerate(tokens):
        following = [ids for ids in following if offset < len(ids)]
        bases.append(basis(length + offset, all(ids[offset] == token for ids in following)))
        following = [ids for ids in following if ids[offset] == token]
    return bases
