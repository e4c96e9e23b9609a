"""Timing the parts of a round with real evaluations of tiny models: counts and caches, never times."""

from __future__ import annotations

import pytest

from localspec.spec.events import Finished, Sampling
from localspec.worker.process import Worker
from localspec.worker.protocol import DraftSpec, Generate, Load, MeasureCosts, Peek, Ready
from tests.gguf_files import chain, random_qwen35, script_model

SAMPLING = Sampling(temperature=0.0)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    table = chain(*range(300, 360))
    return {
        "target": str(script_model(folder / "target.gguf", table, n_layer=2)),
        "draft": str(script_model(folder / "draft.gguf", table)),
    }


@pytest.fixture
def worker():
    with Worker() as one:
        yield one


def loaded(worker, load):
    return next(event for event in worker.load(load) if isinstance(event, Ready))


def answer(worker, tokens=20):
    command = Generate(0, raw_prompt="Hello", sampling=SAMPLING, max_tokens=tokens, ignore_eos=True)
    return [event for event in worker.generate(command) if isinstance(event, Finished)][-1]


@pytest.mark.parametrize("kind", ["model", "lookup"])
def test_every_size_is_timed_and_the_caches_stay_as_they_were(worker, files, kind):
    draft = DraftSpec(kind, files["draft"] if kind == "model" else "")
    loaded(worker, Load(files["target"], draft, n_draft=4, n_ctx=256, threads=1))
    before = answer(worker)
    costs = worker.costs(MeasureCosts((1, 2, 5, 9, 400), seconds=0.1))
    assert set(costs.verify) == {1, 2, 5, 9}, "a size that the context cannot verify is left out"
    assert all(seconds > 0 for seconds in costs.verify.values())
    assert costs.plain_s == costs.verify[1]
    assert costs.draft_step_s is not None
    assert costs.draft_step_s > 0
    assert costs.depth == before.context_used - 1
    after = answer(worker)
    assert after.token_ids == before.token_ids
    assert after.stats.reused_tokens == before.stats.prompt_tokens - 1, "the prompt is still in the cache"


def test_another_depth_is_filled_and_emptied(worker, files):
    loaded(worker, Load(files["target"], DraftSpec("model", files["draft"]), n_ctx=256, threads=1))
    before = answer(worker)
    assert worker.costs(MeasureCosts((1, 2), depth=100, seconds=0.1)).depth == 100
    after = answer(worker)
    assert after.token_ids == before.token_ids
    assert after.stats.reused_tokens == 0


def test_without_a_draft_there_is_no_draft_step(worker, files):
    loaded(worker, Load(files["target"], n_ctx=256, threads=1))
    costs = worker.costs(MeasureCosts(seconds=0.1))
    assert costs.draft_step_s is None
    assert set(costs.verify) == {1}


def test_a_look_at_one_token(worker, files):
    loaded(worker, Load(files["target"], DraftSpec("model", files["draft"]), n_draft=4, n_ctx=256, threads=1))
    before = answer(worker)
    question = Generate(0, raw_prompt="Hello", sampling=SAMPLING)
    at = 9
    candidates = (before.token_ids[at], 7)
    found = worker.peek(Peek(question, before.token_ids[:at], candidates, 5))
    assert found.width == 5
    assert found.alone.token == found.batched.token == before.token_ids[at]
    assert found.alone.margin > 1
    assert set(found.alone.logits) == set(found.texts) == set(candidates)
    difference = found.alone.logits[candidates[0]] - found.alone.logits[7]
    assert difference >= found.alone.margin * 0.999
    first = worker.peek(Peek(question, (), (before.token_ids[0],), 5))
    assert first.alone.token == before.token_ids[0]
    assert answer(worker).token_ids == before.token_ids


def test_empty_caches_are_empty_afterwards(worker, files):
    loaded(worker, Load(files["target"], DraftSpec("model", files["draft"]), n_ctx=256, threads=1))
    costs = worker.costs(MeasureCosts((1, 2), seconds=0.1))
    assert costs.depth > 0
    assert costs.draft_step_s is not None
    assert answer(worker).stats.reused_tokens == 0


@pytest.fixture(scope="module")
def hybrids(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hybrid")
    return {
        "target": str(random_qwen35(folder / "target.gguf", n_embd=128, n_nextn=1)),
        "draft": str(random_qwen35(folder / "draft.gguf", n_embd=64)),
    }


@pytest.mark.parametrize("kind", ["model", "mtp"])
def test_a_state_that_cannot_be_cut_is_as_it_was(worker, hybrids, kind):
    draft = DraftSpec(kind, hybrids["draft"] if kind == "model" else "")
    ready = loaded(worker, Load(hybrids["target"], draft, n_draft=4, n_ctx=256, threads=1))
    assert ready.draft.state == "on", ready.draft.reason
    before = answer(worker)
    costs = worker.costs(MeasureCosts((1, 2, 5, 9), seconds=0.1))
    assert set(costs.verify) == {1, 2, 5}, "no more than the snapshots can take back"
    assert costs.draft_step_s is not None
    again = answer(worker)
    assert again.token_ids == before.token_ids
    assert again.stats.drafted > 0
    deep = worker.costs(MeasureCosts((1, 2), depth=50, seconds=0.1))
    assert deep.depth == 50
    assert deep.draft_step_s is not None
    last = answer(worker)
    assert last.token_ids == before.token_ids
    assert last.stats.drafted > 0
