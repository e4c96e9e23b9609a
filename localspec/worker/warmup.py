"""The first evaluations of a context, whose time should not count as anybody's, and what they tell about its speed."""

from __future__ import annotations

import time
from collections.abc import Callable

from localspec.llama.context import Context
from localspec.worker.kept import Kept

_LONG_STEP_SECONDS = 0.05
"""From here on a stop must reach into an evaluation, and asking for it is not felt."""
_CHUNK_SECONDS, _LONGEST_CHUNK_SECONDS = 0.25, 1.0
_HARDLY_LONGER = 1.5
_MORE = 3


def warm_up(
    context: Context, token: int, cancelled: Callable[[], bool], kept: Kept, *, gpu: bool = False
) -> float:
    """Evaluate a few times, and see to it that a stop is heard in time then and from then on.

    The first evaluation allocates, builds, and fetches what of the file is not in memory yet. A GPU may record its work
    in the second one to repeat it faster, and wakes up by and by: where they are short, a few more are made.

    Args:
        context: Empty, as it is afterwards.
        token: Any one of the vocabulary.
        cancelled: Whether the request in hand was cancelled, now and later.
        kept: Where the size of the prompt's chunks is found and noted. Chunks of another size round otherwise, so with
            one chosen by the clock at each load the same seed would not name the same text tomorrow.
        gpu: A GPU takes part, if only in long batches.

    Returns:
        Seconds of the fastest evaluation, the first one excepted.

    Raises:
        AbortedError: It was stopped.
    """
    context.stop_when(cancelled)  # on a slow disk the first one takes as long as reading the file
    took = _step(context, token)
    if took <= _LONG_STEP_SECONDS:
        context.stop_when(None)
    took = _step(context, token)
    if took > _LONG_STEP_SECONDS:
        context.stop_when(cancelled)
    else:
        context.stop_when(None)
        took = min(took, *(_step(context, token) for _ in range(_MORE)))
    chunk = kept.read().get("chunk")
    if type(chunk) is not int or not 0 < chunk <= context.n_batch:
        # On a slow CPU timing chunks would take long, and a stop is heard inside of them.
        slow = took > _LONG_STEP_SECONDS and not gpu
        chunk = context.chunk if slow else _chunk(context, token, gpu=gpu)
        kept.write({"chunk": chunk})
    context.chunk = chunk
    context.evaluated = 0
    return took


def _step(context: Context, token: int, count: int = 1) -> float:
    """Seconds of one evaluation in the empty cache."""
    began = time.perf_counter()
    context.decode([token] * count, "last")
    context.logits()
    took = time.perf_counter() - began
    context.clear()
    return took


def _chunk(context: Context, token: int, *, gpu: bool) -> int:
    """Tokens of a prompt that take about a quarter of a second, a power of two; more would make a stop wait.

    Where a GPU computes layers that lie in RAM, each piece of a prompt waits for their weights on the bus, however long
    it is: there it grows as long as that takes hardly longer.
    """
    count = min(64, context.n_batch, context.n_ctx)
    _step(context, token, count)
    took = _step(context, token, count)
    if gpu and took > _CHUNK_SECONDS:
        while count * 2 <= context.n_batch:
            longer = _step(context, token, count * 2)
            if longer > took * _HARDLY_LONGER or took <= _LONGEST_CHUNK_SECONDS < longer:
                break
            count, took = count * 2, longer
        return count
    fitting = int(_CHUNK_SECONDS * count / took)
    return max(32, min(1 << (fitting.bit_length() - 1) if fitting else 1, context.n_batch))
