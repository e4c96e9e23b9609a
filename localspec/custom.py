"""Drafters that a person writes: how one is named, and whether its module is there. Nobody's code is run here."""

from __future__ import annotations

import importlib.machinery
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from localspec.errors import UsageError
from localspec.models.listing import quant_word
from localspec.models.text import printable, shell_word

_NAME = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*:[^\W\d]\w*(?:\.[^\W\d]\w*)*")


def looks_custom(name: str) -> bool:
    r"""Whether a draft's name has the form `package.module:Class`.

    Files (`C:x.gguf`), repositories (with a slash) and quants behind a catalogue's name (`smollm2:q8_0`) have not.
    """
    if _NAME.fullmatch(name) is None or name.lower().endswith(".gguf") or Path(name).is_file():
        return False
    return not quant_word(name.partition(":")[2])


def check_module(name: str) -> None:
    """Refuse a drafter whose module is nowhere, before a model is loaded.

    Args:
        name: As `package.module:Class`.

    Raises:
        UsageError: There is no such module in the current folder or where Python looks.
    """
    path: Sequence[str] | None = None
    found = ""
    for part in name.partition(":")[0].split("."):
        found = f"{found}.{part}" if found else part
        try:
            spec = _find(found, path)
        except Exception:  # a finder wants the package above to be imported: the engine will see
            return
        if spec is None:
            raise no_module(found, str(Path.cwd()))
        path = list(spec.submodule_search_locations or ())


def no_module(module: str, folder: str) -> UsageError:
    """The error for a drafter whose module is nowhere."""
    return UsageError(
        f"There is no module {printable(module)}.",
        why=f"It was looked for in {printable(folder)} and where Python finds its packages.",
        hint=f"ls {shell_word(folder)}",
    )


def _find(module: str, path: Sequence[str] | None) -> importlib.machinery.ModuleSpec | None:
    """As an import would, but without running the packages on the way."""
    if path is None:
        here = importlib.machinery.PathFinder.find_spec(module, [str(Path.cwd())])
        if here is not None:
            return here
    for finder in sys.meta_path:
        find_spec = getattr(finder, "find_spec", None)
        spec = find_spec(module, path, None) if find_spec is not None else None
        if isinstance(spec, importlib.machinery.ModuleSpec):
            return spec
    return None
