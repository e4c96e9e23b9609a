"""Two vocabularies compared, by the rule that llama.cpp applies to a draft.

Same tokenizer type; both or neither add BOS, and then the same id; the same for EOS; sizes at most 128 apart;
the same text for every shared id from 5 on. llama.cpp stops at the first difference; here all are reported.

What a file leaves out gets the value that llama.cpp gives it (`llama_vocab::impl::load` in `llama-vocab.cpp`;
the rule itself is in `common/speculative.cpp`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from localspec.errors import ModelFileError
from localspec.models.gguf import Header, LazyArray, as_llama_cpp_reads
from localspec.models.text import printable, shown

MAX_SIZE_DIFFERENCE = 128
FIRST_COMPARED_ID = 5
_UNUSED = 5
"""Token type of ids that no text can become."""


class _Defaults(NamedTuple):
    """What llama.cpp assumes for a tokenizer."""

    type: str
    add_bos: bool
    add_eos: bool
    bos: int | None
    eos: int | None


_TOKENIZERS = {
    "llama": _Defaults("SPM", True, False, 1, 2),
    "gpt2": _Defaults("BPE", False, False, 11, 11),
    "hybriddna": _Defaults("BPE", False, False, 11, 11),
    "whitespace": _Defaults("BPE", False, False, 11, 11),
    "gemma4": _Defaults("BPE", True, False, None, None),
    "bert": _Defaults("WPM", True, False, 101, None),
    "t5": _Defaults("UGM", False, True, None, 1),
    "rwkv": _Defaults("RWKV", False, False, None, None),
    "plamo2": _Defaults("PLaMo2", False, False, 1, 2),
    "test": _Defaults("TEST", False, False, None, None),
}
# Pre-tokenizers of BPE models that change those assumptions.
_ADD_BOS = frozenset(
    {
        *("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"),
        *("jina-v5-nano", "tekken", "chameleon"),
    }
)
_ALWAYS_ADD_BOS = frozenset({"gemma4", "granite-embed-multi-311m"})
_NO_BOS = frozenset({"chatglm-bpe", "glm4", "glm5"})

_PADDING = re.compile(
    rb"\[PAD\d*\]|\[unused\d+\]|<unused_?\d+>|<pad_?\d+>|<\|?(?:extra|reserved|unused|dummy|placeholder)\w*\|?>"
    rb"|<\|(?:extra|reserved_special_token|dummy|placeholder)_\d+\|>",
    re.IGNORECASE,
)

What = Literal["type", "add_bos", "bos", "add_eos", "eos", "size", "text"]


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The tokens of a model and what is added around a prompt."""

    model: str
    """`tokenizer.ggml.model`."""
    type: str
    """llama.cpp's class of tokenizer: `SPM`, `BPE`, `WPM`, `UGM`, `RWKV`, ..."""
    size: int
    add_bos: bool
    add_eos: bool
    bos_id: int | None
    eos_id: int | None
    tokens: LazyArray
    token_types: LazyArray | None

    def texts(self) -> list[bytes]:
        """All token texts as the file has them, by id.

        Raises:
            ModelFileError: The file changed since its header was read.
        """
        return self.tokens.texts()


class Difference(NamedTuple):
    """One way in which two vocabularies differ."""

    what: What
    target: str
    """The target's value or token text, safe to print."""
    draft: str
    blocks: bool
    """llama.cpp refuses the pair for this."""
    id: int | None = None
    """The token whose texts differ."""
    padding: bool = False
    """One side holds a place only: `[PAD123]`, an unused token."""

    def to_json(self) -> dict[str, object]:
        """The difference as one object."""
        if self.what == "text":
            place: dict[str, object] = {"id": self.id, "target": self.target, "draft": self.draft}
            return {**place, "blocks": self.blocks, "padding": self.padding}
        return {"what": self.what, "target": self.target, "draft": self.draft, "blocks": self.blocks}


def read_vocabulary(header: Header) -> Vocabulary:
    """The vocabulary of a model.

    Args:
        header: Of a file that has a tokenizer (`Header.require_model`).

    Raises:
        ModelFileError: It has no vocabulary, or one of numbers.
    """
    tokens = header.arrays.get("tokenizer.ggml.tokens")
    if tokens is None or not tokens.is_text or not header.has_tokenizer:
        raise ModelFileError(f"{shown(header.path)} has no vocabulary.", hint="localspec models")
    # llama.cpp gives this tokenizer its own pre-tokenizer, whatever the file says.
    pre = "gemma4" if header.tokenizer_model == "gemma4" else header.tokenizer_pre
    known = _defaults(header.tokenizer_model, pre)
    always_bos = known.type == "BPE" and pre in _ALWAYS_ADD_BOS
    types = header.arrays.get("tokenizer.ggml.token_type")
    return Vocabulary(
        model=header.tokenizer_model,
        type=known.type,
        size=len(tokens),
        add_bos=always_bos or _flag(header, "add_bos_token", known.add_bos),
        add_eos=_flag(header, "add_eos_token", known.add_eos),
        bos_id=_special(header, "bos_token_id", known.bos, len(tokens)),
        eos_id=_special(header, "eos_token_id", known.eos, len(tokens)),
        tokens=tokens,
        token_types=types if types is not None and not types.is_text else None,
    )


