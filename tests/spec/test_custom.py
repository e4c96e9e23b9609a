"""Drafters of somebody's own: nothing that they give, raise or fail to do may touch the text or stop an answer."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from llama_cpp.llama_speculative import LlamaDraftModel, LlamaPromptLookupDecoding

from localspec.errors import AbortedError, DrafterError, UsageError
from localspec.spec import draft_custom
from localspec.spec.curve import Costs
from localspec.spec.draft_guarded import GuardedDrafter
from localspec.spec.draft_stock import StockDrafter, proposed_ids
from localspec.spec.drafter import Draft, Drafter
from localspec.spec.engine import Engine, Request
from localspec.spec.events import Finished, Sampling
from localspec.spec.foreign import Foreign, Unusable, said
from localspec.spec.length import FixedLength, Label, PricedLength
from localspec.spec.sampling import Sampler
from tests import gguf_files
from tests.gguf_writer import FIRST_NAMED
from tests.spec.conftest import Bench

GREEDY = Sampling(temperature=0)
CYCLE = [FIRST_NAMED + i for i in range(12)]
PROMPT = [1, CYCLE[0]]


class Stock(LlamaDraftModel):
    """Gives what it is told to."""

    def __init__(self, give: Callable[[Any], Any]) -> None:
        self.give = give
        self.given: list[Any] = []

    def __call__(self, input_ids: Any, /, **kwargs: Any) -> Any:
        self.given.append(input_ids)
        return self.give(input_ids)


def knows(input_ids: Any) -> Any:
    """The next ids of the cycle."""
    at = CYCLE.index(int(input_ids[-1]))
    return np.asarray([CYCLE[(at + 1 + i) % 12] for i in range(5)], np.intc)


def engine_with(
    bench: Bench, give: Callable[[Any], Any] | Drafter, n_draft: int = 4, **options: Any
) -> Engine:
    path = bench.folder / "custom-cycle.gguf"
    if not path.exists():
        gguf_files.script_model(path, dict(zip(CYCLE, [*CYCLE[1:], CYCLE[0]], strict=True)))
    context = bench.context(path)
    foreign = Foreign(**options)
    drafter: Drafter = (
        GuardedDrafter(give, "my:Own", context.n_vocab, foreign)
        if isinstance(give, Drafter)
        else StockDrafter(Stock(give), "my:Own", context.n_vocab, foreign)
    )
    bench.stack.callback(drafter.close)
    return Engine(context, bench.model(path).vocab, drafter=drafter, n_draft=n_draft)


def ask(engine: Engine, tokens: int = 40, **options: Any) -> Finished:
    last = list(engine.generate(Request(PROMPT, GREEDY, max_tokens=tokens), **options))[-1]
    assert isinstance(last, Finished)
    return last


# ---------------------------------------------------------------------- the stock contract


def test_a_stock_drafter_drafts(bench: Bench) -> None:
    engine = engine_with(bench, knows)
    answer = ask(engine)
    assert answer.token_ids == tuple(CYCLE[(1 + i) % 12] for i in range(40))
    assert answer.stats.accepted == answer.stats.drafted > 25
    assert (answer.draft.state, answer.draft.name) == ("on", "my:Own")
    assert set(answer.stats.by_source) == {"my:Own"}


def test_it_is_given_all_ids_as_the_library_gives_them(bench: Bench) -> None:
    def spoil(input_ids: Any) -> Any:
        seen.append(input_ids.tolist())
        kinds.add((input_ids.dtype, input_ids.ndim))
        input_ids[:] = 7  # its own copy
        return [CYCLE[0]]

    seen: list[list[int]] = []
    kinds: set[Any] = set()
    ids = PROMPT + list(ask(engine_with(bench, spoil), 2000 // 8).token_ids)
    assert kinds == {(np.dtype(np.intc), 1)}
    assert len(seen) > 100
    assert all(given == ids[: len(given)] for given in seen)


def test_another_conversation_is_shown_from_its_own_beginning() -> None:
    stock = Stock(lambda ids: [])
    drafter = StockDrafter(stock, "my", 100, Foreign())
    long = list(range(90)) * 20
    for ids in ([1, 2, 3], [1, 5], [1, 5, 6], long, [4, *long[1:]]):
        drafter.begin(ids)
        drafter.draft(ids, 4, Sampler(GREEDY))
        assert stock.given[-1].tolist() == ids
    drafter.close()


@pytest.mark.parametrize(
    ("give", "reason"),
    [
        (lambda ids: None, "returned None, not a list of token ids"),
        (lambda ids: 5, "returned one int, not a list of token ids"),
        (lambda ids: [1.5, 2.0], "returned values of type float64, not token ids"),
        (lambda ids: np.array([1.0]), "returned values of type float64, not token ids"),
        (lambda ids: [True], "returned values of type bool, not token ids"),
        (lambda ids: "abc", "not token ids"),
        (lambda ids: [None], "returned values of type object, not token ids"),
        (lambda ids: [10**30], "not token ids"),
        (lambda ids: np.ones((2, 2), int), "returned an array of 2 dimensions, not a list of token ids"),
        (lambda ids: np.array(5), "returned an array of 0 dimensions, not a list of token ids"),
        (lambda ids: [[1, 2], [3]], "not a list of token ids"),
        (lambda ids: [-1], "proposed the token -1, which the target does not have"),
        (lambda ids: [10**6], "proposed the token 1000000, which the target does not have"),
        (lambda ids: 1 / 0, "raised ZeroDivisionError: division by zero"),
        (lambda ids: ids.tolist()[10**6], "raised IndexError: list index out of range"),
        (lambda ids: exec("raise SystemExit(3)"), "raised SystemExit: 3"),
        (lambda ids: exec("raise KeyboardInterrupt"), "raised KeyboardInterrupt"),
        (lambda ids: (1 / 0 for _ in range(3)), "raised ZeroDivisionError: division by zero"),
    ],
)
def test_what_cannot_be_used_ends_the_drafting_and_not_the_answer(
    bench: Bench, give: Callable[[Any], Any], reason: str
) -> None:
    answer = ask(engine_with(bench, give))
    assert answer.token_ids == tuple(CYCLE[(1 + i) % 12] for i in range(40))
    assert answer.draft.state == "off"
    assert answer.draft.reason.startswith("the drafter ")
    assert answer.draft.reason.endswith(reason)
    assert answer.stats.drafted == 0


@pytest.mark.parametrize(
    "give", [lambda ids: [], lambda ids: np.array([]), lambda ids: ids[:0], lambda ids: ()]
)
def test_no_proposal_is_no_fault(bench: Bench, give: Callable[[Any], Any]) -> None:
    answer = ask(engine_with(bench, give))
    assert (answer.draft.state, answer.stats.drafted) == ("on", 0)


def test_endless_and_long_proposals_are_cut(bench: Bench) -> None:
    for give in (lambda ids: itertools.cycle(CYCLE), lambda ids: np.full(10**6, CYCLE[1])):
        answer = ask(engine_with(bench, give))
        assert answer.draft.state == "on"
        assert answer.token_ids == tuple(CYCLE[(1 + i) % 12] for i in range(40))
        assert max(len(answer.stats.drafted_at), 4) == 4


def test_unsigned_and_wide_integers_are_ids() -> None:
    for kind in (np.uint8, np.int64, np.uint64):
        assert proposed_ids(np.array([5, 6, 7], kind), 2, 100) == (5, 6)
    with pytest.raises(Unusable, match="proposed the token 18446744073709551615"):
        proposed_ids(np.array([2**64 - 1], np.uint64), 2, 100)


def test_switching_on_again_is_another_try(bench: Bench) -> None:
    faults = iter([True, False, False])

    def once(input_ids: Any) -> Any:
        if next(faults, False):
            raise ValueError("not yet")
        return knows(input_ids)

    engine = engine_with(bench, once)
    assert ask(engine).draft.reason == "the drafter raised ValueError: not yet"
    assert ask(engine).draft.state == "off"
    engine.draft_on = True
    again = ask(engine)
    assert (again.draft.state, again.stats.accepted > 20) == ("on", True)


# --------------------------------------------------------------------------- calls that hang


def test_a_call_that_hangs_is_given_up(bench: Bench) -> None:
    ended = threading.Event()

    def hang(input_ids: Any) -> Any:
        try:
            while True:
                pass
        finally:
            ended.set()

    answer = ask(engine_with(bench, hang, patience_s=0.2))
    assert answer.token_ids == tuple(CYCLE[(1 + i) % 12] for i in range(40))
    assert answer.draft.reason == "the drafter did not answer in time"
    assert ended.wait(5)  # a loop in Python is ended, so that it takes no time from the target


def test_a_stop_reaches_past_a_call_that_hangs(bench: Bench) -> None:
    free = threading.Event()

    def hang(input_ids: Any) -> Any:
        started.set()
        free.wait(20)
        return []

    started, asked = threading.Event(), time.monotonic()
    answer = ask(engine_with(bench, hang, cancelled=started.is_set), cancelled=started.is_set)
    assert answer.reason == "cancelled"
    assert time.monotonic() - asked < 10
    free.set()


def test_the_next_call_waits_for_the_one_before() -> None:
    """Foreign code is never run twice at once."""
    foreign = Foreign(patience_s=0.1)
    free, running = threading.Event(), []

    def slow() -> None:
        running.append(1)
        try:
            free.wait(20)
        finally:
            running.append(-1)

    with pytest.raises(DrafterError):
        foreign.run(slow)
    with pytest.raises(DrafterError, match="did not answer in time"):
        foreign.run(slow)
    assert foreign.busy
    free.set()
    assert foreign.run(lambda: sum(running), patience_s=20) == 0
    foreign.close()


def test_words_of_an_exception_are_one_harmless_line() -> None:
    class Evil(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert said(ValueError("one\ntwo")) == "ValueError: one"
    assert said(ValueError("\x1b[31mred.")) == "ValueError: \\x1b[31mred"
    assert said(ValueError()) == "ValueError"
    assert said(Evil()) == "Evil"
    assert len(said(ValueError("x" * 5000))) < 200


# ----------------------------------------------------------------------------- the price


def priced(
    plain_s: float = 1.0, call_s: float = 0.0, curve: float = 0.05
) -> tuple[StockDrafter, PricedLength]:
    drafter = StockDrafter(Stock(lambda ids: [1, 2, 3]), "my", 100, Foreign())
    policy = PricedLength(
        Costs({n: plain_s * (1 + curve * (n - 1)) for n in range(1, 18)}, 0.0, 17), longest=16
    )
    drafter.bind(policy)
    drafter._call_s = call_s
    return drafter, policy


def calls(drafter: StockDrafter, rounds: int, right: int) -> int:
    """Calls that are made over some rounds in which the first `right` proposed tokens are right."""
    stock = drafter._call
    assert isinstance(stock, Stock)
    before, ids = len(stock.given), [9, 9]
    for _ in range(rounds):
        known = drafter._call_s
        draft = drafter.draft(ids, 8, Sampler(GREEDY))
        drafter._call_s = known  # not what this machine takes
        ids += [*draft.tokens[:right], 50]
        drafter.accept(ids)
    drafter.close()
    return len(stock.given) - before


def test_a_call_is_made_while_it_earns_more_than_it_takes() -> None:
    assert calls(priced(call_s=0.5)[0], 200, right=3) == 200
    assert calls(priced(call_s=0.5)[0], 200, right=0) < 30
    assert calls(priced(call_s=8.0)[0], 200, right=3) < 5
    dear, _ = priced(call_s=8.0)
    dear.draft([1], 4, Sampler(GREEDY))
    assert "more time than it saves" in dear.off_reason


def test_a_cheap_call_is_made_always_since_it_teaches() -> None:
    assert calls(priced(call_s=0.001)[0], 100, right=0) == 100


def test_calls_that_seldom_propose_anything_must_be_cheap() -> None:
    drafter, _ = priced(call_s=0.5)
    assert isinstance(drafter._call, Stock)
    drafter._call.give = lambda ids: []
    assert calls(drafter, 300, right=0) < 40


def test_with_a_fixed_length_every_round_calls() -> None:
    drafter, _ = priced(call_s=50.0)
    drafter.bind(FixedLength(4))
    assert calls(drafter, 20, right=0) == 20
    assert drafter.off_reason == ""


def test_chances_follow_what_was_accepted() -> None:
    drafter, _ = priced()
    calls(drafter, 60, right=2)
    first, second, third = drafter._rates.first(3)
    assert min(first, second) > 0.9
    assert third < 0.2
    again, _ = priced()
    again.recall(drafter.learned())
    assert again._rates.first(3)[2] < 0.3
    for broken in (
        {},
        {"rates": [[1, 0]] * 32, "call_s": 1, "proposes": 1},
        {"rates": [], "call_s": -1, "proposes": 1},
    ):
        with pytest.raises((KeyError, TypeError, ValueError)):
            again.recall(broken)


def test_by_price_a_right_drafter_is_used_and_a_wrong_one_given_up(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    for give, expected in ((knows, True), (lambda ids: [CYCLE[0]] * 4, False)):
        engine = engine_with(bench, give, 8)
        # Prices that do not depend on this machine: half a step for each token that is verified.
        engine.set_length(8, Costs({1: 1.0, 9: 5.0}, 0.0, 9))
        monkeypatch.setattr(engine.policy, "learn", lambda outcome: None)
        answer = ask(engine, 120)
        assert answer.token_ids == tuple(CYCLE[(1 + i) % 12] for i in range(120))
        assert (answer.stats.accepted > 60) is expected
        assert answer.stats.drafted - answer.stats.accepted < 40


# --------------------------------------------------------------------- the wider contract


class Wide(Drafter):
    """A drafter of somebody's own that knows its probabilities."""

    name = "wide"

    def __init__(self, **gives: Any) -> None:
        self.gives = gives
        self.calls: list[str] = []

    def begin(self, ids: Sequence[int], **_: Any) -> None:
        self._do("begin")

    def draft(self, ids: Sequence[int], k: int, sampler: Sampler, go_on: Any = None) -> Any:
        tokens: list[int] = []
        for token in knows(ids)[:k]:
            tokens.append(int(token))
            if not go_on(self.gives.get("probability", 0.9), self.gives.get("margin", 3.0)):
                break
        return self._do("draft", Draft(tuple(tokens), (0.9,) * len(tokens), (3.0,) * len(tokens)))

    def shadow(self, ids: Sequence[int], sampler: Sampler) -> Any:
        return self._do("shadow", [Label(0.9, 1.0, True)])

    def accept(self, ids: Sequence[int]) -> None:
        self._do("accept")

    def reach(self, keep: int) -> Any:
        return self._do("reach", keep)

    def rest(self) -> None:
        self._do("rest")

    def clear(self) -> None:
        self._do("clear")

    def close(self) -> None:
        self._do("close")

    def _do(self, name: str, result: Any = None) -> Any:
        self.calls.append(name)
        give = self.gives.get(name)
        return give() if give is not None else result


