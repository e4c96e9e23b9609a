"""Does this draft belong to this target? One named check for each reason why not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from localspec.errors import ModelFileError, PairingError
from localspec.models.gguf import Header, read_header
from localspec.models.text import printable, shell_word, shown
from localspec.models.vocab import (
    FIRST_COMPARED_ID,
    MAX_SIZE_DIFFERENCE,
    Difference,
    Vocabulary,
    compare,
    extra_ids,
    read_vocabulary,
)

_SHOWN_TEXTS = 3
"""Differing tokens that a sentence spells out."""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at."""

    name: str
    ok: bool
    detail: str
    """What was found; where the check failed, the sentence that says why the pair cannot be."""
    can_force: bool = False
    """A failure that leaves the text right, since every token is verified: only acceptance suffers."""

    def to_json(self) -> dict[str, Any]:
        """The check as one object."""
        return {"name": self.name, "ok": self.ok, "detail": self.detail, "can_force": self.can_force}


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a draft belongs to a target, and everything that was found."""

    target: Header
    draft: Header
    checks: tuple[Check, ...]
    differences: tuple[Difference, ...]
    """Every difference of the vocabularies, also those that do not matter."""
    warnings: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """They belong together."""
        return all(check.ok for check in self.checks)

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why they do not belong together, one sentence each; empty when they do."""
        return tuple(check.detail for check in self.checks if not check.ok)

    @property
    def can_force(self) -> bool:
        """They differ only in what `--force-draft` may overrule."""
        return not self.ok and all(check.ok or check.can_force for check in self.checks)

    def to_json(self) -> dict[str, Any]:
        """The verdict as one object of plain values, with every difference."""
        return {
            "ok": self.ok,
            "can_force": self.can_force,
            "target": _about(self.target),
            "draft": _about(self.draft),
            "checks": [check.to_json() for check in self.checks],
            "reasons": list(self.reasons),
            "warnings": list(self.warnings),
            "differences": {
                "count": len(self.differences),
                "rules": [each.to_json() for each in self.differences if each.what != "text"],
                "texts": [each.to_json() for each in self.differences if each.what == "text"],
            },
        }

    def raise_if_bad(self) -> None:
        """Refuse the pair unless it is right.

        Raises:
            PairingError: With all reasons.
        """
        if self.ok:
            return
        why = " ".join(self.reasons)
        if self.can_force:
            why += " --force-draft uses it anyway: the text stays right, but little will be accepted."
        raise PairingError(
            f"{printable(self.draft.path.name)} cannot draft for {printable(self.target.path.name)}.",
            why=why,
            hint=f"localspec check {shell_word(self.target.path)} {shell_word(self.draft.path)}",
        )


def _about(header: Header) -> dict[str, Any]:
    return {
        "path": shown(header.path),
        "kind": header.kind,
        "name": printable(header.name),
        "architecture": printable(header.architecture),
        "quant": printable(header.quant),
        "size_bytes": header.size_bytes,
        "n_params": header.n_params,
        "n_vocab": header.n_vocab,
        "n_ctx_train": header.n_ctx_train,
        "tokenizer": printable(header.tokenizer_model),
        "tokenizer_pre": printable(header.tokenizer_pre),
    }


def check(target: Path, draft: Path) -> Verdict:
    """See whether a draft belongs to a target: kind, memory and vocabulary of both.

    Args:
        target: GGUF file of the target (any shard).
        draft: GGUF file of the draft.

    Returns:
        The verdict; `ok` is False when they cannot work together.

    Raises:
        ModelFileError: A file cannot be read as GGUF at all.
    """
    return check_headers(read_header(target), read_header(draft))


def check_headers(target: Header, draft: Header) -> Verdict:
    """As `check`, for headers that are read already."""
    checks = [_distinct(target, draft), _model(target, "target"), _model(draft, "draft")]
    if not all(found.ok for found in checks[1:]):
        return Verdict(target, draft, tuple(checks), (), ())
    checks += [_memory(target, "target"), _memory(draft, "draft")]
    ours, theirs = read_vocabulary(target), read_vocabulary(draft)
    differences = tuple(compare(ours, theirs))
    checks += _vocabulary_checks(ours, theirs, differences)
    return Verdict(target, draft, tuple(checks), differences, tuple(_warnings(target, draft)))


# --------------------------------------------------------------------- files and memory


def _distinct(target: Header, draft: Header) -> Check:
    try:
        same = target.path.samefile(draft.path)
    except OSError as error:
        raise ModelFileError(
            "A model file disappeared while it was checked.",
            why=f"{printable(str(error))}.",
            hint=f"ls -l {shell_word(target.path)} {shell_word(draft.path)}",
        ) from error
    if same:
        why = "Target and draft are the same file: such a draft costs as much as it could save."
        return Check("files", False, why, can_force=True)
    return Check("files", True, "two different files")


def _model(header: Header, role: Literal["target", "draft"]) -> Check:
    try:
        header.require_model(role)
    except ModelFileError as error:
        return Check(f"{role} kind", False, str(error))
    return Check(f"{role} kind", True, f"language model, {printable(header.architecture)}")


def _memory(header: Header, role: Literal["target", "draft"]) -> Check:
    name = f"{role} memory"
    if header.supports_rollback:
        if header.is_hybrid:
            return Check(name, True, "hybrid, rejected tokens can be taken back")
        return Check(name, True, "rejected tokens can be taken back")
    kind = "recurrent" if header.is_recurrent else "hybrid"
    return Check(
        name,
        False,
        f"The {role} ({printable(header.architecture)}) has a {kind} memory, out of which llama.cpp cannot "
        "take rejected tokens back: drafting would spoil the text.",
    )


