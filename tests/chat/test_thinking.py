from __future__ import annotations

import pytest

from localspec.chat.thinking import Segment, note, segments
from localspec.spec.events import Piece


def test_neighbours_of_one_kind_are_joined_and_no_text_is_lost():
    pieces = [
        Piece(1, "a", False, True),
        Piece(2, "", True, False),
        Piece(3, "b", False, True),
        Piece(4, "c", True),
        Piece(5, "d", True),
        Piece(6, "e", False),
    ]
    assert list(segments(pieces)) == [Segment("ab", True), Segment("cd", False, True), Segment("e", False)]


@pytest.mark.parametrize(
    ("reason", "content", "thinking", "said"),
    [
        ("stop", "x", "", ""),
        ("length", "x", "", "the limit of tokens was reached"),
        ("length", " ", "hm", "no answer yet: the limit of tokens was reached"),
        ("stop", "", "hm", "no answer yet: it ended while thinking"),
        ("died", "x", "hm", "the engine stopped here"),
        ("stop", " \n", "", "the model ended its answer before any text"),
    ],
)
def test_notes(reason, content, thinking, said):
    assert note(reason, content=content, thinking=thinking) == said