def failing() -> Any:
    raise ValueError("broken")


def test_the_wider_contract_is_used(bench: Bench) -> None:
    own = Wide()
    engine = engine_with(bench, own)
    answer = ask(engine)
    assert answer.stats.accepted > 25
    assert answer.draft.name == "my:Own"
    assert {"begin", "draft", "accept", "reach", "rest"} <= set(own.calls)
    engine.clear()
    assert "clear" in own.calls


@pytest.mark.parametrize("part", ["begin", "draft", "accept", "reach", "rest"])
def test_each_part_may_fail(bench: Bench, part: str) -> None:
    engine = engine_with(bench, Wide(**{part: failing}))
    for _ in range(2):
        answer = ask(engine)
        assert answer.token_ids == tuple(CYCLE[(1 + i) % 12] for i in range(40))
    assert answer.draft.reason == "the drafter raised ValueError: broken"


@pytest.mark.parametrize(
    ("draft", "reason"),
    [
        ([1, 2], "returned a list, not a Draft"),
        (Draft((CYCLE[1], 10**6)), "proposed the token 1000000, which the target does not have"),
        (Draft((CYCLE[1],), (0.5, 0.5), (1.0,)), "returned 2 probabilities for 1 tokens"),
        (Draft((CYCLE[1],), (float("nan"),), (1.0,)), "gave nan as probabilities"),
        (Draft((CYCLE[1],), (1.5,), (1.0,)), "gave 1.5 as probabilities"),
        (Draft((CYCLE[1],), chances=(-1.0,)), "gave -1.0 as chances"),
    ],
)
def test_a_draft_is_looked_at(bench: Bench, draft: Any, reason: str) -> None:
    answer = ask(engine_with(bench, Wide(draft=lambda: draft)))
    assert answer.token_ids == tuple(CYCLE[(1 + i) % 12] for i in range(40))
    assert answer.draft.reason == f"the drafter {reason}"


