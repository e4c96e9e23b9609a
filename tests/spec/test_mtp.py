"""The next-token block of a target as its drafter."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from localspec.errors import DecodeError, LoadError, UsageError
from localspec.llama import mtp
from localspec.llama.model import Model
from localspec.llama.mtp import NextTokenBlock
from localspec.spec.draft_mtp import MtpDrafter
from localspec.spec.engine import Engine, Request
from localspec.spec.events import Finished, Sampling
from localspec.spec.sampling import Sampler
from tests import gguf_files
from tests.gguf_writer import FIRST_NAMED
from tests.spec.conftest import Bench
from tests.spec.test_engine import finish, loop
from tests.spec.test_exact import TEMPERATURES, ids_of, talk

GREEDY = Sampling(temperature=0)
WRITERS: dict[str, Callable[..., Path]] = {
    "qwen35": gguf_files.random_qwen35,  # a state, which goes back a few tokens only
    "glm4moe": gguf_files.random_glm4moe,  # attention, which is cut anywhere
}


class Made:
    """An engine with an `mtp` drafter, and what belongs to it. `kept`: how many hidden states may wait."""

    def __init__(
        self,
        bench: Bench,
        path: Path,
        n_draft: int = 4,
        *,
        sidecar: Path | None = None,
        kept: int = 0,
        **options: Any,
    ) -> None:
        models = {}
        for file in {path, sidecar or path}:
            models[file] = Model(file, next_token_blocks=file == (sidecar or path), log=bench.log)
            bench.stack.callback(models[file].close)
        bench._models.update(models)
        options.setdefault("snapshots", n_draft)
        self.target = bench.context(path, **options)
        self.block = NextTokenBlock(
            models[sidecar or path],
            self.target,
            models[path],
            max_outputs=8,
            kv_type=options.get("kv_type", "f16"),
            log=bench.log,
        )
        bench.stack.callback(self.block.close)
        room = {"kept_bytes": kept * 4 * self.block.n_embd} if kept else {}
        self.drafter = MtpDrafter(self.block, n_vocab=self.target.n_vocab, **room)
        self.engine = Engine(self.target, models[path].vocab, drafter=self.drafter, n_draft=n_draft)


def tiny(bench: Bench, arch: str = "qwen35") -> Path:
    path = bench.folder / f"mtp-{arch}.gguf"
    return path if path.exists() else WRITERS[arch](path, n_embd=128, n_nextn=1)


def script(bench: Bench, block: str, table: dict[int, int] | None = None) -> Path:
    path = bench.folder / f"mtp-script-{block}.gguf"
    if not path.exists():
        gguf_files.script_qwen35(path, table or loop(FIRST_NAMED, 24), block=block)
    return path


def reference(made: Made, ids: Sequence[int]) -> np.ndarray:
    """Logits behind each pair of a conversation, with both caches filled from scratch in one batch each."""
    made.target.clear()
    made.block.clear()
    made.target.on_decoded = None
    made.target.decode(ids, "last")
    hidden = np.vstack(
        [np.zeros((1, made.block.n_embd), np.float32), made.block.target_hidden(len(ids))[:-1]]
    )
    rows = []
    for i in range(len(ids)):
        made.block.decode(ids[i : i + 1], hidden[i : i + 1], "last")
        rows.append(made.block.logits()[0].copy())
    return np.array(rows)


def interrupted(engine: Engine, request: Request, rounds: int, each: Callable[[int], None]) -> Finished:
    """Run until `rounds` events have come, with `each` called after every one."""
    count = 0

    def stop() -> bool:
        return count > rounds

    for event in engine.generate(request, stop):
        count += 1
        last = event
        each(count)
    assert isinstance(last, Finished)
    return last


def assert_block_is_right(made: Made, ids: Sequence[int], fresh: Made) -> None:
    """The block says the same behind this conversation as a block that read it at once."""
    known = list(ids[: made.target.length + 1])
    made.drafter.begin(known)
    assert made.drafter.draft(known, 1, Sampler(GREEDY)).tokens
    got = made.block.logits()[0].copy()
    expected = reference(fresh, known)[-1]
    assert np.abs(got - expected).max() < 1e-2 * np.abs(expected).max()
    assert made.block.length == len(known)


# -------------------------------------------------------------------- wiring


@pytest.mark.parametrize("block", ["token", "hidden"])
@pytest.mark.parametrize("n_draft", range(1, 9))
def test_a_perfect_block_is_always_right(bench: Bench, block: str, n_draft: int) -> None:
    """Over three turns, the second of which goes on from the first, and the third of which starts anew."""
    made = Made(bench, script(bench, block), n_draft)
    first = finish(made.engine, [1, FIRST_NAMED + 5], max_tokens=60)
    assert first.token_ids == tuple(FIRST_NAMED + (6 + i) % 24 for i in range(60))
    ids = [1, FIRST_NAMED + 5, *first.token_ids, 10, 11, FIRST_NAMED]
    second = finish(made.engine, ids, max_tokens=40)
    third = finish(made.engine, [1, 40, FIRST_NAMED + 9], max_tokens=40)
    for answer in (first, second, third):
        assert answer.stats.acceptance_rate == 1.0
        assert answer.stats.drafted >= (len(answer.token_ids) - 1) * n_draft // (n_draft + 1)


@pytest.mark.parametrize("block", ["token", "hidden"])
@pytest.mark.parametrize("kept", [0, 1, 30])
@pytest.mark.parametrize("n_batch", [5, 17, 512])
def test_a_perfect_block_after_long_prompts_in_batches(
    bench: Bench, block: str, n_batch: int, kept: int
) -> None:
    made = Made(bench, script(bench, block), 2, n_batch=n_batch, kept=kept)
    prompt = [1, *(3 + 7 * i % 250 for i in range(200)), FIRST_NAMED]
    answer = finish(made.engine, prompt, max_tokens=50)
    assert answer.stats.acceptance_rate == 1.0


@pytest.mark.parametrize("arch", WRITERS)
def test_the_cache_of_the_block_is_that_of_a_fresh_one(bench: Bench, arch: str) -> None:
    """What the block says at the end of rounds, turns and toggles is what it says of the same ids read at once."""
    path = tiny(bench, arch)
    made, fresh = Made(bench, path, 3, kept=20), Made(bench, path, 3)
    ids: list[int] = [1]
    for turn in range(3):
        ids += [3 + (37 * turn + 11 * i) % 256 for i in range(30)]
        for event in made.engine.generate(Request(list(ids), GREEDY, max_tokens=90, ignore_eos=True)):
            last = event
            made.engine.draft_on = random.Random(repr(event)).random() < 0.6
        assert isinstance(last, Finished)
        ids += last.token_ids
        made.engine.draft_on = True
        assert_block_is_right(made, ids, fresh)


@pytest.mark.parametrize("arch", WRITERS)
def test_a_draft_is_what_the_block_says_step_by_step(bench: Bench, arch: str) -> None:
    """A draft of four against the protocol spelled out: the block's own hidden state goes into each further step."""
    path = tiny(bench, arch)
    made = Made(bench, path, 4)
    prompt = [1, *range(3, 40)]
    answer = finish(made.engine, prompt, max_tokens=1, ignore_eos=True)
    ids = [*prompt, *answer.token_ids]
    got = made.drafter.draft(ids, 4, Sampler(GREEDY)).tokens
    fresh = Made(bench, path, 4)
    reference(fresh, ids[:-1])
    fresh.block.truncate(0)
    hidden = np.vstack(
        [np.zeros((1, fresh.block.n_embd), np.float32), fresh.block.target_hidden(len(ids) - 1)]
    )
    fresh.block.decode(ids, hidden, "last")
    expected = [int(fresh.block.logits()[0].argmax())]
    while len(expected) < 4:
        fresh.block.decode(expected[-1:], fresh.block.hidden().copy(), "last")
        expected.append(int(fresh.block.logits()[0].argmax()))
    assert list(got) == expected
    assert made.drafter.draft(ids, 4, Sampler(GREEDY)).tokens == got  # as when a round failed
    other = [1, 77, *ids[2:]]  # never seen by the target
    made.drafter.begin(other)
    assert made.drafter.draft(other, 4, Sampler(GREEDY)).tokens == ()
    assert "did not see" in made.engine.status.reason
    again = finish(made.engine, ids, max_tokens=8, ignore_eos=True)  # read once more
    assert (again.stats.reused_tokens, again.draft.state) == (0, "on")
    assert again.stats.drafted > 0


