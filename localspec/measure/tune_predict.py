"""What each draft length would earn, worked out from one answer at the greatest length.

A drafted token is accepted when it equals the target's own choice, which no draft changes. So the text of an answer,
and at each of its tokens whether the drafter agrees with it, are the same for every draft length. One answer with a
long draft tells these labels (accepted tokens agree, the one after them does not); the rounds of any shorter length
are then replayed on them, without another token being computed. Times come from the measured verify curve and draft
step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from localspec.measure import figures
from localspec.spec.stats import Stats
from localspec.worker.protocol import Costs

LONGEST = 16
"""The greatest fixed draft length."""

_TIMING_NOISE = 0.05

Labels = tuple[bool | None, ...]
"""For each token of an answer: the drafter agrees, does not, or had no proposal (None)."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What a round is made of, in seconds."""

    verify: Mapping[int, float]
    """A target batch of n tokens; 1 is among them."""
    step: float
    """One draft step; 0 for a drafter that costs nothing."""
    overhead: float = 0.0
    """Our own code, for each token of the answer."""

    @classmethod
    def of(cls, costs: Costs, *, free: bool, overhead: float = 0.0) -> Parts:
        """From measured costs.

        Args:
            costs: Of the loaded pair.
            free: The drafter takes no time (lookup).
            overhead: See `Parts.overhead`.
        """
        return cls(costs.verify, 0.0 if free else costs.draft_step_s or 0.0, overhead)

    def round(self, drafted: int) -> float:
        """A round that verifies so many drafted tokens, without our own code."""
        return figures.interpolate(self.verify, drafted + 1) + drafted * self.step

    @property
    def plain(self) -> float:
        """A token without a draft."""
        return self.verify[1] + self.overhead


@dataclass(frozen=True, slots=True)
class Prediction:
    """One fixed draft length on the measured texts."""

    n_draft: int
    speedup: float
    """Over no draft; over kinds of prompts, the geometric mean."""
    mean_accepted_length: float
    acceptance_rate: float
    kinds: Mapping[str, float]
    """Speedup by kind."""


def ceiling(parts: Parts, k: int) -> float:
    """The speedup at length k if every drafted token were accepted: no text can earn more."""
    return (k + 1) * parts.plain / (parts.round(k) + (k + 1) * parts.overhead)


def useful_length(parts: Parts, longest: int = LONGEST) -> int:
    """The length beyond which no longer one can be better, whatever is accepted.

    Where even full acceptance earns less than a shorter length does, any text earns less: a longer draft gains the
    most when all of it is accepted. Times have noise: a length that falls short by no more than that stays in.
    """
    ceilings = {k: ceiling(parts, k) for k in range(1, longest + 1)}
    enough = max(ceilings.values()) * (1 - _TIMING_NOISE)
    return max(k for k, most in ceilings.items() if most >= enough)


def labels(rounds: Sequence[Stats], longest: int) -> Labels:
    """The labels of an answer.

    Args:
        rounds: Counters at the end of each of its rounds.
        longest: The draft length of all of them; a drafter that had no more to propose drafted less.
    """
    found: list[bool | None] = []
    before = Stats(completion_tokens=rounds[0].completion_tokens) if rounds else Stats()
    for stats in rounds:
        tokens = stats.completion_tokens - before.completion_tokens
        accepted, drafted = stats.accepted - before.accepted, stats.drafted - before.drafted
        before = stats
        if tokens < 1:
            continue
        found += [True] * min(accepted, tokens)
        if tokens > accepted:
            # The bonus token. After a draft of full length nobody asked the drafter about it: it had agreed so long
            # that it is taken to agree. A shorter draft ended because there was nothing more to propose.
            full = drafted >= longest
            found.append(False if accepted < drafted else True if full else None)
    return tuple(found)


def replay(texts: Sequence[Labels], k: int) -> tuple[int, int, int, int]:
    """The rounds of length k on these texts.

    Returns:
        Rounds, rounds that drafted, accepted tokens, tokens.
    """
    rounds = drafted_rounds = accepted = tokens = 0
    for text in texts:
        at = 0
        while at < len(text):
            run = 0
            if text[at] is not None:
                drafted_rounds += 1
                while run < k and at + run < len(text) and text[at + run]:
                    run += 1
            rounds += 1
            accepted += run
            at += run + 1
        tokens += len(text)
    return rounds, drafted_rounds, accepted, tokens


def survival(texts: Sequence[Labels], k: int) -> tuple[float, ...]:
    """Of the rounds that draft with length k, the share that accepts the first 1, 2, ... k tokens."""
    reached = [0] * k
    started = 0
    for text in texts:
        at = 0
        while at < len(text):
            run = 0
            if text[at] is not None:
                started += 1
                while run < k and at + run < len(text) and text[at + run]:
                    reached[run] += 1
                    run += 1
            at += run + 1
    return tuple(count / started for count in reached) if started else ()


def predict(kinds: Mapping[str, Sequence[Labels]], parts: Parts, longest: int) -> list[Prediction]:
    """Every length from 1 to `longest`.

    Args:
        kinds: The labels of the answers of each kind of prompt; none of them empty.
        parts: Times.
        longest: The length with which the labels were made.
    """
    found = []
    for k in range(1, longest + 1):
        speedups, rounds, drafted, accepted = {}, 0, 0, 0
        for kind, texts in kinds.items():
            n, with_draft, agreed, tokens = replay(texts, k)
            seconds = with_draft * parts.round(k) + (n - with_draft) * parts.verify[1]
            speedups[kind] = tokens * parts.plain / (seconds + tokens * parts.overhead)
            rounds, drafted, accepted = rounds + n, drafted + with_draft * k, accepted + agreed
        found.append(
            Prediction(
                n_draft=k,
                speedup=figures.geometric_mean(speedups.values()) or 0.0,
                mean_accepted_length=1 + accepted / rounds if rounds else 1.0,
                acceptance_rate=accepted / drafted if drafted else 0.0,
                kinds=speedups,
            )
        )
    return found


def promising(predictions: Sequence[Prediction], *, near: float = 0.03, apart: int = 3) -> tuple[int, ...]:
    """The lengths that are worth measuring: the best one, and another that is about as good on another stair.

    Lengths close to each other differ by little, and what one costs more than its parts the other costs too.

    Args:
        predictions: Of one drafter.
        near: How much worse than the best one the other may be.
        apart: How far from it.
    """
    best, *ranked = sorted(predictions, key=lambda one: -one.speedup)
    others = [
        one.n_draft
        for one in ranked
        if abs(one.n_draft - best.n_draft) >= apart and one.speedup >= best.speedup * (1 - near)
    ]
    return (best.n_draft, *others[:1])