def test_attributes_may_fail_too() -> None:
    class Odd(Wide):
        @property
        def free(self) -> bool:  # type: ignore[override]
            raise ValueError("free")

    with pytest.raises(DrafterError, match="raised ValueError: free"):
        draft_custom.build(Odd, "odd", 100, Foreign())


def test_numbers_that_are_none_do_not_reach_the_price_rule(bench: Bench) -> None:
    engine = engine_with(bench, Wide(probability=float("nan")), 8)
    engine.set_length(8, Costs({1: 1.0, 9: 1.4}, 0.01, 9))
    answer = ask(engine)
    assert answer.draft.reason == "the drafter gave nan as probability"
    assert isinstance(engine.policy, PricedLength)
    assert all(weight == weight for weight in engine.policy.acceptance.weights)


def test_reach_is_kept_within_what_is_there(bench: Bench) -> None:
    for reached in (-5, 10**9):
        engine = engine_with(bench, Wide(reach=lambda reached=reached: reached))
        for _ in range(2):
            assert ask(engine).token_ids == tuple(CYCLE[(1 + i) % 12] for i in range(40))


# --------------------------------------------------------------------------------- loading


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "own_drafters.py").write_text(
        "from llama_cpp.llama_speculative import LlamaDraftModel, LlamaPromptLookupDecoding\n"
        "class Own(LlamaDraftModel):\n"
        "    def __call__(self, input_ids, /, **kwargs): return input_ids[:2]\n"
        "class Fails(Own):\n    def __init__(self): raise RuntimeError('no weights')\n"
        "class Wants(Own):\n    def __init__(self, size): pass\n"
        "class Odd:\n    pass\n"
        "class Within:\n    Own = Own\n"
        "def make(n=3): return LlamaPromptLookupDecoding(num_pred_tokens=n)\n"
        "def bare(input_ids): return [5]\n"
        "ready = Own()\n"
        "LIMIT = 5\n"
    )
    (tmp_path / "own_lazy.py").write_text("def __getattr__(name): raise ValueError('lazy ' + name)\n")
    (tmp_path / "own_broken.py").write_text("import surely_not_there\n")
    (tmp_path / "own_leaves.py").write_text("import sys\nsys.exit('bye')\n")
    monkeypatch.setattr("sys.path", list(__import__("sys").path))
    yield tmp_path
    for name in ("own_drafters", "own_broken", "own_leaves", "own_lazy"):
        __import__("sys").modules.pop(name, None)


