"""The rules of tune's race: which drafter is worth an answer, which cell may stay, and when enough was measured."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from localspec.measure import figures
from localspec.measure.compare import FLOOR
from localspec.measure.figures import Ratio
from localspec.measure.tune_cells import OFF, Cell, CellResult, Profile, against

BEHIND = 0.85
"""While the noise is not known yet, a cell under this share of the best one is given up."""
_BEYOND_PARTS = 1.15
"""How much more than its predictions a drafter may earn: `auto` follows the text within an answer, and takes from
lookup what the model does not have."""


def reach(profile: Profile, profiles: Iterable[Profile]) -> float:
    """What a drafter may earn at the very best: on each kind of prompt its best length, lookup's, or no draft.

    Args:
        profile: Of the drafter.
        profiles: Of all drafters that were looked at.
    """
    sources = [profile, *(one for one in profiles if one.candidate.free)]
    kinds = {kind for one in sources for length in one.predictions for kind in length.kinds}
    best = [
        max([1.0, *(length.kinds.get(kind, 0.0) for one in sources for length in one.predictions)])
        for kind in kinds
    ]
    return _BEYOND_PARTS * (figures.geometric_mean(best) or 1.0)


def leader(measured: Iterable[CellResult]) -> CellResult:
    """The fastest cell that is still in the race; no draft where nothing is faster."""
    left = [one for one in measured if one.answers and not one.given_up]
    best = max(left, key=lambda one: one.speedup.value, default=_NO_DRAFT)
    return best if best.speedup.value >= 1 else _NO_DRAFT


_NO_DRAFT = CellResult(Cell(OFF))


def survivors(cells: Sequence[CellResult], measured: Iterable[CellResult]) -> list[CellResult]:
    """The cells that can still be the choice: those whose interval reaches the leader's.

    Of a drafter's fixed lengths only the best one: they were about equal by prediction, so little is lost.

    Args:
        cells: Of one drafter, still in the race.
        measured: All cells.
    """
    best = leader(measured)
    fixed = max((one for one in cells if not one.cell.auto), key=lambda one: one.speedup.value, default=None)
    left = [one for one in cells if one.cell.auto or one is fixed]
    return [one for one in left if one is best or _can_win(one, best)]


def _can_win(one: CellResult, best: CellResult) -> bool:
    ratio = against(one, best)
    if ratio.high is None:
        return ratio.value >= BEHIND
    # A tie goes to the leader where it needs less memory, or follows the text: then there has to be something to gain.
    tie_is_lost = (best.memory, not best.cell.auto) <= (one.memory, not one.cell.auto)
    return ratio.high >= (1 + FLOOR if tie_is_lost else 1.0)


def undecided(left: Sequence[CellResult], measured: Iterable[CellResult]) -> bool:
    """Whether more answers can tell these cells apart, from each other and from the best of the other drafters."""
    if not left:
        return False
    best = leader(one for one in measured if one.cell.draft != left[0].cell.draft)
    rivals = [*left, *([] if best.cell.off else [best])]
    pairs = [(one, other) for at, one in enumerate(left) for other in rivals[at + 1 :]]
    return left[0].speedup.low is None or not all(_told_apart(against(*pair)) for pair in pairs)


def _told_apart(ratio: Ratio) -> bool:
    """One is faster, or neither is by an amount that matters."""
    if ratio.low is None or ratio.high is None:
        return False
    return ratio.low > 1 or ratio.high < 1 or (ratio.low >= 1 / (1 + FLOOR) and ratio.high <= 1 + FLOOR)


def won_or_lost(ratio: Ratio) -> bool:
    """Whether a speed over no draft is so clear that no further answer would change what it means."""
    if ratio.low is None or ratio.high is None:
        return False
    return ratio.low >= 1 + FLOOR or ratio.high < 1 + FLOOR
