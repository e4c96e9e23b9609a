"""From what was typed to what is loaded: names become files, a pair is checked, what is missing is named.

No network here, and no engine: only names, the catalogue and the files on this disk.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from localspec import profiles
from localspec.errors import CatalogError, LocalspecError, PairingError, UsageError
from localspec.models import gguf, pairing
from localspec.models.catalog import Catalog, load_catalog
from localspec.models.ref import ModelRef
from localspec.models.text import shell_word
from localspec.settings import Settings, State, load_state, remember
from localspec.worker.protocol import DraftSpec, Load

NO_DRAFT: Final = "none"
LOOKUP: Final = "lookup"
MTP: Final = "mtp"
DEMO: Final = "demo"
DEMO_N_DRAFT: Final = 4
NO_PROFILE: Final = "none"
AUTO_PROFILE: Final = "auto"


@dataclass(frozen=True, slots=True)
class Launch:
    """What `run` is about to load, or what it lacks."""

    target: ModelRef
    draft: ModelRef | None
    """The draft model, on disk or not; None for lookup, mtp and for no draft."""
    missing: tuple[ModelRef, ...]
    """Models that have to be downloaded first."""
    load: Load | None
    """The command for the worker; None while something is missing."""
    verdict: pairing.Verdict | None = None
    """The check of the pair; None without a draft model."""
    notes: tuple[str, ...] = ()
    """Sentences that the person should see once."""
    draft_name: str = field(default=NO_DRAFT)
    """What drafts: a `ModelRef.id`, `lookup`, `mtp` or `none`."""
    remembered: str | None = None
    """What is remembered in place of `draft_name`: a draft that a saved profile chose is not the person's choice."""
    settings: Settings | None = None
    """The settings in use, with those of a saved profile; None while something is missing."""

    @property
    def target_name(self) -> str:
        """The target as it is typed in a command."""
        return self.target.id

    def remember(self) -> None:
        """Make this pair the one that `localspec run` takes next time. Call it when the pair was loaded."""
        remember(self.target.id, self.draft_name if self.remembered is None else self.remembered)


@dataclass(frozen=True, slots=True)
class _Choice:
    """The drafter that was chosen, before files are looked at."""

    spec: DraftSpec
    ref: ModelRef | None = None
    asked: bool = True
    """Whether the person named it; what nobody asked for is left out when it is missing or does not match."""


def prepare(
    target: str | None,
    draft: str | None,
    settings: Settings,
    *,
    force_draft: bool = False,
    template_file: str = "",
    profile: str = NO_PROFILE,
    catalog: Catalog | None = None,
    state: State | None = None,
) -> Launch:
    """Decide what to load.

    Target: the one named; else the last one, where it is on disk; else the setting, where it is on disk; else the
    demo. With a draft named and no target, the demo steps back: the last target or the setting is meant.

    Draft: the one named (`none`, `lookup` and `mtp` too); else the last one with this target, else the target's own
    next-token block, else the catalogue's, if it is on disk and matches. Without one, `load.draft.off_reason` says why.

    With a saved profile of the target (`localspec tune`), what nobody named comes from it, and a note says so. One
    that does not fit any more is left out, and a note says why.

    Args:
        target: What was typed, None when nothing was.
        draft: What was typed after `--draft`, None when nothing was.
        settings: Everything else.
        force_draft: Take the draft although the vocabularies differ.
        template_file: A chat template in place of the model's own.
        profile: A name, `auto` for the newest one of the target, or `none`.
        catalog: The default is ours with the person's own.
        state: The default is what was remembered.

    Raises:
        CatalogError: A name that nothing resolves.
        ModelFileError: A file that cannot be used in its role.
        PairingError: The draft that was asked for does not belong to the target.
        UsageError: A template file or a pair that cannot be.
    """
    catalog = catalog or load_catalog()
    state = state or load_state()
    if template_file and not Path(template_file).is_file():
        raise UsageError(f"There is no template file {template_file}.", hint=f"ls -l {template_file}")
    asked = draft or settings.draft or None
    target_ref = _choose_target(target, asked, settings, catalog, state)
    tuned = _tuned(profile, target_ref, asked, settings, catalog)
    settings = tuned.settings
    choice = tuned.choice or _choose_draft(asked, target_ref, catalog, state)
    missing = tuple(ref for ref in (target_ref, choice.ref) if ref is not None and ref.path is None)
    if missing:
        name = choice.ref.id if choice.ref is not None else choice.spec.kind
        return Launch(target_ref, choice.ref, missing, None, draft_name=name)
    launch = _assemble(target_ref, choice, settings, force_draft=force_draft, template_file=template_file)
    remembered = state.drafts.get(target_ref.id, "") if tuned.choice is not None else None
    return replace(launch, notes=(*launch.notes, *tuned.notes), remembered=remembered, settings=settings)


