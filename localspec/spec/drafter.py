"""What every drafter is: ids in, proposed ids out.

A drafter is also a stock `LlamaDraftModel`, so each works in `llama_cpp.Llama(draft_model=...)`. The engine uses the
wider contract below, which lets a drafter keep its own cache in step with the accepted text.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from localspec.llama.backend import LlamaDraftModel
from localspec.spec.acceptance import EXPECTED
from localspec.spec.events import Sampling
from localspec.spec.length import Label, LengthPolicy
from localspec.spec.sampling import Choice, Row, Sampler

GoOn = Callable[[float | None, float | None], bool]


def always(_probability: float | None, _margin: float | None) -> bool:
    """Draft as long as is allowed."""
    return True


@dataclass(frozen=True, slots=True)
class Draft:
    """A proposal. `probabilities` and `margins` are empty for a drafter that has none."""

    tokens: tuple[int, ...] = ()
    probabilities: tuple[float, ...] = ()
    """What the drafter gave each proposed token, in its own shaped distribution."""
    margins: tuple[float, ...] = ()
    """Best minus second best perturbed score of each proposed token."""
    chances: tuple[float, ...] = ()
    """Of a drafter that knows them: the chance of each token to be accepted when those before it are."""
    source: str = ""
    """Where it comes from, of a drafter that has several sources; otherwise the drafter's name is taken."""


class Drafter(LlamaDraftModel):  # type: ignore[misc]  # llama_cpp has no types
    """Proposes the next tokens of a conversation."""

    name: str = ""
    """Shown on screen."""
    free: bool = False
    """It can make proposals that cost nothing, so it is asked even where drafting does not pay."""
    overlaps: bool = False
    """It drafts on while the target verifies."""
    waited: float = 1.0
    """Share of its time that the rounds are likely to wait for; the rest is hidden behind the target."""
    expected: Sequence[float] = EXPECTED
    """Its chances of acceptance by depth, until they are seen; see `Acceptance`."""
    n_draft_alone: int = 8
    """Draft length inside a stock `Llama`, which does not name one."""

    @property
    def off_reason(self) -> str:
        """Why it cannot propose just now, empty when it can."""
        return ""

    def reach(self, keep: int) -> int:
        """How much of a conversation's cached beginning it can go on from.

        Asked before the target's cache is cut back to `keep` tokens; the target evaluates the rest again.

        Args:
            keep: Tokens that the target could keep.

        Returns:
            At most `keep`.
        """
        return keep

    def expect(self, ids: Sequence[int], anchors: Sequence[int]) -> None:  # most have nothing to do
        """Hear about the next conversation before `reach` is asked and the target reads it.

        Args:
            ids: The whole prompt.
            anchors: Where later prompts may leave it, see `Request.anchors`.
        """

    def bind(self, policy: LengthPolicy) -> None:
        """Get to know the policy that prices the proposals; only a drafter that has a choice needs it."""

    @abstractmethod
    def begin(self, ids: Sequence[int], *, cancelled: Callable[[], bool] = lambda: False) -> None:
        """Take note of a conversation that may differ from the last one anywhere.

        Args:
            ids: The target's ids; the last one is not in the target's cache yet.
            cancelled: Ends the work early; the rest is done by the next `draft`, which may ask it too.
        """

    @abstractmethod
    def draft(self, ids: Sequence[int], k: int, sampler: Sampler, go_on: GoOn = always) -> Draft:
        """Propose at most k tokens behind `ids`.

        Args:
            ids: The conversation so far: what `begin` saw, plus accepted tokens.
            k: At least 1.
            sampler: Chooses with the noise of the target; see `Sampler.for_draft`.
            go_on: Asked after each token, with its probability and margin, whether another one is worth its time. A
                drafter whose tokens cost nothing need not ask.
        """

    def shadow(self, ids: Sequence[int], sampler: Sampler) -> list[Label]:
        """What it would have proposed for tokens that were decoded without it, newest last.

        Args:
            ids: The conversation so far.
            sampler: As for `draft`.
        """
        return []

    def accept(self, ids: Sequence[int]) -> None:  # a drafter without memory has nothing to do
        """The accepted conversation after a round; drop what goes beyond it.

        Args:
            ids: All accepted ids.
        """

    def rest(self) -> None:  # most do nothing unasked
        """An answer is over, however it ended: do nothing more until the next `begin`."""

    def clear(self) -> None:
        """Forget the conversation."""

    def learned(self) -> dict[str, Any]:
        """What it knows about its own proposals, for the profile."""
        return {}

    def recall(self, learned: dict[str, Any]) -> None:  # most learn nothing
        """Take over what `learned` told.

        Raises:
            KeyError, TypeError, ValueError: It is not what `learned` gives.
        """

    def close(self) -> None:
        """Give memory back."""

    def __call__(self, input_ids: npt.NDArray[np.intc], /, **kwargs: Any) -> npt.NDArray[np.intc]:
        """The stock contract: propose greedily behind `input_ids`, shape (n,)."""
        ids: list[int] = input_ids.tolist()
        self.begin(ids)
        draft = self.draft(ids, self.n_draft_alone, _GREEDY)
        self.accept(ids)
        return np.asarray(draft.tokens, dtype=np.intc)


def draft_by_steps(
    ids: Sequence[int],
    k: int,
    sampler: Sampler,
    go_on: GoOn,
    *,
    row: Callable[[], Row],
    step: Callable[[int], None],
) -> Draft:
    """Draft token by token.

    Args:
        ids: The conversation so far, evaluated.
        k: The most tokens to draft, at least 1.
        sampler: Chooses them.
        go_on: Asked after each.
        row: Logits behind what was evaluated last, shape (n_vocab,).
        step: Evaluates a token. The last drafted one is not evaluated.
    """
    seen = sampler.sampling.penalty_last_n
    history = list(ids[-seen:] if seen > 0 else ids) if sampler.penalises else []  # nobody else looks at it
    choices: list[Choice] = []
    while True:
        choice = sampler.propose(row(), len(ids) + len(choices), history)
        choices.append(choice)
        wanted = go_on(choice.probability, choice.margin)  # the last one is judged by its own chance too
        if len(choices) == k or not wanted:
            break
        history.append(choice.token)
        step(choice.token)
    return Draft(
        tuple(choice.token for choice in choices),
        tuple(choice.probability for choice in choices),
        tuple(choice.margin for choice in choices),
    )


def label_rows(rows: Iterable[Row], start: int, ids: Sequence[int], sampler: Sampler) -> list[Label]:
    """What would have been proposed where the conversation is known.

    Args:
        rows: Logits behind the ids at `start`, `start` + 1, ...
        start: Index of the first one's id.
        ids: The conversation so far.
        sampler: As for `Drafter.draft`.
    """
    labels = []
    for position, row in enumerate(rows, start + 1):
        choice = sampler.propose(row, position, ids[:position] if sampler.penalises else ())
        labels.append(Label(choice.probability, choice.margin, choice.token == ids[position]))
    return labels


_GREEDY = Sampler(Sampling(temperature=0.0))


def common_prefix(a: Sequence[int], b: Sequence[int], start: int = 0) -> int:
    """Length of the common prefix of two id lists that are known to agree up to `start`."""
    end = min(len(a), len(b))
    for index in range(start, end):
        if a[index] != b[index]:
            return index
    return end
