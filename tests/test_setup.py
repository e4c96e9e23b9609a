"""The set-up scripts, without installing anything: fake tools, a fake pip, a fake .venv."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import psutil
import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def bootstrap(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ModuleType]:
    """scripts/bootstrap.py with its .venv in a folder of the test."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import bootstrap as module

    venv = tmp_path / "a tree" / ".venv"
    venv.mkdir(parents=True)
    monkeypatch.setattr(module, "ROOT", venv.parent)
    monkeypatch.setattr(module, "VENV", venv)
    monkeypatch.setattr(module, "PYTHON", Path(sys.executable))
    for name in ("LOG", "UNFINISHED", "PLACE", "BUILT_WITH"):
        monkeypatch.setattr(module, name, venv / getattr(module, name).name)
    (venv.parent / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    monkeypatch.delenv("CMAKE_ARGS", raising=False)
    yield module
    for name in ("bootstrap", "bootstrap_system", "bootstrap_talk"):
        sys.modules.pop(name, None)


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all of PATH, with the few programs that the scripts need."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("dirname", "cksum", "cat", "cp", "sh"):
        found = shutil.which(name)
        assert found
        (folder / name).symlink_to(found)
    monkeypatch.setenv("PATH", str(folder))
    return folder


def tool(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


# ------------------------------------------------------------------ progress

PIP_OUTPUT = """\
Collecting llama-cpp-python<0.4,>=0.3.36
  Downloading llama_cpp_python-0.3.36.tar.gz (76.6 MB)
  Installing build dependencies: started
  Building wheel for llama-cpp-python (pyproject.toml): started
  [1/193] /usr/bin/gcc -DGGML_BUILD -c ggml.c
  [97/193] /usr/bin/g++ -c llama.cpp
  /tmp/x.cpp:12: warning: something [-Wunused]
  [193/193] Linking CXX shared library
Installing collected packages: llama-cpp-python
"""


def test_pip_output_becomes_a_few_words(bootstrap: ModuleType) -> None:
    reader = bootstrap.PipReader()
    said = []
    for line in PIP_OUTPUT.splitlines(keepends=True):
        reader.read(line)
        said.append(reader.text)
    assert said == [
        "looking up llama-cpp-python<0.4,>=0.3.36",
        "downloading llama_cpp_python-0.3.36.tar.gz (76.6 MB)",
        "installing build tools",
        "building llama-cpp-python",
        "compiling llama.cpp: 1%",
        "compiling llama.cpp: 50%",
        "compiling llama.cpp: 50%",
        "packing llama.cpp",
        "installing packages",
    ]


def test_the_time_left_comes_from_what_is_done(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    reader = bootstrap.PipReader()
    reader.read("[1/200] x")
    now += 300
    reader.read("[50/200] x")
    assert reader.text == "compiling llama.cpp: 25%, about 15 min left,"


def test_make_percentages_are_read_too(bootstrap: ModuleType) -> None:
    reader = bootstrap.PipReader()
    reader.read("[ 42%] Building CXX object")
    assert reader.text == "compiling llama.cpp: 42%"


def test_without_a_terminal_there_is_a_line_every_30_seconds(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    progress = bootstrap.Progress()
    for second in range(100):
        now = float(second)
        progress.show("compiling")
    progress.clear()
    assert capsys.readouterr().err == "  compiling  0:30\n  compiling  1:00\n  compiling  1:30\n"


def fake_pip(bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str) -> Path:
    """A python whose `-m pip` is a shell script; everything else is done by the real one."""
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\nif [ "$1" = -m ]; then\nshift 2\n{script}\nfi\nexec "{sys.executable}" "$@"\n'
    )
    python.chmod(0o755)
    monkeypatch.setattr(bootstrap, "PYTHON", python)
    return python


def test_pip_talks_to_the_log_only(
    bootstrap: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    fake_pip(bootstrap, monkeypatch, tmp_path, 'echo "got $* $CMAKE_ARGS"; echo error >&2; exit 3')
    assert bootstrap.pip("install", "x y", cmake_args="-DA=1") == 3
    log = bootstrap.LOG.read_text()
    assert "got install x y -DA=1\nerror\n" in log
    assert capfd.readouterr() == ("", "")


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_an_interrupted_pip_takes_its_compilers_along(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake_pip(bootstrap, monkeypatch, tmp_path, f"sleep 300 & echo $! > '{tmp_path}/pid'; echo ready; wait")

    def interrupt() -> None:
        if "ready" in bootstrap.LOG.read_text():
            raise KeyboardInterrupt

    monkeypatch.setattr(bootstrap.Progress, "show", lambda _self, _text: interrupt())
    with pytest.raises(KeyboardInterrupt):
        bootstrap.pip("install")
    compiler = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 5
    while is_running(compiler) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not is_running(compiler)


# ------------------------------------------------------------------- engines


def test_a_wish_in_cmake_args_is_kept(bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CMAKE_ARGS", "-DGGML_BLAS=on")
    engine = bootstrap.choose_engine()
    assert engine.cmake_args == "-DGGML_BLAS=on -DLLAVA_BUILD=OFF"
    assert engine.indexes == ()
    monkeypatch.setenv("CMAKE_ARGS", "-DLLAVA_BUILD=ON")
    assert bootstrap.choose_engine().cmake_args == "-DLLAVA_BUILD=ON"


@pytest.mark.parametrize(
    ("driver", "index"),
    [("13.1", "cu130"), ("12.9", "cu125"), ("12.4", "cu124"), ("11.8", "cu118"), ("11.2", "")],
)
def test_the_wheel_index_follows_the_nvidia_driver(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch, tools: Path, driver: str, index: str
) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    tool(
        tools, "nvidia-smi", f"echo '| NVIDIA-SMI 550.1   Driver Version: 550.1   CUDA Version: {driver}  |'"
    )
    tool(tools, "nvcc", "exit 0")
    engine = bootstrap.choose_engine()
    assert engine.indexes == ((index,) if index else ())
    assert "-DGGML_CUDA=on" in engine.cmake_args


def test_nvidia_without_its_toolkit_gets_a_cpu_build_and_is_told(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch, tools: Path
) -> None:
    import bootstrap_system

    monkeypatch.setattr(bootstrap_system, "USUAL_NVCC", tools / "no-nvcc")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.delenv("CUDACXX", raising=False)
    tool(tools, "nvidia-smi", "echo 'CUDA Version: 12.4'")
    engine = bootstrap.choose_engine()
    assert engine.indexes == ("cu124", "cpu")
    assert engine.cmake_args == "-DLLAVA_BUILD=OFF"
    assert "nvcc" in engine.note
    # A toolkit that is installed and not on the path is found all the same.
    (tools / "no-nvcc").touch()
    assert f"-DCMAKE_CUDA_COMPILER={tools / 'no-nvcc'}" in bootstrap.choose_engine().cmake_args


def test_builds_with_other_flags_have_another_cache(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake_pip(bootstrap, monkeypatch, tmp_path, '[ "$*" = "cache dir" ] && echo /home/me/pip; exit 0')
    assert bootstrap.cache_for("-DLLAVA_BUILD=OFF") is None
    cuda = bootstrap.cache_for("-DGGML_CUDA=on -DLLAVA_BUILD=OFF")
    assert cuda == "/home/me/pip/localspec/DGGML-CUDA-on-DLLAVA-BUILD-OFF"


def test_versions_outside_the_range_are_not_taken(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def offered(versions: str) -> str:
        script = f"echo 'llama-cpp-python (9)'; echo 'Available versions: {versions}'; exit 0"
        fake_pip(bootstrap, monkeypatch, tmp_path, script)
        return str(bootstrap.prebuilt_version("cpu"))

    assert offered("0.5.0, 0.4.1, 0.3.40, 0.3.36, 0.3.2") == "0.3.40"
    assert offered("0.3.35, 0.3.4") == ""


def test_an_index_that_hangs_is_given_up(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake_pip(bootstrap, monkeypatch, tmp_path, "exec sleep 60")
    monkeypatch.setattr(bootstrap, "PROBE_SECONDS", -1.5)
    assert bootstrap.prebuilt_version("cpu") == ""


def test_no_compiler_is_one_sentence_with_the_package(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch, tools: Path
) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(bootstrap.Stop, match="there is no C\\+\\+ compiler") as caught:
        bootstrap.announce_compile(bootstrap.choose_engine())
    assert any(
        word in str(caught.value) for word in ("build-essential", "gcc-c++", "base-devel", "build-base")
    )
    # A compiler that is there and cannot compile (no headers) is none either.
    tool(tools, "g++", "echo 'fatal error: vector: No such file' >&2; exit 1")
    assert not bootstrap.has_compiler()
    tool(tools, "g++", "exit 0")
    assert bootstrap.has_compiler()


def test_a_cached_wheel_of_another_python_is_compiled_with_an_announcement(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    started = "  Building wheel for llama-cpp-python (pyproject.toml): started"
    fake_pip(
        bootstrap,
        monkeypatch,
        tmp_path,
        f"case $1 in cache) echo ' - llama_cpp_python-0.3.36-py3-none-linux_x86_64.whl (24 MB)';;"
        f" install) echo '{started}'; exec sleep 30;; esac; exit 0",
    )
    monkeypatch.setattr(bootstrap, "has_compiler", lambda: False)
    with pytest.raises(bootstrap.Stop, match="there is no C\\+\\+ compiler"):
        bootstrap.compile_engine(bootstrap.choose_engine())
    assert "pip's cache has one" in capsys.readouterr().err


def test_a_cached_wheel_that_does_not_start_is_compiled_anew(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_pip(
        bootstrap,
        monkeypatch,
        tmp_path,
        "case $1 in cache) echo ' - llama_cpp_python-0.3.36-py3-none-linux_x86_64.whl (24 MB)';; esac; exit 0",
    )
    monkeypatch.setattr(bootstrap, "has_compiler", lambda: True)
    real = bootstrap.runs
    monkeypatch.setattr(bootstrap, "runs", lambda *args: bootstrap._IMPORT not in args and real(*args))
    with pytest.raises(bootstrap.Stop, match="and does not start"):
        bootstrap.compile_engine(bootstrap.choose_engine())
    said = capsys.readouterr().err
    assert "compiling it anew" in said
    assert said.count("Compiling llama-cpp-python") == 1
    assert "--force-reinstall --no-cache-dir" in bootstrap.LOG.read_text()


def test_a_failed_build_shows_its_last_lines_and_the_log(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake_pip(
        bootstrap,
        monkeypatch,
        tmp_path,
        "case $1 in install) echo '[1/9] cc'; echo 'CMake Error: no \033[31mluck'; exit 1;; *) exit 1;; esac",
    )
    monkeypatch.setattr(bootstrap, "has_compiler", lambda: True)
    with pytest.raises(bootstrap.Stop) as caught:
        bootstrap.compile_engine(bootstrap.choose_engine())
    text = str(caught.value)
    assert "    CMake Error: no [31mluck" in text
    assert text.endswith(f"Full log: {bootstrap.LOG}")


def test_no_network_is_told_apart(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    said = "ERROR: Could not find a version that satisfies the requirement llama-cpp-python (from versions: none)"
    fake_pip(bootstrap, monkeypatch, tmp_path, f"echo '{said}'; exit 1")
    monkeypatch.setattr(bootstrap, "has_compiler", lambda: True)
    with pytest.raises(bootstrap.Stop, match="is the network up"):
        bootstrap.compile_engine(bootstrap.choose_engine())


# ---------------------------------------------------------------------- venv


def test_a_python_without_venv_is_one_sentence(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    bootstrap.VENV.rmdir()
    monkeypatch.setattr(bootstrap, "find_spec", lambda name: None if name == "ensurepip" else object())
    with pytest.raises(bootstrap.Stop, match="cannot make virtual environments"):
        bootstrap.make_venv()


def test_a_half_made_venv_is_made_again(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = []

    def fake_run(command: list[str], **_more: object) -> subprocess.CompletedProcess[str]:
        made.append(command)
        return subprocess.CompletedProcess(command, 0, "", "")

    bootstrap.PLACE.write_text(str(bootstrap.VENV))
    monkeypatch.setattr(bootstrap, "runs", lambda *_: True)
    monkeypatch.setattr(subprocess, "run", fake_run)
    bootstrap.make_venv()
    assert made == []
    bootstrap.UNFINISHED.touch()
    bootstrap.make_venv()
    assert made == [[sys.executable, "-m", "venv", "--clear", str(bootstrap.VENV)]]
    assert "Repairing .venv" in capsys.readouterr().err
    bootstrap.UNFINISHED.unlink()
    bootstrap.PLACE.write_text("/somewhere/else/.venv")
    bootstrap.make_venv()
    assert len(made) == 2


# ------------------------------------------------------------------- lib.sh


def shell(root: Path, script: str, **env: str) -> subprocess.CompletedProcess[str]:
    text = f"set -eu\nROOT=$1\n. '{ROOT}/scripts/lib.sh'\n{script}"
    environment = {key: value for key, value in os.environ.items() if key not in ("CMAKE_ARGS", "PYTHON")}
    command = ["/bin/sh", "-c", text, "sh", str(root)]
    return subprocess.run(command, capture_output=True, text=True, env={**environment, **env}, check=False)


def test_shims_that_do_not_start_and_old_pythons_are_passed_over(tools: Path, tmp_path: Path) -> None:
    tool(tools, "python3", "echo 'pyenv: python3: command not found' >&2; exit 127")
    tool(tools, "python3.13", "exit 1")
    tool(tools, "python3.12", f'exec "{sys.executable}" "$@"')
    done = shell(tmp_path, 'find_python && echo "$PYTHON_FOUND"')
    assert (done.returncode, done.stdout, done.stderr) == (0, "python3.12\n", "")


def test_the_persons_own_python_is_not_replaced(tools: Path, tmp_path: Path) -> None:
    done = shell(tmp_path, "find_python", PYTHON="/nowhere/python")
    assert done.returncode == 1
    assert "PYTHON=/nowhere/python does not start" in done.stderr


@pytest.fixture
def ready(tmp_path: Path) -> Path:
    """A tree whose .venv is stamped as ready."""
    root = tmp_path / "a tree"
    (root / "scripts").mkdir(parents=True)
    (root / ".venv/bin").mkdir(parents=True)
    (root / "pyproject.toml").write_text("one")
    (root / "scripts/bootstrap.py").write_text("one")
    (root / ".venv/pyvenv.cfg").write_text("version = 3.11.7\n")
    (root / ".venv/bin/python").symlink_to(sys.executable)
    assert shell(root, 'stamp_now >"$VENV/.localspec-run"').returncode == 0
    return root


def is_ready(root: Path, kind: str = "run", **env: str) -> bool:
    return shell(root, f"is_ready {kind}", **env).returncode == 0


def test_a_stamped_venv_is_used_at_once(ready: Path) -> None:
    assert is_ready(ready)
    assert not is_ready(ready, "dev")


@pytest.mark.parametrize("changed", ["pyproject.toml", "scripts/bootstrap.py", ".venv/pyvenv.cfg"])
def test_what_the_venv_depends_on_makes_it_stale(ready: Path, changed: str) -> None:
    (ready / changed).write_text("two")
    assert not is_ready(ready)


def test_a_moved_or_broken_venv_is_stale(ready: Path) -> None:
    moved = ready.with_name("other")
    shutil.copytree(ready, moved, symlinks=True)
    assert not is_ready(moved)
    (ready / ".venv/bin/python").unlink()
    (ready / ".venv/bin/python").symlink_to("/nowhere/python3")
    assert not is_ready(ready)


def test_other_cmake_args_make_it_stale_and_none_keep_it(ready: Path) -> None:
    (ready / ".venv/.localspec-cmake-args").write_text("-DGGML_CUDA=on")
    assert is_ready(ready)
    assert is_ready(ready, CMAKE_ARGS="-DGGML_CUDA=on")
    assert not is_ready(ready, CMAKE_ARGS="-DGGML_VULKAN=on")


def test_a_link_to_a_script_finds_its_checkout(ready: Path, tmp_path: Path) -> None:
    for name in ("run", "lib.sh"):
        shutil.copy(ROOT / "scripts" / name, ready / "scripts")
    program = ready / ".venv/bin/localspec"
    program.write_text('#!/bin/sh\necho "started with $*"\n')
    program.chmod(0o755)
    link = tmp_path / "spec"
    link.symlink_to(ready / "scripts/run")
    done = subprocess.run(["/bin/sh", str(link), "-h"], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("started with -h\n", "")
