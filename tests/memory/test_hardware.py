from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import pytest

from localspec.memory import hardware


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all of PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(sys, "platform", "linux")
    return folder


def tool(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def node(root: Path, name: str, vendor: str) -> None:
    for folder in (root / "dev/dri", root / f"sys/class/drm/{name}/device"):
        folder.mkdir(parents=True, exist_ok=True)
    (root / "dev/dri" / name).touch()
    (root / f"sys/class/drm/{name}/device/vendor").write_text(vendor + "\n")


def test_nothing_is_seen_on_a_bare_machine(tools: Path, tmp_path: Path) -> None:
    assert hardware.seen_gpus(tmp_path) == ()


def test_nvidia_cards_by_name(tools: Path, tmp_path: Path) -> None:
    tool(tools, "nvidia-smi", "echo 'Card One'; echo 'Card Two'")
    assert hardware.seen_gpus(tmp_path) == (
        hardware.SeenGpu("Card One", "-DGGML_CUDA=on"),
        hardware.SeenGpu("Card Two", "-DGGML_CUDA=on"),
    )


def test_a_broken_nvidia_tool_is_no_error(tools: Path, tmp_path: Path) -> None:
    tool(tools, "nvidia-smi", "echo 'NVIDIA-SMI has failed'; exit 9")
    assert hardware.seen_gpus(tmp_path) == ()
    (tmp_path / "proc/driver/nvidia/gpus/0000:01:00.0").mkdir(parents=True)
    assert [gpu.cmake_args for gpu in hardware.seen_gpus(tmp_path)] == ["-DGGML_CUDA=on"]


def test_amd_with_and_without_rocm(tools: Path, tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/kfd").touch()
    node(tmp_path, "renderD128", "0x1002")
    assert hardware.seen_gpus(tmp_path) == (hardware.SeenGpu("AMD GPU", "-DGGML_VULKAN=on"),)
    tool(tools, "hipconfig", "exit 0")
    assert hardware.seen_gpus(tmp_path) == (hardware.SeenGpu("AMD GPU", "-DGGML_HIP=on"),)


def test_a_virtual_adapter_is_no_gpu(tools: Path, tmp_path: Path) -> None:
    node(tmp_path, "renderD128", "0x1af4")
    assert hardware.seen_gpus(tmp_path) == ()
    node(tmp_path, "renderD129", "0x8086")
    assert [gpu.name for gpu in hardware.seen_gpus(tmp_path)] == ["Intel GPU"]


def test_apple(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr("platform.machine", lambda: "arm64")
    assert [gpu.cmake_args for gpu in hardware.seen_gpus(tmp_path)] == ["-DGGML_METAL=on"]
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    assert hardware.seen_gpus(tmp_path) == ()


def test_the_reinstall_command_goes_round_the_cache_of_wheels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/home/a b/python")
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: object())
    command = hardware.reinstall_command(hardware.SeenGpu("Card", "-DGGML_CUDA=on"))
    assert command.startswith("CMAKE_ARGS=\"-DGGML_CUDA=on\" '/home/a b/python' -m pip install ")
    assert "--no-cache-dir" in command
    assert "--force-reinstall" in command
    assert "llama-cpp-python" in command.rsplit(maxsplit=1)[1]
    assert ">=0.3.36" in command
    assert hardware.reinstall_command().startswith("'/home/a b/python' -m pip install ")


def test_the_reinstall_command_without_pip(monkeypatch: pytest.MonkeyPatch, tools: Path) -> None:
    tool(tools, "uv", "exit 0")
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    assert " uv pip install " in hardware.reinstall_command(hardware.SeenGpu("Card", "-DGGML_CUDA=on"))
    assert os.environ["PATH"] == str(tools)