@pytest.mark.parametrize("n_draft", [1, 4])
def test_each_pair_is_evaluated_once(bench: Bench, monkeypatch: pytest.MonkeyPatch, n_draft: int) -> None:
    """A draft of k takes k evaluations, the first of which takes in what was accepted since the last one."""
    made = Made(bench, script(bench, "hidden"), n_draft)
    sizes: list[int] = []
    decode = made.block.decode
    monkeypatch.setattr(made.block, "decode", lambda *args: (sizes.append(len(args[0])), decode(*args)))
    answer = finish(made.engine, [1, FIRST_NAMED], max_tokens=1 + 20 * (n_draft + 1))
    assert answer.stats.rounds == 20
    assert sum(sizes) == 2 + 1 + 19 * (n_draft + 1) + 20 * (n_draft - 1)
    assert len(sizes) == 1 + 20 * n_draft


# ----------------------------------------------------------------- exactness


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("arch", WRITERS)
def test_ids_are_those_without_a_draft(bench: Bench, arch: str, temperature: float) -> None:
    path = tiny(bench, arch)
    sampling = Sampling(temperature=temperature, top_p=0.95, seed=5)
    for kv, n_batch in (("f16", 512), ("q8_0", 18)):
        plain = ids_of(talk(bench.engine(path, kv_type=kv, n_batch=n_batch), sampling))
        drafted = 0
        for n_draft in range(1, 9):
            answers = talk(Made(bench, path, n_draft, kv_type=kv, n_batch=n_batch).engine, sampling)
            assert ids_of(answers) == plain, (kv, n_draft)
            drafted += sum(answer.stats.drafted for answer in answers)
        assert drafted > 100


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("arch", WRITERS)
def test_rewinds_to_every_position(bench: Bench, arch: str, temperature: float) -> None:
    """The second turn keeps `keep` tokens of the first and goes on differently."""
    path = tiny(bench, arch)
    sampling = Sampling(temperature=temperature, seed=9)
    first = [1, *range(3, 15)]
    base = finish(bench.engine(path), first, sampling=sampling, max_tokens=10, ignore_eos=True)
    whole = [*first, *base.token_ids]
    plain = bench.engine(path)
    made, fresh = Made(bench, path, 3), Made(bench, path, 3)
    engine = made.engine
    for keep in range(1, len(whole) + 1):
        again = finish(engine, first, sampling=sampling, max_tokens=10, ignore_eos=True)
        assert again.token_ids == base.token_ids
        edited = [*whole[:keep], 200, 201]
        options: dict[str, Any] = {"sampling": sampling, "max_tokens": 8, "ignore_eos": True}
        plain.clear()
        got, expected = finish(engine, edited, **options), finish(plain, edited, **options)
        assert got.token_ids == expected.token_ids, keep
        assert got.stats.drafted > 0
        assert got.draft.state == "on"
        assert_block_is_right(made, [*edited, *got.token_ids], fresh)
        if arch == "glm4moe":  # one token is read once more, for its hidden state
            assert got.stats.reused_tokens >= min(keep, len(whole) - 1) - 1


