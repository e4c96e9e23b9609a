"""The draft length: how many tokens to propose in a round.

`FixedLength` does what it says. `PricedLength` drafts on while a longer draft still earns more than it costs.
Maximising tokens per time over rounds is a renewal-reward problem: at the optimum, each round maximises
E[tokens] - rate * time, where the rate is the one that is being earned (at least 1: plain decoding earns one token per
target step). Times are in target steps throughout.

    S_m     chance that the first m drafted tokens are all accepted
    W(n)    cost of verifying n tokens, or of the cheapest larger batch (verify curves are staircases)
    c       cost of one draft step

After i drafted tokens go on iff some longer draft j still gains:
    max over j > i of  sum(S_m, i < m <= j) - rate * (c * (j - i) + W(j + 1) - W(i + 1))  >  0
Before verifying keep the n <= i that maximises  sum(S_m, m <= n) - rate * W(n + 1):  the draft steps are spent.

The chance of a token comes from an online logistic on the draft's own probability and on the margin of its perturbed
scores. A token bucket bounds what drafting can lose against plain decoding, whatever the text.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul
from typing import Any

from localspec.spec.acceptance import EXPECTED, Acceptance
from localspec.spec.curve import Costs

MAX_PRICED = 16
"""Longest priced draft of a model; longer ones gained nothing in any replay, a sure draft on a flat curve included."""

_RATE_DECAY = 2.0 ** (-1 / 24)
_PEEK, _PEEK_STEP, _PEEK_DECAY = 0.3, 0.1, 0.95
LOSS_SHARE = 0.02
"""Part of plain decoding's time that drafting may lose in the long run."""
LOSS_START = 24.0
"""Target steps that drafting may lose while it learns; spent once per stored profile."""
_DEBT_FLOOR = -16.0
# Target steps between two shadow passes at least; draft steps that one takes.
_SHADOW_STEPS, _SHADOW_COST = 12.0, 2.0
_SHADOW_DEAREST = 0.04  # part of the time since the last one
_PLAIN_EVERY = 128  # rounds after which a plain step is made, to see what one costs by now


@dataclass(frozen=True, slots=True)
class Outcome:
    """A finished round, for the policy to learn from."""

    probabilities: Sequence[float]
    """Of all drafted tokens, those that were cut before verifying too; empty when the drafter has none."""
    margins: Sequence[float]
    chances: Sequence[float]
    """Of a drafter that knows them; such a round teaches nothing about the others."""
    proposed: int
    verified: int
    accepted: int
    cut_token_agrees: bool | None
    """Where everything verified was accepted and more had been drafted: whether the next one was right too."""
    draft_s: float
    verify_s: float
    seconds: float
    """Of the whole round, our own code included."""


@dataclass(frozen=True, slots=True)
class Label:
    """What a drafter would have proposed for a token that is known by now."""

    probability: float | None
    margin: float | None
    agreed: bool


class LengthPolicy(ABC):
    """Decides a round's draft length."""

    @property
    @abstractmethod
    def longest(self) -> int:
        """The longest draft that it may verify."""

    @abstractmethod
    def begin(self) -> bool:
        """Start a round. False = a draft that takes time is not worth it."""

    @property
    def blocked(self) -> bool:
        """Not even a proposal that costs nothing to make is verified in this round."""
        return False

    @property
    def predicted(self) -> float | None:
        """Speed over plain decoding that the last rounds should have earned by their prices; None = no prices."""
        return None

    def at(self, depth: int) -> None:  # noqa: B027  # a fixed length has no prices
        """Told before each round how many tokens the context holds."""

    @abstractmethod
    def go_on(self, probability: float | None, margin: float | None) -> bool:
        """After a drafted token: whether to draft another one."""

    @abstractmethod
    def keep(self, proposed: int, chances: Sequence[float] = ()) -> int:
        """How many of the proposed tokens to verify.

        Args:
            proposed: At least 1.
            chances: Of each token to be accepted, where the drafter knows them.
        """

    def learn(self, outcome: Outcome) -> None:  # noqa: B027  # a fixed length learns nothing
        """Take note of a round's end."""

    def shadow_due(self, seconds: float) -> bool:
        """Whether the drafter should be asked about the tokens that were decoded without it for so long."""
        return False

    def shadow(self, labels: Sequence[Label], seconds: float, missed_s: float) -> None:  # noqa: B027
        """Learn from tokens that the drafter was asked about afterwards, while drafting is off.

        Args:
            labels: What the drafter would have proposed.
            seconds: What asking cost.
            missed_s: How long was decoded without the drafter before.
        """

    @property
    def off_reason(self) -> str:
        """Why it does not draft just now, empty when it does."""
        return ""


class FixedLength(LengthPolicy):
    """Always the same length."""

    def __init__(self, k: int) -> None:
        self._k = k
        self._drafted = 0

    @property
    def longest(self) -> int:
        """See `LengthPolicy.longest`."""
        return self._k

    def begin(self) -> bool:
        """See `LengthPolicy.begin`."""
        self._drafted = 0
        return self._k > 0

    def go_on(self, probability: float | None, margin: float | None) -> bool:
        """See `LengthPolicy.go_on`."""
        self._drafted += 1
        return self._drafted < self._k

    def keep(self, proposed: int, chances: Sequence[float] = ()) -> int:
        """See `LengthPolicy.keep`."""
        return min(proposed, self._k)