def made(folder: Path, name: str) -> Drafter:
    foreign = Foreign()
    found = draft_custom.find(f"own_drafters:{name}", str(folder), foreign)
    return draft_custom.build(found, f"own_drafters:{name}", 100, foreign)


@pytest.mark.parametrize(
    ("name", "proposed"),
    [("Own", (7, 8)), ("ready", (7, 8)), ("Within.Own", (7, 8)), ("make", (8, 9, 7)), ("bare", (5,))],
)
def test_a_class_an_object_a_factory_and_a_function(
    folder: Path, name: str, proposed: tuple[int, ...]
) -> None:
    drafter = made(folder, name)
    ids = [7, 8, 9, 7] if name == "make" else [7, 8, 9]
    drafter.begin(ids)
    assert drafter.draft(ids, 8, Sampler(GREEDY)).tokens == proposed
    assert drafter.name == f"own_drafters:{name}"
    drafter.close()


def test_our_own_class_gets_the_wider_contract(folder: Path) -> None:
    foreign = Foreign()
    drafter = draft_custom.build(Wide, "w", 100, foreign)
    assert isinstance(drafter, GuardedDrafter)
    drafter.close()
    plain = draft_custom.build(LlamaPromptLookupDecoding, "w", 100, foreign)
    assert isinstance(plain, StockDrafter)


