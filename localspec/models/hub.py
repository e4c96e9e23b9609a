"""Models from the Hugging Face hub, or from a mirror of it, into the cache that all its tools share.

From huggingface_hub come addresses, authorization, the HTTP client (proxies, certificates), locks and
settings (`HF_ENDPOINT`, `HF_TOKEN`, `HF_HOME`, `HF_HUB_OFFLINE`, ...). Listing and bytes are our own
(`transfer.py` says why): plain HTTP with byte ranges, which every mirror speaks. Xet hosts are never asked,
so a mirror needs no Xet route, and the token goes to the endpoint's host only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urljoin, urlsplit

import huggingface_hub
from filelock import Timeout

from localspec import __version__
from localspec.errors import DownloadError, ModelFileError
from localspec.models import hubcache
from localspec.models.gguf import read_header
from localspec.models.listing import Item, RepoFile, choose, gigabytes
from localspec.models.neterrors import NoConnectionError, checked_endpoint, host_of, wrong_token
from localspec.models.progress import Meter, Progress, Report
from localspec.models.ref import ModelRef, Source
from localspec.models.text import printable, shown, with_variable
from localspec.models.transfer import Expected, Remote, download
from localspec.models.web import ask, session

try:
    from huggingface_hub import constants, get_token
    from huggingface_hub.utils import WeakFileLock  # type: ignore[attr-defined]
except ValueError as problem:
    raise hubcache.unreadable_setting(problem) from problem

_MARGIN = 64 << 20  # what other programs write while a download runs
_MAX_PAGES = 50
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class PlannedItem:
    """One model of a plan."""

    ref: ModelRef
    repo: str
    item: Item | None
    """The files on the hub; None when the model is on disk already."""
    path: Path | None
    """Where it is, when it is on disk already."""
    missing: int
    """Bytes still to come."""
    damaged: bool = False
    """A file is on disk that cannot be the model: it is checked, and mended by what is downloaded."""

    @property
    def size(self) -> int:
        """Bytes of the whole model."""
        if self.item is not None:
            return self.item.size
        return self.path.stat().st_size if self.path is not None else 0


@dataclass(frozen=True, slots=True)
class DownloadPlan:
    """What a pull will do, before it does it."""

    items: tuple[PlannedItem, ...]
    folder: Path
    """The hub's cache."""
    free: int
    """Bytes free on its file system."""
    forgotten: tuple[Path, ...] = ()
    """Half files of earlier uploads, which nothing will continue."""

    @property
    def missing(self) -> int:
        """Bytes still to come, of all models together."""
        return sum(item.missing for item in self.items)

    def require_space(self) -> None:
        """Check that everything fits.

        Raises:
            DownloadError: It does not; says how much is missing.
        """
        needed = self.missing + _MARGIN
        if self.missing and self.free < needed:
            raise DownloadError(
                f"The disk has too little room: {gigabytes(needed - self.free)} more is needed.",
                why=f"{gigabytes(self.missing)} will be downloaded to {shown(self.folder)}, where "
                f"{gigabytes(self.free)} is free.",
                hint=with_variable("HF_HOME", "/a/larger/disk/huggingface"),
            )


def plan_download(refs: Iterable[ModelRef], note: Report | None = None) -> DownloadPlan:
    """Find out which files the models are, how big they are, and what is missing.

    Args:
        refs: Models of kind `hub`. One that is on disk costs no request.
        note: Gets `Progress` with a note when a request is tried again.

    Raises:
        DownloadError: The hub cannot be reached, or does not have them.
        ModelFileError: A damaged file is on disk, and the hub may not be asked.
    """
    planned: dict[str, PlannedItem] = {}
    forgotten: dict[str, list[Path]] = {}
    for ref in refs:
        path = ref.path
        damaged = path is not None and _is_damaged(path)
        if path is not None and not damaged:
            planned[ref.id] = PlannedItem(ref, ref.repo, None, path, 0)
        elif ref.id not in planned:
            source, item, listing = _find(ref, note)
            with hubcache.usable(hubcache.root()):
                missing = sum(_missing_of(source.repo, file) for file in item.files)
                if all(
                    file.sha256 for file in item.files
                ):  # a mirror that tells no hashes tells nothing here
                    forgotten[source.repo] = hubcache.forgotten(source.repo, {f.etag for f in listing})
            planned[ref.id] = PlannedItem(ref, source.repo, item, None, missing, damaged)
    folder = hubcache.root()
    left = tuple(file for files in forgotten.values() for file in files)
    return DownloadPlan(tuple(planned.values()), folder, hubcache.free_space(folder), left)


def _is_damaged(path: Path) -> bool:
    """Whether a file of the cache cannot be the model that was once downloaded (a disk, a power cut, a copy)."""
    try:
        read_header(path)
    except ModelFileError:
        if constants.HF_HUB_OFFLINE:
            raise
        return True
    return False


