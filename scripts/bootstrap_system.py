"""What this machine is: its packages, its compiler, its GPU, and the llama-cpp-python that fits it."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

CUDA_WHEELS = ("13.2", "13.0", "12.5", "12.4", "12.3", "12.2", "12.1", "11.8")
DEFAULT_ARGS = "-DLLAVA_BUILD=OFF"
USUAL_NVCC = Path("/usr/local/cuda/bin/nvcc")


def system_package(names: dict[str, str]) -> str:
    """The command that installs something here, or all of them when the system is not known."""
    commands = {
        "debian": "sudo apt install {}",
        "fedora": "sudo dnf install {}",
        "arch": "sudo pacman -S {}",
        "suse": "sudo zypper install {}",
        "alpine": "sudo apk add {}",
        "macos": "{}",
    }
    known = {key: commands[key].format(name) for key, name in names.items()}
    if sys.platform == "darwin":
        return known["macos"]
    family = ""
    with contextlib.suppress(OSError):
        for line in Path("/etc/os-release").read_text(encoding="utf-8").splitlines():
            if line.startswith(("ID=", "ID_LIKE=")):
                family += " " + line.partition("=")[2].strip('"')
    for key, words in (
        ("debian", "debian ubuntu"),
        ("fedora", "fedora rhel centos"),
        ("arch", "arch"),
        ("suse", "suse opensuse"),
        ("alpine", "alpine"),
    ):
        if key in known and set(words.split()) & set(re.split(r"[\s-]", family)):
            return known[key]
    return "; ".join(f"{key.capitalize()}: {command}" for key, command in known.items())


COMPILER_PACKAGES = {
    "debian": "build-essential",
    "fedora": "gcc-c++",
    "arch": "base-devel",
    "suse": "gcc-c++",
    "alpine": "build-base",
    "macos": "xcode-select --install",
}
VENV_PACKAGES = {
    "debian": "python3-venv",
    "fedora": "python3",
    "arch": "python",
    "macos": "brew install python",
}


def has_compiler() -> bool:
    """Can a C++ program be compiled here? A trial: a compiler may be on the path without its headers."""
    if sys.platform == "darwin":  # /usr/bin/c++ is a stub that opens a window until the tools are installed
        return subprocess.run(["xcode-select", "-p"], capture_output=True, check=False).returncode == 0
    compilers = [os.environ.get("CXX", ""), "c++", "g++", "clang++"]
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "trial.cpp")
        source.write_text(
            "#include <vector>\nint main() { return std::vector<int>(1)[0]; }\n", encoding="utf-8"
        )
        for name in filter(None, compilers):
            with contextlib.suppress(OSError):
                command = [*shlex.split(name), str(source), "-o", str(source.with_suffix(".out"))]
                if subprocess.run(command, capture_output=True, check=False).returncode == 0:
                    return True
    return False


@dataclass(frozen=True)
class Engine:
    """How llama-cpp-python should be made on this machine."""

    label: str
    indexes: tuple[str, ...]
    """Names of the indexes of prebuilt wheels that fit, best first."""
    cmake_args: str
    note: str = ""
    """What to say when it ends as a build for the CPU."""


def choose_engine() -> Engine:
    """The build for what is in this machine. CMAKE_ARGS, when set, are the person's decision."""
    own = os.environ.get("CMAKE_ARGS", "").strip()
    if own:
        extra = "" if "LLAVA_BUILD" in own else " " + DEFAULT_ARGS
        return Engine(f"with your CMAKE_ARGS ({own})", (), own + extra)
    if sys.platform == "darwin" and platform.machine() == "arm64":
        return Engine("for Metal", ("metal",), f"-DGGML_METAL=on {DEFAULT_ARGS}")
    cuda = cuda_version()
    if cuda:
        fitting = ["cu" + v.replace(".", "") for v in CUDA_WHEELS if version(v) <= version(cuda)]
        cuda_args = f"-DGGML_CUDA=on {DEFAULT_ARGS}"
        if shutil.which("nvcc") or os.environ.get("CUDACXX"):
            return Engine("for CUDA", tuple(fitting[:1]), cuda_args)
        if USUAL_NVCC.exists():  # CMake looks for the compiler on the path only
            return Engine("for CUDA", tuple(fitting[:1]), f"{cuda_args} -DCMAKE_CUDA_COMPILER={USUAL_NVCC}")
        note = (
            "There is an NVIDIA GPU but no CUDA toolkit (nvcc), so this build uses the CPU only. For the "
            'GPU, install the toolkit and run: CMAKE_ARGS="-DGGML_CUDA=on" ./scripts/run'
        )
        return Engine("for CUDA", (*fitting[:1], "cpu"), DEFAULT_ARGS, note)
    if Path("/dev/kfd").exists() and shutil.which("hipconfig"):
        return Engine("for ROCm", ("rocm72",), f"-DGGML_HIP=on {DEFAULT_ARGS}")
    return Engine("for the CPU", ("cpu",), DEFAULT_ARGS)


def version(text: str) -> tuple[int, ...]:
    """`12.4` as numbers."""
    return tuple(int(part) for part in re.findall(r"\d+", text))


def cuda_version() -> str:
    """The newest CUDA that the NVIDIA driver supports, or "" without a working driver."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(["nvidia-smi"], capture_output=True, text=True, timeout=20, check=True)
        found = re.search(r"CUDA Version:\s*([\d.]+)", done.stdout)
        return found[1] if found else ""
    return ""
