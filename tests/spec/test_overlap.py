"""Drafting while the target verifies: the same text whatever the timing, and a thread that always comes to rest.

Interleavings are forced: the draft model of these tests stops behind every step until it is let go on.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from localspec.errors import AbortedError, DecodeError, UsageError
from localspec.spec.curve import Costs
from localspec.spec.draft_chain import ChainDrafter
from localspec.spec.draft_model import ModelDrafter
from localspec.spec.draft_overlap import MOST_AHEAD, OverlapDrafter
from localspec.spec.drafter import Draft, GoOn, always
from localspec.spec.engine import Engine, Request
from localspec.spec.events import Finished, Round, Sampling
from localspec.spec.sampling import Sampler
from tests import gguf_files
from tests.spec.conftest import Bench
from tests.spec.test_exact import TEMPERATURES, ids_of, talk

THREAD = "localspec draft ahead"
SECONDS = 30.0  # a wait that lasts so long is a dead lock


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == THREAD]


@pytest.fixture(autouse=True)
def no_thread_stays() -> Iterator[None]:
    yield
    assert threads() == []


class Gated(ModelDrafter):
    """Stops behind every step until it is let go on; open at first."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.gate = threading.Semaphore(0)
        self.closed = False
        self.made = 0
        self.failing: Exception | None = None
        self.arrived = threading.Condition()

    def draft(self, ids: Sequence[int], k: int, sampler: Sampler, go_on: GoOn = always) -> Draft:
        if self.failing is not None:
            error, self.failing = self.failing, None
            raise error
        draft = super().draft(ids, k, sampler, go_on)
        with self.arrived:
            self.made += 1
            self.arrived.notify_all()
        if self.closed:
            assert self.gate.acquire(timeout=SECONDS)
        return draft

    def wait_until_made(self, count: int) -> None:
        """Until so many steps were computed; the last one is held back where the gate is closed."""
        with self.arrived:
            assert self.arrived.wait_for(lambda: self.made >= count, timeout=SECONDS)

    def open(self) -> None:
        self.closed = False
        self.gate.release()


class Watched(OverlapDrafter):
    """Compares each proposal with what the model drafts in the plain order, and paces the thread.

    Args:
        inner: The model.
        reference: The same model with a cache of its own.
        pace: Called before each proposal.
    """

    def __init__(
        self,
        inner: ModelDrafter,
        reference: ModelDrafter,
        *,
        least: int = 1,
        pace: Callable[[Watched], None] = lambda _: None,
    ) -> None:
        super().__init__(inner, least=least)
        if isinstance(inner, Gated):
            inner.arrived = self._changed
        self.reference = reference
        self.pace = pace
        self.lengths: list[int] = []

    def begin(self, ids: Sequence[int], *, cancelled: Callable[[], bool] = lambda: False) -> None:
        super().begin(ids)
        self.reference.begin(ids)

    def draft(self, ids: Sequence[int], k: int, sampler: Sampler, go_on: GoOn = always) -> Draft:
        self.pace(self)
        draft = super().draft(ids, k, sampler, go_on)
        self.lengths.append(len(draft.tokens))
        if draft.tokens:
            plain = self.reference.draft(ids, len(draft.tokens), sampler)
            assert_same(draft, plain)
            self.reference.accept(ids)
        return draft

    def wait_for_rest(self) -> None:
        """Until the thread has drafted as far as it may."""
        self.let_on(0, 1 << 30)

    def let_on(self, steps: int, made: int) -> None:
        """Let a closed gate pass some steps, until `made` are computed or the thread rests."""
        inner = self._inner
        assert isinstance(inner, Gated)
        if steps:
            inner.gate.release(steps)
        with self._changed:
            assert self._changed.wait_for(
                lambda: inner.made >= made or (not self._busy and not self._has_work()), timeout=SECONDS
            )
            while not self._busy and inner.gate.acquire(blocking=False):
                pass  # nobody waits at the gate


def assert_same(draft: Draft, plain: Draft) -> None:
    """The same proposal; a near tie may fall either way, since other batches round otherwise."""
    for index, (one, other) in enumerate(zip(draft.tokens, plain.tokens, strict=True)):
        if one != other:
            assert min(draft.margins[index], plain.margins[index]) < 0.05
            return
        assert draft.probabilities[index] == pytest.approx(plain.probabilities[index], abs=0.02)


