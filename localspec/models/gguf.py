"""What a GGUF file is, read from its header before any weight is loaded.

`read_header` follows shards, sees that the files are whole, and says what kind of thing it found. The parts:
`gguf_foreign` (files that are no GGUF), `gguf_parse` (the bytes), `gguf_shards` (several files),
`gguf_layout` (which layers remember what), `gguf_facts` (tables).
"""

from __future__ import annotations

import json
import string
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from localspec.errors import ModelFileError
from localspec.models import gguf_facts as facts
from localspec.models.gguf_foreign import check_regular, pull_hint
from localspec.models.gguf_layout import MAX_LAYERS, integer, per_layer, read_layout
from localspec.models.gguf_parse import LazyArray, RawHeader, TensorInfo
from localspec.models.gguf_shards import first_shard, read_shards
from localspec.models.listing import quant_word
from localspec.models.text import printable, shown

__all__ = ["Header", "LazyArray", "TensorInfo", "read_header"]

_KIND_WORDS = {
    "model": "a language model",
    "projector": "a vision or audio projector",
    "adapter": "a LoRA adapter",
    "vocabulary": "a vocabulary without weights",
    "embedding": "an embedding model",
    "encoder-decoder": "an encoder-decoder model",
    "diffusion": "a diffusion language model",
    "draft-head": "a draft head",
    "imatrix": "an importance matrix",
    "audio": "an audio model",
    "image": "an image model",
}
_KIND_WHY = {
    "projector": "localspec is text only: name the language model that it belongs to.",
    "adapter": "An adapter changes a model and cannot run alone: name the model itself.",
    "vocabulary": "It holds tokens only, and no layer.",
    "embedding": "It turns text into a vector and writes no text.",
    "encoder-decoder": "localspec drives decoder-only models.",
    "diffusion": "It does not write from left to right, so there is nothing to draft.",
    "draft-head": "It reads the hidden states of the target that it was trained for and cannot run alone.",
    "imatrix": "It is a by-product of quantisation.",
    "audio": "It writes sound, not text.",
    "image": "It makes pictures, not text.",
}
_ORDINARY = string.ascii_lowercase + "\n"


