"""The first evaluations of a context, whose time should not count as anybody's, and what they tell about its speed."""

from __future__ import annotations

import time
from collections.abc import Callable

from localspec.llama.context import Context
from localspec.worker.kept import Kept

_LONG_STEP_SECONDS = 0.05
"""From here on a stop must reach into an evaluation, and asking for it is not felt."""
_CHUNK_SECONDS = 0.25


def warm_up(context: Context, token: int, cancelled: Callable[[], bool], kept: Kept) -> float:
    """Evaluate twice, and see to it that a stop is heard in time from then on.

    Args:
        context: Empty, as it is afterwards.
        token: Any one of the vocabulary.
        cancelled: Whether the request in hand was cancelled, now and later.
        kept: Where the size of the prompt's chunks is found and noted. Chunks of another size round otherwise, so with
            one chosen by the clock at each load the same seed would not name the same text tomorrow.

    Returns:
        Seconds of the second evaluation; the first one allocates and builds.
    """
    for _ in range(2):
        began = time.perf_counter()
        context.decode([token], "last")
        context.logits()
        took = time.perf_counter() - began
        context.clear()
    if took > _LONG_STEP_SECONDS:
        context.stop_when(cancelled)
    chunk = kept.read().get("chunk")
    if type(chunk) is not int or not 0 < chunk <= context.n_batch:
        chunk = context.chunk if took > _LONG_STEP_SECONDS else _chunk(context, token)
        kept.write({"chunk": chunk})
    context.chunk = chunk
    context.evaluated = 0
    return took


def _chunk(context: Context, token: int) -> int:
    """Tokens of a prompt that take about a quarter of a second, a power of two; more would make a stop wait."""
    count = min(64, context.n_batch, context.n_ctx)
    for _ in range(2):
        began = time.perf_counter()
        context.decode([token] * count, "last")
        context.logits()
        took = time.perf_counter() - began
        context.clear()
    fitting = int(_CHUNK_SECONDS * count / took)
    return max(32, min(1 << (fitting.bit_length() - 1) if fitting else 1, context.n_batch))
