"""Conversations on disk: one JSON Lines file each, only ever appended to.

The first line is `{"type": "conversation", ...}`; then one line for every message, removal, change of the system
message, and text that was left unsent. A line that was torn by a crash or a full disk is skipped when the file is read.
While a chat has a conversation open it holds a lock beside it, so that another one does not write into the same file.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import secrets
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from localspec import paths

VERSION = 1


class Conversation:
    """One stored conversation.

    Attributes:
        path: Its file.
        records: What the file held when it was opened, damaged lines left out; the first is the head.
    """

    def __init__(self, path: Path, records: list[dict[str, Any]]) -> None:
        self.path = path
        self.records = records
        self._lock: BinaryIO | None = None

    @property
    def newer(self) -> bool:
        """Whether a later localspec wrote it: there may be records that this one does not know."""
        version = self.head.get("version")
        return isinstance(version, int) and version > VERSION

    def claim(self) -> bool:
        """Take it, until this process ends.

        Returns:
            False where another process has it. True too where the system or the disk knows no locks.
        """
        path = self.path.with_suffix(".lock")
        try:
            import fcntl  # noqa: PLC0415  (POSIX only)

            self._lock = path.open("ab")
        except (ImportError, OSError):
            return True
        try:
            fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            return False
        except OSError:
            return True
        atexit.register(path.unlink, missing_ok=True)
        return True

    @property
    def head(self) -> dict[str, Any]:
        """The first line: `created` (seconds since 1970), `target`, `draft`, `system`, `seed`."""
        return self.records[0]

    @property
    def title(self) -> str:
        """The first message's first line."""
        for record in self.records:
            if record.get("type") == "message" and record.get("role") == "user":
                lines = str(record.get("content", "")).strip().splitlines()
                return lines[0] if lines else ""
        return ""

    def append(self, record: dict[str, Any]) -> None:
        """Write one line and have it on the disk before returning.

        Raises:
            OSError: The disk is full, the folder is read-only. The file is as it was.
        """
        line = (
            json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
            + b"\n"
        )
        descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        with os.fdopen(descriptor, "r+b", buffering=0) as file:
            if _torn(file):
                line = b"\n" + line
            size = file.seek(0, os.SEEK_END)
            try:
                written = file.write(line)
                if written is not None and written < len(line):
                    raise OSError(28, "No space left on device")
                os.fsync(file.fileno())
            except OSError:
                # What may be there already would be read twice when it is written again.
                with contextlib.suppress(OSError):
                    file.truncate(size)
                raise
        self.records.append(record)


def _torn(file: Any) -> bool:
    """Whether the last line has no end."""
    if file.seek(0, os.SEEK_END) == 0:
        return False
    file.seek(-1, os.SEEK_END)
    return bool(file.read(1) != b"\n")


@dataclass(frozen=True, slots=True)
class Summary:
    """A stored conversation in a list."""

    path: Path
    title: str
    changed: float
    """Seconds since 1970."""
    messages: int


class ConversationStore:
    """The folder of conversations.

    Args:
        folder: The default is `paths.conversations_dir()`; it is made when the first conversation is.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or paths.conversations_dir()

    def create(self, about: dict[str, Any]) -> Conversation:
        """Start a file.

        Args:
            about: What the head keeps, for instance `target`, `draft`, `system`, `seed`.

        Raises:
            OSError: The folder cannot be written.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        name = time.strftime("%Y%m%d-%H%M%S-") + secrets.token_hex(3) + ".jsonl"
        conversation = Conversation(self.folder / name, [])
        try:
            conversation.append({"type": "conversation", "version": VERSION, "created": time.time()} | about)
        except OSError:
            with contextlib.suppress(OSError):
                conversation.path.unlink()
            raise
        conversation.claim()
        return conversation

    def load(self, path: Path) -> Conversation:
        """Read one file; lines that cannot be read are left out.

        Raises:
            OSError: The file cannot be opened.
            ValueError: It is not a conversation.
        """
        records = []
        for line in path.read_bytes().splitlines():
            try:
                record = json.loads(line.decode("utf-8", "surrogatepass"))
            except (ValueError, RecursionError):
                continue
            if isinstance(record, dict):
                records.append(record)
        if not any(record.get("type") in ("conversation", "message") for record in records):
            raise ValueError(f"{path.name} is not a conversation")
        if records[0].get("type") != "conversation":
            records.insert(0, {"type": "conversation"})  # it was damaged; what was said is what counts
        return Conversation(path, records)

    def list(self) -> list[Summary]:
        """Every conversation, the newest first; files that are none are left out."""
        found = []
        for path in self.folder.glob("*.jsonl"):
            try:
                conversation = self.load(path)
                count = sum(record.get("type") == "message" for record in conversation.records)
                found.append(Summary(path, conversation.title, path.stat().st_mtime, count))
            except (OSError, ValueError):
                continue
        return sorted(found, key=lambda summary: (summary.changed, summary.path.name), reverse=True)

    def newest(self) -> Conversation | None:
        """The conversation that was changed last."""
        for summary in self.list():
            return self.load(summary.path)
        return None
