"""The plain step that a fixed draft length is compared with: measured where it happens, followed where it does not."""

from __future__ import annotations

import pytest

from localspec.spec.plain import PlainStep


def known(plain: float = 0.1, batch: float = 0.2) -> PlainStep:
    step = PlainStep()
    step.know({1: plain, 5: batch})
    return step


def see(step: PlainStep, n: int, seconds: float, rounds: int) -> None:
    for _ in range(rounds):
        step.saw(n, seconds)


def test_it_follows_the_rounds_of_a_known_size() -> None:
    """A context that grows, or a machine that slows down, is seen in the verify batches alone."""
    step = known()
    see(step, 5, 0.2, 50)
    assert step.seconds == pytest.approx(0.1)
    see(step, 5, 0.4, 40)  # such as behind a long first prompt
    assert step.seconds == pytest.approx(0.2, rel=0.01)
    see(step, 5, 0.2, 200)
    assert step.seconds == pytest.approx(0.1, rel=0.01)


def test_a_plain_step_that_happens_counts_more_than_what_batches_say() -> None:
    step = known()
    for _ in range(300):  # deeper in the context a batch costs more plain steps than it did
        step.saw(1, 0.15)
        step.saw(5, 0.45)
    assert step.seconds == pytest.approx(0.15, rel=0.01)
    see(step, 5, 0.45, 200)  # the number was learned: no plain step for long, and nothing changes
    assert step.seconds == pytest.approx(0.15, rel=0.02)


def test_a_size_that_nobody_timed_is_learned_from_its_first_rounds() -> None:
    step = known()
    for seconds in (0.3, 0.3, 9.0, 0.3):
        step.saw(9, seconds)
    assert step.seconds == 0.1
    see(step, 9, 0.3, 60)
    assert step.seconds == pytest.approx(0.1)
    see(step, 9, 0.6, 200)
    assert step.seconds == pytest.approx(0.2, rel=0.01)


def test_one_odd_round_moves_it_little() -> None:
    step = known()
    see(step, 5, 0.2, 20)
    step.saw(5, 60.0)
    assert step.seconds < 0.106


def test_nothing_is_concluded_from_nothing() -> None:
    step = PlainStep()
    see(step, 5, 0.2, 50)
    assert step.seconds == 0.0
    step.saw(1, 0.1)
    assert step.seconds == 0.1
