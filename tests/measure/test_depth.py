"""Acceptance over the length of a conversation."""

from __future__ import annotations

from dataclasses import replace

import pytest

from localspec.measure.depth import Depths
from localspec.spec.events import DraftStatus
from localspec.spec.stats import Stats

ON = DraftStatus("on", "", "d.gguf", 4)


def feed(depths, accepted, *, start=0, step=10, draft=ON):
    """One answer, whose rounds accept so many of 4 drafted tokens each."""
    total = Stats()
    for number, count in enumerate(accepted):
        total = replace(
            total, rounds=total.rounds + 1, drafted=total.drafted + 4, accepted=total.accepted + count
        )
        depths.add(total, draft, start + number * step)


def test_a_fall_is_told_with_its_depths():
    depths = Depths()
    feed(depths, [3, 4, 3] * 100)
    feed(depths, [1, 2] * 150, start=3000)
    (shallow, before), (deep, after) = depths.ends()
    assert before == pytest.approx(10 / 12, abs=0.01)
    assert after == pytest.approx(1.5 / 4, abs=0.01)
    assert 800 < shallow < 1200
    assert 4500 < deep < 5200


@pytest.mark.parametrize(
    ("accepted", "step"),
    [
        ([0, 4] * 150, 10),  # nothing falls
        ([4, 4, 3, 3] * 10 + [1] * 40, 50),  # too few rounds
        ([4] * 100 + [1] * 100, 2),  # too near to each other
        ([0, 0, 4, 4] * 30 + [0, 0, 0, 4] * 10 + [0, 0, 4, 4] * 20, 20),  # may be luck
    ],
)
def test_what_is_no_fall(accepted, step):
    depths = Depths()
    feed(depths, accepted, step=step)
    assert depths.ends() == ()


def test_another_length_or_drafter_is_not_compared():
    depths = Depths()
    feed(depths, [4] * 200)
    feed(depths, [1] * 200, start=2000, draft=replace(ON, n_draft=8))
    assert depths.ends() == ()


def test_a_length_by_price_tells_nothing():
    depths = Depths()
    auto = replace(ON, auto=True)
    feed(depths, [4] * 200, draft=auto)
    feed(depths, [1] * 200, start=2000, draft=auto)
    assert depths.ends() == ()
