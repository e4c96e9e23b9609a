"""Drafters without a model of their own, from a `Load` to an answer."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from localspec.errors import LoadError, UsageError
from localspec.spec.draft_chain import ChainDrafter
from localspec.spec.draft_lookup import FILES, LookupDrafter
from localspec.spec.engine import Request
from localspec.spec.events import Finished, Sampling
from localspec.worker import sources
from localspec.worker.loading import Loaded
from localspec.worker.protocol import DraftSpec, Event, LoadProgress
from tests import gguf_files
from tests.gguf_writer import FIRST_BYTE
from tests.worker.conftest import Opener


@pytest.fixture(autouse=True)
def own_modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a test's drafter puts into the interpreter is gone afterwards."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    sys.modules.pop("person_drafters", None)


def own(folder: Path, name: str) -> DraftSpec:
    (folder / "person_drafters.py").write_text(
        "from llama_cpp.llama_speculative import LlamaDraftModel\n"
        "class Own(LlamaDraftModel):\n"
        "    def __call__(self, input_ids, /, **kwargs): return input_ids[:3]\n"
        "class Fails(Own):\n    def __init__(self): raise RuntimeError('no weights')\n"
    )
    return DraftSpec("custom", code=f"person_drafters:{name}", folder=str(folder))


def answer(loaded: Loaded, prompt: list[int]) -> Finished:
    request = Request(prompt, Sampling(temperature=0), max_tokens=40, ignore_eos=True)
    last = list(loaded.engine.generate(request))[-1]
    assert isinstance(last, Finished)
    return last


@pytest.mark.parametrize("auto", [False, True])
def test_a_persons_drafter_is_loaded_and_drafts(load: Opener, tiny: Path, tmp_path: Path, auto: bool) -> None:
    plain = answer(load(tiny, DraftSpec()), [1, 6, 7])
    loaded = load(tiny, own(tmp_path, "Own"), auto=auto)
    assert (loaded.ready.draft.state, loaded.ready.draft.name) == ("on", "person_drafters:Own")
    assert answer(loaded, [1, 6, 7]).token_ids == plain.token_ids
    loaded.prices.keep()
    again = load(tiny, own(tmp_path, "Own"), auto=auto)
    assert answer(again, [1, 6, 7]).token_ids == plain.token_ids


def test_one_that_cannot_be_made_leaves_the_target(load: Opener, tiny: Path, tmp_path: Path) -> None:
    loaded = load(tiny, own(tmp_path, "Fails"))
    assert loaded.ready.draft.state == "off"
    assert loaded.ready.draft.reason == "the drafter raised RuntimeError: no weights"
    assert answer(loaded, [1, 6, 7]).draft.reason == loaded.ready.draft.reason


def test_a_module_that_fails_leaves_the_target_too(load: Opener, tiny: Path, tmp_path: Path) -> None:
    spec = own(tmp_path, "Own")
    (tmp_path / "person_drafters.py").write_text("1 / 0\n")
    loaded = load(tiny, spec)
    assert loaded.ready.draft.reason == "the drafter raised ZeroDivisionError: division by zero"
    assert loaded.engine.context.max_outputs == 1


def test_a_wrong_name_is_told_before_the_target_is_loaded(
    load: Opener, events: list[Event], tiny: Path, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="person_drafters has no Ovn"):
        load(tiny, own(tmp_path, "Ovn"))
    assert events == []


def test_files_are_tokenised_with_the_targets_vocabulary(
    load: Opener, events: list[Event], tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "_PART", 40)
    text = "".join(f"the cat sat on the dog {number}\n" for number in range(30)) + "x" * 100
    file = tmp_path / "notes.txt"
    file.write_text(text)
    loaded = load(tiny, DraftSpec("lookup"), lookup_files=(str(file),))
    drafter = loaded.engine.drafter
    assert isinstance(drafter, LookupDrafter)
    assert drafter.files is not None
    ids = loaded.engine.vocab.tokenize(text, special=False)
    assert len(drafter.files) == pytest.approx(len(ids), rel=0.1)  # tokens may part where parts meet
    assert loaded.ready.notes[-1] == f"Lookup also searches notes.txt: {len(drafter.files):,} tokens."
    length, places = drafter.files.find(loaded.engine.vocab.tokenize("sat on the dog 7", special=False), 64)
    assert length >= 4
    behind = b"".join(loaded.engine.vocab.piece(token) for token in drafter.files.behind(places[-1], 8))
    assert behind.replace(b" ", b"").startswith(b"\nthecat")
    shares = [e.fraction for e in events if isinstance(e, LoadProgress) and e.stage == "lookup"]
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    assert len(shares) > 10


def test_files_join_a_chain_and_stay_out_of_a_fixed_length(load: Opener, tiny: Path, tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("the cat sat on the dog\n" * 5)
    draft = gguf_files.perturbed(tiny, tmp_path / "draft.gguf")
    loaded = load(tiny, DraftSpec("model", str(draft)), auto=True, lookup_files=(str(file),))
    assert isinstance(loaded.engine.drafter, ChainDrafter)
    assert loaded.engine.drafter.lookup.files is not None


def test_files_that_hold_the_answer_draft_it(load: Opener, tmp_path: Path) -> None:
    signs = [FIRST_BYTE + sign for sign in b"0123456789"]  # the vocabulary reads these as it writes them
    script = gguf_files.script_model(tmp_path / "script.gguf", gguf_files.chain(*signs, signs[0]))
    plain = load(script, DraftSpec())
    expected = answer(plain, [1, *signs[:2]])
    (tmp_path / "answer.txt").write_text(expected.text[:60])
    loaded = load(script, DraftSpec("lookup"), lookup_files=(str(tmp_path / "answer.txt"),))
    found = answer(loaded, [1, *signs[:2]])
    assert found.token_ids == expected.token_ids
    assert found.stats.by_source[FILES].accepted >= 4


def test_a_file_that_went_away_costs_only_itself(load: Opener, tiny: Path, tmp_path: Path) -> None:
    loaded = load(tiny, DraftSpec("lookup"), lookup_files=(str(tmp_path / "gone.txt"),))
    assert loaded.ready.draft.state == "on"
    assert loaded.ready.notes[-1].endswith("gone.txt. Lookup goes on without files.")


def test_reading_files_can_be_stopped(load: Opener, events: list[Event], tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("the cat\n" * 100)
    context_made = lambda: any(isinstance(e, LoadProgress) and e.fraction == 1.0 for e in events)  # noqa: E731
    seen: list[bool] = []

    def stop() -> bool:
        seen.append(context_made())
        return len(seen) > 1 and seen[-2]  # the weights are there

    with pytest.raises(LoadError, match="was stopped"):
        load(tiny, DraftSpec("lookup"), lookup_files=(str(tmp_path / "notes.txt"),), cancelled=stop)
