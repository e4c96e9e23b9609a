"""Whether the draft works beside the target: decided by where they are and by measured prices, and said."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from localspec import paths
from localspec.errors import DecodeError
from localspec.llama.log import NativeLog
from localspec.memory import hardware
from localspec.memory.devices import Device
from localspec.memory.plan import ModelMemory, Plan
from localspec.spec.curve import Costs
from localspec.spec.draft_chain import ChainDrafter
from localspec.spec.draft_model import ModelDrafter
from localspec.spec.draft_overlap import OverlapDrafter
from localspec.spec.engine import Request
from localspec.spec.events import Finished, Sampling
from localspec.worker import costs as costs_module
from localspec.worker import overlap
from localspec.worker.loading import Loaded, Loader
from localspec.worker.overlap import OverlapChoice, least_ready, predicted_gain, share_cores, split_threads
from localspec.worker.protocol import Costs as Measured
from localspec.worker.protocol import DraftSpec, Event, Load, MeasureCosts
from tests import gguf_files

GPU, OTHER = (Device("Two of a kind", "gpu", 1, 1, f"CUDA{number}") for number in range(2))


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Loaded]]:
    """Loads a tiny pair; whatever a test leaves open is closed, and no thread may stay."""
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(hardware, "seen_gpus", lambda: ())
    log, opened = NativeLog(), []
    log.install()
    target = gguf_files.random_llama(tmp_path / "target.gguf")
    draft = gguf_files.perturbed(target, tmp_path / "draft.gguf")

    def make(mode: str = "auto", *, path: Path | None = None, **options: Any) -> Loaded:
        spec = options.pop("spec", DraftSpec("model", str(path or draft), overlap=mode))  # type: ignore[arg-type]
        events: list[Event] = []
        command = Load(str(target), spec, **{"n_ctx": 256, "threads": 1, "n_draft": 4, **options})
        opened.append(Loader(command, log, events.append, lambda: False).load())
        return opened[-1]

    yield make
    for loaded in opened:
        loaded.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("localspec draft")]


def placed(target: tuple[Device, ...], draft: tuple[Device, ...], *, layers: int = 3) -> Plan:
    """A plan with the target's `layers` of 3 and all of the draft on these devices."""
    nothing = (0, 0)
    items = tuple(
        ModelMemory(role, role, nothing, nothing, nothing, count if devices else 0, 3, devices)  # type: ignore[arg-type]
        for role, devices, count in (("target", target, layers), ("draft", draft, 3))
    )
    made = object.__new__(Plan)
    object.__setattr__(made, "items", items)
    return made


def fake(monkeypatch: pytest.MonkeyPatch, c: float, contention: float, flat: float = 0.05) -> list[int]:
    """Prices: a draft step of c target steps, `flat` more for each token of a batch. Returns the calls."""
    calls: list[int] = []

    def measured(_engine: object, command: MeasureCosts, _cancelled: object) -> Measured:
        calls.append(1)
        return Measured(16, 0.1, {n: 0.1 * (1 + flat * (n - 1)) for n in command.sizes}, 0.1 * c)

    monkeypatch.setattr(overlap, "measure_costs", measured)
    monkeypatch.setattr(overlap, "_contention", lambda *_: contention)
    return calls


def choice(loaded: Loaded, plan: Plan, mode: str = "auto", key: str = "", **options: Any) -> OverlapChoice:
    return OverlapChoice(loaded.engine, mode, plan, [key], **options)  # type: ignore[arg-type]


# -------------------------------------------------------------------- figures


def test_the_predicted_gain_is_that_of_the_formula() -> None:
    """Worked out by hand for one length: a = 0.8, k = 3, c = 0.3, V(4) = 1.2."""
    costs = Costs({1: 1.0, 4: 1.2}, 0.3, 4)
    hit = 0.8**4
    plain = 0.9 + 1.2
    assert predicted_gain(costs, 0.0, 0.8, [3]) == pytest.approx(plain / ((1 - hit) * plain + hit * 1.2) - 1)
    slowed = (1 - hit) * (0.9 + 1.2 * 1.04) + hit * 1.2 * 1.04
    assert predicted_gain(costs, 0.04, 0.8, [3]) == pytest.approx(plain / slowed - 1)


def test_the_gain_is_largest_where_the_draft_is_dear_but_fits_beside_the_target() -> None:
    flat = {1: 1.0, 8: 1.2}
    gains = [predicted_gain(Costs(flat, c, 8), 0.0, 0.8, range(1, 8)) for c in (0.01, 0.15, 0.3, 2.0)]
    assert gains[0] < 0.02
    assert gains[0] < gains[1] < gains[2]
    assert gains[3] < gains[2]
    assert predicted_gain(Costs(flat, 0.3, 8), 0.0, 0.2, range(1, 8)) < 0.05


