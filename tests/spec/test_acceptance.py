"""The chance of a drafted token: what is expected, what is learned, and what that earns where the draft is right."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest

from localspec.spec.acceptance import EXPECTED, Acceptance
from localspec.spec.curve import Costs
from localspec.spec.draft_chain import ChainDrafter
from localspec.spec.draft_lookup import LookupDrafter
from localspec.spec.draft_mtp import MtpDrafter
from localspec.spec.length import FixedLength, Label, PricedLength
from localspec.spec.replay import CURVES, Trace, replay
from tests.spec.conftest import Bench

TRACES = sorted((Path(__file__).parent.parent / "data").glob("trace-*.json"))


def test_acceptance_learns_which_tokens_are_accepted() -> None:
    random.seed(1)
    acceptance = Acceptance(4)
    for _ in range(1500):
        sure = random.random() < 0.5
        q, margin = (0.95, 3.0) if sure else (0.3, 0.2)
        acceptance.learn(0, q, margin, random.random() < (0.95 if sure else 0.4))
    assert acceptance.chance(0, 0.95, 3.0) == pytest.approx(0.95, abs=0.06)
    assert acceptance.chance(0, 0.3, 0.2) == pytest.approx(0.4, abs=0.12)


def test_acceptance_by_depth() -> None:
    rng = random.Random(1)
    acceptance = Acceptance(2)
    seen = []
    for _ in range(2000):
        for depth, chance in ((0, 0.9), (1, 0.5)):
            acceptance.learn(depth, None, None, rng.random() < chance)
        seen.append((acceptance.ahead(0), acceptance.ahead(1)))
    assert sum(first for first, _ in seen[500:]) / 1500 == pytest.approx(0.9, abs=0.1)
    assert sum(second for _, second in seen[500:]) / 1500 == pytest.approx(0.5, abs=0.1)


def test_what_is_expected_holds_until_tokens_were_seen() -> None:
    acceptance = Acceptance(5, (0.8, 0.7, 0.6))
    assert [acceptance.ahead(depth) for depth in range(6)] == pytest.approx([0.8, 0.7, 0.6, 0.6, 0.6, 0.6])
    for _ in range(100):
        for depth in range(5):
            acceptance.learn(depth, None, None, depth < 4)
    assert acceptance.ahead(1) > 0.85
    assert acceptance.ahead(4) < 0.5


def test_a_drafter_tells_what_to_expect_of_it(bench: Bench) -> None:
    class Block(LookupDrafter):
        expected = MtpDrafter.expected

    engine = bench.engine(bench.file("llama"))
    costs = Costs({1: 1.0, 9: 1.2}, 0.1, 9)
    for drafter, first in (
        (LookupDrafter(), EXPECTED[0]),
        (Block(), 0.75),
        (ChainDrafter(Block()), 0.75),
        (None, EXPECTED[0]),
    ):
        engine.drafter = drafter
        engine.set_length(8, costs)
        assert isinstance(engine.policy, PricedLength)
        assert engine.policy.acceptance.ahead(0) == first
        assert engine.policy.acceptance.ahead(7) <= first


@pytest.mark.parametrize("c", [0.05, 0.15, 0.3])
def test_a_draft_that_is_always_right_is_soon_trusted(c: float) -> None:
    """A short answer, with the confidences of real drafts: the best fixed length is the longest one."""
    for path in TRACES:
        labels = [Label(label.probability, label.margin, True) for label in Trace.load(path).labels[:350]]
        for name in CURVES:
            costs = Costs(CURVES[name], c, 17)
            curve = [0.0, *(costs.v(n) for n in range(1, 18))]
            fixed = max(replay(FixedLength(k), labels, curve, c).speed for k in (4, 7, 8, 11, 16))
            assert replay(PricedLength(costs), labels, curve, c).speed > 0.9 * fixed


@pytest.mark.parametrize("field", ["weights", "bias", "mean", "by_depth", "rate", "peek", "debt"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_stored_state_that_is_no_number_is_refused(field: str, value: float) -> None:
    costs = Costs({1: 1.0, 9: 1.2}, 0.1, 9)
    learned = PricedLength(costs).learned()
    learned[field] = [value] * len(learned[field]) if isinstance(learned[field], list) else value
    policy = PricedLength(costs)
    with pytest.raises(ValueError, match="price rule"):
        policy.recall(learned)
    assert policy.learned() == PricedLength(costs).learned()
