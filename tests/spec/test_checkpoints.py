"""Targets with a recurrent state go back to copies of it, and nobody sees it but in the time it takes."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import llama_cpp
import pytest

from localspec.errors import DecodeError
from localspec.llama.context import Context
from localspec.spec.draft_chain import ChainDrafter
from localspec.spec.engine import Engine, Request
from localspec.spec.events import Finished, Sampling
from tests import gguf_files
from tests.gguf_writer import FIRST_NAMED
from tests.spec.conftest import Bench
from tests.spec.test_engine import finish
from tests.spec.test_mtp import Made, assert_block_is_right, interrupted, script, tiny

THINKS, ANSWERS = (
    [40, 41, FIRST_NAMED],
    [40, 41],
)  # what opens an answer with thinking, and an old one without
SAMPLING = Sampling(temperature=0.8, seed=3)
LENGTH = 26  # tokens of an answer, the first half of which is thinking
DRAFTS = ("none", "lookup", "model", "wrong", "mtp", "chain-mtp", "chain-model")


def question(number: int, length: int = 30) -> list[int]:
    return [*(43 + (37 * number + 11 * i) % 200 for i in range(length)), 39]


@dataclass
class Chat:
    """A conversation with a model that thinks: what it thought is left out of the next prompt."""

    engine: Engine
    marks: bool = True
    turns: list[tuple[list[int], list[int]]] = field(default_factory=list)

    def request(self, asked: list[int], **options: Any) -> Request:
        ids, ends = [1, 77, 78], []
        for before, answer in self.turns:
            ids += before
            ends.append(len(ids) - 1)
            ids += [*ANSWERS, *answer[LENGTH // 2 :], 39]
        ids += asked
        ends.append(len(ids) - 1)
        options = {"sampling": SAMPLING, "max_tokens": LENGTH, "ignore_eos": True, **options}
        return Request([*ids, *THINKS], anchors=tuple(ends) if self.marks else (), **options)

    def ask(self, asked: list[int], **options: Any) -> Finished:
        last = self.peek(asked, **options)
        self.turns.append((asked, list(last.token_ids)))
        return last

    def peek(self, asked: list[int], **options: Any) -> Finished:
        """An answer that does not become a part of the conversation."""
        last = list(self.engine.generate(self.request(asked, **options)))[-1]
        assert isinstance(last, Finished)
        return last

    def anchor(self, number: int) -> int:
        """Where the question of a turn ended."""
        return Chat(self.engine, turns=self.turns[:number]).request(self.turns[number][0]).anchors[-1]


@pytest.fixture
def engine_of(bench: Bench) -> Callable[..., Engine]:
    def make(draft: str = "none", n_draft: int = 4, **options: Any) -> Engine:
        path = tiny(bench)
        if draft.endswith("mtp"):
            engine = Made(bench, path, n_draft, **options).engine
            if draft.startswith("chain"):
                assert engine.drafter is not None
                engine.drafter = ChainDrafter(engine.drafter)
            return engine
        plain = bench.file("qwen35")
        other: Path | str | None = {"none": None, "lookup": "lookup"}.get(draft)
        if draft.endswith("model"):
            other = path
        elif draft == "wrong":
            other = plain
        return bench.engine(
            path, other, n_draft, chain=draft.startswith("chain"), snapshots=n_draft, **options
        )

    return make


def fresh(engine: Engine, request: Request) -> tuple[int, ...]:
    """The answer of an engine that reads the whole prompt."""
    engine.clear()
    last = list(engine.generate(request))[-1]
    assert isinstance(last, Finished)
    assert last.stats.reused_tokens == 0
    return last.token_ids


# --------------------------------------------------------------- what is reused


@pytest.mark.parametrize("draft", DRAFTS)
def test_a_turn_reads_on_from_the_question_before(engine_of: Callable[..., Engine], draft: str) -> None:
    """Six turns: each text is that of a fresh engine, and of one without copies; only the last answer is read again."""
    chat = Chat(engine_of(draft))
    without = Chat(engine_of(draft, checkpoint_bytes=0))
    plain = engine_of()
    for turn in range(6):
        expected = fresh(plain, chat.request(question(turn)))
        answer, other = chat.ask(question(turn)), without.ask(question(turn))
        assert answer.token_ids == other.token_ids == expected
        assert answer.stats.reused_tokens == (chat.anchor(turn - 1) if turn else 0)
        assert other.stats.reused_tokens == 0
        assert answer.draft.state == ("off" if draft == "none" else "on")
        if draft not in ("none", "lookup"):
            assert answer.stats.drafted > LENGTH // 2
            assert answer.stats.per_position == other.stats.per_position  # the drafter knows as much


def test_the_same_answer_again_and_another_one(engine_of: Callable[..., Engine]) -> None:
    options: dict[str, Any] = {"kv_type": "q8_0"}
    chat = Chat(engine_of("mtp", **options))
    for turn in range(3):
        chat.ask(question(turn))
    asked, first = chat.turns.pop()
    again = chat.peek(asked)
    assert list(again.token_ids) == first
    another = chat.peek(asked, sampling=Sampling(temperature=0.8, seed=4))
    assert list(another.token_ids) != first
    edited = chat.peek(question(9))
    assert edited.token_ids == fresh(engine_of(**options), chat.request(question(9)))
    chat.turns.append((asked, first))
    assert again.stats.reused_tokens == another.stats.reused_tokens == chat.anchor(2)
    assert edited.stats.reused_tokens == chat.anchor(1)


def test_an_edit_further_back_than_any_copy_reads_everything(engine_of: Callable[..., Engine]) -> None:
    chat = Chat(engine_of())
    for turn in range(8):
        chat.ask(question(turn, 12))
    places = chat.engine.context.checkpoints.places
    assert places == tuple(chat.anchor(turn) for turn in (4, 5, 6, 7))
    del chat.turns[2:]
    edited = chat.peek(question(9))
    assert edited.stats.reused_tokens == 0
    assert edited.token_ids == fresh(engine_of(), chat.request(question(9)))
    assert max(chat.engine.context.checkpoints.places) == len(chat.request(question(9)).prompt) - 4


def test_a_long_conversation_that_is_read_at_once_is_copied_at_its_last_questions(
    engine_of: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = Chat(engine_of())
    for turn in range(6):
        chat.turns.append((question(turn, 9), question(turn + 50, LENGTH - 1)))
    taken: list[int] = []
    take = chat.engine.context.checkpoints.take
    monkeypatch.setattr(
        chat.engine.context.checkpoints, "take", lambda length: (taken.append(length), take(length))
    )
    chat.ask(question(6))
    assert taken == [chat.anchor(turn) for turn in (3, 4, 5, 6)]
    assert chat.ask(question(7)).stats.reused_tokens == chat.anchor(6)


def test_a_hybrid_draft_reads_no_more_than_the_target(engine_of: Callable[..., Engine]) -> None:
    chat = Chat(engine_of("model"))
    drafter: Any = chat.engine.drafter
    for turn in range(4):
        before = drafter._context.evaluated
        chat.ask(question(turn))
        fed = drafter._context.evaluated - before
        new = len(chat.engine.ids) - (chat.anchor(turn - 1) if turn else 0)
        assert fed <= new + 5 * LENGTH  # what it drafted comes on top


def test_without_questions_nothing_is_copied(engine_of: Callable[..., Engine]) -> None:
    chat = Chat(engine_of(), marks=False)
    for turn in range(3):
        chat.ask(question(turn))
    assert chat.engine.context.checkpoints.places == ()


@pytest.mark.parametrize("kept", [0, 3])
@pytest.mark.parametrize("block", ["token", "hidden"])
def test_a_perfect_block_stays_perfect(bench: Bench, block: str, kept: int) -> None:
    """Whatever the block has of a conversation of which the target reads a part again."""
    made = Made(bench, script(bench, block), 4, kept=kept)
    chat, drafted = Chat(made.engine), 0
    for turn in range(12):
        made.engine.draft_on = turn % 5 != 3
        again = turn % 4 == 2
        asked = chat.turns.pop()[0] if again else question(turn, 9)
        answer = chat.ask(asked)
        assert answer.token_ids == tuple(FIRST_NAMED + (1 + i) % 24 for i in range(LENGTH))
        assert answer.stats.acceptance_rate in (1.0, None)
        drafted += answer.stats.drafted
        assert answer.stats.reused_tokens == (chat.anchor(len(chat.turns) - 1 - (not again)) if turn else 0)
    assert drafted > 9 * LENGTH // 2


def test_the_cache_of_the_block_is_that_of_a_fresh_one(bench: Bench) -> None:
    path = tiny(bench)
    made, other = Made(bench, path, 3, kept=9), Made(bench, path, 3)
    chat = Chat(made.engine)
    for turn in range(5):
        asked = question(turn)
        if turn == 3:
            asked, _ = chat.turns.pop()  # another answer
        answer = chat.ask(asked)
        assert answer.stats.reused_tokens == (chat.anchor(len(chat.turns) - 1 - (turn != 3)) if turn else 0)
        assert_block_is_right(made, made.engine.ids, other)


@pytest.mark.parametrize("arch", ["llama", "gemma3"])
def test_a_cache_that_can_be_cut_is_neither_copied_nor_split(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, arch: str
) -> None:
    """A window's cells all stay (`swa_full`), so such a cache goes back anywhere, and pays nothing."""
    chats = [Chat(bench.engine(bench.file(arch)), marks=marks) for marks in (True, False)]
    monkeypatch.delattr(llama_cpp, "llama_state_seq_get_size_ext")
    batches: dict[Context, list[int]] = {chat.engine.context: [] for chat in chats}
    decode = Context.decode

    def note(context: Context, ids: Sequence[int], *rest: Any) -> None:
        batches[context].append(len(ids))
        decode(context, ids, *rest)

    monkeypatch.setattr(Context, "decode", note)
    for turn in range(3):
        marked, unmarked = (chat.ask(question(turn, 40)) for chat in chats)
        assert marked.token_ids == unmarked.token_ids
        if turn:  # as far as the two prompts agree: the old answer's opening too
            assert marked.stats.reused_tokens == chats[0].anchor(turn - 1) + 1 + 2
    marked_sizes, unmarked_sizes = batches.values()
    assert marked_sizes == unmarked_sizes


