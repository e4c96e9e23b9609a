"""How little tune measures: what is spared, and what is found nevertheless, on machines with a clock of their own."""

from __future__ import annotations

from dataclasses import replace
from statistics import mean

import pytest

from localspec.measure.figures import Ratio
from localspec.measure.tune_cells import Cell, CellResult, Noise, Profile
from localspec.measure.tune_found import Raced
from localspec.measure.tune_predict import Prediction
from localspec.measure.tune_race import reach, survivors, undecided, won_or_lost
from localspec.measure.tune_runs import QUICK, Effort
from tests.measure.tune_machine import EFFORT, PROMPTS, Drafter, Machine, candidate, linear, run


def stairs(n):
    return 1.0 if n == 1 else 1.15 if n <= 4 else 2.2 if n <= 8 else 4.5


def dear(n):
    """A CPU: every token of a batch costs a good part of a step."""
    return 1 + 0.45 * (n - 1)


LOOKUP = Drafter({"code": 0.35, "prose": 0.05, "extraction": 0.3, "edit": 0.8}, 0.0, 0)
KNOWS_CODE = Drafter({"code": 0.9, "prose": 0.15, "extraction": 0.6, "edit": 0.85}, 0.15, 300)
MACHINES = {
    "stairs": (stairs, {"a": Drafter(0.75, 0.05)}),
    "three drafters on stairs": (stairs, {"a": Drafter(0.8, 0.05, 900), "b": Drafter(0.6, 0.02, 50), "lookup": LOOKUP}),
    "flat, a GPU": (linear(0.015), {"a": Drafter(0.85, 0.2)}),
    "lookup alone on a GPU": (linear(0.02), {"lookup": LOOKUP}),
    "off is best": (dear, {"a": Drafter(0.5, 0.2), "b": Drafter(0.3, 0.05, 50)}),
    "a tie": (linear(0.02), {"a": Drafter(0.8, 0.1, 900), "b": Drafter(0.8, 0.1, 90)}),
    "the winner differs by kind": (linear(0.04), {"a": KNOWS_CODE, "lookup": LOOKUP}),
    "rounds cost more than their parts": (linear(0.02), {"a": Drafter(0.8, 0.1, extra=0.3), "lookup": LOOKUP}),
}  # fmt: skip


def true_speeds(curve, drafters, effort):
    """Of every cell over no draft, without noise."""
    found = run(Machine(drafters, curve), *drafters, effort=replace(effort, repeats=1), exhaustive=True)
    return {Cell("none"): 1.0, **{one.cell: one.speedup.value for one in found.exhaustive.results}}


@pytest.mark.parametrize(
    ("effort", "share"),
    [(Effort(), 0.25), (QUICK, 0.3)],  # loads and timing the parts weigh more beside short answers
)
@pytest.mark.parametrize("name", MACHINES)
def test_within_three_per_cent_of_the_best_in_a_quarter_of_the_time(name, effort, share):
    curve, drafters = MACHINES[name]
    speeds = true_speeds(curve, drafters, effort)
    found = run(Machine(drafters, curve, jitter=0.02, seed=3), *drafters, effort=effort, exhaustive=True)
    assert speeds[found.choice.cell] >= 0.97 * max(speeds.values())
    assert found.exhaustive.clever_seconds <= share * found.exhaustive.seconds


def test_much_noise_costs_neither_quality_nor_time():
    effort = replace(EFFORT, tokens=120, skip=20, label_tokens=90)
    regrets = []
    for number, name in enumerate(
        ("stairs", "flat, a GPU", "off is best", "a tie", "the winner differs by kind")
    ):
        curve, drafters = MACHINES[name]
        speeds = true_speeds(curve, drafters, effort)
        found = run(
            Machine(drafters, curve, jitter=0.15, seed=number), *drafters, effort=effort, exhaustive=True
        )
        regrets.append(1 - speeds[found.choice.cell] / max(speeds.values()))
        assert found.exhaustive.clever_seconds <= 0.25 * found.exhaustive.seconds
    assert mean(regrets) <= 0.03


# ------------------------------------------------------------------------------------- what is spared


def answers_after_the_race(machine, *names):
    """How many answers made sure of the choice."""
    at = []
    run(
        machine,
        *(names or machine.drafters),
        tell=lambda event: at.append(len(machine.answers)) if isinstance(event, Raced) else None,
    )
    return len(machine.answers) - at[-1]


def test_a_clear_winner_has_to_win_once_and_an_unclear_one_longer():
    clear = Machine({"a": Drafter(0.85, 0.1), "b": Drafter(0.83, 0.1, 50)}, linear(0.03), jitter=0.02)
    warm_up = 1
    assert answers_after_the_race(clear) == warm_up + 2 * len(PROMPTS)
    unclear = Machine({"a": Drafter(0.62, 0.1), "b": Drafter(0.2, 0.1, 50)}, linear(0.25), jitter=0.15)
    assert answers_after_the_race(unclear) > warm_up + 2 * len(PROMPTS)


