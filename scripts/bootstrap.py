"""Make `.venv` and install localspec into it: the slow half of scripts/run and scripts/test.

    python3 scripts/bootstrap.py run         localspec and llama-cpp-python
    python3 scripts/bootstrap.py dev         the same with the development extra
    python3 scripts/bootstrap.py has-model   exit code 0 when there is a model on this machine

Only the standard library. llama-cpp-python comes from its prebuilt wheels when their index answers within
seconds and has a fitting one, else from pip's cache of wheels built here, else it is compiled. It can be stopped
at any moment and run again.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

from bootstrap_system import (
    COMPILER_PACKAGES,
    DEFAULT_ARGS,
    VENV_PACKAGES,
    Engine,
    choose_engine,
    has_compiler,
    system_package,
)
from bootstrap_talk import PipReader, Progress, Stop, clock, say, stream

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
LOG = VENV / "setup.log"
UNFINISHED = VENV / ".localspec-unfinished"
PLACE = VENV / ".localspec-place"
BUILT_WITH = VENV / ".localspec-cmake-args"

WHEELS = "https://abetlen.github.io/llama-cpp-python/whl/"
PROBE_SECONDS = 4
# Two cores compile llama.cpp, without its multimodal library, in about seven minutes.
COMPILE_CORE_MINUTES = 14


def pip(
    *arguments: str,
    cmake_args: str | None = None,
    cache: str | None = None,
    before_compile: Callable[[], None] = lambda: None,
) -> int:
    """Run pip inside `.venv` with a progress line; everything it says goes to the log.

    `before_compile` is called when llama-cpp-python is about to be compiled; what it raises ends pip.
    """
    env = dict(os.environ)
    if cmake_args is not None:
        env["CMAKE_ARGS"] = cmake_args
    if cache is not None:
        env["PIP_CACHE_DIR"] = cache
    reader, progress = PipReader(), Progress()
    command = [str(PYTHON), "-m", "pip", *arguments]
    with LOG.open("a", encoding="utf-8") as log:
        log.write(f"\n$ {shlex.join(command)}   (CMAKE_ARGS={env.get('CMAKE_ARGS', '')!r})\n")

        def take(line: str) -> None:
            log.write(line)
            log.flush()
            reader.read(line)
            if "Building wheel for llama-cpp-python" in line:
                progress.clear()
                before_compile()

        try:
            return stream(command, env, take, lambda: progress.show(reader.text))
        finally:
            progress.clear()


PIP_INSTALL = ("install", "--no-input", "--disable-pip-version-check", "--progress-bar", "off")


def log_tail(count: int = 12) -> str:
    """The last lines of the log, for a failure."""
    with contextlib.suppress(OSError):
        lines = [
            line for line in LOG.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()
        ]
        return "\n".join(
            "    " + "".join(c for c in line[:200] if c.isprintable()) for line in lines[-count:]
        )
    return ""


def make_venv() -> None:
    """Leave a `.venv` with a Python and a pip that work; remake one that was left half done or was moved."""
    if VENV.exists():
        moved = PLACE.exists() and PLACE.read_text(encoding="utf-8") != str(VENV)
        whole = not moved and not UNFINISHED.exists()
        if whole and (runs("-m", "pip", "--version") or runs("-m", "ensurepip")):
            return
        say("Repairing .venv (it was left half done, or was moved).")
    else:
        say(f"Making .venv with Python {platform.python_version()}.")
    if not (find_spec("venv") and find_spec("ensurepip")):
        raise Stop(
            "This Python cannot make virtual environments (its venv or ensurepip module is missing). "
            f"Install it and run this again: {system_package(VENV_PACKAGES)}"
        )
    done = subprocess.run(
        [sys.executable, "-m", "venv", "--clear", str(VENV)], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise Stop(f"Python could not make {VENV}: {(done.stderr or done.stdout).strip()[-400:]}")
    PLACE.write_text(str(VENV), encoding="utf-8")


def runs(*arguments: str) -> bool:
    """Does the Python of `.venv` do this without an error?"""
    with contextlib.suppress(OSError):
        return subprocess.run([str(PYTHON), *arguments], capture_output=True, check=False).returncode == 0
    return False


@contextlib.contextmanager
def only_one() -> Iterator[None]:
    """Wait while another set-up works on the same `.venv`."""
    import fcntl

    with (ROOT / "pyproject.toml").open("rb") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            say("Another set-up of this checkout is running; waiting for it.")
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def requirement() -> str:
    """The range of llama-cpp-python that pyproject.toml asks for."""
    found = re.search(r'"(llama-cpp-python[^"]*)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    if not found:
        raise Stop("pyproject.toml names no llama-cpp-python.")
    return found[1]


_IN_RANGE = """
import sys
from importlib.metadata import version
from pip._vendor.packaging.requirements import Requirement
wanted = Requirement(sys.argv[1]).specifier
found = sys.argv[2:] or [version("llama-cpp-python")]
good = [v for v in found if wanted.contains(v)]
print(good[0] if good else "")
sys.exit(not good)
"""
_IMPORT = "import llama_cpp; llama_cpp.llama_backend_init(); llama_cpp.llama_print_system_info()"


def newest_in_range(versions: list[str]) -> str:
    """The first of `versions` (newest first) that pyproject.toml's range allows, or ""."""
    command = [str(PYTHON), "-c", _IN_RANGE, requirement(), *versions]
    return (
        subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
        if versions
        else ""
    )