def model(bench: Bench, path: Path, kind: type[ModelDrafter] = ModelDrafter, **options: Any) -> Any:
    context = bench.context(path, **{"n_ctx": 512, "max_outputs": 16, **options})
    return kind(context, name=path.name, n_vocab=context.n_vocab)


def overlapped(bench: Bench, drafter: Any, path: Path, n_draft: int, **options: Any) -> Engine:
    bench.stack.callback(drafter.close)
    context = bench.context(path, snapshots=n_draft, **options)
    return Engine(context, bench.model(path).vocab, drafter=drafter, n_draft=n_draft)


def watched(bench: Bench, path: Path, draft: Path, n_draft: int, **options: Any) -> tuple[Engine, Watched]:
    drafter = Watched(model(bench, draft, Gated), model(bench, draft), **options)
    return overlapped(bench, drafter, path, n_draft), drafter


def answer(
    engine: Engine, sampling: Sampling, length: int = 24, prompt: Sequence[int] = (1, 6, 7)
) -> Finished:
    last = list(engine.generate(Request(list(prompt), sampling, max_tokens=length, ignore_eos=True)))[-1]
    assert isinstance(last, Finished)
    return last


# ---------------------------------------------------------------------- exact


@pytest.mark.parametrize("draft", ["right", "half", "wrong"])
@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("arch", ["llama", "gemma3", "qwen35"])
def test_ids_are_those_without_a_draft(bench: Bench, arch: str, temperature: float, draft: str) -> None:
    """Any timing, several lengths and waits, three turns each; a draft that cannot go back is a plain one here."""
    path = bench.file(arch)
    other = bench.related(path if arch != "qwen35" else bench.file("llama"), draft)
    # Without top-p: at its edge a token drops out of the draft's candidates or stays, by rounding.
    sampling = Sampling(temperature=temperature, top_p=1.0, seed=5)
    plain = ids_of(talk(bench.engine(path), sampling))
    for n_draft, least in ((1, 0), (3, 1), (7, 3), (16, 0)):
        engine, drafter = watched(bench, path, other, n_draft, least=least)
        answers = talk(engine, sampling)
        assert ids_of(answers) == plain, (n_draft, least)
        assert max(drafter.lengths) <= n_draft
        if least:
            assert min(drafter.lengths) >= 1
        if draft == "right" and temperature == 0 and arch != "qwen35":
            assert all(a.stats.accepted == a.stats.drafted for a in answers)
        drafter.close()


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("draft", ["right", "half", "wrong"])
def test_a_draft_that_is_always_faster_is_ready_in_full(bench: Bench, draft: str, temperature: float) -> None:
    path = bench.file("llama")
    sampling = Sampling(temperature=temperature, top_p=1.0, seed=4)
    engine, drafter = watched(bench, path, bench.related(path, draft), 5, least=1, pace=Watched.wait_for_rest)
    found = answer(engine, sampling, 40)
    assert found.token_ids == answer(bench.engine(path), sampling, 40).token_ids
    lengths = drafter.lengths[1:-1]  # before the first one nothing was drafted, the last ones are clipped
    if draft == "right" and temperature == 0:
        assert set(lengths[:-1]) == {5}
    if draft == "wrong":
        assert lengths.count(5) >= len(lengths) - 3  # it goes back and is ready again, in full


def test_a_target_that_is_always_faster_makes_plain_steps(bench: Bench) -> None:
    """Nothing is waited for with `least=0`: the draft is held in its first step for the whole answer."""
    path = bench.file("llama")
    sampling = Sampling(temperature=0.8, top_p=1.0, seed=4)
    engine, drafter = watched(bench, path, path, 4, least=0)
    drafter._inner.closed = True
    found = answer(engine, sampling, 20)
    assert drafter._inner.made <= 1
    assert (found.stats.drafted, found.stats.rounds) == (0, 19)
    drafter._inner.open()
    assert found.token_ids == answer(bench.engine(path), sampling, 20).token_ids
    drafter.pace = Watched.wait_for_rest
    assert answer(engine, sampling, 20).stats.drafted > 10  # and it can go on


