"""What a saved profile of the target (`localspec tune`) changes about a launch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from localspec import profiles
from localspec.errors import LocalspecError, UsageError
from localspec.launch_names import NO_DRAFT, Choice, named_draft
from localspec.models.catalog import Catalog
from localspec.models.ref import ModelRef
from localspec.models.text import shell_word
from localspec.options import OPTIONS
from localspec.settings import Settings
from localspec.worker.protocol import DraftSpec

NO_PROFILE: Final = "none"
AUTO_PROFILE: Final = "auto"


@dataclass(frozen=True, slots=True)
class Tuned:
    """What a saved profile changes."""

    settings: Settings
    choice: Choice | None = None
    """Its drafter, where nobody named one."""
    notes: tuple[str, ...] = ()
    profile: str = ""
    """Its name, where something comes from it."""


def with_profile(
    name: str, target: ModelRef, asked: str | None, settings: Settings, catalog: Catalog
) -> Tuned:
    """The settings with those of the profile.

    Args:
        name: A profile, `auto` for the newest one of the target, or `none`.
        target: The target.
        asked: The draft that was asked for, None for none.
        settings: Those without a profile.
        catalog: Resolves names.

    Raises:
        CatalogError: A name that nothing resolves.
        UsageError: There is no such profile, or it was made for another target.
    """
    if name == NO_PROFILE or target.path is None:
        return Tuned(settings)
    draft = ""
    if asked:
        named = named_draft(asked, target, catalog)
        draft = named.ref.id if named.ref is not None else named.spec.code or named.spec.kind
    if name != AUTO_PROFILE:
        found, problem = profiles.load_profile(name), ""
        if not found.is_of(target.id, target.path):
            raise UsageError(
                f"The profile {name} was made for {found.target.id}.",
                hint=f"localspec tune {shell_word(target.id)}",
            )
    else:
        maybe, problem = profiles.newest_for(target.id, target.path, draft)
        if maybe is None and draft:
            maybe, problem = profiles.newest_for(target.id, target.path)
        if maybe is None:
            return Tuned(settings, notes=(problem,) if problem else ())
        found = maybe
    if settings.lookup and not asked and found.draft_name == NO_DRAFT:
        note = f"The saved profile {found.name} is not used: it is one without a draft, and --lookup drafts."
        return Tuned(settings, notes=(note,))
    again = f"localspec tune {shell_word(target.id)}"
    reason = found.stale_reason(target.path)
    if reason:
        note = f"The saved profile {found.name} is not used: {reason}. Measure again: {again}"
        return Tuned(settings, notes=(note,))
    try:
        made, fields = profiles.apply(found, settings, draft)
        choice = None if asked else _profiled_draft(found, target, catalog)
    except LocalspecError as error:
        note = f"The saved profile {found.name} is not used: {error} Measure again: {again}"
        return Tuned(settings, notes=(note,))
    notes = _profile_note(found, fields, settings)
    return Tuned(made, choice, (*notes, problem) if problem else notes, found.name if fields else "")


def _profiled_draft(found: profiles.Profile, target: ModelRef, catalog: Catalog) -> Choice:
    if found.draft_name == NO_DRAFT:
        return Choice(DraftSpec(NO_DRAFT, off_reason="no draft was the fastest when it was tuned"))
    return named_draft(found.draft_name, target, catalog)


def _profile_note(found: profiles.Profile, fields: tuple[str, ...], before: Settings) -> tuple[str, ...]:
    """What comes from the profile; nothing where it says what would be anyway."""
    used = [
        f"{OPTIONS[name].flag or name} {found.settings[name]}"
        for name in fields
        if name in ("draft", "n_draft") or found.settings[name] != getattr(before, name)
    ]
    if not used:
        return ()
    what = " ".join(used)
    return (f"Tuned on {found.when[:10]}: {what} (profile {found.name}; --profile none leaves it out).",)
