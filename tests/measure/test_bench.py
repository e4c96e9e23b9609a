"""The protocol of bench on an engine with set prices, where the right answer is known."""

from __future__ import annotations

import pytest

from localspec.errors import UsageError, WorkerDiedError
from localspec.measure.bench import Protocol, measure
from localspec.measure.prompts import Prompt
from localspec.measure.result import summarise
from localspec.spec.events import Sampling
from localspec.worker.process import Worker
from localspec.worker.protocol import DraftSpec, Load

PROMPTS = (Prompt("code", "Code please"), Prompt("prose", "Story please"), Prompt("edit", "Edit please"))
PROTOCOL = Protocol(tokens=120, skip=30, repeats=3)
MODEL = DraftSpec("model", "draft.gguf")


@pytest.fixture
def bench(monkeypatch):
    """Measure with prices: `bench("plain=0.05,accept=0.5", n_draft=4)`."""
    workers = []

    def run(prices, protocol=PROTOCOL, draft=MODEL, prompts=PROMPTS, n_draft=4, **more):
        monkeypatch.setenv("LOCALSPEC_PRICED", prices)
        worker = Worker("tests.measure.priced_host:serve")
        workers.append(worker)
        load = Load("target.gguf", draft, n_draft=n_draft)
        return measure(worker, load, prompts, protocol, Sampling(seed=5), **more)

    yield run
    for worker in workers:
        worker.close()


def test_the_measured_speedup_is_what_the_prices_allow(bench):
    measured = bench("plain=0.05,step=0.01,curve=0.1,accept=0.8")
    result = summarise(measured)
    together = result.together
    assert together.baseline.decode_tok_s == pytest.approx(20)
    assert result.cost_ratio == pytest.approx(0.2)
    assert result.verify_curve[5] == pytest.approx(1.4)
    for kind in (*result.kinds.values(), together):
        assert kind.speedup.value == pytest.approx(kind.bound)
        assert kind.speedup.value > 1.2
        assert kind.of_bound == pytest.approx(1.0)
    code = result.kinds["code"].drafted.window
    # Every drafted round has 4 tokens, so the bound is the formula itself.
    assert result.kinds["code"].bound == pytest.approx(code.mean_accepted_length / (1.4 + 4 * 0.2), rel=0.02)
    assert together.speedup.verdict == "faster"
    assert together.same_text is True


def test_pairs_alternate_and_every_answer_starts_from_empty_caches(bench):
    measured = bench("accept=0.5")
    assert len(measured.runs) == 3 * 3 * 2
    assert all(run.stats.reused_tokens == 0 for run in measured.runs)
    pairs = [(a, b) for a, b in zip(measured.runs[::2], measured.runs[1::2], strict=True)]
    assert all((a.kind, a.repeat) == (b.kind, b.repeat) for a, b in pairs)
    assert all(a.drafted != b.drafted for a, b in pairs)
    firsts = [a.drafted for a, _ in pairs]
    assert firsts == [False, True, False, True, False, True, False, True, False]
    for kind in ("code", "prose", "edit"):
        drafted_first = {a.drafted for a, _ in pairs if a.kind == kind}
        assert drafted_first == {True, False}, "each kind goes first on both sides"
    assert {len(run.token_ids) for run in measured.runs} == {120}
    assert all(run.stats.drafted == 0 for run in measured.runs if not run.drafted)


def test_the_first_tokens_are_left_out(bench):
    measured = bench("plain=0.05")
    plain = [run for run in measured.runs if not run.drafted]
    assert {run.window.tokens for run in plain} == {90}
    assert all(run.window.seconds == pytest.approx(90 * 0.05) for run in plain)


def test_off_is_fastest_is_said(bench):
    result = summarise(bench("plain=0.01,step=0.01,curve=0.5,accept=0.5"))
    assert result.together.speedup.verdict == "slower"
    assert result.together.speedup.value < 0.6
    assert all(kind.speedup.verdict == "slower" for kind in result.kinds.values())


def test_jitter_crowns_no_winner(bench):
    # A draft that neither gains nor loses: nothing is accepted, and nothing costs anything.
    measured = bench("plain=0.05,step=0,accept=0,jitter=0.15")
    result = summarise(measured)
    rates = [run.tok_s for run in measured.runs]
    assert max(rates) / min(rates) > 1.2, "the noise is there"
    assert result.together.speedup.verdict == "within noise"
    assert result.together.speedup.low < 1 < result.together.speedup.high


def test_a_gain_beyond_the_jitter_is_seen(bench):
    result = summarise(bench("plain=0.05,step=0.002,accept=0.95,jitter=0.15"))
    assert result.together.speedup.verdict == "faster"
    assert result.together.speedup.low < result.together.bound < result.together.speedup.high