@pytest.mark.parametrize("draft", ["right", "half", "wrong"])
def test_the_texts_part_while_a_step_is_under_way(bench: Bench, draft: str) -> None:
    """Each proposal is asked for while the thread computes behind a line that the target has left, or not."""
    path = bench.file("llama")
    sampling = Sampling(temperature=0.9, top_p=1.0, seed=9)

    steps = itertools.cycle((0, 1, 2, 5, 3))

    def hold_one_step(drafter: Watched) -> None:
        inner = drafter._inner
        assert isinstance(inner, Gated)
        inner.closed = True
        count = next(steps)
        drafter.let_on(count, inner.made + count)  # the last one is in hand when the news comes

    engine, drafter = watched(bench, path, bench.related(path, draft), 4, least=0, pace=hold_one_step)
    found = answer(engine, sampling, 60)
    drafter._inner.open()
    assert found.token_ids == answer(bench.engine(path), sampling, 60).token_ids
    assert (sum(drafter.lengths) > 0) == (draft != "wrong")  # whose first guess never holds


def test_a_step_behind_a_line_that_was_left_is_thrown_away(bench: Bench) -> None:
    path = bench.file("llama")
    sampler = Sampler(Sampling(temperature=0))
    inner, reference = model(bench, path, Gated), model(bench, path)
    drafter = OverlapDrafter(inner, least=2)
    bench.stack.callback(drafter.close)
    ids = [1, 5, 9, 40]
    drafter.begin(ids)
    first = drafter.draft(ids, 2, sampler)
    inner.closed = True
    inner.wait_until_made(3)  # at least one step behind the proposal, perhaps held
    for _ in range(20):
        inner.gate.release()  # this many steps may pass
    other = next(token for token in (70, 71, 72) if token != first.tokens[1])
    truth = [*ids, first.tokens[0], other]
    drafter.accept(truth)
    reference.begin(truth)
    assert drafter.draft(truth, 2, sampler).tokens == reference.draft(truth, 2, sampler).tokens
    inner.open()


def test_it_drafts_no_further_ahead_than_it_may(bench: Bench) -> None:
    path = bench.file("llama")
    inner = model(bench, path, Gated)
    drafter = Watched(inner, model(bench, path), least=1)
    bench.stack.callback(drafter.close)
    ids = [1, 5, 9, 40]
    drafter.begin(ids)
    taken = drafter.draft(ids, 12, Sampler(Sampling(temperature=0)))
    drafter.wait_for_rest()
    assert inner.made == len(taken.tokens) + 1 + MOST_AHEAD
    drafter.accept([*ids, taken.tokens[0], 200])
    drafter.wait_for_rest()
    before = inner.made
    drafter.wait_for_rest()
    assert inner.made == before


def test_penalties_with_a_line_ahead(bench: Bench) -> None:
    path = bench.file("llama")
    sampling = Sampling(temperature=0.8, top_p=1.0, repeat_penalty=1.3, frequency_penalty=0.2, seed=2)
    plain = ids_of(talk(bench.engine(path), sampling))
    engine, _ = watched(bench, path, bench.related(path, "half"), 4, least=1, pace=Watched.wait_for_rest)
    assert ids_of(talk(engine, sampling)) == plain


# ------------------------------------------------------------- turns and ends


def test_edited_turns_and_clear(bench: Bench) -> None:
    path = bench.file("llama")
    sampling = Sampling(temperature=0.7, top_p=1.0, seed=3)
    engine, _ = watched(bench, path, bench.related(path, "half"), 4, pace=Watched.wait_for_rest)
    prompt = [1, *range(10, 90)]
    for number, edited in enumerate((prompt, [*prompt[:12], 200, *prompt[13:]], prompt[:30], [1, 9], prompt)):
        fresh = answer(bench.engine(path), sampling, 20, edited)
        assert answer(engine, sampling, 20, edited).token_ids == fresh.token_ids
        if number % 2:
            engine.clear()
            assert engine.drafter is not None
            assert engine.drafter.alone()._context.length == 0  # type: ignore[attr-defined]


