"""What all tiny GGUF models of the tests share: their options, their vocabulary, the file and the draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Quant
from gguf import TokenType

UNK, BOS, EOS, FIRST_BYTE, FIRST_NAMED = 0, 1, 2, 3, 259
WORDS: tuple[str, ...] = (
    *("▁the", "▁a", "▁of", "▁and", "▁to", "▁in", "▁is", "▁it", "▁on", "▁cat", "▁dog", "▁sat", "▁mat", "▁ran"),
    *(
        "▁red",
        "▁blue",
        "▁one",
        "▁two",
        "▁three",
        "▁four",
        "▁five",
        "▁six",
        "ing",
        "ed",
        "er",
        "est",
        "ly",
        "un",
    ),
    *("re", "th", "he", "an", "▁def", "▁return", "▁for", "▁if", "()", "):", "==", "##", "▁"),
)
TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@dataclass
class Options:
    """Vocabulary and general metadata of a tiny model. None leaves a key out of the file."""

    n_vocab: int = 300
    """Number of tokens; what the named ones do not fill is `[PADn]` (unused)."""
    tokenizer: str = "llama"
    """`llama` (SentencePiece) or `gpt2` (byte-level BPE, the same visible tokens), or any other word."""
    tokenizer_pre: str | None = "default"
    words: Sequence[str] = WORDS
    """The named tokens from id 259 on. `▁` is a leading space."""
    edits: Mapping[int, str | bytes] = field(default_factory=dict)
    """Other texts for single ids."""
    control: Sequence[int] = ()
    """More ids of control tokens (besides BOS and EOS)."""
    add_bos: bool | None = True
    add_eos: bool | None = False
    add_space_prefix: bool | None = None
    bos_id: int | None = BOS
    eos_id: int | None = EOS
    chat_template: str | None = TEMPLATE
    n_ctx: int = 1024
    name: str | None = "tiny"
    general_type: str | None = "model"
    file_type: int | None = 0
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Further keys (str, bool, int, float or lists of these); they win over what a builder writes."""
    spread: float = 5.0
    """`random_*`: deviation of the logits. More means fewer near-ties and a more decided choice."""
    readable: bool = False
    """`random_*`: only the named tokens are ever chosen, so that the text can be read."""
    split_max_tensors: int = 0
    """Write shards of at most so many tensors: `path` becomes `...-00001-of-0000N.gguf`."""

    def tokens(self) -> list[str | bytes]:
        """The token texts, as the file stores them."""
        bpe = self.tokenizer == "gpt2"
        if bpe:
            raw = list(_gpt2_bytes().values())
            # A lone space is among the bytes already, and a vocabulary may not hold a text twice.
            named = ["ĠĠ" if word == "▁" else word.replace("▁", "Ġ") for word in self.words]
        else:
            raw = [f"<0x{byte:02X}>" for byte in range(256)]
            named = list(self.words)
        texts: list[str | bytes] = ["<unk>", "<s>", "</s>", *raw, *named]
        texts += [f"[PAD{i}]" for i in range(len(texts), self.n_vocab)]
        if len(texts) != self.n_vocab:
            raise ValueError(f"n_vocab={self.n_vocab} is less than the {len(texts)} tokens named")
        for token, text in self.edits.items():
            texts[token] = text
        return texts

    def id_of(self, text: str) -> int:
        """The id of a token by its text (`▁the`, `<0x0A>`)."""
        wanted = text.replace("▁", "Ġ") if self.tokenizer == "gpt2" else text
        return self.tokens().index(wanted)

    def token_types(self) -> list[int]:
        """The types, parallel to `tokens`."""
        kind = TokenType.NORMAL if self.tokenizer == "gpt2" else TokenType.BYTE
        types = [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL, *[kind] * 256]
        types += [TokenType.NORMAL] * len(self.words)
        types += [TokenType.UNUSED] * (self.n_vocab - len(types))
        for token in self.control:
            types[token] = TokenType.CONTROL
        return [int(t) for t in types]


def _gpt2_bytes() -> dict[int, str]:
    """The visible character that byte-level BPE writes for each byte."""
    visible = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in visible]
    table = {byte: chr(byte) for byte in visible} | {byte: chr(256 + i) for i, byte in enumerate(hidden)}
    return {byte: table[byte] for byte in range(256)}