def test_what_a_round_waits_for() -> None:
    assert [least_ready(c) for c in (0.0, 0.05, 0.09, 0.15, 0.3, 0.31, 2.0)] == [3, 3, 3, 2, 1, 0, 0]


def test_threads_are_split_without_using_a_core_twice() -> None:
    assert [split_threads(n) for n in (1, 2, 4, 8, 15)] == [(1, 1), (1, 1), (3, 1), (6, 2), (12, 3)]


@pytest.mark.parametrize(
    ("plan", "shared"),
    [
        (placed((), ()), True),
        (placed((GPU,), ()), False),
        (placed((GPU,), (), layers=2), True),  # a part of the target is left to the CPU
        (placed((GPU,), (GPU,)), False),
        (placed((), (GPU,)), False),
    ],
)
def test_who_shares_the_cores(plan: Plan, shared: bool) -> None:
    assert share_cores(plan) == shared


# ------------------------------------------------------------------- decision


@pytest.mark.parametrize(
    ("c", "contention", "reason"),
    [
        (0.3, 0.0, ""),
        (0.3, 0.049, ""),
        (0.14, 0.0, "a draft step takes only 0.14 of a target step"),
        (0.3, 0.05, "the draft at work beside it slows the target by 5%"),
        (4.0, 0.0, "it would gain"),
    ],
)
def test_it_is_used_by_itself_only_where_it_pays(
    load, monkeypatch: pytest.MonkeyPatch, c: float, contention: float, reason: str
) -> None:
    loaded = load("off", n_draft=3)
    fake(monkeypatch, c, contention)
    made = choice(loaded, placed((GPU,), ()))
    drafter = made.apply()
    loaded.opened.drafters += [drafter] if drafter else []
    assert (drafter is not None) == (not reason)
    assert loaded.engine.status.overlap == (not reason)
    assert reason in loaded.engine.no_overlap
    assert made.worth_saying == bool(reason)
    if drafter is not None:
        assert drafter.least == 1
        assert loaded.engine.drafter is drafter


def test_what_the_pair_learned_counts(load, monkeypatch: pytest.MonkeyPatch) -> None:
    """A draft that is seldom right gains nothing by being ready; the prices that were kept tell."""
    loaded = load("off", auto=True)
    fake(monkeypatch, 0.3, 0.0)
    assert choice(loaded, placed((GPU,), ()), auto=True, acceptance=0.2).apply() is None
    assert "it would gain" in loaded.engine.no_overlap
    assert loaded.prices.acceptance is None
    loaded.engine.policy.acceptance.mean = 0.21
    loaded.prices.keep()
    assert loaded.prices.acceptance == 0.21
    seen: list[object] = []
    init = OverlapChoice.__init__

    def watched(self: OverlapChoice, *args: Any, **options: Any) -> None:
        seen.append((options["acceptance"], options["auto"]))
        init(self, *args, **options)

    monkeypatch.setattr(OverlapChoice, "__init__", watched)
    load("auto", auto=True)
    assert seen == [(0.21, True)]


@pytest.mark.parametrize(
    ("plan", "reason"),
    [
        (placed((), ()), "both compute on the CPU"),
        (placed((GPU,), (GPU,)), "both compute on CUDA0"),
        (placed((GPU, OTHER), (OTHER,)), "both compute on CUDA1"),
        (placed((GPU,), (), layers=2), "both compute on the CPU"),
        (placed((GPU,), (OTHER,)), ""),
        (placed((), (GPU,)), ""),
    ],
)
def test_on_one_device_nothing_is_even_measured(
    load, monkeypatch: pytest.MonkeyPatch, plan: Plan, reason: str
) -> None:
    loaded = load("off")
    calls = fake(monkeypatch, 0.3, 0.0)
    made = choice(loaded, plan)
    drafter = made.apply()
    loaded.opened.drafters += [drafter] if drafter else []
    assert reason in loaded.engine.no_overlap
    assert (drafter is None) == bool(reason) == (not calls)
    assert not made.worth_saying


