"""The token rule: exact distribution, good noise, exact candidate search."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import stats

from localspec.errors import DecodeError
from localspec.spec.events import Sampling
from localspec.spec.sampling import Sampler, gumbel, largest, mix, uniform

N = 20_000


def row_of(seed: int, n: int = 500, spread: float = 2.5) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, spread, n).astype(np.float32)


def reference(row: np.ndarray, s: Sampling) -> dict[int, float]:
    """The shaped distribution, written the slow and obvious way."""
    logits = row.astype(np.float64) / s.temperature
    order = sorted(range(len(row)), key=lambda i: (-row[i], i))
    if s.top_k:
        order = order[: s.top_k]
    p = np.exp(logits[order] - logits[order[0]])
    full = np.exp(logits - logits[order[0]]).sum() if not s.top_k else p.sum()
    p /= full
    kept, total = 0, 0.0
    for probability in p:
        if kept and total >= s.top_p:
            break
        total += probability
        kept += 1
    kept = min(kept, max(1, int((p >= s.min_p * p[0]).sum())))
    p = p[:kept] / p[:kept].sum()
    return dict(zip(order[:kept], p, strict=True))


SETTINGS = [
    Sampling(temperature=0.7, top_k=40, top_p=0.9),
    Sampling(temperature=1.0, top_k=40, top_p=0.95),
    Sampling(temperature=1.0, top_k=0, top_p=0.95),
    Sampling(temperature=1.3, top_k=0, top_p=1.0),
    Sampling(temperature=1.0, top_k=0, top_p=1.0, min_p=0.05),
    Sampling(temperature=0.8, top_k=12, top_p=1.0, min_p=0.1),
    Sampling(temperature=2.0, top_k=3, top_p=0.99),
]


@pytest.mark.parametrize("sampling", SETTINGS, ids=str)
@pytest.mark.parametrize("n", [7, 500, 49_152])
def test_the_distribution_is_the_shaped_one(sampling: Sampling, n: int) -> None:
    row = row_of(n, n)
    ids, p = Sampler(sampling).distribution(row)
    expected = reference(row, sampling)
    if sampling.top_k == 0 and sampling.top_p == 1.0 and sampling.min_p == 0.0:
        # Ids that the noise cannot lift to the top are left out; their mass is below rounding.
        assert sum(expected[i] for i in ids.tolist()) == pytest.approx(1, abs=1e-12)
    else:
        assert set(ids.tolist()) == set(expected)
    assert p == pytest.approx([expected[i] for i in ids.tolist()], rel=2e-5)


@pytest.mark.parametrize("sampling", SETTINGS, ids=str)
def test_choices_follow_the_shaped_distribution(sampling: Sampling) -> None:
    """Chi-square over positions: each position is an independent draw."""
    row = row_of(3, 60)
    expected = reference(row, sampling)
    counts = dict.fromkeys(expected, 0)
    sampler = Sampler(sampling)
    for position in range(N):
        counts[sampler.choose(row, position, ())] += 1
    likely = [i for i in expected if expected[i] * N >= 8]
    observed = [counts[i] for i in likely]
    wanted = [expected[i] * N for i in likely]
    rest = N - sum(observed), N - sum(wanted)
    if rest[1] > 1:
        observed.append(rest[0])
        wanted.append(rest[1])
    if len(observed) > 1:
        assert stats.chisquare(observed, np.array(wanted) * sum(observed) / sum(wanted)).pvalue > 1e-4


def test_choices_follow_the_distribution_over_seeds_too() -> None:
    row = row_of(4, 30)
    sampling = Sampling(temperature=1.0, top_k=5, top_p=1.0)
    expected = reference(row, sampling)
    counts = dict.fromkeys(expected, 0)
    for seed in range(N):
        counts[Sampler(Sampling(temperature=1.0, top_k=5, top_p=1.0, seed=seed)).choose(row, 17, ())] += 1
    assert stats.chisquare(list(counts.values()), [p * N for p in expected.values()]).pvalue > 1e-4


@pytest.mark.parametrize("axis", ["seed", "position", "id"])
def test_noise_is_uniform_along_every_axis(axis: str) -> None:
    values = []
    for start in (0, 10**6):
        grid = np.arange(start, start + 20_000)
        if axis == "id":
            values.append(uniform(5, 9, grid))
        elif axis == "position":
            values.append(np.array([uniform(5, int(p), np.array([77]))[0] for p in grid[:5000]]))
        else:
            values.append(np.array([uniform(int(s), 9, np.array([77]))[0] for s in grid[:5000]]))
    for sample in values:
        assert stats.kstest(sample, "uniform").pvalue > 1e-4
        assert sample.min() > 0
        assert sample.max() < 1


def test_noise_is_independent_between_neighbours() -> None:
    ids = np.arange(50_000)
    base = uniform(1, 100, ids)
    bound = 4.5 / np.sqrt(len(ids))
    for other in (uniform(1, 101, ids), uniform(2, 100, ids), uniform(1, 100, ids + 1), uniform(100, 1, ids)):
        assert abs(np.corrcoef(base, other)[0, 1]) < bound
        # Also in pairs: the unit square is filled evenly.
        square, _, _ = np.histogram2d(base, other, bins=10, range=[[0, 1], [0, 1]])
        assert stats.chisquare(square.ravel()).pvalue > 1e-4


def test_every_bit_of_the_hash_depends_on_every_bit_of_its_input() -> None:
    rng = np.random.default_rng(0)
    flips = np.zeros((64, 64))
    trials = 400
    for value in rng.integers(0, 2**63, trials).tolist():
        before = mix(value)
        for bit in range(64):
            changed = before ^ mix(value ^ (1 << bit))
            flips[bit] += [(changed >> b) & 1 for b in range(64)]
    assert flips.min() > trials * 0.35
    assert flips.max() < trials * 0.65


def test_gumbel_noise_has_its_distribution_and_span() -> None:
    noise = gumbel(3, 4, np.arange(100_000))
    assert stats.kstest(noise, "gumbel_r").pvalue > 1e-4
    assert noise.min() > -3.8
    assert noise.max() < 37.6


@given(
    st.integers(0, 2**32),
    st.integers(1, 100),
    st.integers(1, 30_000),
    st.sampled_from([0.0, -1.5, -9.0, 9.0]),
)
@settings(max_examples=150, deadline=None)
def test_largest_is_exact(seed: int, k: int, n: int, middle: float) -> None:
    """Around zero and below it too, where the bits of floats are ordered in another way than floats."""
    row = (np.random.default_rng(seed).normal(size=n) + middle).astype(np.float32)
    expected = sorted(range(n), key=lambda i: (-row[i], i))[:k]
    assert largest(row, min(k, n)).tolist() == expected[: min(k, n)]


@given(
    hnp.arrays(np.float32, st.integers(64, 4000), elements=st.integers(-3, 3).map(float)), st.integers(1, 15)
)
@settings(max_examples=100, deadline=None)
def test_largest_gives_the_largest_values_when_many_are_equal(row: np.ndarray, k: int) -> None:
    ids = largest(row, k)
    assert len(set(ids.tolist())) == k
    assert row[ids].tolist() == sorted(row.tolist(), reverse=True)[:k]


def test_temperature_zero_is_argmax_and_takes_the_lowest_id_on_ties() -> None:
    row = np.zeros(100, dtype=np.float32)
    row[[31, 60]] = 5
    for seed in range(5):
        assert Sampler(Sampling(temperature=0, seed=seed)).choose(row, seed, ()) == 31


def test_the_row_is_left_as_it_was() -> None:
    row = row_of(1)
    before = row.copy()
    sampler = Sampler(Sampling(repeat_penalty=1.3, presence_penalty=0.5, frequency_penalty=0.1))
    sampler.choose(row, 3, [1, 2, 2, 3])
    sampler.propose(row, 3, [1, 2, 2, 3])
    sampler.distribution(row, [1, 2, 2, 3])
    assert (row == before).all()


def test_penalties_lower_what_was_said() -> None:
    row = np.array([3.0, 2.9, -1.0, 0.0], dtype=np.float32)
    greedy = Sampling(temperature=0)

    def choose(history: list[int], **kw: float) -> int:
        return Sampler(Sampling(**{**{"temperature": 0.0}, **kw})).choose(row, 0, history)  # type: ignore[arg-type]

    assert Sampler(greedy).choose(row, 0, [0, 0]) == 0
    assert choose([0], repeat_penalty=1.1) == 1
    assert choose([0], presence_penalty=0.2) == 1
    assert choose([0], frequency_penalty=0.06) == 0
    assert choose([0, 0], frequency_penalty=0.06) == 1
    # Only the last tokens count.
    assert choose([0] + [3] * 64, presence_penalty=0.2) == 0
    assert choose([0] + [3] * 64, presence_penalty=0.2, penalty_last_n=65) == 1
    # A negative logit is multiplied, not divided.
    both = np.array([-1.0, -1.05], dtype=np.float32)
    assert Sampler(Sampling(temperature=0, repeat_penalty=1.2)).choose(both, 0, [0]) == 1


def test_penalties_can_bring_up_a_token_from_below_top_k() -> None:
    """The candidates are those of the penalised row, not of the raw one."""
    row = np.arange(1000, dtype=np.float32)[::-1].copy()
    said = list(range(50))
    sampler = Sampler(Sampling(temperature=0.01, top_k=5, presence_penalty=10_000, penalty_last_n=-1))
    assert sampler.choose(row, 0, said) == 50


def test_a_proposal_is_the_choice_with_its_probability_and_margin() -> None:
    row = row_of(8)
    for position in range(50):
        for sampling in SETTINGS:
            sampler = Sampler(sampling)
            proposal = sampler.propose(row, position, ())
            assert proposal.token == sampler.choose(row, position, ())
            assert proposal.probability == pytest.approx(reference(row, sampling)[proposal.token], rel=1e-4)
            assert proposal.margin >= 0


def test_drafts_are_a_little_colder() -> None:
    assert Sampler(Sampling(temperature=0.7, top_p=0.9)).for_draft().sampling.temperature == pytest.approx(
        0.63
    )
    assert Sampler(Sampling(temperature=1.0, top_p=0.95)).for_draft().sampling.temperature == pytest.approx(
        0.8
    )
    assert Sampler(Sampling(temperature=0)).for_draft().sampling.temperature == 0


def test_shared_noise_agrees_more_often_than_independent_draws() -> None:
    """Two similar distributions: the shared noise nearly reaches the overlap of the two."""
    rng = np.random.default_rng(0)
    agree = independent = overlap = 0.0
    trials = 3000
    sampling = Sampling(temperature=1.0, top_k=40, top_p=1.0)
    for position in range(trials):
        target = rng.normal(0, 2, 100).astype(np.float32)
        draft = (target + rng.normal(0, 0.5, 100)).astype(np.float32)
        sampler = Sampler(sampling)
        agree += sampler.choose(target, position, ()) == sampler.choose(draft, position, ())
        p, q = reference(target, sampling), reference(draft, sampling)
        overlap += sum(min(p[i], q.get(i, 0)) for i in p)
        independent += sum(p[i] * q.get(i, 0) for i in p)
    assert agree > 0.9 * overlap
    assert agree > independent * 1.3


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("top_k", [0, 40])
def test_broken_logits_are_an_error(bad: float, temperature: float, top_k: int) -> None:
    row = np.full(1000, bad, dtype=np.float32)
    with pytest.raises(DecodeError, match="not a number"):
        Sampler(Sampling(temperature=temperature, top_k=top_k)).choose(row, 0, ())


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("n", [200, 20_000])
def test_one_entry_that_is_no_number_is_an_error(temperature: float, n: int) -> None:
    row = np.random.default_rng(0).normal(size=n).astype(np.float32)
    row[77] = np.nan
    sampler = Sampler(Sampling(temperature=temperature, top_k=40))
    for ask in (sampler.choose, sampler.propose):
        with pytest.raises(DecodeError, match="not a number"):
            ask(row, 0, ())


def test_zeros_of_both_signs_are_equal() -> None:
    row = np.full(20_000, -1.0, dtype=np.float32)
    row[[900, 12_000, 19_990]] = [-0.0, 0.0, -0.0]
    assert largest(row, 3).tolist() == [900, 12_000, 19_990]
    row[5] = 1.0
    assert largest(row, 4).tolist() == [5, 900, 12_000, 19_990]


def test_entries_that_can_never_be_chosen_are_no_error() -> None:
    row = np.full(300, -np.inf, dtype=np.float32)
    row[[5, 9]] = 1.0
    for temperature in (0.0, 0.7):
        sampler = Sampler(Sampling(temperature=temperature, top_k=40))
        assert {sampler.choose(row, position, ()) for position in range(40)} <= {5, 9}
        assert {sampler.propose(row, position, ()).token for position in range(40)} <= {5, 9}
