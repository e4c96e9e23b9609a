"""Cores that this process may use: affinity and the control groups of a container."""

from __future__ import annotations

from pathlib import Path

import pytest

from localspec.memory import cores
from localspec.worker.machine import default_threads
from tests.memory.test_devices import group


@pytest.fixture
def big(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with 64 cores of two threads each."""
    monkeypatch.setattr(cores.os, "sched_getaffinity", lambda pid: set(range(128)), raising=False)
    monkeypatch.setattr(cores.psutil, "cpu_count", lambda logical=True: 128 if logical else 64)


@pytest.mark.usefixtures("big")
@pytest.mark.parametrize(
    ("own", "folder", "files", "logical", "physical"),
    [
        ("0::/\n", ".", {"cpu__max": "max 100000\n"}, 128, 64),
        ("0::/\n", ".", {}, 128, 64),
        ("0::/\n", ".", {"cpu__max": "200000 100000\n"}, 2, 2),
        ("0::/\n", ".", {"cpu__max": "150000 100000\n"}, 2, 2),
        ("0::/\n", ".", {"cpu__max": "10000 100000\n"}, 1, 1),
        ("0::/outer/inner\n", "outer", {"cpu__max": "8000000 100000\n"}, 80, 64),
        (
            "3:memory:/x\n4:cpu,cpuacct:/x\n",
            "cpu/x",
            {"cpu__cfs_quota_us": "300000", "cpu__cfs_period_us": "100000"},
            3,
            3,
        ),
        (
            "4:cpu,cpuacct:/x\n",
            "cpu",
            {"cpu__cfs_quota_us": "-1\n", "cpu__cfs_period_us": "100000\n"},
            128,
            64,
        ),
        ("0::/\n", ".", {"cpu__max": "nonsense"}, 128, 64),
    ],
)
def test_a_containers_share_counts(
    tmp_path: Path, own: str, folder: str, files: dict[str, str], logical: int, physical: int
) -> None:
    (tmp_path / "own").write_text(own)
    group(tmp_path / folder, **files)
    places = tmp_path, tmp_path / "own"
    assert (cores.logical_cores(*places), cores.physical_cores(*places)) == (logical, physical)


@pytest.mark.usefixtures("big")
def test_threads_follow_the_affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "_shares", lambda root, own: [])
    assert default_threads() == 63  # one stays free
    monkeypatch.setattr(cores.os, "sched_getaffinity", lambda pid: {3, 4}, raising=False)
    assert default_threads() == 2


def test_a_machine_that_tells_nothing_has_a_core(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delattr(cores.os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(cores.os, "cpu_count", lambda: None)
    monkeypatch.setattr(cores.psutil, "cpu_count", lambda logical=True: None)
    assert cores.physical_cores(tmp_path, tmp_path / "none") == 1