def _assemble(
    target: ModelRef, choice: _Choice, settings: Settings, *, force_draft: bool, template_file: str
) -> Launch:
    assert target.path is not None
    header = gguf.read_header(target.path)
    header.require_model("target")
    spec, verdict, ref = choice.spec, None, choice.ref
    name: str = spec.kind
    if spec.kind == MTP and not header.next_token_block:
        raise PairingError(
            f"{target.path.name} carries no next-token block that can draft.",
            why="`mtp` is the target's own block; this file has none, or one that llama.cpp cannot run alone.",
            hint="localspec run --draft lookup",
        )
    if ref is not None:
        assert ref.path is not None
        spec, verdict = _pair(target.path, ref.path, choice, force=force_draft)
        name = ref.id
        if spec.kind == NO_DRAFT:
            ref, name = None, NO_DRAFT
    gpu_layers = settings.draft_gpu_layers
    n_draft, auto = settings.draft_length
    if target.kind == DEMO and "n_draft" not in settings.model_fields_set:
        n_draft, auto = (
            DEMO_N_DRAFT,
            False,
        )  # by price the demo would hardly draft, and it is there to show drafting
    load = Load(
        target=str(target.path),
        draft=DraftSpec(spec.kind, spec.path, gpu_layers, force_draft, spec.off_reason),
        n_draft=n_draft,
        auto=auto,
        n_ctx=settings.ctx,
        n_batch=settings.batch,
        gpu_layers=settings.gpu_layers,
        kv_type=settings.kv,
        flash_attn=settings.flash_attn,
        split_mode=settings.split_mode,
        threads=settings.threads,
        template_file=str(Path(template_file).absolute()) if template_file else "",
    )
    notes = target.notes if target.kind == DEMO else ()
    if verdict is not None and spec.kind == "model":
        # Reasons are left only where they were overruled with --force-draft.
        notes += (*verdict.warnings, *verdict.reasons)
    # A draft that was dropped unasked is tried again next time; only the person's own "none" is remembered.
    if name == NO_DRAFT and not choice.asked:
        name = ""
    return Launch(target, ref, (), load, verdict, notes, name)


# --------------------------------------------------------------------- profile


@dataclass(frozen=True, slots=True)
class _Tuned:
    """What a saved profile changes."""

    settings: Settings
    choice: _Choice | None = None
    """Its drafter, where nobody named one."""
    notes: tuple[str, ...] = ()


def _tuned(name: str, target: ModelRef, asked: str | None, settings: Settings, catalog: Catalog) -> _Tuned:
    """The settings with those of the profile."""
    if name == NO_PROFILE or target.path is None:
        return _Tuned(settings)
    draft = ""
    if asked:
        named = _named_draft(asked, target, catalog)
        draft = named.ref.id if named.ref is not None else named.spec.kind
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
            return _Tuned(settings, notes=(problem,) if problem else ())
        found = maybe
    again = f"localspec tune {shell_word(target.id)}"
    reason = found.stale_reason(target.path)
    if reason:
        note = f"The saved profile {found.name} is not used: {reason}. Measure again: {again}"
        return _Tuned(settings, notes=(note,))
    try:
        made, fields = profiles.apply(found, settings, draft)
        choice = None if asked else _profiled_draft(found, target, catalog)
    except LocalspecError as error:
        note = f"The saved profile {found.name} is not used: {error} Measure again: {again}"
        return _Tuned(settings, notes=(note,))
    notes = (_profile_note(found, fields, settings),) if fields else ()
    return _Tuned(made, choice, (*notes, problem) if problem else notes)


def _profiled_draft(found: profiles.Profile, target: ModelRef, catalog: Catalog) -> _Choice:
    if found.draft_name == NO_DRAFT:
        return _Choice(DraftSpec(NO_DRAFT, off_reason="no draft was the fastest when it was tuned"))
    return _named_draft(found.draft_name, target, catalog)


