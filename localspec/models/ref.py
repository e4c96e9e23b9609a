"""A model that was named: what it is, where it can come from, and where it lies on this disk."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from localspec.models import demo, hubcache

Role = Literal["target", "draft"]


class Source(BaseModel):
    """One place where one quant of a model is published."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    repo: str = Field(pattern=r"^[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*$")
    """`owner/name` on the hub."""
    quant: str = Field(default="", pattern=r"^[^\x00-\x1f\x7f:\\]*$")
    """The quant word; or an exact file name (ends with `.gguf`); empty when the person named none."""
    files: tuple[str, ...] = ()
    """File names that it had or has, the likeliest first."""
    size_bytes: int | None = Field(default=None, gt=0)
    """Size of all files, as stated together with a hash or a revision."""
    approx_gb: float | None = Field(default=None, gt=0)
    """Size as people quote it, decimal gigabytes."""
    mtp: bool = False
    """The file carries a next-token-prediction block."""
    confirmed: bool = True
    """Repository and file name were seen together."""

    @property
    def size(self) -> int | None:
        """Bytes, exact or about; None when nothing is known."""
        if self.size_bytes is not None:
            return self.size_bytes
        return round(self.approx_gb * 1e9) if self.approx_gb is not None else None


@dataclass(frozen=True, slots=True)
class ModelRef:
    """A resolved name.

    `sources` are tried in order; the first one is where the model comes from unless it is gone.
    """

    id: str
    """What to show and to store: naming it again gives the same model."""
    kind: Literal["path", "hub", "demo"]
    role: Role
    family: str = ""
    """Id of the catalogue's family, empty when it is not known."""
    size: str = ""
    """`27b`, as in the catalogue."""
    sources: tuple[Source, ...] = ()
    location: Path | None = None
    """The file that a path names."""
    default_draft: str | None = None
    """The draft to take when none is named: an id of the catalogue, or `demo-draft`."""
    drafts: tuple[str, ...] = ()
    """All drafts on offer, the best first."""
    lookup_only_reason: str = ""
    """Why no draft model is taken by default, where there is none that pays."""
    thinking: Literal["", "none", "off", "on", "always"] = ""
    notes: tuple[str, ...] = ()

    @property
    def path(self) -> Path | None:
        """Where the model lies on this disk now (the first file of a split one), or None. Asks no network."""
        if self.kind == "path":
            return self.location if self.location is not None and self.location.is_file() else None
        if self.kind == "demo":
            target, draft = demo.paths()
            file = target if self.role == "target" else draft
            return file if file.is_file() else None
        for source in self.sources:
            found = hubcache.find(source.repo, quant=source.quant, candidates=source.files)
            if found is not None:
                return found
        return None

    @property
    def repo(self) -> str:
        """`owner/name`, or empty."""
        return self.sources[0].repo if self.sources else ""

    @property
    def quant(self) -> str:
        """The quant word, or empty."""
        return self.sources[0].quant if self.sources else ""

    @property
    def files(self) -> tuple[str, ...]:
        """Candidate file names of the first source."""
        return self.sources[0].files if self.sources else ()

    @property
    def size_bytes(self) -> int | None:
        """Bytes to expect, exact or about; None when nothing is known."""
        return self.sources[0].size if self.sources else None
