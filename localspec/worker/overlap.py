"""Whether a draft model drafts on while the target verifies: where it can, and where it pays.

It pays where the two do not compute with the same parts of the machine, where a draft step is dear enough that hiding
it matters, and where the target is hardly slower with the draft at work beside it. All of this is measured once for a
pair on this machine and kept.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from localspec.errors import LocalspecError
from localspec.memory.plan import ModelMemory, Plan
from localspec.spec.curve import Costs
from localspec.spec.draft_chain import ChainDrafter
from localspec.spec.draft_model import ModelDrafter
from localspec.spec.draft_overlap import MOST_AHEAD, OverlapDrafter
from localspec.spec.drafter import Drafter
from localspec.spec.engine import Engine
from localspec.spec.events import Sampling
from localspec.spec.sampling import Sampler
from localspec.worker.costs import measure_costs
from localspec.worker.kept import Kept
from localspec.worker.protocol import MeasureCosts, OverlapMode

_CHEAPEST = 0.15  # c from which hiding a draft step can matter
_CONTENTION = 0.05  # slowdown of the target that is borne
_GAIN = 0.05  # what it must promise
_WAIT, _LONGEST_WAIT = 0.3, 3  # target steps, tokens
_ACCEPTANCE = 0.7  # of a pair that nothing is known about yet
_FILLED = 16  # tokens in the caches while contention is measured
_PASSES, _LEAST_PASSES, _SECONDS = 8, 3, 1.0


@dataclass(frozen=True, slots=True)
class Beside:
    """What a pair's parts cost, in seconds, and what working at the same time does to the target."""

    verify: dict[int, float]
    draft_step: float
    contention: float
    """A verify pass with the draft at work beside it over one alone, minus 1."""

    @property
    def c(self) -> float:
        """A draft step in target steps."""
        return self.draft_step / self.verify[1]


def least_ready(c: float) -> int:
    """Tokens that a round waits for: as many as fit into a third of a target step."""
    return min(int(_WAIT / c), _LONGEST_WAIT) if c > 0 else _LONGEST_WAIT


def predicted_gain(costs: Costs, contention: float, acceptance: float, lengths: Sequence[int]) -> float:
    """Speed of the overlapped order over the plain one, each at its best length, minus 1.

    With probability p = a^(k+1) everything was accepted and the bonus guessed: the next draft is then ready when the
    target is. Otherwise it is made after the target's step, as in the plain order.

    Args:
        costs: Of the target's batches and a draft step.
        contention: What the target loses while the draft works.
        acceptance: The chance a of a drafted token, the same at all positions.
        lengths: Draft lengths to choose from.
    """
    plain = overlapped = 0.0
    for k in lengths:
        tokens = sum(acceptance**i for i in range(k + 1))
        verify, draft = costs.v(k + 1), costs.c * k
        beside = verify * (1 + contention)
        hit = acceptance ** (k + 1)
        plain = max(plain, tokens / (draft + verify))
        took = (1 - hit) * (draft + beside) + hit * max(beside, draft + costs.c)
        overlapped = max(overlapped, tokens / took)
    return overlapped / plain - 1 if plain else 0.0


def share_cores(plan: Plan) -> bool:
    """Whether both models compute on the CPU, in part at least."""
    placed = [plan.place("target"), plan.place("draft")]
    return all(item is not None and "CPU" in _parts(item) for item in placed)


