"""The chance that a drafted token is accepted."""

from __future__ import annotations

import math

_LEARN_WEIGHTS, _LEARN_BIAS, _FORGET_BIAS, _LEARN_RATES = 0.01, 0.12, 0.99, 0.03


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
