"""Windows, intervals and bounds, checked by hand and by simulation."""

from __future__ import annotations

import math
import random

import pytest
from scipy import stats as scipy_stats

from localspec.measure import figures
from localspec.measure.figures import Window
from localspec.spec.stats import Counters, Source, Stats


def rounds(*accepted, k=3, draft_s=0.01, verify_s=0.1):
    """Counters after the first token and after each round that accepted so many of k."""
    counters = Counters(completion_tokens=1)
    found = [counters.snapshot()]
    for count in accepted:
        counters.add_round(k, count)
        counters.completion_tokens += count + 1
        counters.draft_s += draft_s * k
        counters.decode_s += draft_s * k + verify_s
        found.append(counters.snapshot())
    return found


def test_the_window_counts_whole_rounds_only():
    # Tokens after each round: 1, 3, 6, 7, 11.
    window = figures.window(rounds(1, 2, 0, 3), skip=4, stop=100)
    assert (window.tokens, window.rounds, window.drafted, window.accepted) == (5, 2, 6, 3)
    assert window.seconds == pytest.approx(2 * 0.13)
    assert window.draft_s == pytest.approx(2 * 0.03)
    assert window.tok_s == pytest.approx(5 / 0.26)
    assert window.acceptance_rate == 0.5
    assert window.mean_accepted_length == 2.5
    assert window.per_position == (0.5, 1.0, 1.0)
    assert window.draft_lengths == {3: 2}


def test_the_window_closes_with_the_round_that_reaches_its_end():
    window = figures.window(rounds(1, 2, 0, 3), skip=3, stop=7)
    assert (window.tokens, window.rounds) == (4, 2)
    assert figures.window(rounds(1, 2), skip=7, stop=9) is None
    assert figures.window(rounds(1, 2), skip=6, stop=9) is None


def test_one_draft_from_before_the_window_to_its_end_is_the_window():
    # Tokens after each round: 1, 3, 19. Short answers and long drafts.
    window = figures.window(rounds(1, 15, k=15), skip=4, stop=19)
    assert (window.tokens, window.rounds, window.accepted) == (16, 1, 15)
    assert figures.window(rounds(), skip=1, stop=1) is None


def test_joined_windows_add_their_counters():
    one = figures.window(rounds(1, 2, k=2), 1, 9)
    other = figures.window(rounds(3, k=4), 1, 9)
    both = figures.join([one, other])
    assert both.drafted_at == (3, 3, 1, 1)
    assert both.accepted_at == (3, 2, 1, 0)
    assert both.tokens == one.tokens + other.tokens
    assert figures.join([]) is None


def window_of(lengths, accepted, draft_s=0.0):
    longest = max(lengths)
    at = tuple(sum(length > i for length in lengths) for i in range(longest))
    count = len(lengths)
    return Window(
        tokens=count + accepted,
        seconds=1.0,
        rounds=count,
        drafted=sum(lengths),
        accepted=accepted,
        drafted_rounds=sum(length > 0 for length in lengths),
        draft_s=draft_s,
        drafted_at=at,
        accepted_at=(0,) * longest,
    )


def test_windows_keep_the_sources_apart():
    before = Stats(by_source={"lookup": Source(1, 5, 4)}, completion_tokens=5)
    after = Stats(by_source={"lookup": Source(3, 9, 6), "d": Source(2, 4, 1)}, completion_tokens=20)
    found = figures.between(before, after)
    assert found.by_source == {"lookup": Source(2, 4, 2), "d": Source(2, 4, 1)}
    assert figures.between(after, after).by_source == {}
    other = figures.between(Stats(), before)
    assert figures.join([found, other]).by_source == {"lookup": Source(3, 9, 6), "d": Source(2, 4, 1)}
    assert found.by_source["d"].acceptance_rate == 0.25
    assert Source().acceptance_rate is None


def test_the_bound_is_the_formula():
    verify = {1: 0.1, 4: 0.13}
    # 10 rounds of 3, 20 accepted: mean accepted length 3; V(4) = 1.3, c = 0.2.
    assert figures.bound(window_of([3] * 10, 20), verify, 0.02) == pytest.approx(3 / (1.3 + 3 * 0.2))


