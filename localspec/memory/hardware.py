"""Which GPU is in the machine, whether the engine can use it or not, and how to get a build that can."""

from __future__ import annotations

import contextlib
import platform
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path

_VENDORS = {"0x10de": "NVIDIA", "0x1002": "AMD", "0x8086": "Intel"}


@dataclass(frozen=True, slots=True)
class SeenGpu:
    """A GPU that the system knows of."""

    name: str
    cmake_args: str
    """What CMAKE_ARGS must hold for llama.cpp to use it."""


def seen_gpus(root: Path = Path("/")) -> tuple[SeenGpu, ...]:
    """GPUs found without the engine, the best supported first. Never raises.

    Args:
        root: Where `dev`, `proc` and `sys` are.
    """
    if sys.platform == "darwin":
        return (SeenGpu("Apple GPU", "-DGGML_METAL=on"),) if platform.machine() == "arm64" else ()
    nvidia = _nvidia(root)
    if nvidia:
        return tuple(SeenGpu(name, "-DGGML_CUDA=on") for name in nvidia)
    amd = (root / "dev/kfd").exists()
    if amd and shutil.which("hipconfig"):
        return (SeenGpu("AMD GPU", "-DGGML_HIP=on"),)
    return tuple(SeenGpu(f"{vendor} GPU", "-DGGML_VULKAN=on") for vendor in _render_nodes(root))


def reinstall_command(gpu: SeenGpu | None = None) -> str:
    """The command that builds llama-cpp-python anew, for this GPU.

    `--no-cache-dir` matters: pip's cache would give the old build back.
    """
    wanted = "llama-cpp-python"
    with contextlib.suppress(metadata.PackageNotFoundError):
        for requirement in metadata.requires("localspec") or ():
            if requirement.startswith(wanted):
                wanted = requirement
    python = shlex.quote(sys.executable)
    if util.find_spec("pip") is None and shutil.which("uv"):
        install = f"uv pip install --python {python} --reinstall --no-deps --no-cache"
    else:
        install = f"{python} -m pip install --force-reinstall --no-deps --no-cache-dir"
    build = f'CMAKE_ARGS="{gpu.cmake_args}" ' if gpu else ""
    return f"{build}{install} {shlex.quote(wanted)}"


def _nvidia(root: Path) -> list[str]:
    """Names of NVIDIA GPUs with a loaded driver."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(
            ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=15,
            check=True,
        )
        names = [line.strip() for line in done.stdout.splitlines() if line.strip()]
        if names:
            return names
    with contextlib.suppress(OSError):
        return ["NVIDIA GPU" for _ in (root / "proc/driver/nvidia/gpus").iterdir()]
    return []


def _render_nodes(root: Path) -> list[str]:
    """Vendors of the GPUs that have a render node; virtual display adapters are left out."""
    found = []
    with contextlib.suppress(OSError):
        for node in sorted((root / "dev/dri").glob("renderD*")):
            with contextlib.suppress(OSError):
                vendor = (
                    (root / f"sys/class/drm/{node.name}/device/vendor").read_text(encoding="ascii").strip()
                )
                if vendor in _VENDORS:
                    found.append(_VENDORS[vendor])
    return found
