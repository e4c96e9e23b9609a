"""Prices of a pair: measured once, kept, recalled; a damaged or read-only store costs nothing but time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from localspec import paths
from localspec.llama.log import NativeLog
from localspec.spec.length import FixedLength, PricedLength
from localspec.worker import warmup
from localspec.worker.loading import Loaded, Loader
from localspec.worker.protocol import DraftSpec, Event, Load
from tests import gguf_files


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path / "home"))
    target = gguf_files.random_llama(tmp_path / "target.gguf")
    return target, gguf_files.perturbed(target, tmp_path / "draft.gguf")


@pytest.fixture
def load(pair: tuple[Path, Path]) -> Iterator[object]:
    opened: list[Loaded] = []
    log = NativeLog()
    log.install()

    def make(**options: object) -> Loaded:
        command = Load(
            str(pair[0]),
            n_ctx=512,
            threads=1,
            **{"draft": DraftSpec("model", str(pair[1])), "n_draft": 31, "auto": True, **options},
        )  # type: ignore[arg-type]
        events: list[Event] = []
        opened.append(Loader(command, log, events.append, lambda: False).load())
        return opened[-1]

    yield make
    for loaded in opened:
        loaded.close()


def stored() -> list[Path]:
    return sorted((paths.cache_dir() / "prices").glob("*.json"))


def test_prices_are_measured_kept_and_recalled(load) -> None:
    loaded = load()
    policy = loaded.engine.policy
    assert isinstance(policy, PricedLength)
    assert policy.costs.plain_step > 0
    assert policy.costs.c > 0
    assert loaded.engine.status.auto
    policy.acceptance.mean = 0.123
    loaded.prices.keep()
    (file,) = stored()
    again = load().engine.policy
    assert again.acceptance.mean == 0.123
    assert again.costs.plain_step == pytest.approx(policy.costs.plain_step)
    assert again._loss_start == 0.0  # what learning may cost is spent once
    assert stored() == [file]


@pytest.mark.parametrize(
    "damage",
    [
        "",
        "{",
        "[]",
        '{"costs": {}}',
        '{"costs": []}',
        '{"costs": {"0": {"verify": {"1": -1}, "draft_step": 1}}}',
        '{"costs": {"0": {"verify": {"2": 1.0}, "draft_step": 1}}}',
        '{"costs": {"0": {"verify": {"1": NaN}, "draft_step": 1}}}',
        '{"costs": {"0": {"verify": {"1": 0.1}, "draft_step": 0.01}}}',
        '{"costs": {"0": {"verify": {"1": 0.1}, "draft_step": 0.01}}, "drafter": {"agree": 3}}',
    ],
)
def test_a_damaged_store_is_measured_again(load, damage: str) -> None:
    load().prices.keep()
    (file,) = stored()
    file.write_text(damage)
    policy = load().engine.policy
    assert isinstance(policy, PricedLength)
    assert policy.acceptance.mean == 0.7


def test_a_store_that_cannot_be_written_is_no_error(load, tmp_path: Path) -> None:
    loaded = load()
    (tmp_path / "home" / "cache").mkdir(parents=True, exist_ok=True)
    (tmp_path / "home" / "cache" / "prices").write_text("a file where the folder should be")
    loaded.prices.keep()


def test_another_cache_type_has_its_own_prices(load) -> None:
    load().prices.keep()
    load(kv_type="bf16").prices.keep()
    assert len(stored()) == 2


def test_a_fixed_length_needs_no_prices(load) -> None:
    loaded = load(n_draft=3, auto=False)
    assert isinstance(loaded.engine.policy, FixedLength)
    assert loaded.engine.n_draft == 3
    loaded.prices.keep()
    assert stored() == []


def test_prices_are_not_measured_in_the_middle_of_an_answer(load) -> None:
    loaded = load(n_draft=3, auto=False)
    loaded.engine.answering = True
    loaded.prices.choose_by_price(8, answering=True)
    assert isinstance(loaded.engine.policy, FixedLength)
    loaded.prices.settle()
    assert isinstance(loaded.engine.policy, PricedLength)
    assert json.loads(json.dumps(loaded.engine.policy.learned()))["mean"] == 0.7


def test_what_lookup_knows_about_its_matches_is_kept(load) -> None:
    loaded = load()
    counts = [[6.0, 8.0]] * 6
    loaded.engine.drafter.recall({"agree": counts, "differ": counts})
    loaded.prices.keep()
    assert load().engine.drafter.learned() == {"agree": counts, "differ": counts}


def test_prices_of_several_depths_are_kept(load) -> None:
    loaded = load()
    costs = loaded.engine.policy.costs
    costs.at(900)
    for _ in range(1500):
        costs.saw_verify(1, 7.0)
    loaded.prices.keep()
    again = load().engine.policy.costs
    assert again.plain_step < 5.0
    again.at(1000)
    assert again.plain_step == pytest.approx(7.0, rel=0.01)


def test_the_chunks_of_a_prompt_are_those_of_the_first_load(load, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other chunks round otherwise: a seed must name the same text tomorrow, and with another draft."""
    sizes = iter((128, 64, 32, 32, 32, 32))
    monkeypatch.setattr(warmup, "_chunk", lambda context, token, gpu: next(sizes))
    monkeypatch.setattr(warmup, "_LONG_STEP_SECONDS", 100.0)
    assert load().engine.context.chunk == 128
    assert load().engine.context.chunk == 128
    assert load(draft=DraftSpec()).engine.context.chunk == 128
    assert load(kv_type="bf16").engine.context.chunk == 32
    for file in (paths.cache_dir() / "chunks").iterdir():
        file.write_text('{"chunk": "many"}')
    assert load().engine.context.chunk == 32