class File:
    """One GGUF file being written."""

    def __init__(self, path: Path, arch: str, options: Options) -> None:
        self.path, self.options = path, options
        self.leave_out: tuple[str, ...] = ()
        """Beginnings of the names of tensors that are drawn, but not written."""
        self.writer = gguf.GGUFWriter(
            None, arch, split_max_tensors=options.split_max_tensors, small_first_shard=False
        )
        self.prefix = arch

    def key(self, name: str, value: Any) -> None:
        """A metadata key; `{arch}.` is put before a name that starts with a dot."""
        name = self.prefix + name if name.startswith(".") else name
        if name in self.options.metadata:
            return
        self._add(name, value)

    def _add(self, name: str, value: Any) -> None:
        if isinstance(value, bool):
            self.writer.add_bool(name, value)
        elif isinstance(value, int):
            self.writer.add_uint32(name, value)
        elif isinstance(value, float):
            self.writer.add_float32(name, value)
        elif isinstance(value, str):
            self.writer.add_string(name, value)
        else:
            self.writer.add_array(name, value)

    def tensor(self, name: str, data: np.ndarray, quant: str = "f32") -> None:
        """A tensor; shape (rows, columns) with columns contiguous, as numpy has it."""
        if name.startswith(self.leave_out):
            return
        data = np.ascontiguousarray(data, dtype=np.float32)
        if quant == "f32":
            self.writer.add_tensor(name, data)
            return
        kind = Quant[quant.upper()]
        self.writer.add_tensor(name, gguf.quants.quantize(data, kind), raw_dtype=kind)

    def close(self) -> Path:
        options = self.options
        if options.general_type is not None:
            self.key("general.type", options.general_type)
        if options.name is not None:
            self.key("general.name", options.name)
        if options.file_type is not None:
            self.key("general.file_type", options.file_type)
        self._vocabulary()
        for name, value in options.metadata.items():
            if name != "general.architecture":
                self._add(name, value)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # The writer insists on a suffix of its own for shards, so it gets the name at the end.
        self.writer.write_header_to_file(self.path)
        self.writer.write_kv_data_to_file()
        self.writer.write_tensors_to_file(progress=False)
        self.writer.close()
        if options.split_max_tensors:
            return sorted(self.path.parent.glob(f"{self.path.stem}-00001-of-*.gguf"))[0]
        return self.path

    def _vocabulary(self) -> None:
        options, writer = self.options, self.writer
        if options.tokenizer:
            self.key("tokenizer.ggml.model", options.tokenizer)
        if options.tokenizer in ("", "no_vocab", "none"):
            return
        if options.tokenizer_pre is not None:
            self.key("tokenizer.ggml.pre", options.tokenizer_pre)
        types = options.token_types()
        writer.add_token_list(options.tokens())
        writer.add_token_types(types)
        if options.tokenizer == "gpt2":
            # A few merges, so that the tokenizer has something to do; every part is itself a token.
            writer.add_token_merges(["t h", "h e", "a n", "e r"])
        else:
            writer.add_token_scores([-float(i) for i in range(len(types))])
        for name, value in (
            ("add_bos_token", options.add_bos),
            ("add_eos_token", options.add_eos),
            ("add_space_prefix", options.add_space_prefix),
            ("bos_token_id", options.bos_id),
            ("eos_token_id", options.eos_id),
        ):
            if value is not None:
                self.key(f"tokenizer.ggml.{name}", value)
        if options.tokenizer == "llama":
            self.key("tokenizer.ggml.unknown_token_id", UNK)
        if options.chat_template is not None:
            self.key("tokenizer.chat_template", options.chat_template)


@dataclass
class Weights:
    """Draws the random tensors of one file."""

    file: File
    seed: int
    scale: float

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)

    def matrix(self, name: str, rows: int, columns: int, gain: float = 1.0) -> None:
        """Gaussian, so that a normalised input of `columns` gives outputs of deviation `gain * scale`."""
        deviation = gain * self.scale / np.sqrt(columns)
        self.file.tensor(name, self.rng.normal(0, deviation, (rows, columns)))

    def vector(self, name: str, size: int, low: float = 0.5, high: float = 1.5) -> None:
        self.file.tensor(name, self.rng.uniform(low, high, size))

    def ends(self, n_embd: int, *, norm: str = "output_norm") -> None:
        """Embedding, last norm and output; special tokens never win."""
        options = self.file.options
        n_vocab = options.n_vocab
        self.file.tensor("token_embd.weight", self.rng.normal(0, 1, (n_vocab, n_embd)))
        self.vector(f"{norm}.weight", n_embd)
        output = self.rng.normal(0, options.spread / np.sqrt(n_embd), (n_vocab, n_embd))
        output[[UNK, BOS, EOS, *options.control]] = 0
        if options.readable:
            output[:FIRST_NAMED] = 0
            output[FIRST_NAMED + len(options.words) :] = 0
        self.file.tensor("output.weight", output)

    def attention(
        self, block: str, n_embd: int, heads: tuple[int, int], head: int, *, q_gain: int = 1
    ) -> None:
        n_head, n_head_kv = heads
        self.matrix(f"{block}.attn_q.weight", head * n_head * q_gain, n_embd, 2.0)
        self.matrix(f"{block}.attn_k.weight", head * n_head_kv, n_embd, 2.0)
        self.matrix(f"{block}.attn_v.weight", head * n_head_kv, n_embd)
        self.matrix(f"{block}.attn_output.weight", n_embd, head * n_head, 2.0)

    def feed_forward(self, block: str, n_embd: int, n_ff: int) -> None:
        self.matrix(f"{block}.ffn_gate.weight", n_ff, n_embd)
        self.matrix(f"{block}.ffn_up.weight", n_ff, n_embd)
        self.matrix(f"{block}.ffn_down.weight", n_embd, n_ff)


def start(path: Path, arch: str, seed: int, scale: float, options: Mapping[str, Any]) -> tuple[File, Weights]:
    file = File(Path(path), arch, Options(**options))
    return file, Weights(file, seed, scale)


def sizes(file: File, *, n_layer: int, n_embd: int, n_ff: int, heads: tuple[Any, Any], head: int) -> None:
    file.key(".context_length", file.options.n_ctx)
    file.key(".block_count", n_layer)
    file.key(".embedding_length", n_embd)
    file.key(".feed_forward_length", n_ff)
    file.key(".vocab_size", file.options.n_vocab)
    file.key(".attention.head_count", heads[0])
    file.key(".attention.head_count_kv", heads[1])
    file.key(".attention.layer_norm_rms_epsilon", 1e-5)
    if head:
        file.key(".attention.key_length", head)
        file.key(".attention.value_length", head)
        file.key(".rope.dimension_count", head)
