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
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul
from typing import Any

MAX_PRICED = 11
"""Longest priced draft of a model; longer ones did not pay in any simulated setting."""

_LEARN_WEIGHTS, _LEARN_BIAS, _FORGET_BIAS, _LEARN_RATES = 0.01, 0.12, 0.99, 0.03
_RATE_DECAY = 2.0 ** (-1 / 24)
_PEEK, _PEEK_STEP, _PEEK_DECAY = 0.3, 0.1, 0.95
LOSS_SHARE = 0.02
"""Part of plain decoding's time that drafting may lose in the long run."""
LOSS_START = 24.0
"""Target steps that drafting may lose while it learns; spent once per stored profile."""
_DEBT_FLOOR = -16.0
# Target steps between two shadow passes at least; draft steps that one takes.
_SHADOW_STEPS, _SHADOW_COST = 12.0, 2.0
_COST_EMA, _COST_CLAMP, _COST_DRIFT = 0.1, 0.25, 0.08
# A batch of n costs at most so many times n single steps, and no less than one; the rest is noise.
_DEAREST = 1.3
_PLAIN_EVERY = 128  # rounds after which a plain step is made, to see what one costs by now


class Costs:
    """What a round costs on this machine, in seconds; refined while it runs.

    Args:
        verify: Seconds of a target batch by its number of tokens; must hold 1.
        draft_step: Seconds of one draft step; 0 for a drafter that costs nothing.
        size: Largest batch that is asked for.
    """

    def __init__(self, verify: dict[int, float], draft_step: float, size: int) -> None:
        one = verify[1]
        points = {n: min(max(seconds, one), _DEAREST * n * one) for n, seconds in verify.items()} | {1: one}
        self._seconds = [0.0, *(_interpolate(points, n) for n in range(1, size + 1))]
        self.draft_step = draft_step
        self._envelope: list[float] = []
        self._rebuild()

    @property
    def plain_step(self) -> float:
        """Seconds of a target step without a draft."""
        return self._seconds[1]

    @property
    def c(self) -> float:
        """A draft step in target steps."""
        return self.draft_step / self.plain_step

    def w(self, n: int) -> float:
        """The envelope W(n), in target steps."""
        return self._envelope[min(n, len(self._envelope) - 1)]

    def v(self, n: int) -> float:
        """The curve V(n) itself, in target steps."""
        return self._seconds[min(n, len(self._seconds) - 1)] / self.plain_step

    def saw_verify(self, n: int, seconds: float) -> None:
        """Learn from a batch of n tokens.

        The other sizes go along for the most part: a longer context, a warmer machine or another program slows all of
        them.
        """
        if not 1 <= n < len(self._seconds):
            return
        known = self._seconds[n]
        step = min(max(seconds / known - 1.0, -_COST_CLAMP), _COST_CLAMP)
        for size in range(1, len(self._seconds)):
            self._seconds[size] *= 1.0 + (_COST_EMA if size == n else _COST_DRIFT) * step
        self._rebuild()

    def saw_draft(self, steps: int, seconds: float) -> None:
        """Learn from a draft of some steps."""
        if steps and self.draft_step > 0:
            ratio = seconds / steps / self.draft_step - 1.0
            self.draft_step *= 1.0 + _COST_EMA * min(max(ratio, -_COST_CLAMP), _COST_CLAMP)

    def to_verify(self) -> dict[int, float]:
        """The curve as it is now, for the profile: seconds by batch size."""
        return {n: seconds for n, seconds in enumerate(self._seconds) if n}

    def _rebuild(self) -> None:
        envelope = [0.0] * len(self._seconds)
        lowest = math.inf
        for n in range(len(self._seconds) - 1, 0, -1):
            lowest = min(lowest, self._seconds[n])
            envelope[n] = lowest / self._seconds[1]
        self._envelope = envelope


def _interpolate(points: dict[int, float], n: int) -> float:
    below = max((p for p in points if p <= n), default=min(points))
    above = min((p for p in points if p >= n), default=None)
    if above is None:  # beyond the last point: go on with its slope per token
        return points[below] * n / below
    if above == below:
        return points[below]
    share = (n - below) / (above - below)
    return points[below] + share * (points[above] - points[below])


class Acceptance:
    """The chance that a drafted token is accepted, learned from every token whose fate is known.

    An online logistic on (1, logit of the draft's probability, margin), and running rates by depth for tokens that are
    not drafted yet.
    """

    def __init__(self, depth: int) -> None:
        self.weights = [0.1, 0.3, 0.4]
        self.bias = 0.0
        self.mean = 0.7
        self.by_depth = [0.0] * depth

    def chance(self, depth: int, probability: float | None, margin: float | None) -> float:
        """Of a token that was drafted at `depth` (from 0)."""
        if probability is None or margin is None:
            return self.ahead(depth)
        features = _features(probability, margin)
        score = sum(w * x for w, x in zip(self.weights, features, strict=True)) + self.bias
        return 1.0 / (1.0 + math.exp(-score))

    def ahead(self, depth: int) -> float:
        """Of a token that is not drafted yet."""
        offset = self.by_depth[min(depth, len(self.by_depth) - 1)]
        return min(max(self.mean + offset, 0.02), 0.99)

    def learn(self, depth: int, probability: float | None, margin: float | None, accepted: bool) -> None:
        """Take note of a token's fate. `depth` is from 0."""
        outcome = float(accepted)
        if probability is not None and margin is not None:
            features = _features(probability, margin)
            error = outcome - self.chance(depth, probability, margin)
            size = 1.0 + sum(x * x for x in features) / 4.0
            self.weights = [
                w + _LEARN_WEIGHTS * error * x / size for w, x in zip(self.weights, features, strict=True)
            ]
            self.bias = _FORGET_BIAS * (self.bias + _LEARN_BIAS * error)
        difference = outcome - self.mean
        self.mean += _LEARN_RATES * difference
        if depth < len(self.by_depth):
            self.by_depth[depth] += _LEARN_RATES * (difference - self.by_depth[depth])


