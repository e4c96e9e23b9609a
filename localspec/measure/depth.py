"""Acceptance over the length of a conversation: whether it falls as the text grows."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

from localspec.spec.events import DraftStatus
from localspec.spec.stats import Stats

_STEP = 128
"""Tokens of the context that are counted together."""
_LEAST_ROUNDS = 64
"""Rounds on each side of a comparison."""
_APART = 1_000
"""Tokens that lie between the two sides at least: nearer ones differ by their text."""
_SURE = 3.0
"""Standard errors from which a difference is more than luck."""


@dataclass(slots=True)
class _Counts:
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    squares: int = 0
    tokens: int = 0
    """Sum of the depths of the rounds."""

    def add(self, other: _Counts) -> None:
        self.rounds += other.rounds
        self.drafted += other.drafted
        self.accepted += other.accepted
        self.squares += other.squares
        self.tokens += other.tokens

    @property
    def mean(self) -> float:
        """Tokens accepted a round."""
        return self.accepted / self.rounds

    @property
    def error(self) -> float:
        """Variance of `mean`. Tokens of one round stand or fall together, so rounds are what is counted."""
        return max(self.squares / self.rounds - self.mean**2, 0.0) / self.rounds

    @property
    def depth(self) -> int:
        return round(self.tokens / self.rounds)


class Depths:
    """Acceptance by depth, of the rounds with one drafter and one fixed length.

    A length chosen by price changes with the acceptance, so its rounds tell nothing here.
    """

    def __init__(self) -> None:
        self._counts: dict[int, _Counts] = {}
        self._setting: tuple[str, int] = ("", 0)
        self._before = Stats()

    def clear(self) -> None:
        """A new conversation begins."""
        self._counts.clear()

    def add(self, stats: Stats, draft: DraftStatus, context_used: int) -> None:
        """Take the counters after a round.

        Args:
            stats: The answer's counters so far.
            draft: What drafts now.
            context_used: Tokens in the context.
        """
        before, self._before = self._before, stats
        if stats.rounds < before.rounds:
            before = Stats()  # another answer has begun
        drafted, accepted = stats.drafted - before.drafted, stats.accepted - before.accepted
        if draft.auto or draft.state == "off" or not drafted:
            return
        setting = (draft.name, draft.n_draft)
        if setting != self._setting:
            self.clear()
            self._setting = setting
        counts = self._counts.setdefault(context_used // _STEP, _Counts())
        counts.add(_Counts(1, drafted, accepted, accepted * accepted, context_used))

    def ends(self) -> tuple[tuple[int, float], ...]:
        """Acceptance rate in the first and in the last third of the rounds, by depth.

        Returns:
            ((tokens in the context there, acceptance rate), the same deeper); empty where there are too few rounds,
            they lie too near to each other, or the difference may be luck.
        """
        places = sorted(self._counts)
        rounds = sum(counts.rounds for counts in self._counts.values())
        if rounds < 2 * _LEAST_ROUNDS:
            return ()
        wanted = max(_LEAST_ROUNDS, rounds / 3)
        early, late = self._gather(places, wanted), self._gather(places[::-1], wanted)
        if late.depth - early.depth < _APART:
            return ()
        if abs(early.mean - late.mean) <= _SURE * sqrt(early.error + late.error):
            return ()
        return tuple((one.depth, one.accepted / one.drafted) for one in (early, late))

    def _gather(self, places: list[int], wanted: float) -> _Counts:
        gathered = _Counts()
        for place in places:
            if gathered.rounds >= wanted:
                break
            gathered.add(self._counts[place])
        return gathered