def test_what_was_measured_is_kept_for_the_pair(load, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = load("off")
    calls = fake(monkeypatch, 0.14, 0.0)
    for key, measured in (("a", 1), ("a", 1), ("b", 2)):
        choice(loaded, placed((GPU,), ()), key=key).apply()
        assert len(calls) == measured
        assert "only 0.14" in loaded.engine.no_overlap
    for file in (paths.cache_dir() / "overlap").glob("*.json"):
        file.write_text('{"verify": {"2": 1}, "draft_step": 1, "contention": 0}')
    choice(loaded, placed((GPU,), ()), key="a").apply()
    assert len(calls) == 3  # a damaged store is measured again


def test_a_chain_keeps_its_lookup(load) -> None:
    loaded = load("off", auto=True)
    before = loaded.engine.drafter
    drafter = choice(loaded, placed((), ()), "on").apply()
    loaded.opened.drafters.append(drafter)
    assert isinstance(loaded.engine.drafter, ChainDrafter)
    assert loaded.engine.drafter.lookup is before.lookup
    assert loaded.engine.drafter.other is drafter


def test_a_draft_that_fails_while_it_is_measured_drafts_in_the_plain_order(
    load, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = load("off")

    def fails(*_: object) -> object:
        raise DecodeError("llama.cpp could not evaluate this.")

    monkeypatch.setattr(overlap, "measure_costs", fails)
    assert choice(loaded, placed((GPU,), ())).apply() is None
    assert loaded.engine.no_overlap == "it could not be measured: llama.cpp could not evaluate this"
    assert isinstance(loaded.engine.drafter, ModelDrafter)


def test_contention_is_measured_and_leaves_both_caches_empty(load) -> None:
    loaded = load("off")
    engine = loaded.engine
    found = overlap._contention(engine, engine.drafter, 4, lambda: False)
    assert -1 < found < 1000
    assert engine.context.length == engine.drafter._context.length == 0
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("localspec draft")]

    def fails(*_: object) -> None:
        raise DecodeError("no")

    engine.drafter.draft = fails
    with pytest.raises(DecodeError):
        overlap._contention(engine, engine.drafter, 4, lambda: False)


# -------------------------------------------------------------------- loading


def ids(loaded: Loaded) -> tuple[int, ...]:
    request = Request([1, 5, 9], Sampling(temperature=0.7, top_p=1.0, seed=3), max_tokens=30, ignore_eos=True)
    last = list(loaded.engine.generate(request))[-1]
    assert isinstance(last, Finished)
    return last.token_ids


@pytest.mark.parametrize("auto", [False, True])
def test_forced_beside_the_target_on_the_same_cores(load, auto: bool) -> None:
    plain = load("off", auto=auto)
    assert plain.ready.draft.no_overlap == "switched off"
    loaded = load("on", auto=auto)
    drafter = loaded.engine.drafter
    assert isinstance(drafter, ChainDrafter if auto else OverlapDrafter)
    assert loaded.ready.draft.overlap
    assert any("share the CPU: 1 threads and 1" in note for note in loaded.ready.notes)
    assert ids(loaded) == ids(plain)
    loaded.prices.keep()
    plain.prices.keep()
    prices = list((paths.cache_dir() / "prices").glob("*.json")) if auto else []
    assert len(prices) == (2 if auto else 0)  # what is hidden has its own prices


def test_the_threads_of_both_are_within_the_cores(load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("localspec.worker.loading.default_threads", lambda: 4)
    ready = load("on", threads=0).ready
    assert (ready.target.threads, ready.draft_model.threads) == (3, 1)
    ready = load("off", threads=0).ready
    assert (ready.target.threads, ready.draft_model.threads) == (4, 4)


def test_by_itself_it_is_not_used_on_one_cpu_and_says_why(load) -> None:
    loaded = load("auto")
    assert not loaded.ready.draft.overlap
    assert loaded.ready.draft.no_overlap == "target and draft both compute on the CPU"
    assert not any("overlap" in note for note in loaded.ready.notes)
    assert isinstance(loaded.engine.drafter, ModelDrafter)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [("mamba", "recurrent state"), ("lookup", "only a draft model"), ("none", "nothing drafts")],
)
def test_what_cannot_draft_ahead_keeps_the_plain_order(load, tmp_path: Path, kind: str, reason: str) -> None:
    if kind == "mamba":
        loaded = load("on", path=gguf_files.random_mamba(tmp_path / "mamba.gguf"))
    else:
        loaded = load(spec=replace(DraftSpec(), kind=kind, overlap="on"))  # type: ignore[arg-type]
    assert reason in loaded.ready.draft.no_overlap
    assert not loaded.ready.draft.overlap
    assert any(reason in note for note in loaded.ready.notes) == (kind != "none")
    assert len(ids(loaded)) == 30


def test_a_draft_step_is_timed_in_the_plain_order(load) -> None:
    """Else measuring would give what is left to wait for, and the thread would go on meanwhile."""
    loaded = load("on")
    ids(loaded)
    drafter = loaded.engine.drafter
    assert isinstance(drafter, OverlapDrafter)
    found = costs_module.measure_costs(loaded.engine, MeasureCosts((1, 2), seconds=0.1, passes=1))
    assert found.draft_step_s is not None
    assert found.draft_step_s > 0
    assert not drafter._running
