"""Every error that localspec shows, in one tree.

LocalspecError
    UsageError            a flag or a value that cannot be
    ModelFileError        a file that is not a usable GGUF model
    CatalogError          a name that no catalogue knows, a models.toml that does not parse
    DownloadError         the hub, the network, the disk
    PairingError          target and draft do not belong together
    OutOfMemoryError      weights and caches do not fit
    LoadError             llama.cpp refused a model or a context
    TemplateError         a chat template that cannot be rendered
    ContextFullError      the conversation does not fit in the context
    DecodeError           llama.cpp failed while evaluating
        DrafterError      a drafter of somebody's own failed
    AbortedError          an evaluation was stopped half-way, because somebody asked for it
    WorkerDiedError       the engine's process ended

Each carries three sentences: what happened (`message`), why (`why`) and one command to type next (`hint`).
"""

from __future__ import annotations


class LocalspecError(Exception):
    """Base of all errors that are shown to a person without a traceback.

    Args:
        message: One sentence: what happened.
        why: One sentence: the reason.
        hint: One command to type next, ready to copy.
    """

    exit_code = 1
    title = "Error"

    def __init__(self, message: str, *, why: str = "", hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.why = why
        self.hint = hint

    def __str__(self) -> str:
        return " ".join(part for part in (self.message, self.why) if part)

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.message, self.why, self.hint))

    def to_json(self) -> dict[str, str]:
        """The error as the object that `--json` prints under `error`."""
        return {"kind": type(self).__name__, "message": self.message, "why": self.why, "hint": self.hint}


def _rebuild(kind: type[LocalspecError], message: str, why: str, hint: str) -> LocalspecError:
    return kind(message, why=why, hint=hint)


class UsageError(LocalspecError):
    """A flag or a value that cannot be."""

    exit_code = 2
    title = "Cannot do that"


class ModelFileError(LocalspecError):
    """A file that is not a usable GGUF language model."""

    title = "Not a usable model file"


class CatalogError(LocalspecError):
    """A model name that nothing resolves, or a `models.toml` that does not parse."""

    title = "Unknown model"


class DownloadError(LocalspecError):
    """The hub, the network or the disk stopped a download."""

    title = "Download failed"


class PairingError(LocalspecError):
    """Target and draft do not belong together."""

    title = "Target and draft do not match"


class OutOfMemoryError(LocalspecError):
    """Weights, caches and buffers do not fit into the memory that is free."""

    title = "Not enough memory"


class LoadError(LocalspecError):
    """llama.cpp refused a model or a context."""

    title = "Model could not be loaded"


class TemplateError(LocalspecError):
    """The chat template cannot be read or refuses these messages."""

    title = "Chat template failed"


class ContextFullError(LocalspecError):
    """The conversation does not fit into the context."""

    title = "Context full"


class DecodeError(LocalspecError):
    """llama.cpp failed while evaluating tokens."""

    title = "Evaluation failed"


class DrafterError(DecodeError):
    """A drafter of somebody's own failed. The message is the reason why nothing is drafted, without a full stop."""

    title = "Drafter failed"


class AbortedError(LocalspecError):
    """An evaluation was stopped half-way, because somebody asked for it. Not a failure: the engine catches it."""

    title = "Stopped"


class WorkerDiedError(LocalspecError):
    """The process that holds the models ended by itself."""

    title = "Engine stopped"
