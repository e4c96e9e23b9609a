"""A conversation: what is kept, what is sent, what happens when answers break off."""

from __future__ import annotations

import json
import stat
import subprocess
import sys

import pytest

from localspec.chat.session import Session
from localspec.chat.store import ConversationStore
from localspec.chat.turn import Turn
from localspec.errors import ContextFullError, DecodeError, UsageError, WorkerDiedError
from localspec.spec.events import DraftStatus, Finished, Piece, PromptProgress, Round, Sampling
from localspec.spec.stats import Stats

OFF = DraftStatus("off", "no draft was asked for")


class Engine:
    """Answers each request by upper-casing the last message, one token a word."""

    def __init__(self):
        self.commands = []
        self.cleared = 0
        self.closed = 0
        self.error = None
        self.error_after = 0
        self.reason = "stop"

    def generate(self, command):
        self.commands.append(command)
        return self._stream(command)

    def _stream(self, command):
        try:
            yield PromptProgress(3, 3, 0)
            pieces = []
            for i, word in enumerate(command.messages[-1].content.upper().split()):
                if self.error is not None and i == self.error_after:
                    raise self.error
                pieces.append(Piece(100 + i, word + " ", False, thinking=word.startswith("?")))
                yield Round((pieces[-1],), Stats(completion_tokens=i + 1), OFF, 5, 100)
            if self.error is not None:
                raise self.error
            yield Finished(
                self.reason,
                "".join(p.text for p in pieces if not p.thinking),
                "".join(p.text for p in pieces if p.thinking),
                tuple(p.token_id for p in pieces),
                Stats(completion_tokens=len(pieces)),
                OFF,
                5,
                100,
            )
        finally:
            self.closed += 1

    def clear(self):
        self.cleared += 1


@pytest.fixture
def engine():
    return Engine()


@pytest.fixture
def store(tmp_path):
    return ConversationStore(tmp_path / "conversations")


def said(session):
    return [(turn.role, turn.content, turn.reason) for turn in session.messages]


def test_answers_carry_their_ids_into_the_next_request(engine):
    session = Session(engine, system="Be brief.", seed=7)
    list(session.ask("?hm hello you"))
    list(session.ask("bye"))
    sent = engine.commands[1].messages
    assert [(m.role, m.content, m.token_ids, m.thinking) for m in sent] == [
        ("system", "Be brief.", (), ""),
        ("user", "?hm hello you", (), ""),
        ("assistant", "HELLO YOU ", (100, 101, 102), "?HM "),
        ("user", "bye", (), ""),
    ]
    assert [c.sampling.seed for c in engine.commands] == [7, 7]
    assert session.title == "?hm hello you"


def test_settings_reach_the_request(engine):
    session = Session(engine, sampling=Sampling(temperature=0.1), max_tokens=9, think=False)
    list(session.ask("a"))
    session.sampling = Sampling(temperature=1.5, seed=3)
    session.max_tokens = 4
    session.think = True
    session.set_system("New.")
    list(session.ask("b"))
    first, second = engine.commands
    assert (first.sampling.temperature, first.max_tokens, first.think) == (0.1, 9, False)
    assert (second.sampling.temperature, second.sampling.seed) == (1.5, 3)
    assert (second.max_tokens, second.think, second.messages[0].content) == (4, True, "New.")


def test_a_message_counts_before_its_answer_starts(engine, store):
    session = Session(engine, store=store)
    stream = session.ask("hello")
    assert said(session) == [("user", "hello", "")]
    assert store.newest().records[-1]["content"] == "hello"
    assert len(engine.commands) == 1
    assert not session.running
    next(stream)
    assert session.running
    with pytest.raises(UsageError, match="being made"):
        session.ask("again")
    list(stream)
    assert not session.running


@pytest.mark.parametrize(
    ("error", "reason"), [(WorkerDiedError("gone"), "died"), (DecodeError("no"), "failed")]
)
def test_what_arrived_is_kept_when_the_answer_breaks_off(engine, store, error, reason):
    session = Session(engine, store=store)
    engine.error, engine.error_after = error, 2
    with pytest.raises(type(error)):
        list(session.ask("one two three"))
    assert said(session) == [("user", "one two three", ""), ("assistant", "ONE TWO ", reason)]
    assert session.messages[-1].unfinished
    assert session.messages[-1].token_ids == (100, 101)
    engine.error = None
    list(session.ask("more"))
    assert [m.content for m in engine.commands[-1].messages] == ["one two three", "ONE TWO ", "more"]
    assert [r["content"] for r in store.newest().records[1:]] == [
        "one two three",
        "ONE TWO ",
        "more",
        "MORE ",
    ]


