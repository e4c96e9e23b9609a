"""The draft length by price: against fixed lengths in hindsight, under its guarantee, and inside the engine."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest

from localspec.spec import length
from localspec.spec.curve import Costs
from localspec.spec.engine import Engine, Request
from localspec.spec.events import Finished, Round, Sampling
from localspec.spec.length import (
    LOSS_SHARE,
    LOSS_START,
    FixedLength,
    Label,
    Outcome,
    PricedLength,
)
from localspec.spec.replay import CURVES, AverageLength, ConfidenceGate, Trace, replay
from localspec.spec.stats import Source
from tests.gguf_writer import FIRST_NAMED
from tests.spec.conftest import Bench

DATA = Path(__file__).parent.parent / "data"
TRACES = sorted(DATA.glob("trace-*.json"))
SETTINGS = [(name, c) for name in CURVES for c in (0.05, 0.15, 0.3)]


def curve_of(costs: Costs) -> list[float]:
    return [0.0, *(costs.v(n) for n in range(1, 34))]


def priced(name: str, c: float, loss_start: float = LOSS_START) -> tuple[PricedLength, list[float]]:
    costs = Costs(CURVES[name], c, 17)
    return PricedLength(costs, loss_start=loss_start), curve_of(Costs(CURVES[name], c, 33))


def geometric_mean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


# ------------------------------------------------------------------- costs


def test_costs_between_and_beyond_the_measured_sizes() -> None:
    costs = Costs({1: 0.02, 3: 0.04, 4: 0.03, 8: 0.07}, 0.005, 16)
    assert costs.plain_step == 0.02
    assert costs.c == pytest.approx(0.25)
    assert [costs.v(n) for n in (1, 2, 3, 4, 6, 8)] == pytest.approx([1, 1.5, 2, 1.5, 2.5, 3.5])
    assert costs.v(16) == pytest.approx(7.0)
    # Three tokens cost no more than four: the batch can be filled up.
    assert [costs.w(n) for n in (1, 2, 3, 4)] == pytest.approx([1, 1.5, 1.5, 1.5])


def test_costs_follow_what_is_seen_but_not_an_outlier() -> None:
    costs = Costs({1: 0.02, 4: 0.03, 8: 0.05}, 0.005, 16)
    costs.saw_verify(4, 3.0)
    assert costs.learned()["0"]["verify"]["4"] == pytest.approx(0.03 * 1.025)
    for _ in range(200):
        costs.saw_verify(4, 0.06)
    assert costs.learned()["0"]["verify"]["4"] == pytest.approx(0.06, rel=0.01)
    assert costs.plain_step > 0.03  # the others go along: the context has grown
    costs.saw_draft(2, 0.02)
    assert costs.draft_step == pytest.approx(0.005 * 1.025)
    costs.saw_verify(99, 1.0)  # never measured, never asked for


def test_costs_keep_their_shape_when_everything_gets_slower() -> None:
    costs = Costs({1: 0.02, 4: 0.03, 8: 0.05}, 0.005, 16)
    for _ in range(300):
        costs.saw_verify(1, 0.04)
    assert costs.plain_step == pytest.approx(0.04, rel=0.01)
    assert costs.v(4) == pytest.approx(1.5, rel=0.2)


def test_impossible_costs_are_noise() -> None:
    costs = Costs({1: 0.02, 2: 0.9, 4: 0.001}, 0.005, 8)
    assert costs.v(2) == pytest.approx(2.6)
    assert costs.v(4) == 1.0


def test_the_cost_of_a_plain_step_is_looked_at_now_and_then() -> None:
    labels = [Label(0.97, 6.0, True)] * 4000
    policy, curve = priced("flat", 0.05)
    plain = 0
    original = policy.learn

    def learn(outcome: Outcome) -> None:
        nonlocal plain
        plain += outcome.verified == 0
        original(outcome)

    policy.learn = learn  # type: ignore[method-assign]
    result = replay(policy, labels, curve, 0.05)
    assert 1 <= plain <= 5
    assert result.speed > 4


# ------------------------------------------------------------------ replays


def test_the_price_rule_is_as_good_as_the_best_fixed_length_in_hindsight() -> None:
    ratios = []
    for path in TRACES:
        labels = Trace.load(path).labels
        for name, c in SETTINGS:
            policy, curve = priced(name, c)
            fixed = max(replay(FixedLength(k), labels, curve, c).speed for k in range(1, 17))
            ratios.append(replay(policy, labels, curve, c).speed / max(fixed, 1.0))
    assert len(ratios) == 4 * 12
    assert min(ratios) > 0.95
    assert geometric_mean(ratios) > 1.02


@pytest.mark.parametrize("rival", ["gate", "average"])
def test_the_price_rule_beats_rules_without_prices(rival: str) -> None:
    ratios = []
    for path in TRACES:
        labels = Trace.load(path).labels
        for name, c in SETTINGS:
            policy, curve = priced(name, c)
            others = (
                [replay(AverageLength(11), labels, curve, c).speed]
                if rival == "average"
                else [replay(ConfidenceGate(8, p), labels, curve, c).speed for p in (0.5, 0.6, 0.75, 0.85)]
            )
            ratios.append(replay(policy, labels, curve, c).speed / max(others))
    assert geometric_mean(ratios) > (1.1 if rival == "average" else 1.03)


@pytest.mark.parametrize("chance", [0.0, 0.05, 0.2, 0.35, 0.5])
@pytest.mark.parametrize("name", CURVES)
def test_what_drafting_can_lose_is_bounded(chance: float, name: str) -> None:
    """Uninformative confidences at a constant acceptance: the worst case of the rule."""
    for seed in range(4):
        rng = random.Random(seed)
        labels = [Label(0.5, 0.5, rng.random() < chance) for _ in range(2000)]
        c = 0.3
        policy, curve = priced(name, c)
        result = replay(policy, labels, curve, c)
        bound = (1 + LOSS_SHARE) * result.tokens + LOSS_START + 4 + 12 * c
        # Shadow passes are made for at most 1 % of the time.
        assert result.time <= bound + 0.01 * result.tokens


def test_with_a_profile_the_start_costs_nothing() -> None:
    labels = [Label(0.5, 0.5, False)] * 2000
    policy, curve = priced("RTX 5090", 0.3, loss_start=0.0)
    assert replay(policy, labels, curve, 0.3).time <= 1.04 * 2000


def test_it_stops_and_says_so_and_starts_again_when_the_text_changes() -> None:
    rng = random.Random(3)
    bad = [Label(0.4 + 0.2 * rng.random(), rng.random(), rng.random() < 0.1) for _ in range(600)]
    good = [Label(0.95, 4.0, rng.random() < 0.95) for _ in range(1500)]
    policy, curve = priced("flat", 0.1)
    replay(policy, bad, curve, 0.1)
    assert not policy.begin()
    assert "on this text" in policy.off_reason
    # Shadow passes notice that the drafter is right now.
    result = replay(policy, good, curve, 0.1)
    assert policy.begin()
    assert policy.off_reason == ""
    assert result.speed > 2.0


def test_a_staircase_is_filled_to_the_step() -> None:
    costs = Costs({1: 1.0, 2: 2.0, 3: 2.6, 4: 2.0, 5: 4.0, 16: 9.0}, 0.0, 17)
    policy = PricedLength(costs)
    policy.begin()
    for _ in range(3):
        policy.go_on(0.9, 3.0)
    assert policy.keep(3) == 3
    costs = Costs({1: 1.0, 2: 3.0, 16: 40.0}, 0.0, 17)
    policy = PricedLength(costs)
    policy.begin()
    policy.go_on(0.1, 0.1)
    assert policy.keep(1) == 0  # what was drafted is spent; verifying it would lose more


def test_a_drafter_without_probabilities_is_priced_by_depth() -> None:
    costs = Costs(CURVES["flat"], 0.0, 17)
    policy = PricedLength(costs, 11)
    for _ in range(120):
        assert policy.begin()
        kept = policy.keep(8)
        policy.learn(
            Outcome((), (), (), proposed=8, verified=kept, accepted=min(kept, 2), cut_token_agrees=None,
                    draft_s=0.0, verify_s=costs.v(kept + 1), seconds=costs.v(kept + 1))
        )  # fmt: skip
    policy.begin()
    assert 2 <= policy.keep(8) <= 4


# ------------------------------------------------------------------- engine


@pytest.mark.parametrize("draft", ["right", "half", "wrong", "lookup"])
@pytest.mark.parametrize("arch", ["llama", "qwen35"])
def test_the_text_is_the_same_with_the_length_by_price(bench: Bench, arch: str, draft: str) -> None:
    path = bench.file(arch)
    sampling = Sampling(temperature=0.7, seed=9)

    def ids(engine: object) -> tuple[int, ...]:
        request = Request([1, 6, 7, 8], sampling, max_tokens=150, ignore_eos=True)
        last = list(engine.generate(request))[-1]  # type: ignore[attr-defined]
        assert isinstance(last, Finished)
        return last.token_ids

    plain = ids(bench.engine(path))
    for curve in ("flat", "slow CPU"):
        engine = bench.engine(path, "lookup" if draft == "lookup" else bench.related(path, draft), 8)
        engine.set_length(8, Costs({n: 1e-3 * v for n, v in CURVES[curve].items()}, 1e-4, 9))
        assert engine.status.auto
        assert ids(engine) == plain


@pytest.mark.parametrize("draft", ["right", "half", "wrong"])
@pytest.mark.parametrize("arch", ["llama", "gemma3", "qwen35"])
def test_the_text_is_the_same_with_a_chain(bench: Bench, arch: str, draft: str) -> None:
    """A text that repeats itself, so that both sources get rounds."""
    path = bench.file(arch)
    prompt = [1, *list(range(20, 60)) * 3]
    sampling = Sampling(temperature=0.7, seed=9)

    def ids(engine: Engine) -> tuple[tuple[int, ...], int]:
        answers: list[int] = []
        drafted = 0
        for _ in range(2):
            request = Request([*prompt, *answers], sampling, max_tokens=100, ignore_eos=True)
            last = list(engine.generate(request))[-1]
            assert isinstance(last, Finished)
            answers += last.token_ids
            drafted += last.stats.drafted
        return tuple(answers), drafted

    plain, _ = ids(bench.engine(path))
    for c in (1e-5, 5e-4):
        engine = bench.engine(path, bench.related(path, draft), 8, chain=True)
        engine.set_length(8, Costs({1: 1e-3, 9: 1.2e-3}, c, 9))
        chained, drafted = ids(engine)
        assert chained == plain
        assert drafted > 0


def test_the_chain_takes_lookup_on_copies_and_the_model_elsewhere(bench: Bench) -> None:
    """Lookup knows a cycle; the model is always wrong there, and right where the text is new."""
    from tests import gguf_files

    cycle = [FIRST_NAMED + i for i in range(12)]
    target = gguf_files.script_model(
        bench.folder / "chain.gguf", dict(zip(cycle, [*cycle[1:], cycle[0]], strict=True))
    )
    wrong = gguf_files.script_model(bench.folder / "chain-wrong.gguf", {}, default=FIRST_NAMED + 30)
    for draft, better in ((wrong, "lookup"), (target, "chain.gguf")):
        engine = bench.engine(target, draft, 8, chain=True)
        engine.set_length(8, Costs({1: 1e-3, 9: 1.2e-3}, 1e-9, 9))
        last = list(engine.generate(Request([1, cycle[0]], Sampling(temperature=0), max_tokens=120)))[-1]
        assert isinstance(last, Finished)
        sources = last.stats.by_source
        assert sources[better].accepted > 0
        if better == "lookup":  # the model was asked as long as the text was new
            assert sources.get(draft.name, Source()).rounds <= 13


def test_an_always_wrong_draft_is_given_up_and_watched_from_aside(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = bench.file("llama")
    engine = bench.engine(path, bench.related(path, "wrong"), 8)
    engine.drafter._context.close()  # type: ignore[union-attr]
    from localspec.spec.draft_model import ModelDrafter

    engine.drafter = ModelDrafter(
        bench.context(bench.related(path, "wrong"), max_outputs=16), name="wrong", n_vocab=300
    )
    # Seconds that do not depend on this machine: every batch costs so much that a wrong draft must lose.
    monkeypatch.setattr(length, "_SHADOW_DEAREST", math.inf)
    engine.set_length(8, Costs({1: 1e-6, 16: 16e-6}, 1e-6, 17))
    events = list(
        engine.generate(Request([1, 6, 7], Sampling(temperature=0), max_tokens=300, ignore_eos=True))
    )
    last = events[-1]
    assert isinstance(last, Finished)
    assert last.draft.state == "off"
    assert last.draft.reason
    late = [e for e in events if isinstance(e, Round)][-1].stats
    assert late.drafted < 100
    assert len(engine.drafter._cached) > 250  # shadow passes kept it in step


def test_the_predicted_speed_is_the_earned_one() -> None:
    labels = Trace.load(DATA / "trace-Q4_0-t0.7.json").labels
    policy, curve = priced("flat", 0.05)
    assert policy.predicted == 1.0
    predictions: list[float] = []
    learn = policy.learn

    def watch(outcome: Outcome) -> None:
        learn(outcome)
        predictions.append(policy.predicted)

    policy.learn = watch  # type: ignore[method-assign]
    earned = replay(policy, labels, curve, 0.05).speed
    assert sum(predictions[100:]) / len(predictions[100:]) == pytest.approx(earned, rel=0.1)
    assert FixedLength(3).predicted is None


def test_a_run_of_copies_is_taken_in_the_steps_that_earn_most() -> None:
    """Four tokens cost little more than one, more cost their share: in a sure run the short step earns more."""
    costs = Costs({1: 1.0, 4: 1.3, 5: 2.6, 16: 9.0, 32: 18.0}, 0.0, 32)
    policy = PricedLength(costs, 31)
    policy.begin()
    assert policy.rate < 1.5  # the mean of the text before would pay for a long one
    assert policy.keep(31, (0.99,) * 31) == 3


def test_a_draft_that_is_dear_to_watch_is_not_watched() -> None:
    """It reads all that it missed, so a longer wait would not make it cheaper."""
    policy, _ = priced("flat", 0.1)
    assert policy.shadow_due(40 * policy.costs.plain_step)
    policy.shadow([Label(0.5, 1.0, True)], 1.0 * policy.costs.plain_step, 40 * policy.costs.plain_step)
    assert policy.shadow_due(40 * policy.costs.plain_step)
    policy.shadow([Label(0.5, 1.0, True)], 5.0 * policy.costs.plain_step, 40 * policy.costs.plain_step)
    assert not policy.shadow_due(4000 * policy.costs.plain_step)