def test_what_a_drafter_would_accept_is_seen_with_short_drafts():
    machine = Machine({"a": Drafter(0.9, 0.05)}, linear(0.02))
    run(machine, *machine.drafters)
    labelled = [length for name, length, _ in machine.answers if name == "a"][: len(PROMPTS)]
    assert labelled == ["8"] * len(PROMPTS)


def test_a_drafter_that_cannot_catch_up_by_prediction_is_not_raced():
    machine = Machine({"good": Drafter(0.9, 0.05), "bad": Drafter(0.3, 0.3, 50)}, linear(0.03))
    found = run(machine, *machine.drafters)
    assert found.choice.cell.draft == "good"
    assert [name for name, _, _ in machine.answers].count("bad") == len(PROMPTS), "the labels alone"
    assert found.notes[0].startswith("bad is not measured: it should reach 1.")
    assert len(found.profiles) == 2


def profile(name, kinds):
    predictions = (Prediction(4, 1.0, 1.0, 0.5, kinds),)
    return Profile(candidate(name), 0.1, {1: 1.0}, 4, 2.0, (), predictions)


def test_what_a_drafter_may_reach_counts_lookup_and_no_draft_on_each_kind():
    model = profile("a", {"code": 1.6, "prose": 0.7})
    lookup = profile("lookup", {"code": 0.9, "prose": 1.2})
    alone, chained = reach(model, [model]), reach(model, [model, lookup])
    assert alone == pytest.approx(1.15 * (1.6 * 1.0) ** 0.5)
    assert chained == pytest.approx(1.15 * (1.6 * 1.2) ** 0.5)


# -------------------------------------------------------------------------------------------- the rules


def cell(noise, ratios, *, auto=False, draft="a", memory=10):
    """A cell with these ratios of one prompt."""
    made = noise.cell(Cell(draft, 4, auto=auto), memory)
    made.rates[("text", 0)] = [10 * ratio for ratio in ratios]
    made.ratios[("text", 0)] = list(ratios)
    return made


def test_one_answer_gets_its_interval_from_the_repeats_of_other_cells():
    noise = Noise()
    alone = cell(noise, [1.5])
    assert alone.speedup == Ratio(1.5, None, None)
    cell(noise, [1.0, 1.02, 0.98], draft="b")
    low, high = alone.speedup.low, alone.speedup.high
    assert low < 1.5 < high
    cell(noise, [1.0, 1.3, 0.7], draft="c")
    assert alone.speedup.low < low
    assert alone.speedup.high > high


def test_repeats_on_another_load_tell_the_noise_too():
    noise = Noise()
    cell(noise, [1.5])
    again = cell(noise, [1.53])
    assert again.speedup.low is not None


def test_a_cell_whose_interval_does_not_reach_the_leader_leaves():
    noise = Noise()
    leader = cell(noise, [1.50, 1.51, 1.49], auto=True)
    near, far = cell(noise, [1.49, 1.50]), cell(noise, [1.30, 1.31], auto=True, draft="b")
    assert survivors([leader, near], [leader, near, far]) == [
        leader
    ]  # a tie goes to auto: no more to be seen
    assert survivors([far], [leader, near, far]) == []
    light = cell(noise, [1.49, 1.51], draft="c", memory=1)
    assert survivors([light], [leader, light]) == [light]  # a tie goes to what needs less memory


def test_without_known_noise_only_what_is_far_behind_leaves():
    noise = Noise()
    leader, behind, far = (
        cell(noise, [1.5], auto=True),
        cell(noise, [1.35]),
        cell(noise, [1.1], auto=True, draft="b"),
    )
    assert survivors([leader, behind], [leader, behind]) == [leader, behind]
    assert survivors([far], [leader, far]) == []
    assert undecided([leader, behind], [leader, behind])


def test_nothing_is_repeated_when_all_are_told_apart():
    noise = Noise()
    first, second = cell(noise, [1.50, 1.51, 1.49]), cell(noise, [1.30, 1.31, 1.29], draft="b")
    assert not undecided([first], [first, second])
    near = cell(noise, [1.52, 1.47, 1.49], draft="c")
    assert undecided([first], [first, second, near])
    assert not undecided([], [first])


@pytest.mark.parametrize(
    ("ratio", "clear"),
    [
        (Ratio(1.5, 1.4, 1.6), True),
        (Ratio(1.03, 1.01, 1.05), False),
        (Ratio(0.9, 0.8, 1.01), True),
        (Ratio(1.0, 0.9, 1.1), False),
        (Ratio(1.5, None, None), False),
    ],
)
def test_a_speed_is_clear_when_no_more_answers_would_change_what_it_means(ratio, clear):
    assert won_or_lost(ratio) is clear


def test_no_draft_is_exactly_itself():
    off = CellResult(Cell("none"))
    off.ratios[("text", 0)] = [1.0, 1.0]
    assert off.speedup == Ratio(1.0, 1.0, 1.0)
