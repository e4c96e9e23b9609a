"""`models.toml`: its form, and how it is read. Ours first, then the person's own on top of it."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from localspec.errors import CatalogError
from localspec.models.ref import Role, Source
from localspec.models.text import edit_command, printable, shell_word, shown

# Python 3.10 has no tomllib; tomli is the same under another name.
tomllib: Any = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")

Thinking = Literal["", "none", "off", "on", "always"]
Trait = Literal["hybrid", "moe", "vision", "sliding-window"]
Id = r"^[a-z0-9][a-z0-9.-]*$"
_TAKEN = ("demo", "demo-draft", "none", "lookup", "mtp")
"""Words that mean something else where a model is named."""
_LOOKS = {
    "repo": "it has to look like owner/name, as on the hub",
    "size": "it may only have small letters, digits, dots and hyphens",
    "quant": "it may have no colon and no backslash",
}


class CatalogFileError(CatalogError):
    """A `models.toml` that cannot be used."""

    title = "models.toml is not right"


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Family(_Entry):
    """What the models of one family share."""

    name: str
    match: tuple[str, ...] = ()
    """Words that a file or repository of this family has in its name."""
    drafts: tuple[str, ...] = ()
    licence: str = ""
    traits: tuple[Trait, ...] = ()
    thinking: Thinking = ""
    thinking_switch: str = ""
    notes: str = ""


class Model(_Entry):
    """One model. What is None is the family's."""

    family: str
    size: str = Field(pattern=r"^[a-z0-9][a-z0-9.-]*$")
    roles: tuple[Role, ...] = Field(default=("target",), min_length=1)
    sources: tuple[Source, ...] = Field(min_length=1)
    draft: str | None = None
    drafts: tuple[str, ...] | None = None
    lookup_only: str = ""
    licence: str | None = None
    traits: tuple[Trait, ...] | None = None
    thinking: Thinking | None = None
    thinking_switch: str | None = None
    notes: str = ""

    @model_validator(mode="after")
    def _one_way(self) -> Model:
        if self.draft is not None and self.lookup_only:
            raise ValueError("set `draft` or `lookup_only`, not both")
        if any(not source.quant for source in self.sources):
            raise ValueError("each source needs a `quant`")
        return self


class Pair(_Entry):
    """What was reported of a target with a draft."""

    target: str
    draft: str
    result: Literal["faster", "slower", "loads", "refused"]
    note: str = ""


class CatalogFile(_Entry):
    """The whole file."""

    families: dict[str, Family] = {}
    models: dict[str, Model] = {}
    pairs: tuple[Pair, ...] = ()

    def over(self, base: CatalogFile) -> CatalogFile:
        """This file's entries added to those of `base`, in their place where the ids are the same."""
        ours = {(pair.target, pair.draft) for pair in self.pairs}
        kept = tuple(pair for pair in base.pairs if (pair.target, pair.draft) not in ours)
        return CatalogFile(
            families={**base.families, **self.families},
            models={**base.models, **self.models},
            pairs=kept + self.pairs,
        )


