"""Tiny models, and the program run on a pair of them."""

from __future__ import annotations

import pytest

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