@pytest.mark.parametrize("arch", ["mamba", "qwen3next", "lfm2"])
def test_other_states_are_copied_too(bench: Bench, arch: str) -> None:
    path = bench.folder / f"{arch}-draft.gguf"
    if not path.exists():
        getattr(gguf_files, f"random_{arch}")(path)
    chat, plain = Chat(bench.engine(path)), bench.engine(path)
    for turn in range(4):
        expected = fresh(plain, chat.request(question(turn)))
        answer = chat.ask(question(turn))
        assert answer.token_ids == expected
        assert answer.stats.reused_tokens == (chat.anchor(turn - 1) if turn else 0)


@pytest.mark.parametrize("chunk", [8, 32, 64])
@pytest.mark.parametrize("n_batch", [18, 512])
def test_chunks_do_not_depend_on_what_is_reused(
    engine_of: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch, chunk: int, n_batch: int
) -> None:
    """The batches behind an anchor are the same, whether the conversation was read at once or turn by turn."""
    engine, plain = engine_of(n_batch=n_batch), engine_of(n_batch=n_batch)
    engine.context.chunk = plain.context.chunk = chunk
    batches: dict[Context, dict[int, int]] = {engine.context: {}, plain.context: {}}
    decode = Context.decode

    def note(context: Context, ids: Sequence[int], *rest: Any) -> None:
        batches[context][context.length] = len(ids)
        decode(context, ids, *rest)

    chat = Chat(engine)
    for turn in range(4):
        request = chat.request(question(turn, 45))
        monkeypatch.setattr(Context, "decode", note)
        answer = chat.ask(question(turn, 45))
        assert fresh(plain, request) == answer.token_ids
        monkeypatch.undo()
    assert batches[engine.context] == batches[plain.context]


