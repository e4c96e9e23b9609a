"""The prices by which draft lengths are chosen: measured once for a pair on this machine, learned on, and kept."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from localspec import paths
from localspec.spec.draft_lookup import LookupDrafter
from localspec.spec.engine import Engine
from localspec.spec.length import Costs, PricedLength
from localspec.worker.costs import measure_costs
from localspec.worker.protocol import MeasureCosts

SHADOW_ROWS = 16
"""Rows of logits that a draft context needs to be asked about tokens that were decoded without it."""

# Batch sizes and passes by how long a target step takes: a warm-up should not be felt.
_SIZES: tuple[tuple[float, tuple[int, ...], int], ...] = (
    (0.05, (1, 2, 3, 4, 5, 6, 8, 9, 12, 16), 3),
    (0.2, (1, 2, 3, 4, 6, 8), 2),
    (float("inf"), (1, 2, 4), 1),
)


class Prices:
    """Measures, recalls and keeps what the price rule knows about one pair.

    Args:
        engine: The loaded pair.
        key: What the times depend on: files, versions, devices, settings.
        cancelled: Asked while measuring.
    """

    def __init__(self, engine: Engine, key: Sequence[object], cancelled: Callable[[], bool]) -> None:
        self._engine = engine
        self._cancelled = cancelled
        digest = hashlib.sha256(json.dumps(key, default=str).encode()).hexdigest()[:24]
        self._wanted: int | None = None
        self._file = paths.cache_dir() / "prices" / f"{digest}.json"

    def choose_by_price(self, longest: int, *, answering: bool = False) -> None:
        """Let the engine choose its draft lengths by price, at most `longest`.

        Args:
            longest: The greatest length.
            answering: An answer is being made. Prices that are not known yet are then measured before the next one,
                since measuring needs the caches.
        """
        engine = self._engine
        self._wanted = None
        if engine.drafter is None or not engine.n_draft_limit:
            return
        known = self._read()
        costs = _costs(known, engine.n_draft_limit + 1)
        if costs is None and answering:
            self._wanted = longest
            return
        costs = costs or self._measure()
        engine.set_length(longest, costs)
        if known is not None and isinstance(engine.policy, PricedLength):
            try:
                engine.policy.recall(known)
            except (KeyError, TypeError, ValueError):
                return  # it learns again

    def settle(self) -> None:
        """Between two answers: do what had to wait."""
        if self._wanted is not None:
            self.choose_by_price(self._wanted)

    def keep(self) -> None:
        """Write what was learned, for the next time; without a disk to write to it is learned again then."""
        policy = self._engine.policy
        if not isinstance(policy, PricedLength):
            return
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=self._file.parent)
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(policy.learned(), file)
            Path(name).replace(self._file)
        except OSError:
            return

    def _read(self) -> dict[str, Any] | None:
        try:
            known = json.loads(self._file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return known if isinstance(known, dict) else None

    def _measure(self) -> Costs:
        engine = self._engine
        engine.set_length(min(4, engine.n_draft_limit))
        began = time.perf_counter()
        engine.context.decode([1], "last")
        engine.context.logits()
        step = time.perf_counter() - began
        engine.context.clear()
        sizes, passes = next((sizes, passes) for limit, sizes, passes in _SIZES if step < limit)
        found = measure_costs(engine, MeasureCosts(sizes, seconds=1.0, passes=passes), self._cancelled)
        free = isinstance(engine.drafter, LookupDrafter)
        return Costs(found.verify, 0.0 if free else found.draft_step_s or 0.0, engine.n_draft_limit + 1)


def _costs(known: dict[str, Any] | None, size: int) -> Costs | None:
    """The costs of a stored profile, None when it has none that can be used."""
    try:
        verify = {int(n): float(seconds) for n, seconds in (known or {})["verify"].items()}
        if min(verify.values()) <= 0 or 1 not in verify:
            return None
        return Costs(verify, float((known or {})["draft_step"]), size)
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
