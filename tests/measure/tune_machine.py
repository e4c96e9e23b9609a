"""A machine with a clock of its own: a worker without a process whose right answers are known.

Texts and agreements are drawn once: at each token of an answer a drafter agrees or does not, whatever was drafted
before, as it is with a real drafter. Rounds cost what the curve and the draft step say, times noise.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from localspec.errors import LoadError, LocalspecError, WorkerDiedError
from localspec.measure.prompts import Prompt
from localspec.measure.tune import tune
from localspec.measure.tune_cells import Candidate
from localspec.measure.tune_runs import Effort
from localspec.spec.events import DraftStatus, Finished, Round, Sampling
from localspec.spec.stats import Counters
from localspec.worker.protocol import (
    Configure,
    Costs,
    DraftSpec,
    Generate,
    Load,
    MeasureCosts,
    MemoryUse,
    ModelInfo,
    Ready,
)

PROMPTS = (
    Prompt("code", "Code"),
    Prompt("prose", "Prose"),
    Prompt("extraction", "List"),
    Prompt("edit", "Edit"),
)
EFFORT = Effort(tokens=240, skip=40, repeats=3, label_tokens=180)
BASE = Load("target.gguf", n_draft=16)


@dataclass(frozen=True)
class Drafter:
    """`accept` by kind of prompt, or one number for all; `step` in target steps."""

    accept: float | Mapping[str, float] = 0.8
    step: float = 0.1
    bytes: int = 100
    extra: float = 0.0
    """Time of each drafted round that no cost measurement sees."""


def linear(slope: float) -> Callable[[int], float]:
    """V(n) that grows by `slope` a token."""
    return lambda n: 1 + slope * (n - 1)


def candidate(name: str, size: int = 100) -> Candidate:
    if name == "lookup":
        return Candidate("lookup", DraftSpec("lookup"), "lookup")
    return Candidate(name, DraftSpec("model", name), name, size)


class Machine:
    """Stands in for a `Worker`.

    Args:
        drafters: By path, or `lookup`.
        curve: V(n).
        jitter: Each answer's speed varies by this share.
        factor: Speed by load (cache type, threads, ...).
        reading: Time of reading a prompt by load.
        gpu: The target runs on one, and a draft model too unless it is placed elsewhere.
        ahead: Loads whose draft works beside the target.
        refused: Loads that fail.
        stop_at: The person presses Ctrl+C in the answer with this number.
        broken: Paths whose load kills the process.
    """

    def __init__(
        self,
        drafters,
        curve=None,
        *,
        jitter=0.0,
        factor=lambda load: 1.0,
        reading=lambda load: 1.0,
        gpu=False,
        ahead=lambda load: load.draft.overlap == "on",
        refused=lambda load: False,
        stop_at=0,
        broken=(),
        seed=1,
    ):
        self.drafters: dict[str, Drafter] = drafters
        self.curve = curve or linear(0.05)
        self.jitter = jitter
        self.factor = factor
        self.reading = reading
        self.gpu = gpu
        self.ahead = ahead
        self.refused = refused
        self.stop_at = stop_at
        self.broken = broken
        self.noise = random.Random(seed)
        self.now = 0.0
        self.answers: list[tuple[str, str, str]] = []
        """(drafter or off, length, kind) of each answer."""
        self.loads: list[Load] = []
        self.ready: Ready | None = None
        self.stopped = False
        self.dirty = False
        self.draft_on, self.n_draft, self.auto = True, 4, False

    def clock(self) -> float:
        return self.now

    def cancelled(self) -> bool:
        return self.stopped

    @property
    def drafter(self) -> Drafter | None:
        spec = self.loads[-1].draft
        return None if spec.kind == "none" else self.drafters[spec.path or "lookup"]

    @property
    def status(self) -> DraftStatus:
        spec = self.loads[-1].draft
        if spec.kind == "none":
            return DraftStatus("off", spec.off_reason)
        return DraftStatus(
            "on" if self.draft_on else "off",
            "",
            spec.path or "lookup",
            self.n_draft,
            self.auto,
            overlap=self.ahead(self.loads[-1]),
        )

    def load(self, command: Load) -> Iterator[Ready]:
        self.now += 2.0
        self.loads.append(command)
        if command.draft.path in self.broken:
            self.ready = None
            raise WorkerDiedError("The engine stopped while loading.")
        if self.refused(command):
            raise LoadError("There is no such thing.")
        if command.target == "missing.gguf":
            raise LoadError("The target could not be loaded.")
        drafter = self.drafter
        on_gpu = self.gpu and command.draft.device != "cpu"
        model = info("draft", drafter.bytes, on_gpu) if drafter and command.draft.kind == "model" else None
        target = info("target", 1000, self.gpu)
        self.ready = Ready(
            target, model, self.status, 8192, command.threads or 2, MemoryUse("RAM", 1, 2), False, None,
            {"llama-cpp-python": "0.0"},
        )  # fmt: skip
        yield self.ready

    def configure(self, command: Configure) -> None:
        self.draft_on = bool(command.draft_on)
        if command.n_draft is not None:
            self.n_draft, self.auto = command.n_draft, bool(command.auto)

    def clear(self) -> None:
        self.dirty = False

    def costs(self, command: MeasureCosts) -> Costs:
        drafter = self.drafter
        verify = {n: self.curve(n) * 0.01 for n in command.sizes}
        self.now += 1.0
        return Costs(command.depth, verify[1], verify, drafter.step * 0.01 if drafter else None)

    def agreements(self, drafter: Drafter, kind: str, tokens: int) -> list[bool]:
        accept = drafter.accept if isinstance(drafter.accept, float) else drafter.accept[kind]
        luck = random.Random(f"{kind} {drafter.bytes} {accept}")
        return [luck.random() < accept for _ in range(tokens)]

    def length(self, drafter: Drafter, kind: str) -> int:
        """The price rule knows the text's acceptance: the best fixed length of this kind, off included."""
        accept = drafter.accept if isinstance(drafter.accept, float) else drafter.accept[kind]

        def rate(k: int) -> float:
            return sum(accept**i for i in range(k + 1)) / (self.curve(k + 1) + k * drafter.step)

        return max(range(12), key=rate)

    def generate(self, command: Generate) -> Iterator[Round | Finished]:
        assert not self.dirty, "each answer starts from empty caches"
        self.dirty = True
        assert self.ready is not None
        kind = next(one.kind for one in PROMPTS if one.text == command.messages[-1].content)
        drafter = self.drafter if self.draft_on else None
        name = (self.loads[-1].draft.path or "lookup") if drafter else "off"
        self.answers.append((name, "auto" if self.auto else str(self.n_draft), kind))
        if len(self.answers) == self.stop_at:
            self.stopped = True
        prompt_s = 0.1 * self.reading(self.loads[-1]) * (1 + self.jitter * self.noise.uniform(-1, 1))
        counters = Counters(prompt_tokens=10, prompt_s=prompt_s, ttft_s=prompt_s, completion_tokens=1)
        yield Round((), counters.snapshot(), self.status, 0, 8192)
        agree = self.agreements(drafter, kind, command.max_tokens) if drafter else []
        fixed = (self.length(drafter, kind) if self.auto else self.n_draft) if drafter else 0
        slow = 0.01 * self.factor(self.loads[-1]) * (1 + self.jitter * self.noise.uniform(-1, 1))
        at = 1
        while at < command.max_tokens and not self.stopped:
            k = min(fixed, command.max_tokens - at - 1)
            accepted = next((i for i in range(k) if not agree[at + i]), k)
            counters.add_round(k, accepted)
            counters.completion_tokens += accepted + 1
            verify = self.curve(k + 1) + (drafter.extra if drafter and k else 0.0)
            spent = slow * (verify + k * (drafter.step if drafter else 0.0))
            counters.decode_s += spent
            self.now += spent
            at += accepted + 1
            yield Round((), counters.snapshot(), self.status, 0, 8192)
        reason = "cancelled" if self.stopped else "length"
        yield Finished(reason, "", "", tuple(range(at)), counters.snapshot(), self.status, at, 8192)


