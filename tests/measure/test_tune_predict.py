"""Predictions from one answer: labels, replayed rounds, and the bounds that spare measurements."""

from __future__ import annotations

import random

import pytest

from localspec.measure.tune_predict import (
    Parts,
    Prediction,
    ceiling,
    labels,
    predict,
    promising,
    replay,
    survival,
    useful_length,
)
from localspec.spec.stats import Counters
from localspec.worker.protocol import Costs

FLAT = Parts({1: 0.01, 17: 0.01}, 0.001)


def answer(agree, k, proposals=None):
    """The rounds of an answer whose tokens the drafter agrees with or not; it proposes at most `proposals[at]`."""
    counters = Counters(completion_tokens=1)
    rounds = [counters.snapshot()]
    at = 0
    while at < len(agree):
        drafted = min(k, proposals[at] if proposals else k)
        run = 0
        while run < drafted and at + run < len(agree) and agree[at + run]:
            run += 1
        counters.add_round(drafted, run)
        tokens = min(run + 1, len(agree) - at)
        counters.completion_tokens += tokens
        at += tokens
        rounds.append(counters.snapshot())
    return rounds


def test_labels_are_what_the_drafter_thought_of_each_token():
    agree = [True, True, False, False, True, True, True, True, False]
    assert labels(answer(agree, 16), 16) == (True, True, False, False, True, True, True, True, False)
    # With drafts of 2, the token after two accepted ones was never asked about: taken to agree.
    assert labels(answer(agree, 2), 2) == (True, True, True, False, True, True, True, True, False)
    assert labels([], 4) == ()


def test_where_nothing_was_proposed_there_is_no_label():
    agree = [True, True, True, False]
    assert labels(answer(agree, 16, proposals=[0, 2, 0, 1]), 16) == (None, True, True, None)


@pytest.mark.parametrize("k", [1, 2, 3, 5, 8, 16])
def test_a_replay_has_exactly_the_rounds_of_the_shorter_draft(k):
    luck = random.Random(3)
    agree = [luck.random() < 0.7 for _ in range(400)]
    text = labels(answer(agree, 16), 16)
    rounds, drafted, accepted, tokens = replay([text], k)
    real = answer(agree, k)[-1]
    assert (rounds, drafted) == (real.rounds, real.drafted_rounds)
    assert accepted == pytest.approx(real.accepted, abs=2)  # the last round may end in the middle
    assert tokens == 400
    # Clustered agreement is where a formula of independent chances would be wrong, and the replay is not.
    clustered = [luck.random() < (0.95 if (i // 20) % 2 else 0.3) for i in range(400)]
    text = labels(answer(clustered, 16), 16)
    assert replay([text], k)[0] == pytest.approx(answer(clustered, k)[-1].rounds, abs=2)


def test_survival_is_the_share_of_rounds_that_got_so_far():
    text = labels(answer([True, True, False, True, False, False], 4), 4)
    # Rounds accept 2, 1 and 0 tokens.
    assert survival([text], 4) == pytest.approx((2 / 3, 1 / 3, 0, 0))
    assert survival([(None, None)], 2) == ()


def test_predictions_by_hand():
    """Every second token agrees: each round of k >= 1 accepts one and adds one."""
    text = labels(answer([True, False] * 50, 4), 4)
    found = predict({"code": [text]}, Parts({1: 0.01, 2: 0.012, 5: 0.018}, 0.002), 4)
    assert [one.mean_accepted_length for one in found] == [2, 2, 2, 2]
    assert found[0].speedup == pytest.approx(2 * 0.01 / (0.012 + 0.002))
    assert found[3].speedup == pytest.approx(2 * 0.01 / (0.018 + 4 * 0.002))
    assert [one.acceptance_rate for one in found] == pytest.approx([1, 1 / 2, 1 / 3, 1 / 4])
    slow = predict({"code": [text]}, Parts({1: 0.01, 2: 0.012, 5: 0.018}, 0.002, overhead=0.01), 1)
    assert slow[0].speedup == pytest.approx(2 * 0.02 / (0.014 + 2 * 0.01)), (
        "our own code counts for each token"
    )


def test_rounds_without_a_proposal_cost_a_plain_step():
    text = (None, None, True, True, False, None)
    (found,) = predict({"edit": [text]}, Parts({1: 0.01, 2: 0.02}, 0.0), 1)
    # Four plain steps would be 6 tokens in 0.06 s. Here: plain, plain, one round of two tokens, a rejected one, plain.
    assert found.speedup == pytest.approx(0.06 / (3 * 0.01 + 2 * 0.02))


def test_kinds_have_the_same_weight_however_long_their_answers():
    good, bad = (True, False) * 200, (False,) * 10
    (found,) = predict({"good": [good], "bad": [bad]}, Parts({1: 0.01, 2: 0.01}, 0.0), 1)
    assert found.kinds == pytest.approx({"good": 2.0, "bad": 1.0})
    assert found.speedup == pytest.approx(2**0.5)


@pytest.mark.parametrize("seed", range(5))
def test_no_text_earns_more_with_more_than_the_useful_length(seed):
    luck = random.Random(seed)
    curve = {1: 1.0}
    for n in range(2, 18):
        curve[n] = curve[n - 1] * luck.choice([1.0, 1.0, 1.1, 1.4, 0.95])
    parts = Parts(curve, luck.uniform(0, 0.4), luck.uniform(0, 0.1))
    longest = useful_length(parts)
    for rate in (0.1, 0.5, 0.8, 0.95, 1.0):
        agree = tuple(luck.random() < rate for _ in range(600))
        found = predict({"text": [agree]}, parts, 16)
        best = max(one.speedup for one in found[:longest])
        # Replayed texts are finite: their last round can be cut short.
        assert all(one.speedup <= best * 1.02 for one in found)
        assert all(one.speedup <= ceiling(parts, one.n_draft) * 1.02 for one in found)


def test_a_draft_that_costs_more_than_the_target_has_a_ceiling_under_one():
    parts = Parts({1: 0.01, 17: 0.01}, 0.02)
    assert ceiling(parts, useful_length(parts)) < 1
    assert useful_length(FLAT) == 16


def test_lookup_costs_nothing_whatever_was_timed():
    costs = Costs(100, 0.01, {1: 0.01, 5: 0.02}, 0.004)
    assert Parts.of(costs, free=True).round(4) == pytest.approx(0.02)
    assert Parts.of(costs, free=False).round(4) == pytest.approx(0.02 + 4 * 0.004)


def prediction(k, speedup):
    return Prediction(k, speedup, 1.0, 0.5, {"text": speedup})


@pytest.mark.parametrize(
    ("speeds", "expected"),
    [
        ({1: 1.0, 2: 1.3, 3: 1.5, 4: 1.49, 5: 1.48, 6: 1.3}, (3,)),  # a flat top: the best one speaks for it
        ({1: 1.0, 3: 1.5, 4: 1.2, 7: 1.48, 8: 1.47}, (3, 7)),  # another stair, about as good
        ({1: 1.0, 3: 1.5, 4: 1.2, 7: 1.44}, (3,)),  # it is too far behind
        ({1: 0.9}, (1,)),
    ],
)
def test_of_two_stairs_that_are_about_as_good_both_are_measured(speeds, expected):
    assert promising([prediction(k, speed) for k, speed in speeds.items()]) == expected
