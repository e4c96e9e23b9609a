"""A model hub on this machine: listing, files with ranges, redirects to a content network, and all that goes wrong.

Two HTTP servers in threads: the hub, and a content network on a second port. Every request is recorded. Faults are
queued and each is used up by one request for the bytes of a file.
"""

from __future__ import annotations

import hashlib
import json
import re
import socket
import ssl
import struct
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
_TREE = re.compile(r"^/api/models/([^/]+/[^/]+)/tree/([^/]+)$")
_RESOLVE = re.compile(r"^/([^/]+/[^/]+)/resolve/([^/]+)/(.+)$")


@dataclass(frozen=True)
class Request:
    """One recorded request."""

    server: str
    """`hub` or `cdn`."""
    method: str
    path: str
    range: str
    authorization: str


@dataclass(frozen=True)
class Fault:
    """What goes wrong with one answer.

    kind: `drop` (reset after `at` bytes), `end` (clean end after `at` bytes), `stall` (silent after `at` bytes),
    `flip` (the byte at `at` is wrong), `whole` (the range is ignored), `status` (answer with `status` and `headers`),
    `html` (a login page in place of a listing), `page` (one in place of a file's bytes).
    """

    kind: str
    at: int = 0
    status: int = 500
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class Repo:
    """Files of one repository."""

    files: dict[str, bytes] = field(default_factory=dict)
    plain: set[str] = field(default_factory=set)
    """Files that are not in LFS."""
    refusal: Fault | None = None
    """Every request is answered so."""
    gone: set[str] = field(default_factory=set)
    """Listed, but 404 when asked for."""
    renamed_to: str = ""
    origin: str = ""
    """A mirror that sends everybody who wants bytes to this hub."""


