"""One wheel from the package index that this machine is set up for, without installing it.

pip is asked first, since it honours everything a person or a company has configured; then uv; else a small
client of the index's simple API (PEP 503 and 691), which resumes.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

from localspec.errors import DownloadError
from localspec.models.neterrors import host_of
from localspec.models.progress import Meter
from localspec.models.text import printable, shell_word, with_variable
from localspec.models.transfer import Expected, Remote, download
from localspec.models.web import ask, http_module

_FROM_PYPI = with_variable("PIP_INDEX_URL", "https://pypi.org/simple", "localspec pull demo")
_POLL = 0.2
_TIMEOUT = 15.0
_ACCEPT = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"
_INDEX_VARIABLES = ("PIP_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX_URL")


@dataclass(frozen=True, slots=True)
class Package:
    """A pinned wheel."""

    name: str
    version: str
    wheel: str
    """File name."""
    size: int
    """Bytes, for the progress."""


def fetch(package: Package, folder: Path, meter: Meter) -> Path:
    """Get the wheel.

    Args:
        package: What to get.
        folder: An existing folder of our own; the temporary files of pip and uv go there too.
        meter: Gets the count.

    Returns:
        The wheel, or the folder into which uv has unpacked it.

    Raises:
        DownloadError: None of the ways worked; says what the first one said.
    """
    ways: list[Callable[[Package, Path, Meter], Path]] = [_by_ourselves]
    if uv := shutil.which("uv"):
        ways.insert(0, lambda *args: _with_uv(uv, *args))
    if importlib.util.find_spec("pip") is not None:
        ways.insert(0, _with_pip)
    failures: list[DownloadError] = []
    for way in ways:
        try:
            return way(package, folder, meter)
        except DownloadError as problem:
            failures.append(problem)
            meter.restart()
    raise failures[0]


def _with_pip(package: Package, folder: Path, meter: Meter) -> Path:
    into = _fresh(folder / "pip")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir"]
    command += [
        "--no-input",
        "--disable-pip-version-check",
        "--progress-bar",
        "off",
        "--dest",
        str(into / "out"),
    ]
    _run("pip", [*command, f"{package.name}=={package.version}"], into, meter)
    return _one(into / "out", package)


def _with_uv(uv: str, package: Package, folder: Path, meter: Meter) -> Path:
    into = _fresh(folder / "uv")
    command = [uv, "pip", "install", "--no-deps", "--only-binary", ":all:", "--no-cache", "--quiet"]
    command += ["--python", sys.executable, "--target", str(into / "out")]
    _run("uv", [*command, f"{package.name}=={package.version}"], into, meter)
    return into / "out"


def _fresh(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "tmp").mkdir(parents=True)
    return folder


def _run(tool: str, command: list[str], into: Path, meter: Meter) -> None:
    """Run a tool and show how the files below `into` grow; whatever happens, it does not live on."""
    temporary = str(into / "tmp")
    environment = {**os.environ, "TMPDIR": temporary, "TEMP": temporary, "TMP": temporary}
    log = into / "log"
    with log.open("wb") as out:
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, env=environment
            )
        except OSError as problem:
            raise DownloadError(
                f"{tool} could not be started.",
                why=f"The system says: {problem.strerror or problem}.",
                hint=f"ls -l {shell_word(command[0])}",
            ) from problem
        try:
            while process.poll() is None:
                meter.at(min(meter.total, _bytes_below(into)))
                time.sleep(_POLL)
        finally:
            if process.poll() is None:
                process.terminate()
                try:
                    process.wait(3)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
    if process.returncode:
        lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
        said = next(
            (line for line in reversed(lines) if line.lower().startswith("error")), lines[-1] if lines else ""
        )
        raise DownloadError(
            f"{tool} could not get {command[-1]} from the package index.",
            why=f"It says: {printable(said)[:300]}",
            hint=_FROM_PYPI,
        )


def _bytes_below(folder: Path) -> int:
    total = 0
    for here, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(here, name)).st_size  # noqa: PTH116, PTH118 - files come and go
            except OSError:
                continue
    return total


def _one(folder: Path, package: Package) -> Path:
    wheel = folder / package.wheel
    if not wheel.is_file():
        raise DownloadError(
            f"The package index sent something else than {package.wheel}.",
            why="The index that this machine is set up for may be a private one.",
            hint=_FROM_PYPI,
        )
    return wheel


def _by_ourselves(package: Package, folder: Path, meter: Meter) -> Path:
    with http_module().Client(follow_redirects=True) as client:
        url, digest = _look_up(client, package, meter)
        partial, wheel = folder / f"{package.wheel}.incomplete", folder / package.wheel
        remote = Remote(client, url, {}, package.wheel, _TIMEOUT)
        download(remote, partial, Expected(None, digest), meter)
        partial.replace(wheel)
    return wheel


def index_url() -> str:
    """The configured package index, else PyPI."""
    for variable in _INDEX_VARIABLES:
        value = os.environ.get(variable, "").strip()
        if value:
            return re.sub(r"^[\w-]+=", "", value)  # uv writes `name=address`
    return "https://pypi.org/simple"


def _look_up(client: Any, package: Package, meter: Meter) -> tuple[str, str]:
    """Address and sha256 of the wheel."""
    page = f"{index_url().rstrip('/')}/{package.name}/"
    response = ask(
        client,
        "GET",
        page,
        {"Accept": _ACCEPT},
        timeout=_TIMEOUT,
        note=meter.say,
    )
    if "json" in response.headers.get("Content-Type", ""):
        try:
            files = [
                (f["filename"], f["url"], f.get("hashes", {}).get("sha256", ""))
                for f in response.json()["files"]
            ]
        except (ValueError, KeyError, TypeError) as problem:
            raise DownloadError(
                f"{host_of(page)} does not answer like a package index.",
                why="A login page of the network or a wrong address may answer in its place.",
                hint=_FROM_PYPI,
            ) from problem
    else:
        parser = _Links()
        parser.feed(response.text)
        files = [_from_link(link) for link in parser.links]
    for name, url, digest in files:
        if name == package.wheel:
            return urljoin(str(response.url), url), digest
    raise DownloadError(
        f"{host_of(page)} does not have {package.wheel}.",
        why="The index that this machine is set up for may be a private one.",
        hint=_FROM_PYPI,
    )


def _from_link(link: str) -> tuple[str, str, str]:
    url, fragment = urldefrag(link)
    return unquote(urlsplit(url).path.rpartition("/")[2]), url, fragment.partition("sha256=")[2]


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.links += [value for name, value in attrs if name == "href" and value]