def prebuilt_version(index: str) -> str:
    """The newest fitting version among the prebuilt wheels for this platform, or ""; within seconds."""
    command = [
        str(PYTHON),
        "-m",
        "pip",
        "--disable-pip-version-check",
        "--timeout",
        str(PROBE_SECONDS),
        "--retries",
        "0",
    ]
    command += [
        "index",
        "versions",
        "llama-cpp-python",
        "--only-binary",
        ":all:",
        "--index-url",
        WHEELS + index,
    ]
    with contextlib.suppress(subprocess.TimeoutExpired):
        done = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_SECONDS + 2, check=False)
        found = re.search(r"Available versions: (.*)", done.stdout)
        return newest_in_range([v.strip() for v in found[1].split(",")]) if found else ""
    return ""


def cached_version(cache: str | None) -> str:
    """The fitting version among the wheels that pip built here before, or ""."""
    env = {**os.environ, **({"PIP_CACHE_DIR": cache} if cache else {})}
    command = [str(PYTHON), "-m", "pip", "cache", "list", "llama_cpp_python"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    return newest_in_range(re.findall(r"llama_cpp_python-([^-\s]+)-", done.stdout))


def cache_for(cmake_args: str) -> str | None:
    """The cache folder of a build with these flags: pip's own would hand a CPU wheel to a GPU build."""
    if cmake_args == DEFAULT_ARGS:
        return None
    done = subprocess.run(
        [str(PYTHON), "-m", "pip", "cache", "dir"], capture_output=True, text=True, check=False
    )
    name = re.sub(r"[^A-Za-z0-9]+", "-", cmake_args).strip("-")[:100]
    return str(Path(done.stdout.strip(), "localspec", name)) if done.returncode == 0 else None


def install_engine() -> None:
    """Leave a llama-cpp-python in `.venv` that imports and is of the right version."""
    engine = choose_engine()
    built_with = BUILT_WITH.read_text(encoding="utf-8").strip() if BUILT_WITH.exists() else ""
    same_build = (
        not os.environ.get("CMAKE_ARGS", "").strip() or built_with == os.environ["CMAKE_ARGS"].strip()
    )
    if same_build and runs("-c", _IN_RANGE, requirement()) and runs("-c", _IMPORT):
        return
    index = next((name for name in engine.indexes if install_prebuilt(name)), "")
    if engine.note and index in ("", "cpu"):
        say(engine.note)
    if not index:
        compile_engine(engine)
    BUILT_WITH.write_text(os.environ.get("CMAKE_ARGS", "").strip(), encoding="utf-8")


def install_prebuilt(index: str) -> bool:
    """Install a prebuilt wheel. False when there is none, or when it does not start on this machine."""
    say(f"Looking for a prebuilt llama-cpp-python ({index}), {PROBE_SECONDS} seconds at most.")
    found = prebuilt_version(index)
    if not found:
        say("No answer, or none that fits.")
        return False
    say(f"Installing the prebuilt llama-cpp-python {found}.")
    arguments = ["--only-binary", "llama-cpp-python", "--extra-index-url", WHEELS + index]
    if pip(*PIP_INSTALL, *arguments, f"llama-cpp-python=={found}") == 0 and runs("-c", _IMPORT):
        return True
    say(f"The prebuilt one does not start on this machine (see {LOG}).")
    pip("uninstall", "--yes", "llama-cpp-python")
    return False


def compile_engine(engine: Engine) -> None:
    """Install llama-cpp-python from source, or from pip's cache of an earlier build with the same flags."""
    cache = cache_for(engine.cmake_args)
    installed = runs("-c", "import importlib.metadata as m; m.version('llama-cpp-python')")
    announced = False

    def announce() -> None:
        nonlocal announced
        if not announced:
            announced = True
            announce_compile(engine)

    if cached_version(cache):
        # Perhaps for another Python: then pip compiles after all, and that is announced when it begins.
        say("Installing llama-cpp-python (pip's cache has one that was compiled here before).")
    else:
        announce()
    options = ["--force-reinstall"] if installed else []
    while True:
        arguments = [*PIP_INSTALL, "-v", *options, requirement()]
        if pip(*arguments, cmake_args=engine.cmake_args, cache=cache, before_compile=announce) != 0:
            raise build_failure(engine)
        if runs("-c", _IMPORT):
            return
        if announced:
            raise Stop(f"llama-cpp-python was built {engine.label}, and does not start. Full log: {LOG}")
        say("That one does not start on this machine; compiling it anew.")
        announce()
        options = ["--force-reinstall", "--no-cache-dir"]


def announce_compile(engine: Engine) -> None:
    """Say what comes and how long it takes; stop when there is no compiler."""
    if not has_compiler():
        raise Stop(
            "llama.cpp has to be compiled here, and there is no C++ compiler. "
            f"Install one and run this again: {system_package(COMPILER_PACKAGES)}"
        )
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    factor = 3 if "CUDA" in engine.cmake_args or "HIP" in engine.cmake_args else 1
    middle = COMPILE_CORE_MINUTES * factor / cores
    low, high = max(1, round(middle * 0.6)), max(2, round(middle * 1.5))
    say(
        f"Compiling llama-cpp-python {engine.label}: once, about {low}-{high} minutes on this machine's "
        f"{cores} cores. The next time takes seconds (pip keeps the result)."
    )
    say(f"Full log: {LOG}")


def build_failure(engine: Engine) -> Stop:
    """The reason of a failed build, as far as it can be told."""
    text = LOG.read_text(encoding="utf-8", errors="replace")
    if re.search(
        r"Could not find a version|Name or service not known|Temporary failure|Connection (?:refused|reset)",
        text,
    ):
        reason = "llama-cpp-python could not be downloaded: is the network up?"
    else:
        reason = f"llama-cpp-python could not be built {engine.label}. Its last lines:"
    return Stop(f"{reason}\n{log_tail()}\nFull log: {LOG}")


def install(extra: str) -> None:
    """Do all of it."""
    started = time.monotonic()
    make_venv()
    UNFINISHED.touch()
    LOG.unlink(missing_ok=True)
    install_engine()
    target = f"{ROOT}[{extra}]" if extra else str(ROOT)
    say("Installing localspec" + (" with its development tools." if extra else "."))
    if pip(*PIP_INSTALL, "--editable", target) != 0:
        raise Stop(f"localspec could not be installed. pip's last lines:\n{log_tail()}\nFull log: {LOG}")
    UNFINISHED.unlink(missing_ok=True)
    say(f"Ready after {clock(time.monotonic() - started)}.")


def has_model() -> bool:
    """Was a pair used on this machine before, or does a model of the catalogue or the demo lie here?"""
    code = (
        "import sys; from localspec import paths; from localspec.models.catalog import load_catalog; "
        "sys.exit(not (paths.state_file().is_file() or any(paths.models_dir().rglob('*.gguf')) "
        "or any(ref.path for _, ref in load_catalog().refs())))"
    )
    return runs("-c", code)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def main() -> int:
    """The three commands above."""
    command = sys.argv[1] if len(sys.argv) > 1 else ""
    if command == "has-model":
        return 0 if has_model() else 1
    if command not in ("run", "dev"):
        say(__doc__ or "")
        return 2
    for number in (signal.SIGTERM, signal.SIGHUP):  # pip must not outlive this process
        signal.signal(number, _interrupt)
    try:
        with only_one():
            install("dev" if command == "dev" else "")
    except Stop as stop:
        UNFINISHED.unlink(missing_ok=True)  # pip ended by itself: nothing is half done
        say(str(stop))
        return 1
    except KeyboardInterrupt:
        say("\nStopped. Run the same command again to go on.")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
