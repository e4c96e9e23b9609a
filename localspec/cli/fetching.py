"""What is missing on this disk is offered for download, with its size."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from localspec.cli import output
from localspec.errors import LocalspecError

if TYPE_CHECKING:
    from localspec.launch import Launch
    from localspec.models.ref import ModelRef


def ready_to_launch(prepare: Callable[[], Launch], *, yes: bool) -> Launch:
    """Prepare, and download what is missing if that is wanted.

    Args:
        prepare: Decides what to load; called again after a download.
        yes: Download without asking.

    Raises:
        LocalspecError: Something is missing and was not wanted, or nobody could be asked.
    """
    launch = prepare()
    if not launch.missing:
        return launch
    _describe(launch)
    if not yes:
        _ask(launch)
    from localspec.cli.pull import fetch_all

    fetch_all(launch.missing)
    told, launch = launch.target.notes, prepare()
    if launch.missing:
        raise _missing(launch)
    return replace(launch, notes=tuple(note for note in launch.notes if note not in told))


def _describe(launch: Launch) -> None:
    width = max(len(ref.id) for ref in launch.missing)
    output.say("Not on this disk yet:")
    for ref in launch.missing:
        source = (
            "made here from the target"
            if ref.id == "demo-draft"
            else " ".join(filter(None, (ref.repo, ref.quant)))
        )
        output.say(f"  {ref.id:<{width}}  {_size(ref):>8}  {source}".rstrip())
    for sentence in launch.target.notes if launch.target.kind == "demo" else ():
        output.say(sentence)
    if launch.target.kind != "demo":
        output.say("A small pair to see how it works: localspec run demo")


def _size(ref: ModelRef) -> str:
    from localspec.models import demo

    if ref.kind != "demo":
        return output.size(ref.size_bytes)
    return output.size(demo.PACKAGE.size) if ref.role == "target" else ""


def _ask(launch: Launch) -> None:
    if not (output.is_terminal(sys.stdin) and output.is_terminal(sys.stderr)):
        raise _missing(launch)
    from localspec.models import demo

    sizes = [
        demo.PACKAGE.size if ref.kind == "demo" else ref.size_bytes
        for ref in launch.missing
        if ref.id != "demo-draft"
    ]
    total = sum(size for size in sizes if size is not None)
    about = f" {output.size(total)}" if total and None not in sizes else ""
    output.say(f"Download{about}? [Y/n] ", end="")
    reply = sys.stdin.readline()
    if not reply:  # Ctrl+D
        output.say()
    if not reply or reply.strip().lower() not in ("", "y", "yes"):
        raise _missing(launch)


def _missing(launch: Launch) -> LocalspecError:
    names = " and ".join(ref.id for ref in launch.missing if ref.id != "demo-draft")
    verb = "are" if " and " in names else "is"
    from localspec.models.text import shell_word

    hint = f"localspec pull {shell_word(launch.target.id)}"
    if launch.draft is not None and launch.target.kind != "demo":
        hint += f" --draft {shell_word(launch.draft.id)}"
    return LocalspecError(
        f"{names or 'The demo draft'} {verb} not on this disk.", why="Nothing was downloaded.", hint=hint
    )
