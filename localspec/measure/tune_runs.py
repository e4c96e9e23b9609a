"""Answers of tune: loads, blocks of cells in changing order, progress, and the end when the person wants it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from localspec.errors import LocalspecError
from localspec.measure import answers
from localspec.measure.answers import WARM_UP_TOKENS, StoppedError, load_pair
from localspec.measure.figures import Window
from localspec.measure.prompts import Prompt
from localspec.measure.tune_cells import Cell, CellResult
from localspec.spec.events import Finished, Sampling
from localspec.spec.stats import Stats
from localspec.worker.process import Worker
from localspec.worker.protocol import Configure, Costs, Load, MeasureCosts, Ready

_PROMPT_TOKENS = 200  # about what the built-in prompts have


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is measured."""

    tokens: int = 256
    """Tokens of each answer."""
    skip: int = 48
    """Tokens left out at its start."""
    repeats: int = 3
    """Blocks of each prompt in which the choice has to win."""
    race: int = 2
    """Blocks of each prompt in the race that makes the choice."""
    label_tokens: int = 192
    """Tokens of the answers that tell what is accepted."""
    cost_seconds: float = 6.0
    """About how long the parts of a round are timed."""

    @property
    def learn_tokens(self) -> int:
        """Tokens of the answer in which `auto` learns a pair."""
        return self.label_tokens // 2


QUICK = Effort(tokens=128, skip=24, repeats=2, label_tokens=96, cost_seconds=2.0)
"""A first impression in about a third of the time."""


@dataclass(frozen=True, slots=True)
class Step:
    """Where tune is."""

    what: str
    fraction: float
    eta_s: float | None