def fetch(ref: ModelRef, progress: Report) -> Path:
    """The model's file, downloaded if it is not there. A file in the cache costs no request.

    Args:
        ref: A model of kind `hub`.
        progress: Called often; may raise to stop (what has come stays and is continued next time).

    Returns:
        The file, the first one of a split model.

    Raises:
        DownloadError: See `plan_download`; also broken connections, a full disk, content that is not what was
            stated.
        ModelFileError: What came is no GGUF model.
    """
    plan = plan_download([ref], progress)
    plan.require_space()
    return fetch_item(plan.items[0], progress)


def fetch_item(planned: PlannedItem, progress: Report) -> Path:
    """Download one model of a plan; see `fetch`."""
    if planned.item is None:
        assert planned.path is not None
        return planned.path
    item, repo = planned.item, planned.repo
    meter = Meter(printable(Path(item.files[0].path).name), item.size, progress)
    revision, placed = "main", []
    for file in item.files:
        revision, path = _fetch_file(repo, file, revision, meter, damaged=planned.damaged)
        placed.append(path)
        meter.next_part(path.stat().st_size)
    read_header(placed[0])  # a page of a proxy, a foreign format: said now, not at the next start
    meter.at(0, stage="done", now=True)
    return placed[0]


# --------------------------------------------------------------------------------------------- asking the hub


def _find(ref: ModelRef, note: Report | None) -> tuple[Source, Item, list[RepoFile]]:
    """The first source that has the model, with its listing. The first failure is the one to show."""
    first: DownloadError | None = None
    listings: dict[str, list[RepoFile]] = {}
    for source in ref.sources:
        try:
            if source.repo not in listings:
                listings[source.repo] = list_files(source.repo, note)
            files = listings[source.repo]
            item = choose(files, repo=source.repo, quant=source.quant, candidates=source.files)
            return source, item, files
        except NoConnectionError:
            raise  # another repository on the same host would not answer either
        except DownloadError as problem:
            first = first or problem
    assert first is not None
    raise first


def list_files(repo: str, note: Report | None = None) -> list[RepoFile]:
    """All files of a repository's main branch, with sizes and hashes.

    Args:
        repo: `owner/name`.
        note: Gets `Progress` with a note when a request is tried again.

    Raises:
        DownloadError: The hub cannot be reached or refuses.
    """
    _require_online(repo)
    endpoint = checked_endpoint(constants.ENDPOINT)
    url: str | None = f"{endpoint}/api/models/{quote(repo)}/tree/main?recursive=true"
    found: list[RepoFile] = []

    def say(text: str) -> None:
        if note is not None:
            note(Progress(repo, 0, 0, stage="retrying", note=text))

    for _ in range(_MAX_PAGES):
        if url is None:
            break
        response = _ask("GET", url, repo, say)
        try:
            found += [
                RepoFile(entry["path"], *_size_and_hash(entry), str(entry.get("oid") or ""))
                for entry in response.json()
                if _is_safe_file(entry)
            ]
        except (ValueError, TypeError, KeyError) as problem:
            raise DownloadError(
                f"{host_of(url)} does not answer like a model hub.",
                why="A login page of the network or a wrong HF_ENDPOINT may answer in its place.",
                hint=f"curl -I {endpoint}",
            ) from problem
        following = response.links.get("next", {}).get("url")
        url = _on_endpoint(urljoin(url, following), endpoint) if following else None
    return found


def _size_and_hash(entry: dict[str, Any]) -> tuple[int, str]:
    lfs = entry.get("lfs") or {}
    return int(lfs.get("size") or entry.get("size") or 0), str(lfs.get("oid") or lfs.get("sha256") or "")


def _is_safe_file(entry: dict[str, Any]) -> bool:
    # The path becomes a path on this disk.
    path = entry["path"]
    parts = re.split(r"[/\\]", path)
    return entry["type"] == "file" and not any(part in ("", ".", "..") for part in parts) and ":" not in path


def _on_endpoint(url: str, endpoint: str) -> str:
    """Mirrors pass the hub's own addresses on: stay with the mirror, and never send a token past it."""
    return endpoint + url[url.index("/api/models/") :] if "/api/models/" in url else url


def _fetch_file(repo: str, file: RepoFile, revision: str, meter: Meter, *, damaged: bool) -> tuple[str, Path]:
    """One file into the cache; one that is there and `damaged`, or of another size, is mended.

    Returns:
        The commit, and the file inside the snapshot.
    """
    _require_online(repo)
    base = f"{checked_endpoint(constants.ENDPOINT)}/{repo}/resolve"
    url = f"{base}/{revision}/{quote(file.path)}"
    commit, etag, size = _stated(url, repo, file, meter)
    name = printable(Path(file.path).name)
    meter.total += (size or file.size) - file.size  # the listing may be of an older upload
    # Pinned to the commit: all parts come from one upload, though somebody replaces them meanwhile.
    url = f"{base}/{commit}/{quote(file.path)}"
    lock = hubcache.lock_file(repo, etag)
    partial, blob = hubcache.partial(repo, etag), hubcache.blob(repo, etag)
    for folder in (lock.parent, blob.parent):
        with hubcache.usable(folder):
            folder.mkdir(parents=True, exist_ok=True)
    with _locked(lock, meter):
        placed = hubcache.pointer(repo, commit, file.path)
        with hubcache.usable(blob.parent):
            there = next((each for each in (blob, placed) if each.is_file()), None)
            if there is not None and (damaged or there.stat().st_size != (size or there.stat().st_size)):
                hubcache.reopen(repo, commit, file.path, etag)
                there = None
        if there is None:
            # What was stated for this commit; the listing may be of an older one.
            digest = etag if _SHA256.fullmatch(etag) else (file.sha256 or etag)
            remote = Remote(session(), url, _headers(repo), name, float(constants.HF_HUB_DOWNLOAD_TIMEOUT))
            download(remote, partial, Expected(size, digest), meter)
            with hubcache.usable(blob.parent):
                partial.replace(blob)
        with hubcache.usable(placed.parent):
            return commit, hubcache.publish(repo, commit, file.path, etag)