@pytest.mark.parametrize("block", ["token", "hidden"])
def test_stops_and_toggles_at_every_round_leave_a_perfect_block_perfect(bench: Bench, block: str) -> None:
    made = Made(bench, script(bench, block), 3)
    engine = made.engine
    ids = [1, FIRST_NAMED]
    for turn in range(24):

        def toggle(count: int, turn: int = turn) -> None:
            engine.draft_on = (count + turn) % 3 != 0

        last = interrupted(engine, Request(list(ids), GREEDY, max_tokens=40), turn % 6, toggle)
        assert last.stats.acceptance_rate in (1.0, None)
        ids += last.token_ids
    engine.draft_on = True
    answer = finish(engine, ids, max_tokens=40)
    assert answer.stats.acceptance_rate == 1.0
    assert answer.stats.drafted > 20


@pytest.mark.parametrize(("kept", "fed"), [(64, 240), (1, 300), (0, 0)])
def test_while_off_hidden_states_wait_until_their_room_is_full(bench: Bench, kept: int, fed: int) -> None:
    made = Made(bench, script(bench, "hidden"), 4, kept=kept)
    made.engine.draft_on = False
    first = finish(made.engine, [1, FIRST_NAMED], max_tokens=300)
    assert first.stats.drafted == 0
    assert fed <= made.block.length <= 302 * (kept > 0)
    made.engine.draft_on = True
    second = finish(made.engine, [1, FIRST_NAMED, *first.token_ids], max_tokens=60)
    assert second.stats.reused_tokens >= 300
    assert second.stats.acceptance_rate == 1.0
    assert second.stats.drafted >= 45