@pytest.mark.parametrize(
    ("name", "message", "why"),
    [
        ("nowhere_to_be:Own", "There is no module nowhere_to_be.", "It was looked for in"),
        ("own_drafters.deeper:Own", "There is no module own_drafters.deeper.", ""),
        ("own_drafters:Ovn", "own_drafters has no Ovn.", "Did you mean Own?"),
        ("own_drafters:zzzzz", "own_drafters has no zzzzz.", "It was read from"),
        ("own_drafters:LIMIT", "own_drafters:LIMIT cannot draft: it is of type int.", "A drafter is a class"),
    ],
)
def test_wrong_names_are_refused_with_a_hint(folder: Path, name: str, message: str, why: str) -> None:
    with pytest.raises(UsageError) as caught:
        draft_custom.find(name, str(folder), Foreign())
    assert caught.value.message == message
    assert why in caught.value.why
    assert caught.value.hint


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("own_broken:Own", "the drafter raised ModuleNotFoundError: No module named 'surely_not_there'"),
        ("own_leaves:Own", "the drafter raised SystemExit: bye"),
        ("own_lazy:Own", "the drafter raised ValueError: lazy Own"),
        ("own_drafters:Fails", "the drafter raised RuntimeError: no weights"),
        ("own_drafters:Wants", "missing 1 required positional argument: 'size'"),
        ("own_drafters:Odd", "the drafter cannot be called with token ids: it is of type Odd"),
    ],
)
def test_code_that_fails_says_why(folder: Path, name: str, reason: str) -> None:
    foreign = Foreign()
    with pytest.raises(DrafterError) as caught:
        draft_custom.build(draft_custom.find(name, str(folder), foreign), name, 100, foreign)
    assert caught.value.message.endswith(reason)


def test_its_folder_stands_behind_everything_else_afterwards(folder: Path) -> None:
    import sys

    draft_custom.find("own_drafters:Own", str(folder), Foreign())
    assert sys.path[-1] == str(folder)
    assert sys.path.count(str(folder)) == 1


def test_a_load_that_hangs_can_be_stopped(folder: Path) -> None:
    (folder / "own_slow.py").write_text("import time\ntime.sleep(5)\n")
    with pytest.raises(AbortedError):
        draft_custom.find("own_slow:Own", str(folder), Foreign(lambda: True))