def _features(probability: float, margin: float) -> tuple[float, float, float]:
    clipped = min(max(probability, 0.003), 0.997)
    return 1.0, math.log(clipped / (1.0 - clipped)), min(margin, 8.0)


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
        """Not even a proposal that costs nothing to make may be verified in this round."""
        return False

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

    def shadow(self, labels: Sequence[Label], seconds: float) -> None:  # noqa: B027
        """Learn from tokens that the drafter was asked about afterwards, while drafting is off.

        Args:
            labels: What the drafter would have proposed.
            seconds: What asking cost.
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
    """

    def __init__(self, costs: Costs, longest: int = MAX_PRICED, loss_start: float = LOSS_START) -> None:
        self.costs = costs
        self._widest = longest
        self._longest = min(longest, MAX_PRICED)
        self.acceptance = Acceptance(self._longest)
        self._loss_start = loss_start
        self._peek = _PEEK
        self._tokens, self._time = 12.0, 10.0
        self._debt = 0.0
        self._emitted = 0
        self._survival: list[float] = []
        self._blocked = False
        self._since_plain = 0
        self._off = ""

    @property
    def longest(self) -> int:
        """See `LengthPolicy.longest`."""
        return self._widest

    @property
    def rate(self) -> float:
        """Tokens per target step that are being earned: the price of time."""
        return max(1.0, self._tokens / self._time)

    @property
    def off_reason(self) -> str:
        """See `LengthPolicy.off_reason`."""
        return self._off

    def begin(self) -> bool:
        """See `LengthPolicy.begin`."""
        self._survival = []
        costs = self.costs
        self._since_plain += 1
        allowed = self._loss_start + LOSS_SHARE * self._emitted
        if self._since_plain > _PLAIN_EVERY:
            self._blocked, self._off = True, ""
            return False
        self._blocked = self._debt + costs.w(2) - 1.0 > allowed
        if self._debt + costs.c + costs.w(2) - 1.0 > allowed:
            self._off = "drafting lost time on this text"
        elif costs.c > 0.0 and self._ahead() + self._peek <= 0.0:  # asking a free drafter costs nothing
            self._off = "drafting would not pay on this text"
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
        return len(self._survival) < self._longest and self._ahead() > 0.0

    def keep(self, proposed: int, chances: Sequence[float] = ()) -> int:
        """See `LengthPolicy.keep`."""
        if chances:
            self._survival = list(accumulate(chances, mul))
        while len(self._survival) < proposed:  # a drafter that proposes in one go
            self.go_on(None, None)
        best, best_score, total = 0, -self.rate * self.costs.w(1), 0.0
        for n in range(1, proposed + 1):
            total += self._survival[n - 1]
            score = total - self.rate * self.costs.w(n + 1)
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
        if outcome.probabilities:  # a drafter that gives them takes a step for each
            self.costs.saw_draft(outcome.proposed, outcome.draft_s)
        tokens, time = outcome.accepted + 1.0, outcome.seconds / self.costs.plain_step
        self._tokens = self._tokens * _RATE_DECAY + tokens
        self._time = self._time * _RATE_DECAY + time
        if outcome.proposed:
            self._peek = min(_PEEK, self._peek + _PEEK_STEP) if tokens > time else _PEEK_DECAY * self._peek
        self._emitted += outcome.accepted + 1
        if outcome.proposed:
            self._debt = max(_DEBT_FLOOR, self._debt + time - tokens)

    def shadow_due(self, seconds: float) -> bool:
        """See `LengthPolicy.shadow_due`: so seldom that asking costs about one per cent."""
        steps = seconds / self.costs.plain_step
        return steps >= max(_SHADOW_STEPS, self.costs.c * _SHADOW_COST / 0.01)

    def shadow(self, labels: Sequence[Label], seconds: float) -> None:
        """See `LengthPolicy.shadow`; the time counts as lost."""
        for label in labels:
            self.acceptance.learn(0, label.probability, label.margin, label.agreed)
        self._debt += seconds / self.costs.plain_step

    def learned(self) -> dict[str, Any]:
        """Everything that was learned, for the profile."""
        return {
            "verify": {str(n): seconds for n, seconds in self.costs.to_verify().items()},
            "draft_step": self.costs.draft_step,
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
        if len(acceptance.weights) != 3 or time <= 0:
            raise ValueError("not a state of the price rule")
        self.acceptance = acceptance
        self._tokens, self._time = tokens, time
        self._peek, self._debt = float(learned["peek"]), float(learned["debt"])
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
        return self._ahead()

    def _learn(self, depth: int, outcome: Outcome, accepted: bool) -> None:
        known = depth < len(outcome.probabilities)
        self.acceptance.learn(
            depth,
            outcome.probabilities[depth] if known else None,
            outcome.margins[depth] if known else None,
            accepted,
        )

    def _ahead(self) -> float:
        """What the best longer draft gains over stopping here."""
        drafted = len(self._survival)
        survival = self._survival[-1] if self._survival else 1.0
        costs, rate = self.costs, self.rate
        here = costs.w(drafted + 1)
        best, gained = -math.inf, 0.0
        for j in range(drafted + 1, self._longest + 1):
            survival *= self.acceptance.ahead(j - 1)
            gained += survival
            best = max(best, gained - rate * (costs.c * (j - drafted) + costs.w(j + 1) - here))
        return best
