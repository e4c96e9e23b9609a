"""Pairs loaded in the test's own process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from localspec.llama.log import NativeLog
from localspec.memory import hardware
from localspec.worker.loading import Loaded, Loader
from localspec.worker.protocol import DraftSpec, Event, Load
from tests import gguf_files

Opener = Callable[..., Loaded]


@pytest.fixture
def events() -> list[Event]:
    return []


@pytest.fixture
def load(events: list[Event], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Opener]:
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(hardware, "seen_gpus", lambda: ())
    log, opened = NativeLog(), []
    log.install()

    def make(target: Path, draft: DraftSpec | None = None, **options: Any) -> Loaded:
        options = {"n_ctx": 256, "threads": 1, "n_draft": 4, **options}
        cancelled = options.pop("cancelled", lambda: False)
        command = Load(str(target), draft or DraftSpec(), **options)
        opened.append(Loader(command, log, events.append, cancelled).load())
        return opened[-1]

    yield make
    for loaded in opened:
        loaded.close()


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return gguf_files.random_llama(tmp_path / "tiny.gguf", n_embd=128)
