"""Draft lengths without a model: policies replayed over recorded acceptance, under any cost curve.

A trace holds for every position of a target's text what the drafter thought of its own pick there, and whether the
target chose the same. Acceptance is equality with choices that no draft changes, so any policy can be replayed exactly
as far as the first rejected token of each round; behind it, the drafter's figures are those of the true text, and
nothing is accepted.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from localspec.spec.draft_lookup import LookupDrafter
from localspec.spec.drafter import Draft, common_prefix
from localspec.spec.events import Sampling
from localspec.spec.length import FixedLength, Label, LengthPolicy, Outcome
from localspec.spec.sampling import Sampler

# Cost of a batch relative to one token, as measured or fitted; each batch size in between lies on a line.
CURVES: dict[str, dict[int, float]] = {
    "flat": {1: 1.0, 8: 1.21, 9: 1.5, 33: 2.2},
    "RTX 5090": {1: 1.0, 8: 1.84, 9: 2.2, 33: 5.1},
    "CPU": {1: 1.0, 2: 1.42, 3: 1.86, 4: 1.59, 5: 2.02, 6: 2.7, 8: 3.58, 16: 7.2},
    "slow CPU": {1: 1.0, 2: 1.61, 3: 2.39, 4: 1.92, 5: 2.65, 6: 2.69, 8: 3.07, 9: 3.8, 12: 4.67, 16: 5.78},
}


@dataclass(frozen=True, slots=True)
class Trace:
    """Labels of consecutive positions."""

    name: str
    labels: tuple[Label, ...]

    @classmethod
    def load(cls, path: Path) -> Trace:
        """Read a trace that `save` wrote."""
        data = json.loads(path.read_text(encoding="utf-8"))
        return cls(data["name"], tuple(Label(q, m, bool(a)) for q, m, a in data["labels"]))

    def save(self, path: Path) -> None:
        """Write it as JSON: probability, margin, agreed."""
        rows = [
            [round(label.probability or 0.0, 4), round(min(label.margin or 0.0, 99.0), 3), int(label.agreed)]
            for label in self.labels
        ]
        path.write_text(
            json.dumps({"name": self.name, "labels": rows}, separators=(",", ":")), encoding="utf-8"
        )


@dataclass(frozen=True, slots=True)
class Result:
    """Tokens and the time they took, in target steps."""

    tokens: int
    time: float

    @property
    def speed(self) -> float:
        """Tokens per target step; plain decoding has 1."""
        return self.tokens / self.time


def replay(policy: LengthPolicy, trace: Sequence[Label], curve: Sequence[float], c: float) -> Result:
    """Decode a trace.

    Args:
        policy: Decides the lengths; learns as it would from an engine.
        trace: What the drafter proposes at each position.
        curve: Cost of verifying n tokens at index n, in target steps.
        c: Cost of a draft step.
    """
    position, time, plain = 0, 0.0, 0.0
    shadowed = 0
    while position < len(trace):
        room = min(policy.longest, len(trace) - position - 1, len(curve) - 2)
        proposed = 0
        if room > 0 and policy.begin():
            while proposed < room:
                label = trace[position + proposed]
                proposed += 1
                if not policy.go_on(label.probability, label.margin):
                    break
        kept = policy.keep(proposed) if proposed else 0
        accepted = 0
        while accepted < kept and trace[position + accepted].agreed:
            accepted += 1
        drafted = trace[position : position + proposed]
        spent = c * proposed + curve[kept + 1]
        policy.learn(
            Outcome(
                [label.probability or 0.0 for label in drafted],
                [label.margin or 0.0 for label in drafted],
                (),
                proposed=proposed,
                verified=kept,
                accepted=accepted,
                cut_token_agrees=trace[position + kept].agreed if accepted == kept < proposed else None,
                draft_s=c * proposed,
                verify_s=curve[kept + 1],
                seconds=spent,
            )
        )
        time += spent
        position += accepted + 1
        plain = 0.0 if proposed else plain + spent
        if policy.shadow_due(plain):
            first = max(shadowed, position - 16)
            policy.shadow(trace[first:position], 2 * c, plain)
            time += 2 * c
            shadowed, plain = position, 0.0
    return Result(position, time)


@dataclass(frozen=True, slots=True)
class Text:
    """A prompt and the answer that some model gave, as ids: all that `lookup` needs."""

    name: str
    prompt: tuple[int, ...]
    answer: tuple[int, ...]

    @classmethod
    def load(cls, path: Path) -> list[Text]:
        """Read a JSON array of objects with these three fields."""
        found = json.loads(path.read_text(encoding="utf-8"))
        return [cls(text["name"], tuple(text["prompt"]), tuple(text["answer"])) for text in found]


def replay_lookup(policy: LengthPolicy, text: Text, curve: Sequence[float], drafter: LookupDrafter) -> Result:
    """Decode a text with `lookup`; exact, since a proposal is right where the answer says the same.

    Args:
        policy: Decides the lengths; learns as it would from an engine.
        text: What is written.
        curve: Cost of verifying n tokens at index n, in target steps.
        drafter: May know its rates from another text.
    """
    sampler = Sampler(Sampling(temperature=0.0))
    ids, at, time = [*text.prompt, text.answer[0]], 1, 0.0
    drafter.begin(ids)
    while at < len(text.answer):
        policy.begin()
        room = min(policy.longest, len(text.answer) - at - 1, len(curve) - 2)
        draft = drafter.draft(ids, room, sampler) if room > 0 else Draft()
        kept = policy.keep(len(draft.tokens), draft.chances) if draft.tokens else 0
        accepted = common_prefix(draft.tokens[:kept], text.answer[at:])
        ids += text.answer[at : at + accepted + 1]
        at += accepted + 1
        if draft.tokens:
            drafter.accept(ids)
        cost = curve[kept + 1]
        policy.learn(
            Outcome(
                (),
                (),
                draft.chances,
                proposed=len(draft.tokens),
                verified=kept,
                accepted=accepted,
                cut_token_agrees=None,
                draft_s=0.0,
                verify_s=cost,
                seconds=cost,
            )
        )
        time += cost
    return Result(at - 1, time)


# -------------------------------------------------------------------- rivals


class ConfidenceGate(FixedLength):
    """Stops when the draft's own probability falls under a threshold, as llama.cpp's p-min does."""

    def __init__(self, k: int, threshold: float) -> None:
        super().__init__(k)
        self._threshold = threshold

    def go_on(self, probability: float | None, margin: float | None) -> bool:
        """See `LengthPolicy.go_on`."""
        return super().go_on(probability, margin) and (probability or 0.0) >= self._threshold


class AverageLength(FixedLength):
    """Drafts the running mean of accepted tokens plus one, in the manner of acceptance-following controllers."""

    def __init__(self, k: int, share: float = 0.2) -> None:
        super().__init__(k)
        self._limit = k
        self._share = share
        self._mean = 1.0

    def begin(self) -> bool:
        """See `LengthPolicy.begin`."""
        self._k = min(max(round(self._mean) + 1, 1), self._limit)
        return super().begin()

    @property
    def longest(self) -> int:
        """See `LengthPolicy.longest`."""
        return self._limit

    def learn(self, outcome: Outcome) -> None:
        """See `LengthPolicy.learn`."""
        self._mean += self._share * (outcome.accepted - self._mean)
