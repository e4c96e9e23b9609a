"""`package.module:Class`: told apart from files, repositories and the catalogue's names, without running anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from localspec.custom import check_module, looks_custom
from localspec.errors import UsageError


@pytest.mark.parametrize("name", ["mydraft:Class", "a.b.c:D", "_x:make", "pkg.mod:Outer.Inner", "möbel:Kärn"])
def test_names_of_code(name: str) -> None:
    assert looks_custom(name)


@pytest.mark.parametrize(
    "name",
    [
        *(
            "lookup",
            "none",
            "4b",
            "qwen3-8b:q8_0",
            "qwen3.8-27b",
            "owner/repo:q4_k_m",
            "owner/repo:file.gguf",
        ),
        *(r"C:\x.gguf", "C:x.gguf", "C:/x.gguf", "D:model.GGUF", "hf://owner/repo", "https://host/a:b"),
        *(
            "smollm2:q8_0",
            "smollm2:Q4_K_M",
            "model:f16",
            "model:bf16",
            "mod:",
            ":Class",
            "mod:a b",
            "mod:a:b",
            "3d:X",
        ),
        *("mod:x-y", "./mod:Class", "mod.:Class", ""),
    ],
)
def test_names_of_something_else(name: str) -> None:
    assert not looks_custom(name)


def test_a_file_with_such_a_name_is_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert looks_custom("odd:name")
    (tmp_path / "odd:name").touch()
    assert not looks_custom("odd:name")


def test_modules_are_looked_for_without_running_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    bomb = "raise SystemExit('it was run')\n"
    (tmp_path / "own_here.py").write_text(bomb)
    (tmp_path / "own_package" / "deep").mkdir(parents=True)
    (tmp_path / "own_package" / "__init__.py").write_text(bomb)
    (tmp_path / "own_package" / "deep" / "inside.py").write_text(bomb)
    for name in (
        "own_here:A",
        "own_package:A",
        "own_package.deep.inside:A",
        "llama_cpp.llama_speculative:A",
        "json:A",
    ):
        check_module(name)
    for name, missing in (
        ("own_gone:A", "own_gone"),
        ("own_here.deeper:A", "own_here.deeper"),
        ("own_package.gone:A", "own_package.gone"),
    ):
        with pytest.raises(UsageError) as caught:
            check_module(name)
        assert caught.value.message == f"There is no module {missing}."
        assert str(tmp_path) in caught.value.why
