"""How often lookup is right: longer matches inherit from shorter ones, and the profile keeps little weight."""

from __future__ import annotations

import json
import math

import pytest

from localspec.spec.draft_lookup import LookupDrafter
from localspec.spec.events import Sampling
from localspec.spec.match_rates import CLASSES, MatchRates, basis
from localspec.spec.sampling import Sampler

GREEDY = Sampler(Sampling(temperature=0))


def test_the_classes_of_match_lengths() -> None:
    lengths = (2, 3, 4, 7, 8, 15, 16, 31, 32, 63, 64, 95)
    assert [basis(n, agreed=True)[0] for n in lengths] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]


def test_unseen_lengths_take_over_the_rate_of_shorter_matches() -> None:
    rates = MatchRates()
    every = [(size_class, True) for size_class in range(CLASSES)]
    assert rates.chances(every) == pytest.approx([2 / 3] * CLASSES)
    for _ in range(27):
        rates.learn((0, True), right=True)
    assert rates.chances(every) == pytest.approx([29 / 30] * CLASSES)
    assert rates.chances([(0, False)]) == pytest.approx(
        [2 / 3]
    )  # disagreeing occurrences have rates of their own
    for _ in range(7):
        rates.learn((2, True), right=False)
    low, below, above = (rates.chances([(n, True)])[0] for n in (1, 2, 3))
    assert low == pytest.approx(29 / 30)
    assert below == above == pytest.approx(3 * 29 / 30 / 10)


def test_the_rates_follow_the_text() -> None:
    rates = MatchRates()
    for _ in range(1000):
        rates.learn((1, True), right=True)
    for _ in range(60):
        rates.learn((1, True), right=False)
    assert rates.chances([(1, True)])[0] < 0.5


def test_the_profile_keeps_the_rates_at_a_small_weight() -> None:
    rates = MatchRates()
    for number in range(50):
        rates.learn((3, True), right=number % 10 > 0)
    again = MatchRates()
    again.recall(json.loads(json.dumps(rates.learned())))
    assert again.chances([(3, True)])[0] == pytest.approx((7.2 + 2) / 11, abs=0.02)
    for _ in range(8):
        again.learn((3, True), right=False)
    assert again.chances([(3, True)])[0] < 0.55


@pytest.mark.parametrize(
    "learned",
    [
        {},
        {"agree": [[1, 2]] * CLASSES},
        {"agree": [[1, 2]] * CLASSES, "differ": [[1, 2]] * (CLASSES - 1)},
        {"agree": [[3, 2]] * CLASSES, "differ": [[1, 2]] * CLASSES},
        {"agree": [[math.nan, 2]] * CLASSES, "differ": [[1, 2]] * CLASSES},
        {"agree": [[math.inf, math.inf]] * CLASSES, "differ": [[1, 2]] * CLASSES},
        {"agree": 3, "differ": 4},
    ],
)
def test_what_is_no_profile(learned: dict[str, object]) -> None:
    rates = MatchRates()
    with pytest.raises((KeyError, TypeError, ValueError)):
        rates.recall(learned)
    assert rates.chances([(0, True)]) == pytest.approx([2 / 3])


def test_a_copy_is_trusted_after_a_few_tokens() -> None:
    """The first few labels of short matches say that the long match that they grow into can be trusted."""
    text = list(range(100, 180))
    drafter, ids = LookupDrafter(), [*text, 7, *text[:2]]
    drafter.begin(ids)
    for token in text[2:12]:
        drafter.draft(ids, 31, GREEDY)
        ids.append(token)
        drafter.accept(ids)
    chances = drafter.draft(ids, 31, GREEDY).chances
    assert len(chances) == 31
    assert min(chances) > 0.85
