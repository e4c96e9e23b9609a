"""Which target and which drafter are meant: by what was typed, remembered or set, and by the catalogue."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from localspec import custom
from localspec.errors import CatalogError, LocalspecError
from localspec.models import gguf
from localspec.models.catalog import Catalog
from localspec.models.ref import ModelRef
from localspec.models.text import printable, shell_word
from localspec.settings import Settings, State
from localspec.worker.protocol import DraftSpec

NO_DRAFT: Final = "none"
LOOKUP: Final = "lookup"
MTP: Final = "mtp"
CUSTOM: Final = "custom"
DEMO: Final = "demo"


@dataclass(frozen=True, slots=True)
class Choice:
    """The drafter that was chosen, before files are looked at."""

    spec: DraftSpec
    ref: ModelRef | None = None
    asked: bool = True
    """Whether the person named it; what nobody asked for is left out when it is missing or does not match."""


# ---------------------------------------------------------------------- target


def choose_target(
    typed: str | None, draft: str | None, settings: Settings, catalog: Catalog, state: State
) -> ModelRef:
    """The target that is meant, on disk or not; the order is told in `localspec.launch.prepare`.

    Args:
        typed: What was typed, None when nothing was.
        draft: The draft that was asked for, None for none.
        settings: Where the standing wish is.
        catalog: Resolves names.
        state: What was remembered.

    Raises:
        CatalogError: A name that nothing resolves.
    """
    if typed:
        return catalog.resolve(typed, role="target", target=None)
    last = _known(state.target, catalog)
    default = catalog.resolve(settings.target, role="target", target=None)
    if draft:
        # `--draft 4b` after the demo means the default target: the demo's family has no such draft.
        on_disk = [ref for ref in (last, default) if ref is not None and ref.path is not None]
        named = [*on_disk, *([last] if last is not None else []), default]
        return next((ref for ref in named if _has_draft(draft, ref, catalog)), default)
    for ref in (last, default):
        if ref is not None and ref.path is not None:
            return ref
    if "target" in settings.model_fields_set:
        return default
    return catalog.resolve(DEMO, role="target", target=None)


def gone_target(typed: str | None, chosen: ModelRef, catalog: Catalog, state: State) -> tuple[str, ...]:
    """The sentence about a last target that another one was taken for, because its file is gone; else nothing."""
    if typed or not state.target or chosen.id == state.target:
        return ()
    last = _known(state.target, catalog)
    if last is not None and last.path is not None:
        return ()
    return (
        f"The last target ({printable(state.target)}) is not on this disk any more; this is {chosen.id}.",
    )


def _known(name: str, catalog: Catalog) -> ModelRef | None:
    """What was remembered, unless its name or file is gone."""
    if not name:
        return None
    try:
        return catalog.resolve(name, role="target", target=None)
    except LocalspecError:
        return None


def _has_draft(draft: str, target: ModelRef, catalog: Catalog) -> bool:
    if draft in (NO_DRAFT, LOOKUP, MTP) or _is_custom(draft, catalog):
        return True
    try:
        catalog.resolve(draft, role="draft", target=target)
    except CatalogError:
        return False
    return True


# ----------------------------------------------------------------------- draft


def choose_draft(asked: str | None, target: ModelRef, catalog: Catalog, state: State) -> Choice:
    """The drafter that is meant, on disk or not; the order is told in `localspec.launch.prepare`.

    Args:
        asked: What was asked for, None for none.
        target: The target.
        catalog: Resolves names.
        state: What was remembered.

    Raises:
        CatalogError: A name that nothing resolves.
        UsageError: A drafter of somebody's own whose module is not there.
    """
    if asked:
        return named_draft(asked, target, catalog)
    remembered = state.drafts.get(target.id, "")
    if remembered:
        try:
            choice = named_draft(remembered, target, catalog)
        except LocalspecError:
            choice = None  # its file or its entry is gone
        if choice is not None and choice.spec.kind == NO_DRAFT:
            again = target.default_draft or LOOKUP
            reason = f"switched off the last time with --draft none; --draft {shell_word(again)} turns it on"
            return replace(choice, spec=DraftSpec(NO_DRAFT, off_reason=reason))
        if choice is not None and (choice.ref is None or choice.ref.path is not None):
            return replace(choice, asked=False)
    if _carries_block(target):
        return Choice(DraftSpec(MTP), asked=False)
    if target.lookup_only_reason:
        return Choice(DraftSpec(LOOKUP), asked=False)
    if not target.default_draft:
        return _off("no draft was asked for; --draft lookup needs no second model")
    ref = catalog.resolve(target.default_draft, role="draft", target=target)
    if ref.path is not None or target.path is None:
        # Both missing: they are offered together.
        return Choice(DraftSpec("model"), ref, asked=False)
    return _off(f"{ref.id} is not on this disk; localspec pull {shell_word(target.id)} --draft {ref.id}")


def _carries_block(target: ModelRef) -> bool:
    if target.path is None:
        return False
    try:
        return gguf.read_header(target.path).next_token_block
    except LocalspecError:
        return False  # what is wrong with the file is said when it is opened


def _off(reason: str) -> Choice:
    return Choice(DraftSpec(NO_DRAFT, off_reason=reason), asked=False)


def named_draft(name: str, target: ModelRef, catalog: Catalog) -> Choice:
    """The drafter of a name: `none`, `lookup`, `mtp`, `package.module:Class`, or a model.

    Raises:
        CatalogError: A name that nothing resolves.
        UsageError: A drafter of somebody's own whose module is not there.
    """
    if name.lower() == NO_DRAFT:
        return Choice(DraftSpec(NO_DRAFT, off_reason="switched off with --draft none"))
    if name.lower() == LOOKUP:
        return Choice(DraftSpec(LOOKUP))
    if name.lower() == MTP:
        return Choice(DraftSpec(MTP))
    if _is_custom(name, catalog):
        custom.check_module(name)
        return Choice(DraftSpec(CUSTOM, code=name, folder=str(Path.cwd())))
    return Choice(DraftSpec("model"), catalog.resolve(name, role="draft", target=target))


def _is_custom(name: str, catalog: Catalog) -> bool:
    """Whether a draft is meant as `package.module:Class`; what the catalogue knows goes first."""
    return custom.looks_custom(name) and not catalog.knows(name)
