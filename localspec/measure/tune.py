"""The fastest settings of a target on this machine.

For each drafter on one load: its costs are timed, one answer a prompt with a long draft tells what it would accept, and
every fixed length is predicted from both (`tune_predict`). Only the best few lengths and `auto` are measured, in blocks
with no draft, in changing order; what falls behind leaves the race after the first repeat. The cell that is chosen is
measured once more, on fresh blocks: the largest of several noisy figures is too large, and a winner has to win again.
Then cache type, threads and batch are changed one at a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from localspec.errors import LocalspecError, UsageError, WorkerDiedError
from localspec.measure.answers import StoppedError
from localspec.measure.prompts import Prompt
from localspec.measure.tune_cells import (
    NO_DRAFT,
    OFF,
    Candidate,
    Cell,
    CellResult,
    Profile,
    Sweep,
    against,
    beyond_noise,
    choose,
    other_winners,
)
from localspec.measure.tune_confirm import confirm
from localspec.measure.tune_found import Event, Exhaustive, Raced, Tuned
from localspec.measure.tune_predict import (
    LONGEST,
    Labels,
    Parts,
    ceiling,
    labels,
    predict,
    promising,
    survival,
    useful_length,
)
from localspec.measure.tune_race import BEHIND, leader, reach, survivors, undecided
from localspec.measure.tune_runs import Effort, Runner
from localspec.measure.tune_sweeps import Knobs, Sweeper
from localspec.spec.events import Sampling
from localspec.worker.process import Worker
from localspec.worker.protocol import Costs, Load, Ready

_HOPELESS = 0.8
"""A drafter that could not reach this if everything were accepted is not tried; costs are timed with noise."""
_LABELLED = 8
"""The most that is drafted to see what is accepted: longer drafts of a poor drafter take long and tell nothing more."""


def tune(
    worker: Worker,
    base: Load,
    candidates: Sequence[Candidate],
    prompts: Sequence[Prompt],
    effort: Effort,
    sampling: Sampling,
    *,
    knobs: Knobs | None = None,
    exhaustive: bool = False,
    think: bool | None = None,
    tell: Callable[[Event], None] = lambda event: None,
    cancelled: Callable[[], bool] = lambda: False,
    clock: Callable[[], float] = time.monotonic,
) -> Tuned:
    """Find the fastest settings.

    Args:
        worker: Has nothing running.
        base: The target and everything that is not tuned; `n_draft` is the most that `auto` may draft.
        candidates: Drafters to try; no draft is always tried.
        prompts: What is asked.
        effort: How much is measured.
        sampling: The same for everything.
        knobs: Values of the other settings.
        exhaustive: Measure every cell afterwards, for the proof.
        think: For templates that know it.
        tell: Told everything as it comes.
        cancelled: Asked often. Whoever sets it also calls `worker.stop()`; what was measured is kept.
        clock: Seconds.

    Raises:
        LocalspecError: The target cannot be loaded, or nothing was measured before something failed.
    """
    if not prompts:
        raise UsageError("There is no prompt to measure with.", hint="localspec tune --help")
    tuned = Tuned(base, effort, sampling, tuple(candidates))
    runner = Runner(worker, prompts, effort, sampling, think, tell, cancelled, clock)
    job = _Tuner(runner, tuned, knobs or Knobs(), tell)
    try:
        job.run(exhaustive=exhaustive)
    except StoppedError:
        tuned.partial = True
    except LocalspecError as error:
        if not tuned.off.answers:
            raise
        tuned.partial, tuned.error = True, error
    if tuned.partial:
        job.settle()
    tuned.seconds = clock() - runner.began
    return tuned


class _Tuner:
    """The order of things."""

    def __init__(self, runner: Runner, tuned: Tuned, knobs: Knobs, tell: Callable[[Event], None]) -> None:
        self._runner = runner
        self._tuned = tuned
        self._knobs = knobs
        self._tell = tell
        self._curve: Costs | None = None
        self._limits: dict[str, int] = {}

    def run(self, *, exhaustive: bool) -> None:
        """Race every drafter, confirm the winner, turn the other knobs; then the proof."""
        runner, tuned = self._runner, self._tuned
        for index, candidate in enumerate(tuned.candidates):
            runner.remaining = self._left(len(tuned.candidates) - index)
            self._try(candidate)
        if not tuned.off.answers:
            ready = runner.load(self._load(NO_DRAFT), NO_DRAFT.label)
            tuned.ready = tuned.ready or ready
            self._race(NO_DRAFT, [])
        self.settle()
        runner.remaining = self._left(0)
        confirm(runner, tuned, self._load, self._say)
        runner.remaining = len(runner.prompts) * self._knobs.answers * runner.effort.tokens
        tuned.load = self._choice_load()
        clever = runner.clock() - runner.began
        assert tuned.choice is not None
        sweeper = Sweeper(runner, self._knobs, self._found)
        tuned.load = sweeper.run(self._choice_load(), tuned.choice.cell, tuned.ready)
        if exhaustive:
            self._prove(clever)

    def settle(self) -> None:
        """Choose among what was measured so far."""
        tuned = self._tuned
        if tuned.choice is not None or not tuned.off.answers:
            return
        measured = [tuned.off, *(one for one in tuned.results if one.answers)]
        tuned.choice, tuned.fastest, tuned.tied = choose(measured)
        tuned.winners = other_winners(tuned.choice, measured)
        tuned.load = self._choice_load()

    def _found(self, sweep: Sweep) -> None:
        self._tuned.sweeps.append(sweep)
        self._tell(sweep)

    def _left(self, candidates: int) -> float:
        """About how many tokens are still to come."""
        effort, prompts = self._runner.effort, len(self._runner.prompts)
        repeats = effort.race if len(self._tuned.candidates) > 1 else 1
        race = effort.label_tokens + effort.learn_tokens + 3 * repeats * effort.tokens
        again = 3 * effort.tokens
        return prompts * (candidates * race + again + self._knobs.answers * effort.tokens)

    # ----------------------------------------------------------- one drafter

    def _try(self, candidate: Candidate) -> None:
        """Profile and race one drafter; one that cannot be used is left out with a sentence."""
        try:
            ready = self._runner.load(self._load(candidate), candidate.label)
        except WorkerDiedError as error:  # anything else is about the target
            self._say(f"{candidate.label} is left out: {error.message}")
            return
        self._tuned.ready = self._tuned.ready or ready
        if not ready.draft.name:
            self._say(f"{candidate.label} is left out: {ready.draft.reason}.")
            return
        try:
            profile = self._profile(candidate, ready)
            self._tuned.profiles.append(profile)
            self._tell(profile)
            if profile.predictions and self._worth_a_race(profile):
                self._race(candidate, self._cells(candidate, profile, ready))
        except LocalspecError as error:
            self._say(f"{candidate.label} is left out: {error.message}")

    def _worth_a_race(self, profile: Profile) -> bool:
        """Whether it may reach what another drafter made; what that one got from lookup, it may get too."""
        profiles = self._tuned.profiles
        best = leader(self._tuned.results)
        limits = [reach(one, profiles) for one in profiles if one.candidate.name == best.cell.draft]
        most = reach(profile, profiles)
        if best.cell.off or most >= min(best.speedup.value, *limits):
            return True
        label = self._tuned.candidate(best.cell).label
        self._say(
            f"{profile.candidate.label} is not measured: it should reach {most:.2f}x at the most, and {label} made"
            f" {best.speedup.value:.2f}x."
        )
        return False

    def _profile(self, candidate: Candidate, ready: Ready) -> Profile:
        """Costs, and what is accepted, unless nothing could make this drafter pay."""
        costs = self._costs(candidate, ready)
        limit = max(1, min(LONGEST, max(costs.verify) - 1, self._tuned.base.at_once - 1))
        self._limits[candidate.name] = limit
        parts = Parts.of(costs, free=candidate.free)
        longest = useful_length(parts, limit)
        found = Profile(
            candidate=candidate,
            cost_ratio=parts.step / costs.plain_s,
            verify_curve={size: seconds / costs.plain_s for size, seconds in sorted(costs.verify.items())},
            longest=longest,
            ceiling=ceiling(parts, longest),
        )
        if found.ceiling < _HOPELESS:
            return found
        kinds, own = self._labels(candidate, useful_length(parts, min(longest, _LABELLED)))
        parts = replace(parts, overhead=own)
        texts = [text for group in kinds.values() for text in group]
        return replace(
            found, survival=survival(texts, longest), predictions=tuple(predict(kinds, parts, longest))
        )

    def _costs(self, candidate: Candidate, ready: Ready) -> Costs:
        """The target's curve is timed once; with the next drafter only the single token and the draft step are."""
        found = self._runner.costs(candidate.label, ready.context_size, curve=self._curve is None)
        if self._curve is None:
            self._curve = found
            return found
        scale = found.plain_s / self._curve.plain_s
        return replace(found, verify={size: seconds * scale for size, seconds in self._curve.verify.items()})

    def _labels(self, candidate: Candidate, length: int) -> tuple[dict[str, list[Labels]], float]:
        """What would be accepted of each kind of prompt, and the time of our own code for each token."""
        kinds: dict[str, list[Labels]] = {}
        own, tokens = 0.0, 0
        cell = Cell(candidate.name, length)
        for prompt in self._runner.prompts:
            rounds, finished = self._runner.labelling(prompt, cell, f"{candidate.label}, what is accepted")
            text = labels(rounds, length)
            if text:
                kinds.setdefault(prompt.kind, []).append(text)
            own, tokens = own + finished.stats.other_s, tokens + finished.stats.decode_tokens
        return kinds, own / max(tokens, 1)

    def _cells(self, candidate: Candidate, profile: Profile, ready: Ready) -> list[CellResult]:
        memory = _memory(candidate, ready)
        speeds = {one.n_draft: one.speedup for one in profile.predictions}
        new = self._tuned.noise.cell
        # Where even the best length should lose by far, only `auto` can win: it drafts where that pays.
        lengths = promising(profile.predictions) if max(speeds.values()) >= BEHIND else ()
        fixed = [new(Cell(candidate.name, k), memory, speeds[k]) for k in lengths]
        return [*fixed, new(self._auto(candidate), memory)]

    def _race(self, candidate: Candidate, cells: list[CellResult]) -> None:
        """Measure cells; after each repeat those that cannot win any more leave."""
        runner, tuned = self._runner, self._tuned
        tuned.results += cells
        left, off = cells, CellResult(Cell(OFF))
        if cells:
            runner.learn(self._auto(candidate), candidate.label)
        try:
            for repeat in range(runner.effort.race if cells else runner.effort.repeats):
                for number in range(len(runner.prompts)):
                    runner.block(number, repeat, off, left, candidate.label)
                left = survivors(left, tuned.results)
                for one in cells:
                    one.given_up = one not in left
                if cells and not (undecided(left, tuned.results) and self._others(candidate)):
                    break
        finally:
            tuned.off.take(off)
            if off.answers:
                self._tell(Raced(candidate, off, tuple(one for one in cells if one.answers)))

    def _others(self, candidate: Candidate) -> bool:
        """Whether other drafters may win too. Of a single one the last answers, which it has to win, decide all."""
        rest = self._tuned.candidates[self._tuned.candidates.index(candidate) + 1 :]
        return bool(rest) or any(
            one.answers and not one.given_up and one.cell.draft != candidate.name
            for one in self._tuned.results
        )

    # ---------------------------------------------------------- all together

    def _prove(self, clever: float) -> None:
        """Measure every cell. Stopping this part takes nothing from the result."""
        runner, tuned = self._runner, self._tuned
        assert tuned.choice is not None
        began = runner.clock()
        off, grid = CellResult(Cell(OFF)), list[CellResult]()
        try:
            for index, candidate in enumerate(tuned.candidates):
                if candidate.name not in self._limits:
                    continue  # it could not be used at all
                runner.load(self._load(candidate), candidate.label)
                cells = [Cell(candidate.name, k) for k in range(1, self._limits[candidate.name] + 1)]
                results = [CellResult(cell) for cell in (*cells, self._auto(candidate))]
                per_drafter = (len(results) + 1) * runner.effort.repeats * len(runner.prompts)
                runner.remaining = (len(tuned.candidates) - index) * per_drafter * runner.effort.tokens
                for repeat in range(runner.effort.repeats):
                    for number in range(len(runner.prompts)):
                        runner.block(number, repeat, off, results, f"{candidate.label}, every length")
                grid += results
        except StoppedError:
            self._say("The exhaustive part was stopped; the result stands without its proof.")
            return
        best = max([off, *grid], key=lambda one: one.speedup.value)
        own = next((one for one in grid if one.cell == tuned.choice.cell), off)
        gap = 1 - own.speedup.value / best.speedup.value
        real = own is not best and beyond_noise(against(best, own))
        tuned.exhaustive = Exhaustive(tuple(grid), runner.clock() - began, clever, best, gap, real)

    # ------------------------------------------------------------------ loads

    def _load(self, candidate: Candidate) -> Load:
        """One load on which every length of a drafter can be set."""
        return replace(self._tuned.base, draft=candidate.spec, auto=candidate is not NO_DRAFT)

    def _auto(self, candidate: Candidate) -> Cell:
        return Cell(candidate.name, self._tuned.base.n_draft, auto=True)

    def _choice_load(self) -> Load:
        assert self._tuned.choice is not None
        return self._load(self._tuned.candidate(self._tuned.choice.cell))

    def _say(self, sentence: str) -> None:
        self._tuned.notes.append(sentence)
        self._tell(sentence)


def _memory(candidate: Candidate, ready: Ready) -> int:
    """What the drafter needs, in bytes; lookup's index is next to nothing."""
    if ready.draft_model is None:
        return candidate.size_bytes
    return sum(ready.draft_model.memory.values()) or candidate.size_bytes
