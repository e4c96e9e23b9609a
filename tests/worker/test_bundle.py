"""Which events go up together: by a clock of the test's, with the engine's own host, through the real pipe."""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from localspec.errors import DecodeError, WorkerDiedError
from localspec.memory import hardware
from localspec.spec.events import DraftStatus, Finished, Piece, PromptProgress, Round, Sampling
from localspec.spec.stats import Stats
from localspec.worker import bundle, host
from localspec.worker.bundle import Bundle
from localspec.worker.process import Worker
from localspec.worker.protocol import (
    Command,
    Configure,
    DraftChanged,
    DraftSpec,
    Failed,
    Generate,
    Load,
    MemoryUse,
    Message,
    Notice,
    Shutdown,
)
from tests import gguf_files

HELLO = Generate(0, messages=(Message("user", "Hello there"),))
When = Callable[["Pipe"], bool]


class Pipe:
    """The child's end of a pipe. The other end is a script: commands, each with the moment at which it comes."""

    def __init__(self, *script: tuple[When, Command]) -> None:
        self.messages: list[list[tuple[int, Any]]] = []
        self._script = deque(script)
        self._request = 0

    def send(self, message: list[tuple[int, Any]]) -> None:
        self.messages.append(list(message))

    def poll(self) -> bool:
        return bool(self._script) and self._script[0][0](self)

    def recv(self) -> tuple[int, Command]:
        assert self.poll(), "the child waits for what never comes"
        self._request += 1
        return self._request, self._script.popleft()[1]

    @property
    def events(self) -> list[Any]:
        return [event for message in self.messages for _, event in message]

    @property
    def rounds(self) -> list[Round]:
        return [event for event in self.events if isinstance(event, Round)]

    @property
    def finished(self) -> list[Finished]:
        return [event for event in self.events if isinstance(event, Finished)]


def a_round(number: int) -> Round:
    return Round((Piece(number, "x", False),), Stats(), DraftStatus("off"), number, 100)


def told(steps: list[tuple[float, Any]]) -> list[list[Any]]:
    """The messages that come of events at these moments, in seconds."""
    now = [0.0]
    pipe = Pipe()
    events = Bundle(pipe, lambda: now[0])  # type: ignore[arg-type]  # all that it does is send
    for at, event in steps:
        now[0] = at
        went = events.send(7, event)
        assert went == bool(pipe.messages and pipe.messages[-1][-1] == (7, event))
    return [[event for _, event in message] for message in pipe.messages]


def paced(seconds: float, count: int) -> list[tuple[float, Any]]:
    return [(i * seconds, a_round(i)) for i in range(count)]


def test_quick_rounds_go_together_and_slow_ones_at_once() -> None:
    assert [len(message) for message in told(paced(0.012, 10))] == [1, 3, 3, 3]
    assert [len(message) for message in told(paced(0.02, 9))] == [1, 2, 2, 2, 2]
    for slow in (0.034, 0.2):
        assert [len(message) for message in told(paced(slow, 9))] == [1] * 9


@pytest.mark.parametrize("pace", [0.0001, 0.001, 0.004, 0.007, 0.01, 0.013, 0.02, 0.0333, 0.0334, 0.04])
def test_at_an_even_pace_nothing_waits_longer_than_said(pace: float) -> None:
    steps = paced(pace, 300)
    moments = {event.context_used: at for at, event in steps}
    for message in told(steps):
        assert moments[message[-1].context_used] - moments[message[0].context_used] < bundle.HOLD_S + 1e-9


def test_order_is_kept_and_what_is_no_round_waits_for_nothing() -> None:
    memory, prompt, end = MemoryUse("RAM", 1, 2), PromptProgress(1, 1, 0), Notice(("x",))
    rounds = [a_round(i) for i in range(6)]
    steps = [
        (0.0, rounds[0]),
        (0.001, rounds[1]),
        (0.002, rounds[2]),
        (0.003, memory),
        (0.004, rounds[3]),
        (0.005, rounds[4]),
        (0.006, end),
        (0.007, prompt),
        (0.008, rounds[5]),
    ]
    assert told(steps) == [
        [rounds[0]],
        [rounds[1], rounds[2], memory],
        [rounds[3]],
        [rounds[4], end],
        [prompt],
        [rounds[5]],
    ]


def test_an_engine_that_becomes_slow_is_held_up_once() -> None:
    quick = paced(0.01, 7)
    slow = [(0.06 + i * 0.2, a_round(6 + i)) for i in range(1, 5)]
    messages = told(quick + slow)
    assert [event for message in messages for event in message] == [event for _, event in quick + slow]
    assert [len(message) for message in messages[-3:]] == [1, 1, 1]


# ------------------------------------------------------------------ the engine's own host


class Stop:
    """The number in shared memory, and somebody who stops everything as soon as it is so."""

    def __init__(self, when: Callable[[], bool] = lambda: False) -> None:
        self._when = when

    @property
    def value(self) -> int:
        return 99 if self._when() else -1

    @value.setter
    def value(self, number: int) -> None:
        assert number > 0


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Pipe]:
    """Runs the child's main here, on a scripted pipe."""
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(hardware, "seen_gpus", lambda: ())
    monkeypatch.setattr(host, "_MEMORY_SECONDS", math.inf)

    def run(hold_s: float, *script: tuple[When, Command], stop: Stop | None = None) -> Pipe:
        monkeypatch.setattr(bundle, "HOLD_S", hold_s)
        pipe = Pipe(*script, (lambda pipe: bool(pipe.finished), Shutdown()))
        host.serve(pipe, stop or Stop(), "engine.log")  # type: ignore[arg-type]
        return pipe

    return run