def _warnings(target: Header, draft: Header) -> Iterator[str]:
    if draft.size_bytes >= target.size_bytes:
        yield (
            f"The draft ({_size(draft)}) is not smaller than the target ({_size(target)}): "
            "drafting will hardly pay."
        )
    if target.tokenizer_model == "gpt2" and not target.tokenizer_pre:
        yield (
            "The target's file names no pre-tokenizer, as old conversions do: llama.cpp splits text in another way "
            "than the model has learnt, so a newer GGUF of it would write better."
        )
    if 0 < draft.n_ctx_train < target.n_ctx_train:
        yield (
            f"The draft was trained for {draft.n_ctx_train:,} tokens, the target for {target.n_ctx_train:,}: "
            "beyond its own length the draft will guess badly."
        )


def _size(header: Header) -> str:
    return (
        f"{header.size_bytes / 1e9:.2f} GB"
        if header.size_bytes >= 1e9
        else f"{header.size_bytes / 1e6:.1f} MB"
    )


# --------------------------------------------------------------------------- vocabulary


def _vocabulary_checks(
    target: Vocabulary, draft: Vocabulary, differences: tuple[Difference, ...]
) -> Iterator[Check]:
    found = {each.what: each for each in differences if each.what != "text"}
    yield _simple(
        "tokenizer type",
        found.get("type"),
        f"both {target.type}",
        f"The tokenizers are of different types: {target.type} (target) and {draft.type} (draft).",
    )
    for mark, adds, ours, theirs in (
        ("BOS", target.add_bos, target.bos_id, draft.bos_id),
        ("EOS", target.add_eos, target.eos_id, draft.eos_id),
    ):
        what: Literal["bos", "eos"] = "bos" if mark == "BOS" else "eos"
        place = "at the start" if mark == "BOS" else "at the end"
        does, lacks = ("target", "draft") if adds else ("draft", "target")
        differs = found.get("add_bos" if what == "bos" else "add_eos")
        yield _simple(
            f"add {mark}",
            differs,
            f"both add {mark}" if adds else f"neither adds {mark}",
            f"The {does} adds {mark} {place} of a prompt, the {lacks} does not.",
        )
        if differs is not None:
            continue
        known = "no id" if ours is None else f"both {ours}"
        yield _simple(
            f"{mark} id",
            found.get(what),
            known if ours == theirs else f"{_id(ours)} and {_id(theirs)}, but neither adds it",
            f"The {mark} ids differ: {_id(ours)} (target) and {_id(theirs)} (draft).",
        )
    yield _sizes(target, draft)
    yield _texts(target, draft, differences)


def _id(token: int | None) -> str:
    return "none" if token is None else str(token)


def _simple(name: str, difference: Difference | None, fine: str, bad: str) -> Check:
    if difference is None or not difference.blocks:
        return Check(name, True, fine)
    return Check(name, False, bad, can_force=True)


def _sizes(target: Vocabulary, draft: Vocabulary) -> Check:
    apart = abs(target.size - draft.size)
    if apart == 0:
        return Check("vocabulary size", True, f"both {target.size:,}")
    extra, padding = extra_ids(target, draft)
    who = "target" if target.size > draft.size else "draft"
    if padding == extra:
        extras = f"the {extra:,} more of the {who} are padding only"
    elif padding:
        extras = f"of the {extra:,} more of the {who} {padding:,} are padding"
    else:
        extras = f"the {extra:,} more of the {who} are no padding"
    sizes = f"{target.size:,} (target) and {draft.size:,} (draft)"
    if apart <= MAX_SIZE_DIFFERENCE:
        return Check(
            "vocabulary size", True, f"{sizes}, {apart} apart ({MAX_SIZE_DIFFERENCE} allowed): {extras}"
        )
    return Check(
        "vocabulary size",
        False,
        f"The vocabularies are too different in size: {sizes}, {apart:,} apart where {MAX_SIZE_DIFFERENCE} "
        f"are allowed; {extras}.",
        can_force=True,
    )


def _texts(target: Vocabulary, draft: Vocabulary, differences: tuple[Difference, ...]) -> Check:
    shared = min(target.size, draft.size)
    texts = [each for each in differences if each.what == "text"]
    blocking = [each for each in texts if each.blocks]
    if not texts:
        return Check("token texts", True, f"all {shared:,} shared ids have the same text")
    if not blocking:
        ids = ", ".join(str(each.id) for each in texts)
        return Check(
            "token texts", True, f"only ids below {FIRST_COMPARED_ID} differ ({ids}), which do not count"
        )
    padding = sum(each.padding for each in blocking)
    kinds = ""
    if padding == len(blocking):
        kinds = ", all of them padding on one side"
    elif padding:
        kinds = f", {padding:,} of them padding on one side"
    examples = "; ".join(
        f'id {each.id}: "{each.target}" and "{each.draft}"' for each in blocking[:_SHOWN_TEXTS]
    )
    more = f"; and {len(blocking) - _SHOWN_TEXTS:,} more" if len(blocking) > _SHOWN_TEXTS else ""
    verb = "differs" if len(blocking) == 1 else "differ"
    return Check(
        "token texts",
        False,
        f"{len(blocking):,} of {shared:,} token texts {verb}{kinds} ({examples}{more}).",
        can_force=True,
    )
