"""Texts that lookup searches beside the conversation: arrays of ids, sorted once by their pairs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

_BETWEEN = -1  # stands before, between and behind the texts; no token has this id
_MOST_PLACES = 20_000  # occurrences of a pair that are compared; beyond that it says little
_FEW = 64  # places whose whole past is compared at once
_KEPT_PLACES = 8


class TextIndex:
    """Finds where texts read like the end of a conversation.

    Memory: 16 bytes a token. Sorting a million tokens takes about a tenth of a second.

    Args:
        texts: Ids of each text. Where matches are equally long, later ones count as the newer ones.
    """

    def __init__(self, texts: Sequence[Sequence[int]]) -> None:
        parts: list[npt.NDArray[np.int32]] = [np.full(1, _BETWEEN, np.int32)]
        for text in texts:
            parts += [np.asarray(text, np.int32), np.full(1, _BETWEEN, np.int32)]
        self._ids = np.concatenate(parts)
        pairs = _keys(self._ids[:-1], self._ids[1:])
        order = np.argsort(pairs, kind="stable").astype(np.int32)
        self._pairs, self._order = pairs[order], order

    def __len__(self) -> int:
        """Tokens of all texts."""
        return int(np.count_nonzero(self._ids != _BETWEEN))

    def find(self, ids: Sequence[int], longest: int) -> tuple[int, list[int]]:
        """The longest match of the end of a conversation.

        Args:
            ids: The conversation.
            longest: How many tokens back are compared at most.

        Returns:
            Its length (0 = no two tokens match), and the places behind its last occurrences, in order.
        """
        if len(ids) < 2:
            return 0, []
        key = _keys(np.int32(ids[-2]), np.int32(ids[-1]))
        first, last = np.searchsorted(self._pairs, key, "left"), np.searchsorted(self._pairs, key, "right")
        places = self._order[max(first, last - _MOST_PLACES) : last] + 2
        places = places[self._ids[places] != _BETWEEN]
        if not places.size:
            return 0, []
        length, most = 2, min(longest, len(ids))
        while length < most and places.size > _FEW:
            narrowed = places[self._ids[places - 1 - length] == ids[-1 - length]]
            if not narrowed.size:
                return length, places[-_KEPT_PLACES:].tolist()
            places, length = narrowed, length + 1
        back = np.arange(length, most, dtype=np.int32)
        before = np.maximum(places[:, None] - 1 - back, 0)  # what stands at 0 equals no id
        same = self._ids[before] == np.asarray(ids[-most:], np.int32)[::-1][length:]
        agreed = same.cumprod(axis=1).sum(axis=1)
        further = int(agreed.max(initial=0))
        return length + further, places[agreed == further][-_KEPT_PLACES:].tolist()

    def behind(self, place: int, count: int) -> list[int]:
        """The ids from a place on, at most `count` of them, up to the end of its text."""
        found: list[int] = self._ids[place : place + count].tolist()
        return found[: found.index(_BETWEEN)] if _BETWEEN in found else found


def _keys(
    first: npt.NDArray[np.int32] | np.int32, second: npt.NDArray[np.int32] | np.int32
) -> npt.NDArray[np.int64]:
    """One number for each pair of ids."""
    found: npt.NDArray[np.int64] = (np.asarray(first, np.int64) << 32) | np.asarray(second, np.int64)
    return found
