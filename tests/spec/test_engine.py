"""The loop: its ends, its caches, its counters, its faults."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from localspec.errors import ContextFullError, DecodeError, UsageError
from localspec.llama.backend import LlamaDraftModel
from localspec.spec.draft_lookup import LookupDrafter
from localspec.spec.draft_model import ModelDrafter
from localspec.spec.drafter import Draft, Drafter
from localspec.spec.engine import Engine, Request
from localspec.spec.events import EngineEvent, Finished, PromptProgress, Round, Sampling
from localspec.spec.sampling import Sampler
from tests import gguf_files
from tests.gguf_writer import EOS, FIRST_BYTE, FIRST_NAMED
from tests.spec.conftest import Bench

GREEDY = Sampling(temperature=0)


def run(engine: Engine, prompt: Sequence[int], **options: Any) -> list[EngineEvent]:
    options.setdefault("sampling", GREEDY)
    return list(engine.generate(Request(list(prompt), **options)))


def finish(engine: Engine, prompt: Sequence[int], **options: Any) -> Finished:
    last = run(engine, prompt, **options)[-1]
    assert isinstance(last, Finished)
    return last


def script(bench: Bench, name: str, table: dict[int, int], **options: Any) -> Path:
    path = bench.folder / f"{name}.gguf"
    return path if path.exists() else gguf_files.script_model(path, table, **options)


def loop(start: int, length: int) -> dict[int, int]:
    """A table in which `length` named tokens follow each other for ever."""
    tokens = [start + i for i in range(length)]
    return dict(zip(tokens, [*tokens[1:], tokens[0]], strict=True))


# ------------------------------------------------------------------ counters


def test_counters_of_a_pair_that_parts_at_every_fourth_token(bench: Bench) -> None:
    """Worked out by hand: a cycle of 12 named tokens, the draft is wrong after every fourth one.

    From a round's start right behind a parting, 3 tokens are accepted and the 4th is the target's own. Eight rounds
    draft 8 tokens; the last two are clipped to what is still wanted, 7 and 3.
    """
    table = loop(FIRST_NAMED, 12)
    wrong = {FIRST_NAMED + i: FIRST_NAMED + 20 for i in (3, 7, 11)}
    target = script(bench, "parting", table)
    draft = script(bench, "parting-draft", {**table, **wrong, FIRST_NAMED + 20: FIRST_NAMED + 20})
    answer = finish(bench.engine(target, draft, 8), [1, FIRST_NAMED + 3], max_tokens=41)
    stats = answer.stats
    # The first token comes with the prompt: it is the one behind a parting. Then 10 rounds of 3 + 1.
    assert answer.token_ids == tuple(FIRST_NAMED + (4 + i) % 12 for i in range(41))
    assert (stats.completion_tokens, stats.rounds, stats.drafted, stats.accepted) == (41, 10, 74, 30)
    assert stats.acceptance_rate == pytest.approx(30 / 74)
    assert stats.mean_accepted_length == pytest.approx(4.0)
    assert stats.per_position == pytest.approx((1, 1, 1, 0))
    assert stats.per_position_unconditional == pytest.approx((1, 1, 1, 0, 0, 0, 0, 0))
    assert stats.decode_tokens == 40
    assert stats.decode_tok_s == pytest.approx(40 / stats.decode_s)


def test_a_rejected_draft_is_told_with_what_was_chosen(bench: Bench) -> None:
    table = loop(FIRST_NAMED, 12)
    wrong = {FIRST_NAMED + i: FIRST_NAMED + 20 for i in (3, 7, 11)}
    target = script(bench, "parting", table)
    draft = script(bench, "parting-draft", {**table, **wrong, FIRST_NAMED + 20: FIRST_NAMED + 20})
    engine = bench.engine(target, draft, 8)
    said = [e for e in run(engine, [1, FIRST_NAMED + 3], max_tokens=41) if isinstance(e, Round)]
    assert said[0].rejected is None  # nothing is drafted with the prompt

    def text(place: int) -> str:
        return engine.vocab.piece(FIRST_NAMED + place).decode()

    told = [(one.rejected.drafted, one.rejected.chosen) for one in said if one.rejected is not None]
    assert told == [(text(20), text(i % 12)) for i in range(8, 41, 4)]
    assert all(0.9 < one.rejected.probability <= 1 for one in said if one.rejected is not None)
    right = bench.engine(target, target, 4)
    rounds = [e for e in run(right, [1, FIRST_NAMED + 3], max_tokens=41) if isinstance(e, Round)]
    assert all(one.rejected is None for one in rounds)


def test_a_right_draft_is_counted_in_tokens_not_in_rounds(bench: Bench) -> None:
    target = script(bench, "cycle", loop(FIRST_NAMED, 12))
    events = run(bench.engine(target, target, 8), [1, FIRST_NAMED], max_tokens=200)
    last = events[-1]
    assert isinstance(last, Finished)
    assert len(last.token_ids) == last.stats.completion_tokens == 200
    assert last.stats.acceptance_rate == 1.0
    rounds = [event for event in events if isinstance(event, Round)]
    pieces = [piece for event in rounds for piece in event.pieces]
    assert [piece.token_id for piece in pieces] == list(last.token_ids)
    assert "".join(piece.text for piece in pieces) == last.text
    assert sum(piece.drafted for piece in pieces) == last.stats.accepted


def test_nothing_drafted_is_not_zero_percent(bench: Bench) -> None:
    # 40 different tokens and then the end: the lookup never sees a pair again.
    target = script(bench, "straight", gguf_files.chain(*range(FIRST_NAMED, FIRST_NAMED + 38), EOS))
    stats = finish(bench.engine(target, "lookup", 4), [1, FIRST_NAMED]).stats
    assert stats.drafted == 0
    assert stats.acceptance_rate is None
    assert stats.to_json()["acceptance_rate"] is None
    again = finish(
        bench.engine(script(bench, "cycle", loop(FIRST_NAMED, 12)), "lookup", 4),
        [1, FIRST_NAMED],
        max_tokens=200,
    )
    assert again.stats.acceptance_rate == 1.0
    assert again.stats.drafted > 100


# ---------------------------------------------------------------------- ends


@pytest.mark.parametrize("n_draft", [0, 1, 3, 8])
def test_the_end_token_inside_an_accepted_draft_ends_the_answer(bench: Bench, n_draft: int) -> None:
    path = script(bench, "ending", gguf_files.chain(*range(FIRST_NAMED, FIRST_NAMED + 10), EOS))
    engine = bench.engine(path, path, n_draft)
    answer = finish(engine, [1, FIRST_NAMED])
    assert answer.reason == "stop"
    assert answer.token_ids == tuple(range(FIRST_NAMED + 1, FIRST_NAMED + 10))
    assert EOS not in answer.token_ids
    assert engine.context.length <= 2 + 10


@pytest.mark.parametrize("n_draft", [0, 1, 2, 3, 8])
@pytest.mark.parametrize("stop", ["thr", "three", "two thr", "e"])
def test_a_stop_string_ends_the_answer_in_front_of_it(bench: Bench, n_draft: int, stop: str) -> None:
    words = gguf_files.WORDS
    ids = [FIRST_NAMED + words.index(f"▁{w}") for w in ("one", "two", "three", "four", "five")]
    path = script(bench, "counting", gguf_files.chain(*ids, EOS))
    events = run(bench.engine(path, path, n_draft), [1, ids[0]], stop=(stop,))
    last = events[-1]
    assert isinstance(last, Finished)
    whole = " two three four five"
    assert last.reason == "stop"
    assert last.text == whole[: whole.index(stop)]
    shown = "".join(p.text for e in events if isinstance(e, Round) for p in e.pieces)
    assert shown == last.text


def test_after_a_stop_inside_a_draft_the_caches_hold_the_accepted_ids_only(bench: Bench) -> None:
    path = bench.file("llama")
    plain = bench.engine(path)
    first = finish(plain, [1, 5, 9], max_tokens=30, ignore_eos=True)
    text = first.text
    stop = next(text[i : i + 3] for i in range(4, len(text) - 3) if text.index(text[i : i + 3]) == i)
    engine = bench.engine(path, path, 7)
    cut = finish(engine, [1, 5, 9], max_tokens=30, ignore_eos=True, stop=(stop,))
    assert cut.reason == "stop"
    assert first.token_ids[: len(cut.token_ids)] == cut.token_ids
    # Going on from there gives what a fresh engine gives.
    prompt = [1, 5, 9, *cut.token_ids, 40, 41]
    fresh = finish(bench.engine(path), prompt, max_tokens=20, ignore_eos=True)
    assert finish(engine, prompt, max_tokens=20, ignore_eos=True).token_ids == fresh.token_ids


@pytest.mark.parametrize("draft", [None, "right", "lookup"])
def test_the_context_is_filled_to_the_last_cell(bench: Bench, draft: str | None) -> None:
    path = script(bench, "cycle", loop(FIRST_NAMED, 12))
    for length in range(1, 65):
        engine = bench.engine(path, path if draft == "right" else draft, 8, n_ctx=64)
        prompt = [1, *(FIRST_NAMED + i % 12 for i in range(length - 1))]
        answer = finish(engine, prompt, ignore_eos=True)
        assert answer.reason == "context"
        # Every cell holds a token, and the last one chose one more.
        assert len(answer.token_ids) == 64 - length + 1
        assert answer.context_used == 65


def test_a_prompt_that_does_not_fit_is_refused_and_changes_nothing(bench: Bench) -> None:
    path = bench.file("llama")
    engine = bench.engine(path, n_ctx=64)
    before = finish(engine, [1, 5, 9], max_tokens=5)
    with pytest.raises(ContextFullError, match="65 tokens"):
        finish(engine, [1] * 65)
    assert finish(engine, [1, 5, 9], max_tokens=5).token_ids == before.token_ids
    trained = engine.context.n_ctx_train
    for length, hint in [
        (65, "--ctx 128"),
        (trained - 1, f"--ctx {trained}"),
        (trained, "shorter prompt"),
        (trained + 1, "shorter prompt"),
    ]:
        with pytest.raises(ContextFullError) as caught:
            finish(engine, [1] * length)
        assert hint in caught.value.hint
    with pytest.raises(UsageError, match="empty"):
        finish(engine, [])


@pytest.mark.parametrize("n_draft", [0, 1, 4, 16])
@pytest.mark.parametrize("max_tokens", [1, 2, 3, 5, 17])
def test_max_tokens_is_exact(bench: Bench, max_tokens: int, n_draft: int) -> None:
    path = bench.file("llama")
    engine = bench.engine(path, path, n_draft)
    answer = finish(engine, [1, 4, 8], max_tokens=max_tokens, ignore_eos=True)
    assert (len(answer.token_ids), answer.reason) == (max_tokens, "length")


# -------------------------------------------------------------------- caches


@pytest.mark.parametrize("arch", ["llama", "gemma3", "qwen35"])
def test_a_turn_evaluates_only_its_new_tokens_in_both_models(bench: Bench, arch: str) -> None:
    path = bench.file(arch)
    engine = bench.engine(path, path, 4)
    assert isinstance(engine.drafter, ModelDrafter)
    ids = [1, *range(10, 60)]
    ids += finish(engine, ids, max_tokens=20, ignore_eos=True).token_ids
    target_before, draft_before = engine.context.evaluated, engine.drafter._context.evaluated
    question = [70, 71, 72]
    answer = finish(engine, ids + question, max_tokens=1, ignore_eos=True)
    assert answer.stats.reused_tokens >= len(ids) - 1
    assert engine.context.evaluated - target_before <= len(question) + 1
    # A draft with a state evaluates the last accepted tokens (at most 5) once more.
    again = 5 if arch == "qwen35" else 1
    assert engine.drafter._context.evaluated - draft_before <= len(question) + 1 + again


@pytest.mark.parametrize("arch", ["llama", "gemma3", "qwen35"])
def test_an_edited_early_turn_gives_what_a_fresh_engine_gives(bench: Bench, arch: str) -> None:
    path = bench.file(arch)
    engine = bench.engine(path, bench.related(path, "half"), 4)
    prompt = [1, *range(10, 90)]
    finish(engine, prompt, max_tokens=20, ignore_eos=True)
    for edited in ([*prompt[:12], 200, *prompt[13:]], [*prompt[:79], 201], prompt, prompt[:30], [1, 9]):
        fresh = finish(bench.engine(path), edited, max_tokens=20, ignore_eos=True)
        assert finish(engine, edited, max_tokens=20, ignore_eos=True).token_ids == fresh.token_ids


@pytest.mark.parametrize("arch", ["llama", "qwen35"])
def test_the_same_prompt_three_times_gives_the_same_figures_and_text(bench: Bench, arch: str) -> None:
    path = bench.file(arch)
    engine = bench.engine(path, bench.related(path, "half"), 4)
    runs = [finish(engine, [1, *range(30, 70)], max_tokens=30, ignore_eos=True) for _ in range(3)]
    assert len({r.token_ids for r in runs}) == 1
    assert len({(r.stats.drafted, r.stats.accepted) for r in runs}) == 1


def test_clear_empties_both_caches(bench: Bench) -> None:
    path = bench.file("llama")
    engine = bench.engine(path, path, 4)
    assert isinstance(engine.drafter, ModelDrafter)
    finish(engine, [1, 2, 3], max_tokens=5, ignore_eos=True)
    engine.clear()
    assert engine.context.length == engine.drafter._context.length == 0
    assert finish(engine, [1, 2, 3], max_tokens=5).stats.reused_tokens == 0


def test_logits_are_kept_for_the_verify_batch_only(bench: Bench) -> None:
    path = bench.file("llama")
    engine = bench.engine(path, path, 4, n_ctx=512)
    finish(engine, [1] * 300, max_tokens=20, ignore_eos=True)
    assert engine.context.logits().shape[0] <= 5
    with pytest.raises(UsageError, match="outputs"):
        engine.context.decode([1] * 18, "all")


# -------------------------------------------------------- stopping and faults


@pytest.mark.parametrize("draft", [None, "half"])
def test_a_stop_at_every_round_keeps_text_and_caches(bench: Bench, draft: str | None) -> None:
    path = bench.file("llama")
    other = bench.related(path, draft) if draft else None
    whole = finish(bench.engine(path), [1, 6, 7], max_tokens=30, ignore_eos=True)
    engine = bench.engine(path, other, 3)
    for stop_after in range(1, 12):
        seen = 0

        def cancelled() -> bool:
            return seen >= stop_after  # noqa: B023

        last: EngineEvent | None = None
        for last in engine.generate(Request([1, 6, 7], GREEDY, ignore_eos=True), cancelled):
            seen += isinstance(last, Round)
        assert isinstance(last, Finished)
        assert last.reason == "cancelled"
        assert last.token_ids == whole.token_ids[: len(last.token_ids)]
        assert last.token_ids
    # And on from the stopped text:
    rest = [1, 6, 7, *last.token_ids]
    fresh = finish(bench.engine(path), rest, max_tokens=10, ignore_eos=True)
    assert finish(engine, rest, max_tokens=10, ignore_eos=True).token_ids == fresh.token_ids


def test_a_stop_in_the_prompt_is_heard_between_chunks(bench: Bench) -> None:
    path = bench.file("llama")
    engine = bench.engine(path, path, 4, n_batch=32)
    prompt = [1, *(3 + i % 250 for i in range(400))]
    asked = 0

    def cancelled() -> bool:
        nonlocal asked
        asked += 1
        return asked > 3

    events = list(engine.generate(Request(prompt, GREEDY), cancelled))
    last = events[-1]
    assert isinstance(last, Finished)
    assert (last.reason, last.token_ids) == ("cancelled", ())
    progress = [event.done for event in events if isinstance(event, PromptProgress)]
    assert progress == sorted(progress)
    assert 0 < progress[-1] < 400
    # What was read is not read again, and the answer is right.
    fresh = finish(bench.engine(path), prompt, max_tokens=10, ignore_eos=True)
    again = finish(engine, prompt, max_tokens=10, ignore_eos=True)
    assert again.stats.reused_tokens == progress[-1]
    assert again.token_ids == fresh.token_ids


@pytest.mark.parametrize("arch", ["llama", "qwen35"])
@pytest.mark.parametrize("where", ["target", "draft"])
def test_a_stop_inside_an_evaluation(bench: Bench, arch: str, where: str) -> None:
    """Aborted half-way at many places: a cancelled answer, and an engine that goes on rightly."""
    path = bench.file(arch)
    fresh = finish(bench.engine(path), [1, *range(5, 60)], max_tokens=20, ignore_eos=True)
    engine = bench.engine(path, bench.related(path, "half"), 4)
    assert isinstance(engine.drafter, ModelDrafter)
    asked = stop_at = 0

    def wanted() -> bool:
        nonlocal asked
        asked += 1
        return asked == stop_at

    (engine.context if where == "target" else engine.drafter._context).stop_when(wanted)
    whole = finish(engine, [1, *range(5, 60)], max_tokens=20, ignore_eos=True)
    assert whole.token_ids == fresh.token_ids
    questions = asked
    assert questions > 100
    reasons = set()
    for share in (0.02, 0.2, 0.4, 0.6, 0.9):
        engine.clear()
        asked, stop_at = 0, int(questions * share)
        stopped = finish(engine, [1, *range(5, 60)], max_tokens=20, ignore_eos=True)
        reasons.add(stopped.reason)
        assert stopped.token_ids == fresh.token_ids[: len(stopped.token_ids)]
        stop_at = 0
        assert finish(engine, [1, *range(5, 60)], max_tokens=20, ignore_eos=True).token_ids == fresh.token_ids
    assert "cancelled" in reasons


def test_a_dropped_generator_leaves_a_usable_engine(bench: Bench) -> None:
    path = bench.file("llama")
    engine = bench.engine(path, bench.related(path, "half"), 5)
    fresh = finish(bench.engine(path), [1, 6, 7], max_tokens=20, ignore_eos=True)
    for events in range(1, 6):
        stream = engine.generate(Request([1, 6, 7], GREEDY, ignore_eos=True))
        for _ in range(events):
            next(stream)
        stream.close()
        assert engine.context.length <= len(engine.ids)
        assert finish(engine, [1, 6, 7], max_tokens=20, ignore_eos=True).token_ids == fresh.token_ids


@pytest.mark.parametrize("arch", ["llama", "qwen35"])
@pytest.mark.parametrize("fail_at", [1, 2, 3, 5])
def test_a_failed_removal_costs_time_and_nothing_else(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, arch: str, fail_at: int
) -> None:
    path = bench.file(arch)
    fresh = finish(bench.engine(path), [1, 6, 7], max_tokens=25, ignore_eos=True)
    engine = bench.engine(path, bench.related(path, "wrong"), 4)
    calls = 0
    truncate = engine.context.truncate

    def sometimes(length: int) -> bool:
        nonlocal calls
        calls += length < engine.context.length
        return False if calls == fail_at else truncate(length)

    monkeypatch.setattr(engine.context, "truncate", sometimes)
    assert finish(engine, [1, 6, 7], max_tokens=25, ignore_eos=True).token_ids == fresh.token_ids
    assert calls > fail_at


def test_a_failed_evaluation_of_the_target_is_an_error_and_the_engine_goes_on(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    import llama_cpp

    path = bench.file("llama")
    fresh = finish(bench.engine(path), [1, 6, 7], max_tokens=25, ignore_eos=True)
    engine = bench.engine(path)
    real, calls = llama_cpp.llama_decode, 0

    def broken(*arguments: Any) -> int:
        nonlocal calls
        calls += 1
        return -3 if calls == 6 else real(*arguments)

    monkeypatch.setattr(llama_cpp, "llama_decode", broken)
    with pytest.raises(DecodeError, match="status -3"):
        finish(engine, [1, 6, 7], max_tokens=25, ignore_eos=True)
    assert finish(engine, [1, 6, 7], max_tokens=25, ignore_eos=True).token_ids == fresh.token_ids


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_a_damaged_weight_of_the_output_is_an_error(bench: Bench, sign: int, temperature: float) -> None:
    """One token of many is never a number; a choice looks closely at the largest ones only."""
    import gguf

    path = gguf_files.random_llama(bench.folder / f"damaged{sign}.gguf", n_vocab=12_000, n_embd=32, n_layer=1)
    for tensor in gguf.GGUFReader(path, "r+").tensors:
        if tensor.name == "output.weight":
            tensor.data[777] = np.copysign(np.float32(np.nan), sign)
            tensor.data.flush()
    engine = bench.engine(path)
    with pytest.raises(DecodeError, match="not a number"):
        run(engine, [1, 6, 7], sampling=Sampling(temperature=temperature), max_tokens=5)


def test_a_failing_draft_is_switched_off_with_its_reason_and_the_text_goes_on(bench: Bench) -> None:
    path = bench.file("llama")
    fresh = finish(bench.engine(path), [1, 6, 7], max_tokens=25, ignore_eos=True)
    engine = bench.engine(path, path, 3)
    assert engine.drafter is not None
    original, calls = engine.drafter.draft, 0

    def failing(ids: Sequence[int], k: int, sampler: Sampler, go_on: Any) -> Draft:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise DecodeError("The device is gone.")
        return original(ids, k, sampler, go_on)

    engine.drafter.draft = failing  # type: ignore[method-assign]
    answer = finish(engine, [1, 6, 7], max_tokens=25, ignore_eos=True)
    assert answer.token_ids == fresh.token_ids
    assert answer.draft.state == "off"
    assert answer.draft.reason == "the draft failed: The device is gone."
    engine.draft_on = True  # another try
    again = finish(engine, [1, 6, 7], max_tokens=25, ignore_eos=True)
    assert (again.draft.state, again.token_ids) == ("on", fresh.token_ids)


# ------------------------------------------------------------------ drafting


def test_drafting_can_change_in_the_middle_of_an_answer(bench: Bench) -> None:
    path = bench.file("llama")
    fresh = finish(bench.engine(path), [1, 6, 7], max_tokens=60, ignore_eos=True)
    engine = bench.engine(path, bench.related(path, "half"), 2)
    states = []
    for number, event in enumerate(
        engine.generate(Request([1, 6, 7], GREEDY, max_tokens=60, ignore_eos=True))
    ):
        if number % 5 == 0:
            engine.draft_on = not engine.draft_on
        engine.set_length(1 + number % 9)
        states.append(event.draft.state if isinstance(event, Round) else "")
    assert isinstance(event, Finished)
    assert event.token_ids == fresh.token_ids
    assert {"on", "off"} <= set(states)


def test_the_status_names_the_reason(bench: Bench) -> None:
    path = bench.file("llama")
    assert bench.engine(path).status.reason == "no draft was asked for"
    engine = bench.engine(path, path, 3)
    assert (engine.status.state, engine.status.n_draft, engine.status.reason) == ("on", 3, "")
    engine.draft_on = False
    assert (engine.status.state, engine.status.n_draft, engine.status.reason) == ("off", 0, "switched off")
    engine.draft_on = True
    engine.set_length(0)
    assert engine.status.reason == "the draft length is 0"
    engine.set_length(99)
    assert engine.n_draft == engine.n_draft_limit == 16
    with pytest.raises(UsageError):
        engine.set_length(-1)


def test_a_hybrid_target_drafts_no_more_than_it_can_take_back(bench: Bench) -> None:
    engine = bench.engine(bench.file("qwen35"), "lookup", 3, snapshots=3)
    engine.set_length(12)
    assert engine.n_draft == 3


def test_a_state_is_not_rolled_back_into_stale_snapshots(bench: Bench) -> None:
    """llama.cpp offers snapshots of an older batch and gives a wrong state; the context refuses."""
    context = bench.context(bench.file("qwen35"), snapshots=8)
    for token in (1, 5, 6, 7):
        context.decode([token], "none")
    assert not context.truncate(2)
    assert context.length == 4
    context.clear()
    context.decode([1, 5, 6, 7], "none")
    assert context.truncate(2)
    context.decode([6, 7], "last")
    after = context.logits()[0].copy()
    context.clear()
    context.decode([1, 5, 6, 7], "last")
    assert np.allclose(after, context.logits()[0], atol=1e-4)


def test_a_draft_with_a_smaller_context_stops_and_says_so(bench: Bench) -> None:
    path = bench.file("llama")
    fresh = finish(bench.engine(path), [1, 6, 7], max_tokens=300, ignore_eos=True)
    context = bench.context(path)
    drafter = ModelDrafter(bench.context(path, n_ctx=128), name="small", n_vocab=context.n_vocab)
    engine = Engine(context, bench.model(path).vocab, drafter=drafter, n_draft=4)
    answer = finish(engine, [1, 6, 7], max_tokens=300, ignore_eos=True)
    assert answer.token_ids == fresh.token_ids
    assert answer.draft.state == "off"
    assert "128 tokens" in answer.draft.reason
    # A short conversation has room again.
    assert finish(engine, [1, 6], max_tokens=20, ignore_eos=True).draft.state == "on"


@pytest.mark.parametrize("proposal", [(-1, 5), (10**6,), (300, 301), ()])
def test_a_foreign_proposal_of_any_kind_is_harmless(bench: Bench, proposal: tuple[int, ...]) -> None:
    class Odd(Drafter):
        name = "odd"

        def begin(self, ids: Sequence[int], **_: Any) -> None:
            pass

        def draft(self, ids: Sequence[int], k: int, sampler: Sampler, go_on: Any = None) -> Draft:
            return Draft(proposal * 30)

    path = bench.file("llama")
    fresh = finish(bench.engine(path), [1, 6, 7], max_tokens=25, ignore_eos=True)
    engine = Engine(bench.context(path), bench.model(path).vocab, drafter=Odd(), n_draft=4)
    assert finish(engine, [1, 6, 7], max_tokens=25, ignore_eos=True).token_ids == fresh.token_ids


# ------------------------------------------------------------------ the stock


@pytest.mark.parametrize("kind", ["right", "half", "wrong", "lookup"])
def test_each_drafter_runs_inside_a_stock_llama(bench: Bench, kind: str) -> None:
    import llama_cpp

    path = bench.file("llama")

    def stock(draft: Any) -> list[int]:
        llama = llama_cpp.Llama(
            str(path),
            n_ctx=256,
            n_batch=256,
            logits_all=draft is not None,
            draft_model=draft,
            verbose=True,
            n_threads=1,
        )
        tokens = []
        for token in llama.generate([1, 6, 7, 8, 6, 7], temp=0.0, repeat_penalty=1.0):
            tokens.append(token)
            if len(tokens) == 60:
                break
        llama.close()
        return tokens

    drafter: Drafter = LookupDrafter()
    if kind != "lookup":
        drafter = ModelDrafter(bench.context(bench.related(path, kind)), name=kind, n_vocab=300)
    assert isinstance(drafter, LlamaDraftModel)
    plain = stock(None)
    assert stock(drafter) == plain
    ours = finish(bench.engine(path), [1, 6, 7, 8, 6, 7], max_tokens=60, ignore_eos=True).token_ids
    assert list(ours) == plain


# ----------------------------------------------------------------------- text


@pytest.mark.parametrize("n_draft", [0, 1, 2, 3, 7])
def test_characters_of_several_tokens_arrive_whole(bench: Bench, n_draft: int) -> None:
    # A token has one successor, so each byte can come once; what is left over is no UTF-8 and becomes U+FFFD.
    text = "a😀한b👨‍👩‍👧c"
    path = bench.folder / "emoji.gguf"
    order = list(dict.fromkeys(text.encode()))
    chain = [FIRST_BYTE + byte for byte in order]
    if not path.exists():
        gguf_files.script_model(path, gguf_files.chain(FIRST_NAMED, *chain, EOS))
    expected = bytes(order).decode("utf-8", "replace")
    events = run(bench.engine(path, path, n_draft), [1, FIRST_NAMED])
    last = events[-1]
    assert isinstance(last, Finished)
    assert last.text == expected
    assert "".join(p.text for e in events if isinstance(e, Round) for p in e.pieces) == expected
