"""Answers with and without a draft, compared."""

from __future__ import annotations

from dataclasses import replace

import pytest

from localspec.errors import LocalspecError, UsageError
from localspec.measure.prompts import QUESTIONS
from localspec.measure.verify import Agreement, Difference, Verifier, common_prefix
from localspec.spec.events import Sampling
from localspec.worker.process import Worker
from localspec.worker.protocol import Choosing, DraftSpec, Load, Peeked

LOAD = Load("target.gguf", DraftSpec("model", "draft.gguf"))
GREEDY, WARM = Sampling(temperature=0.0), Sampling(temperature=0.7, seed=3)


@pytest.fixture
def verifier(monkeypatch):
    workers = []

    def make(prices="", questions=QUESTIONS[:3], tokens=40, **more):
        monkeypatch.setenv("LOCALSPEC_PRICED", prices)
        workers.append(Worker("tests.measure.priced_host:serve"))
        return Verifier(workers[-1], questions, tokens, **more)

    yield make
    for worker in workers:
        worker.close()


def test_the_same_text_is_identical(verifier):
    check = verifier().check_draft(LOAD, (GREEDY, WARM))
    assert check.identical
    assert (check.answers, check.tokens) == (6, 240)
    assert 0 < check.accepted < check.drafted


def test_the_first_difference_is_found_and_looked_at(verifier):
    check = verifier("part=8,margin=1.0").check_draft(LOAD, (GREEDY, WARM))
    assert not check.identical
    assert [one.position for one in check.differences] == [7] * 6
    assert [(one.question, one.temperature) for one in check.differences[:4]] == [
        (0, 0.0),
        (1, 0.0),
        (2, 0.0),
        (0, 0.7),
    ]
    first = check.differences[0]
    assert first.with_draft == first.without + 50_000
    assert first.peeked.width == LOAD.n_draft + 1
    assert first.peeked.alone.logits == {first.without: 10.0, first.with_draft: 9.0}
    assert first.near_tie is False
    assert check.tokens == 6 * 7


def test_a_near_tie_is_told_from_a_fault(verifier):
    # The batch moves the logits by 0.01, and the two scores are 0.015 apart.
    check = verifier("part=8,margin=0.015").check_draft(LOAD, (GREEDY,))
    assert all(one.near_tie for one in check.differences)


def test_near_ties():
    def found(first, second, margin, moved=0.0):
        alone = Choosing(first, margin, {1: 5.0, 2: 4.0})
        batched = Choosing(second, margin, {1: 5.0 + moved, 2: 4.0})
        return Difference(0, 0.0, 3, 1, 2, Peeked(alone, batched, 4, {})).near_tie

    assert found(1, 2, 3.0) is True  # the target itself chooses another token in a batch
    assert found(1, 1, 0.02, moved=0.011) is True
    assert found(1, 1, 0.02, moved=0.009) is False
    assert Difference(0, 0.0, 3, 1, None).near_tie is None


def test_an_answer_that_ends_early_is_a_difference(monkeypatch, verifier):
    one = Difference(0, 0.7, 5, 12, None)
    assert one.to_json() == {
        "question": 0,
        "temperature": 0.7,
        "position": 5,
        "token_without": 12,
        "token_with": None,
        "near_tie": None,
    }


def test_nothing_to_verify_is_said(verifier):
    off = replace(LOAD, draft=DraftSpec("none", off_reason="not on this disk"))
    with pytest.raises(UsageError, match="not on this disk"):
        verifier().check_draft(off, (GREEDY,))
    # One token leaves no room for a drafted one.
    with pytest.raises(LocalspecError, match="Nothing was drafted"):
        verifier(tokens=1).check_draft(LOAD, (GREEDY,))


def test_stopping_keeps_what_was_compared(verifier):
    seen = []
    check = verifier(progress=seen.append, cancelled=lambda: sum(e.stage == "draft" for e in seen) > 2)
    found = check.check_draft(LOAD, (GREEDY, WARM))
    assert found.partial
    assert found.answers == 2


def test_a_lossy_cache_is_measured_beside_f16(verifier):
    agreement = verifier("kv_part=11").compare_cache(replace(LOAD, kv_type="q8_0"))
    assert (agreement.questions, agreement.different) == (3, 3)
    assert (agreement.agreed, agreement.total) == (30, 120)
    assert agreement.share == 0.25
    assert agreement.tokens_per_difference == 11  # one in 11 choices, three times
    same = verifier().compare_cache(replace(LOAD, kv_type="q8_0"))
    assert (same.different, same.share, same.tokens_per_difference) == (0, 1.0, None)


def test_nothing_compared_has_no_share():
    assert Agreement("q8_0").share is None


def test_common_prefix():
    assert common_prefix((1, 2, 3), (1, 2, 4)) == 2
    assert common_prefix((1, 2), (1, 2, 4)) == 2
    assert common_prefix((), (1,)) == 0
