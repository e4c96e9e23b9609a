"""The measurement itself: baseline and draft in pairs, in alternating order, in one process.

Both sides run on the same loaded models; drafting is switched. Before each answer both caches and the lookup index are
emptied, so nothing of an earlier answer can be drafted from or reused: the same prompt with the same seed is then a
fresh measurement, and no nonce has to change the text between repeats. End-of-generation tokens are ignored, so that
every answer has the same length.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from localspec.errors import LocalspecError, UsageError
from localspec.measure import answers, figures
from localspec.measure.answers import WARM_UP_TOKENS, StoppedError, load_pair
from localspec.measure.figures import Window
from localspec.measure.prompts import Prompt
from localspec.measure.surroundings import Watch
from localspec.spec.events import DraftStatus, Finished, PromptProgress, Round, Sampling
from localspec.spec.stats import Stats
from localspec.worker.process import Worker
from localspec.worker.protocol import (
    Configure,
    Costs,
    Event,
    Load,
    MeasureCosts,
    MemoryUse,
    Ready,
)

_DEPTH_TOKENS = 400  # a point of speed over depth is measured over this many tokens before it


@dataclass(frozen=True, slots=True)
class Protocol:
    """How it is measured."""

    tokens: int = 512
    """Tokens of each answer."""
    skip: int = 112
    """Tokens left out at its start."""
    repeats: int = 3
    """Pairs of each prompt."""
    lengths: tuple[int, ...] = ()
    """Answer lengths at which the speed is told, from one more pair; empty = none."""
    cost_seconds: float = 6.0
    """About how long the parts of a round are timed."""

    def check(self) -> None:
        """Refuse what cannot be measured.

        Raises:
            UsageError: No token would be left, or there would be no pair.
        """
        if not 0 < self.skip < self.tokens:
            raise UsageError(
                f"With {self.skip} of {self.tokens} tokens left out there is nothing to measure.",
                why="At least the first token is left out, and at least one has to stay.",
                hint="localspec bench --tokens 512 --skip 112",
            )
        if self.repeats < 1:
            raise UsageError("There has to be one repeat at least.", hint="localspec bench --repeats 3")
        if any(length < 2 for length in self.lengths):
            raise UsageError(
                "A length of --lengths is 2 tokens at least.", hint="localspec bench --lengths 200,2000,4000"
            )


QUICK = Protocol(tokens=160, skip=32, repeats=2, cost_seconds=2.0)
"""A first impression in about a fifth of the time."""


@dataclass(frozen=True, slots=True)
class Run:
    """One answer that was measured."""

    prompt: int
    """Index of the prompt."""
    kind: str
    repeat: int
    drafted: bool
    order: int
    """Its place in the whole measurement."""
    window: Window
    stats: Stats
    """Of the whole answer."""
    token_ids: tuple[int, ...]
    reason: str
    draft: DraftStatus
    others_cpu: float
    """Share of the CPU that other programs took meanwhile."""

    @property
    def tok_s(self) -> float:
        """Decode speed in the window."""
        return self.window.tok_s or 0.0


@dataclass(frozen=True, slots=True)
class DepthPoint:
    """Speed at one length of the answer."""

    length: int
    context: int
    """Tokens in the cache there."""
    drafted: bool
    window: Window


@dataclass(slots=True)
class Measured:
    """All that was measured, raw."""

    ready: Ready
    load: Load
    protocol: Protocol
    prompts: tuple[Prompt, ...]
    sampling: Sampling
    runs: list[Run] = field(default_factory=list)
    depths: list[DepthPoint] = field(default_factory=list)
    costs: Costs | None = None
    memory: MemoryUse | None = None
    """The greatest use that was seen."""
    seconds: float = 0.0
    partial: bool = False
    """It was stopped before the end."""
    error: LocalspecError | None = None
    """What ended it."""

    @property
    def has_draft(self) -> bool:
        """Whether the loaded pair can draft at all."""
        return self.ready.draft.state == "on"


@dataclass(frozen=True, slots=True)
class Progress:
    """Where the measurement is."""

    stage: Literal["load", "warm-up", "runs", "costs", "lengths"]
    fraction: float
    """Of everything after the load; of the load itself while loading."""
    eta_s: float | None = None
    kind: str = ""
    repeat: int = 0
    drafted: bool = False
    run: Run | None = None
    """Set once, when a run is complete."""


def measure(
    worker: Worker,
    load: Load,
    prompts: Sequence[Prompt],
    protocol: Protocol,
    sampling: Sampling,
    *,
    think: bool | None = None,
    ready: Ready | None = None,
    progress: Callable[[Progress], None] = lambda event: None,
    cancelled: Callable[[], bool] = lambda: False,
) -> Measured:
    """Load a pair and measure it.

    Args:
        worker: Has nothing running; it keeps the pair loaded, with drafting as the last answer had it.
        load: The pair. Without a draft only the baseline is measured.
        prompts: What is asked.
        protocol: How.
        sampling: Temperature, seed and the rest, the same for all runs.
        think: For templates that know it.
        ready: The pair is loaded already and said this. None = load it.
        progress: Told where it is; `Progress.run` carries each complete run.
        cancelled: Asked often. Whoever sets it also calls `worker.stop()`; complete runs are kept.

    Raises:
        LocalspecError: The load failed, or nothing was measured before something else did.
    """
    protocol.check()
    if not prompts:
        raise UsageError("There is no prompt to measure with.", hint="localspec bench --help")
    ready = ready or load_pair(
        worker, load, lambda event: progress(Progress("load", event.fraction, kind=event.stage))
    )
    measured = Measured(ready, load, protocol, tuple(prompts), sampling)
    job = _Job(worker, measured, think, progress, cancelled)
    began = time.monotonic()
    try:
        job.run()
    except StoppedError:
        measured.partial = True
    except LocalspecError as error:
        if not measured.runs:
            raise
        measured.partial, measured.error = True, error
    measured.seconds = time.monotonic() - began
    return measured


class _Job:
    """The order of things."""

    def __init__(
        self,
        worker: Worker,
        measured: Measured,
        think: bool | None,
        progress: Callable[[Progress], None],
        cancelled: Callable[[], bool],
    ) -> None:
        self._worker = worker
        self._measured = measured
        self._think = think
        self._progress = progress
        self._cancelled = cancelled
        self._began = 0.0
        protocol = measured.protocol
        self._sides = 2 if measured.has_draft else 1
        self._done = 0.0
        # In answers of the usual length; timing the parts counts as one.
        self._all = (
            protocol.repeats * len(measured.prompts) * self._sides
            + 1
            + self._sides * self._longest() / protocol.tokens
        )

    def run(self) -> None:
        """Warm up, all pairs, the parts of a round, speed over depth."""
        measured, protocol = self._measured, self._measured.protocol
        self._progress(Progress("warm-up", 0.0))
        self._answer(measured.prompts[0], measured.has_draft, WARM_UP_TOKENS)
        self._began = time.monotonic()
        for repeat in range(protocol.repeats):
            for number, prompt in enumerate(measured.prompts):
                self._pair(repeat, number, prompt)
        self._costs()
        if protocol.lengths:
            self._depths()

    def _pair(self, repeat: int, number: int, prompt: Prompt) -> None:
        """Baseline and draft of one prompt; who goes first changes from prompt to prompt and from repeat to repeat."""
        measured, protocol = self._measured, self._measured.protocol
        sides = (False, True)[: self._sides]
        for drafted in sides if (repeat + number) % 2 == 0 else sides[::-1]:
            where = Progress("runs", 0.0, kind=prompt.kind, repeat=repeat + 1, drafted=drafted)
            watch = Watch([os.getpid(), *([self._worker.pid] if self._worker.pid else [])])
            rounds, finished = self._answer(prompt, drafted, protocol.tokens, where)
            window = answers.window_of(
                rounds, finished, prompt, skip=protocol.skip, tokens=protocol.tokens, program="bench"
            )
            run = Run(
                prompt=number,
                kind=prompt.kind,
                repeat=repeat,
                drafted=drafted,
                order=len(measured.runs),
                window=window,
                stats=finished.stats,
                token_ids=finished.token_ids,
                reason=finished.reason,
                draft=finished.draft,
                others_cpu=watch.others(),
            )
            measured.runs.append(run)
            self._done += 1
            self._tell(replace(where, run=run))

    def _answer(
        self, prompt: Prompt, drafted: bool, tokens: int, where: Progress | None = None
    ) -> tuple[list[Stats], Finished]:
        """One answer from empty caches: the counters at the end of each round, and its end."""
        if self._cancelled():
            raise StoppedError
        worker, measured = self._worker, self._measured
        if measured.has_draft:
            worker.configure(Configure(draft_on=drafted))

        def hear(event: Event) -> None:
            if isinstance(event, MemoryUse) and (
                measured.memory is None or event.used > measured.memory.used
            ):
                measured.memory = event
            if where is not None and isinstance(event, (Round, PromptProgress)):
                share = event.stats.completion_tokens / tokens if isinstance(event, Round) else 0.0
                self._tell(where, share * tokens / measured.protocol.tokens)

        command = answers.full_length(prompt, measured.sampling, tokens, self._think)
        return answers.ask(worker, command, self._cancelled, hear)

    def _costs(self) -> None:
        """Time the parts of a round at the depth of the middle of the windows."""
        measured, protocol = self._measured, self._measured.protocol
        if self._cancelled():
            raise StoppedError
        self._tell(Progress("costs", 0.0))
        prompt_tokens = [run.stats.prompt_tokens for run in measured.runs]
        depth = sum(prompt_tokens) // len(prompt_tokens) + (protocol.skip + protocol.tokens) // 2
        longest = max((len(run.window.drafted_at) for run in measured.runs), default=0)
        sizes = {*MeasureCosts().sizes, *range(1, longest + 2)}
        command = MeasureCosts(tuple(sorted(sizes)), depth=depth, seconds=protocol.cost_seconds)
        try:
            measured.costs = self._worker.costs(command)
        except LocalspecError:
            if self._cancelled():
                raise StoppedError from None
            raise
        if self._cancelled():  # what it has is kept, and is not all
            raise StoppedError
        self._done += 1

    def _depths(self) -> None:
        """One long answer a side; the speed of the tokens before each length."""
        measured, protocol = self._measured, self._measured.protocol
        prompt, longest = self._long_prompt, self._longest()
        if not longest:
            return
        for drafted in (False, True)[: self._sides]:
            where = Progress("lengths", 0.0, kind=prompt.kind, drafted=drafted)
            rounds, finished = self._answer(prompt, drafted, longest, where)
            for length in sorted({one for one in protocol.lengths if one <= longest}):
                start = max(length - _DEPTH_TOKENS, min(protocol.skip, length // 2))
                window = figures.window(rounds, start, length)
                if window is not None and rounds[-1].completion_tokens >= length:
                    context = finished.stats.prompt_tokens + length
                    measured.depths.append(DepthPoint(length, context, drafted, window))
            self._done += longest / protocol.tokens

    @property
    def _long_prompt(self) -> Prompt:
        """What the long answers are about."""
        prompts = self._measured.prompts
        return next((one for one in prompts if one.kind == "prose"), prompts[0])

    def _longest(self) -> int:
        """The greatest length that is measured: beyond the end of the context an answer would be made for nothing."""
        measured = self._measured
        number = measured.prompts.index(self._long_prompt)
        asked = [run.stats.prompt_tokens for run in measured.runs if run.prompt == number]
        room = measured.ready.context_size - max(asked, default=0)
        return max((one for one in measured.protocol.lengths if one <= room), default=0)

    def _tell(self, event: Progress, part: float = 0.0) -> None:
        """Report with the share that is done and the time that is left, as it went so far."""
        share = min((self._done + part) / self._all, 1.0)
        spent = time.monotonic() - self._began
        eta = spent * (1 - share) / share if share > 0.01 else None
        self._progress(replace(event, fraction=share, eta_s=eta))