def at_once(_: Pipe) -> bool:
    return True


def after(rounds: int) -> When:
    return lambda pipe: len(pipe.rounds) >= rounds


def question(tokens: int) -> tuple[When, Command]:
    message = Message("user", "Hello")
    sampling = Sampling(temperature=0)
    return at_once, Generate(0, (message,), sampling=sampling, max_tokens=tokens, ignore_eos=True)


def test_together_and_one_by_one_the_host_tells_the_same(serve: Callable[..., Pipe], tmp_path: Path) -> None:
    load = at_once, Load(str(gguf_files.random_llama(tmp_path / "t.gguf")), n_ctx=512, threads=1)
    pipes = [serve(hold_s, load, question(60)) for hold_s in (0.0, math.inf)]
    for pipe in pipes:
        assert [event.stats.completion_tokens for event in pipe.rounds] == list(range(1, 61))
        (end,) = pipe.finished
        assert "".join(piece.text for event in pipe.rounds for piece in event.pieces) == end.text
        assert end.token_ids == pipes[0].finished[0].token_ids
    sizes = [
        [len(message) for message in pipe.messages if isinstance(message[0][1], Round)] for pipe in pipes
    ]
    assert sizes == [[1] * 60, [1, 59 + 1]]  # the first one at once, the others with the end


def test_a_stop_is_heard_while_rounds_are_held_and_brings_them_along(
    serve: Callable[..., Pipe], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Round] = []

    class Watched(Bundle):
        def send(self, request: int, event: Any) -> bool:
            made.extend([event] if isinstance(event, Round) else [])
            return super().send(request, event)

    monkeypatch.setattr(host, "Bundle", Watched)
    load = at_once, Load(str(gguf_files.random_llama(tmp_path / "t.gguf")), n_ctx=512, threads=1)
    pipe = serve(math.inf, load, question(60), stop=Stop(lambda: len(made) == 20))
    (end,) = pipe.finished
    assert end.reason == "cancelled"
    assert [event.stats.completion_tokens for event in pipe.rounds] == list(range(1, 21))
    assert len(pipe.messages[-1]) == 19 + 1  # until then they were held


def test_a_draft_is_switched_in_the_middle_of_an_answer(serve: Callable[..., Pipe], tmp_path: Path) -> None:
    target = gguf_files.random_llama(tmp_path / "target.gguf")
    draft = DraftSpec("model", str(gguf_files.perturbed(target, tmp_path / "draft.gguf")))
    load = at_once, Load(str(target), draft, n_draft=4, n_ctx=512, threads=1)
    plain = serve(0.0, (at_once, Load(str(target), n_ctx=512, threads=1)), question(120))
    pipe = serve(
        0.0,
        load,
        question(120),
        (after(5), Configure(draft_on=False)),
        (after(25), Configure(draft_on=True, n_draft=2)),
    )
    changes = [event.draft for event in pipe.events if isinstance(event, DraftChanged)]
    assert [(change.state, change.reason) for change in changes] == [("off", "switched off"), ("on", "")]
    lengths = [event.draft.n_draft for event in pipe.rounds]
    assert lengths == [4] * 5 + [0] * 20 + [2] * (len(lengths) - 25)
    assert len(lengths) > 25
    assert pipe.finished[0].token_ids == plain.finished[0].token_ids


def test_a_fault_of_the_system_in_mid_answer_costs_the_answer_only(
    serve: Callable[..., Pipe], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An OSError is the end of the process only where it is the pipe's."""

    def refuse() -> MemoryUse:
        monkeypatch.setattr(host, "_MEMORY_SECONDS", math.inf)
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(host, "memory_use", refuse)
    monkeypatch.setattr(host, "_MEMORY_SECONDS", 0.0)
    load = at_once, Load(str(gguf_files.random_llama(tmp_path / "t.gguf")), n_ctx=512, threads=1)
    pipe = serve(0.0, load, question(5), question(5))
    (failed,) = [event for event in pipe.events if isinstance(event, Failed)]
    assert "Permission denied" in failed.error.why
    assert len(pipe.finished) == 1


# ------------------------------------------------------------------ through the real pipe


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    with Worker("tests.fake_host:serve", tmp_path / "engine.log") as made:
        yield made


def load(worker: Worker, script: str) -> None:
    list(worker.load(Load(f"fake:together=1,{script}")))


def follow(seen: list[Any], worker: Worker) -> None:
    for event in worker.generate(HELLO):
        seen.append(event)


def tokens(events: list[Any]) -> list[int]:
    """The tokens that each round brought the answer to."""
    return [event.stats.completion_tokens for event in events if isinstance(event, Round)]


def test_each_round_is_an_event_of_its_own_for_who_listens(worker: Worker) -> None:
    load(worker, "n=300")
    for _ in range(2):
        events = list(worker.generate(HELLO))
        assert tokens(events) == list(range(1, 301))
        assert [type(event) for event in events[-2:]] == [MemoryUse, Finished]


def test_an_error_comes_behind_the_rounds_before_it(worker: Worker) -> None:
    load(worker, "fail=decode")
    seen: list[Any] = []
    with pytest.raises(DecodeError):
        follow(seen, worker)
    assert tokens(seen) == [1, 2]


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
def test_a_death_loses_no_more_than_what_was_held(worker: Worker) -> None:
    load(worker, "n=100,crash=decode:40,kind=kill")
    seen: list[Any] = []
    with pytest.raises(WorkerDiedError, match="while answering"):
        follow(seen, worker)
    come = tokens(seen)
    assert 1 <= len(come) < 40
    assert come == list(range(1, len(come) + 1))
