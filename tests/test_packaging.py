"""What leaves this repository: the wheel, the source archive, the README's commands."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from localspec import __version__
from localspec.cli.app import COMMANDS, build

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
SCRIPTS = ("scripts/run", "scripts/test", "scripts/check", ".ci/run")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The source archive of a copy of this tree, and the wheel built from that archive."""
    folder = tmp_path_factory.mktemp("built")
    copy = folder / "tree"
    ignored = shutil.ignore_patterns(".git", ".venv", "__pycache__", "*.gguf", ".*_cache", "dist")
    shutil.copytree(ROOT, copy, ignore=ignored)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder / "dist"), str(copy)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    (archive,) = (folder / "dist").glob("*.tar.gz")
    (wheel,) = (folder / "dist").glob("*.whl")
    return archive, wheel


def test_the_wheel_holds_all_that_is_read_at_run_time(built: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(built[1]) as wheel:
        names = set(wheel.namelist())
        info = f"localspec-{__version__}.dist-info"
        assert {"localspec/models.toml", "localspec/py.typed", "localspec/tui/app.tcss"} <= names
        assert wheel.read("localspec/models.toml") == (ROOT / "models.toml").read_bytes()
        assert "localspec = localspec.__main__:main" in wheel.read(f"{info}/entry_points.txt").decode()
        assert f"{info}/licenses/LICENSE" in names
        metadata = wheel.read(f"{info}/METADATA").decode()
    assert f"\nVersion: {__version__}\n" in metadata
    assert "\nRequires-Python: >=3.10\n" in metadata
    assert "\nRequires-Dist: llama-cpp-python" in metadata
    package = {str(p.relative_to(ROOT)) for p in (ROOT / "localspec").rglob("*.py")}
    assert package <= names
    assert {name.partition("/")[0] for name in names} == {"localspec", info}


def test_the_source_archive_is_complete(built: tuple[Path, Path]) -> None:
    with tarfile.open(built[0]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    wanted = {
        str(path.relative_to(ROOT))
        for folder in ("localspec", "tests", "scripts")
        for path in (ROOT / folder).rglob("*")
        if path.suffix not in (".gguf", ".pyc")
        and path.is_file()
        and not any(part == "__pycache__" or part.endswith("_cache") for part in path.parts)
    }
    wanted |= {"models.toml", "pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE"}
    assert wanted <= names


def test_the_changelog_begins_with_this_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    versions = re.findall(r"^## \[(\d[^\]]*)\]", text, flags=re.MULTILINE)
    assert versions[0] == __version__
    assert "## [Unreleased]" in text


def test_the_licence_is_the_whole_of_it() -> None:
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert "Version 2.0, January 2004" in text
    for number in range(1, 10):
        assert re.search(rf"^\s+{number}\. [A-Z]", text, flags=re.MULTILINE), number
    assert text.rstrip().endswith("limitations under the License.")


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_are_executable_and_parse(name: str) -> None:
    path = ROOT / name
    assert os.access(path, os.X_OK)
    shell = "bash" if path.read_text().splitlines()[0].endswith("bash") else "sh"
    done = subprocess.run([shell, "-n", str(path)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


# -------------------------------------------------------------------- README


def fences() -> list[str]:
    return re.findall(r"^```sh\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)


def typed(fence: str) -> Iterator[list[str]]:
    """The commands of a fence as words, parts of a pipe apart."""
    for line in fence.replace("\\\n", " ").splitlines():
        for part in line.split(" | "):
            words = shlex.split(part, comments=True)
            if words:
                yield words


def test_the_quick_start_is_two_commands() -> None:
    quick = README.partition("## Quick start")[2]
    (first, *_) = re.findall(r"^```sh\n(.*?)^```", quick, flags=re.MULTILINE | re.DOTALL)
    assert [" ".join(words) for words in typed(first)] == ["./scripts/run", "./scripts/test"]


def test_the_readme_names_only_commands_and_flags_that_exist() -> None:
    commands = typer.main.get_command(build()).commands  # type: ignore[attr-defined]
    seen = set()
    for words in (words for fence in fences() for words in typed(fence)):
        if words[0] != "localspec":
            continue
        name, *arguments = words[1:]
        seen.add(name)
        # Raises for a flag that does not exist and for a value that cannot be.
        commands[name].make_context(
            name, [word for word in arguments if word != "..."], resilient_parsing=False
        )
    assert seen >= {"run", "pull", "check", "models", "doctor"}
    for name in re.findall(r"`localspec ([a-z]+)", README):
        assert name in COMMANDS


def test_the_readme_links_to_files_that_exist() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        if not target.startswith("http"):
            assert (ROOT / target).is_file(), target


def test_the_readme_models_toml_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from localspec.models.catalog import load_catalog

    example = next(t for t in re.findall(r"^```toml\n(.*?)^```", README, re.M | re.S) if "[models." in t)
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path))
    (tmp_path / "config").mkdir()
    (tmp_path / "config/models.toml").write_text(example)
    catalog = load_catalog()
    assert catalog.problem is None
    target = catalog.resolve("mine-30b")
    assert catalog.resolve("1b", role="draft", target=target).repo == "me/mine-1b-GGUF"


def test_the_readme_settings_are_valid(tmp_path: Path) -> None:
    from localspec.settings import Settings, load_settings

    keys = README.partition("The keys: ")[2].partition(".")[0]
    assert re.findall(r"`(\w+)`", keys) == list(Settings.model_fields)
    example = next(t for t in re.findall(r"^```toml\n(.*?)^```", README, re.M | re.S) if "n_draft" in t)
    (tmp_path / "settings.toml").write_text(example)
    settings = load_settings(file=tmp_path / "settings.toml")
    assert (settings.draft, settings.n_draft, settings.kv) == ("lookup", 6, "q8_0")


# ---------------------------------------------------------------- cold start


@pytest.mark.parametrize("flag", ["--help", "--version"])
def test_help_and_version_import_nothing_heavy(flag: str) -> None:
    script = (
        "import sys\n"
        "from localspec.cli.app import run\n"
        f"try:\n    run([{flag!r}])\n"
        "except SystemExit as end:\n    assert end.code in (0, None), end.code\n"
        "heavy = {'textual', 'llama_cpp', 'numpy', 'huggingface_hub', 'pydantic', 'jinja2', 'psutil'}\n"
        "print(*sorted(heavy & set(sys.modules)), file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.strip() == ""
    assert ("Usage" if flag == "--help" else __version__) in done.stdout
