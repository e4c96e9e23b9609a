"""What `localspec tune` is to try, from what was typed: lists of values, drafters, and how long to measure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from localspec.cli import output
from localspec.errors import UsageError
from localspec.options import KV_TYPES, OPTIONS

if TYPE_CHECKING:
    from localspec.launch import Launch
    from localspec.measure.tune_cells import Candidate
    from localspec.measure.tune_runs import Effort
    from localspec.measure.tune_sweeps import Knobs
    from localspec.settings import Settings

_UBATCHES = (128, 256, 512, 1024, 2048)
_NUMBERS: dict[str, type[Any]] = {
    "temperature": float,
    "top_p": float,
    "threads": int,
    "batch": int,
    "ubatch": int,
    "draft_threads": int,
}


def lists(**typed: str) -> dict[str, list[Any]]:
    """The values of settings for which several can be given, in the order in which they were typed.

    Args:
        typed: By setting, with commas between the values.

    Raises:
        UsageError: No numbers where there must be some.
    """
    return {
        name: _numbers(OPTIONS[name].flag, text, _NUMBERS[name]) if name in _NUMBERS else _words(name, text)
        for name, text in typed.items()
    }


def _words(name: str, text: str) -> list[str]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    return [word.lower() for word in words] if name in ("kv", "overlap") else words


def _numbers(flag: str, text: str, kind: type[Any]) -> list[Any]:
    try:
        return [kind(part) for part in text.replace(" ", ",").split(",") if part]
    except ValueError as error:
        raise UsageError(
            f"{flag} {text} is not allowed.",
            why="Allowed: numbers with commas between them.",
            hint="localspec tune --help",
        ) from error


def settings_of(flags: Mapping[str, Any], values: Mapping[str, list[Any]]) -> Settings:
    """The settings with the first value of each list.

    Args:
        flags: What was typed beside the lists.
        values: From `lists`.

    Raises:
        UsageError: Some value, the first one or another, is not allowed.
    """
    from localspec.settings import load_settings

    firsts = {**flags, **{name: several[0] for name, several in values.items() if several}}
    settings = load_settings(firsts)
    for name, several in values.items():
        for value in several[1:]:
            load_settings(firsts | {name: value})  # refuses what cannot be, in the same words
    return settings


def effort(quick: bool, tokens: int | None, repeats: int | None) -> Effort:
    """How much is measured; with other lengths of the answers their parts stay in proportion.

    Args:
        quick: A first impression is enough.
        tokens: Of each answer, None for the usual number.
        repeats: Of each prompt, None for the usual number.
    """
    from localspec.measure.tune_runs import QUICK, Effort

    wanted = QUICK if quick else Effort()
    if tokens is not None:
        skip, labels = (max(part * tokens // wanted.tokens, 1) for part in (wanted.skip, wanted.label_tokens))
        wanted = replace(wanted, tokens=tokens, skip=skip, label_tokens=labels)
    if repeats is not None:
        wanted = replace(wanted, repeats=repeats)
    return wanted


def candidates(launch: Launch, names: str) -> list[Candidate]:
    """The drafters to try; what is left out of those on this disk is said.

    Args:
        launch: Of the target, without a draft.
        names: With commas between them; empty for all that are on this disk, and lookup.

    Raises:
        LocalspecError: One that was named is nowhere or does not match.
    """
    from localspec.measure.tune_drafts import named, on_disk
    from localspec.models.catalog import load_catalog
    from localspec.settings import load_state

    catalog = load_catalog()
    assert launch.load is not None
    like = launch.load.draft
    if names.strip():
        wanted = [part for part in names.split(",") if part.strip()]
        return named(wanted, launch.target, catalog, like=like)
    found, notes = on_disk(launch.target, catalog, load_state(), like=like)
    for note in notes:
        output.say(note)
    return found


def knobs(values: Mapping[str, list[Any]], settings: Settings) -> Knobs:
    """The settings to try beside drafter and length.

    Args:
        values: From `lists`.
        settings: From `settings_of`.
    """
    from localspec.measure.tune_sweeps import Knobs
    from localspec.profiles import this_machine

    wanted = values["kv"] or [settings.kv, "f16", "q8_0"]
    types = [word for word in dict.fromkeys(wanted) if word in KV_TYPES]
    return Knobs(
        kv=tuple(types) if len(types) > 1 else (),
        flash_attn=("auto", "off"),
        split_mode=("layer", "row", "none") if len(this_machine().gpus) > 1 else (),
        threads=tuple(values["threads"] or _thread_counts()),
        batch=tuple(values["batch"]),
        temperatures=tuple(values["temperature"]),
        top_ps=tuple(values["top_p"]),
        ubatch=tuple(values["ubatch"]) or _UBATCHES,
        ubatch_on_cpu=len(values["ubatch"]) > 1,
        draft_device=tuple(values["draft_device"]),
        draft_threads=tuple(values["draft_threads"]),
        overlap=tuple(values["overlap"]) or ("on", "off"),
        overlap_anywhere=len(values["overlap"]) > 1,
    )


def _thread_counts() -> list[int]:
    """Half the cores, all of them, and all that the system shows; most CPUs are fastest near one of these."""
    from localspec.memory.cores import logical_cores, physical_cores

    physical = physical_cores()
    return sorted({max(physical // 2, 1), physical, logical_cores()})
