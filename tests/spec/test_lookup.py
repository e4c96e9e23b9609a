"""The `lookup` drafter: what it finds, how far it trusts it, and what it earns alone and in a chain."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from localspec.measure.figures import geometric_mean
from localspec.spec.curve import Costs
from localspec.spec.draft_lookup import LookupDrafter
from localspec.spec.engine import Request
from localspec.spec.events import Finished, Sampling
from localspec.spec.length import FixedLength, PricedLength
from localspec.spec.replay import CURVES, Text, replay_lookup
from localspec.spec.sampling import Sampler
from tests.gguf_writer import FIRST_NAMED
from tests.spec.conftest import Bench

DATA = Path(__file__).parent.parent / "data"
GREEDY = Sampler(Sampling(temperature=0))


def proposed(ids: list[int], k: int) -> list[int]:
    drafter = LookupDrafter()
    drafter.begin(ids)
    return list(drafter.draft(ids, k, GREEDY).tokens)


@pytest.mark.parametrize("period", [1, 2, 3, 7])
@pytest.mark.parametrize("k", [1, 5, 31])
def test_a_text_that_repeats_itself_is_taken_to_go_on(period: int, k: int) -> None:
    """What there is to copy behind the newest match ends after one period; the proposal does not."""
    said = list(range(10, 10 + period))
    ids = [1, 2, 3, *(said * 40)[: 2 * period + 1]]
    assert proposed(ids, k) == ((said * 40)[1 : 1 + k])


def test_what_was_not_said_twice_in_a_row_is_not_made_up() -> None:
    assert proposed([1, 5, 6, 7, 5, 6], 8) == [7, 5, 6]  # 5 6 matches, but 7 did not come again yet
    assert proposed([1, 5, 6, 7, 5, 6, 7], 8) == [5, 6, 7, 5, 6, 7, 5, 6]
    assert proposed([1, 5, 6, 7, 8, 9, 5, 6, 7], 3) == [8, 9, 5]
    assert proposed([1, 5, 6, 7], 8) == []


def test_a_loop_is_decoded_in_long_steps() -> None:
    """With a period of five, proposals of five would need one pass of the target for six tokens."""
    text = Text("loop", (1, 2, 3), tuple([11, 12, 13, 14, 15] * 60))
    curve = [0.0, *(1.0 for _ in range(33))]
    assert replay_lookup(FixedLength(31), text, curve, LookupDrafter()).speed > 15


def test_a_chain_looks_up_even_where_its_model_does_not_pay(bench: Bench) -> None:
    """A cycle: lookup knows it, and the model is wrong and so dear that it is never worth asking."""
    from tests import gguf_files

    cycle = [FIRST_NAMED + i for i in range(12)]
    table = dict(zip(cycle, [*cycle[1:], cycle[0]], strict=True))
    target = gguf_files.script_model(bench.folder / "dear.gguf", table)
    wrong = gguf_files.script_model(bench.folder / "dear-wrong.gguf", {}, default=FIRST_NAMED + 30)
    engine = bench.engine(target, wrong, 8, chain=True)
    engine.set_length(8, Costs({1: 1.0, 9: 1.2}, 1000.0, 9))
    last = list(engine.generate(Request([1, cycle[0]], Sampling(temperature=0), max_tokens=120)))[-1]
    assert isinstance(last, Finished)
    assert list(last.stats.by_source) == ["lookup"]
    assert last.stats.accepted > 60
    assert last.draft.state == "on"


def test_lookup_learns_how_far_its_matches_can_be_trusted() -> None:
    rng = random.Random(0)

    def chance_after(right: float) -> float:
        drafter = LookupDrafter()
        ids = [rng.randrange(5) for _ in range(40)]
        for _ in range(400):
            draft = drafter.draft(ids, 1, GREEDY)
            last = draft.chances[0] if draft.chances else 0.0
            agreed = draft.tokens and rng.random() < right
            ids.append(draft.tokens[0] if agreed else 5 + rng.randrange(200))
            if not agreed:
                ids += [rng.randrange(5) for _ in range(2)]
            drafter.accept(ids)
        return last

    assert chance_after(0.95) > 0.75
    assert chance_after(0.1) < 0.4


def test_a_free_proposal_is_labelled_while_the_loss_is_used_up(bench: Bench) -> None:
    """Nothing is verified then, but what would have been right is counted all the same."""
    from tests import gguf_files

    cycle = [FIRST_NAMED + i for i in range(12)]
    table = dict(zip(cycle, [*cycle[1:], cycle[0]], strict=True))
    target = gguf_files.script_model(bench.folder / "blocked.gguf", table)
    engine = bench.engine(target, "lookup", 8)
    engine.set_length(8, Costs({1: 1.0, 9: 1.2}, 0.0, 9))
    assert isinstance(engine.policy, PricedLength)
    engine.policy._debt = 1e9
    last = list(engine.generate(Request([1, cycle[0]], Sampling(temperature=0), max_tokens=60)))[-1]
    assert isinstance(last, Finished)
    assert last.stats.drafted == 0
    assert last.draft.state == "off"
    assert engine.drafter is not None
    assert sum(seen for _, seen in engine.drafter.learned()["agree"]) >= 40


def test_by_price_lookup_is_as_good_as_the_best_fixed_length_in_hindsight() -> None:
    """Answers of two models to four kinds of prompt; the rates of matches are learned anew for each."""
    ratios = []
    for text in Text.load(DATA / "texts.json"):
        for points in CURVES.values():
            costs = Costs(points, 0.0, 32)
            curve = [0.0, *(costs.v(n) for n in range(1, 33))]
            fixed = [
                replay_lookup(FixedLength(k), text, curve, LookupDrafter()).speed
                for k in (1, 2, 3, 5, 7, 12, 20, 31)
            ]
            earned = replay_lookup(PricedLength(costs, 31), text, curve, LookupDrafter()).speed
            ratios.append(earned / max(1.0, *fixed))
    assert len(ratios) == 16 * 4
    assert min(ratios) > 0.93
    assert geometric_mean(ratios) > 1.02
