"""The prices by which draft lengths are chosen: measured once for a pair on this machine, learned on, and kept."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

from localspec.errors import LocalspecError
from localspec.spec.curve import Costs
from localspec.spec.draft_lookup import LookupDrafter
from localspec.spec.draft_stock import StockDrafter
from localspec.spec.engine import Engine
from localspec.spec.length import PricedLength
from localspec.worker.costs import measure_costs
from localspec.worker.kept import Kept
from localspec.worker.protocol import MeasureCosts

SHADOW_ROWS = 16
"""Rows of logits that a draft context needs to be asked about tokens that were decoded without it."""

# Batch sizes and passes by how long a target step takes: a warm-up should not be felt.
_SIZES: tuple[tuple[float, tuple[int, ...], int], ...] = (
    (0.05, (1, 2, 3, 4, 5, 6, 8, 9, 12, 16), 3),
    (0.2, (1, 2, 3, 4, 6, 8), 2),
    (float("inf"), (1, 2, 4), 1),
)
# Times slower or faster, and seconds of a step: the machine is another one by now, and not only busy for a moment.
_CHANGED, _NOTICED = 1.6, 0.002
_DEAREST = 2.0  # target steps a draft step; with more nothing would ever be drafted, nor the step timed again
_OWN_WORK = 1.5, 0.002  # a draft step over an evaluation alone, and seconds of choosing


class Prices:
    """Measures, recalls and keeps what the price rule knows about one pair.

    Args:
        engine: The loaded pair.
        key: What the times depend on: files, versions, devices, settings.
        cancelled: Asked while measuring.
        progress: Told the share of the measuring that is done.
    """

    def __init__(
        self,
        engine: Engine,
        key: Sequence[object],
        cancelled: Callable[[], bool],
        progress: Callable[[float], None] = lambda _share: None,
    ) -> None:
        self._engine = engine
        self._cancelled = cancelled
        self._progress = progress
        self._wanted: int | None = None
        self._kept = Kept("prices", key)

    def choose_by_price(self, longest: int, *, answering: bool = False, now: Sequence[float] = ()) -> None:
        """Let the engine choose its draft lengths by price, at most `longest`.

        Args:
            longest: The greatest length.
            answering: An answer is being made. Prices that are not known yet are then measured before the next one,
                since measuring needs the caches.
            now: Seconds of one evaluation in the empty caches of the target and, where it has one, of the draft, as
                they were just timed. Prices that were kept on a slower or faster day are brought to them.

        Raises:
            LocalspecError: Measuring failed, or was stopped.
        """
        engine = self._engine
        self._wanted = None
        if engine.drafter is None or not engine.n_draft_limit:
            return
        known = self._kept.read()
        try:
            costs = Costs.recalled(_of_today(known["costs"], now), engine.n_draft_limit + 1)
            if costs.draft_step > _DEAREST * costs.plain_step + _NOTICED:
                raise ValueError("no price of a draft")
        except (AttributeError, KeyError, TypeError, ValueError, ZeroDivisionError):
            if answering:
                self._wanted = longest
                return
            costs = self._measure()
        engine.set_length(longest, costs)
        if isinstance(engine.policy, PricedLength):
            with contextlib.suppress(KeyError, TypeError, ValueError):  # it learns again
                engine.policy.recall(known)
            with contextlib.suppress(KeyError, TypeError, ValueError):
                engine.drafter.recall(known["drafter"])

    @property
    def acceptance(self) -> float | None:
        """The chance of a drafted token as it was learned, None where nothing was kept."""
        mean = self._kept.read().get("mean")
        return mean if isinstance(mean, float) and 0.0 < mean < 1.0 else None

    def settle(self) -> None:
        """Between two answers: do what had to wait."""
        if self._wanted is not None and not self._cancelled():
            self.choose_by_price(self._wanted)

    def keep(self) -> None:
        """Write what was learned, for the next time; without a disk to write to it is learned again then."""
        policy, drafter = self._engine.policy, self._engine.drafter
        if drafter is None or not isinstance(policy, PricedLength):
            return
        self._kept.write(policy.learned() | {"drafter": drafter.learned()})

    def _measure(self) -> Costs:
        engine = self._engine
        engine.set_length(min(4, engine.n_draft_limit))
        began = time.perf_counter()
        engine.context.decode([1], "last")
        engine.context.logits()
        step = time.perf_counter() - began
        engine.context.clear()
        sizes, passes = next((sizes, passes) for limit, sizes, passes in _SIZES if step < limit)
        command = MeasureCosts(sizes, seconds=1.0, passes=passes)
        found = measure_costs(engine, command, self._cancelled, self._progress)
        if self._cancelled():  # by half a curve drafting may never seem to pay, and what is kept is believed
            raise LocalspecError("Measuring was stopped.")
        free = isinstance(engine.drafter, (LookupDrafter, StockDrafter))  # which sees to its own price
        waited = engine.drafter.waited if engine.drafter is not None else 1.0
        draft_step = 0.0 if free else (found.draft_step_s or 0.0) * waited
        return Costs(found.verify, draft_step, engine.n_draft_limit + 1)


def _of_today(costs: dict[str, Any], now: Sequence[float]) -> dict[str, Any]:
    """Kept prices, brought to what the evaluations just took where that is something else altogether.

    Small differences are left to the rounds, which learn from their times; with a target twice as slow as on the day
    before they would take dozens of rounds, and blame the draft for it.

    Args:
        costs: As `Costs.learned` gave them.
        now: See `Prices.choose_by_price`.

    Raises:
        AttributeError, KeyError, TypeError, ValueError, ZeroDivisionError: They are damaged.
    """
    if not now:
        return costs
    shallow = costs[min(costs, key=int)]
    kept = float(shallow["verify"]["1"])
    factor = now[0] / kept
    if 1 / _CHANGED < factor < _CHANGED or abs(now[0] - kept) < _NOTICED:
        factor = 1.0
    times, more = _OWN_WORK
    most = now[1] * times + more if len(now) > 1 else math.inf
    return {
        depth: {
            "verify": {n: seconds * factor for n, seconds in entry["verify"].items()},
            "draft_step": min(entry["draft_step"] * factor, most),
        }
        for depth, entry in costs.items()
    }