def test_without_a_first_token_the_message_waits_for_a_retry(engine):
    session = Session(engine, seed=5)
    engine.error = WorkerDiedError("gone")
    with pytest.raises(WorkerDiedError):
        list(session.ask("hello"))
    assert session.unanswered
    engine.error = None
    list(session.retry())
    assert said(session) == [("user", "hello", ""), ("assistant", "HELLO ", "stop")]
    assert [c.sampling.seed for c in engine.commands] == [5, 5]
    with pytest.raises(UsageError):
        session.retry()


def test_a_dropped_stream_is_closed_and_keeps_its_text(engine):
    session = Session(engine)
    stream = session.ask("one two three")
    for event in stream:
        if isinstance(event, Round):
            break
    stream.close()
    assert engine.closed == 1
    assert said(session) == [("user", "one two three", ""), ("assistant", "ONE ", "cancelled")]


@pytest.mark.parametrize("reason", ["length", "context", "cancelled"])
def test_other_ends_are_marked(engine, reason):
    session = Session(engine)
    engine.reason = reason
    list(session.ask("hi"))
    assert session.messages[-1].reason == reason
    assert session.messages[-1].unfinished


def test_an_answer_cancelled_before_its_first_token_is_none(engine):
    session = Session(engine)
    engine.reason = "cancelled"
    list(session.ask("   "))
    assert said(session) == [("user", "   ", "")]


def test_regenerate_takes_the_next_seed(engine, store):
    session = Session(engine, seed=10, store=store)
    list(session.ask("hello"))
    list(session.regenerate())
    list(session.regenerate())
    assert [c.sampling.seed for c in engine.commands] == [10, 11, 12]
    assert [len(c.messages) for c in engine.commands] == [1, 1, 1]
    assert said(session) == [("user", "hello", ""), ("assistant", "HELLO ", "stop")]
    again = Session(engine)
    again.resume(store.newest())
    assert again.messages == session.messages
    assert again.messages[-1].seed == 12
    assert again.seed == 12


def test_undo_gives_the_text_back(engine, store):
    session = Session(engine, store=store)
    list(session.ask("first"))
    list(session.ask("second"))
    assert session.undo() == "second"
    assert [t.content for t in session.messages] == ["first", "FIRST "]
    engine.error = ContextFullError("full")
    with pytest.raises(ContextFullError):
        list(session.ask("too long"))
    assert session.undo() == "too long"
    assert session.undo() == "first"
    assert session.undo() == ""
    again = Session(engine)
    again.resume(store.newest())
    assert again.messages == ()


def test_a_full_context_drops_the_oldest_turns_but_not_the_system(engine, store):
    session = Session(engine, system="S", store=store)
    for word in ("a", "b"):
        list(session.ask(word))
    engine.error = ContextFullError("full")
    with pytest.raises(ContextFullError):
        list(session.ask("c"))
    assert [t.content for t in session.drop_oldest()] == ["a", "A "]
    engine.error = None
    list(session.retry())
    assert [m.content for m in engine.commands[-1].messages] == ["S", "b", "B ", "c"]
    assert [t.content for t in session.drop_oldest()] == ["b", "B "]
    assert session.drop_oldest() == ()
    again = Session(engine)
    again.resume(store.newest())
    assert again.messages == session.messages
    assert "a" in store.newest().path.read_text()


def test_clear_begins_another_conversation(engine, store):
    session = Session(engine, store=store)
    first = session.seed
    list(session.ask("a"))
    session.clear()
    assert engine.cleared == 1
    assert session.messages == ()
    assert session.seed != first
    list(session.ask("b"))
    assert len(store.list()) == 2
    fixed = Session(engine, seed=4)
    fixed.clear()
    assert fixed.seed == 4
    fixed.sampling = Sampling(seed=99)
    fixed.clear()
    assert fixed.seed == 99