def _stated(url: str, repo: str, file: RepoFile, meter: Meter) -> tuple[str, str, int | None]:
    """Commit, blob name and size that the hub states for a file, before it sends us on to a content network."""
    start = url
    for _ in range(6):
        response = _ask("HEAD", url, repo, meter.say, token=_same_origin(url, start))
        target = urljoin(url, response.headers.get("Location", ""))
        # Within a host (a renamed repository) go on; off the host only when nothing was stated yet (a mirror).
        if target == url or (host_of(target) != host_of(url) and "X-Repo-Commit" in response.headers):
            break
        url = target
    headers = response.headers
    commit = headers.get("X-Repo-Commit", "")
    etag = (headers.get("X-Linked-Etag") or headers.get("ETag") or "").removeprefix("W/").strip('"')
    size = headers.get("X-Linked-Size") or (
        headers.get("Content-Length") if response.status_code == 200 else None
    )
    if not re.fullmatch(r"[0-9a-f]{40}", commit) or not re.fullmatch(r"\w[\w.-]{0,199}", etag):
        raise DownloadError(
            f"{host_of(url)} does not answer like a model hub.",
            why="It names no commit and no content for the file; HF_ENDPOINT may point to the wrong place.",
            hint=f"curl -I {constants.ENDPOINT}",
        )
    return commit, etag, int(size) if size and size.isdigit() else (file.size or None)


def _same_origin(url: str, other: str) -> bool:
    return urlsplit(url)[:2] == urlsplit(other)[:2]


def _ask(method: str, url: str, repo: str, note: Callable[[str], None], *, token: bool = True) -> Any:
    _require_online(repo)
    head = method == "HEAD"
    headers = _headers(repo)
    if head:  # the headers of the hub's own answer are wanted, and the size as it is
        headers["Accept-Encoding"] = "identity"
    if not token:
        headers.pop("authorization", None)
    return ask(
        session(),
        method,
        url,
        headers,
        timeout=float(constants.HF_HUB_ETAG_TIMEOUT),
        accept=(200, 301, 302, 303, 307, 308) if head else (200,),
        note=note,
        follow_redirects=not head,
    )


def _headers(repo: str) -> dict[str, str]:
    # Not huggingface_hub's own headers: making those can ask the endpoint for a list of programs.
    headers = {"User-Agent": f"localspec/{__version__}; hf_hub/{huggingface_hub.__version__}"}
    token = None
    if not constants.HF_HUB_DISABLE_IMPLICIT_TOKEN:
        with suppress(OSError):  # a file that cannot be read: the hub will say where it needs one
            token = get_token()
    if token and not token.isascii():
        raise wrong_token("The access token cannot be sent: it holds letters that no token has.", repo)
    return {**headers, "authorization": f"Bearer {token}"} if token else headers


def _require_online(repo: str) -> None:
    if constants.HF_HUB_OFFLINE:
        raise DownloadError(
            f"{repo} is not on this disk, and HF_HUB_OFFLINE forbids to ask for it.",
            why="Nothing was requested.",
            hint=with_variable("HF_HUB_OFFLINE", "0", f"localspec pull {repo}"),
        )


# --------------------------------------------------------------------------------------------------- the disk


def _missing_of(repo: str, file: RepoFile) -> int:
    """Bytes of a file that are neither in a finished nor in a half blob."""
    if hubcache.has(repo, file.path, file.size):
        return 0
    if not file.sha256:
        return file.size
    for there in (hubcache.blob(repo, file.sha256), hubcache.partial(repo, file.sha256)):
        if there.exists():
            return max(0, file.size - there.stat().st_size)
    return file.size


@contextmanager
def _locked(file: Path, meter: Meter) -> Iterator[None]:
    """Hold the hub's lock of one blob; says that it waits while another program holds it."""
    with ExitStack() as held:
        while not _taken(file, held):
            meter.at(
                0, stage="waiting", note="Another program downloads this file; waiting for it.", now=True
            )
        yield


def _taken(file: Path, held: ExitStack) -> bool:
    with hubcache.usable(file.parent):
        try:
            held.enter_context(WeakFileLock(file, timeout=0.5))
        except Timeout:
            return False
    return True
