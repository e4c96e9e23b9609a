"""Builds `llama-server` from the source inside llama-cpp-python's sdist, in the cache folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import venv
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path

import psutil

from localspec import paths
from localspec.errors import LoadError

TARGETS = ("llama-server", "llama-speculative-simple")
_OPTIONS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DGGML_NATIVE=ON",  # as the wheel, which is compiled on the machine that it runs on
    "-DBUILD_SHARED_LIBS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=ON",
    "-DLLAMA_BUILD_SERVER=ON",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_TOOLS=ON",
    "-DLLAMA_BUILD_MTMD=OFF",
    "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_CURL=OFF",
)


def home() -> Path:
    """Where source and build of the installed version lie."""
    return paths.cache_dir() / "llama.cpp" / version("llama-cpp-python")


def built() -> Path | None:
    """The finished build of the installed version, None when there is none."""
    folder = home() / "build"
    return folder if (folder / "done").is_file() else None


def build(cmake_args: Sequence[str], jobs: int, say: Callable[[str], None]) -> Path:
    """Fetch, unpack, configure and compile what is not there yet.

    Args:
        cmake_args: More arguments of CMake, the ones that the wheel was built with.
        jobs: Compilers at once.
        say: Told each step.

    Returns:
        The build folder.

    Raises:
        LoadError: A step failed; its last lines are in the message.
    """
    found = built()
    if found is not None:
        return found
    top = home()
    top.mkdir(parents=True, exist_ok=True)
    source = unpack(_sdist(top, say), top)
    cmake, ninja = _tools(top, say)
    folder = top / "build"
    where = ["-S", str(source), "-B", str(folder), "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"]
    say("configuring")
    _run([cmake, *where, *_OPTIONS, *cmake_args], top / "configure.log")
    say(f"compiling {', '.join(TARGETS)} with {jobs} jobs; its log is {top / 'compile.log'}")
    _run([cmake, "--build", str(folder), "--parallel", str(jobs), "--target", *TARGETS], top / "compile.log")
    (folder / "done").touch()
    return folder


def unpack(sdist: Path, into: Path) -> Path:
    """The folder of llama.cpp's source inside an sdist of llama-cpp-python.

    Raises:
        LoadError: It does not hold one.
    """
    with tarfile.open(sdist) as archive:
        safely = (
            {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        )  # Python 3.10.12 and later know it
        archive.extractall(into / "source", **safely)  # type: ignore[arg-type]
    found = sorted((into / "source").glob("*/vendor/llama.cpp/CMakeLists.txt"))
    if not found:
        raise LoadError(f"{sdist.name} does not hold llama.cpp's source.")
    return found[-1].parent


def _sdist(top: Path, say: Callable[[str], None]) -> Path:
    wanted = f"llama-cpp-python=={version('llama-cpp-python')}"
    say(f"fetching the source of {wanted}")
    command = [sys.executable, "-m", "pip", "download", "--no-deps"]
    command += ["--no-binary", ":all:", "--dest", str(top / "sdist"), wanted]
    _run(command, top / "fetch.log", hint="python -m ensurepip")
    (found,) = (top / "sdist").glob("*.tar.gz")
    return found


def _tools(top: Path, say: Callable[[str], None]) -> tuple[str, str]:
    """CMake and ninja: this machine's, else from the package index."""
    cmake, ninja = shutil.which("cmake"), shutil.which("ninja")
    if cmake and ninja:
        return cmake, ninja
    folder = top / "tools"
    scripts = folder / ("Scripts" if os.name == "nt" else "bin")
    if not (scripts / "ninja").exists():
        say("fetching CMake and ninja")
        venv.create(folder, with_pip=True)
        _run(
            [str(scripts / "python"), "-m", "pip", "install", "--quiet", "cmake", "ninja"], top / "tools.log"
        )
    return str(scripts / "cmake"), str(scripts / "ninja")


def _run(command: Sequence[str], log: Path, hint: str = "") -> None:
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT)
        try:
            code = process.wait()
        except BaseException:
            for child in psutil.Process(process.pid).children(recursive=True):
                child.terminate()  # ninja would compile on
            process.terminate()
            process.wait()
            raise
    if code:
        lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
        raise LoadError(
            f"{Path(command[0]).name} ended with code {code}.",
            why=f"Its last words: {' / '.join(lines[-3:])[-400:]}. All of them: {log}",
            hint=hint or f"tail -50 {log}",
        )
