"""Drafters of somebody's own that keep to our contract, `Drafter`. Nothing that they give or do is trusted."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from localspec.errors import AbortedError, DrafterError
from localspec.models.text import printable
from localspec.spec.draft_stock import proposed_ids
from localspec.spec.drafter import Draft, Drafter, GoOn, always
from localspec.spec.foreign import Foreign, Unusable
from localspec.spec.length import Label, LengthPolicy
from localspec.spec.sampling import Sampler

_CLOSING_S = 2.0


class GuardedDrafter(Drafter):
    """A `Drafter` of somebody's own, with its wider contract; what it gives is looked at, what it raises is said.

    Args:
        inner: The drafter.
        name: Shown on screen.
        n_vocab: Size of the target's vocabulary.
        foreign: Runs the calls.
    """

    def __init__(self, inner: Drafter, name: str, n_vocab: int, foreign: Foreign) -> None:
        self.name = name
        self.free = bool(inner.free)
        self._inner = inner
        self._n_vocab = n_vocab
        self._foreign = foreign
        self._fault: DrafterError | None = None

    @property
    def off_reason(self) -> str:
        """See `Drafter.off_reason`."""
        return printable(str(self._quietly(lambda: self._inner.off_reason) or ""))

    def reach(self, keep: int) -> int:
        """See `Drafter.reach`."""
        reached = self._quietly(lambda: int(self._inner.reach(keep)))
        return keep if reached is None else min(max(reached, 0), keep)

    def expect(self, ids: Sequence[int], anchors: Sequence[int]) -> None:
        """See `Drafter.expect`."""
        self._quietly(lambda: self._inner.expect(list(ids), tuple(anchors)))

    def bind(self, policy: LengthPolicy) -> None:
        """See `Drafter.bind`."""
        self._quietly(lambda: self._inner.bind(policy))

    def begin(self, ids: Sequence[int], *, cancelled: Callable[[], bool] = lambda: False) -> None:
        """See `Drafter.begin`."""
        self._raise_fault()
        given = list(ids)
        self._foreign.run(lambda: self._inner.begin(given, cancelled=cancelled))

    def draft(self, ids: Sequence[int], k: int, sampler: Sampler, go_on: GoOn = always) -> Draft:
        """See `Drafter.draft`."""
        self._raise_fault()
        given, waited_for = list(ids), True

        def guarded(probability: float | None, margin: float | None) -> bool:
            _check_numbers("probability", [] if probability is None else [probability], most=1.0)
            _check_numbers("margin", [] if margin is None else [margin])
            return waited_for and go_on(probability, margin)

        try:
            return self._foreign.run(
                lambda: _checked(self._inner.draft(given, k, sampler, guarded), k, self._n_vocab)
            )
        finally:
            waited_for = False

    def shadow(self, ids: Sequence[int], sampler: Sampler) -> list[Label]:
        """See `Drafter.shadow`."""
        self._raise_fault()
        given = list(ids)
        return self._foreign.run(lambda: _checked_labels(self._inner.shadow(given, sampler)))

    def accept(self, ids: Sequence[int]) -> None:
        """See `Drafter.accept`."""
        given = list(ids)
        self._quietly(lambda: self._inner.accept(given))

    def rest(self) -> None:
        """See `Drafter.rest`."""
        self._quietly(self._inner.rest)

    def clear(self) -> None:
        """See `Drafter.clear`. What failed before is forgotten too."""
        self._fault = None
        self._quietly(self._inner.clear)

    def close(self) -> None:
        """See `Drafter.close`."""
        if not self._foreign.busy:
            self._quietly(self._inner.close, patience_s=_CLOSING_S)
        self._foreign.close()

    def _quietly(self, call: Callable[[], Any], patience_s: float | None = None) -> Any:
        """The result of a call; what goes wrong is told at the next proposal, which may fail."""
        try:
            return self._foreign.run(call, patience_s=patience_s)
        except DrafterError as error:
            self._fault = error
        except AbortedError:
            self._fault = DrafterError("the drafter was stopped in the middle of its work")
        return None

    def _raise_fault(self) -> None:
        if self._fault is not None:
            fault, self._fault = self._fault, None
            raise fault


def _checked(draft: Any, k: int, n_vocab: int) -> Draft:
    if not isinstance(draft, Draft):
        raise Unusable(f"returned a {type(draft).__name__}, not a Draft")
    tokens = proposed_ids(draft.tokens, k, n_vocab)
    for name, most in (("probabilities", 1.0), ("margins", math.inf), ("chances", 1.0)):
        values = getattr(draft, name)
        if len(values) not in (0, len(draft.tokens)):
            raise Unusable(f"returned {len(values)} {name} for {len(draft.tokens)} tokens")
        _check_numbers(name, values, most=most)
    count = len(tokens)
    return Draft(
        tokens,
        tuple(map(float, draft.probabilities[:count])),
        tuple(map(float, draft.margins[:count])),
        tuple(map(float, draft.chances[:count])),
    )


def _checked_labels(labels: Any) -> list[Label]:
    found = [Label(label.probability, label.margin, bool(label.agreed)) for label in labels]
    for label in found:
        _check_numbers("probability", [] if label.probability is None else [label.probability], most=1.0)
        _check_numbers("margin", [] if label.margin is None else [label.margin])
    return found


def _check_numbers(name: str, values: Sequence[float], most: float = math.inf) -> None:
    for value in values:
        if not (math.isfinite(value) and 0 <= value <= most):
            raise Unusable(f"gave {value} as {name}")
