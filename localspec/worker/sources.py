"""What drafts without a model of its own: lookup with the person's files, and drafters that somebody else wrote."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from localspec.errors import AbortedError, DrafterError, LoadError, UsageError
from localspec.llama.tokens import Vocab
from localspec.models.documents import read_documents
from localspec.spec import draft_custom
from localspec.spec.draft_lookup import LookupDrafter
from localspec.spec.drafter import Drafter
from localspec.spec.foreign import Foreign
from localspec.spec.lookup_index import TextIndex
from localspec.worker.protocol import Event, Load, LoadProgress

_PART = 1 << 16  # characters that are tokenised at once


class Sources:
    """Makes them.

    Args:
        command: What to load.
        send: Receives `LoadProgress`.
        cancelled: Whether the request in hand was cancelled, now and later.
    """

    def __init__(self, command: Load, send: Callable[[Event], None], cancelled: Callable[[], bool]) -> None:
        self._command = command
        self._send = send
        self._cancelled = cancelled
        self._foreign: Foreign | None = None
        self._found: Any = None
        self.notes: list[str] = []

    def find_custom(self) -> str:
        """Import the module of a drafter that somebody else wrote, before the target takes its time.

        Returns:
            Why it cannot draft; empty when it can, and where no such drafter is wanted.

        Raises:
            UsageError: Its name is wrong.
            LoadError: The load was stopped.
        """
        draft = self._command.draft
        if draft.kind != "custom":
            return ""
        self._foreign = Foreign(self._cancelled)
        try:
            self._found = draft_custom.find(draft.code, draft.folder, self._foreign)
        except AbortedError as error:
            raise LoadError(f"Loading {draft.code} was stopped.") from error
        except DrafterError as error:
            return error.message
        return ""

    def custom(self, n_vocab: int) -> Drafter:
        """The drafter that `find_custom` found.

        Raises:
            DrafterError: It cannot be made.
            LoadError: The load was stopped.
        """
        assert self._foreign is not None
        name = self._command.draft.code
        try:
            return draft_custom.build(self._found, name, n_vocab, self._foreign)
        except AbortedError as error:
            raise LoadError(f"Loading {name} was stopped.") from error

    def lookup(self, vocab: Vocab) -> LookupDrafter:
        """Lookup in the conversation, and in the files where some were named.

        Raises:
            LoadError: The load was stopped.
        """
        try:
            documents = read_documents(self._command.lookup_files)
        except UsageError as error:  # it was looked at before; somebody took it away
            self.notes.append(f"{error} Lookup goes on without files.")
            return LookupDrafter()
        if not documents:
            return LookupDrafter()
        whole = sum(len(text) for _, text in documents) or 1
        done = 0
        ids: list[list[int]] = []
        for path, text in documents:
            ids.append([])
            for part in _parts(text):
                if self._cancelled():
                    raise LoadError(f"Reading {path.name} was stopped.")
                self._send(LoadProgress("lookup", done / whole, path.name))
                ids[-1] += vocab.tokenize(part, special=False)
                done += len(part)
        index = TextIndex(ids)
        names = ", ".join(path.name for path, _ in documents)
        self.notes.append(f"Lookup also searches {names}: {len(index):,} tokens.")
        self._send(LoadProgress("lookup", 1.0, Path(documents[-1][0]).name))
        return LookupDrafter(index)


def _parts(text: str) -> list[str]:
    """A text in parts that end with a line, so that a load can be stopped; a line longer than a part is cut."""
    parts, start = [], 0
    while start < len(text):
        end = start + _PART
        if end < len(text):
            end = text.rfind("\n", start, end) + 1 or end
        parts.append(text[start:end])
        start = end
    return parts