@pytest.mark.parametrize("dropped", [False, True])
def test_a_stop_at_every_round_ends_at_rest(bench: Bench, dropped: bool) -> None:
    path = bench.file("llama")
    sampling = Sampling(temperature=0.7, top_p=1.0, seed=3)
    whole = answer(bench.engine(path), sampling, 40).token_ids
    engine, drafter = watched(bench, path, bench.related(path, "half"), 3, pace=Watched.wait_for_rest)
    for stop_after in range(1, 9):
        seen = 0
        running = engine.generate(Request([1, 6, 7], sampling, ignore_eos=True), lambda: seen >= stop_after)  # noqa: B023
        kept: list[int] = []
        for event in running:
            if isinstance(event, Round):
                seen += 1
                kept += [piece.token_id for piece in event.pieces]
                if dropped and seen == stop_after:
                    running.close()
                    break
        assert tuple(kept) == whole[: len(kept)]
        assert not drafter._running
        evaluated = drafter.alone()._context.evaluated
        assert engine.context.length <= len(engine.ids)
        # Going on from there gives the same text, and nothing was drafted in between.
        assert drafter._inner._context.evaluated == evaluated
        assert answer(engine, sampling, 40).token_ids == whole


@pytest.mark.parametrize("n_ctx", [32, 64])
def test_the_context_is_filled_to_the_last_cell(bench: Bench, n_ctx: int) -> None:
    """The draft's context is as long as the target's, or ends before it and says so."""
    path = bench.file("llama")
    sampling = Sampling(temperature=0)
    drafter = Watched(model(bench, path, Gated, n_ctx=n_ctx), model(bench, path), pace=Watched.wait_for_rest)
    engine = overlapped(bench, drafter, path, 8, n_ctx=64)
    found = list(engine.generate(Request([1, 6, 7], sampling, ignore_eos=True)))
    last = found[-1]
    assert isinstance(last, Finished)
    plain = list(bench.engine(path, n_ctx=64).generate(Request([1, 6, 7], sampling, ignore_eos=True)))[-1]
    assert isinstance(plain, Finished)
    assert (last.reason, last.token_ids) == ("context", plain.token_ids)
    full = any("is full" in event.draft.reason for event in found if isinstance(event, Round))
    assert full == (n_ctx == 32)


def test_no_thread_without_need_and_none_after_the_end(bench: Bench) -> None:
    path = bench.file("llama")
    engine, drafter = watched(bench, path, path, 4)
    engine.draft_on = False
    answer(engine, Sampling(temperature=0))
    assert threads() == []
    engine.draft_on = True
    answer(engine, Sampling(temperature=0))
    assert len(threads()) == 1
    drafter.close()
    drafter.close()
    assert threads() == []


# --------------------------------------------------------------------- faults


@pytest.mark.parametrize("at_step", [1, 2, 5, 9])
def test_a_fault_in_the_thread_goes_on_without_the_draft_and_says_so(bench: Bench, at_step: int) -> None:
    path = bench.file("llama")
    sampling = Sampling(temperature=0.7, top_p=1.0, seed=3)
    whole = answer(bench.engine(path), sampling, 40).token_ids

    def pace(drafter: Watched) -> None:
        drafter.wait_for_rest()
        if len(drafter.lengths) == at_step:
            drafter._inner.failing = DecodeError("llama.cpp could not evaluate this.")

    engine, drafter = watched(bench, path, bench.related(path, "half"), 3, pace=pace)
    found = answer(engine, sampling, 40)
    assert found.token_ids == whole
    assert found.draft.state == "off"
    assert "llama.cpp could not evaluate this" in found.draft.reason
    assert not drafter._running
    engine.draft_on = True  # another try
    again = answer(engine, sampling, 40)
    assert again.token_ids == whole
    assert again.draft.state == "on"
    assert again.stats.drafted > 0


def test_a_step_that_was_stopped_stops_the_answer(bench: Bench) -> None:
    path = bench.file("llama")
    engine, drafter = watched(bench, path, path, 3, pace=Watched.wait_for_rest)
    events = engine.generate(Request([1, 6, 7], Sampling(temperature=0), ignore_eos=True))
    seen = []
    for event in events:
        seen.append(event)
        if len(seen) == 5:
            drafter._inner.failing = AbortedError("The evaluation was stopped.")
    last = seen[-1]
    assert isinstance(last, Finished)
    assert last.reason == "cancelled"
    whole = answer(bench.engine(path), Sampling(temperature=0), 40).token_ids
    assert answer(engine, Sampling(temperature=0), 40).token_ids == whole


