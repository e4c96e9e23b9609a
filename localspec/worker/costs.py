"""Times of the parts of a round: a plain step, verify batches, a draft step. Runs in the engine's process."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from statistics import median

from localspec.errors import ContextFullError, DecodeError, LocalspecError
from localspec.llama.context import Context
from localspec.spec.draft_chain import ChainDrafter
from localspec.spec.draft_lookup import LookupDrafter
from localspec.spec.draft_mtp import MtpDrafter
from localspec.spec.draft_overlap import OverlapDrafter
from localspec.spec.draft_stock import StockDrafter
from localspec.spec.engine import Engine
from localspec.spec.events import Sampling
from localspec.spec.sampling import Sampler
from localspec.worker.protocol import Costs, MeasureCosts

_MOST_PASSES = 15
_DRAFT_SHARE = 0.3  # of the time that measuring may take
_SHALLOW = 16  # tokens in caches that were empty
_LONGEST_DRAFT = 8  # tokens a draft while its step is timed
_FELT = 0.2  # seconds of a step from which timing more of them at loading would be felt
_STRIDE = 7919  # a prime: filler ids are spread over the vocabulary


def measure_costs(
    engine: Engine,
    command: MeasureCosts,
    cancelled: Callable[[], bool] = lambda: False,
    progress: Callable[[float], None] = lambda _share: None,
) -> Costs:
    """Time a plain step, verify batches and a draft step of what is loaded.

    The batches hold the conversation's last ids (a mixture of experts reads other weights for other tokens). Each pass
    times every size once, so that a slow moment of the machine falls on all of them; the first pass warms up and is
    not counted.

    Args:
        engine: Target and drafter.
        command: Sizes, depth and time.
        cancelled: Asked between two evaluations; what was measured by then is the answer.
        progress: Told the share of the batches, by their tokens, that is done.

    Raises:
        ContextFullError: The cache has no room to measure in.
        DecodeError: llama.cpp failed.
        LocalspecError: It was stopped before anything was measured.
    """
    context = engine.context
    ids = list(engine.ids)
    filled = command.depth or (0 if ids else min(_SHALLOW, context.n_ctx // 2))
    if filled:
        engine.clear()
        ids = _filler(filled, ids, context.n_vocab)
        for _ in context.extend(ids, cancelled):
            pass
    depth = context.length
    limit = min(engine.n_draft_limit + 1, context.room)
    if limit < 1:
        raise _no_room()
    sizes = sorted({1, *(size for size in command.sizes if 0 < size <= limit)})
    try:
        share = 1 - _DRAFT_SHARE if engine.drafter is not None else 1
        effort = _Effort(command.seconds * share, command.passes, cancelled, progress)
        times = _batch_times(context, sizes, _filler(sizes[-1], ids, context.n_vocab), effort)
        _restore(context, depth, ids)
        step = _draft_step(engine, ids, _Effort(command.seconds * _DRAFT_SHARE, command.passes, cancelled))
    finally:
        if filled:
            engine.clear()
        else:
            _restore(context, depth, ids)
    if 1 not in times:
        raise LocalspecError("Measuring was stopped.") if cancelled() else _no_room()
    return Costs(depth, times[1], times, step)


def round_time(
    engine: Engine, plain_s: float, cancelled: Callable[[], bool] = lambda: False
) -> dict[int, float]:
    """Seconds of a plain step and of a verify batch of the engine's draft length, in an empty cache.

    Args:
        engine: Just loaded.
        plain_s: What a plain step took. Where that is long nothing is timed: loading should not take longer.
        cancelled: Asked between two evaluations.

    Returns:
        Nothing where no fixed length is drafted, or it was stopped.
    """
    k = engine.n_draft
    if engine.drafter is None or k < 1 or plain_s > _FELT:
        return {}
    context = engine.context
    tokens = _filler(k + 1, (), context.n_vocab)
    times = _batch_times(context, (1, k + 1), tokens, _Effort(_FELT, 2, cancelled))
    engine.clear()
    context.evaluated = 0
    return times if k + 1 in times else {}


def _no_room() -> ContextFullError:
    return ContextFullError(
        "There is no room in the context to measure with.", hint="localspec run --ctx 8192"
    )


class _Effort:
    """How often something is timed: once to warm up, `least` times, and on until the time is over."""

    def __init__(
        self,
        seconds: float,
        least: int,
        cancelled: Callable[[], bool],
        progress: Callable[[float], None] = lambda _share: None,
    ) -> None:
        self.cancelled = cancelled
        self.progress = progress
        self._seconds = seconds
        self._least = least

    def passes(self) -> Iterator[int]:
        """Numbers from 0, which warms up."""
        began = time.perf_counter()
        for number in range(1 + _MOST_PASSES):
            if number > self._least and time.perf_counter() - began > self._seconds:
                return
            yield number

    def share(self, number: int, part: float) -> float:
        """How much is done at least, with `part` of pass `number`."""
        return min((number + part) / (1 + self._least), 1.0)


def _filler(count: int, ids: Sequence[int], n_vocab: int) -> list[int]:
    """`count` ids: the last ones of the conversation, others before them where it is shorter."""
    kept = list(ids[-count:])
    return [(index + 1) * _STRIDE % n_vocab for index in range(count - len(kept))] + kept


def _batch_times(
    context: Context, sizes: Sequence[int], tokens: Sequence[int], effort: _Effort
) -> dict[int, float]:
    """The median time of a batch of each size, as far as it was measured."""
    found: dict[int, list[float]] = {size: [] for size in sizes}
    for number in effort.passes():
        done = 0
        for size in sizes:
            if effort.cancelled() or context.room < size:
                return _medians(found)
            took = _one_batch(context, tokens[-size:])
            if number:
                found[size].append(took)
            done += size
            effort.progress(effort.share(number, done / sum(sizes)))
    return _medians(found)


def _one_batch(context: Context, tokens: Sequence[int]) -> float:
    """Evaluate as a verify pass does, and take back what can be taken back."""
    before = context.length
    began = time.perf_counter()
    context.decode(tokens, "all")
    context.logits()  # waits for the device
    took = time.perf_counter() - began
    # A recurrent state goes back by one token less than the batch had; it grows by one token each time.
    context.truncate(before + 1 if context.has_state else before)
    return took


def _draft_step(engine: Engine, ids: Sequence[int], effort: _Effort) -> float | None:
    """The median time of one proposed token, in drafts of k tokens as the rounds make them."""
    drafter, k = engine.drafter, min(engine.n_draft, _LONGEST_DRAFT)
    if isinstance(drafter, ChainDrafter):
        drafter = drafter.other  # looking up costs nothing
    if isinstance(drafter, OverlapDrafter):
        drafter = drafter.alone()  # what a step takes, not what is left of it to wait for
    if drafter is None or k < 1 or effort.cancelled():
        return None
    sampler = Sampler(Sampling()).for_draft()
    start = list(ids)
    more = _filler(1 + _MOST_PASSES, ids, engine.context.n_vocab)
    times: list[float] = []
    try:
        drafter.begin(start, cancelled=effort.cancelled)
        for number in effort.passes():
            if effort.cancelled():
                break
            if not isinstance(drafter, MtpDrafter):  # which follows only what the target evaluated
                # One more token each time, as after a round: the draft evaluates it and goes on from there.
                start.append(more[number])
            at = time.perf_counter()
            draft = drafter.draft(start, k, sampler)
            took = time.perf_counter() - at
            if not draft.tokens and not isinstance(drafter, (LookupDrafter, StockDrafter)):
                break  # it has no more room, or lost the conversation
            if number:
                times.append(took / (len(draft.tokens) or k))
    except DecodeError:
        return None  # rounds go on without this drafter; so does this
    finally:
        with contextlib.suppress(DecodeError):
            drafter.begin(ids, cancelled=effort.cancelled)
    return median(times) if times else None


def _restore(context: Context, length: int, ids: Sequence[int]) -> None:
    """Bring the cache back to `length` tokens; what a state cannot go back to is read again."""
    kept = context.rewind(length)
    for _ in context.extend(ids[kept:length]):
        pass


def _medians(times: dict[int, list[float]]) -> dict[int, float]:
    return {size: median(found) for size, found in times.items() if found}