@dataclass(frozen=True, slots=True, repr=False)
class Header:
    """What the header of a model says; for a model in shards, all of them together."""

    path: Path
    """The first file, the one to give to llama.cpp."""
    files: tuple[Path, ...]
    """All shards, in order."""
    size_bytes: int
    kind: str
    """`model`, `projector`, `adapter`, `vocabulary`, `embedding`, `encoder-decoder`, `diffusion`,
    `draft-head`, `imatrix`, `audio` or `image`."""
    architecture: str
    name: str
    """`general.name`, else the file's name without its end."""
    quant: str
    """`Q4_K_M`, `F16`, ...; empty when nothing tells."""
    n_params: int
    n_ctx_train: int
    n_layer: int
    """Trunk layers; next-token blocks are in `n_nextn`."""
    n_embd: int
    n_head: tuple[int, ...]
    """Per trunk layer."""
    n_head_kv: tuple[int, ...]
    """Per trunk layer; 0 = the layer has no attention."""
    head_dim_k: int
    head_dim_v: int
    head_dim_k_sliding: int
    """Of the layers with a window, where it differs (gemma4)."""
    head_dim_v_sliding: int
    n_ff: int
    n_vocab: int
    sliding_window: int
    """Tokens; 0 = none."""
    full_attention_layers: int
    sliding_layers: int
    recurrent_layers: int
    n_nextn: int
    """Next-token-prediction blocks (MTP)."""
    n_expert: int
    n_expert_used: int
    tied_output: bool
    """The output matrix is the embedding."""
    chat_template: str | None
    tokenizer_model: str
    tokenizer_pre: str
    tensors: tuple[TensorInfo, ...] = field(default=())
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Keys and values; short arrays as tuples."""
    arrays: Mapping[str, LazyArray] = field(default_factory=dict)
    """Long arrays, and all of the vocabulary."""

    def __repr__(self) -> str:
        return f"<Header {shown(self.path)}: {self.kind}, {self.architecture}, {self.quant}>"

    @property
    def is_recurrent(self) -> bool:
        """No layer has attention."""
        return self.architecture in facts.RECURRENT or (
            self.recurrent_layers > 0 and self.full_attention_layers + self.sliding_layers == 0
        )

    @property
    def is_hybrid(self) -> bool:
        """Attention in some layers, a recurrent state in others."""
        return not self.is_recurrent and (self.architecture in facts.HYBRID or self.recurrent_layers > 0)

    @property
    def next_token_block(self) -> bool:
        """The file carries a next-token-prediction block that can be run as the model's own drafter.

        The metadata key alone is not enough: files exist that name a block and leave its tensors out.
        """
        return (
            self.architecture in facts.NEXT_TOKEN_ARCHITECTURES
            and self.n_nextn == 1
            and any(".nextn.eh_proj." in tensor.name for tensor in self.tensors)
        )

    @property
    def supports_rollback(self) -> bool:
        """Rejected tokens can be taken back out of the memory, as drafting needs it."""
        return not (self.is_recurrent or self.is_hybrid) or self.architecture in facts.CAN_ROLL_BACK

    @property
    def knows_thinking(self) -> bool:
        """The chat template asks for `enable_thinking`."""
        return "enable_thinking" in (self.chat_template or "")

    @property
    def has_tokenizer(self) -> bool:
        """The file carries a vocabulary that llama.cpp can use."""
        tokens = self.arrays.get("tokenizer.ggml.tokens")
        return self.tokenizer_model not in ("", "none", "no_vocab") and tokens is not None and tokens.is_text

    def require_model(self, role: Literal["target", "draft"]) -> None:
        """See that this can be loaded as a language model.

        Raises:
            ModelFileError: It is something else, or has no tokenizer, or one at which llama.cpp ends the process; the
            message names what it is.
        """
        name = shown(self.path)
        if self.kind != "model":
            raise ModelFileError(
                f"{name} is {_KIND_WORDS[self.kind]}, not a language model: it cannot be the {role}.",
                why=_KIND_WHY[self.kind],
                hint="localspec models",
            )
        if not self.has_tokenizer:
            raise ModelFileError(
                f"{name} has no tokenizer: it cannot be the {role}.",
                why="Without a vocabulary no text can go in or out.",
                hint="localspec models",
            )
        texts = self.arrays["tokenizer.ggml.tokens"].texts()
        twice = _same_text_twice(texts)
        if twice is not None:
            first, second, text = twice
            raise ModelFileError(
                f"The vocabulary of {name} is damaged: it cannot be the {role}.",
                why=f'Tokens {first} and {second} are both "{printable(text)}": llama.cpp loads no such file.',
                hint=pull_hint(self.path),
            )
        unreadable = _unreadable(texts) if role == "target" and self.tokenizer_model == "llama" else ""
        if unreadable:
            raise ModelFileError(
                f"The vocabulary of {name} cannot read ordinary text: it cannot be the {role}.",
                why=f"It has no token for {json.dumps(unreadable)} and none for the byte <0x{ord(unreadable):02X}>: "
                "llama.cpp ends the process where a prompt holds one.",
                hint=pull_hint(self.path),
            )


def _unreadable(texts: list[bytes]) -> str:
    """The first character that no prompt of a chat does without and an SPM vocabulary cannot read, if any.

    llama.cpp reads a character that is no token by its byte tokens, and takes for granted that they are there
    (`llama_vocab::byte_to_token`). A rarer one that is missing leaves a model usable: it is not asked for.
    """
    wanted = {b"<0x%02X>" % ord(character): character for character in _ORDINARY}
    found = wanted.keys() & set(texts)
    if len(found) == len(wanted):  # as in nearly every file
        return ""
    known = {as_llama_cpp_reads(text, token) for token, text in enumerate(texts)}
    return next((c for name, c in wanted.items() if name not in known and c.encode() not in known), "")


def _same_text_twice(texts: list[bytes]) -> tuple[int, int, bytes] | None:
    """Two ids whose texts llama.cpp cannot tell apart, with that text; its loader asserts that there are none."""
    different = set(texts)
    if len(different) == len(texts) and b"" not in different and b"\0" not in b"".join(texts):
        return None
    seen: dict[bytes, int] = {}
    for token, text in enumerate(texts):
        first = seen.setdefault(as_llama_cpp_reads(text, token), token)
        if first != token:
            return first, token, text
    return None


def as_llama_cpp_reads(text: bytes, token: int) -> bytes:
    """A token's text as llama.cpp takes it from a file: up to a zero byte, with a name for an empty one."""
    return text.split(b"\0", 1)[0] or b"[EMPTY_%d]" % token


