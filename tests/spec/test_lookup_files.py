"""Lookup in files: the index against a plain search, and a drafter that searches both."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from localspec.spec.draft_chain import ChainDrafter
from localspec.spec.draft_lookup import FILES, LookupDrafter
from localspec.spec.draft_model import ModelDrafter
from localspec.spec.engine import Engine, Request
from localspec.spec.events import Finished, Sampling
from localspec.spec.lookup_index import TextIndex
from localspec.spec.sampling import Sampler
from tests.spec.conftest import Bench

GREEDY = Sampler(Sampling(temperature=0))


def searched(texts: Sequence[Sequence[int]], ids: Sequence[int], longest: int) -> tuple[int, list[list[int]]]:
    """The same by looking everywhere: the longest match, and what stands behind its last eight occurrences."""
    best, found = 0, []
    for text in texts:
        for place in range(2, len(text)):
            length = 0
            while length < min(place, len(ids), longest) and text[place - 1 - length] == ids[-1 - length]:
                length += 1
            if length >= 2 and length > best:
                best, found = length, []
            if length >= 2 and length == best:
                found.append(list(text[place:]))
    return best, found[-8:]


@pytest.mark.parametrize("seed", range(10))
def test_the_index_finds_what_a_plain_search_finds(seed: int) -> None:
    rng = random.Random(seed)
    words = (2, 2, 3, 4, 30)[seed % 5]
    texts = [[rng.randrange(words) for _ in range(rng.randrange(300))] for _ in range(4)]
    index = TextIndex(texts)
    assert len(index) == sum(map(len, texts))
    for _ in range(60):
        text = rng.choice([text for text in texts if text])
        end = rng.randrange(len(text))
        ids = [rng.randrange(words) for _ in range(3)] + text[max(0, end - rng.randrange(12)) : end]
        length, places = index.find(ids, 8)
        expected, behind = searched(texts, ids, 8)
        assert length == expected
        assert [index.behind(place, 10**6) for place in places] == behind
        assert [index.behind(place, 3) for place in places] == [rest[:3] for rest in behind]


@pytest.mark.parametrize("texts", [[], [[]], [[5]], [[], [5, 6], []]])
def test_texts_with_nothing_to_find(texts: list[list[int]]) -> None:
    index = TextIndex(texts)
    for ids in ([], [5], [5, 6], [6, 5], [5, 6, 5, 6]):
        assert index.find(ids, 64) == (0, [])


def test_no_match_runs_from_one_text_into_another() -> None:
    index = TextIndex([[1, 2, 3], [4, 5, 6, 7]])
    assert index.find([3, 4], 64)[0] == 0
    assert index.find([2, 3], 64)[0] == 0
    length, places = index.find([9, 3, 4, 5], 64)
    assert (length, [index.behind(place, 9) for place in places]) == (2, [[6, 7]])


def test_a_file_is_proposed_from_its_first_line_on() -> None:
    drafter = LookupDrafter(TextIndex([range(10, 90)]))
    draft = drafter.draft([1, 30, 31], 5, GREEDY)
    assert (draft.tokens, draft.source) == ((32, 33, 34, 35, 36), FILES)
    assert len(draft.chances) == 5
    assert LookupDrafter().draft([1, 30, 31], 5, GREEDY).tokens == ()


def test_the_longer_match_wins_and_the_conversation_on_ties() -> None:
    index = TextIndex([[5, 6, 7, 8, 70, 71]])
    tie = LookupDrafter(index).draft([5, 6, 7, 8, 90, 91, 1, 5, 6, 7, 8], 2, GREEDY)
    assert (tie.tokens, tie.source) == ((90, 91), "lookup")
    shorter = LookupDrafter(index).draft([7, 8, 90, 91, 1, 5, 6, 7, 8], 2, GREEDY)
    assert (shorter.tokens, shorter.source) == ((70, 71), FILES)


def test_how_often_files_are_right_is_counted_apart_and_kept() -> None:
    index = TextIndex([range(1000)])
    drafter = LookupDrafter(index)
    for start in range(100, 900, 10):
        ids = [start, start + 1]
        drafter.begin(ids)
        drafter.draft(ids, 1, GREEDY)
        drafter.accept([*ids, 5])  # never right
    wrong = drafter.draft([500, 501], 1, GREEDY).chances[0]
    assert wrong < 0.2
    own = LookupDrafter(index)
    assert own.draft([7, 2000, 2001, 7, 2000], 1, GREEDY).chances[0] > 0.5
    drafter.begin([7, 2000, 2001, 7, 2000])
    assert drafter.draft([7, 2000, 2001, 7, 2000], 1, GREEDY).chances[0] > 0.5
    again = LookupDrafter(index)
    again.recall(drafter.learned())
    assert again.draft([500, 501], 1, GREEDY).chances[0] < 0.4
    LookupDrafter().recall(drafter.learned())  # without files their counts are left


def test_files_stay_when_the_conversation_is_forgotten() -> None:
    drafter = LookupDrafter(TextIndex([range(100)]))
    drafter.begin([20, 21])
    drafter.clear()
    assert drafter.draft([20, 21], 2, GREEDY).tokens == (22, 23)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_text_does_not_depend_on_the_files(bench: Bench, temperature: float) -> None:
    path = bench.file("llama")
    request = Request([1, 6, 7], Sampling(temperature, seed=3), max_tokens=60, ignore_eos=True)

    def answer(engine: Engine) -> Finished:
        last = list(engine.generate(request))[-1]
        assert isinstance(last, Finished)
        return last

    plain = answer(bench.engine(path)).token_ids
    vocab = bench.model(path).vocab
    for text in (plain, plain[::-1], [6, 7] * 50):
        engine = Engine(bench.context(path), vocab, drafter=LookupDrafter(TextIndex([text])), n_draft=7)
        found = answer(engine)
        assert found.token_ids == plain
        assert found.draft.name == "lookup"
        if text is plain:
            assert found.stats.by_source[FILES].accepted > 30


def test_figures_by_source_add_up(bench: Bench) -> None:
    """A chain with a wrong model and a file that holds the answer: each source has its own figures."""
    path = bench.file("llama")
    request = Request([1, 6, 7], Sampling(temperature=0), max_tokens=80, ignore_eos=True)
    first = list(bench.engine(path).generate(request))[-1]
    assert isinstance(first, Finished)
    wrong = bench.related(path, "wrong")
    model = ModelDrafter(bench.context(wrong), name="wrong.gguf", n_vocab=300)
    chain = ChainDrafter(model, LookupDrafter(TextIndex([first.token_ids])))
    engine = Engine(bench.context(path), bench.model(path).vocab, drafter=chain, n_draft=4)
    from localspec.spec.curve import Costs

    engine.set_length(4, Costs({1: 1.0, 5: 1.1}, 0.05, 5))
    last = list(engine.generate(request))[-1]
    assert isinstance(last, Finished)
    assert last.token_ids == first.token_ids
    stats = last.stats
    assert stats.by_source[FILES].acceptance_rate == 1.0
    assert set(stats.by_source) <= {FILES, "lookup", "wrong.gguf"}
    assert sum(one.drafted for one in stats.by_source.values()) == stats.drafted
    assert sum(one.accepted for one in stats.by_source.values()) == stats.accepted
    assert sum(one.rounds for one in stats.by_source.values()) == stats.drafted_rounds
    told = stats.to_json()["by_source"]
    assert isinstance(told, dict)
    assert told[FILES]["rounds"] == stats.by_source[FILES].rounds