def test_a_fault_of_our_own_is_not_hidden(bench: Bench) -> None:
    path = bench.file("llama")
    engine, drafter = watched(bench, path, path, 3)
    drafter._inner.failing = ValueError("ours")
    with pytest.raises(ValueError, match="ours"):
        answer(engine, Sampling(temperature=0))
    assert not drafter._running


def test_a_draft_with_a_state_is_refused(bench: Bench) -> None:
    path = bench.file("qwen35")
    with pytest.raises(UsageError, match="cannot draft ahead"):
        OverlapDrafter(model(bench, path, branches=True))


# --------------------------------------------------------------------- prices


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("chain", [False, True])
def test_with_lengths_by_price_the_text_is_the_same(bench: Bench, chain: bool, temperature: float) -> None:
    path = bench.file("llama")
    sampling = Sampling(temperature=temperature, seed=8)
    plain = ids_of(talk(bench.engine(path), sampling))
    for kind in ("right", "half", "wrong"):
        drafter: Any = OverlapDrafter(model(bench, bench.related(path, kind)), least=1)
        drafter = ChainDrafter(drafter) if chain else drafter
        assert drafter.overlaps
        engine = overlapped(bench, drafter, path, 16)
        engine.set_length(16, Costs({1: 0.01, 2: 0.011, 4: 0.012, 17: 0.02}, 0.001, 17))
        answers = talk(engine, sampling)
        assert ids_of(answers) == plain
        assert sum(a.stats.drafted for a in answers) > 0
        if not chain:  # which would read the whole conversation at once
            drafter.begin([1])
            labels = drafter.shadow(engine.ids, Sampler(sampling).for_draft())
            assert len(labels) == 16
            if kind == "right" and temperature == 0:
                assert all(label.agreed for label in labels)
        drafter.close()


def test_hidden_steps_cost_next_to_nothing_but_never_nothing() -> None:
    """Zero would mean lookup, and a price of zero could never rise again."""
    costs = Costs({1: 0.01, 2: 0.01}, 0.004, 4)
    for _ in range(3000):
        costs.saw_draft(3, 0.0)
    assert 0 < costs.c < 0.02
    for _ in range(400):
        costs.saw_draft(3, 0.012)
    assert costs.c == pytest.approx(0.4, rel=0.1)


def test_the_status_tells_whether_it_overlaps(bench: Bench) -> None:
    path = bench.file("llama")
    engine, drafter = watched(bench, path, path, 3)
    assert engine.status.overlap
    engine.draft_on = False
    assert not engine.status.overlap
    plain = bench.engine(path, path, 3)
    plain.no_overlap = "both compute on the CPU"
    assert (plain.status.overlap, plain.status.no_overlap) == (False, "both compute on the CPU")
    assert drafter.name == path.name


def test_it_works_in_a_stock_llama(bench: Bench) -> None:
    """The stock contract: ids in, ids out, one call after the other, with any other conversation between them."""
    import numpy as np

    path = bench.folder / "counting-overlap.gguf"
    path = path if path.exists() else gguf_files.random_llama(path, seed=3)
    drafter, reference = OverlapDrafter(model(bench, path), least=3), model(bench, path)
    bench.stack.callback(drafter.close)
    for ids in ([1, 5, 9], [1, 5, 9, 11], [1, 80], [1, 80, 81, 82]):
        got = drafter(np.asarray(ids, dtype=np.intc)).tolist()
        assert 3 <= len(got) <= drafter.n_draft_alone
        assert got == reference(np.asarray(ids, dtype=np.intc)).tolist()[: len(got)]


@pytest.mark.weights
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_real_weights_give_the_same_text(
    bench: Bench, demo_pair: tuple[Path, Path], temperature: float
) -> None:
    target, draft = demo_pair
    sampling = Sampling(temperature=temperature, top_p=0.9, seed=7)
    options = {"n_ctx": 512, "threads": 1}
    prompt = bench.model(target).vocab.tokenize("Once upon a time, in a lighthouse,")
    plain = answer(bench.engine(target, **options), sampling, 64, prompt)
    for least in (0, 2):
        drafter = OverlapDrafter(model(bench, draft, threads=1), least=least)
        found = answer(overlapped(bench, drafter, target, 3, **options), sampling, 64, prompt)
        assert found.token_ids == plain.token_ids
        if least:
            assert found.stats.acceptance_rate is not None
            assert (
                found.stats.acceptance_rate > 0.3
            )  # a draft that lost its place would be right next to never
