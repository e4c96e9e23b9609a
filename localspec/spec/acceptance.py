"""The chance that a drafted token is accepted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import mul

EXPECTED = (0.7,)
"""The chance of a draft's tokens before any is seen, see `Acceptance`."""

# So quick that a draft which is always right is trusted within a short answer; slower ones gained nowhere in replays.
_LEARN_WEIGHTS, _LEARN_BIAS, _FORGET_BIAS, _LEARN_RATES = 0.1, 0.25, 0.998, 0.03


class Acceptance:
    """The chance that a drafted token is accepted, learned from every token whose fate is known.

    An online logistic on (1, logit of the draft's probability, margin), and running rates by depth for tokens that are
    not drafted yet.

    Args:
        depth: Depths that are told apart.
        expected: The chance at depth 0, 1, ... when those before were accepted, until it is seen; the last one holds
            from there on.
    """

    def __init__(self, depth: int, expected: Sequence[float] = EXPECTED) -> None:
        self.weights = [0.1, 0.3, 0.4]
        self.bias = 0.0
        self.mean = expected[0]
        self.by_depth = [expected[min(i, len(expected) - 1)] - self.mean for i in range(depth)]

    def chance(self, depth: int, probability: float | None, margin: float | None) -> float:
        """Of a token that was drafted at `depth` (from 0)."""
        if probability is None or margin is None:
            return self.ahead(depth)
        return self._logistic(_features(probability, margin))

    def ahead(self, depth: int) -> float:
        """Of a token that is not drafted yet."""
        offset = self.by_depth[min(depth, len(self.by_depth) - 1)]
        return min(max(self.mean + offset, 0.02), 0.99)

    def learn(self, depth: int, probability: float | None, margin: float | None, accepted: bool) -> None:
        """Take note of a token's fate. `depth` is from 0."""
        outcome = float(accepted)
        if probability is not None and margin is not None:
            features = _features(probability, margin)
            error = outcome - self._logistic(features)
            size = 1.0 + sum(x * x for x in features) / 4.0
            self.weights = [
                w + _LEARN_WEIGHTS * error * x / size for w, x in zip(self.weights, features, strict=True)
            ]
            self.bias = _FORGET_BIAS * (self.bias + _LEARN_BIAS * error)
        difference = outcome - self.mean
        self.mean += _LEARN_RATES * difference
        if depth < len(self.by_depth):
            self.by_depth[depth] += _LEARN_RATES * (difference - self.by_depth[depth])

    def _logistic(self, features: tuple[float, float, float]) -> float:
        return 1.0 / (1.0 + math.exp(-sum(map(mul, self.weights, features), self.bias)))


def _features(probability: float, margin: float) -> tuple[float, float, float]:
    clipped = min(max(probability, 0.003), 0.997)
    return 1.0, math.log(clipped / (1.0 - clipped)), min(margin, 8.0)