# ------------------------------------------------------------ limits and faults


def test_memory_is_bounded(engine_of: Callable[..., Engine]) -> None:
    engine = engine_of()
    one = engine_of()
    Chat(one).ask(question(0))
    size = one.context.checkpoints.size_bytes
    for budget, copies in ((size - 1, 0), (size, 1), (2 * size + 1, 2), (100 * size, 4)):
        engine = engine_of(checkpoint_bytes=budget)
        chat = Chat(engine)
        for turn in range(6):
            answer = chat.ask(question(turn, 9))
            kept = engine.context.checkpoints
            assert kept.size_bytes <= budget
            assert len(kept.places) == min(copies, turn + 1)
        assert (answer.stats.reused_tokens > 0) == (copies > 0)


def test_clear_and_close_drop_the_copies(engine_of: Callable[..., Engine]) -> None:
    engine = engine_of("model")
    drafter: Any = engine.drafter
    contexts = [engine.context, drafter._context]
    for end in (engine.clear, lambda: [context.close() for context in contexts]):
        Chat(engine).ask(question(0))
        assert [len(context.checkpoints.places) for context in contexts] == [1, 1]
        end()
        assert [context.checkpoints.size_bytes for context in contexts] == [0, 0]


@pytest.mark.parametrize("fault", ["get_size", "get_data", "set_data", "memory", "removal"])
@pytest.mark.parametrize("draft", ["none", "model", "chain-mtp"])
def test_a_failed_copy_costs_time_only(
    engine_of: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch, draft: str, fault: str
) -> None:
    chat, plain = Chat(engine_of(draft)), engine_of()
    expected, bare = [], Chat(plain)
    for turn in range(4):
        expected.append(fresh(plain, bare.request(question(turn))))
        bare.turns.append((question(turn), list(expected[-1])))

    def no_memory(*_: Any) -> None:
        raise MemoryError

    def unremovable(memory: Any, sequence: int, start: int, end: int) -> bool:
        return start <= 0 and remove(memory, sequence, start, end)

    def half(context: Any, data: Any, size: int, *rest: int) -> int:
        read: int = put_back(context, data, size // 2, *rest)  # llama.cpp drops the state that it has
        return read

    remove, put_back = llama_cpp.llama_memory_seq_rm, llama_cpp.llama_state_seq_set_data_ext
    for turn in range(4):
        if turn == 2:
            if fault == "memory":
                monkeypatch.setattr("localspec.llama.checkpoints.np.empty", no_memory)
            elif fault == "removal":
                monkeypatch.setattr(llama_cpp, "llama_memory_seq_rm", unremovable)
            elif fault == "set_data":
                monkeypatch.setattr(llama_cpp, "llama_state_seq_set_data_ext", half)
            else:
                monkeypatch.setattr(llama_cpp, f"llama_state_seq_{fault}_ext", lambda *_: 0)
        answer = chat.ask(question(turn))
        monkeypatch.undo()
        assert answer.token_ids == expected[turn]
        if turn == 2:
            found = fault in ("get_size", "get_data", "memory")  # the copies of before are there
            assert answer.stats.reused_tokens == (chat.anchor(1) if found else 0)
    if fault != "removal":  # with it every rejected draft, the last one too, costs the whole cache
        assert answer.stats.reused_tokens == (chat.anchor(1) if found else chat.anchor(2))


def test_a_failed_evaluation_goes_back_to_a_copy(
    engine_of: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = Chat(engine_of())
    chat.ask(question(0))
    monkeypatch.setattr(llama_cpp, "llama_decode", lambda *_: -3)
    with pytest.raises(DecodeError):
        chat.peek(question(1))
    monkeypatch.undo()
    assert chat.engine.context.length == chat.anchor(0)
    answer = chat.peek(question(1))
    assert answer.stats.reused_tokens == chat.anchor(0)
    assert answer.token_ids == fresh(engine_of(), chat.request(question(1)))


@pytest.mark.parametrize("draft", ["none", "chain-mtp", "model"])
@pytest.mark.parametrize("where", ["target", "draft"])
def test_a_stop_inside_an_evaluation_goes_back_to_a_copy(
    engine_of: Callable[..., Engine], draft: str, where: str
) -> None:
    chat = Chat(engine_of(draft))
    chat.ask(question(0))
    expected = fresh(engine_of(), chat.request(question(1)))
    asked = stop_at = 0

    def wanted() -> bool:
        nonlocal asked
        asked += 1
        return asked == stop_at

    drafter: Any = chat.engine.drafter
    contexts = {"target": chat.engine.context, "draft": getattr(drafter, "_context", chat.engine.context)}
    contexts[where].stop_when(wanted)
    stop_at = 20
    stopped = chat.peek(question(1))
    again = chat.peek(question(1))
    assert again.token_ids == expected
    asked_again = len(chat.request(question(1)).prompt) - len(THINKS) - 1
    if where == "target":
        assert stopped.token_ids == ()
        assert again.stats.reused_tokens == chat.anchor(0)
    questions = asked - 20
    for share in (0.01, 0.1, 0.3, 0.5, 0.7, 0.9):
        asked, stop_at = 0, int(questions * share)
        stopped = chat.peek(question(1))
        assert stopped.token_ids == expected[: len(stopped.token_ids)]
        stop_at = 0
        again = chat.peek(question(1))
        assert again.token_ids == expected
        assert again.stats.reused_tokens >= asked_again


def test_no_room_for_an_answer(engine_of: Callable[..., Engine]) -> None:
    """At the end of the context, and when a turn less goes on from there."""
    for draft in ("none", "chain-mtp", "model"):
        chat, plain = Chat(engine_of(draft, n_ctx=256)), engine_of(n_ctx=256)
        for turn in range(3):
            request = chat.request(question(turn), max_tokens=0)
            expected = fresh(plain, request)
            answer = chat.ask(question(turn), max_tokens=0)
            assert answer.token_ids == expected
            assert answer.reason == "context"
            assert answer.stats.reused_tokens == (chat.anchor(turn - 1) if turn else 0)
            chat.turns[-1] = (chat.turns[-1][0], chat.turns[-1][1][:LENGTH])


@pytest.mark.parametrize("draft", DRAFTS)
def test_any_moves(engine_of: Callable[..., Engine], draft: str) -> None:
    """Turns, edits, other answers, stops in the prompt and in the answer, toggles, clears: always the plain text."""
    chat, plain = Chat(engine_of(draft)), engine_of()
    rng = random.Random(11)
    saved = 0
    for move in range(40):
        if rng.random() < 0.3:
            del chat.turns[max(len(chat.turns) - rng.randrange(1, 4), 0) :]
        if rng.random() < 0.05 or len(chat.turns) > 7:
            chat.engine.clear()
            chat.turns.clear()
        if rng.random() < 0.2:
            chat.engine.draft_on = not chat.engine.draft_on
        asked = question(rng.randrange(30), rng.randrange(1, 30))
        sampling = Sampling(temperature=rng.choice([0.0, 0.9]), seed=rng.randrange(5))
        request = chat.request(asked, sampling=sampling)
        chat.engine.context.chunk = plain.context.chunk = 16
        expected = fresh(plain, request)
        if rng.random() < 0.4:
            last = interrupted(chat.engine, request, rng.randrange(12), lambda _count: None)
            assert last.token_ids == expected[: len(last.token_ids)], move
        if rng.random() < 0.7:
            answer = chat.ask(asked, sampling=sampling)
            assert answer.token_ids == expected, move
            saved += answer.stats.reused_tokens
            places = chat.engine.context.checkpoints.places
            assert set(places) <= set(request.anchors)
            assert "failed" not in answer.draft.reason
    assert saved > 500


def test_a_conversation_without_thinking_is_reused_whole(engine_of: Callable[..., Engine]) -> None:
    """Where the next prompt goes on from all that is cached, no copy is put back."""
    engine = engine_of("mtp")
    ids = [1, *question(0)]
    first = finish(engine, ids, sampling=SAMPLING, max_tokens=LENGTH, ignore_eos=True)
    ids += [*first.token_ids, *question(1)]
    request = Request(ids, SAMPLING, max_tokens=4, ignore_eos=True, anchors=(30, len(ids) - 1))
    last = list(engine.generate(request))[-1]
    assert isinstance(last, Finished)
    assert last.stats.reused_tokens == len(ids) - len(question(1)) - 1
