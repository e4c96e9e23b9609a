"""The choice of tune has to win once more, on fresh answers: the largest of several noisy figures is too large."""

from __future__ import annotations

from collections.abc import Callable

from localspec.measure.tune_cells import (
    OFF,
    Candidate,
    Cell,
    CellResult,
    against,
    beyond_noise,
    choose,
    other_winners,
    pooled,
)
from localspec.measure.tune_found import Tuned
from localspec.measure.tune_race import undecided, won_or_lost
from localspec.measure.tune_runs import Runner
from localspec.worker.protocol import Load


def confirm(
    runner: Runner, tuned: Tuned, load: Callable[[Candidate], Load], say: Callable[[str], None]
) -> None:
    """Let the choice win again; else it was noise, and no draft is as good.

    Where the fastest cell is another drafter's, tied with a choice that needs less memory, both meet no draft again,
    and all their answers together decide.

    Args:
        runner: Runs answers.
        tuned: With a choice; its figures become the fresh ones.
        load: What to load for a drafter.
        say: Told a sentence where the choice did not win again.
    """
    choice, fastest = tuned.choice, tuned.fastest
    assert choice is not None
    if choice.cell.off:
        tuned.confirmed = True
        return
    job = _Again(runner, tuned, load)
    choice, fresh = job.run(choice)
    if fastest is not None and fastest.cell.draft not in (OFF, choice.cell.draft):
        fastest, rival = job.run(fastest, beside=pooled(choice, fresh))
        if beyond_noise(against(pooled(fastest, rival), pooled(choice, fresh))):
            tuned.tied = tuple(one for one in tuned.tied if one.cell.draft != choice.cell.draft)
            choice, fresh = fastest, rival
    measured = [tuned.off, *(one for one in tuned.results if one.answers)]
    tuned.confirmed = True
    if beyond_noise(fresh.speedup):
        tuned.choice = fresh
        rest = [one for one in measured if one is not choice]
        tuned.winners = other_winners(pooled(choice, fresh), rest)
        return
    label = tuned.candidate(choice.cell).label
    say(
        f"{label}, k={choice.cell.length} did not win again on fresh answers: it is within noise of no draft."
    )
    tuned.choice = tuned.off
    tuned.tied = (tuned.off, *(one for one in tuned.tied if not one.cell.off))
    tuned.winners = other_winners(tuned.off, measured)


class _Again:
    """Fresh blocks of a cell with no draft."""

    def __init__(self, runner: Runner, tuned: Tuned, load: Callable[[Candidate], Load]) -> None:
        self._runner = runner
        self._tuned = tuned
        self._load = load

    def run(self, choice: CellResult, *, beside: CellResult | None = None) -> tuple[CellResult, CellResult]:
        """As many repeats as it takes to tell, at most those of the effort.

        In the first one other lengths of the drafter take part that the race did not tell apart.

        Args:
            choice: The cell.
            beside: Another drafter's, which it is to be told apart from too.

        Returns:
            The cell of the race that is the best one now, and its fresh answers.
        """
        runner, tuned = self._runner, self._tuned
        candidate = tuned.candidate(choice.cell)
        runner.load(self._load(candidate), candidate.label)
        off = CellResult(Cell(OFF))
        fresh = {one: tuned.noise.cell(one.cell, one.memory) for one in [choice, *self._equals(choice)]}
        for repeat in range(runner.effort.repeats):
            for number in range(len(runner.prompts)):
                runner.block(number, repeat, off, list(fresh.values()), f"{candidate.label} once more")
            both = {pooled(*pair): pair for pair in fresh.items()}
            best = choose(list(both))[0]
            choice, again = both[best]
            fresh = {choice: again}
            if won_or_lost(again.speedup) and (beside is None or not undecided([best], [beside])):
                break
        return next(iter(fresh.items()))

    def _equals(self, choice: CellResult) -> list[CellResult]:
        """Lengths of the same drafter that met it in the race only once, and may be better."""
        if choice.answers > len(self._runner.prompts):
            return []
        others = [one for one in self._tuned.results if one.answers and one is not choice]
        return [one for one in others if not one.given_up and one.cell.draft == choice.cell.draft]