def test_ids_of_another_target_are_not_taken_over(engine, store):
    """They name other tokens there, or none at all."""
    first = Session(engine, store=store, about={"target": "one.gguf"})
    list(first.ask("a"))
    assert first.messages[-1].token_ids
    other = Session(engine, store=store, about={"target": "two.gguf"})
    other.resume(store.newest())
    list(other.ask("b"))
    ids = [bool(turn.token_ids) for turn in other.messages if turn.role == "assistant"]
    assert ids == [False, True]
    back = Session(engine, store=store, about={"target": "one.gguf"})
    back.resume(store.newest())
    assert [bool(turn.token_ids) for turn in back.messages if turn.role == "assistant"] == [True, False]
    assert [turn.content for turn in back.messages] == ["a", "A ", "b", "B "]


def test_resume_goes_on_in_the_same_file(engine, store):
    session = Session(engine, system="S", store=store, about={"target": "t.gguf"})
    list(session.ask("a"))
    session.set_system("T")
    again = Session(engine, store=store)
    again.resume(store.newest())
    assert again.system == "T"
    list(again.ask("b"))
    assert [m.content for m in engine.commands[-1].messages] == ["T", "a", "A ", "b"]
    assert len(store.list()) == 1
    assert store.newest().head["target"] == "t.gguf"


# ------------------------------------------------------------------ the disk