class PricedLength(LengthPolicy):
    """The length that earns most at the present prices; see the module's text.

    Args:
        costs: Of this pair on this machine; refined from the rounds' times.
        longest: The greatest length. Drafts that take time stop at `MAX_PRICED`, free proposals do not.
        loss_start: Target steps that learning may cost; 0 once a profile of the pair exists.
        expected: Chances of acceptance by depth to begin with, see `Acceptance`.
    """

    def __init__(
        self,
        costs: Costs,
        longest: int = MAX_PRICED,
        loss_start: float = LOSS_START,
        expected: Sequence[float] = EXPECTED,
    ) -> None:
        self.costs = costs
        self._widest = longest
        self._longest = min(longest, MAX_PRICED)
        self.acceptance = Acceptance(self._longest, expected)
        self._loss_start = loss_start
        self._peek = _PEEK
        self._tokens, self._time = 12.0, 10.0
        self._debt = 0.0
        self._emitted = 0
        self._survival: list[float] = []
        self._blocked = False
        self._since_plain = 0
        self._watchable = True
        self._in_step = False  # the last round was drafted token by token
        self._off = ""
        self._promise = (1.0, 1.0)  # tokens and target steps that the round in hand should make and take
        self._promised = (1.0, 1.0)  # sums over the last rounds

    @property
    def longest(self) -> int:
        """See `LengthPolicy.longest`."""
        return self._widest

    @property
    def rate(self) -> float:
        """Tokens per target step that are being earned: the price of time."""
        return max(1.0, self._tokens / self._time)

    @property
    def predicted(self) -> float:
        """See `LengthPolicy.predicted`."""
        tokens, time = self._promised
        return tokens / time

    @property
    def off_reason(self) -> str:
        """See `LengthPolicy.off_reason`."""
        return self._off

    def at(self, depth: int) -> None:
        """See `LengthPolicy.at`."""
        self.costs.at(depth)

    def begin(self) -> bool:
        """See `LengthPolicy.begin`."""
        self._survival = []
        self._promise = (1.0, 1.0)
        costs = self.costs
        self._since_plain += 1
        allowed = self._loss_start + LOSS_SHARE * self._emitted
        if self._since_plain > _PLAIN_EVERY:
            self._blocked, self._off = True, ""
            return False
        self._blocked = self._debt + costs.w(2) - 1.0 > allowed
        # Asking a free drafter costs nothing.
        if costs.c > 0.0 and not any(gain + self._peek > 0.0 for gain in self._gains()):
            self._off = "drafting would not pay on this text"
        elif self._debt + costs.c + costs.w(2) - 1.0 > allowed:
            self._off = "drafting lost time lately"
        else:
            self._off = ""
        return not self._off

    @property
    def blocked(self) -> bool:
        """See `LengthPolicy.blocked`."""
        return self._blocked

    def go_on(self, probability: float | None, margin: float | None) -> bool:
        """See `LengthPolicy.go_on`."""
        before = self._survival[-1] if self._survival else 1.0
        self._survival.append(before * self.acceptance.chance(len(self._survival), probability, margin))
        return len(self._survival) < self._longest and any(gain > 0.0 for gain in self._gains())

    def keep(self, proposed: int, chances: Sequence[float] = ()) -> int:
        """See `LengthPolicy.keep`."""
        if self._blocked:
            return 0
        steps = 0 if chances else proposed
        if chances:
            self._survival = list(accumulate(chances, mul))
        while len(self._survival) < proposed:  # a drafter that proposes in one go
            self.go_on(None, None)
        kept = self._best(proposed, self._price(proposed) if chances else self.rate)
        self._promise = 1.0 + sum(self._survival[:kept]), self.costs.v(kept + 1) + self.costs.c * steps
        return kept

    def _price(self, proposed: int) -> float:
        """The price of time where the text is being copied, at least the rate.

        Copies come in runs: what this round leaves, the next one gets at the same chances. So the rate to beat is the
        best that these chances can earn, not the mean of the text before.
        """
        totals = accumulate(self._survival[:proposed])
        return max(
            self.rate, *((1.0 + total) / self.costs.w(n + 1) for n, total in enumerate(totals, start=1))
        )

    def _best(self, proposed: int, price: float) -> int:
        best, best_score, total = 0, -price * self.costs.w(1), 0.0
        for n in range(1, proposed + 1):
            total += self._survival[n - 1]
            score = total - price * self.costs.w(n + 1)
            if score > best_score:
                best, best_score = n, score
        # Verifying more costs nothing where the curve has a step down.
        for n in range(proposed, best, -1):
            if self.costs.v(n + 1) <= self.costs.v(best + 1):
                return n
        return best

    def learn(self, outcome: Outcome) -> None:
        """See `LengthPolicy.learn`."""
        if not outcome.chances:
            for depth in range(min(outcome.accepted + 1, outcome.verified)):
                self._learn(depth, outcome, depth < outcome.accepted)
            if outcome.cut_token_agrees is not None:
                self._learn(outcome.verified, outcome, outcome.cut_token_agrees)
        self.costs.saw_verify(outcome.verified + 1, outcome.verify_s)
        if not outcome.verified:
            self._since_plain = 0
        # A drafter that gives probabilities takes a step for each; after rounds without it, it reads those first.
        if outcome.probabilities and self._in_step:
            self.costs.saw_draft(outcome.proposed, outcome.draft_s)
        self._in_step = bool(outcome.probabilities)
        tokens, time = outcome.accepted + 1.0, outcome.seconds / self.costs.plain_step
        self._tokens = self._tokens * _RATE_DECAY + tokens
        self._time = self._time * _RATE_DECAY + time
        self._promised = tuple(  # type: ignore[assignment]
            old * _RATE_DECAY + new for old, new in zip(self._promised, self._promise, strict=True)
        )
        if outcome.proposed and not outcome.chances:
            self._peek = min(_PEEK, self._peek + _PEEK_STEP) if tokens > time else _PEEK_DECAY * self._peek
        self._emitted += outcome.accepted + 1
        if outcome.proposed:
            self._debt = max(_DEBT_FLOOR, self._debt + time - tokens)

    def shadow_due(self, seconds: float) -> bool:
        """See `LengthPolicy.shadow_due`: so seldom that asking costs about one per cent."""
        steps = seconds / self.costs.plain_step
        return self._watchable and steps >= max(_SHADOW_STEPS, self.costs.c * _SHADOW_COST / 0.01)

    def shadow(self, labels: Sequence[Label], seconds: float, missed_s: float) -> None:
        """See `LengthPolicy.shadow`; the time counts as lost."""
        for label in labels:
            self.acceptance.learn(0, label.probability, label.margin, label.agreed)
        self._debt += seconds / self.costs.plain_step
        # The drafter reads all that it missed: where that alone is dear, watching would cost more than it can find.
        self._watchable = seconds <= _SHADOW_DEAREST * missed_s

    def learned(self) -> dict[str, Any]:
        """Everything that was learned, for the profile."""
        return {
            "costs": self.costs.learned(),
            "weights": list(self.acceptance.weights),
            "bias": self.acceptance.bias,
            "mean": self.acceptance.mean,
            "by_depth": list(self.acceptance.by_depth),
            "rate": [self._tokens, self._time],
            "peek": self._peek,
            "debt": self._debt,
        }

    def recall(self, learned: dict[str, Any]) -> None:
        """Take over what `learned` told, the costs excepted. The loss that learning may cost is spent by then.

        Raises:
            KeyError, TypeError, ValueError: It is not what `learned` gives.
        """
        acceptance = Acceptance(self._longest)
        acceptance.weights = [float(w) for w in learned["weights"]][:3]
        acceptance.bias, acceptance.mean = float(learned["bias"]), float(learned["mean"])
        by_depth = [float(d) for d in learned["by_depth"]][: self._longest]
        acceptance.by_depth[: len(by_depth)] = by_depth
        tokens, time = (float(x) for x in learned["rate"])
        peek, debt = float(learned["peek"]), float(learned["debt"])
        numbers = (*acceptance.weights, acceptance.bias, acceptance.mean, *by_depth, tokens, time, peek, debt)
        if len(acceptance.weights) != 3 or time <= 0 or not all(map(math.isfinite, numbers)):
            raise ValueError("not a state of the price rule")
        self.acceptance = acceptance
        self._tokens, self._time = tokens, time
        self._peek, self._debt = peek, debt
        self._loss_start = 0.0

    def gain(self, chances: Sequence[float]) -> float:
        """What verifying a free proposal gains over a plain step, at the best length, in tokens."""
        best, total = 0.0, 0.0
        for n, survival in enumerate(accumulate(chances, mul), start=1):
            total += survival
            best = max(best, total - self.rate * (self.costs.w(n + 1) - 1.0))
        return best

    def gain_of_drafting(self) -> float:
        """The same for a draft that is not made yet, its steps included."""
        return max(self._gains(), default=-math.inf)

    def _learn(self, depth: int, outcome: Outcome, accepted: bool) -> None:
        known = depth < len(outcome.probabilities)
        self.acceptance.learn(
            depth,
            outcome.probabilities[depth] if known else None,
            outcome.margins[depth] if known else None,
            accepted,
        )

    def _gains(self) -> Iterator[float]:
        """What each longer draft gains over stopping here, the shortest first."""
        drafted = len(self._survival)
        survival = self._survival[-1] if self._survival else 1.0
        costs, rate, c = self.costs, self.rate, self.costs.c
        here, gained = costs.w(drafted + 1), 0.0
        for j in range(drafted + 1, self._longest + 1):
            survival *= self.acceptance.ahead(j - 1)
            gained += survival
            yield gained - rate * (c * (j - drafted) + costs.w(j + 1) - here)