class HubServer:
    """The two servers. Use as a context manager."""

    def __init__(self, certificate: tuple[Path, Path] | None = None) -> None:
        self._certificate = certificate  # and key: the hub speaks TLS then
        self.repos: dict[str, Repo] = {}
        self.requests: list[Request] = []
        self.faults: deque[Fault] = deque()
        self.api_faults: deque[Fault] = deque()
        """Used up by listings and HEADs."""
        self.static: dict[str, tuple[str, bytes]] = {}
        """Anything else: path to content type and bytes."""
        self.use_cdn = False
        self.xet = False
        self.valid_tokens: set[str] | None = None
        """Tokens that are accepted; None = all."""
        self.prefix = ""
        """Path under which the hub lies, as on a company's artifact server."""
        self.etag: str | None = None
        """Stated for every file in place of the right one."""
        self.page_size = 1000
        self.commit = COMMIT
        self.chunk = 1 << 16
        self.pause = 0.0
        """Seconds between chunks."""
        self._closing = threading.Event()
        self._servers: list[ThreadingHTTPServer] = []

    def __enter__(self) -> HubServer:
        for name in ("hub", "cdn"):
            handler = type(f"{name.title()}Handler", (_Handler,), {"hub": self, "server_name_": name})
            server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
            server.daemon_threads = True
            if self._certificate is not None:
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                context.load_cert_chain(*self._certificate)
                server.socket = context.wrap_socket(server.socket, server_side=True)
            threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
            self._servers.append(server)
        return self

    def __exit__(self, *problem: object) -> None:
        self._closing.set()
        for server in self._servers:
            server.shutdown()
            server.server_close()

    def stop_answering(self) -> None:
        """No more connections: the network is gone."""
        self.__exit__()

    @property
    def url(self) -> str:
        scheme = "http" if self._certificate is None else "https"
        return f"{scheme}://127.0.0.1:{self._servers[0].server_port}"

    @property
    def cdn_url(self) -> str:
        return f"http://127.0.0.1:{self._servers[1].server_port}"

    def add(self, repo: str, path: str, data: bytes, *, lfs: bool = True) -> str:
        """Publish a file; returns its sha256."""
        entry = self.repos.setdefault(repo, Repo())
        entry.files[path] = data
        if not lfs:
            entry.plain.add(path)
        return hashlib.sha256(data).hexdigest()

    def asked(self, method: str = "", server: str = "") -> list[Request]:
        """Recorded requests of one kind."""
        return [r for r in self.requests if method in ("", r.method) and server in ("", r.server)]

    def ranges(self) -> list[str]:
        """The range of every request for bytes, in order, on whichever server delivered them."""
        server = "cdn" if self.use_cdn else "hub"
        return [r.range for r in self.asked("GET", server) if "/tree/" not in r.path]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: HubServer
    server_name_: str

    def log_message(self, *args: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        self.path = self.path.replace(self.hub.prefix, "", 1) if self.hub.prefix else self.path
        path = unquote(urlsplit(self.path).path)
        authorization = self.headers.get("Authorization", "")
        self.hub.requests.append(
            Request(self.server_name_, self.command, path, self.headers.get("Range", ""), authorization)
        )
        try:
            if self.server_name_ == "cdn":
                data = self._by_hash(path)
                self._bytes(data, {}) if data is not None else self._status(404)
            elif path in self.hub.static:
                kind, data = self.hub.static[path]
                self._bytes(data, {"Content-Type": kind})
            elif found := _TREE.match(path):
                self._tree(found[1])
            elif found := _RESOLVE.match(path):
                self._resolve(found[1], found[3])
            else:
                self._status(404)
        except (ConnectionError, TimeoutError):
            self.close_connection = True

    def _by_hash(self, path: str) -> bytes | None:
        wanted = path.rpartition("/")[2]
        for repo in self.hub.repos.values():
            for data in repo.files.values():
                if hashlib.sha256(data).hexdigest() == wanted:
                    return data
        return None

    def _allowed(self, name: str) -> Repo | None:
        """The repository, or None when the refusal was sent."""
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if token and self.hub.valid_tokens is not None and token not in self.hub.valid_tokens:
            self._status(401, {"X-Error-Message": "Invalid credentials in Authorization header"})
            return None
        if (self.hub.api_faults and self.command == "HEAD") or (
            self.hub.api_faults and "/tree/" in self.path
        ):
            fault = self.hub.api_faults.popleft()
            if fault.kind == "html":
                self._bytes(b"<html>Please log in</html>", {"Content-Type": "text/html"})
            elif fault.kind == "drop":
                self._reset()
            else:
                self._status(fault.status, fault.headers)
            return None
        repo = self.hub.repos.get(name)
        if repo is None:
            # What the real hub says to somebody without a token.
            self._status(404 if token else 401, {"X-Error-Code": "RepoNotFound"})
            return None
        if repo.refusal is not None:
            self._status(repo.refusal.status, repo.refusal.headers)
            return None
        return repo

    def _tree(self, name: str) -> None:
        repo = self._allowed(name)
        if repo is None:
            return
        if repo.renamed_to:
            self._status(307, {"Location": self.path.replace(name, repo.renamed_to)})
            return
        entries: list[dict[str, Any]] = [{"type": "directory", "oid": "0" * 40, "size": 0, "path": "folder"}]
        for path, data in repo.files.items():
            entry: dict[str, Any] = {"type": "file", "oid": _git_sha(data), "size": len(data), "path": path}
            if path not in repo.plain:
                entry["lfs"] = {
                    "oid": hashlib.sha256(data).hexdigest(),
                    "size": len(data),
                    "pointerSize": 134,
                }
            entries.append(entry)
        start = int(parse_qs(urlsplit(self.path).query).get("cursor", ["0"])[0])
        page = entries[start : start + self.hub.page_size]
        headers = {"Content-Type": "application/json"}
        if start + self.hub.page_size < len(entries):
            # Mirrors pass the hub's own address on.
            following = f"https://huggingface.co/api/models/{name}/tree/main?recursive=true&cursor={start + len(page)}"
            headers["Link"] = f'<{following}>; rel="next"'
        self._bytes(json.dumps(page).encode(), headers)

    def _resolve(self, name: str, path: str) -> None:
        repo = self._allowed(name)
        if repo is None:
            return
        if repo.renamed_to:
            self._status(307, {"Location": self.path.replace(name, repo.renamed_to)})
            return
        if repo.origin:
            self._status(308, {"Location": repo.origin + self.path})
            return
        data = repo.files.get(path)
        if data is None or path in repo.gone:
            self._status(404, {"X-Error-Code": "EntryNotFound"})
            return
        digest = hashlib.sha256(data).hexdigest()
        headers = {"X-Repo-Commit": self.hub.commit}
        if path in repo.plain:
            self._bytes(data, {**headers, "ETag": f'"{_git_sha(data)}"'})
            return
        headers |= {"X-Linked-Etag": f'"{digest}"', "X-Linked-Size": str(len(data)), "ETag": '"other"'}
        if self.hub.etag is not None:
            headers |= {"X-Linked-Etag": f'"{self.hub.etag}"', "ETag": f'"{self.hub.etag}"'}
        if self.hub.xet:
            headers |= {
                "X-Xet-Hash": "f" * 64,
                "Link": f'<{self.hub.url}/api/models/{name}/xet-read-token/{self.hub.commit}>; rel="xet-auth"',
            }
        if self.hub.use_cdn:
            self._status(302, {**headers, "Location": f"{self.hub.cdn_url}/signed/{digest}?key=1"})
        else:
            self._bytes(data, headers)

    def _status(self, status: int, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _bytes(self, data: bytes, headers: dict[str, str]) -> None:
        """Send bytes, the range asked for, with the next fault."""
        is_file = self.command == "GET" and "/tree/" not in self.path and not self.path.endswith("/")
        fault = self.hub.faults.popleft() if is_file and self.hub.faults else None
        if fault is not None and fault.kind == "status":
            self._status(fault.status, fault.headers)
            return
        if fault is not None and fault.kind == "page":
            data, headers, fault = b"<html>Please log in</html>", {"Content-Type": "text/html"}, None
            del self.headers["Range"]
        start, end = 0, len(data)
        found = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if found and not (fault is not None and fault.kind == "whole"):
            start = int(found[1])
            end = min(end, int(found[2]) + 1) if found[2] else end
            if start >= len(data):
                self._status(416, {"Content-Range": f"bytes */{len(data)}"})
                return
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(data)}")
        else:
            self.send_response(200)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(end - start))
        self.end_headers()
        if self.command == "GET":
            self._body(data, start, end, fault)

    def _body(self, data: bytes, start: int, end: int, fault: Fault | None) -> None:
        if fault is not None and fault.kind == "flip":
            data = data[: fault.at] + bytes([data[fault.at] ^ 0x40]) + data[fault.at + 1 :]
        stop = fault.at if fault is not None and fault.kind in ("drop", "end", "stall") else end
        position = start
        while position < min(stop, end):
            piece = data[position : min(position + self.hub.chunk, stop, end)]
            self.wfile.write(piece)
            position += len(piece)
            if self.hub.pause:
                time.sleep(self.hub.pause)
        if position >= end or fault is None:
            return
        self.wfile.flush()
        self.close_connection = True
        if fault.kind == "stall":
            self.hub._closing.wait(30)
        if fault.kind == "drop":
            self._reset()

    def _reset(self) -> None:
        """End the connection with a reset in place of a clean end."""
        time.sleep(0.05)  # what was sent should arrive before the reset
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        self.connection.close()


def _git_sha(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