def test_a_disk_that_cannot_be_written_is_told_once(engine, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    session = Session(engine, store=ConversationStore(blocked / "conversations"))
    list(session.ask("a"))
    (notice,) = session.take_notices()
    assert notice.startswith("The conversation cannot be stored (")
    list(session.ask("b"))
    assert session.take_notices() == ()
    assert [t.content for t in session.messages] == ["a", "A ", "b", "B "]


def test_a_full_disk_in_the_middle(engine, store, monkeypatch):
    session = Session(engine, store=store)
    list(session.ask("a"))

    def full(descriptor):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", full)
        list(session.ask("b"))
        assert session.take_notices() == (
            "The conversation cannot be stored (No space left on device); it goes on without.",
        )
        fresh = Session(engine, store=store)
        list(fresh.ask("x"))
        assert len(list(store.folder.glob("*.jsonl"))) == 1  # none that is empty
    assert [r.get("content") for r in store.newest().records[1:]] == ["a", "A "]
    list(session.ask("c"))  # there is room again
    assert session.take_notices() == ("The conversation is stored again, all of it.",)
    contents = [r.get("content") for r in store.newest().records[1:]]
    assert contents == ["a", "A ", "b", "B ", "c", "C "]


def test_torn_and_foreign_lines_are_skipped(engine, store):
    session = Session(engine, store=store)
    list(session.ask("a"))
    file = store.newest().path
    whole = file.read_bytes()
    file.write_bytes(whole + b'{"type":"message","role":"us')
    again = Session(engine, store=store)
    again.resume(store.newest())
    assert [t.content for t in again.messages] == ["a", "A "]
    list(again.ask("b"))
    assert [r.get("content") for r in store.newest().records[1:]] == ["a", "A ", "b", "B "]
    (store.folder / "other.jsonl").write_text("[1, 2]\nnot json\n" + "[" * 100_000 + "\n{}\n")
    (store.folder / "empty.jsonl").write_text("")
    assert len(store.list()) == 1


def test_a_damaged_head_does_not_take_the_messages_along(engine, store):
    session = Session(engine, store=store, system="S")
    list(session.ask("a"))
    session.keep_typed("t")
    file = store.newest().path
    file.write_bytes(b"\x00\xff" * 40 + file.read_bytes()[30:])
    again = Session(engine, store=store)
    again.resume(store.newest())
    assert [t.content for t in again.messages] == ["a", "A "]
    assert again.typed == "t"
    list(again.ask("b"))
    last = Session(engine)
    last.resume(store.newest())
    assert [t.content for t in last.messages] == ["a", "A ", "b", "B "]


@pytest.mark.parametrize(
    "line",
    [
        {"type": "message", "role": "robot", "content": "x"},
        {"type": "message"},
        {"type": "drop", "count": "x"},
        {},
    ],
)
def test_a_damaged_record_does_not_stop_a_resume(engine, store, line):
    session = Session(engine, store=store)
    list(session.ask("a"))
    with store.newest().path.open("a") as file:
        file.write(json.dumps(line) + "\n")
    again = Session(engine)
    again.resume(store.newest())
    assert [t.content for t in again.messages] == ["a", "A "]


def test_files_are_private_and_newest_first(engine, store):
    for word in ("one", "two [/red] \x1b[31m", "three"):
        session = Session(engine, store=store, seed=1)
        list(session.ask(word))
    summaries = store.list()
    assert len(summaries) == 3
    assert {s.title for s in summaries} == {"one", "two [/red] \x1b[31m", "three"}
    assert [s.messages for s in summaries] == [2, 2, 2]
    assert stat.S_IMODE(summaries[0].path.stat().st_mode) == 0o600
    assert [s.changed for s in summaries] == sorted((s.changed for s in summaries), reverse=True)


def test_any_text_survives_the_store(engine, store):
    text = "emoji 👨‍👩‍👧 \u2028 lone \udce9 nul \x00 end"
    session = Session(engine, store=store)
    list(session.ask(text))
    again = Session(engine)
    again.resume(store.newest())
    assert again.messages[0] == Turn("user", text)


def test_nothing_is_stored_before_something_is_said(engine, store):
    session = Session(engine, store=store)
    session.set_system("x")
    session.clear()
    assert store.list() == []
    assert store.newest() is None


# ---------------------------------------------------------- what was not sent


def test_unsent_text_is_kept_until_it_is_sent(engine, store):
    session = Session(engine, store=store)
    session.keep_typed(" \n ")
    assert store.newest() is None
    list(session.ask("a"))
    session.keep_typed("half a\nthought")
    session.keep_typed("half a\nthought")
    assert [r["type"] for r in store.newest().records].count("typed") == 1
    again = Session(engine, store=store)
    again.resume(store.newest())
    assert again.typed == "half a\nthought"
    assert [t.content for t in again.messages] == ["a", "A "]
    list(again.ask("half a\nthought, sent"))
    assert again.typed == ""
    last = Session(engine, store=store)
    last.resume(store.newest())
    assert last.typed == ""
    last.keep_typed("more")
    last.keep_typed("")  # it was deleted again
    last.resume(store.newest())
    assert last.typed == ""


# --------------------------------------------------------- another one has it


def test_a_conversation_of_a_newer_version_is_copied(engine, store):
    session = Session(engine, store=store)
    list(session.ask("a"))
    file = store.newest().path
    newer = file.read_text().replace('"version":1', '"version":2') + '{"type":"picture","content":[1]}\n'
    file.write_text(newer)
    again = Session(engine, store=store)
    again.resume(store.newest())
    assert [t.content for t in again.messages] == ["a", "A "]
    assert again.take_notices()[0].startswith("A newer localspec wrote this conversation")
    list(again.ask("b"))
    assert file.read_text() == newer
    copy = next(one for one in store.list() if one.path != file)
    assert copy.messages == 4
    last = Session(engine, store=store)
    last.resume(store.load(copy.path))
    assert said(last) == said(again)


def test_two_chats_do_not_write_into_one_file(engine, store):
    pytest.importorskip("fcntl", reason="this system has no locks of this kind")
    list(Session(engine, store=store).ask("a"))
    hold = (
        "import sys; from pathlib import Path; from localspec.chat.store import ConversationStore\n"
        "mine = ConversationStore(Path(sys.argv[1])).newest(); print(mine.claim(), flush=True); sys.stdin.read()"
    )
    # The lock of this process's own session goes with the file that it has open.
    fresh = ConversationStore(store.folder)
    file = fresh.newest().path
    file.with_suffix(".lock").unlink()
    with subprocess.Popen(
        [sys.executable, "-c", hold, str(store.folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout.readline().strip() == b"True"
        before = file.read_bytes()
        second = Session(engine, store=fresh)
        second.resume(fresh.newest())
        assert second.take_notices()[0].startswith("Another chat has this open")
        list(second.ask("b"))
        assert file.read_bytes() == before
        assert [t.content for t in second.messages] == ["a", "A ", "b", "B "]
        other.stdin.close()
    third = Session(engine, store=fresh)
    third.resume(fresh.load(file))
    assert third.take_notices() == ()


def test_a_template_is_told_one_time_throughout_a_conversation(engine, monkeypatch):
    """A time that goes on would change the beginning of the prompt, and with it all that the caches hold."""
    clock = iter(range(100, 200))
    monkeypatch.setattr("localspec.chat.session.time.time", lambda: next(clock))
    session = Session(engine)
    list(session.ask("a"))
    list(session.ask("b"))
    session.clear()
    list(session.ask("c"))
    first, second, third = (command.now for command in engine.commands)
    assert first == second
    assert third > first
