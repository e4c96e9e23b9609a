"""What is missing is offered; what was wanted is fetched and then used."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from localspec.cli import fetching, pull
from localspec.errors import LocalspecError
from localspec.models.catalog import load_catalog


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path))
    monkeypatch.setenv("HF_HOME", str(tmp_path))


@dataclass
class Launch:
    target: Any = None
    draft: Any = None
    missing: tuple[Any, ...] = ()
    notes: tuple[str, ...] = ()


def launch(*names):
    catalog = load_catalog()
    target = catalog.resolve(names[0])
    refs = [target, *(catalog.resolve(name, role="draft", target=target) for name in names[1:])]
    return Launch(target, refs[-1] if len(refs) > 1 else None, tuple(refs))


def test_nothing_is_asked_when_nothing_is_missing(capsys):
    ready = Launch()
    assert fetching.ready_to_launch(lambda: ready, yes=False) is ready
    assert capsys.readouterr() == ("", "")


def test_yes_fetches_and_prepares_again(monkeypatch, capsys):
    lacking, ready = launch("qwen3-8b", "0.6b"), Launch()
    prepared = iter([lacking, ready])
    fetched = []
    monkeypatch.setattr(pull, "fetch_all", fetched.append)
    assert fetching.ready_to_launch(lambda: next(prepared), yes=True) == ready
    assert fetched == [lacking.missing]
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("Not on this disk yet:\n  qwen3-8b ")


@pytest.mark.parametrize(
    ("reply", "wanted"), [("\n", True), ("Y\n", True), ("yes\n", True), ("n\n", False), ("", False)]
)
def test_the_answer_of_a_person_counts(monkeypatch, capsys, reply, wanted):
    lacking, ready = launch("qwen3.8-27b", "4b"), Launch()
    prepared = iter([lacking, ready])
    monkeypatch.setattr(fetching.output, "is_terminal", lambda stream: True)
    monkeypatch.setattr("sys.stdin", SimpleNamespace(readline=lambda: reply))
    fetched = []
    monkeypatch.setattr(pull, "fetch_all", fetched.append)
    if wanted:
        assert fetching.ready_to_launch(lambda: next(prepared), yes=False) == ready
    else:
        with pytest.raises(LocalspecError) as caught:
            fetching.ready_to_launch(lambda: next(prepared), yes=False)
        assert caught.value.hint == "localspec pull qwen3.8-27b --draft qwen3.5-4b"
    assert bool(fetched) == wanted
    assert "Download 21.7 GB? [Y/n] " in capsys.readouterr().err


def test_what_was_said_before_the_download_is_not_said_again(monkeypatch, capsys):
    lacking = launch("demo", "demo-draft")
    ready = Launch(notes=(*lacking.target.notes, "Another sentence."))
    prepared = iter([lacking, ready])
    monkeypatch.setattr(pull, "fetch_all", lambda refs: None)
    assert fetching.ready_to_launch(lambda: next(prepared), yes=True).notes == ("Another sentence.",)
    assert lacking.target.notes[0] in capsys.readouterr().err


def test_without_a_terminal_nobody_is_asked(capsys):
    with pytest.raises(LocalspecError, match="demo is not on this disk") as caught:
        fetching.ready_to_launch(lambda: launch("demo", "demo-draft"), yes=False)
    assert caught.value.hint == "localspec pull demo"
    assert "[Y/n]" not in capsys.readouterr().err


def test_a_size_that_is_not_known_is_not_made_up(monkeypatch, capsys):
    monkeypatch.setattr(fetching.output, "is_terminal", lambda stream: True)
    monkeypatch.setattr("sys.stdin", SimpleNamespace(readline=lambda: "n\n"))
    with pytest.raises(LocalspecError):
        fetching.ready_to_launch(lambda: launch("someone/Some-Model-GGUF"), yes=False)
    err = capsys.readouterr().err
    assert "       ?  someone/Some-Model-GGUF" in err
    assert "Download? [Y/n] " in err
