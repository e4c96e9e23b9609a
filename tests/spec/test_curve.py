"""Prices by depth of the context: each doubling keeps its own, and all of them survive the profile."""

from __future__ import annotations

import json
import math

import pytest

from localspec.spec.curve import Costs


def test_each_doubling_of_the_context_keeps_its_own_curve() -> None:
    costs = Costs({1: 0.02, 4: 0.03, 8: 0.05}, 0.005, 8)
    costs.at(511)
    assert costs.v(4) == pytest.approx(1.5)
    costs.at(512)  # never seen: goes on with the prices of before
    assert costs.v(4) == pytest.approx(1.5)
    for _ in range(300):
        costs.saw_verify(4, 0.06)
        costs.saw_verify(1, 0.02)
        costs.saw_draft(2, 0.03)
    assert costs.v(4) == pytest.approx(3.0, rel=0.1)
    costs.at(1023)
    assert costs.v(4) == pytest.approx(3.0, rel=0.1)
    costs.at(100)  # another conversation
    assert costs.v(4) == pytest.approx(1.5)
    assert costs.draft_step == 0.005
    costs.at(700)
    assert costs.v(4) == pytest.approx(3.0, rel=0.1)
    assert costs.draft_step == pytest.approx(0.015, rel=0.01)
    assert costs.w(3) == pytest.approx(costs.v(3))


def test_the_curves_survive_the_profile() -> None:
    costs = Costs({1: 0.02, 4: 0.03, 8: 0.05}, 0.005, 8)
    costs.at(5000)
    for _ in range(300):
        costs.saw_verify(4, 0.09)
        costs.saw_verify(1, 0.02)
    again = Costs.recalled(json.loads(json.dumps(costs.learned())), 12)
    assert again.v(4) == pytest.approx(1.5)
    assert again.v(12) > again.v(8)  # a greater limit than before
    again.at(6000)
    assert again.v(4) == pytest.approx(costs.v(4), rel=1e-6)


def test_a_profile_without_the_shallowest_depth() -> None:
    learned = {"3": {"verify": {"1": 0.04, "4": 0.1}, "draft_step": 0.0}}
    costs = Costs.recalled(learned, 4)
    assert costs.v(4) == pytest.approx(2.5)
    costs.at(0)
    assert costs.plain_step == 0.04


def test_the_first_batch_of_a_size_tells_about_its_neighbours_that_were_never_timed() -> None:
    costs = Costs({1: 1.0, 8: 4.0, 16: 6.0}, 0.0, 32)
    assert costs.v(24) == pytest.approx(9.0)  # as dear a token as at 16
    costs.saw_verify(17, 1.2 * 6.375)
    assert costs.v(17) == pytest.approx(6.375 * 1.1 / 1.016)  # half of what it showed; all drift a little
    assert costs.v(24) == pytest.approx(costs.v(17) * 24 / 17)
    assert costs.v(12) == pytest.approx(5.0)  # below it nothing changed
    costs.saw_verify(12, 1.2 * costs.plain_step * 5.0)
    assert costs.v(10) == pytest.approx((costs.v(8) + costs.v(12)) / 2)
    before = costs.v(17)
    costs.saw_verify(17, 1.2 * costs.plain_step * before)
    assert costs.v(17) == pytest.approx(before, rel=0.005)  # no longer the first one
    assert set(costs.learned()["0"]["verify"]) == {"1", "8", "12", "16", "17"}
    again = Costs.recalled(json.loads(json.dumps(costs.learned())), 32)
    assert [again.v(n) for n in range(1, 33)] == pytest.approx([costs.v(n) for n in range(1, 33)], rel=0.01)


def test_a_size_that_was_tried_at_one_depth_is_new_at_another() -> None:
    costs = Costs({1: 1.0, 4: 2.0}, 0.0, 8)
    costs.at(600)
    costs.saw_verify(8, 5.0)
    assert set(costs.learned()["1"]["verify"]) == {"1", "4", "8"}
    costs.at(0)
    assert set(costs.learned()["0"]["verify"]) == {"1", "4"}
    assert costs.v(8) == pytest.approx(4.0)


@pytest.mark.parametrize(
    "learned",
    [
        {},
        [],
        {"x": {}},
        {"0": {"verify": {}, "draft_step": 0}},
        {"0": {"verify": {"1": 0}, "draft_step": 0}},
        {"0": {"verify": {"1": math.nan}, "draft_step": 0}},
        {"0": {"verify": {"1": 1.0}, "draft_step": math.inf}},
        {"0": {"verify": {"1": 1.0}, "draft_step": -1}},
    ],
)
def test_what_is_no_profile(learned: dict[str, object]) -> None:
    with pytest.raises((AttributeError, KeyError, TypeError, ValueError)):
        Costs.recalled(learned, 4)
