"""The chunks of a prompt, with evaluations that take as long as we say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace

import pytest

from localspec.worker import warmup
from localspec.worker.kept import Kept


class Clock:
    """A context whose evaluations take `seconds(tokens)`, and the time that has passed by then."""

    n_batch = n_ctx = 512
    chunk = 64

    def __init__(self, seconds: Callable[[int], float]) -> None:
        self._seconds = seconds
        self.now = 0.0
        self.batches: list[int] = []

    def decode(self, tokens: Sequence[int], _outputs: str) -> None:
        self.batches.append(len(tokens))
        self.now += self._seconds(len(tokens))

    def logits(self) -> None: ...

    def clear(self) -> None: ...

    def stop_when(self, _wanted: object) -> None: ...


@pytest.mark.parametrize(
    ("name", "seconds", "gpu", "chunk"),
    [
        ("all on a fast GPU", lambda n: 0.03 + 0.0005 * n, True, 256),
        (
            "half in RAM: the bus costs the same for any number of tokens",
            lambda n: 0.1 if n == 1 else 0.4 + n / 4000,
            True,
            512,
        ),
        ("nearly all in RAM", lambda n: 0.5 if n == 1 else 1.2 + n / 4000, True, 512),
        ("a second is the most", lambda n: 0.1 if n == 1 else 0.7 + n / 500, True, 128),
        ("a slow GPU", lambda n: 0.06 * n**0.6, True, 64),
        ("a small model on a CPU", lambda n: 0.004 * n, False, 32),
        ("a big model on a CPU", lambda n: 0.6 + 0.2 * n, False, 64),
    ],
)
def test_the_chunks_of_a_prompt(
    monkeypatch: pytest.MonkeyPatch, name: str, seconds: Callable[[int], float], gpu: bool, chunk: int
) -> None:
    context = Clock(seconds)
    monkeypatch.setattr(warmup, "time", SimpleNamespace(perf_counter=lambda: context.now))
    took = warmup.warm_up(context, 1, lambda: False, Kept("chunks", (name,)), gpu=gpu)  # type: ignore[arg-type]
    assert took == pytest.approx(seconds(1))
    assert context.chunk == chunk
    assert context.now < 10.0  # what a person waits for
