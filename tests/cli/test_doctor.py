from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from localspec import __version__
from localspec.cli import doctor
from localspec.measure import surroundings
from localspec.memory import hardware
from tests.cli.program import localspec


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def engine(*, offload: bool, gpus: tuple[tuple[int, int], ...] = ()) -> dict[str, Any]:
    """What the child says, for a build of our choice."""
    devices = [{"name": "CPU", "description": "Some CPU", "kind": "cpu", "free": 0, "total": 0}]
    devices += [
        {"name": f"G{i}", "description": f"Card {i}", "kind": "gpu", "free": free, "total": total}
        for i, (free, total) in enumerate(gpus)
    ]
    versions = {"llama-cpp-python": "0.3.99", "llama.cpp": "b1", "ggml": "1.2"}
    return {"versions": versions, "gpu_offload": offload, "devices": devices}


IDLE = surroundings.Surroundings(0.0, (), None, ())


def given(
    monkeypatch: pytest.MonkeyPatch,
    found: dict[str, Any] | None,
    reason: str = "",
    seen: tuple[str, ...] = (),
    looked: surroundings.Surroundings = IDLE,
) -> None:
    monkeypatch.setattr(doctor, "probe", lambda: (found, reason))
    gpus = tuple(hardware.SeenGpu(name, "-DGGML_CUDA=on") for name in seen)
    monkeypatch.setattr(hardware, "seen_gpus", lambda: gpus)
    monkeypatch.setattr(surroundings, "look", lambda seconds: looked)


def text(capsys: pytest.CaptureFixture[str]) -> str:
    doctor.command()
    return capsys.readouterr().out


def test_the_real_engine_answers_in_its_own_process() -> None:
    found, reason = doctor.probe()
    assert reason == ""
    assert found is not None
    assert found["versions"]["llama-cpp-python"].startswith("0.3.")
    assert isinstance(found["gpu_offload"], bool)
    assert any(device["kind"] == "cpu" for device in found["devices"])


def test_a_folder_named_like_us_in_the_current_one_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "localspec").mkdir()
    (tmp_path / "localspec/__init__.py").write_text("raise SystemExit('wrong one')")
    (tmp_path / "json.py").write_text("raise SystemExit('wrong one')")
    monkeypatch.chdir(tmp_path)
    assert doctor.probe()[0] is not None


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "The process ended with SIGSEGV."),
        (
            "import os, signal; os.kill(os.getpid(), signal.SIGILL)",
            "The process ended with SIGILL. It was compiled for another kind of processor.",
        ),
        ("raise OSError('libcudart.so.12: cannot open')", "OSError: libcudart.so.12: cannot open"),
        ("raise SystemExit(7)", "Exit code 7."),
        ("print('no object')", "It said 'no object'."),
    ],
)
def test_an_engine_that_fails_is_reported(code: str, reason: str) -> None:
    assert doctor.probe(code) == (None, reason)


def test_an_engine_that_hangs_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_TIMEOUT", 0.2)
    assert doctor.probe("import time; time.sleep(60)") == (None, "It gave no answer within 0.2 seconds.")


def test_a_broken_engine_still_gives_a_report(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given(monkeypatch, None, "The process ended with SIGSEGV.")
    shown = text(capsys)
    assert "Problem: llama-cpp-python does not start.\n  The process ended with SIGSEGV.\n  Try: " in shown
    assert "install --force-reinstall" in shown
    assert f"localspec         {__version__}" in shown


def test_a_cpu_build_beside_a_gpu_is_a_problem_with_its_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given(monkeypatch, engine(offload=False), seen=("Card X",))
    shown = text(capsys)
    assert "Problem: There is a GPU (Card X), and this llama-cpp-python is for the CPU only." in shown
    assert 'Try: CMAKE_ARGS="-DGGML_CUDA=on" ' in shown
    assert "No problems found." not in shown


def test_a_cpu_build_without_a_gpu_is_fine(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given(monkeypatch, engine(offload=False))
    shown = text(capsys)
    assert "No problems found." in shown
    assert "this build is for the CPU only" in shown


def test_gpus_with_their_memory(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    given(monkeypatch, engine(offload=True, gpus=((20 << 30, 24 << 30), (0, 0))), seen=("Card 0",))
    shown = text(capsys)
    # Numbers and names are those that --draft-device takes.
    assert "  gpu0            G0, Card 0: 20.0 GiB free of 24.0 GiB\n" in shown
    assert "  gpu1            G1, Card 1: ? free of ?\n" in shown
    assert "No problems found." in shown


def test_programs_on_the_gpu_are_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    blender = surroundings.Program(7, "blender", gpu_bytes=4 << 30)
    looked = surroundings.Surroundings(0.0, (), 0, (blender,))
    given(monkeypatch, engine(offload=True, gpus=((18 << 30, 24 << 30),)), seen=("Card 0",), looked=looked)
    shown = text(capsys)
    assert "Advice: Other programs hold 6.0 GiB of 24.0 GiB on the GPU (blender).\n" in shown
    assert "Try: nvidia-smi" in shown


def test_a_gpu_build_that_sees_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given(monkeypatch, engine(offload=True))
    assert "Problem: llama-cpp-python was built for a GPU and sees none." in text(capsys)


def test_a_broken_catalogue_is_a_problem(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], home: Path
) -> None:
    given(monkeypatch, engine(offload=False))
    (home / "config").mkdir(parents=True)
    (home / "config/models.toml").write_text("[[families]\n")
    shown = text(capsys)
    assert "Problem: " in shown
    assert str(home / "config/models.toml") in shown.partition("Problem: ")[2]


def test_broken_settings_are_a_problem(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], home: Path
) -> None:
    given(monkeypatch, engine(offload=False))
    (home / "config").mkdir(parents=True)
    (home / "config/settings.toml").write_text("temperature = 'warm'\n")
    assert "temperature" in text(capsys).partition("Problem: ")[2]


def test_json_is_one_object(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("HF_ENDPOINT", "https://mirror.example")
    given(monkeypatch, engine(offload=False), seen=("Card X",))
    doctor.command(as_json=True)
    printed = capsys.readouterr().out
    said = json.loads(printed)
    assert said["versions"]["localspec"] == __version__
    assert said["versions"]["llama-cpp-python"] == "0.3.99"
    assert said["hub"] == {"endpoint": "https://mirror.example", "token": True, "offline": False}
    assert "hf_secret" not in printed
    assert said["catalogue"]["models"] > 10
    assert [item["problem"] for item in said["problems"]] == [
        "There is a GPU (Card X), and this llama-cpp-python is for the CPU only."
    ]
    assert said["paths"]["hub cache"]["free"] > 0


@pytest.mark.parametrize("command", ["doctor", "models"])
@pytest.mark.parametrize("variable", ["LOCALSPEC_HOME", "HF_HOME"])
def test_folders_that_cannot_be_looked_into_are_no_surprise(
    tmp_path: Path, command: str, variable: str
) -> None:
    done = localspec(tmp_path, command, **{variable: str(tmp_path / ("n" * 300))})
    assert "unexpected" not in done.stderr
    assert len(done.stdout.splitlines()) > 10


def test_a_home_below_a_file_is_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path / "file"))
    given(monkeypatch, engine(offload=False))
    said = text(capsys)
    assert (
        f"Problem: {tmp_path}/file/data/conversations cannot be made.\n  {tmp_path}/file is no folder."
        in said
    )
