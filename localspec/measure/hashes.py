"""Which files were measured: the sha256 of each, without reading 16 GB every time."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from localspec import paths

_BLOCK = 4 << 20
_SHA256 = re.compile(r"[0-9a-f]{64}")
_KEPT = 200


def identify(
    files: Sequence[Path], progress: Callable[[Path, float], bool] = lambda path, share: True
) -> list[dict[str, Any]]:
    """Name, size and sha256 of each file.

    The hash comes from the name of the hub's cache blob, which is the hash that was checked on download
    (`from`: `hub`); else from our own memory of this path, size and time of change (`memory`); else the file is read
    (`read`). None when the file is gone or `progress` said no.

    Args:
        files: Parts of models.
        progress: Called with a file and the share that was read; returning False stops the reading.
    """
    known = _load()
    found: list[dict[str, Any]] = []
    for path in files:
        try:
            stat = path.stat()
        except OSError:
            found.append({"name": path.name, "size": None, "sha256": None, "from": "gone"})
            continue
        digest: str | None
        blob = path.resolve().name
        key = f"{path.resolve()}|{stat.st_size}|{stat.st_mtime_ns}"
        if _SHA256.fullmatch(blob):
            digest, origin = blob, "hub"
        elif key in known:
            digest, origin = known[key], "memory"
        else:
            digest, origin = _read(path, stat.st_size, progress), "read"
            if digest is not None:
                known[key] = digest
                _store(known)
        found.append({"name": path.name, "size": stat.st_size, "sha256": digest, "from": origin})
    return found


def _read(path: Path, size: int, progress: Callable[[Path, float], bool]) -> str | None:
    digest, done = hashlib.sha256(), 0
    with contextlib.suppress(OSError), path.open("rb") as opened:
        while block := opened.read(_BLOCK):
            digest.update(block)
            done += len(block)
            if not progress(path, done / max(size, 1)):
                return None
        return digest.hexdigest()
    return None


def _file() -> Path:
    return paths.cache_dir() / "hashes.json"


def _load() -> dict[str, str]:
    with contextlib.suppress(OSError, ValueError):
        found = json.loads(_file().read_text(encoding="utf-8"))
        if isinstance(found, dict):
            return {k: v for k, v in found.items() if isinstance(v, str) and _SHA256.fullmatch(v)}
    return {}


def _store(known: dict[str, str]) -> None:
    """Keep the newest; a cache that cannot be written is no reason to stop."""
    file = _file()
    scratch = file.with_name(f"{file.name}.{secrets.token_hex(4)}")
    newest = dict(list(known.items())[-_KEPT:])
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        scratch.write_text(json.dumps(newest, indent=1), encoding="utf-8")
        scratch.replace(file)