def _defaults(model: str, pre: str) -> _Defaults:
    known = _TOKENIZERS.get(model, _Defaults(f"unknown ({printable(model)})", False, False, None, None))
    if known.type != "BPE":
        return known
    if pre in _ADD_BOS:
        return known._replace(add_bos=True)
    return known._replace(bos=None) if pre in _NO_BOS else known


def _flag(header: Header, key: str, default: bool) -> bool:
    value = header.metadata.get(f"tokenizer.ggml.{key}", default)
    return value if isinstance(value, bool) else default


def _special(header: Header, key: str, default: int | None, size: int) -> int | None:
    """The id of a special token; one outside the vocabulary counts as not stated."""
    value = header.metadata.get(f"tokenizer.ggml.{key}")
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < size:
        return value
    return default if default is not None and default < size else None


def compare(target: Vocabulary, draft: Vocabulary) -> list[Difference]:
    """Everything in which two vocabularies differ.

    Args:
        target: The target's vocabulary.
        draft: The draft's.

    Returns:
        The differences: type, BOS, EOS, size, then token texts by id. Those with `blocks` make llama.cpp
        refuse the pair; an empty list means that nothing differs.

    Raises:
        ModelFileError: A file changed since its header was read.
    """
    return [*_rules(target, draft), *_text_differences(target, draft)]


def _rules(target: Vocabulary, draft: Vocabulary) -> Iterator[Difference]:
    if target.type != draft.type:
        yield Difference("type", target.type, draft.type, blocks=True)
    both_bos = target.add_bos and draft.add_bos
    both_eos = target.add_eos and draft.add_eos
    if target.add_bos != draft.add_bos:
        yield Difference("add_bos", _yes(target.add_bos), _yes(draft.add_bos), blocks=True)
    if target.bos_id != draft.bos_id:
        yield Difference("bos", _number(target.bos_id), _number(draft.bos_id), blocks=both_bos)
    if target.add_eos != draft.add_eos:
        yield Difference("add_eos", _yes(target.add_eos), _yes(draft.add_eos), blocks=True)
    if target.eos_id != draft.eos_id:
        yield Difference("eos", _number(target.eos_id), _number(draft.eos_id), blocks=both_eos)
    if target.size != draft.size:
        too_far = abs(target.size - draft.size) > MAX_SIZE_DIFFERENCE
        yield Difference("size", f"{target.size:,}", f"{draft.size:,}", blocks=too_far)


def _yes(flag: bool) -> str:
    return "yes" if flag else "no"


def _number(token: int | None) -> str:
    return "none" if token is None else str(token)


def _text_differences(target: Vocabulary, draft: Vocabulary) -> list[Difference]:
    shorter, longer = sorted((target.tokens, draft.tokens), key=len)
    # Most pairs hold the very same bytes; then nothing has to be taken apart.
    if longer.raw().startswith(shorter.raw()):
        return []
    ours, theirs = target.texts(), draft.texts()
    different = [
        i
        for i, (a, b) in enumerate(zip(ours, theirs, strict=False))
        if a != b and as_llama_cpp_reads(a, i) != as_llama_cpp_reads(b, i)
    ]
    if not different:
        return []
    unused = _unused_ids(target) | _unused_ids(draft)
    padding = {i for i in different if i in unused or is_padding(ours[i]) or is_padding(theirs[i])}
    # By position: two unrelated vocabularies make 250,000 of these.
    return [
        Difference("text", printable(ours[i]), printable(theirs[i]), i >= FIRST_COMPARED_ID, i, i in padding)
        for i in different
    ]


def is_padding(text: bytes) -> bool:
    """The text is a name that only fills the vocabulary up (`[PAD123]`, `<unused7>`)."""
    return text[:1] in (b"[", b"<") and _PADDING.fullmatch(text) is not None


def _unused_ids(vocabulary: Vocabulary) -> frozenset[int]:
    if vocabulary.token_types is None:
        return frozenset()
    kinds = vocabulary.token_types.numbers()
    return frozenset(i for i, kind in enumerate(kinds[: vocabulary.size]) if kind == _UNUSED)


def extra_ids(target: Vocabulary, draft: Vocabulary) -> tuple[int, int]:
    """The ids that only the larger vocabulary has: how many, and how many of them are padding.

    Raises:
        ModelFileError: A file changed since its header was read.
    """
    shorter, longer = sorted((target, draft), key=lambda each: each.size)
    extra = range(shorter.size, longer.size)
    if not extra:
        return 0, 0
    texts, unused = longer.texts(), _unused_ids(longer)
    return len(extra), sum(i in unused or is_padding(texts[i]) for i in extra)
