"""Drafters that somebody else wrote, given as `package.module:Class`: found, made, and put behind a guard."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import inspect
import sys
from functools import partial
from typing import Any

from localspec.custom import no_module
from localspec.errors import UsageError
from localspec.llama.backend import LlamaDraftModel
from localspec.models.text import printable, shell_word
from localspec.spec.draft_guarded import GuardedDrafter
from localspec.spec.draft_stock import StockDrafter
from localspec.spec.drafter import Drafter
from localspec.spec.foreign import Foreign, Unusable

_MISSING = object()
_LOADING_S = 86_400.0  # a drafter may read weights; whoever waits can stop the load


def find(name: str, folder: str, foreign: Foreign) -> Any:
    """Import a drafter's module and take what the name means out of it.

    Args:
        name: `package.module:Class`.
        folder: Looked in first, as if Python had been started there.
        foreign: Runs the import.

    Raises:
        UsageError: There is no such module, it has no such name, or the name is nothing that could draft.
        DrafterError: Importing it failed.
        AbortedError: The load was stopped.
    """
    module_name, _, path = name.partition(":")
    module = foreign.run(lambda: _import(module_name, folder), patience_s=_LOADING_S)
    if isinstance(module, ModuleNotFoundError):
        raise no_module(str(module.name), folder)
    found, so_far = module, module_name
    for part in path.split("."):
        value, names = foreign.run(partial(_within, found, part))
        if value is _MISSING:
            near = difflib.get_close_matches(part, names, n=1)
            raise UsageError(
                f"{printable(so_far)} has no {printable(part)}.",
                why=f"Did you mean {printable(near[0])}?" if near else f"It was read from {_origin(module)}.",
                hint=f"localspec run --draft {shell_word(f'{module_name}:{near[0]}')}"
                if near and found is module
                else "localspec run --draft lookup",
            )
        found, so_far = value, f"{so_far}.{part}"
    if not callable(found):
        raise UsageError(
            f"{printable(name)} cannot draft: it is of type {type(found).__name__}.",
            why="A drafter is a class, a function that makes one, or an object that is called with token ids.",
            hint="localspec run --draft lookup",
        )
    return found


def build(found: Any, name: str, n_vocab: int, foreign: Foreign) -> Drafter:
    """The drafter that was found, ready for the engine.

    A class is made, and a function that can be called without arguments is called; anything else is the drafter itself.

    Args:
        found: What `find` gave.
        name: Shown on screen.
        n_vocab: Size of the target's vocabulary.
        foreign: Runs everything that is not ours.

    Raises:
        DrafterError: It cannot be made, or the result cannot be called.
        AbortedError: The load was stopped.
    """
    made = foreign.run(lambda: _make(found), patience_s=_LOADING_S)
    if isinstance(made, Drafter):
        return foreign.run(partial(GuardedDrafter, made, name, n_vocab, foreign))
    return StockDrafter(made, name, n_vocab, foreign)


def _import(module: str, folder: str) -> Any:
    """The module; the error where it is not there, which is another thing than an error inside it."""
    sys.path.insert(0, folder)
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{module}.".startswith(f"{error.name}."):
            return error
        raise
    finally:
        # For what it imports later; in front, its files could stand in for modules that others need.
        with contextlib.suppress(ValueError):  # the module may change the list itself
            sys.path.remove(folder)
        if folder not in sys.path:
            sys.path.append(folder)


def _within(found: Any, name: str) -> tuple[Any, list[str]]:
    """What a name means in there, and the names that are there when it means nothing."""
    value = getattr(found, name, _MISSING)
    return value, [other for other in dir(found) if not other.startswith("_")] if value is _MISSING else []


def _make(found: Any) -> Any:
    made = found() if inspect.isclass(found) or _takes_nothing(found) else found
    if not callable(made):
        raise Unusable(f"cannot be called with token ids: it is of type {type(made).__name__}")
    return made


def _takes_nothing(found: Any) -> bool:
    if isinstance(found, LlamaDraftModel):
        return False
    try:
        inspect.signature(found).bind()
    except (TypeError, ValueError):
        return False
    return True


def _origin(module: Any) -> str:
    return printable(str(getattr(module, "__file__", None) or "Python itself"))
