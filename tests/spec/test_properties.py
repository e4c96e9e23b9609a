"""Promise 1, harder: whatever a person does and whatever fails, the ids are those of plain decoding.

Hypothesis plays conversations: questions, edits, stops, other draft lengths and drafters in mid-answer, faults of
llama.cpp. A twin without a drafter answers the same prompt from empty caches, and both must agree.

    LOCALSPEC_TEST_EXAMPLES=2000 pytest tests/spec/test_properties.py    a long run, new examples each time
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from localspec.errors import ContextFullError, DecodeError
from localspec.spec.engine import Request
from localspec.spec.events import EngineEvent, Finished, Round, Sampling
from tests.spec.rigs import HAS_BLOCK, LONGEST, N_CTX, PRICES, TARGETS, TIE, Broken, Pool, Rig, play

EXAMPLES = int(os.environ.get("LOCALSPEC_TEST_EXAMPLES", "0"))
GREEDY = Sampling(temperature=0)
DRAFTERS = ("right", "half", "wrong", "lookup", "chain", "odd", "overlap", "mtp")
FAULTS = ("decode", "decode late", "removal", "numbers")

SETTINGS = settings(
    max_examples=EXAMPLES or 150,
    stateful_step_count=14,
    derandomize=not EXAMPLES,  # the suite plays the same games each time
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.generate, Phase.shrink),  # explaining traces every line, which takes minutes
)


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    with pytest.MonkeyPatch.context() as patch:
        made = Pool(tmp_path_factory.mktemp("rigs"), patch)
        yield made
        made.close()


# ------------------------------------------------------------------ what is asked


class Change(NamedTuple):
    """Something that a person does in mid-answer, after `at` events."""

    at: int
    drafter: str | None = None
    on: bool | None = None
    length: int | None = None
    prices: str = ""

    def apply(self, rig: Rig) -> None:
        if self.drafter in rig.relay.drafters:
            rig.relay.current = self.drafter
        if self.on is not None:
            rig.engine.draft_on = self.on
        if self.length is not None:
            rig.set_length(self.length, self.prices)


changes = st.tuples(
    st.integers(1, 24),
    st.one_of(
        st.fixed_dictionaries({"drafter": st.sampled_from(DRAFTERS)}),
        st.fixed_dictionaries({"on": st.booleans()}),
        st.fixed_dictionaries({"length": st.integers(0, LONGEST), "prices": st.sampled_from(["", *PRICES])}),
    ),
).map(lambda drawn: Change(drawn[0], **drawn[1]))
faults = st.tuples(st.sampled_from([*FAULTS, "declared", "broken"]), st.booleans(), st.integers(1, 6))
samplings = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.7, 1.0, 1.5]),
    top_k=st.sampled_from([40, 0, 1, 5]),
    top_p=st.sampled_from([0.95, 1.0, 0.5]),
    min_p=st.sampled_from([0.0, 0.05]),
    repeat_penalty=st.sampled_from([1.0, 1.3]),
    presence_penalty=st.sampled_from([0.0, 0.5]),
    frequency_penalty=st.sampled_from([0.0, 0.3]),
    penalty_last_n=st.sampled_from([64, 0, 5, -1]),
    seed=st.integers(0, 9),
)
questions = st.lists(st.integers(3, 299), min_size=1, max_size=30)
forms = st.fixed_dictionaries(
    {
        "sampling": samplings,
        "max_tokens": st.sampled_from([12, 1, 2, 5, 40, 0]),
        "ignore_eos": st.booleans(),
        "stop": st.sampled_from([(), ("a",), ("e", "th"), (" the", "of a"), ("zz", "\n")]),
        "tags": st.sampled_from([None, ("<", ">")]),
    }
)


def text_of(events: Sequence[EngineEvent], *, thinking: bool) -> str:
    return "".join(p.text for e in events if isinstance(e, Round) for p in e.pieces if p.thinking == thinking)


def check(pool: Pool, rig: Rig, request: Request, events: Sequence[EngineEvent]) -> tuple[int, ...]:
    """What came is what plain decoding says, as far as it goes. Returns plain decoding's ids."""
    plain = rig.plain(request)
    last = events[-1] if events else None
    if isinstance(last, Finished):
        got = last.token_ids
    else:  # failed or dropped: what the engine goes on from
        chosen = rig.engine.ids[len(request.prompt) :] if events else []
        ended = bool(chosen) and rig.engine.vocab.is_eog(chosen[-1]) and not request.ignore_eos
        got = tuple(chosen[:-1] if ended else chosen)
    parting = next((i for i, (a, b) in enumerate(zip(got, plain.token_ids, strict=False)) if a != b), None)
    if parting is not None:
        margin = rig.margin(request, plain.token_ids[:parting])
        assert margin < TIE, (
            f"{got[parting]} instead of {plain.token_ids[parting]} at {parting}, margin {margin}"
        )
        pool.ties.add((*request.prompt, *plain.token_ids[:parting]))
    elif isinstance(last, Finished) and last.reason != "cancelled":
        assert (got, last.reason) == (plain.token_ids, plain.reason)
        assert (last.text, last.thinking) == (plain.text, plain.thinking)
        assert (text_of(events, thinking=False), text_of(events, thinking=True)) == (last.text, last.thinking)
    else:
        assert len(got) <= len(plain.token_ids)
    pool.seen["answers"] += 1
    pool.seen["tokens"] += len(got)
    return plain.token_ids


