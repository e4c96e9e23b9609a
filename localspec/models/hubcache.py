"""The hub's cache on this disk: found without a network, written so that other tools find the files too.

Layout (huggingface_hub's): `models--owner--name/blobs/ETAG`, `snapshots/COMMIT/path/in/repo` pointing there,
and `refs/main` with the newest commit. `HF_HUB_CACHE` and `HF_HOME` move it.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from localspec.errors import DownloadError, UsageError
from localspec.models.listing import RepoFile, choose
from localspec.models.text import printable, shown, variables_like, with_variable, without_variables


def unreadable_setting(problem: ValueError) -> UsageError:
    """The error for what huggingface_hub cannot read; it reads its settings when it is imported."""
    return UsageError(
        "A setting of huggingface_hub in the environment cannot be read.",
        why=f"It says: {printable(str(problem))}.",
        hint=variables_like("HF_"),
    )


try:
    from huggingface_hub import constants
except ValueError as problem:
    raise unreadable_setting(problem) from problem

PARTIAL = ".localspec.incomplete"
"""Ending of half a blob. Not the hub's own, which its tools may fill out of order."""


def root() -> Path:
    """The folder of the cache.

    Raises:
        UsageError: `HF_HOME` or `HF_HUB_CACHE` begins with the name of a user that does not exist.
    """
    try:
        return Path(constants.HF_HUB_CACHE).expanduser()
    except RuntimeError:
        raise UsageError(
            f"The hub's cache would be in {constants.HF_HUB_CACHE}, and there is no such user.",
            why="HF_HOME or HF_HUB_CACHE says so.",
            hint=without_variables("HF_HOME", "HF_HUB_CACHE"),
        ) from None


@contextmanager
def usable(folder: Path, variable: str = "HF_HOME") -> Iterator[None]:
    """Turn what the system refuses in a folder of ours into an error that says so.

    Args:
        folder: What to name.
        variable: Of the environment; it moves the folder.

    Raises:
        DownloadError: In place of an `OSError`.
    """
    try:
        yield
    except OSError as problem:
        raise DownloadError(
            f"{shown(folder)} cannot be used.",
            why=f"The system says: {problem.strerror or problem}.",
            hint=with_variable(variable, "/a/folder/of/yours"),
        ) from problem


def repo_folder(repo: str) -> Path:
    """The folder of one repository; an existing one whose name differs only in case is taken."""
    name = "models--" + repo.replace("/", "--")
    folder = root() / name
    with suppress(OSError):  # nothing there yet, or nothing that we may read
        if not folder.is_dir():
            return next((each for each in root().iterdir() if each.name.lower() == name.lower()), folder)
    return folder


def find(repo: str, *, quant: str = "", candidates: Sequence[str] = ()) -> Path | None:
    """A complete model of a repository that lies in the cache.

    Args:
        repo: `owner/name`.
        quant: As in `listing.choose`.
        candidates: As in `listing.choose`.

    Returns:
        Its file (the first one of a split model), or None. Asks nothing of any network.
    """
    for snapshot in _snapshots(repo_folder(repo)):
        try:
            item = choose(list(_files(snapshot)), repo=repo, quant=quant, candidates=candidates)
        except DownloadError:
            continue
        return snapshot / item.files[0].path
    return None


def _snapshots(folder: Path) -> Iterator[Path]:
    snapshots = folder / "snapshots"
    try:
        found = [entry for entry in snapshots.iterdir() if entry.is_dir()]
    except OSError:
        return
    try:
        main = (folder / "refs" / "main").read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        main = ""
    yield from sorted(found, key=lambda entry: (entry.name == main, entry.stat().st_mtime), reverse=True)


def _files(snapshot: Path) -> Iterator[RepoFile]:
    for folder, _, names in os.walk(snapshot):
        for name in names:
            file = Path(folder) / name
            with suppress(OSError):  # a blob that we may not read
                if name.lower().endswith(".gguf") and file.is_file():  # a link whose blob is gone is no file
                    yield RepoFile(file.relative_to(snapshot).as_posix(), file.stat().st_size)


def has(repo: str, path: str, size: int) -> bool:
    """Whether a file of this name and size lies in any snapshot, as a link to its blob or by itself."""
    for snapshot in _snapshots(repo_folder(repo)):
        file = snapshot.joinpath(*path.split("/"))
        if file.is_file() and file.stat().st_size == size:
            return True
    return False


def pointer(repo: str, commit: str, path: str) -> Path:
    """A file inside the snapshot of a commit."""
    return repo_folder(repo).joinpath("snapshots", commit, *path.split("/"))


def blob(repo: str, etag: str) -> Path:
    """Where a file's bytes lie."""
    return repo_folder(repo) / "blobs" / etag


def partial(repo: str, etag: str) -> Path:
    """Where half a file's bytes lie."""
    return repo_folder(repo) / "blobs" / (etag + PARTIAL)


def forgotten(repo: str, etags: Collection[str]) -> list[Path]:
    """Half blobs that nothing will continue, since the repository has other files by now.

    Args:
        repo: `owner/name`.
        etags: The names that blobs of its present files have.
    """
    found = (repo_folder(repo) / "blobs").glob(f"*{PARTIAL}")
    return sorted(file for file in found if file.name.removesuffix(PARTIAL) not in etags)


def lock_file(repo: str, etag: str) -> Path:
    """The lock that the hub's own tools take for this blob."""
    return root() / ".locks" / repo_folder(repo).name / f"{etag}.lock"


def reopen(repo: str, commit: str, path: str, etag: str) -> None:
    """Make a finished file a half one again: it is then checked, and what it lacks is downloaded."""
    for file in (blob(repo, etag), pointer(repo, commit, path)):
        if file.is_file() and not file.is_symlink():
            file.replace(partial(repo, etag))


def publish(repo: str, commit: str, path: str, etag: str) -> Path:
    """Make a finished blob visible as a file of a snapshot, and the snapshot as `main`.

    Args:
        repo: `owner/name`.
        commit: The commit that the file belongs to.
        path: The file's path in the repository.
        etag: The name of the blob.

    Returns:
        The file inside the snapshot.
    """
    file, target = pointer(repo, commit, path), blob(repo, etag)
    file.parent.mkdir(parents=True, exist_ok=True)
    if not file.exists():
        file.unlink(missing_ok=True)  # a link whose blob is gone
        try:
            file.symlink_to(os.path.relpath(target, file.parent))
        except OSError:  # no links here (Windows without developer mode): the file itself goes there
            target.replace(file)
    _write_ref(repo_folder(repo) / "refs" / "main", commit)
    return file


def _write_ref(ref: Path, commit: str) -> None:
    ref.parent.mkdir(parents=True, exist_ok=True)
    if ref.exists() and ref.read_text(encoding="utf-8") == commit:
        return
    temporary = ref.with_name(f"{ref.name}.{uuid.uuid4().hex[:8]}.tmp")
    temporary.write_text(commit, encoding="utf-8")
    temporary.replace(ref)


def free_space(folder: Path) -> int:
    """Bytes free for us on the file system that will hold a folder, which need not exist yet."""
    for place in (folder, *folder.parents):
        try:
            return shutil.disk_usage(place.resolve()).free
        except OSError:
            continue
    return 0