def test_the_bound_averages_over_the_lengths_that_occurred():
    verify = {1: 0.1, 3: 0.15}
    # A plain round, a round of 1 (V = 1.25 between its neighbours) and one of 2; 3 accepted in 3 rounds.
    expected = 2 / ((1.0 + 1.25 + 1.5) / 3 + 0.3)
    assert figures.bound(window_of([0, 1, 2], 3), verify, 0.03) == pytest.approx(expected)


def test_drafts_from_lookup_make_the_bound_cheaper():
    verify = {1: 0.1, 4: 0.1}
    window = window_of([3] * 10, 20, draft_s=0.03)  # 1 ms a token, where the model needs 20
    assert figures.bound(window, verify, 0.02) == pytest.approx(3 / (1 + 3 * 0.01))


def test_no_bound_without_measured_parts():
    window = window_of([3] * 10, 20)
    assert figures.bound(window, {}, 0.1) is None
    assert figures.bound(window, {1: 0.1}, None) is None
    assert figures.bound(window_of([0, 0], 0), {1: 0.1}, 0.1) is None


@pytest.mark.parametrize(("size", "value"), [(1, 1.0), (2, 1.5), (3, 2.0), (5, 2.5), (7, 3.0), (9, 3.5)])
def test_interpolation(size, value):
    assert figures.interpolate({1: 1.0, 3: 2.0, 7: 3.0}, size) == pytest.approx(value)
    assert figures.interpolate({1: 1.0}, size) == 1.0


def test_the_interval_is_students():
    ratios = {("code", 0): [1.1, 1.2, 1.3]}
    together, kinds = figures.paired(ratios)
    logs = [math.log(value) for value in ratios["code", 0]]
    low, high = scipy_stats.t.interval(0.95, 2, sum(logs) / 3, scipy_stats.sem(logs))
    assert (together.low, together.high) == pytest.approx((math.exp(low), math.exp(high)), rel=1e-3)
    assert together.value == pytest.approx((1.1 * 1.2 * 1.3) ** (1 / 3))
    assert kinds["code"] == together


@pytest.mark.parametrize("freedom", [1, 5, 30, 31, 60, 500])
def test_the_points_of_t(freedom):
    logs = {("x", 0): [1.0, *([1.0] * (freedom - 1)), 2.0]}
    together, _ = figures.paired(logs)
    spread = [0.0] * freedom + [math.log(2)]
    low, high = scipy_stats.t.interval(0.95, freedom, sum(spread) / len(spread), scipy_stats.sem(spread))
    assert (math.log(together.low), math.log(together.high)) == pytest.approx((low, high), abs=2e-3)


def test_noise_is_called_noise_nineteen_times_in_twenty():
    draw = random.Random(1)
    called = dict.fromkeys(("faster", "slower", "within noise"), 0)
    for _ in range(2000):
        ratios = {
            (kind, 0): [(1 + draw.uniform(-0.15, 0.15)) / (1 + draw.uniform(-0.15, 0.15)) for _ in range(3)]
            for kind in ("code", "prose", "extraction", "edit")
        }
        called[figures.paired(ratios)[0].verdict] += 1
    assert 0.93 < called["within noise"] / 2000 < 0.97
    assert abs(called["faster"] - called["slower"]) < 40


def test_kinds_weigh_the_same_whatever_they_have():
    ratios = {("code", 0): [2.0, 2.0], ("code", 1): [2.0, 2.0], ("prose", 2): [0.5, 0.5]}
    together, kinds = figures.paired(ratios)
    assert together.value == pytest.approx(1.0)
    assert kinds["code"].value == pytest.approx(2.0)
    assert figures.paired({}) == (None, {})


def test_sessions_are_compared_on_what_both_have():
    before = {"code": [10.0, 10.1, 9.9], "prose": [5.0, 5.05, 4.95], "gone": [1.0]}
    after = {"code": [20.0, 20.2, 19.8], "prose": [5.0, 5.05, 4.95]}
    ratio = figures.unpaired(before, after)
    assert ratio.value == pytest.approx(math.sqrt(2))
    assert ratio.low > 1.3
    assert figures.unpaired({"a": [1.0]}, {"b": [1.0]}) is None


def test_repetition():
    assert figures.repetition(list(range(300))) == 0.0
    assert figures.repetition(list(range(20)) * 20) > 0.9
    assert figures.repetition([1, 2, 3]) == 0.0