def _profile_note(found: profiles.Profile, fields: tuple[str, ...], before: Settings) -> str:
    words = {
        "draft": "--draft",
        "n_draft": "--n-draft",
        "kv": "--kv",
        "threads": "--threads",
        "batch": "batch",
    }
    used = [
        f"{words[name]} {found.settings[name]}"
        for name in fields
        if name in ("draft", "n_draft") or found.settings[name] != getattr(before, name)
    ]
    return (
        f"Tuned on {found.when[:10]}: {' '.join(used)} (profile {found.name}; --profile none leaves it out)."
    )


# ---------------------------------------------------------------------- target


def _choose_target(
    typed: str | None, draft: str | None, settings: Settings, catalog: Catalog, state: State
) -> ModelRef:
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


def _known(name: str, catalog: Catalog) -> ModelRef | None:
    """What was remembered, unless its name or file is gone."""
    if not name:
        return None
    try:
        return catalog.resolve(name, role="target", target=None)
    except LocalspecError:
        return None


def _has_draft(draft: str, target: ModelRef, catalog: Catalog) -> bool:
    if draft in (NO_DRAFT, LOOKUP, MTP):
        return True
    try:
        catalog.resolve(draft, role="draft", target=target)
    except CatalogError:
        return False
    return True


# ----------------------------------------------------------------------- draft


def _choose_draft(asked: str | None, target: ModelRef, catalog: Catalog, state: State) -> _Choice:
    if asked:
        return _named_draft(asked, target, catalog)
    remembered = state.drafts.get(target.id, "")
    if remembered:
        try:
            choice = _named_draft(remembered, target, catalog)
        except LocalspecError:
            choice = None  # its file or its entry is gone
        if choice is not None and (choice.ref is None or choice.ref.path is not None):
            return _Choice(choice.spec, choice.ref, asked=choice.spec.kind == NO_DRAFT)
    if _carries_block(target):
        return _Choice(DraftSpec(MTP), asked=False)
    if target.lookup_only_reason:
        return _Choice(DraftSpec(LOOKUP), asked=False)
    if not target.default_draft:
        return _off("no draft was asked for; --draft lookup needs no second model")
    ref = catalog.resolve(target.default_draft, role="draft", target=target)
    if ref.path is not None or target.path is None:
        # Both missing: they are offered together.
        return _Choice(DraftSpec("model"), ref, asked=False)
    return _off(f"{ref.id} is not on this disk; localspec pull {shell_word(target.id)} --draft {ref.id}")


def _carries_block(target: ModelRef) -> bool:
    if target.path is None:
        return False
    try:
        return gguf.read_header(target.path).next_token_block
    except LocalspecError:
        return False  # what is wrong with the file is said when it is opened


def _off(reason: str) -> _Choice:
    return _Choice(DraftSpec(NO_DRAFT, off_reason=reason), asked=False)


def _named_draft(name: str, target: ModelRef, catalog: Catalog) -> _Choice:
    if name.lower() == NO_DRAFT:
        return _Choice(DraftSpec(NO_DRAFT, off_reason="switched off with --draft none"))
    if name.lower() == LOOKUP:
        return _Choice(DraftSpec(LOOKUP))
    if name.lower() == MTP:
        return _Choice(DraftSpec(MTP))
    return _Choice(DraftSpec("model"), catalog.resolve(name, role="draft", target=target))


def _pair(
    target: Path, draft: Path, choice: _Choice, *, force: bool
) -> tuple[DraftSpec, pairing.Verdict | None]:
    """The drafter after the check: the model, or none with the reason where nobody asked for it."""
    if gguf.read_header(draft).kind == "draft-head":
        return DraftSpec(MTP, str(draft)), None  # a sidecar; the engine tells whether it can run it
    try:
        verdict = pairing.check(target, draft)
    except LocalspecError as error:
        if choice.asked:
            raise
        return DraftSpec(NO_DRAFT, off_reason=error.message.rstrip(".")), None
    if not verdict.ok and not (force and verdict.can_force):
        if choice.asked:
            verdict.raise_if_bad()
        reason = f"{draft.name} does not match: {verdict.reasons[0].rstrip('.')}"
        return DraftSpec(NO_DRAFT, off_reason=reason), verdict
    return DraftSpec("model", str(draft)), verdict
