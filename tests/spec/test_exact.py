"""Promise 1: the text does not depend on the drafter, the draft length, or whether drafting is on."""

from __future__ import annotations

import itertools

import pytest

from localspec.spec.engine import Engine, Request
from localspec.spec.events import Finished, Sampling
from tests.spec.conftest import ARCHITECTURES, Bench

TURNS = ((20, 24), (9, 24), (3, 16))  # ids of the question, tokens of the answer
TEMPERATURES = (0.0, 0.7, 1.0)
DRAFTS = ("right", "half", "wrong", "lookup")


def talk(engine: Engine, sampling: Sampling, turns: tuple[tuple[int, int], ...] = TURNS) -> list[Finished]:
    """A conversation; the questions are fixed ids, each turn goes on from the answers before it."""
    ids = [1]
    answers = []
    for turn, (question, length) in enumerate(turns):
        ids += [3 + (37 * turn + 11 * i) % 256 for i in range(question)]
        last = list(engine.generate(Request(list(ids), sampling, max_tokens=length, ignore_eos=True)))[-1]
        assert isinstance(last, Finished)
        assert len(last.token_ids) == length
        assert last.reason == "length"
        ids += last.token_ids
        answers.append(last)
    return answers


def ids_of(answers: list[Finished]) -> list[tuple[int, ...]]:
    return [answer.token_ids for answer in answers]


@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_ids_are_those_without_a_draft(bench: Bench, arch: str, temperature: float, draft: str) -> None:
    """16 draft lengths, two cache types, a batch longer and one shorter than the prompt, three turns each."""
    path = bench.file(arch)
    sampling = Sampling(temperature=temperature, top_p=0.95, seed=5)
    plain = {
        (kv, n_batch): ids_of(talk(bench.engine(path, kv_type=kv, n_batch=n_batch), sampling))
        for kv, n_batch in itertools.product(("f16", "q8_0"), (18, 512))
    }
    drafted = accepted = first_drafted = first_accepted = 0
    for n_draft in range(1, 17):
        for kv, n_batch in (("f16", 512), ("q8_0", 18)) if n_draft % 2 else (("q8_0", 512), ("f16", 18)):
            other = "lookup" if draft == "lookup" else bench.related(path, draft)
            engine = bench.engine(path, other, n_draft, kv_type=kv, n_batch=n_batch)
            answers = talk(engine, sampling)
            assert ids_of(answers) == plain[kv, n_batch], (n_draft, kv, n_batch)
            drafted += sum(a.stats.drafted for a in answers)
            accepted += sum(a.stats.accepted for a in answers)
            first_drafted += sum(sum(a.stats.drafted_at[:1]) for a in answers)
            first_accepted += sum(sum(a.stats.accepted_at[:1]) for a in answers)
    if draft == "right" and temperature == 0:
        assert accepted == drafted
    elif (
        draft != "lookup"
    ):  # the drafts are as good or bad as they are meant to be, judged at the first position
        low, high = {"right": (0.5, 1.0), "half": (0.2, 0.9), "wrong": (0.0, 0.2)}[draft]
        assert low <= first_accepted / first_drafted <= high
    assert drafted > 0 or draft == "lookup"


@pytest.mark.parametrize("arch", ["mamba", "qwen3next"])
def test_a_target_that_cannot_go_back_is_not_drafted_for(bench: Bench, arch: str) -> None:
    from tests import gguf_files

    path = getattr(gguf_files, f"random_{arch}")(bench.folder / f"{arch}.gguf")
    sampling = Sampling(temperature=0.7, seed=1)
    plain = ids_of(talk(bench.engine(path), sampling))
    engine = bench.engine(path, "lookup", 4)
    assert engine.status.state == "off"
    assert "cannot take rejected tokens back" in engine.status.reason
    assert ids_of(talk(engine, sampling)) == plain


@pytest.mark.parametrize("arch", ["mamba", "qwen3next", "lfm2", "qwen35"])
def test_a_draft_with_a_state_follows_a_plain_target(bench: Bench, arch: str) -> None:
    """Its memory cannot be cut, so it drafts in a fork; always right means that the fork is the right one."""
    from tests import gguf_files

    path = bench.folder / f"{arch}-draft.gguf"
    if not path.exists():
        getattr(gguf_files, f"random_{arch}")(path)
    snapshots = 8 if arch in ("lfm2", "qwen35") else 0
    if snapshots:  # the same file as target: everything is accepted, over turns too
        engine = bench.engine(path, path, 7, snapshots=snapshots)
        answers = talk(engine, Sampling(temperature=0))
        assert [a.stats.acceptance_rate for a in answers] == [1.0, 1.0, 1.0]
    target = bench.file("llama")
    sampling = Sampling(temperature=0.7, seed=3)
    plain = ids_of(talk(bench.engine(target), sampling))
    assert ids_of(talk(bench.engine(target, path, 5), sampling)) == plain


def test_different_seeds_give_different_texts_and_the_same_seed_the_same(bench: Bench) -> None:
    path = bench.file("llama")
    texts = [ids_of(talk(bench.engine(path), Sampling(temperature=1.0, seed=s))) for s in (1, 2, 1)]
    assert texts[0] == texts[2] != texts[1]


def test_penalties_with_a_draft(bench: Bench) -> None:
    path = bench.file("llama")
    sampling = Sampling(
        temperature=0.8, repeat_penalty=1.3, frequency_penalty=0.2, presence_penalty=0.3, seed=2
    )
    plain = ids_of(talk(bench.engine(path), sampling))
    assert plain != ids_of(talk(bench.engine(path), Sampling(temperature=0.8, seed=2)))
    for draft in ("right", "half", "wrong"):
        assert ids_of(talk(bench.engine(path, bench.related(path, draft), 5), sampling)) == plain