@pytest.mark.parametrize("arch", WRITERS)
def test_clear_and_the_end_of_the_context(bench: Bench, arch: str) -> None:
    path = tiny(bench, arch)
    options: dict[str, Any] = {"n_ctx": 256}
    prompt = [1, *(3 + 5 * i % 250 for i in range(200))]
    expected = finish(bench.engine(path, **options), prompt, ignore_eos=True)
    assert expected.reason == "context"
    for n_draft in (1, 4, 8):
        made = Made(bench, path, n_draft, **options)
        engine = made.engine
        for _ in range(2):
            got = finish(engine, prompt, ignore_eos=True)
            assert (got.token_ids, got.reason) == (expected.token_ids, "context")
            engine.clear()
            assert (engine.context.length, made.block.length) == (0, 0)
        ids = [*prompt, *expected.token_ids][:255]
        engine.context.decode(ids[:-1], "last")
        made.drafter.begin(ids)
        assert len(made.drafter.draft(ids, 8, Sampler(GREEDY)).tokens) == 2  # pairs at 254 and 255


@pytest.mark.parametrize("arch", WRITERS)
def test_a_mixed_conversation_of_any_moves(bench: Bench, arch: str) -> None:
    """Random turns, edits, stops, draft lengths and toggles: each answer is the plain one."""
    path = tiny(bench, arch)
    made, plain = Made(bench, path, 8, kept=9), bench.engine(path)
    fresh = Made(bench, path, 8)
    rng = random.Random(4)
    ids = [1]

    def change(_count: int) -> None:
        made.engine.set_length(rng.randrange(0, 9))
        made.engine.draft_on = rng.random() < 0.8

    for _ in range(25):
        if rng.random() < 0.3:
            ids = ids[: rng.randrange(1, len(ids) + 1)]
        if rng.random() < 0.1 or len(ids) > 400:
            made.engine.clear()
            ids = [1]
        ids += [rng.randrange(3, 258) for _ in range(rng.randrange(1, 20))]
        sampling = Sampling(temperature=rng.choice([0.0, 0.8]), seed=rng.randrange(100))
        wanted = rng.randrange(1, 40)
        request = Request(list(ids), sampling, max_tokens=wanted, ignore_eos=True)
        last = interrupted(made.engine, request, rng.randrange(1, 20), change)
        assert "failed" not in last.draft.reason
        plain.clear()
        expected = finish(plain, ids, sampling=sampling, max_tokens=wanted, ignore_eos=True)
        assert last.token_ids == expected.token_ids[: len(last.token_ids)]
        ids += last.token_ids
        if last.stats.drafted:
            assert_block_is_right(made, ids, fresh)


# ------------------------------------------------------------ sidecars, labels


