"""10,000 tokens in one context: what a round allocates does not grow with the context, and little stays behind.

Allocations are counted by tracemalloc (numpy's arrays are in it) between two events of the engine, so the figures are
those of our own code; llama.cpp's memory is seen in the size of the process.
"""

from __future__ import annotations

import contextlib
import statistics
import tracemalloc
from dataclasses import dataclass, field

import psutil
import pytest

from localspec.spec.engine import Engine, Request
from localspec.spec.events import Finished, Round, Sampling
from tests.spec.conftest import Bench

N_CTX, TOKENS = 10_496, 10_000
EARLY, LATE = (1_600, 2_000), (9_600, 10_000)
MOST_GROWTH = (
    1_000  # bytes that a late round may allocate beyond an early one: a copy of the ids is 64,000 more
)
MOST_KEPT = 600  # bytes a token that stay: its id in a few lists, its text, its place in the index of lookup
MOST_RESIDENT = 24 << 20  # growth of the process between 2,000 and 10,000 tokens


@dataclass
class Window:
    """What rounds allocated in one part of the answer, in bytes."""

    peaks: list[int] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)

    @property
    def peak(self) -> float:
        """Of the median round, above what was there before: enlarging a dictionary now and then is no growth."""
        return statistics.median(self.peaks)

    @property
    def kept_per_token(self) -> float:
        """What stayed, without the largest enlargement of a list or dictionary."""
        return (sum(self.kept) - max(self.kept)) / (self.tokens[-1] - self.tokens[0])


def watch(engine: Engine) -> tuple[Window, Window, int]:
    """The early and the late window, and how much the process grew between them."""
    early, late, process = Window(), Window(), psutil.Process()
    resident = before = 0
    sampling = Sampling(temperature=0.7, top_p=0.95, repeat_penalty=1.05, seed=3)
    stream = engine.generate(Request([1, 5, 6], sampling, max_tokens=TOKENS, ignore_eos=True))
    with contextlib.closing(stream):  # type: ignore[type-var]
        for event in stream:
            if isinstance(event, Finished):
                assert len(event.token_ids) == TOKENS
                return early, late, process.memory_info().rss - resident
            count = event.stats.completion_tokens if isinstance(event, Round) else 0
            window = early if EARLY[0] <= count < EARLY[1] else late if count >= LATE[0] else None
            if window is None:
                if tracemalloc.is_tracing():
                    tracemalloc.stop()
                    resident = process.memory_info().rss
                continue
            if not tracemalloc.is_tracing():
                tracemalloc.start()
            else:
                now, peak = tracemalloc.get_traced_memory()
                window.peaks.append(peak - before)
                window.kept.append(now - before)
                window.tokens.append(count)
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
    raise AssertionError("the answer did not end")


@pytest.mark.parametrize(
    "draft", ["none", "chain"]
)  # a chain works with the model and with the index of lookup
def test_ten_thousand_tokens(bench: Bench, draft: str) -> None:
    path = bench.file("llama", n_layer=1, n_embd=32, spread=20)
    other = None if draft == "none" else path
    engine = bench.engine(path, other, 8, chain=draft == "chain", n_ctx=N_CTX)
    try:
        early, late, grown = watch(engine)
    finally:
        tracemalloc.stop()
    assert len(late.peaks) > 40
    assert late.peak < early.peak + MOST_GROWTH
    assert late.kept_per_token < MOST_KEPT
    assert grown < MOST_RESIDENT
