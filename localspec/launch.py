"""From what was typed to what is loaded: names become files, a pair is checked, what is missing is named.

No network here, and no engine: only names, the catalogue and the files on this disk.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from localspec.errors import LocalspecError, PairingError, UsageError
from localspec.launch_names import (
    CUSTOM,
    DEMO,
    LOOKUP,
    MTP,
    NO_DRAFT,
    Choice,
    choose_draft,
    choose_target,
    gone_target,
)
from localspec.launch_profile import NO_PROFILE, with_profile
from localspec.models import gguf, pairing
from localspec.models.catalog import Catalog, load_catalog
from localspec.models.documents import read_documents
from localspec.models.ref import ModelRef
from localspec.models.text import shell_word
from localspec.options import OPTIONS
from localspec.settings import Settings, State, load_state, remember
from localspec.worker.protocol import DraftSpec, Load


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
    """What drafts: a `ModelRef.id`, `lookup`, `mtp`, `package.module:Class` or `none`."""
    remembered: str | None = None
    """What is remembered in place of `draft_name`: a draft that a saved profile chose is not the person's choice."""
    settings: Settings | None = None
    """The settings in use, with those of a saved profile; None while something is missing."""
    profile: str = ""
    """The saved profile that some of the settings come from; empty = none."""

    @property
    def target_name(self) -> str:
        """The target as it is typed in a command."""
        return self.target.id

    def remember(self) -> None:
        """Make this pair the one that `localspec run` takes next time. Call it when the pair was loaded."""
        remember(self.target.id, self.draft_name if self.remembered is None else self.remembered)


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

    Draft: the one named (`none`, `lookup`, `mtp` and `package.module:Class` too); else the last one with this target,
    else the target's own next-token block, else the catalogue's, if it is on disk and matches. Without one,
    `load.draft.off_reason` says why. Files to look up bring lookup into play where there is no draft.

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
    _refuse_empty(target=target, draft=draft)
    catalog = catalog or load_catalog()
    state = state or load_state()
    if template_file and not Path(template_file).is_file():
        raise UsageError(f"There is no template file {template_file}.", hint=f"ls -l {template_file}")
    asked = draft or settings.draft or None
    target_ref = choose_target(target, asked, settings, catalog, state)
    tuned = with_profile(profile, target_ref, asked, settings, catalog)
    settings = tuned.settings
    choice = tuned.choice or choose_draft(asked, target_ref, catalog, state)
    if settings.lookup:
        read_documents(settings.lookup_files)  # what cannot be looked up is refused before anything is loaded
        if choice.spec.kind == NO_DRAFT and not asked:
            choice = Choice(DraftSpec(LOOKUP), asked=False)
    missing = tuple(ref for ref in (target_ref, choice.ref) if ref is not None and ref.path is None)
    if missing:
        name = choice.ref.id if choice.ref is not None else choice.spec.code or choice.spec.kind
        return Launch(target_ref, choice.ref, missing, None, draft_name=name)
    launch = _assemble(target_ref, choice, settings, force_draft=force_draft, template_file=template_file)
    own = choice.spec.kind == CUSTOM  # nobody's code runs because it was named once
    remembered = state.drafts.get(target_ref.id, "") if tuned.choice is not None or own else None
    return replace(
        launch,
        notes=(*gone_target(target, target_ref, catalog, state), *launch.notes, *tuned.notes),
        remembered=remembered,
        settings=settings,
        profile=tuned.profile,
    )


def _refuse_empty(**names: str | None) -> None:
    """A shell variable that was never set does not mean the last model, or whatever else comes when nothing is said."""
    for setting, name in names.items():
        if name is not None and not name.strip():
            option = OPTIONS[setting]
            raise UsageError(
                f"{option.flag} is empty.", why=f"Allowed: {option.allowed}.", hint="localspec models"
            )


def _assemble(
    target: ModelRef, choice: Choice, settings: Settings, *, force_draft: bool, template_file: str
) -> Launch:
    assert target.path is not None
    header = gguf.read_header(target.path)
    header.require_model("target")
    spec, verdict, ref = choice.spec, None, choice.ref
    name: str = spec.code or spec.kind
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
            if settings.lookup:
                spec, name = DraftSpec(LOOKUP), LOOKUP
    _check_placement(settings)
    spec = replace(spec, force=force_draft)
    load = _command(target, spec, settings, template_file)
    notes = target.notes if target.kind == DEMO else ()
    unused = _unused_lookup(spec, load.auto) if settings.lookup else ""
    if unused:
        load, notes = replace(load, lookup_files=()), (*notes, unused)
    if verdict is not None and spec.kind == "model":
        # Reasons are left only where they were overruled with --force-draft.
        notes += (*verdict.warnings, *verdict.reasons)
    # A draft that was dropped unasked is tried again next time; only the person's own "none" is remembered.
    if name == NO_DRAFT and not choice.asked:
        name = ""
    return Launch(target, ref, (), load, verdict, notes, name)


def _command(target: ModelRef, spec: DraftSpec, settings: Settings, template_file: str) -> Load:
    """The command for the worker."""
    n_draft, auto = settings.draft_length
    return Load(
        target=str(target.path),
        draft=replace(
            spec,
            gpu_layers=settings.draft_gpu_layers,
            device=settings.draft_device,
            threads=settings.draft_threads,
            kv_type=settings.draft_kv,
            overlap=settings.overlap,
        ),
        n_draft=n_draft,
        auto=auto,
        n_ctx=settings.ctx,
        n_batch=settings.batch,
        n_ubatch=settings.ubatch,
        gpu_layers=settings.gpu_layers,
        kv_type=settings.kv,
        flash_attn=settings.flash_attn,
        split_mode=settings.split_mode,
        threads=settings.threads,
        template_file=str(Path(template_file).absolute()) if template_file else "",
        lookup_files=settings.lookup_files,
    )


def _check_placement(settings: Settings) -> None:
    device, layers = settings.draft_device, settings.draft_gpu_layers
    if device == "cpu" and layers > 0:
        raise UsageError(
            f"--draft-device cpu and --draft-gpu-layers {layers} exclude each other.",
            why="On the CPU the draft has no layers on a GPU.",
            hint="localspec run --draft-device cpu --draft-gpu-layers -1",
        )
    if device not in ("auto", "cpu") and layers == 0:
        raise UsageError(
            f"--draft-device {device} and --draft-gpu-layers 0 exclude each other.",
            why="No layer of the draft would be on that device.",
            hint=f"localspec run --draft-device {shell_word(device)} --draft-gpu-layers -1",
        )


def _unused_lookup(spec: DraftSpec, auto: bool) -> str:
    """Why files that were named for lookup are not searched; empty where they are."""
    if spec.kind == NO_DRAFT:
        return "--lookup is not used: --draft none drafts nothing."
    if spec.kind == CUSTOM:
        return "--lookup is not used: a drafter of your own drafts alone."
    if spec.kind in ("model", MTP) and not auto:
        return (
            "--lookup is not used: with a fixed draft length the draft model drafts every round. "
            "With --n-draft auto each round takes what promises more."
        )
    return ""


def _pair(
    target: Path, draft: Path, choice: Choice, *, force: bool
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
