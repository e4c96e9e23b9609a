"""A child without llama.cpp: the real worker protocol, scripted answers, crashes on demand.

Use it with `Worker(host="tests.fake_host:serve")` (or `LOCALSPEC_WORKER_HOST=tests.fake_host:serve` for a
whole program) and a script of `key=value` pairs, separated by commas, in one of two places:

    Load(target="fake:tok_s=50,n=40,text=Hello there")      # the target's text
    LOCALSPEC_FAKE="tok_s=50,n=40"                          # the environment, when the target is a real path

Options (defaults in brackets):
    tok_s=0          tokens per second while answering; 0 = as fast as it goes
    jitter=0.0       each round's time varies by this share, deterministically
    n=12             tokens of the answer (the text is repeated to fill them)
    accept=0.75      share of drafted tokens that are accepted
    think=0          tokens of thinking before the answer
    load_s=0         seconds that a load takes (stoppable), in steps
    prefill_s=0      seconds that a prompt takes (stoppable), in steps
    crash=PHASE[:N]  die in `start` (before anything else), `load`, `prefill` or `decode` (before round N)
    kind=abort       how to die: abort, segv, kill, exit, raise
    once=PATH        crash only while this file does not exist; it is created before dying
    fail=WHAT        answer Failed: `load` (LoadError), `generate` (DecodeError), `template` (TemplateError),
                     `context` (ContextFullError), `decode` (DecodeError after two rounds)
    fits=N           with fail=context: only conversations with more than N messages fail
    native=PHASE:S   sleep S seconds in native code with the GIL held, in `load`, `prefill` or `decode`
    stubborn=0       1 = never look at the stop number, ignore Shutdown
    echo=            `last`: answer with the last message's text; `command`: with the request as JSON
    plain_s=0        seconds of a plain target step, as DraftStatus tells them; 0 = not known
    notes=           text of one note in Ready
    together=0       1 = send quick rounds together, as the real engine does; else each event goes at once
    noise=0          1 = write to file descriptors 1 and 2 while working (it must end in the log)
    memory=VRAM      label of MemoryUse (VRAM or RAM)
    text=...         the answer's words; comes last, since it may hold commas. `\\n` is a line break

A token is a word with the space or line break behind it. Ids count from 100. With a draft (kind `model` or
`lookup`) each round drafts n_draft tokens and accepts about `accept` of them, by a fixed pattern, so that
counters are plausible and every run is the same. Answers end with `stop`, `length` (max_tokens), `context`
(n_ctx) or `cancelled`. Each word of a message counts as one prompt token; the words of the last prompt and
answer count as reused.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import signal
import sys
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from localspec.errors import ContextFullError, DecodeError, LoadError, LocalspecError, TemplateError
from localspec.spec.events import DraftStatus, Finished, Piece, PromptProgress, Rejected, Round
from localspec.spec.stats import Stats
from localspec.worker.bundle import Bundle
from localspec.worker.protocol import (
    Clear,
    Cleared,
    Configure,
    Costs,
    DraftChanged,
    Event,
    Failed,
    Generate,
    Load,
    LoadProgress,
    MeasureCosts,
    MemoryUse,
    ModelInfo,
    Ready,
    Shutdown,
)

DEFAULT_TEXT = "The quick brown fox jumps over the lazy dog and then it takes a rest. "
DEFAULTS = {
    "tok_s": "0",
    "jitter": "0",
    "n": "12",
    "accept": "0.75",
    "think": "0",
    "load_s": "0",
    "prefill_s": "0",
    "crash": "",
    "kind": "abort",
    "once": "",
    "fail": "",
    "fits": "0",
    "native": "",
    "stubborn": "0",
    "echo": "",
    "plain_s": "0",
    "notes": "",
    "together": "0",
    "noise": "0",
    "memory": "VRAM",
    "text": DEFAULT_TEXT,
}


def parse(script: str) -> dict[str, str]:
    """Read `key=value,...`; an unknown key is a mistake of the test and ends the child."""
    options = dict(DEFAULTS)
    head, mark, text = script.partition("text=")
    if mark:
        options["text"] = text.replace("\\n", "\n")
    for pair in filter(None, head.split(",")):
        key, _, value = pair.partition("=")
        if key not in DEFAULTS:
            raise ValueError(f"fake_host has no option {key!r}")
        options[key] = value
    return options


def words(text: str) -> list[str]:
    """Tokens of the fake: words with the white space behind them; joined they are the text again."""
    return re.findall(r"\S+\s*|\s+", text)


class Leave(Exception):
    """Shutdown was asked for."""


class Fake:
    """One child: its models, its caches, its answers."""

    def __init__(self, conn: Connection, stop: Any, log_file: str) -> None:
        self.conn = conn
        self.bundle = Bundle(conn)
        self.stop = stop
        self.log_file = log_file
        self.options = parse(os.environ.get("LOCALSPEC_FAKE", ""))
        self.load_command = Load(target="")
        self.draft_on = True
        self.n_draft = 0
        self.auto = False
        self.plain_s = 0.0
        self.draft_name = ""
        self.cached = 0
        self.request = 0
        self.waiting: deque[tuple[int, Any]] = deque()

    # -------------------------------------------------------------- plumbing

    def say(self, event: Event) -> None:
        if self.options["together"] == "1":
            self.bundle.send(self.request, event)
        else:
            self.conn.send([(self.request, event)])

    def stopped(self) -> bool:
        return self.options["stubborn"] != "1" and self.stop.value >= self.request

    def sleep(self, seconds: float) -> bool:
        """Sleep in small steps, read Configure meanwhile; True when the request was stopped."""
        end = time.monotonic() + seconds
        while True:
            self.listen()
            if self.stopped():
                return True
            left = end - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(left, 0.01))

    def listen(self) -> None:
        """Commands that come in the middle of an answer."""
        while self.options["stubborn"] != "1" and self.conn.poll(0):
            number, command = self.conn.recv()
            if isinstance(command, Configure):
                self.configure(number, command)
            elif isinstance(command, Shutdown):
                raise Leave
            else:
                self.waiting.append((number, command))

    def trouble(self, phase: str, number: int = 1) -> None:
        """Die or freeze here, if the script says so."""
        if self.options["noise"] == "1":
            os.write(1, b"native noise on 1\n")
            os.write(2, b"native noise on 2\n")
        native, _, seconds = self.options["native"].partition(":")
        if native == phase and number == 1:
            ctypes.PyDLL(None).usleep(int(float(seconds) * 1_000_000))
        where, _, at = self.options["crash"].partition(":")
        if where != phase or number != int(at or 1):
            return
        once = self.options["once"]
        if once:
            if Path(once).exists():
                return
            Path(once).touch()
        die(self.options["kind"])

    def fail(self, error: LocalspecError) -> None:
        self.say(Failed(error, self.log_file))

    # -------------------------------------------------------------- commands

    def run(self) -> None:
        self.trouble("start")
        while True:
            try:
                self.request, command = self.waiting.popleft() if self.waiting else self.conn.recv()
            except EOFError:
                return
            if isinstance(command, Shutdown) and self.options["stubborn"] != "1":
                return
            if isinstance(command, Load):
                self.load(command)
            elif isinstance(command, Generate):
                assert command.request == self.request, "Generate.request is the number of its command"
                self.generate(command)
            elif isinstance(command, Configure):
                self.configure(self.request, command)
            elif isinstance(command, Clear):
                self.cached = 0
                self.say(Cleared())
            elif isinstance(command, MeasureCosts):
                plain = self.plain_s or 0.02
                verify = {size: plain * (0.9 + 0.1 * size) for size in command.sizes}
                step = None if self.load_command.draft.kind == "none" else plain / 10
                self.say(Costs(command.depth, plain, verify, step))

    def load(self, command: Load) -> None:
        if command.target.startswith("fake:"):
            self.options = parse(command.target.removeprefix("fake:"))
        self.load_command = command
        for stage in ("target", "draft") if command.draft.kind == "model" else ("target",):
            for step in range(1, 6):
                if self.sleep(float(self.options["load_s"]) / 5):
                    self.fail(LoadError("Loading was stopped."))
                    return
                self.say(LoadProgress(stage, step / 5, Path(command.target).name))
                if stage == "target" and step == 3:
                    self.trouble("load")
        if self.options["fail"] == "load":
            self.fail(
                LoadError(
                    "The target could not be loaded.", why="The script said so.", hint="localspec doctor"
                )
            )
            return
        self.draft_on, self.auto = True, command.auto
        self.plain_s = float(self.options["plain_s"])
        self.n_draft = 4 if command.auto else command.n_draft
        self.say(self.ready())

    @property
    def draft(self) -> DraftStatus:
        spec = self.load_command.draft
        if spec.kind == "none":
            return DraftStatus("off", spec.off_reason or "no draft was asked for")
        name = "lookup" if spec.kind == "lookup" else Path(spec.path).name
        reason = "" if self.draft_on else "switched off"
        if self.draft_on and self.n_draft == 0:
            reason = "the draft length is 0"
        return DraftStatus(
            "off" if reason else "on", reason, name, 0 if reason else self.n_draft, self.auto, self.plain_s
        )

    def ready(self) -> Ready:
        command = self.load_command
        size = command.n_ctx or 4096
        target = info(Path(command.target).name, 27_000_000_000, command.kv_type)
        spec = command.draft
        draft = info(Path(spec.path).name, 4_000_000_000, command.kv_type) if spec.kind == "model" else None
        return Ready(
            target=target,
            draft_model=draft,
            draft=self.draft,
            context_size=size,
            threads=command.threads or 2,
            memory=self.memory(),
            knows_thinking=self.options["think"] != "0",
            thinking_tags=("<think>", "</think>") if self.options["think"] != "0" else None,
            versions={"llama-cpp-python": "0.0", "llama.cpp": "fake", "localspec": "test"},
            notes=(self.options["notes"],) if self.options["notes"] else (),
        )

    def memory(self) -> MemoryUse:
        label = "RAM" if self.options["memory"] == "RAM" else "VRAM"
        return MemoryUse(label, 20_100_000_000 + 1000 * self.cached, 24_000_000_000)

    def configure(self, number: int, command: Configure) -> None:
        if command.draft_on is not None:
            self.draft_on = command.draft_on
        if command.n_draft is not None:
            self.n_draft, self.auto = command.n_draft, bool(command.auto)
        self.conn.send([(number, DraftChanged(self.draft))])

    # --------------------------------------------------------------- answers

    def generate(self, command: Generate) -> None:
        error = self.refusal(command)
        if error is not None:
            self.fail(error)
            return
        began = time.monotonic()
        prompt = sum(len(words(m.content)) for m in command.messages) + len(words(command.raw_prompt or ""))
        size = self.load_command.n_ctx or 4096
        if prompt >= size:
            self.fail(ContextFullError(f"The conversation has {prompt} tokens, the context holds {size}."))
            return
        stats = Stats(prompt_tokens=prompt, reused_tokens=min(self.cached, prompt))
        for step in range(1, 5):
            if self.sleep(float(self.options["prefill_s"]) / 4):
                self.finish("cancelled", [], stats, prompt)
                return
            self.say(
                PromptProgress(
                    stats.reused_tokens + (prompt - stats.reused_tokens) * step // 4,
                    prompt,
                    min(self.cached, prompt),
                )
            )
            if step == 2:
                self.trouble("prefill")
        spent = time.monotonic() - began
        stats = replace(stats, prompt_s=max(spent, 1e-4), ttft_s=max(spent, 1e-4))
        self.say(self.memory())
        self.decode(command, stats, prompt)

    def refusal(self, command: Generate) -> LocalspecError | None:
        what = self.options["fail"]
        if what == "generate":
            return DecodeError("llama_decode failed.", why="The script said so.")
        if what == "template":
            return TemplateError(
                "The chat template refused these messages.", why="[/red] roles must alternate"
            )
        if what == "context" and len(command.messages) > int(self.options["fits"]):
            return ContextFullError(
                "The conversation does not fit.", why="The script said so.", hint="localspec run --ctx 16384"
            )
        return None

    def answer(self, command: Generate) -> list[str]:
        if self.options["echo"] == "last":
            return words(command.messages[-1].content)
        if self.options["echo"] == "command":
            return words(json.dumps(asdict(command)))
        source = words(self.options["text"])
        count = command.max_tokens if command.ignore_eos else int(self.options["n"])
        return [source[i % len(source)] for i in range(count)]

    def rounds(self, tokens: list[tuple[str, bool]]) -> Iterator[tuple[list[Piece], int]]:
        """Cut the answer into rounds: (pieces, tokens drafted)."""
        at = 0
        while at < len(tokens):
            drafted = self.draft.n_draft if self.draft.state == "on" else 0
            accepted = 0
            while accepted < drafted and pattern(at + accepted) < float(self.options["accept"]):
                accepted += 1
            chunk = tokens[at : at + accepted + 1]
            accepted = len(chunk) - 1
            pieces = [
                Piece(100 + at + i, text, i < accepted, thinking) for i, (text, thinking) in enumerate(chunk)
            ]
            yield pieces, drafted
            at += len(chunk)

    def decode(self, command: Generate, stats: Stats, prompt: int) -> None:
        answer = self.answer(command)
        thought = words("Let me think about this a little. ")
        think = int(self.options["think"]) if command.think is not False else 0
        tokens = [(thought[i % len(thought)], True) for i in range(think)] + [(w, False) for w in answer]
        room = (self.load_command.n_ctx or 4096) - prompt
        reason = "stop"
        for limit, name in ((room, "context"), (command.max_tokens or room, "length")):
            if len(tokens) > limit:
                tokens, reason = tokens[:limit], name
        done: list[Piece] = []
        start = time.monotonic()
        for number, (pieces, drafted) in enumerate(self.rounds(tokens), 1):
            self.trouble("decode", number)
            if self.options["fail"] == "decode" and number == 3:
                self.fail(DecodeError("llama_decode failed.", why="The script said so."))
                return
            rate = float(self.options["tok_s"])
            pause = (
                len(pieces) / rate * (1 + float(self.options["jitter"]) * (pattern(number) - 0.5) * 2)
                if rate
                else 0
            )
            if self.sleep(pause):
                reason = "cancelled"
                break
            done += pieces
            stats = count(stats, len(pieces), drafted, time.monotonic() - start)
            wrong = Rejected(" wrong", pieces[-1].text, 0.42) if drafted >= len(pieces) else None
            size = self.load_command.n_ctx or 4096
            self.say(Round(tuple(pieces), stats, self.draft, prompt + len(done), size, wrong))
        self.finish(reason, done, stats, prompt)

    def finish(self, reason: str, done: list[Piece], stats: Stats, prompt: int) -> None:
        self.cached = prompt + len(done)
        self.say(self.memory())
        self.say(
            Finished(
                reason=reason,  # type: ignore[arg-type]
                text="".join(p.text for p in done if not p.thinking),
                thinking="".join(p.text for p in done if p.thinking),
                token_ids=tuple(p.token_id for p in done),
                stats=stats,
                draft=self.draft,
                context_used=self.cached,
                context_size=self.load_command.n_ctx or 4096,
            )
        )


def pattern(i: int) -> float:
    """A fixed number in [0, 1) for each i."""
    return (i * 2654435761 % 2**32) / 2**32


def count(stats: Stats, tokens: int, drafted: int, elapsed: float) -> Stats:
    """Add one round."""
    accepted = tokens - 1 if drafted else 0
    width = max(len(stats.drafted_at), drafted)
    at = [*stats.drafted_at, *[0] * (width - len(stats.drafted_at))]
    ok = [*stats.accepted_at, *[0] * (width - len(stats.accepted_at))]
    for i in range(drafted):
        at[i] += 1
        ok[i] += i < accepted
    total = stats.completion_tokens + tokens
    return replace(
        stats,
        completion_tokens=total,
        rounds=stats.rounds + 1,
        drafted_rounds=stats.drafted_rounds + bool(drafted),
        drafted=stats.drafted + drafted,
        accepted=stats.accepted + accepted,
        drafted_at=tuple(at),
        accepted_at=tuple(ok),
        decode_tokens=total - 1,
        decode_s=max(elapsed, 1e-6),
        draft_s=elapsed * 0.2,
        verify_s=elapsed * 0.75,
        other_s=elapsed * 0.05,
    )


def info(name: str, params: int, kv_type: str) -> ModelInfo:
    """A plausible model."""
    return ModelInfo(
        path=name,
        name=name,
        architecture="llama",
        quant="Q4_K_M",
        n_params=params,
        n_vocab=49152,
        n_ctx_train=32768,
        n_layer=30,
        gpu_layers=0,
        device="CPU",
        kv_type=kv_type,
        memory={"weights": params // 2, "cache": 500_000_000, "compute": 100_000_000},
    )


def die(kind: str) -> None:
    """End this process, in the way of native code."""
    if kind == "abort":
        os.write(2, b"ggml.c:1234: GGML_ASSERT(n_tokens > 0) failed\n")
        os.abort()
    elif kind == "segv":
        os.kill(os.getpid(), signal.SIGSEGV)
        time.sleep(10)
    elif kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(10)
    elif kind == "exit":
        sys.exit(3)
    else:
        raise RuntimeError("a fault of the child's Python code")


def serve(conn: Connection, stop: Any, log_file: str) -> None:
    """The child's main, with the signature of `localspec.worker.host.serve`."""
    try:
        Fake(conn, stop, log_file).run()
    except (Leave, EOFError, BrokenPipeError):
        return