# ---------------------------------------------------------------------- any moves


class Moves(RuleBasedStateMachine):
    """A conversation on one rig; `ids` is what the next question is put behind."""

    def __init__(self, pool: Pool) -> None:
        super().__init__()
        self.pool = pool
        self.ids: list[int] = [1]
        self.ends: list[int] = []
        self.asked: Request | None = None

    @initialize(
        arch=st.sampled_from(sorted(TARGETS)),
        seed=st.integers(0, 1),
        partner=st.sampled_from(["llama", "qwen35"]),
        n_batch=st.sampled_from([64, 18]),
        drafter=st.sampled_from(DRAFTERS),
    )
    def begin(self, arch: str, seed: int, partner: str, n_batch: int, drafter: str) -> None:
        self.rig = self.pool.rig(arch, seed, partner, n_batch)
        self.rig.relay.current = drafter if drafter in self.rig.relay.drafters else "half"
        self.hit = self.rig.faults_hit

    # -------------------------------------------------------------------- asking

    @rule(question=questions, form=forms, moves=st.lists(changes, max_size=5))
    def ask(self, question: list[int], form: dict[str, Any], moves: list[Change]) -> None:
        self.answer(self.request(question, form), moves)

    @precondition(lambda self: self.asked)
    @rule(seed=st.integers(0, 9), moves=st.lists(changes, max_size=5))
    def regenerate(self, seed: int, moves: list[Change]) -> None:
        assert self.asked is not None
        request = self.asked
        self.ids = list(request.prompt)
        self.answer(replace(request, sampling=replace(request.sampling, seed=seed)), moves)

    @rule(question=questions, form=forms, after=st.integers(0, 12), moves=st.lists(changes, max_size=2))
    def ask_and_stop(
        self, question: list[int], form: dict[str, Any], after: int, moves: list[Change]
    ) -> None:
        self.answer(self.request(question, form), moves, stop_after=after)

    @rule(question=questions, form=forms, after=st.integers(1, 12))
    def ask_and_drop(self, question: list[int], form: dict[str, Any], after: int) -> None:
        """The consumer of the events goes away."""
        self.answer(self.request(question, form), drop_after=after)

    @rule(question=questions, form=forms, operations=st.integers(1, 4000))
    def ask_and_abort(self, question: list[int], form: dict[str, Any], operations: int) -> None:
        """A stop in the middle of an evaluation, of the target or of a draft."""
        request = self.request(question, form)
        self.rig.ops_to_abort = operations
        self.answer(request)
        self.rig.ops_to_abort = 0

    def request(self, question: list[int], form: dict[str, Any]) -> Request:
        """Ask behind what was said; the ends of all questions are places to which a memory may want to go back."""
        self.ends = [end for end in self.ends if end < len(self.ids)]
        self.ids += question
        self.ends.append(len(self.ids) - 1)
        return Request(list(self.ids), anchors=tuple(self.ends), **form)

    def answer(self, request: Request, moves: Sequence[Change] = (), **how: Any) -> None:
        def each(count: int) -> None:
            for move in moves:
                if move.at == count:
                    move.apply(self.rig)

        if len(request.prompt) > N_CTX:
            with pytest.raises(ContextFullError):
                play(self.rig, request)
            self.pool.seen["context full"] += 1
            self.ids = [1]
            return
        hit = self.rig.faults_hit
        events, error = play(self.rig, request, each=each, **how)
        assert not self.rig.engine.answering
        assert self.rig.target.length <= len(self.rig.engine.ids)
        if self.rig.faults_hit == hit:
            assert error is None
        if self.rig.faults_hit == self.hit:
            assert "failed" not in self.rig.engine.status.reason
        plain = check(self.pool, self.rig, request, events)
        self.note_what_happened(events, error)
        self.asked = request
        self.ids += plain  # of a stopped answer a part is in the caches, the rest is read then

    # ------------------------------------------------------------------- editing

    @rule(at=st.integers(1, N_CTX), token=st.integers(3, 299))
    def edit(self, at: int, token: int) -> None:
        """Another word in an early turn."""
        self.ids[at % len(self.ids)] = token

    @rule(keep=st.integers(1, N_CTX))
    def shorten(self, keep: int) -> None:
        self.ids = self.ids[:keep]

    @rule(tokens=st.integers(1, LONGEST))
    def go_back_a_little(self, tokens: int) -> None:
        """Within what a recurrent state could take back, were it still that of the last batch."""
        self.ids = self.ids[:1] + self.ids[1:-tokens]

    @rule()
    def clear(self) -> None:
        self.rig.engine.clear()
        assert self.rig.target.length == 0
        self.ids = [1]

    @rule(move=changes)
    def change(self, move: Change) -> None:
        move.apply(self.rig)

    # -------------------------------------------------------------------- faults

    @rule(question=questions, form=forms, fault=faults, moves=st.lists(changes, max_size=2))
    def ask_and_fail(
        self, question: list[int], form: dict[str, Any], fault: tuple[str, bool, int], moves: list[Change]
    ) -> None:
        """What does not fail in this answer may fail in the next one."""
        kind, in_draft, at = fault
        rig, drafter = self.rig, self.rig.relay.current
        rig.engine.draft_on = True
        rig.set_length(4)
        if kind in FAULTS:
            own = {"chain": "chained"}.get(drafter, drafter)
            rig.faults.arm(kind, rig.drafts.get(own, rig.target) if in_draft else rig.target, at)
        else:
            rig.relay.current = "odd"
            rig.odd.error = DecodeError("no luck") if kind == "declared" else Broken("no luck")
        self.answer(self.request(question, {**form, "ignore_eos": True, "max_tokens": 20}), moves)

    def teardown(self) -> None:
        """Whatever was the last move: the next answer is right."""
        if hasattr(self, "rig"):
            self.rig.faults.disarm()
            self.ids = self.ids[: N_CTX // 2]
            self.answer(self.request([7, 8], {"sampling": GREEDY, "max_tokens": 10, "ignore_eos": True}))

    def note_what_happened(self, events: Sequence[EngineEvent], error: Exception | None) -> None:
        seen, last = self.pool.seen, events[-1] if events else None
        if error is not None:
            seen[type(error).__name__] += 1
        if isinstance(last, Finished):
            seen[last.reason] += 1
            seen["drafted"] += last.stats.drafted
            seen["accepted"] += last.stats.accepted
            seen["reused"] += last.stats.reused_tokens
            seen["drafter failed"] += "failed" in last.draft.reason


def test_any_moves_give_the_ids_of_plain_decoding(pool: Pool) -> None:
    pool.seen.clear()
    pool.ties.clear()
    pool.faults.hit.clear()
    run_state_machine_as_test(partial(Moves, pool), settings=SETTINGS)
    seen = pool.seen
    if os.environ.get("LOCALSPEC_TEST_EXAMPLES"):
        print(dict(seen), dict(pool.faults.hit), f"{len(pool.ties)} near ties")
    # The games were worth playing.
    assert seen["tokens"] > 4_000
    assert seen["drafted"] > seen["accepted"] > 200
    assert len(pool.ties) <= 2 + seen["tokens"] // 5_000
    for what in ("stop", "length", "context", "cancelled", "context full", "reused"):
        assert seen[what], what
    for what in ("DecodeError", "Broken", "drafter failed"):
        assert seen[what], what
    assert set(pool.faults.hit) == set(FAULTS)


# --------------------------------------------------------------- every boundary


PAIRS = [
    (arch, drafter)
    for arch in sorted(TARGETS)
    for drafter in DRAFTERS
    if (drafter != "mtp" or arch in HAS_BLOCK) and (drafter != "overlap" or arch != "qwen35")
]


@pytest.mark.parametrize(("arch", "drafter"), PAIRS)
def test_stopped_or_dropped_at_every_boundary(pool: Pool, arch: str, drafter: str) -> None:
    """Then the conversation goes on from what was said: both answers are plain decoding's."""
    rig = pool.rig(arch)
    rig.relay.current = drafter
    rig.set_length(3)
    sampling = Sampling(temperature=0.7, seed=4)
    prompt = [1, *range(20, 50)]
    whole = Request(prompt, sampling, max_tokens=16, ignore_eos=True)
    boundaries = len(play(rig, whole)[0])
    for at in range(1, boundaries + 1):
        how = {"stop_after": at} if at % 2 else {"drop_after": at}
        rig.set_length(3, "cheap" if at % 3 == 0 else "")
        events, error = play(rig, whole, **how)
        assert error is None
        check(pool, rig, whole, events)
        said = rig.engine.ids[len(prompt) :]
        rest = Request([*prompt, *said, 60, 61], sampling, max_tokens=6, ignore_eos=True)
        events, error = play(rig, rest)
        assert error is None
        check(pool, rig, rest, events)
        assert isinstance(events[-1], Finished)
        assert len(events[-1].token_ids) == 6


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("drafter", ["right", "chain", "mtp", "overlap"])
def test_a_draft_whose_output_is_no_number_is_switched_off(
    pool: Pool, drafter: str, temperature: float
) -> None:
    """And the price rule, which learns from the drafter's own probabilities, goes on knowing what it knew."""
    rig = pool.rig("glm4moe")
    rig.relay.current = drafter
    rig.set_length(LONGEST, "cheap")
    context = rig.drafts["chained" if drafter == "chain" else drafter]
    request = Request([1, *range(20, 40)], Sampling(temperature, seed=2), max_tokens=40, ignore_eos=True)
    rig.faults.arm("numbers", context, 5)
    events, error = play(rig, request)
    assert error is None
    check(pool, rig, request, events)
    last = events[-1]
    assert isinstance(last, Finished)
    assert "not a number" in last.draft.reason
    rig.engine.draft_on = True
    events, _ = play(rig, request)
    check(pool, rig, request, events)
    again = events[-1]
    assert isinstance(again, Finished)
    assert again.stats.drafted > 0
    assert "failed" not in again.draft.reason
