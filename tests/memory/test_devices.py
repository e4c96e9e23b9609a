from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from localspec.errors import UsageError
from localspec.memory import devices

MIB = 1 << 20


def fake_ram(monkeypatch: pytest.MonkeyPatch, *, available: int, total: int) -> None:
    memory = SimpleNamespace(available=available, total=total)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)


def group(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


def test_ram_without_a_container(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake_ram(monkeypatch, available=700, total=1000)
    (tmp_path / "proc").write_text("0::/\n")
    assert devices.system_memory(tmp_path, tmp_path / "proc") == devices.Device("RAM", "cpu", 700, 1000)


def test_a_container_limit_of_a_parent_group_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake_ram(monkeypatch, available=8000 * MIB, total=16000 * MIB)
    (tmp_path / "proc").write_text("0::/outer/inner\n")
    group(tmp_path / "outer/inner", memory__max="max\n", memory__current="1\n")
    group(
        tmp_path / "outer",
        memory__max=f"{1000 * MIB}\n",
        memory__current=f"{600 * MIB}\n",
        memory__stat=f"anon 5\ninactive_file {250 * MIB}\n",
    )
    ram = devices.system_memory(tmp_path, tmp_path / "proc")
    # 600 MiB are used, of which 250 MiB are page cache that can be dropped.
    assert (ram.free, ram.total) == (650 * MIB, 1000 * MIB)


def test_a_container_limit_of_the_first_kind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake_ram(monkeypatch, available=900, total=1000)
    (tmp_path / "proc").write_text("4:cpu,cpuacct:/x\n3:memory:/x\n")
    group(tmp_path / "memory/x", memory__limit_in_bytes="500", memory__usage_in_bytes="100")
    group(tmp_path / "memory", memory__limit_in_bytes=str(9223372036854771712), memory__usage_in_bytes="7")
    assert devices.system_memory(tmp_path, tmp_path / "proc") == devices.Device("RAM", "cpu", 400, 500)


def test_a_group_over_its_limit_has_nothing_free(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake_ram(monkeypatch, available=900, total=1000)
    (tmp_path / "proc").write_text("0::/\n")
    group(tmp_path, memory__max="100", memory__current="120")
    assert devices.system_memory(tmp_path, tmp_path / "proc").free == 0


def test_ram_that_cannot_be_read_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise OSError("no /proc")

    monkeypatch.setattr(psutil, "virtual_memory", broken)
    assert not devices.system_memory().known


def test_process_memory_is_this_process() -> None:
    mine = devices.process_memory()
    assert mine == pytest.approx(psutil.Process(os.getpid()).memory_info().rss, rel=0.2)
    assert devices.process_memory(2**22 + 1) == 0


def native(kind: str, **values: object) -> SimpleNamespace:
    return SimpleNamespace(**{"name": "X0", "description": "", "kind": kind, "free": 1, "total": 2, **values})


def test_a_discrete_gpu_hides_the_integrated_one() -> None:
    found = devices.gpus(
        lambda: [native("cpu"), native("igpu"), native("gpu", description="Big One", free=10, total=20)]
    )
    assert found == (devices.Device("Big One", "gpu", 10, 20, id="X0"),)
    assert [device.kind for device in devices.gpus(lambda: [native("cpu"), native("igpu")])] == ["igpu"]


def test_a_provider_that_fails_means_no_gpu() -> None:
    def broken() -> list[object]:
        raise RuntimeError("driver gone")

    assert devices.gpus(broken) == ()
    assert devices.gpus(lambda: [SimpleNamespace(kind="gpu")]) == ()


def test_sizes_for_people() -> None:
    sizes = (None, 0, 512 * 1024, 200 * MIB, 15 * 1024 * MIB + 300 * MIB)
    assert [devices.human(size) for size in sizes] == ["?", "0.0 MiB", "0.5 MiB", "200 MiB", "15.3 GiB"]


CARDS = (
    native("gpu", name="CUDA0", description="RTX 3090"),
    native("cpu", name="CPU"),
    native("igpu", name="Vulkan0", description="Shared"),
    native("gpu", name="CUDA1", description="RTX 3090"),
)


def test_a_device_is_named_by_number_by_gpu_and_number_or_by_the_engines_name() -> None:
    found = devices.all_gpus(lambda: CARDS)
    assert [device.id for device in found] == ["CUDA0", "Vulkan0", "CUDA1"]
    for wanted, name in (
        ("0", "CUDA0"),
        ("gpu1", "Vulkan0"),
        ("GPU2", "CUDA1"),
        (" cuda1 ", "CUDA1"),
        ("vulkan0", "Vulkan0"),
    ):
        chosen = devices.named(wanted, found)
        assert chosen is not None
        assert chosen.id == name, wanted
    assert devices.named("CPU", found) is None
    assert devices.named("cpu", ()) is None


def test_a_device_that_is_not_there_lists_those_that_are() -> None:
    with pytest.raises(UsageError) as caught:
        devices.named("gpu7", devices.all_gpus(lambda: CARDS))
    assert caught.value.message == "There is no device gpu7 for the draft."
    assert caught.value.why == (
        "There is: cpu, gpu0 (CUDA0, RTX 3090), gpu1 (Vulkan0, Shared), gpu2 (CUDA1, RTX 3090)."
    )
    with pytest.raises(UsageError) as caught:
        devices.named("CUDA0", ())
    assert caught.value.why == "There is: cpu. This build of llama.cpp sees no GPU."


def test_devices_for_people() -> None:
    found = devices.all_gpus(lambda: CARDS)
    assert devices.label((), found) == "CPU"
    assert devices.label(found[1:2], found) == "Shared"
    assert devices.label(found[:1], found) == "RTX 3090 (CUDA0)"
    assert devices.label((found[0], found[2]), found) == "2 x RTX 3090"
    assert devices.label(found, found) == "2 x RTX 3090 + Shared"