def read_header(path: Path) -> Header:
    """Read what a GGUF file is, without loading it.

    Args:
        path: The file; of a model in shards any of them.

    Returns:
        The header, also of files that are no language model: ask `kind`, or call `require_model`.

    Raises:
        ModelFileError: The file is missing, no GGUF, cut off, damaged, or lacks shards.
    """
    path = Path(path)
    check_regular(path)
    return _header(read_shards(first_shard(path)))


def _header(raws: list[RawHeader]) -> Header:
    first = raws[0]
    path, metadata = first.path, first.metadata
    tensors = tuple(info._replace(shard=i) for i, raw in enumerate(raws) for info in raw.tensors)
    names = {info.name for info in tensors}
    architecture = _architecture(path, metadata)
    if integer(metadata, f"{architecture}.block_count") > MAX_LAYERS:
        raise ModelFileError(
            f"{shown(path)} is damaged.",
            why=f"It claims to have more than {MAX_LAYERS} layers.",
            hint=pull_hint(path),
        )
    layout = read_layout(metadata, architecture, names)
    arrays = {key: value for key, value in metadata.items() if isinstance(value, LazyArray)}
    n_embd = integer(metadata, f"{architecture}.embedding_length")
    n_head = per_layer(
        metadata, f"{architecture}.attention.head_count", layout.n_layer, (0,) * layout.n_layer
    )
    most_heads = max(n_head, default=0)
    head_dim = n_embd // most_heads if most_heads else 0
    stated = per_layer(metadata, f"{architecture}.attention.head_count_kv", layout.n_layer, n_head)
    head_dim_k = integer(metadata, f"{architecture}.attention.key_length", head_dim)
    head_dim_v = integer(metadata, f"{architecture}.attention.value_length", head_dim)
    return Header(
        path=path,
        files=tuple(raw.path for raw in raws),
        size_bytes=sum(raw.size_bytes for raw in raws),
        kind=_kind(architecture, metadata, names, layout.n_nextn),
        architecture=architecture,
        name=_text(metadata, "general.name") or path.name.removesuffix(".gguf"),
        quant=_quant(path, metadata, tensors),
        n_params=sum(info.n_values for info in tensors),
        n_ctx_train=integer(metadata, f"{architecture}.context_length"),
        n_layer=layout.n_layer,
        n_embd=n_embd,
        n_head=n_head,
        n_head_kv=tuple(count if has else 0 for count, has in zip(stated, layout.attention, strict=True)),
        head_dim_k=head_dim_k,
        head_dim_v=head_dim_v,
        head_dim_k_sliding=integer(metadata, f"{architecture}.attention.key_length_swa", head_dim_k),
        head_dim_v_sliding=integer(metadata, f"{architecture}.attention.value_length_swa", head_dim_v),
        n_ff=integer(metadata, f"{architecture}.feed_forward_length"),
        n_vocab=_n_vocab(architecture, metadata, arrays, tensors),
        sliding_window=layout.window,
        full_attention_layers=layout.full,
        sliding_layers=layout.sliding,
        recurrent_layers=layout.recurrent,
        n_nextn=layout.n_nextn,
        n_expert=integer(metadata, f"{architecture}.expert_count"),
        n_expert_used=integer(metadata, f"{architecture}.expert_used_count"),
        tied_output="output.weight" not in names,
        chat_template=_text(metadata, "tokenizer.chat_template") or None,
        tokenizer_model=_text(metadata, "tokenizer.ggml.model"),
        tokenizer_pre=_text(metadata, "tokenizer.ggml.pre"),
        tensors=tensors,
        metadata={key: value for key, value in metadata.items() if key not in arrays},
        arrays=arrays,
    )


