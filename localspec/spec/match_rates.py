"""How often a proposal of `lookup` is right, counted by what it rests on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from localspec.spec.rates import Rates

Basis = tuple[int, bool]
"""Class of the match's length, and whether all occurrences agree about the token."""

CLASSES = 6
"""Matches of 2-3, 4-7, ... 64 tokens."""


def basis(length: int, agreed: bool) -> Basis:
    """The basis of a token that a match of `length` tokens proposes (at least 2)."""
    return min(length.bit_length() - 2, CLASSES - 1), agreed


class MatchRates:
    """A Beta count for each basis.

    A class without counts takes over the rate of the next shorter one: so a text that copies shows from the first short
    matches on that longer ones can be trusted, and prose shows that they cannot.
    """

    def __init__(self) -> None:
        self._differ, self._agree = Rates(CLASSES), Rates(CLASSES)

    def chances(self, bases: Iterable[Basis]) -> tuple[float, ...]:
        """The chance of each proposed token to be right when those before it are."""
        table = (self._differ.rates(), self._agree.rates())
        return tuple(table[agreed][size_class] for size_class, agreed in bases)

    def learn(self, key: Basis, right: bool) -> None:
        """Take note of a token's fate."""
        size_class, agreed = key
        (self._agree if agreed else self._differ).learn(size_class, right)

    def learned(self) -> dict[str, Any]:
        """All counts, for the profile."""
        return {"differ": self._differ.learned(), "agree": self._agree.learned()}

    def recall(self, learned: dict[str, Any]) -> None:
        """Take over what `learned` told, at a small weight.

        Raises:
            KeyError, TypeError, ValueError: It is not what `learned` gives.
        """
        differ, agree = Rates(CLASSES), Rates(CLASSES)
        differ.recall(learned["differ"])
        agree.recall(learned["agree"])
        self._differ, self._agree = differ, agree
