"""The bytes of one file over HTTP: resumed, tried again, hashed while they are written.

huggingface_hub 2.4 resumes only inside one call, lets resets and 5xx through and compares no hash, so it is
used for everything but the bytes. Here a partial file of any earlier process is continued with a byte range,
every failure that may pass is tried again from where it was, and the file only counts when its hash is the
one that the server stated.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from localspec.errors import DownloadError
from localspec.models.listing import gigabytes
from localspec.models.neterrors import explain_status, host_of
from localspec.models.progress import Meter
from localspec.models.text import shell_word, shown, variables_like
from localspec.models.web import PASSING, PATIENCE, TryAgainError, network, retry_after, wait

if TYPE_CHECKING:
    from hashlib import _Hash

RETRIES = 6
"""Failures in a row without a new byte before a file is given up: 1, 2, 4, 8, 16 seconds apart."""
SPAN = 40_000_000_000
"""One request asks for at most this many bytes: content networks refuse whole answers above 50 GB."""
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Remote:
    """Where a file is, and how it is asked for."""

    client: Any
    """An httpx client that follows redirects (it drops the authorization on another host)."""
    url: str
    headers: dict[str, str]
    name: str
    """The file's name for messages."""
    timeout: float = 10.0
    """Seconds without a byte after which a connection counts as broken."""


@dataclass(frozen=True, slots=True)
class Expected:
    """What a file has to be.

    `digest` is a sha256 (64 hex digits), a git blob's sha1 (40, for small files of a repository), or empty.
    """

    size: int | None
    digest: str = ""

    def hasher(self) -> _Hash:
        """A fresh hash of the right kind."""
        if len(self.digest) == 40 and self.size is not None:
            return hashlib.sha1(b"blob %d\0" % self.size, usedforsecurity=False)
        return hashlib.sha256()


@dataclass(slots=True)
class _Part:
    """The open partial file, its hash and its length."""

    file: BinaryIO
    expected: Expected
    hasher: _Hash
    done: int = 0

    def restart(self) -> None:
        self.file.seek(0)
        self.file.truncate()
        self.hasher = self.expected.hasher()
        self.done = 0

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            written = self.file.write(view) or 0
            self.hasher.update(view[:written])
            self.done += written
            view = view[written:]


def download(remote: Remote, partial: Path, expected: Expected, meter: Meter) -> None:
    """Fill `partial` until it is the whole file, and check it.

    Args:
        remote: Where the file is.
        partial: What is there already is continued; its folder exists.
        expected: Size and hash.
        meter: Gets the count.

    Raises:
        DownloadError: Given up, refused, disk full (`partial` stays), or other content than stated
            (`partial` goes).
    """
    resumed = partial.exists() and partial.stat().st_size > 0
    try:
        try:
            _fill(remote, partial, expected, meter)
        except _WrongContentError:
            if not resumed:
                raise
            # The older part may have been damaged long ago (a power cut): once more, from the start.
            partial.unlink(missing_ok=True)
            meter.restart()
            _fill(remote, partial, expected, meter)
    except _WrongContentError as wrong:
        partial.unlink(missing_ok=True)
        raise wrong.error from None


class _WrongContentError(Exception):
    def __init__(self, error: DownloadError) -> None:
        super().__init__(str(error))
        self.error = error


def _fill(remote: Remote, partial: Path, expected: Expected, meter: Meter) -> None:
    with _open(partial) as file:
        part = _Part(file, expected, expected.hasher())
        _reread(part, meter)
        failures, best = 0, part.done
        while expected.size is None or part.done < expected.size:
            try:
                finished = _request(remote, part, meter)
                failure: DownloadError | None = None
            except _DiskError as problem:
                raise _disk_error(problem, partial, part) from problem
            except TryAgainError as passing:
                finished, failure, pause = False, passing.error, passing.pause
            if finished:
                break
            failures, best = (0, part.done) if part.done > best else (failures + 1, best)
            if failure is None:
                if failures == 0:  # one span of a long file, or an answer cut short: simply go on
                    continue
                failure = _odd_answer(remote.url, "ended the answer before the file was whole")
                pause = 0.0
            if failures and (failures >= RETRIES or pause > PATIENCE):
                raise failure
            wait(failure, max(1, failures), pause, meter.say)
            meter.restart()
        _check(part, remote)
        os.fsync(file.fileno())


def _open(partial: Path) -> BinaryIO:
    try:
        return partial.open("ab+", buffering=0)
    except OSError as problem:
        raise _not_writable(problem, partial) from problem


def _reread(part: _Part, meter: Meter) -> None:
    """Hash what an earlier run left, so that the whole file can be checked at the end."""
    part.file.seek(0)
    while data := part.file.read(_CHUNK):
        part.hasher.update(data)
        part.done += len(data)
        meter.at(part.done, stage="checking")
    if part.expected.size is not None and part.done > part.expected.size:
        part.restart()
    meter.restart()