def read_file(path: Path, base: CatalogFile | None = None) -> CatalogFile:
    """Read one `models.toml`.

    Args:
        path: The file.
        base: What it is put on top of.

    Returns:
        Its entries, on top of `base`.

    Raises:
        CatalogFileError: It cannot be read, is no TOML, or an entry is wrong; names file, line, entry and field.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
        parsed = CatalogFile.model_validate(tomllib.loads(text))
    except OSError as problem:
        raise CatalogFileError(
            f"{shown(path)} cannot be read.",
            why=f"The system says: {problem.strerror}.",
            hint=f"ls -l {shell_word(path)}",
        ) from problem
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
        raise CatalogFileError(
            f"{shown(path)} is no valid TOML.", why=f"{printable(str(problem))}.", hint=edit_command(path)
        ) from problem
    except RecursionError as problem:
        raise CatalogFileError(
            f"{shown(path)} cannot be read.", why="It is nested too deeply.", hint=edit_command(path)
        ) from problem
    except ValidationError as problem:
        raise _wrong_entry(path, text, problem) from problem
    catalog = parsed if base is None else parsed.over(base)
    _check_ids(path, text, parsed)
    _check_links(path, text, catalog, parsed)
    return catalog


def _wrong_entry(path: Path, text: str, problem: ValidationError) -> CatalogFileError:
    first = problem.errors()[0]
    where = [str(part) for part in first["loc"]]
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "extra_forbidden":
        message = "there is no such field"
    elif first["type"] == "string_pattern_mismatch":
        message = _LOOKS.get(where[-1], message)
    return _at(path, text, where, message[:1].lower() + message[1:])


def _check_ids(path: Path, text: str, own: CatalogFile) -> None:
    """Every id can be typed, and means nothing else."""
    for kind, ids in (("families", own.families), ("models", own.models)):
        for name in ids:
            if not re.fullmatch(Id, name):
                why = "an id may only have small letters, digits, dots and hyphens"
                raise _at(path, text, [kind, name], why)
            if name in _TAKEN:
                raise _at(path, text, [kind, name], f"the name {name} means something else already")


def _check_links(path: Path, text: str, catalog: CatalogFile, own: CatalogFile) -> None:
    """Every family and draft that an entry of this file names exists."""
    for name, family in own.families.items():
        for draft in family.drafts:
            if draft not in catalog.models:
                raise _at(path, text, ["families", name, "drafts"], f"there is no model {draft!r}")
    for name, model in own.models.items():
        if model.family not in catalog.families:
            raise _at(path, text, ["models", name, "family"], f"there is no family {model.family!r}")
        for draft in ([model.draft] if model.draft else []) + list(model.drafts or ()):
            field = "draft" if draft == model.draft else "drafts"
            if draft not in catalog.models:
                raise _at(path, text, ["models", name, field], f"there is no model {draft!r}")
            if draft == name:
                raise _at(path, text, ["models", name, field], "a model cannot draft for itself")
    for index, pair in enumerate(own.pairs):
        for field, name in (("target", pair.target), ("draft", pair.draft)):
            if name not in catalog.models:
                raise _at(path, text, ["pairs", str(index), field], f"there is no model {name!r}")


def _at(path: Path, text: str, where: list[str], message: str) -> CatalogFileError:
    line = _line(text, where)
    entry = ".".join(where[:2]) if len(where) > 1 else (where[0] if where else "file")
    field = ".".join(where[2:])
    return CatalogFileError(
        f"{shown(path)}{f', line {line}' if line else ''}: entry {printable(entry)} is wrong.",
        why=f"{printable(f'{field}: ' if field else '')}{printable(message)}.",
        hint=edit_command(path),
    )


def _line(text: str, where: list[str]) -> int:
    """The line of an entry's field, else of its heading; 0 when it is written in another way."""
    lines = text.splitlines()
    if len(where) < 2:
        return next((n for n, line in enumerate(lines, 1) if where and where[0] in line), 0)
    kind, name = where[0], where[1]
    if kind == "pairs":
        headings: tuple[str, ...] = ()
        starts = [n for n, line in enumerate(lines, 1) if line.strip().startswith("[[pairs]]")]
        start = starts[int(name)] if name.isdigit() and int(name) < len(starts) else 0
    else:
        headings = (f'[{kind}."{name}"]', f"[{kind}.'{name}']", f"[{kind}.{name}]")
        start = next((n for n, line in enumerate(lines, 1) if line.strip().startswith(headings)), 0)
    if not start or len(where) < 3:
        return start
    field = where[2]
    if len(where) > 4 and where[3].isdigit():  # one table of a list: `[[models.x.sources]]`
        headings = tuple(f"[{heading[:-1]}.{field}]]" for heading in headings)
        tables = [n for n, line in enumerate(lines, 1) if line.strip().startswith(headings)]
        if int(where[3]) < len(tables):
            start, field = tables[int(where[3])], where[4]
    for number, line in enumerate(lines[start:], start + 1):
        if line.startswith("["):
            break
        if re.match(rf"\s*{re.escape(field)}\s*=", line):
            return number
    return start


def family_value(catalog: CatalogFile, model: Model, field: str) -> Any:
    """A field of a model, from its family where the model does not set it."""
    own = getattr(model, field)
    return own if own is not None else getattr(catalog.families[model.family], field)


def draft_ids(catalog: CatalogFile, name: str) -> tuple[str, ...]:
    """The drafts on offer for a target, its default first; none for what is a draft only."""
    model = catalog.models[name]
    if "target" not in model.roles:
        return ()
    offered: tuple[str, ...] = family_value(catalog, model, "drafts")
    first = (model.draft,) if model.draft else ()
    return first + tuple(draft for draft in offered if draft not in (*first, name))