def info(name: str, size: int, gpu: bool) -> ModelInfo:
    layers, device = (13, "GPU") if gpu else (0, "CPU")
    return ModelInfo(
        f"{name}.gguf", name, "llama", "Q4_0", 1, 1, 8192, 12, layers, device, "f16", {"weights": size}
    )


class FaultyMachine(Machine):
    """Fails in the answer with the number `fault_at`."""

    fault_at = 0

    def generate(self, command: Generate) -> Iterator[Round | Finished]:
        if len(self.answers) + 1 == self.fault_at:
            self.answers.append(("fault", "", ""))
            self.dirty = True
            raise LocalspecError("llama_decode failed.")
        yield from super().generate(command)


def with_kv(value: str, factor: float) -> Callable[[Load], float]:
    """Another speed with one cache type."""
    return lambda load: factor if load.kv_type == value else 1.0


def quick(repeats: int) -> Effort:
    """EFFORT with other repeats."""
    return replace(EFFORT, repeats=repeats)


def run(machine, *names, base=BASE, prompts=PROMPTS, effort=EFFORT, **more):
    """Tune with these drafters of a machine."""
    return tune(
        machine,
        base,
        [candidate(name) for name in names],
        prompts,
        effort,
        Sampling(seed=1),
        cancelled=machine.cancelled,
        clock=machine.clock,
        **more,
    )