def test_a_sidecar_drafts_what_the_block_inside_the_file_drafts(bench: Bench) -> None:
    inside = Made(bench, tiny(bench), 4)
    sidecar = bench.folder / "mtp-tiny.gguf"
    gguf_files.random_qwen35(sidecar, seed=0, n_embd=128, n_nextn=1, sidecar=True)
    beside = Made(bench, bench.file("qwen35"), 4, sidecar=sidecar)
    one, other = talk(inside.engine, GREEDY), talk(beside.engine, GREEDY)
    assert ids_of(one) == ids_of(other)
    assert [a.stats.accepted for a in one] == [a.stats.accepted for a in other]
    assert [a.stats.drafted for a in one] == [a.stats.drafted for a in other]


def test_shadow_labels_are_what_one_token_drafts_would_have_been(bench: Bench) -> None:
    made = Made(bench, tiny(bench), 4)
    made.engine.draft_on = False
    prompt = [1, *range(3, 12)]
    answer = finish(made.engine, prompt, max_tokens=7, ignore_eos=True)
    ids = [*prompt, *answer.token_ids]
    known = ids[: made.target.length + 1]
    sampler = Sampler(GREEDY)
    labels = made.drafter.shadow(known, sampler)
    rows = reference(Made(bench, tiny(bench), 4), known[:-1])
    last = range(len(known) - 8, len(known))
    expected = [int(rows[p - 1].argmax()) == known[p] for p in last]
    assert [label.agreed for label in labels] == expected
    perfect = Made(bench, script(bench, "hidden"), 4)
    perfect.engine.draft_on = False
    text = finish(perfect.engine, [1, FIRST_NAMED], max_tokens=30).token_ids
    labels = perfect.drafter.shadow([1, FIRST_NAMED, *text], sampler)
    assert [label.agreed for label in labels] == [True] * 8
    perfect.engine.draft_on = True
    again = finish(perfect.engine, [1, FIRST_NAMED, *text], max_tokens=30)
    assert again.stats.acceptance_rate == 1.0


# ------------------------------------------------------------------- refusals


def test_a_file_without_a_block_is_refused(bench: Bench) -> None:
    path = bench.file("qwen35")
    model = bench.model(path)
    assert "no next-token block" in mtp.unusable(model)
    with pytest.raises(LoadError, match="no next-token block"):
        NextTokenBlock(model, bench.context(path), model)
    not_loaded = bench.model(tiny(bench))
    assert "not loaded" in mtp.unusable(not_loaded)


def test_blocks_that_llama_cpp_would_abort_on_are_refused(bench: Bench) -> None:
    two = Model(bench.file("qwen35", n_nextn=2), next_token_blocks=True, log=bench.log)
    bench.stack.callback(two.close)
    assert "has 2 next-token blocks" in mtp.unusable(two)
    wide = Model(tiny(bench), next_token_blocks=True, log=bench.log)
    bench.stack.callback(wide.close)
    narrow = bench.model(bench.file("qwen35", n_embd=64))
    assert "takes hidden states of 128 numbers, the target has 64" in mtp.unusable(wide, narrow)
    assert "is a block for qwen35, the target is llama" in mtp.unusable(
        wide, bench.model(bench.file("llama"))
    )


def test_it_does_not_draft_for_a_stock_llama(bench: Bench) -> None:
    made = Made(bench, tiny(bench), 4)
    with pytest.raises(UsageError, match="stock Llama"):
        made.drafter(np.array([1, 5, 6], dtype=np.intc))


# --------------------------------------------------------------------- faults


def failing(made: Made, monkeypatch: pytest.MonkeyPatch, when: Callable[[int], bool]) -> None:
    calls = 0
    decode = made.block.decode

    def broken(*args: Any) -> None:
        nonlocal calls
        calls += 1
        if when(calls):
            raise DecodeError("llama.cpp could not evaluate 1 token.")
        decode(*args)

    monkeypatch.setattr(made.block, "decode", broken)


