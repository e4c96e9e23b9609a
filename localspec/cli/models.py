"""`localspec models`: what the catalogue knows, and what of it is on this disk."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Annotated, Any

import typer

from localspec.cli import output
from localspec.errors import CatalogError

if TYPE_CHECKING:
    from localspec.models.catalog import Catalog
    from localspec.models.catalog_file import Model
    from localspec.models.ref import ModelRef, Source

_WIDTH = 80


def command(
    name: Annotated[
        str, typer.Argument(metavar="[NAME]", help="One family or model in full.", show_default=False)
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """List the catalogue's models, their drafts, what is on this disk."""
    from localspec.models.catalog import load_catalog

    catalog = load_catalog()
    rows = [(model, ref) for model, ref in catalog.refs() if _wanted(model, ref, name.lower())]
    if not rows:
        raise _unknown(catalog, name)
    if as_json:
        output.write_json({"models": [_json(catalog, model, ref) for model, ref in rows]})
    elif name:
        output.write("\n".join(_in_full(catalog, rows)) + "\n")
    else:
        output.write("\n".join(_table(catalog, rows)) + "\n")
    if catalog.problem is not None:
        raise catalog.problem


def _unknown(catalog: Catalog, name: str) -> CatalogError:
    try:
        found = catalog.resolve(name)
    except CatalogError as error:
        return error
    from localspec.models.text import printable, shell_word

    return CatalogError(
        f"{printable(found.id)} is no entry of the catalogue.", hint=f"localspec run {shell_word(found.id)}"
    )


def _wanted(model: Model, ref: ModelRef, name: str) -> bool:
    return not name or name in (ref.id, model.family)


def _table(catalog: Catalog, rows: list[tuple[Model, ModelRef]]) -> list[str]:
    from localspec import paths

    lines: list[str] = []
    family = ""
    for model, ref in rows:
        if model.family != family:
            family = model.family
            lines += ["", _heading(catalog, family)]
        mark = "●" if ref.path is not None else " "
        lines.append(
            f"{mark} {ref.id:<22} {_size(ref.sources[0]):>9}  {_draft(catalog, model, ref)}"[:_WIDTH]
        )
    lines += [
        "",
        "● on this disk. `localspec models NAME` shows one in full.",
        "Get a pair:  localspec pull qwen3.8-27b --draft 4b",
        f"Your own:    {output.printable(str(paths.user_models_file()))}",
    ]
    return lines[1:]


def _heading(catalog: Catalog, name: str) -> str:
    family = catalog.file.families[name]
    facts = [*family.traits, f"thinking {family.thinking}" if family.thinking else "", family.licence]
    return f"{family.name}  ({', '.join(filter(None, facts))})"[:_WIDTH]


def _draft(catalog: Catalog, model: Model, ref: ModelRef) -> str:
    if "target" not in model.roles:
        return "a draft"
    if ref.default_draft is None:
        return "no draft pays: --draft lookup" if ref.lookup_only_reason else "no draft"
    pair = catalog.pair(ref.id, ref.default_draft)
    return f"draft {ref.default_draft} ({pair.result if pair is not None else 'untested'})"


def _size(source: Source) -> str:
    if source.size is None:
        return "?"
    return output.size(source.size) if source.size_bytes is not None else f"~{output.size(source.size)}"


def _in_full(catalog: Catalog, rows: list[tuple[Model, ModelRef]]) -> list[str]:
    lines: list[str] = []
    for model, ref in rows:
        lines += [f"{ref.id}  ({model.family} {model.size}, {' or '.join(model.roles)})"]
        for source in model.sources:
            doubt = "" if source.confirmed else ", name not confirmed"
            extra = ", with a next-token-prediction block" if source.mtp else ""
            lines += textwrap.wrap(
                f"  {source.quant:<11} {_size(source):>9}  {source.repo}{extra}{doubt}",
                _WIDTH,
                subsequent_indent="      ",
                break_long_words=False,
                break_on_hyphens=False,
            )
        if ref.path is not None:
            lines.append(f"  on disk: {output.printable(str(ref.path))}")
        for text in (*ref.notes, ref.lookup_only_reason):
            lines += (
                textwrap.wrap(text, _WIDTH - 2, initial_indent="  ", subsequent_indent="  ") if text else []
            )
        for draft in ref.drafts:
            pair = catalog.pair(ref.id, draft)
            known = f"{pair.result}: {pair.note}" if pair is not None else "untested"
            first = " (default)" if draft == ref.default_draft else ""
            lines += textwrap.wrap(
                f"draft {draft}{first}: {known}", _WIDTH - 2, initial_indent="  ", subsequent_indent="    "
            )
        lines.append("")
    return lines[:-1]


def _json(catalog: Catalog, model: Model, ref: ModelRef) -> dict[str, Any]:
    from localspec.models.catalog_file import family_value

    pairs = {draft: pair for draft in ref.drafts if (pair := catalog.pair(ref.id, draft)) is not None}
    return {
        "id": ref.id,
        "family": model.family,
        "size": model.size,
        "roles": list(model.roles),
        "path": str(ref.path) if ref.path is not None else None,
        "default_draft": ref.default_draft,
        "lookup_only": ref.lookup_only_reason or None,
        "drafts": [
            {
                "id": draft,
                "reported": pairs[draft].result if draft in pairs else None,
                "note": pairs[draft].note if draft in pairs else None,
            }
            for draft in ref.drafts
        ],
        "sources": [source.model_dump() for source in model.sources],
        "licence": family_value(catalog.file, model, "licence"),
        "traits": list(family_value(catalog.file, model, "traits")),
        "thinking": family_value(catalog.file, model, "thinking"),
        "thinking_switch": family_value(catalog.file, model, "thinking_switch"),
        "notes": list(ref.notes),
    }
