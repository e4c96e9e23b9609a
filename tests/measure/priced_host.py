"""A child whose rounds have set prices on a clock of its own, so that the right answer of a measurement is known.

Use it with `Worker(host="tests.measure.priced_host:serve")` and `LOCALSPEC_PRICED="key=value,..."`:

    plain=0.05       seconds of a target step
    curve=0.0        V(n) = 1 + curve * (n - 1)
    stairs=          `4:1.1/8:1.9/...`: V(n) of the first stair that holds n tokens, in place of `curve`
    step=0.005       seconds of a draft step
    accept=0.8       chance of each drafted token
    WORD=0.2         the same for prompts that begin with that word, such as `Story=0.1`
    fade=0.0         acceptance lost per 1000 tokens of the answer
    jitter=0.0       each answer's time is multiplied by a number within 1 +- jitter
    shy=0            1 = the drafter is on and proposes nothing
    loop=0           1 = the answer repeats itself
    part=0           token (from 1) at which the text with a draft becomes another one
    margin=1.0       what `Peek` says about it
    kv_part=0        token at which the text with another cache than f16 becomes another one
    die=0            kill the process in the answer with this number
    fault=0          answer with an error in place of the answer with this number

Nothing sleeps. Every answer has `max_tokens` tokens. An answer without a `Clear` before it
has reused tokens.
"""

from __future__ import annotations

import os
import random
import signal
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

from localspec.errors import DecodeError
from localspec.spec.events import Finished, Piece, Round
from localspec.spec.stats import Counters
from localspec.worker.protocol import (
    Choosing,
    Clear,
    Cleared,
    Configure,
    Costs,
    Generate,
    Load,
    MeasureCosts,
    Peek,
    Peeked,
    Ready,
    Shutdown,
)
from tests.fake_host import Fake, words

DEFAULTS = {
    "plain": "0.05",
    "curve": "0",
    "stairs": "",
    "step": "0.005",
    "accept": "0.8",
    "fade": "0",
    "jitter": "0",
    "shy": "0",
    "loop": "0",
    "part": "0",
    "margin": "1.0",
    "kv_part": "0",
    "die": "0",
    "fault": "0",
}


class Priced(Fake):
    def __init__(self, conn: Connection, stop: Any, log_file: str) -> None:
        super().__init__(conn, stop, log_file)
        pairs = [pair.split("=") for pair in os.environ.get("LOCALSPEC_PRICED", "").split(",") if pair]
        self.prices = DEFAULTS | dict(pairs)
        self.answers = 0
        self.noise = random.Random(7)

    def run(self) -> None:
        while True:
            self.request, command = self.conn.recv()
            if isinstance(command, Shutdown):
                return
            if isinstance(command, Load):
                self.load(command)
            elif isinstance(command, Generate):
                self.generate(command)
            elif isinstance(command, Configure):
                self.configure(self.request, command)
            elif isinstance(command, Clear):
                self.cached = 0
                self.say(Cleared())
            elif isinstance(command, MeasureCosts):
                self.costs(command)
            elif isinstance(command, Peek):
                self.peek(command)

    def number(self, name: str) -> float:
        return float(self.prices[name])

    def batch(self, size: int) -> float:
        stairs = [pair.split(":") for pair in self.prices["stairs"].split("/") if pair]
        ratio = next((float(v) for n, v in stairs if size <= int(n)), 1 + self.number("curve") * (size - 1))
        return self.number("plain") * (1.0 if size == 1 else ratio)

    def costs(self, command: MeasureCosts) -> None:
        sizes = [size for size in command.sizes if size <= self.n_draft + 1 or size <= 17]
        drafts = self.load_command.draft.kind != "none"
        verify = {size: self.batch(size) for size in sizes}
        self.say(Costs(command.depth, verify[1], verify, self.number("step") if drafts else None))

    def peek(self, command: Peek) -> None:
        margin = self.number("margin")
        first, second = command.candidates
        alone = Choosing(first, margin, {first: 10.0, second: 10.0 - margin})
        batched = Choosing(first, margin, {first: 10.01, second: 10.0 - margin})
        self.say(Peeked(alone, batched, command.width, {first: "left", second: "\x1b[31mright"}))

    def generate(self, command: Generate) -> None:
        self.answers += 1
        if self.answers == int(self.prices["die"]):
            os.kill(os.getpid(), signal.SIGKILL)
        if self.answers == int(self.prices["fault"]):
            self.fail(DecodeError("llama_decode failed.", why="The prices said so."))
            return
        text = command.messages[-1].content
        prompt = len(words(text))
        tokens = self.text(text, command.max_tokens)
        accept = float(self.prices.get(text.split()[0], self.prices["accept"]))
        luck = random.Random(text)  # the same text has the same acceptance
        factor = 1 + self.number("jitter") * self.noise.uniform(-1, 1)
        counters = Counters(prompt_tokens=prompt, reused_tokens=min(self.cached, prompt), completion_tokens=1)
        counters.prompt_s = counters.ttft_s = prompt * 0.001
        at = 1
        self.round(counters, tokens[:1])
        while at < len(tokens):
            if self.stopped():
                self.end(command, counters, tokens[:at], "cancelled")
                return
            self.listen()
            k = min(self.draft.n_draft if self.draft.state == "on" else 0, len(tokens) - at - 1)
            k = 0 if self.prices["shy"] == "1" else k
            chance = accept - self.number("fade") * at / 1000
            accepted = next((i for i in range(k) if luck.random() >= chance), k)
            took = accepted + 1
            counters.add_round(k, accepted)
            counters.completion_tokens += took
            counters.draft_s += k * self.number("step") * factor
            counters.verify_s += self.batch(k + 1) * factor
            counters.decode_s = counters.draft_s + counters.verify_s
            self.round(counters, tokens[at : at + took])
            at += took
        self.end(command, counters, tokens, "length")

    def text(self, prompt: str, count: int) -> list[int]:
        draw = random.Random(f"text {prompt}")
        tokens = [draw.randrange(100, 40_000) for _ in range(count)]
        if self.prices["loop"] == "1":
            tokens = [100 + index % 20 for index in range(count)]
        changed = [int(self.prices["part"])] if self.draft.state == "on" else []
        changed += [int(self.prices["kv_part"])] if self.load_command.kv_type != "f16" else []
        for at in filter(None, changed):
            tokens[at - 1 :] = [token + 50_000 for token in tokens[at - 1 :]]
        return tokens

    def round(self, counters: Counters, tokens: list[int]) -> None:
        pieces = tuple(Piece(token, "word ", False) for token in tokens)
        self.say(Round(pieces, counters.snapshot(), self.draft, 0, self.load_command.n_ctx))

    def end(self, command: Generate, counters: Counters, tokens: list[int], reason: Any) -> None:
        self.cached = counters.prompt_tokens + len(tokens)
        size = self.load_command.n_ctx or 4096
        stats = counters.snapshot()
        self.say(self.memory())
        self.say(Finished(reason, "", "", tuple(tokens), stats, self.draft, self.cached, size))

    def ready(self) -> Ready:
        found = super().ready()
        if found.draft_model is None:
            return found
        return replace(found, draft_model=replace(found.draft_model, n_layer=12))


def serve(conn: Connection, stop: Any, log_file: str) -> None:
    """The child's main."""
    try:
        Priced(conn, stop, log_file).run()
    except (EOFError, BrokenPipeError):
        return
