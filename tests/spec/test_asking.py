"""When a drafter is asked, what it is told, and that a stop reaches it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import pytest

from localspec.errors import DecodeError
from localspec.spec.curve import Costs
from localspec.spec.draft_model import ModelDrafter
from localspec.spec.draft_overlap import OverlapDrafter
from localspec.spec.drafter import Draft, Drafter, GoOn, always
from localspec.spec.engine import Request
from localspec.spec.events import Finished, Round, Sampling
from localspec.spec.length import FixedLength, Label
from localspec.spec.sampling import Sampler
from tests import gguf_files
from tests.gguf_writer import FIRST_NAMED
from tests.spec.conftest import Bench

GREEDY = Sampler(Sampling(temperature=0))
CYCLE = [FIRST_NAMED + i for i in range(12)]


def test_a_chain_counts_what_its_lookup_would_have_got_right_while_nothing_pays(bench: Bench) -> None:
    table = dict(zip(CYCLE, [*CYCLE[1:], CYCLE[0]], strict=True))
    target = gguf_files.script_model(bench.folder / "steep.gguf", table)
    engine = bench.engine(target, target, 8, chain=True)
    engine.set_length(8, Costs({1: 1.0, 2: 2.3, 9: 10.0}, 1000.0, 9))
    last = list(engine.generate(Request([1, CYCLE[0]], Sampling(temperature=0), max_tokens=60)))[-1]
    assert isinstance(last, Finished)
    assert last.stats.drafted == 0
    assert engine.drafter is not None
    assert sum(seen for _, seen in engine.drafter.learned()["agree"]) >= 40


def test_the_last_token_of_a_full_draft_is_judged_by_its_own_probability(bench: Bench) -> None:
    path = bench.file("llama")
    drafter = bench.engine(path, bench.related(path, "half")).drafter
    assert drafter is not None
    told: list[float | None] = []

    def go_on(probability: float | None, margin: float | None) -> bool:
        told.append(probability)
        return True

    drafter.begin([1, 5, 6])
    draft = drafter.draft([1, 5, 6], 3, GREEDY, go_on)
    assert len(draft.tokens) == 3
    assert told == list(draft.probabilities)


class Off(FixedLength):
    """Never drafts, and watches all the time."""

    def begin(self) -> bool:
        return False

    def shadow_due(self, seconds: float) -> bool:
        return True


class Notes(Drafter):
    """Notes down what it is shown."""

    name = "notes"

    def __init__(self) -> None:
        self.shown: list[tuple[str, int]] = []

    def begin(self, ids: Sequence[int], *, cancelled: Callable[[], bool] = lambda: False) -> None:
        self.shown.append(("begin", len(ids)))

    def draft(self, ids: Sequence[int], k: int, sampler: Sampler, go_on: GoOn = always) -> Draft:
        raise AssertionError("nobody asks")

    def shadow(self, ids: Sequence[int], sampler: Sampler) -> list[Label]:
        self.shown.append(("shadow", len(ids)))
        return []


def test_a_drafter_hears_of_another_conversation_before_it_is_asked_about_it(bench: Bench) -> None:
    """Where drafting is off by price, looking on from aside is the first that it hears of an answer."""
    engine = bench.engine(bench.file("llama"))
    engine.drafter, engine.policy = Notes(), Off(4)
    engine.draft_on = True
    for prompt in ([1, 5, 6], [1, 7, 8, 9]):
        list(engine.generate(Request(prompt, Sampling(temperature=0), max_tokens=4, ignore_eos=True)))
    shown = engine.drafter.shown
    begun = [index for index, (what, _) in enumerate(shown) if what == "begin"]
    assert len(begun) == 2
    assert begun[0] == 0
    assert [what for what, _ in shown] == ["begin", "shadow", "shadow", "shadow"] * 2


@pytest.mark.parametrize("asked", ["draft", "shadow"])
def test_a_stop_reaches_a_draft_model_that_reads_what_it_missed(bench: Bench, asked: str) -> None:
    """It missed 300 tokens; the stop comes after the second chunk of 16."""
    path = bench.file("llama")
    ids = [1, *(5 + i % 200 for i in range(300))]

    def drafter() -> ModelDrafter:
        context = bench.context(path, max_outputs=4)
        context.chunk = 16
        return ModelDrafter(context, name="draft", n_vocab=context.n_vocab)

    def ask(one: ModelDrafter) -> object:
        return one.draft(ids, 3, GREEDY) if asked == "draft" else one.shadow(ids, GREEDY)

    asks = itertools.count()
    stopped, fresh = drafter(), drafter()
    stopped.begin(ids[:2], cancelled=lambda: next(asks) >= 3)  # the first chunk is that of `begin` itself
    assert not getattr(found := ask(stopped), "tokens", found)
    assert stopped._context.evaluated <= 1 + 2 * 16
    stopped.begin(ids[:2])
    fresh.begin(ids[:2])
    assert ask(stopped) == ask(fresh)
    assert stopped._context.length == fresh._context.length


def test_a_stop_ends_a_draft_ahead_and_the_next_answer_drafts_again(bench: Bench) -> None:
    path = bench.file("llama")
    context = bench.context(path)
    context.chunk = 16
    drafter = OverlapDrafter(ModelDrafter(context, name="draft", n_vocab=context.n_vocab))
    ids = [1, *(5 + i % 200 for i in range(100))]
    try:
        asks = itertools.count()
        drafter.begin(ids[:2], cancelled=lambda: next(asks) >= 3)
        assert drafter.draft(ids, 3, GREEDY).tokens == ()
        drafter.begin(ids)
        assert len(drafter.draft(ids, 3, GREEDY).tokens) >= 1
    finally:
        drafter.close()


def test_a_stop_reaches_a_target_that_reads_again_what_a_failed_removal_cost_it(bench: Bench) -> None:
    engine = bench.engine(bench.file("llama"))
    engine.context.chunk = 16
    prompt = [1, *(5 + i % 200 for i in range(200))]
    asks = itertools.count()
    wanted = False
    answer = engine.generate(
        Request(prompt, Sampling(temperature=0), max_tokens=8, ignore_eos=True),
        cancelled=lambda: wanted and next(asks) >= 3,  # the first answer is for the round itself
    )
    first = next(event for event in answer if isinstance(event, Round))
    engine.context.clear()
    wanted, read = True, engine.context.evaluated
    last = list(answer)[-1]
    assert isinstance(last, Finished)
    assert last.reason == "cancelled"
    assert engine.context.evaluated - read == 2 * 16
    again = list(engine.generate(Request(prompt, Sampling(temperature=0), max_tokens=1, ignore_eos=True)))[-1]
    assert isinstance(again, Finished)
    assert again.token_ids == tuple(piece.token_id for piece in first.pieces)


def test_a_drafter_that_cannot_read_the_conversation_is_not_asked_in_the_same_round(bench: Bench) -> None:
    class Failing(Notes):
        def begin(self, ids: Sequence[int], *, cancelled: Callable[[], bool] = lambda: False) -> None:
            super().begin(ids)
            raise DecodeError("no room")

    engine = bench.engine(bench.file("llama"))
    engine.drafter = Failing()
    engine.draft_on = True
    last = list(engine.generate(Request([1, 5], Sampling(temperature=0), max_tokens=4, ignore_eos=True)))[-1]
    assert isinstance(last, Finished)
    assert last.draft.reason == "the draft failed: no room"
    assert engine.drafter.shown == [("begin", 2)]
