"""A hub on this machine, and this process set up for it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import close_session, constants

from localspec.models import web
from tests.gguf_files import header_only
from tests.hub_server import HubServer
from tests.models.hub_helpers import FILE, REPO


@pytest.fixture(scope="session")
def model_bytes(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A real GGUF file of about 3 MB whose bytes are all different from their neighbours'."""
    file = header_only(tmp_path_factory.mktemp("hub") / "m.gguf", tensors={"token_embd.weight": (300, 2500)})
    data = bytearray(file.read_bytes())
    tail = len(data) - 2_900_000
    data[tail:] = b"".join(hashlib.sha256(b"%d" % n).digest() for n in range(-(-2_900_000 // 32)))[:2_900_000]
    return bytes(data)


@pytest.fixture
def served(
    hub_server: HubServer, model_bytes: bytes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[HubServer]:
    """The hub with one model, and this process set up for it."""
    monkeypatch.setattr(constants, "ENDPOINT", hub_server.url)
    template = hub_server.url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hf" / "hub"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "hf" / "token"))
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 1)
    monkeypatch.setattr(constants, "HF_HUB_ETAG_TIMEOUT", 1)
    monkeypatch.setattr(web, "FIRST_PAUSE", 0.01)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setenv("HF_ENDPOINT", hub_server.url)
    hub_server.add(REPO, FILE, model_bytes)
    yield hub_server
    close_session()