def test_kinds_can_disagree(bench):
    result = summarise(bench("plain=0.05,step=0.01,curve=0.2,accept=0.95,Story=0.05"))
    assert result.kinds["code"].speedup.verdict == "faster"
    assert result.kinds["prose"].speedup.verdict == "slower"
    assert result.kinds["code"].drafted.window.acceptance_rate > 0.8
    assert result.kinds["prose"].drafted.window.acceptance_rate < 0.2


def test_a_staircase_is_priced_by_its_stair(bench):
    stairs = "stairs=4:1.1/8:2.2/16:3.3"
    short = summarise(bench(f"accept=0.9,step=0,{stairs}", n_draft=3))
    longer = summarise(bench(f"accept=0.9,step=0,{stairs}", n_draft=4))
    assert short.together.speedup.value > longer.together.speedup.value
    for result in (short, longer):
        assert result.together.speedup.value == pytest.approx(result.together.bound)


def test_without_a_draft_only_the_baseline_is_measured(bench):
    measured = bench("plain=0.1", draft=DraftSpec("none", off_reason="not wanted"))
    result = summarise(measured)
    assert len(measured.runs) == 9
    assert result.together.drafted is None
    assert result.together.speedup is None
    assert result.together.baseline.decode_tok_s == pytest.approx(10)
    assert result.cost_ratio is None


def test_one_pair_cannot_tell_noise(bench):
    result = summarise(bench("accept=0.9", Protocol(60, 10, 1), prompts=PROMPTS[:1]))
    assert result.together.speedup.low is None
    assert result.together.speedup.verdict == "within noise"


def test_speed_over_depth(bench):
    protocol = Protocol(tokens=60, skip=20, repeats=1, lengths=(100, 400, 900))
    measured = bench("accept=0.9,fade=0.8,step=0.001", protocol)
    points = {(point.length, point.drafted): point.window for point in measured.depths}
    assert set(points) == {(length, side) for length in (100, 400, 900) for side in (False, True)}
    rates = [points[length, True].acceptance_rate for length in (100, 400, 900)]
    assert rates[0] > rates[1] > rates[2]
    assert points[900, False].tokens == 400
    assert points[100, False].tokens == 80


def test_stopping_keeps_complete_runs(bench):
    seen = []

    def progress(event):
        if event.run is not None:
            seen.append(event.run)

    measured = bench("accept=0.5", progress=progress, cancelled=lambda: len(seen) >= 3)
    assert measured.partial
    assert measured.error is None
    assert measured.runs == seen
    assert len(seen) == 3
    result = summarise(measured)
    assert result.kinds["code"].speedup is not None
    assert measured.costs is None
    assert result.together.bound is None


def test_a_death_keeps_what_was_measured(bench):
    measured = bench("die=5")  # the first answer warms up
    assert measured.partial
    assert isinstance(measured.error, WorkerDiedError)
    assert len(measured.runs) == 3


def test_a_fault_at_the_start_is_raised(bench):
    with pytest.raises(UsageError, match="left out"):
        bench("", Protocol(tokens=10, skip=10))
    with pytest.raises(UsageError, match="repeat"):
        bench("", Protocol(tokens=20, skip=10, repeats=0))
    with pytest.raises(UsageError, match="no prompt"):
        bench("", prompts=())


def test_progress_runs_up_to_the_end_and_has_an_eta(bench):
    events = []
    bench("accept=0.5", progress=events.append)
    shares = [event.fraction for event in events if event.stage == "runs"]
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(18 / 19)
    assert sum(event.run is not None for event in events) == 18
    assert all(event.eta_s is not None and event.eta_s >= 0 for event in events if event.run is not None)


def test_stopping_while_the_parts_are_timed_keeps_every_answer(bench):
    stopped = []

    def progress(event):
        if event.stage == "costs":
            stopped.append(event)

    protocol = Protocol(tokens=120, skip=30, repeats=1, lengths=(200,))
    measured = bench("accept=0.5", protocol, progress=progress, cancelled=lambda: bool(stopped))
    assert (measured.partial, measured.error) == (True, None)
    assert len(measured.runs) == 6
    assert measured.depths == []


def test_an_answer_is_no_longer_than_what_is_told_of_it(bench):
    """A length beyond the context must not cost two answers that run into its end."""
    lengths = []

    def progress(event):
        if event.stage == "lengths":
            lengths.append(event.fraction)

    protocol = Protocol(tokens=120, skip=30, repeats=1, lengths=(150, 10**12))
    measured = bench("accept=0.5", protocol, progress=progress)
    assert [(point.length, point.drafted) for point in measured.depths] == [(150, False), (150, True)]
    assert max(lengths) > 0.9
    before = len(lengths)
    assert bench("accept=0.5", Protocol(120, 30, 1, (10**12,)), progress=progress).depths == []
    assert len(lengths) == before
