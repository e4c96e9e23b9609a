"""Tune on machines whose fastest setting is known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from localspec.cli.tune_report import report, sweep_table
from localspec.errors import LoadError, UsageError
from localspec.measure.tune import tune
from localspec.measure.tune_cells import Cell, Profile, Sweep
from localspec.measure.tune_found import Raced
from localspec.measure.tune_result import to_json
from localspec.measure.tune_sweeps import Knobs
from localspec.spec.events import Sampling
from localspec.worker.protocol import Load
from tests.measure.tune_machine import (
    BASE,
    EFFORT,
    PROMPTS,
    Drafter,
    FaultyMachine,
    Machine,
    candidate,
    linear,
    quick,
    run,
    with_kv,
)


def staircase(n):
    """Batches of up to 4 cost the same, then up to 8, then it gets dear."""
    return 1.0 if n == 1 else 1.15 if n <= 4 else 2.2 if n <= 8 else 4.5


# --------------------------------------------------------------------------------------------- known answers


def test_a_staircase_is_filled_to_its_edge():
    machine = Machine({"4b": Drafter(accept=0.75, step=0.05)}, staircase)
    found = run(machine, "4b", exhaustive=True)
    # V(4) is the last cheap batch: three drafted tokens and the bonus. Nothing shorter, nothing longer.
    assert (found.choice.cell.draft, found.verdict, found.confirmed) == ("4b", "faster", True)
    best = max(found.profiles[0].predictions, key=lambda one: one.speedup)
    assert best.n_draft == 3
    measured = {one.cell.n_draft for one in found.results if not one.cell.auto}
    assert 3 in measured
    assert len(measured) <= 2
    assert found.exhaustive.best.cell.n_draft == 3 or found.exhaustive.best.cell.auto


def test_predictions_are_what_is_measured():
    machine = Machine({"4b": Drafter(accept=0.7, step=0.1)}, staircase)
    found = run(machine, "4b", exhaustive=True)
    predicted = {one.n_draft: one.speedup for one in found.profiles[0].predictions}
    measured = {one.cell.n_draft: one.speedup.value for one in found.exhaustive.results if not one.cell.auto}
    for k, speedup in predicted.items():
        assert measured[k] == pytest.approx(speedup, rel=0.08), k


def test_off_is_fastest_when_acceptance_is_poor():
    machine = Machine({"4b": Drafter(accept=0.2, step=0.3)}, linear(0.15))
    found = run(machine, "4b")
    assert found.choice.cell == Cell("none")
    assert found.verdict in ("off is fastest", "within noise")
    assert found.load.draft.kind == "none"


def test_a_drafter_whose_rounds_cost_more_than_their_parts_loses_to_off():
    """S06: acceptance is high, the parts look cheap, and yet every drafted round copies a whole state."""
    machine = Machine({"4b": Drafter(accept=0.9, step=0.05, extra=8.0)}, linear(0.02))
    found = run(machine, "4b")
    assert max(one.speedup for one in found.profiles[0].predictions) > 2
    assert (found.choice.cell.off, found.verdict) == (True, "off is fastest")


def test_a_draft_deeper_than_the_target_is_left_out_without_an_answer():
    """P06: no acceptance could make up for a draft step of 8 target steps."""
    machine = Machine({"deep": Drafter(accept=0.99, step=8.0)}, linear(0.02))
    found = run(machine, "deep")
    assert (found.choice.cell.off, found.verdict) == (True, "off is fastest")
    assert found.profiles[0].ceiling < 1
    assert found.profiles[0].predictions == ()
    assert {name for name, _, _ in machine.answers} == {"off"}
    cheap = run(Machine({"cheap": Drafter(accept=0.9, step=0.05)}, linear(0.02)), "cheap")
    assert cheap.choice.cell.n_draft > 0


def test_the_better_of_two_drafters_wins_and_the_other_is_soon_given_up():
    drafters = {"good": Drafter(0.85, 0.1, bytes=900), "bad": Drafter(0.4, 0.4, bytes=50)}
    machine = Machine(drafters, linear(0.05))
    found = run(machine, "good", "bad")
    assert found.choice.cell.draft == "good"
    answers = [name for name, _, _ in machine.answers]
    assert answers.count("bad") < answers.count("good") / 2


def test_of_tied_drafters_the_one_that_needs_less_memory_is_taken():
    # The same text and speed; `Drafter.bytes` is only the size in memory here.
    drafters = {"large": Drafter(0.8, 0.1, bytes=900), "small": Drafter(0.8, 0.1, bytes=100)}
    machine = Machine(drafters, linear(0.05), jitter=0.1)
    machine.agreements = lambda drafter, kind, tokens: [i % 6 != 0 for i in range(tokens)]
    found = run(machine, "large", "small")
    assert {one.cell.draft for one in found.tied} == {"large", "small"}
    assert found.choice.cell.draft == "small"


@pytest.mark.parametrize("seed", range(8))
def test_jitter_crowns_no_winner_below_the_noise(seed):
    """A07: a drafter that changes nothing, measured with 15 % of noise, must not be taken."""
    machine = Machine({"4b": Drafter(0.5, 0.25)}, linear(0.0), jitter=0.15, seed=seed)
    machine.agreements = lambda drafter, kind, tokens: [i % 5 == 1 for i in range(tokens)]
    machine.length = lambda drafter, kind: 1
    found = run(machine, "4b")
    true = max(one.speedup for one in found.profiles[0].predictions)
    assert true < 1.02
    assert found.choice.cell.off
    assert found.verdict in ("off is fastest", "within noise")


@pytest.mark.parametrize("seed", range(4))
def test_jitter_does_not_hide_a_real_winner(seed):
    machine = Machine({"4b": Drafter(0.85, 0.1)}, linear(0.03), jitter=0.15, seed=seed)
    found = run(machine, "4b")
    assert (found.choice.cell.draft, found.verdict) == ("4b", "faster")
    assert found.choice.speedup.low > 1


@pytest.mark.parametrize("seed", range(4))
def test_noise_in_the_race_does_not_trade_much_speed_for_little_memory(seed):
    """Lookup needs no memory, but a draft that is a third faster is no tie with it."""
    drafters = {"4b": Drafter(0.6, 0.1), "lookup": Drafter(0.2, 0.0, 0)}
    found = run(Machine(drafters, linear(0.05), jitter=0.15, seed=seed), "4b", "lookup")
    assert found.choice.cell.draft == "4b"
    assert all(one.cell.draft != "lookup" for one in found.tied)


def test_a_winner_that_does_not_win_again_is_a_tie():
    machine = Machine({"4b": Drafter(0.85, 0.1)}, linear(0.03))

    def tell(event):
        # Good luck throughout the race; on fresh answers every round costs three times as much.
        if isinstance(event, Raced):
            machine.drafters["4b"] = Drafter(0.85, 0.1, extra=4.0)

    found = run(machine, "4b", tell=tell)
    assert found.fastest.cell.draft == "4b"
    assert (found.choice.cell.off, found.verdict) == (True, "within noise")
    assert any("did not win again" in note for note in found.notes)


def test_a_kind_that_wants_other_settings_is_named_with_figures():
    """P07: the drafter knows code and cannot write prose."""
    accept = {"code": 0.95, "prose": 0.05, "extraction": 0.95, "edit": 0.95}
    machine = Machine({"4b": Drafter(accept, 0.2)}, linear(0.05))
    machine.length = lambda drafter, kind: 7
    found = run(machine, "4b")
    assert found.choice.cell.draft == "4b"
    winner, gain = found.winners["prose"]
    assert winner.cell.off
    own = found.choice.kinds["prose"].value
    assert gain == pytest.approx(1 / own - 1, rel=0.1)
    assert not any(one.cell.off for kind, (one, _) in found.winners.items() if kind != "prose")


# ----------------------------------------------------------------------------------------- clever, not brute


def test_the_best_of_many_noisy_cells_is_no_proof_of_a_gap():
    """The maximum of 17 figures that differ by noise alone lies above the choice; the proof says what it is."""
    found = run(Machine({"a": Drafter(0.0, 0.0, 0)}, lambda n: 1.0, jitter=0.15), "a", exhaustive=True)
    assert found.exhaustive.gap > 0
    assert not found.exhaustive.real
    assert "slower than that (within noise), found in" in " ".join(report(found, None).split())
    assert to_json(found, when="", target="t", profile=None)["exhaustive"]["gap_beyond_noise"] is False
    found.exhaustive = replace(found.exhaustive, gap=0.2, real=True)
    assert "The choice is 20.0% slower than that, found in" in " ".join(report(found, None).split())
    assert all(len(line) <= 80 for line in report(found, None).splitlines())


def test_every_drafter_is_loaded_once_and_the_winner_again_at_most():
    machine = Machine({"a": Drafter(0.8, 0.1), "b": Drafter(0.4, 0.3)}, linear(0.05))
    run(machine, "a", "b")
    assert [load.draft.path for load in machine.loads] in (["a", "b", "a"], ["a", "b"])
    assert all(load.auto and load.n_draft == 16 for load in machine.loads)


def test_cells_and_no_draft_meet_in_blocks_with_changing_order():
    machine = Machine({"a": Drafter(0.8, 0.1)}, linear(0.05))
    found = run(machine, "a")
    first = next(one for one in found.results if one.answers)
    assert first.answers == len(PROMPTS), "of a single drafter the last answers decide"
    labels = 1 + len(PROMPTS)  # a warm-up and the labels
    starts = {machine.answers[labels + 4 * index][:2] for index in range(4)}
    assert len(starts) > 1


def test_the_progress_ends_near_one_and_has_an_eta():
    steps = []
    machine = Machine({"a": Drafter(0.8, 0.1)}, linear(0.05))
    run(machine, "a", tell=lambda event: steps.append(event) if hasattr(event, "eta_s") else None)
    assert all(0 <= step.fraction <= 1 for step in steps)
    assert steps[-1].fraction > 0.85
    assert sum(step.eta_s is not None for step in steps) > len(steps) - 4


def test_tables_come_as_it_goes():
    events = []
    machine = Machine({"a": Drafter(0.8, 0.1), "b": Drafter(0.8, 0.1, bytes=50)}, linear(0.05))
    run(machine, "a", "b", tell=events.append, knobs=Knobs(kv=("f16", "q8_0")))
    kinds = [type(event) for event in events if isinstance(event, (Profile, Raced, Sweep))]
    assert kinds == [Profile, Raced, Profile, Raced, Sweep]
    races = [event for event in events if isinstance(event, Raced)]
    # Without noise the second one is told apart from the first by one answer to each prompt.
    assert [race.off.answers for race in races] == [len(PROMPTS) * EFFORT.race, len(PROMPTS)]
    for race in races:
        for one in race.cells:
            if not one.given_up:
                assert one.tok_s / race.off.tok_s == pytest.approx(one.speedup.value, rel=0.01)


# ------------------------------------------------------------------------------------- the end, and accidents


@pytest.mark.parametrize("at", [3, 12, 22])
def test_ctrl_c_keeps_what_was_measured(at):
    machine = Machine({"a": Drafter(0.85, 0.1)}, linear(0.03), stop_at=at)
    found = run(machine, "a")
    assert found.partial
    assert len(machine.answers) == at
    if at == 3:
        assert found.choice is None
    else:
        assert found.off.answers > 0
        assert found.choice is not None
        assert found.confirmed is False or found.choice.cell.off
    if at == 22:
        assert found.choice.cell.draft == "a"


def test_ctrl_c_in_the_other_settings_leaves_a_confirmed_choice():
    whole = Machine({"a": Drafter(0.85, 0.1)}, linear(0.03))
    run(whole, "a")
    machine = Machine({"a": Drafter(0.85, 0.1)}, linear(0.03), stop_at=len(whole.answers) + 3)
    found = run(machine, "a", knobs=Knobs(kv=("f16", "q8_0")))
    assert (found.partial, found.confirmed, found.sweeps) == (True, True, [])
    assert (found.choice.cell.draft, found.load.draft.path, found.load.kv_type) == ("a", "a", "f16")


def test_stopping_the_proof_leaves_the_result_whole():
    machine = Machine({"a": Drafter(0.85, 0.1)}, linear(0.03))
    whole = run(machine, "a")
    again = Machine({"a": Drafter(0.85, 0.1)}, linear(0.03), stop_at=len(machine.answers) + 5)
    found = run(again, "a", exhaustive=True)
    assert (found.partial, found.exhaustive) == (False, None)
    assert found.choice.cell == whole.choice.cell
    assert any("exhaustive" in note for note in found.notes)


def test_a_draft_that_kills_the_engine_is_left_out():
    machine = Machine({"bad": Drafter(), "good": Drafter(0.85, 0.1)}, linear(0.03), broken=("bad",))
    found = run(machine, "bad", "good")
    assert found.choice.cell.draft == "good"
    assert found.notes[0].startswith("bad is left out: The engine stopped")


def test_a_fault_in_one_answer_costs_that_drafter_only():
    machine = FaultyMachine({"a": Drafter(0.85, 0.1), "b": Drafter(0.8, 0.1)}, linear(0.03))
    machine.fault_at = 8
    found = run(machine, "a", "b")
    assert found.choice.cell.draft == "b"
    assert found.notes == ["a is left out: llama_decode failed."]
    assert not found.partial


def test_without_drafters_off_is_measured_alone():
    found = run(Machine({}, linear(0.03)))
    assert found.choice.cell.off
    assert found.off.answers == len(PROMPTS) * EFFORT.repeats
    assert found.off.tok_s == pytest.approx(100)


def test_a_target_that_cannot_be_loaded_ends_it():
    with pytest.raises(LoadError):
        run(Machine({"a": Drafter()}), "a", base=Load("missing.gguf"))
    with pytest.raises(UsageError, match="no prompt"):
        run(Machine({"a": Drafter()}), "a", prompts=())


# --------------------------------------------------------------------------------------------- one at a time


def test_a_faster_cache_type_is_taken_and_said_to_change_the_text():
    machine = Machine({"a": Drafter(0.85, 0.1)}, linear(0.03), factor=with_kv("q8_0", 0.8), jitter=0.02)
    found = run(machine, "a", knobs=Knobs(kv=("f16", "q8_0")))
    (sweep,) = found.sweeps
    assert (sweep.variable, sweep.used) == ("kv", "q8_0")
    assert sweep.rows[1][2].value == pytest.approx(1.25, rel=0.1)
    assert "localspec verify --kv q8_0" in sweep.note
    assert (found.load.kv_type, found.load.draft.path) == ("q8_0", "a")
    # It has to be faster beside a fresh measurement of the old one too.
    kinds = [load.kv_type for load in machine.loads]
    assert kinds == ["f16", "q8_0", "f16"]


def test_a_cache_type_within_noise_leaves_the_exact_one():
    machine = Machine({"a": Drafter(0.85, 0.1)}, linear(0.03), factor=with_kv("q8_0", 0.97), jitter=0.15)
    found = run(machine, "a", knobs=Knobs(kv=("f16", "q8_0")))
    assert found.load.kv_type == "f16"
    assert found.sweeps[0].note == ""


def test_flash_attention_is_tried_and_kept_in_the_profile_when_off_is_faster():
    machine = Machine({}, linear(0.03), factor=lambda load: 0.5 if load.flash_attn == "off" else 1.0)
    found = run(machine, knobs=Knobs(flash_attn=("auto", "off")))
    assert found.load.flash_attn == "off"
    assert to_json(found, when="", target="t", profile=None)["best"]["flash_attn"] == "off"


def test_the_split_is_tried_on_gpus_only():
    machine = Machine({}, linear(0.03), factor=lambda load: 0.5 if load.split_mode == "row" else 1.0)
    assert run(machine, knobs=Knobs(split_mode=("layer", "row", "none"))).load.split_mode == "layer"


def test_threads_are_tried_on_a_cpu_only():
    machine = Machine({}, linear(0.03), factor=lambda load: 0.5 if load.threads == 8 else 1.0)
    found = run(machine, knobs=Knobs(threads=(1, 8)))
    assert found.load.threads == 8
    assert [row[0] for row in found.sweeps[0].rows] == ["2", "1", "8"]


def reads_best_at(n_ubatch):
    """Twice as fast with so many tokens at once."""
    return lambda load: 0.5 if load.at_once == n_ubatch else 1.0


def variables(found):
    return [sweep.variable for sweep in found.sweeps]


def test_ubatch_is_tried_apart_from_the_batch_where_a_gpu_computes():
    machine = Machine({}, linear(0.03), reading=reads_best_at(128), gpu=True)
    found = run(machine, knobs=Knobs(ubatch=(128, 256, 1024)))
    (sweep,) = found.sweeps
    assert (sweep.variable, sweep.unit, sweep.used) == ("ubatch", "prompt tok/s", "128")
    assert [row[0] for row in sweep.rows] == ["512", "128", "256", "1024"]
    assert sweep.rows[1][2].value == pytest.approx(2.0, rel=0.05)
    assert (found.load.n_batch, found.load.n_ubatch) == (512, 128)
    assert to_json(found, when="", target="t", profile=None)["best"]["ubatch"] == 128


def test_a_larger_ubatch_takes_the_batch_along():
    machine = Machine({}, linear(0.03), reading=reads_best_at(2048), gpu=True)
    found = run(machine, knobs=Knobs(ubatch=(128, 2048)))
    assert (found.load.n_batch, found.load.n_ubatch) == (2048, 2048)


def test_ubatch_is_tried_on_a_cpu_on_request_only():
    machine = Machine({}, linear(0.03), reading=reads_best_at(128))
    assert variables(run(machine, knobs=Knobs(ubatch=(128,)))) == []
    found = run(machine, knobs=Knobs(ubatch=(128,), ubatch_on_cpu=True))
    assert (variables(found), found.load.n_ubatch) == (["ubatch"], 128)


def test_no_ubatch_is_taken_that_a_round_does_not_fit_into():
    machine = Machine({"a": Drafter(0.95, 0.01)}, linear(0.0), reading=reads_best_at(8), gpu=True)
    found = run(machine, "a", knobs=Knobs(batch=(8, 64), ubatch=(8, 64)))
    assert found.choice.cell.n_draft > 7
    assert [row[0] for sweep in found.sweeps for row in sweep.rows] == ["512", "64", "512", "64"]


def test_a_smaller_batch_keeps_the_draft_within_it():
    machine = Machine({}, linear(0.03), reading=lambda load: 0.5 if load.n_batch == 16 else 1.0)
    found = run(machine, base=replace(BASE, n_ubatch=64), knobs=Knobs(batch=(16,)))
    assert (found.load.n_batch, found.load.n_ubatch, found.load.n_draft) == (16, 16, 15)


def test_where_the_draft_runs_is_tried_with_the_chosen_draft():
    def slow_beside_the_target(load):
        return 1.0 if load.draft.kind == "none" or load.draft.device == "cpu" else 1.25

    machine = Machine({"a": Drafter(0.9, 0.1)}, linear(0.03), factor=slow_beside_the_target, gpu=True)
    found = run(machine, "a", knobs=Knobs(draft_device=("auto", "cpu"), draft_threads=(4,)))
    assert variables(found) == ["draft device", "draft threads"]
    assert (found.sweeps[0].used, found.load.draft.device, found.load.draft.path) == ("cpu", "cpu", "a")
    assert [row[0] for row in found.sweeps[1].rows] == ["2", "4"]
    best = to_json(found, when="", target="t", profile=None)["best"]
    assert (best["draft_device"], best["draft_kv"]) == ("cpu", "")


@pytest.mark.parametrize("drafter", [(), ("lookup",)])
def test_without_a_draft_model_there_is_nothing_to_place(drafter):
    machine = Machine({"lookup": Drafter(0.9, 0.0)}, linear(0.03))
    found = run(machine, *drafter, knobs=Knobs(draft_device=("auto", "cpu"), draft_threads=(1, 2)))
    assert variables(found) == []
    assert "draft_device" not in to_json(found, when="", target="t", profile=None)["best"]


def test_a_value_that_cannot_be_loaded_is_told_in_its_table():
    machine = Machine(
        {"a": Drafter(0.9, 0.1)}, linear(0.03), refused=lambda load: load.draft.device == "gpu7"
    )
    found = run(machine, "a", knobs=Knobs(draft_device=("auto", "gpu7")))
    (sweep,) = found.sweeps
    assert [row[0] for row in sweep.rows] == ["auto"]
    assert sweep.note == "gpu7 is left out: There is no such thing."


def beside(load):
    """Faster where the draft works while the target verifies."""
    return 0.7 if load.draft.overlap == "on" else 1.0


OVERLAP = Knobs(draft_device=("auto", "cpu"), overlap=("on", "off"))


def test_overlap_is_tried_where_target_and_draft_run_on_different_devices():
    def factor(load):
        return beside(load) * (1.0 if load.draft.kind == "none" or load.draft.device == "cpu" else 1.25)

    machine = Machine({"a": Drafter(0.9, 0.1)}, linear(0.03), factor=factor, gpu=True)
    found = run(machine, "a", knobs=OVERLAP)
    assert variables(found) == ["draft device", "overlap"]
    assert [row[0] for row in found.sweeps[1].rows] == ["auto", "on"]  # auto came to off
    assert (found.load.draft.device, found.load.draft.overlap) == ("cpu", "on")
    assert to_json(found, when="", target="t", profile=None)["best"]["overlap"] == "on"
    assert "--draft-device cpu --overlap on" in report(found, None)


def test_overlap_that_was_on_by_itself_is_compared_with_off():
    machine = Machine(
        {"a": Drafter(0.9, 0.1)},
        linear(0.03),
        factor=lambda load: 0.7 if load.draft.overlap == "off" else 1.0,
        gpu=True,
        ahead=lambda load: load.draft.overlap != "off",
    )
    placed = replace(candidate("a"), spec=replace(candidate("a").spec, device="cpu"))
    found = tune(
        machine, BASE, [placed], PROMPTS, EFFORT, Sampling(seed=1), knobs=OVERLAP, clock=machine.clock
    )
    overlap = next(sweep for sweep in found.sweeps if sweep.variable == "overlap")
    assert ([row[0] for row in overlap.rows], overlap.used) == (["auto", "off"], "off")


def test_overlap_is_tried_on_one_device_on_request_only():
    machine = Machine({"a": Drafter(0.9, 0.1)}, linear(0.03), factor=beside)
    assert variables(run(machine, "a", knobs=replace(OVERLAP, draft_device=()))) == []
    found = run(machine, "a", knobs=Knobs(overlap=("on", "off"), overlap_anywhere=True))
    assert (variables(found), found.load.draft.overlap) == (["overlap"], "on")
    alone = Machine({"lookup": Drafter(0.9, 0.0)}, linear(0.03), factor=beside)
    assert variables(run(alone, "lookup", knobs=Knobs(overlap=("on", "off"), overlap_anywhere=True))) == []


def test_what_changes_the_text_is_shown_and_not_chosen():
    machine = Machine({"a": Drafter(0.85, 0.1)}, linear(0.03))
    asked = []
    inner = machine.generate

    def generate(command):
        asked.append((command.sampling.temperature, command.sampling.top_p))
        return inner(command)

    machine.generate = generate
    found = run(machine, "a", knobs=Knobs(temperatures=(0.0, 1.0), top_ps=(0.95, 1.0)), effort=quick(2))
    assert variables(found) == ["temperature", "top-p"]
    for sweep, values in zip(found.sweeps, (["0", "1"], ["0.95", "1"]), strict=True):
        assert [row[0] for row in sweep.rows] == values
        assert all(row[2].value > 1.5 for row in sweep.rows)
        assert sweep.shown_only
        assert "changes the text: it is yours to choose, and none is taken for its speed." in sweep.note
    usual = (Sampling().temperature, Sampling().top_p)
    assert list(dict.fromkeys(asked)) == [usual, (0.0, usual[1]), (1.0, usual[1]), (usual[0], 1.0)]
    lines = sweep_table(found.sweeps[1]).splitlines()
    assert [line.split()[0] for line in lines if line.endswith("  yours")] == ["0.95"]
    assert not any(line.endswith("  taken") for line in lines)