def kept_prices(loaded: Loaded, plain_s: float, draft_s: float) -> None:
    """Replace what is kept by other times, all else as it was learned."""
    loaded.prices.keep()
    (file,) = stored()
    known = json.loads(file.read_text())
    curve = {str(n): plain_s * (1 + (n - 1) / 4) for n in range(1, 18)}
    file.write_text(json.dumps(known | {"costs": {"0": {"verify": curve, "draft_step": draft_s}}}))


@pytest.mark.parametrize(
    ("now", "plain_s", "draft_s"),
    [
        ((), 0.1, 0.01),
        ((0.13, 0.01), 0.1, 0.01),  # what an ordinary day does
        ((0.3, 0.03), 0.3, 0.03),  # on battery
        ((0.03, 0.01), 0.03, 0.003),
        ((0.1, 0.001), 0.1, 0.0035),  # a draft step cannot take much longer than an evaluation
    ],
)
def test_prices_of_another_day_are_brought_to_this_one(
    load, now: tuple[float, ...], plain_s: float, draft_s: float
) -> None:
    loaded = load()
    kept_prices(loaded, 0.1, 0.01)
    loaded.prices.choose_by_price(8, now=now)
    costs = loaded.engine.policy.costs
    assert (costs.plain_step, costs.draft_step) == (pytest.approx(plain_s), pytest.approx(draft_s))
    assert costs.v(5) == pytest.approx(2.0)


@pytest.mark.parametrize(("plain_s", "draft_s"), [(1e9, 1.0), (1e-9, 1e-10), (0.001, 1e9)])
def test_absurd_prices_do_not_last(load, plain_s: float, draft_s: float) -> None:
    loaded = load()
    kept_prices(loaded, plain_s, draft_s)
    loaded.prices.choose_by_price(8, now=(0.1,))
    costs = loaded.engine.policy.costs
    assert costs.plain_step < 10
    assert costs.c < 2.5


def test_a_draft_that_is_never_worth_a_look_is_timed_again(load) -> None:
    loaded = load()
    kept_prices(loaded, 0.1, 0.5)
    loaded.prices.choose_by_price(8)
    assert loaded.engine.policy.costs.draft_step < 0.5


def test_what_is_no_number_is_not_kept(load) -> None:
    loaded = load()
    loaded.prices.keep()
    (file,) = stored()
    before = file.read_text()
    loaded.engine.policy.acceptance.mean = float("nan")
    loaded.prices.keep()
    assert file.read_text() == before
    file.write_text(before.replace('"mean": 0.7', '"mean": NaN'))
    assert load().engine.policy.acceptance.mean == 0.7


def test_a_full_disk_leaves_no_scraps(load, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = load()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    loaded.prices.keep()
    assert list((paths.cache_dir() / "prices").iterdir()) == []


def test_a_stop_before_the_measuring_that_waited_is_no_fault(load, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = load(n_draft=3, auto=False)
    loaded.prices.choose_by_price(8, answering=True)
    with monkeypatch.context() as stopping:
        stopping.setattr(loaded.prices, "_cancelled", lambda: True)
        loaded.prices.settle()
    assert isinstance(loaded.engine.policy, FixedLength)
    loaded.prices.settle()
    assert isinstance(loaded.engine.policy, PricedLength)
