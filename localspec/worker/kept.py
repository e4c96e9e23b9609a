"""What was measured on this machine and is kept for the next load, in the cache folder."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from localspec import paths


class Kept:
    """One JSON object on the disk.

    Args:
        kind: The folder that it lies in.
        key: What its contents depend on: files, versions, devices, settings. Another key is another file.
    """

    def __init__(self, kind: str, key: Sequence[object]) -> None:
        digest = hashlib.sha256(json.dumps(key, default=str).encode()).hexdigest()[:24]
        self._file = paths.cache_dir() / kind / f"{digest}.json"

    def read(self) -> dict[str, Any]:
        """What was written last; empty where there is nothing that can be read."""
        try:
            known = json.loads(self._file.read_text(encoding="utf-8"), parse_constant=_no_number)
        except (OSError, ValueError, RecursionError):
            return {}
        return known if isinstance(known, dict) else {}

    def write(self, found: Mapping[str, Any]) -> None:
        """Keep it. Without a disk to write to it is measured again the next time.

        What holds no number where one should be (a device that computed nonsense) is not kept either: the next load
        would begin with it.
        """
        with contextlib.suppress(OSError, ValueError):
            text = json.dumps(found, allow_nan=False)
            self._file.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=self._file.parent)
            partial = Path(name)
            try:
                with os.fdopen(handle, "w", encoding="utf-8") as file:
                    file.write(text)
                partial.replace(self._file)  # whole or not at all, with two programs at once too
            finally:
                partial.unlink(missing_ok=True)


def _no_number(word: str) -> float:
    raise ValueError(f"{word} is no number")