def split_threads(total: int) -> tuple[int, int]:
    """Threads for target and draft when both use the same cores at the same time: most of them for the target."""
    draft = max(total // 4, 1)
    return max(total - draft, 1), draft


class OverlapChoice:
    """Decides for one loaded pair, and puts the drafter in place.

    Args:
        engine: The pair, with the drafter of the plain order.
        mode: What the person wants.
        plan: Where the models are.
        key: What the times depend on: files, versions, devices, settings.
        auto: Draft lengths will be chosen by price; else it is the engine's.
        acceptance: The chance of a drafted token as this pair learned it; None = it is not known yet.
        cancelled: Asked while measuring.
    """

    def __init__(
        self,
        engine: Engine,
        mode: OverlapMode,
        plan: Plan,
        key: Sequence[object],
        *,
        auto: bool = False,
        acceptance: float | None = None,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> None:
        self._engine = engine
        self._mode = mode
        self._plan = plan
        self._auto = auto
        self._acceptance = _ACCEPTANCE if acceptance is None else acceptance
        self._cancelled = cancelled
        self._kept = Kept("overlap", key)

    def apply(self) -> OverlapDrafter | None:
        """Put the overlapping drafter into the engine where it is wanted; else say in the engine why not.

        Returns:
            The drafter, which has a thread to close; None in the plain order.
        """
        engine = self._engine
        chain = engine.drafter if isinstance(engine.drafter, ChainDrafter) else None
        inner = chain.other if chain is not None else engine.drafter
        engine.no_overlap = self._impossible(inner)
        if engine.no_overlap or not isinstance(inner, ModelDrafter):
            return None
        try:
            beside = self._read() or self._measure(inner)
        except LocalspecError as error:
            engine.no_overlap = f"it could not be measured: {error.message.rstrip('.')}"
            return None
        if self._mode == "auto":
            engine.no_overlap = self._does_not_pay(beside)
            if engine.no_overlap:
                return None
        made = OverlapDrafter(inner, least=least_ready(beside.c))
        drafter: Drafter = ChainDrafter(made, chain.lookup) if chain is not None else made
        engine.drafter = drafter
        drafter.bind(engine.policy)
        return made

    @property
    def worth_saying(self) -> bool:
        """Whether the person would wonder why there is no overlap: it was asked for, or the devices allow it."""
        if not self._engine.no_overlap or self._engine.drafter is None:
            return False
        asked = self._mode == "auto" and self._plan.place("draft") is not None and not self._shared()
        return self._mode == "on" or asked

    def _impossible(self, inner: Drafter | None) -> str:
        """Why it is out of the question, before anything is measured."""
        if inner is None:
            return "nothing drafts"
        if self._mode == "off":
            return "switched off"
        if not isinstance(inner, ModelDrafter):
            return "only a draft model of its own can draft ahead"
        if not inner.can_rewind:
            return "this draft carries a recurrent state, which cannot be taken back"
        if self._engine.n_draft_limit < 1:
            return "this target cannot take rejected tokens back"
        if self._mode == "auto":
            shared = self._shared()
            if shared:
                return f"target and draft both compute on {shared}"
        return ""

    def _does_not_pay(self, beside: Beside) -> str:
        """Why the plain order is kept, by the figures; empty where overlap pays."""
        if beside.c < _CHEAPEST:
            return f"a draft step takes only {beside.c:.2f} of a target step"
        if beside.contention >= _CONTENTION:
            return f"the draft at work beside it slows the target by {beside.contention:.0%}"
        costs = Costs(beside.verify, beside.draft_step, max(beside.verify))
        longest = min(self._engine.n_draft, MOST_AHEAD)
        lengths = range(1, longest + 1) if self._auto else [longest]
        gain = predicted_gain(costs, beside.contention, self._acceptance, lengths)
        if gain <= _GAIN:
            return f"it would gain {max(gain, 0.0):.0%}, by what was measured"
        return ""

    def _shared(self) -> str:
        """A part of the machine that computes both models; empty when there is none."""
        target, draft = self._plan.place("target"), self._plan.place("draft")
        if target is None or draft is None:
            return ""
        both = sorted(_parts(target) & _parts(draft))
        return "the CPU" if both == ["CPU"] else ", ".join(both)

    # ---------------------------------------------------------------- measuring

    def _measure(self, inner: ModelDrafter) -> Beside:
        engine = self._engine
        forced = self._mode == "on"  # then only the draft step counts, for what a round waits for
        sizes = (1,) if forced else (1, 2, 3, 4, 6, 8)
        command = MeasureCosts(sizes, seconds=_SECONDS / 4 if forced else _SECONDS, passes=_LEAST_PASSES)
        costs = measure_costs(engine, command, self._cancelled)
        if not costs.draft_step_s:
            raise LocalspecError("The draft step took no time that could be measured.")
        if forced:
            return Beside(costs.verify, costs.draft_step_s, 0.0)
        size = max(n for n in costs.verify if n <= 4)
        beside = Beside(costs.verify, costs.draft_step_s, _contention(engine, inner, size, self._cancelled))
        self._keep(beside)
        return beside

    def _read(self) -> Beside | None:
        try:
            known = self._kept.read()
            verify = {int(n): float(seconds) for n, seconds in known["verify"].items()}
            beside = Beside(verify, float(known["draft_step"]), float(known["contention"]))
        except (ValueError, KeyError, TypeError, AttributeError):
            return None
        sound = 1 in verify and min(verify.values()) > 0 and beside.draft_step > 0
        return beside if sound else None

    def _keep(self, beside: Beside) -> None:
        self._kept.write(
            {
                "verify": {str(n): seconds for n, seconds in beside.verify.items()},
                "draft_step": beside.draft_step,
                "contention": beside.contention,
            }
        )


def _parts(item: ModelMemory) -> set[str]:
    """The parts of the machine that compute a model."""
    on_gpu = {device.id or device.name for device in item.devices} if item.gpu_layers > 0 else set()
    return on_gpu | ({"CPU"} if not on_gpu or item.gpu_layers < item.all_layers else set())


def _contention(engine: Engine, inner: ModelDrafter, size: int, cancelled: Callable[[], bool]) -> float:
    """How much longer a verify pass takes with the draft at work, in alternating order; both caches end up empty."""
    context = engine.context
    ids = [(index + 1) * 7919 % context.n_vocab for index in range(_FILLED + size)]
    alone: list[float] = []
    beside: list[float] = []

    def verify() -> float:
        at = time.perf_counter()
        context.decode(ids[_FILLED:], "all")
        context.logits()  # waits for the device
        took = time.perf_counter() - at
        if not context.truncate(_FILLED):  # a state that cannot go back is made again
            context.clear()
            context.decode(ids[:_FILLED], "last")
        return took

    engine.clear()
    try:
        context.decode(ids[:_FILLED], "last")
        verify()  # warms up
        began = time.perf_counter()
        for number in range(_PASSES):
            if cancelled() or (number >= _LEAST_PASSES and time.perf_counter() - began > _SECONDS):
                break
            alone.append(verify())
            with _at_work(inner, ids):
                beside.append(verify())
    finally:
        engine.clear()
    if not alone:
        raise LocalspecError("Measuring was stopped.")
    return median(beside) / median(alone) - 1


@contextlib.contextmanager
def _at_work(inner: ModelDrafter, ids: Sequence[int]) -> Iterator[None]:
    """The draft model drafts without a pause inside this block.

    Raises:
        LocalspecError: It failed.
    """
    started, stop = threading.Event(), threading.Event()
    faults: list[LocalspecError] = []
    sampler = Sampler(Sampling()).for_draft()

    def work() -> None:
        try:
            while not stop.is_set():
                inner.draft(ids, MOST_AHEAD, sampler)
                started.set()
        except LocalspecError as error:
            faults.append(error)
        finally:
            started.set()

    thread = threading.Thread(target=work, name="localspec draft at work", daemon=True)
    thread.start()
    started.wait()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    if faults:
        raise faults[0]
