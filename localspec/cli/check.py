"""`localspec check`: does this draft belong to this target?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from localspec.cli import output
from localspec.errors import ModelFileError

if TYPE_CHECKING:
    from localspec.models.gguf import Header
    from localspec.models.pairing import Verdict

_SHOWN_DIFFERENCES = 10


def command(
    target: Annotated[str, typer.Argument(help="The big model: a .gguf file, a catalogue id or a hub repo.")],
    draft: Annotated[str, typer.Argument(help="The small model; a size word like 4b works too.")],
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object with every difference.")
    ] = False,
) -> int:
    """See whether a draft belongs to a target; no weight is loaded.

    Compares kind, memory and vocabulary. Exit code 0: they match. 1: they do not.
    """
    import gc

    from localspec.models import pairing

    # Unrelated vocabularies make a million small objects; looking for cycles there takes half of the time.
    gc.disable()
    try:
        verdict = pairing.check(*_locate(target, draft))
        if json:
            _write_json(verdict)
        else:
            output.write(_report(verdict))
    finally:
        gc.enable()
    return 0 if verdict.ok else 1


def _write_json(verdict: Verdict) -> None:
    import json

    output.write(json.dumps(verdict.to_json(), ensure_ascii=False) + "\n")


def _locate(target: str, draft: str) -> tuple[Path, Path]:
    """The files of both names. Paths are taken as they are, so that they work without any catalogue."""
    target_path, draft_path = _as_path(target), _as_path(draft)
    if target_path is not None and draft_path is not None:
        return target_path, draft_path

    from localspec.models.catalog import load_catalog

    catalog = load_catalog()
    target_ref = catalog.resolve(target, role="target", target=None)
    if target_path is None:
        target_path = _on_disk(target_ref.path, target, "target")
    if draft_path is None:
        draft_ref = catalog.resolve(draft, role="draft", target=target_ref)
        draft_path = _on_disk(draft_ref.path, draft_ref.id, "draft")
    return target_path, draft_path


def _as_path(name: str) -> Path | None:
    """The name as a path, where it can only be one or names a file; else it is for the catalogue."""
    try:
        path = Path(name).expanduser()
        is_file = path.is_file() and name.lower() not in ("demo", "demo-draft")
    except (OSError, RuntimeError, ValueError):  # too long, a user that does not exist, a zero byte
        return None
    # `owner/repo:file.gguf` is a name of the hub.
    ends_so = name.lower().endswith(".gguf") and ":" not in name
    return path if is_file or ends_so or path.is_absolute() or name.startswith((".", "~")) else None


def _on_disk(path: Path | None, name: str, role: Literal["target", "draft"]) -> Path:
    if path is None:
        from localspec.models.text import printable, shell_word

        raise ModelFileError(
            f"The {role} {printable(name)} is not on this disk.",
            why="The check reads files and downloads nothing.",
            hint=f"localspec pull {shell_word(name)}",
        )
    return path


def _report(verdict: Verdict) -> str:
    lines = [_about("target", verdict.target), _about("draft", verdict.draft), ""]
    width = max(len(check.name) for check in verdict.checks)
    for check in verdict.checks:
        lines.append(f"  {'ok  ' if check.ok else 'FAIL'}  {check.name:<{width}}  {check.detail}")
    lines += [f"  note  {warning}" for warning in verdict.warnings]
    texts = [each for each in verdict.differences if each.what == "text"]
    if texts:
        lines += ["", f"  {'id':>9}  target | draft"]
        for each in texts[:_SHOWN_DIFFERENCES]:
            mark = "" if each.blocks else "  (not compared)"
            lines.append(f'  {each.id:>9}  "{each.target}" | "{each.draft}"{mark}')
        if len(texts) > _SHOWN_DIFFERENCES:
            lines.append(f"  and {len(texts) - _SHOWN_DIFFERENCES:,} more: --json lists all")
    lines += ["", _conclusion(verdict)]
    return "\n".join(lines) + "\n"


def _about(role: str, header: Header) -> str:
    from localspec.models.text import printable, shown

    facts = [
        printable(header.architecture) or header.kind,
        printable(header.quant),
        f"{header.n_vocab:,} tokens" if header.n_vocab else "",
        output.size(header.size_bytes),
    ]
    return f"{role:<6}  {shown(header.path)}  ({', '.join(fact for fact in facts if fact)})"


def _conclusion(verdict: Verdict) -> str:
    if verdict.ok:
        return "They match."
    failed = sum(not check.ok for check in verdict.checks)
    line = f"They do not match: {failed} {'check' if failed == 1 else 'checks'} failed."
    if verdict.can_force:
        line += (
            " `localspec run --force-draft` uses the pair anyway: the text stays right, little is accepted."
        )
    return line