def _request(remote: Remote, part: _Part, meter: Meter) -> bool:
    """Ask for what is missing. True when the size is not known and the answer came to its end."""
    size, start = part.expected.size, part.done
    ranged = dict(remote.headers, **{"Accept-Encoding": "identity"})
    bounded = size is not None and size - start > SPAN
    if start or bounded:
        ranged["Range"] = f"bytes={start}-{start + SPAN - 1 if bounded else ''}"
    with (
        network(remote.url),
        remote.client.stream("GET", remote.url, headers=ranged, timeout=remote.timeout) as response,
    ):
        _accept(response, remote.url, part, meter)
        if meter.total == 0 and (length := response.headers.get("Content-Length", "")).isdigit():
            meter.total = part.done + int(length)
        for data in response.iter_bytes():
            with _disk():
                part.write(data)
            meter.at(part.done)
    return size is None


def _accept(response: Any, url: str, part: _Part, meter: Meter) -> None:
    start = part.done
    status = response.status_code
    if status in (200, 206) and (total := _total(response)) not in (None, part.expected.size or total):
        # A page of the network's, or another file: not one byte of it may get in among the right ones.
        raise TryAgainError(
            _odd_answer(url, f"sent something of {gigabytes(total or 0)} in place of the file")
        )
    if status == 206:
        if start != _range_start(response.headers.get("Content-Range", "")):
            raise TryAgainError(_odd_answer(url, "sent another range than was asked for"))
    elif status == 200:
        if start:  # the range was ignored: these are the first bytes
            part.restart()
            meter.restart()
    elif status == 416:  # what is there cannot be a beginning of this file
        part.restart()
        raise TryAgainError(_odd_answer(url, f"refused to go on at byte {start}"))
    elif status in PASSING:
        raise TryAgainError(explain_status(response), retry_after(response))
    elif status in (401, 403) and host_of(str(response.url)) != host_of(url):
        # A signed address of a content network that has run out; the next try gets a new one.
        raise TryAgainError(explain_status(response))
    else:
        raise explain_status(response)


def _odd_answer(url: str, what: str) -> DownloadError:
    return DownloadError(
        f"{host_of(url)} {what}.",
        why="The link is weak, or a proxy, a mirror or a login page answers in its place.",
        hint=f"curl -I {shell_word(url)}",
    )


def _total(response: Any) -> int | None:
    """Bytes of the whole file that an answer is about or a part of, where it says so."""
    if response.headers.get("Content-Encoding", "identity") != "identity":
        return None
    stated: str = response.headers.get("Content-Length", "")
    if response.status_code == 206:
        stated = response.headers.get("Content-Range", "").rpartition("/")[2]
    return int(stated) if stated.isdigit() else None


def _range_start(content_range: str) -> int | None:
    digits = content_range.removeprefix("bytes ").split("-")[0]
    return int(digits) if digits.isdigit() else None


@contextmanager
def _disk() -> Iterator[None]:
    # Marks errors of the disk, so that no OSError of whoever draws the progress is taken for one.
    try:
        yield
    except OSError as problem:
        raise _DiskError(*problem.args) from problem


class _DiskError(OSError):
    pass


def _disk_error(problem: OSError, partial: Path, part: _Part) -> DownloadError:
    if problem.errno in (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)):
        missing = gigabytes(part.expected.size - part.done) if part.expected.size else "some space"
        return DownloadError(
            f"The disk is full: {missing} more is needed in {shown(partial.parent)}.",
            why="What has come so far is kept and will be continued.",
            hint=f"df -h {shell_word(partial.parent)}",
        )
    return _not_writable(problem, partial)


def _not_writable(problem: OSError, partial: Path) -> DownloadError:
    return DownloadError(
        f"{shown(partial)} cannot be written.",
        why=f"The system says: {problem.strerror or problem}.",
        hint=f"ls -ld {shell_word(partial.parent)}",
    )


def _check(part: _Part, remote: Remote) -> None:
    size, digest = part.expected.size, part.expected.digest
    got = part.hasher.hexdigest()
    if size is not None and part.done != size:
        why = f"It has {part.done:,} bytes in place of {size:,}."
    elif len(digest) in (40, 64) and got != digest.lower():
        why = f"Its hash is {got[:12]}… in place of {digest[:12]}…."
    else:
        return
    raise _WrongContentError(
        DownloadError(
            f"{remote.name} came from {host_of(remote.url)} with other content than stated, and was deleted.",
            why=why + " A proxy, a mirror or the disk changed it.",
            hint=variables_like("proxy"),
        )
    )
