"""Tiny models, and the program run on a pair of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from localspec import profiles
from tests.cli.program import priced
from tests.gguf_files import script_model


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Paths of a target, a draft that fits it, and a model with another vocabulary."""
    folder = tmp_path_factory.mktemp("models")
    return {
        "target": str(script_model(folder / "target.gguf", {}, n_layer=2)),
        "draft": str(script_model(folder / "draft.gguf", {})),
        "other": str(script_model(folder / "other.gguf", {}, n_vocab=700)),
    }


@pytest.fixture
def on_pair(tmp_path, models):
    """Runs a command on the target with a draft, on the engine with set prices."""

    def run(command, *arguments, prices="", draft="draft"):
        pair = (models["target"], "--draft", models.get(draft, draft), "--n-draft", "4")
        return priced(tmp_path, command, *pair, *arguments, prices=prices)

    return run


@pytest.fixture
def tuned(tmp_path, models, monkeypatch):
    """Saves a profile of the target, as tune would: the draft at length 2, an 8-bit cache and three threads."""
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path))

    def save(draft="draft", **settings):
        model = profiles.model_file(models[draft], Path(models[draft])) if draft in models else None
        values = {"draft": model.id if model else draft, "n_draft": 2, "kv": "q8_0", "threads": 3, **settings}
        made = profiles.Profile(
            name="fast",
            when="2026-11-30T10:00:00+00:00",
            machine=profiles.this_machine(),
            target=profiles.model_file(models["target"], Path(models["target"])),
            draft=model,
            settings=values,
            versions={"llama-cpp-python": profiles.engine_version()},
        )
        profiles.save(made)

    return save