@pytest.mark.parametrize("kept", [0, 10])
@pytest.mark.parametrize("at", [1, 2, 3, 7, 20])
def test_a_block_that_fails_ends_the_drafting_not_the_answer(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, at: int, kept: int
) -> None:
    """And switched on again it follows the next conversation, reading it once more."""
    path = script(bench, "hidden")
    made = Made(bench, path, 3, kept=kept)
    failing(made, monkeypatch, lambda call: call == at)
    prompt = [1, *(3 + i % 250 for i in range(150)), FIRST_NAMED]
    answer = finish(made.engine, prompt, max_tokens=60)
    assert answer.token_ids == tuple(FIRST_NAMED + (1 + i) % 24 for i in range(60))
    assert answer.draft.state == "off"
    assert "the draft failed" in answer.draft.reason
    made.engine.draft_on = True
    ids = [*prompt, *answer.token_ids]
    again = finish(made.engine, ids, max_tokens=40)
    assert again.stats.acceptance_rate == 1.0
    assert again.stats.drafted >= 20


def test_switched_on_in_mid_answer_after_a_fault_it_says_what_it_lacks(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Made(bench, script(bench, "token"), 3)
    failing(made, monkeypatch, lambda call: call == 3)
    statuses = []
    for event in made.engine.generate(Request([1, FIRST_NAMED], GREEDY, max_tokens=40)):
        status = made.engine.status
        statuses.append(status.reason)
        if "failed" in status.reason:
            made.engine.draft_on = True
        last = event
    assert isinstance(last, Finished)
    assert len(last.token_ids) == 40
    assert any("failed" in reason for reason in statuses)
    assert last.draft.state == "off"
    assert "did not see this conversation's beginning" in last.draft.reason


def test_a_failed_verify_leaves_the_block_where_it_was(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Made(bench, script(bench, "hidden"), 3)
    decode = made.target.decode
    calls = 0

    def broken(*args: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 4:
            raise DecodeError("llama.cpp could not evaluate 4 tokens.")
        decode(*args)

    monkeypatch.setattr(made.target, "decode", broken)
    with pytest.raises(DecodeError):
        finish(made.engine, [1, FIRST_NAMED], max_tokens=60)
    for prompt in ([1, FIRST_NAMED, FIRST_NAMED + 1], [1, FIRST_NAMED + 3]):
        answer = finish(made.engine, prompt, max_tokens=40)
        assert len(answer.token_ids) == 40
        assert answer.stats.acceptance_rate == 1.0


@pytest.mark.parametrize("arch", WRITERS)
def test_a_target_that_is_read_again_in_mid_answer(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, arch: str
) -> None:
    """A failed removal empties the target's cache; the block follows the second reading too."""
    path = tiny(bench, arch)
    made, fresh = Made(bench, path, 3, n_batch=64, kept=64), Made(bench, path, 3)
    prompt = [1, *(3 + 5 * i % 250 for i in range(150))]
    expected = finish(bench.engine(path), prompt, max_tokens=40, ignore_eos=True)
    truncate = made.target.truncate
    calls = 0

    def broken(length: int) -> bool:
        nonlocal calls
        calls += 1
        return calls not in (5, 12) and truncate(length)

    monkeypatch.setattr(made.target, "truncate", broken)
    answer = finish(made.engine, prompt, max_tokens=40, ignore_eos=True)
    assert calls > 12
    assert made.target.evaluated > 2 * len(prompt)
    assert answer.token_ids == expected.token_ids
    assert answer.draft.state == "on"
    ids = [*prompt, *answer.token_ids]
    assert_block_is_right(made, ids, fresh)
    made.target.clear()
    for start, end in ((0, 50), (50, 100), (100, 160)):  # as much as fits
        made.target.decode(ids[start:end], "last")
    assert_block_is_right(made, ids, fresh)


def test_after_closing_the_target_goes_on_alone(bench: Bench) -> None:
    made = Made(bench, tiny(bench), 3)
    prompt = [1, *range(3, 20)]
    expected = finish(made.engine, prompt, max_tokens=10, ignore_eos=True).token_ids
    made.drafter.close()
    made.drafter.close()
    alone = Engine(made.target, made.engine.vocab)
    made.target.clear()
    assert finish(alone, prompt, max_tokens=10, ignore_eos=True).token_ids == expected