def _text(metadata: Mapping[str, Any], key: str) -> str:
    value = metadata.get(key)
    return value if isinstance(value, str) else ""


def _architecture(path: Path, metadata: Mapping[str, Any]) -> str:
    architecture = _text(metadata, "general.architecture")
    if architecture or ("general.architecture" not in metadata and _says(metadata, "imatrix", "adapter")):
        return architecture
    raise ModelFileError(
        f"{shown(path)} does not say which architecture it has.",
        why="The key general.architecture is missing or empty, so the file is damaged or no model.",
        hint=pull_hint(path),
    )


def _says(metadata: Mapping[str, Any], *kinds: str) -> bool:
    """The file calls itself one of these, or has keys of theirs."""
    return _text(metadata, "general.type").lower() in kinds or any(
        key.startswith(f"{kind}.") for key in metadata for kind in kinds
    )


def _kind(architecture: str, metadata: Mapping[str, Any], names: set[str], n_nextn: int) -> str:
    if _says(metadata, "imatrix"):
        return "imatrix"
    if _says(metadata, "adapter"):
        return "adapter"
    if architecture in ("clip", "mmproj") or _says(metadata, "mmproj", "clip"):
        return "projector"
    known = {
        "embedding": facts.EMBEDDING,
        "encoder-decoder": facts.ENCODER_DECODER,
        "diffusion": facts.DIFFUSION,
        "draft-head": facts.DRAFT_HEADS,
        "audio": facts.AUDIO,
        "image": facts.IMAGE,
    }
    for kind, architectures in known.items():
        if architecture in architectures:
            return kind
    if not names:
        return "vocabulary"
    # A pooling type (1 mean ... 4 rank) is written by the converters of embedding and ranking models only.
    if integer(metadata, f"{architecture}.pooling_type"):
        return "embedding"
    if metadata.get(f"{architecture}.attention.causal") is False:
        return "embedding"
    headless = "token_embd.weight" not in names
    trunkless = n_nextn > 0 and not any(name.startswith("blk.0.") for name in names)
    return "draft-head" if headless or trunkless else "model"


def _n_vocab(
    architecture: str,
    metadata: Mapping[str, Any],
    arrays: Mapping[str, LazyArray],
    tensors: tuple[TensorInfo, ...],
) -> int:
    tokens = arrays.get("tokenizer.ggml.tokens")
    if tokens is not None:
        return len(tokens)
    size = integer(metadata, f"{architecture}.vocab_size")
    if size:
        return size
    return next((t.shape[1] for t in tensors if t.name == "token_embd.weight" and len(t.shape) == 2), 0)


def _quant(path: Path, metadata: Mapping[str, Any], tensors: tuple[TensorInfo, ...]) -> str:
    """The quant word: the file's own, else its name's, else the type that most bytes have."""
    sizes: Counter[str] = Counter()
    for info in tensors:
        sizes[info.type] += info.n_bytes
    main = sizes.most_common(1)[0][0] if sizes else ""
    file_type = integer(metadata, "general.file_type", -1)
    word = facts.FILE_TYPES.get(file_type & ~facts.GUESSED_FILE_TYPE, "") if file_type >= 0 else ""
    # Some converters leave "all F32" in files that they quantise later.
    if word and not (word == "F32" and main not in ("F32", "")):
        return word
    return quant_word(path.name).upper() or main