class Runner:
    """Runs answers, one after the other, on what is loaded.

    Args:
        worker: Has nothing running.
        prompts: What is asked.
        effort: How much.
        sampling: The same for all answers.
        think: For templates that know it.
        tell: Told where it is.
        cancelled: Asked before each answer. Whoever sets it also calls `worker.stop()`.
        clock: Seconds.
    """

    def __init__(
        self,
        worker: Worker,
        prompts: Sequence[Prompt],
        effort: Effort,
        sampling: Sampling,
        think: bool | None,
        tell: Callable[[Step], None],
        cancelled: Callable[[], bool],
        clock: Callable[[], float],
    ) -> None:
        self.worker = worker
        self.prompts = tuple(prompts)
        self.effort = effort
        self.sampling = sampling
        self.clock = clock
        self.began = clock()
        self.loaded: Load | None = None
        self.remaining = 0.0
        """Tokens that are still to come, as far as it is known."""
        self._think = think
        self._tell = tell
        self._cancelled = cancelled
        self._produced = 0.0

    def load(self, load: Load, what: str) -> Ready:
        """Load a pair, unless it is loaded already.

        Raises:
            LocalspecError: It cannot be loaded.
            StoppedError: The person wants no more.
        """
        ready = self.worker.ready
        if self.loaded == load and ready is not None:
            return ready
        self._check()
        self.loaded = None
        try:
            found = load_pair(
                self.worker,
                load,
                lambda event: self._say(f"{what}: loading the {event.stage}, {event.fraction:.0%}"),
            )
        except LocalspecError:
            self._check()  # a load that was stopped is no fault
            raise
        self.loaded = load
        self._answer(self.prompts[0], Cell("none"), WARM_UP_TOKENS, f"{what}: warming up", found)
        return found

    def costs(self, what: str, context_size: int, *, curve: bool) -> Costs:
        """Time the parts of a round, at about the depth of the middle of an answer.

        Args:
            what: For the progress.
            context_size: Tokens of the context.
            curve: All sizes of batches; else a single token and the draft step only.
        """
        self._check()
        self._say(f"{what}: timing the parts of a round")
        depth = max(min(_PROMPT_TOKENS + self.effort.tokens // 2, context_size // 2), 1)
        sizes = MeasureCosts().sizes if curve else (1,)
        seconds = self.effort.cost_seconds * (1.0 if curve else 0.3)
        try:
            return self.worker.costs(MeasureCosts(sizes, depth=depth, seconds=seconds))
        except LocalspecError:
            self._check()
            raise

    def labelling(self, prompt: Prompt, cell: Cell, what: str) -> tuple[list[Stats], Finished]:
        """One answer with a long draft, for its rounds."""
        return self._answer(prompt, cell, self.effort.label_tokens, f"{what}: {prompt.kind}")

    def learn(self, cell: Cell, what: str) -> None:
        """An answer that is not counted: `auto` learns the pair in it, and knows it in later ones as it will in use."""
        self._answer(self.prompts[0], cell, self.effort.learn_tokens, f"{what}: learning the pair")

    def block(
        self, number: int, repeat: int, off: CellResult, cells: Sequence[CellResult], what: str
    ) -> None:
        """No draft and all cells on one prompt, in an order that changes from block to block."""
        prompt = self.prompts[number]
        order = [off, *cells]
        turn = (repeat * len(self.prompts) + number) % len(order)
        order = order[turn:] + order[:turn]
        if repeat % 2:
            order.reverse()
        found: dict[int, tuple[float, Window]] = {}
        for result in order:
            length = "no draft" if result.cell.off else f"k={result.cell.length}"
            window = self.timed(prompt, result.cell, f"{what}: {prompt.kind}, {length}")
            found[id(result)] = (window.tok_s or 0.0, window)
        baseline = found[id(off)][0]
        for result in order:
            rate, window = found[id(result)]
            result.add(prompt.kind, number, rate, baseline, window)

    def alone(self, result: CellResult, repeats: int, what: str) -> None:
        """One cell on all prompts, without partners."""
        for _ in range(repeats):
            for number, prompt in enumerate(self.prompts):
                window = self.timed(prompt, result.cell, f"{what}: {prompt.kind}")
                result.rates.setdefault((prompt.kind, number), []).append(window.tok_s or 0.0)

    def timed(self, prompt: Prompt, cell: Cell, what: str) -> Window:
        """The window of one answer."""
        effort = self.effort
        rounds, finished = self._answer(prompt, cell, effort.tokens, what)
        return answers.window_of(
            rounds, finished, prompt, skip=effort.skip, tokens=effort.tokens, program="tune"
        )

    def prompt_speed(self, prompt: Prompt, what: str) -> float | None:
        """Tokens of the prompt per second, nothing cached."""
        _, finished = self._answer(prompt, Cell("none"), 2, what)
        return finished.stats.prompt_tok_s

    def _answer(
        self, prompt: Prompt, cell: Cell, tokens: int, what: str, ready: Ready | None = None
    ) -> tuple[list[Stats], Finished]:
        """One answer from empty caches: the counters at the end of each round, and its end."""
        self._check()
        self._say(what)
        worker = self.worker
        ready = ready or worker.ready
        if ready is not None and ready.draft.name:
            if cell.off:
                worker.configure(Configure(draft_on=False))
            else:
                worker.configure(Configure(draft_on=True, n_draft=cell.n_draft, auto=cell.auto))
        command = answers.full_length(prompt, self.sampling, tokens, self._think)
        try:
            rounds, finished = answers.ask(worker, command, self._cancelled)
        except LocalspecError:
            self.loaded = None  # whatever happened, the next cell starts afresh
            self._check()
            raise
        self._produced += tokens
        self.remaining = max(self.remaining - tokens, 0.0)
        return rounds, finished

    def _check(self) -> None:
        if self._cancelled():
            raise StoppedError

    def _say(self, what: str) -> None:
        total = self._produced + self.remaining
        share = self._produced / total if total else 0.0
        spent = self.clock() - self.began
        eta = spent / self._produced * self.remaining if self._produced else None
        self._tell(Step(what, share, eta))
