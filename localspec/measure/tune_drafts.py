"""Which drafters tune tries: what is on this disk and belongs to the target, or what the person names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from localspec.custom import looks_custom
from localspec.errors import LocalspecError, UsageError
from localspec.measure.tune_cells import OFF, Candidate
from localspec.models import gguf, pairing
from localspec.models.catalog import Catalog
from localspec.models.ref import ModelRef
from localspec.models.text import printable, shell_word
from localspec.settings import State
from localspec.worker.protocol import DraftSpec

_MOST_NEIGHBOURS = 12
_LABEL = 28


def on_disk(
    target: ModelRef, catalog: Catalog, state: State, *, like: DraftSpec | None = None
) -> tuple[list[Candidate], list[str]]:
    """Everything that could draft for a target and needs no download.

    The catalogue's drafts in every quant, the last one used with the target, smaller files beside a target that was
    named by its path, the target's own next-token block, and lookup.

    Args:
        target: On this disk.
        catalog: Where names come from.
        state: What `run` remembers.
        like: Where and how each draft runs: layers, device, threads, cache type.

    Returns:
        The drafters, and a sentence about each that was found and does not match.
    """
    assert target.path is not None
    found: list[Candidate] = []
    notes: list[str] = []
    seen = {target.path.resolve()}
    for ref in _refs(target, catalog, state):
        path = ref.path
        if path is None or path.resolve() in seen:
            continue
        seen.add(path.resolve())
        try:
            pairing.check(target.path, path).raise_if_bad()
            found.append(_model(ref, path, like))
        except LocalspecError as error:
            notes.append(f"{_short(ref.id)} is left out: {error.message}")
    if gguf.read_header(target.path).next_token_block:
        found.append(_own_block(like))
    found.append(_lookup())
    return found, notes


def named(
    names: Sequence[str], target: ModelRef, catalog: Catalog, *, like: DraftSpec | None = None
) -> list[Candidate]:
    """The drafters that a person names. No draft is always tried, so naming it adds nothing. See `on_disk`.

    Raises:
        LocalspecError: A name that nothing resolves, or a draft that does not belong to the target.
        UsageError: A draft that is not on this disk.
    """
    assert target.path is not None
    found: dict[str, Candidate] = {}
    for name in names:
        word = name.strip().lower()
        if word == OFF:
            continue
        if word in ("lookup", "mtp"):
            found[word] = _lookup() if word == "lookup" else _own_block(like)
            continue
        if looks_custom(name.strip()) and not catalog.knows(name):
            raise UsageError(
                f"{printable(name.strip())} is not tried.",
                why="A profile would run that code in later chats unasked; bench measures it.",
                hint=f"localspec bench {shell_word(target.id)} --draft {shell_word(name.strip())}",
            )
        ref = catalog.resolve(name.strip(), role="draft", target=target)
        if ref.path is None:
            raise UsageError(
                f"{printable(ref.id)} is not on this disk.",
                why="Tune downloads no drafts.",
                hint=f"localspec pull {shell_word(target.id)} --draft {shell_word(ref.id)}",
            )
        if (
            gguf.read_header(ref.path).kind == "draft-head"
        ):  # a sidecar; the engine tells whether it can run it
            spec = _spec("mtp", ref.path, like)
            found[ref.id] = Candidate(ref.id, spec, _short(ref.id), gguf.read_header(ref.path).size_bytes)
            continue
        pairing.check(target.path, ref.path).raise_if_bad()
        found[ref.id] = _model(ref, ref.path, like)
    return list(found.values())


def _refs(target: ModelRef, catalog: Catalog, state: State) -> Iterator[ModelRef]:
    """Drafts by name and by place; some are not on this disk."""
    models = catalog.file.models
    family = [
        name for name, model in models.items() if model.family == target.family and "draft" in model.roles
    ]
    names = [*([target.default_draft] if target.default_draft else []), *target.drafts, *family]
    quants = [f"{name}:{source.quant}" for name in names if name in models for source in models[name].sources]
    remembered = state.drafts.get(target.id, "")
    for name in dict.fromkeys((*names, *quants, remembered)):
        if name in ("", OFF, "lookup", "mtp"):
            continue
        try:
            yield catalog.resolve(name, role="draft", target=target)
        except LocalspecError:
            continue  # its file or its entry is gone
    if target.kind == "path" and target.path is not None:
        for path in _neighbours(target.path):
            yield catalog.resolve(str(path), role="draft", target=target)


def _neighbours(target: Path) -> list[Path]:
    """Smaller models in the same folder, the largest of them last."""
    found: list[tuple[int, Path]] = []
    try:
        limit = gguf.read_header(target).size_bytes
        files = sorted(target.parent.glob("*.gguf"))
    except (LocalspecError, OSError):
        return []
    for path in files:
        try:
            header = gguf.read_header(path)
            header.require_model("draft")
        except (LocalspecError, OSError):
            continue
        if header.files[0] == path and header.size_bytes < limit:
            found.append((header.size_bytes, path))
    return [path for _, path in sorted(found)[:_MOST_NEIGHBOURS]]


def _spec(kind: Literal["model", "mtp"], path: Path, like: DraftSpec | None) -> DraftSpec:
    return replace(like or DraftSpec(), kind=kind, path=str(path), off_reason="")


def _model(ref: ModelRef, path: Path, like: DraftSpec | None) -> Candidate:
    size = gguf.read_header(path).size_bytes
    return Candidate(ref.id, _spec("model", path, like), _short(ref.id), size)


def _lookup() -> Candidate:
    return Candidate("lookup", DraftSpec("lookup"), "lookup")


def _own_block(like: DraftSpec | None) -> Candidate:
    """It runs where the target does."""
    like = like or DraftSpec()
    return Candidate("mtp", DraftSpec("mtp", threads=like.threads, kv_type=like.kv_type), "mtp")


def _short(name: str) -> str:
    """A name for tables: a path's file without folder and ending."""
    text = printable(Path(name).stem if name.lower().endswith(".gguf") else name)
    return text if len(text) <= _LABEL else f"…{text[1 - _LABEL :]}"
