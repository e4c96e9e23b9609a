"""What headers say about whole files."""

from pathlib import Path

import pytest

from localspec.errors import ModelFileError
from localspec.models.gguf import read_header
from tests import gguf_files as files


def small(path: Path, arch: str = "llama", **options: object) -> Path:
    """A file with one tensor: enough to be a model."""
    tensors = options.pop("tensors", {"token_embd.weight": (4, 32), "blk.0.attn_k.weight": (4, 32)})
    return files.header_only(path, arch=arch, tensors=tensors, **options)


def test_llama_fields(tmp_path):
    path = files.random_llama(tmp_path / "tiny.gguf", n_layer=3, n_embd=64, n_ctx=777, name="My model")
    header = read_header(path)
    assert header.path == path
    assert header.files == (path,)
    assert header.size_bytes == path.stat().st_size
    assert (header.kind, header.architecture, header.name, header.quant) == (
        "model",
        "llama",
        "My model",
        "F32",
    )
    assert (header.n_layer, header.n_embd, header.n_ctx_train, header.n_vocab) == (3, 64, 777, 300)
    assert (header.n_head, header.n_head_kv) == ((4, 4, 4), (2, 2, 2))
    assert (header.head_dim_k, header.head_dim_v, header.n_ff) == (16, 16, 128)
    assert (header.full_attention_layers, header.sliding_layers, header.recurrent_layers) == (3, 0, 0)
    assert (header.tokenizer_model, header.tokenizer_pre) == ("llama", "default")
    assert header.chat_template == files.TEMPLATE
    assert not header.tied_output
    assert header.supports_rollback
    assert not header.is_hybrid
    assert not header.is_recurrent


def test_arrays_stay_in_the_file(tmp_path):
    header = read_header(files.random_llama(tmp_path / "a.gguf"))
    assert "tokenizer.ggml.tokens" not in header.metadata
    assert len(header.arrays["tokenizer.ggml.tokens"]) == 300
    assert header.arrays["tokenizer.ggml.tokens"].texts()[262] == "▁and".encode()
    assert header.arrays["tokenizer.ggml.scores"].numbers()[5] == -5.0
    with pytest.raises(ModelFileError, match="numbers where texts belong"):
        header.arrays["tokenizer.ggml.scores"].texts()
    with pytest.raises(ModelFileError, match="texts where numbers belong"):
        header.arrays["tokenizer.ggml.tokens"].numbers()


def test_a_file_that_changes_after_its_header_was_read(tmp_path):
    path = files.random_llama(tmp_path / "a.gguf")
    tokens = read_header(path).arrays["tokenizer.ggml.tokens"]
    path.write_bytes(path.read_bytes()[: tokens.end - 1])
    with pytest.raises(ModelFileError, match="changed while"):
        tokens.texts()
    path.write_bytes(b"\xff" * tokens.end)
    with pytest.raises(ModelFileError, match="changed while"):
        tokens.texts()
    path.unlink()
    with pytest.raises(ModelFileError, match="cannot be read any more"):
        tokens.raw()


@pytest.mark.parametrize(
    ("build", "layers", "memory"),
    [
        (files.random_llama, (2, 0, 0), (False, False, True)),
        (files.random_gemma3, (1, 5, 0), (False, False, True)),
        (files.random_qwen35, (1, 0, 3), (True, False, True)),
        (files.random_qwen3next, (1, 0, 3), (True, False, False)),
        (files.random_lfm2, (2, 0, 2), (True, False, True)),
        (files.random_mamba, (0, 0, 2), (False, True, False)),
    ],
)
def test_memory_of_architectures(tmp_path, build, layers, memory):
    header = read_header(build(tmp_path / "m.gguf"))
    assert (header.full_attention_layers, header.sliding_layers, header.recurrent_layers) == layers
    assert (header.is_hybrid, header.is_recurrent, header.supports_rollback) == memory


def test_window_is_named_only_when_layers_use_it(tmp_path):
    assert read_header(files.random_gemma3(tmp_path / "g.gguf", sliding_window=48)).sliding_window == 48
    path = files.random_llama(tmp_path / "l.gguf", metadata={"llama.attention.sliding_window": 48})
    assert read_header(path).sliding_window == 0


def test_next_token_blocks_are_no_layers(tmp_path):
    header = read_header(files.random_qwen35(tmp_path / "q.gguf", n_layer=4, n_nextn=1))
    assert (header.n_layer, header.n_nextn) == (4, 1)
    assert (header.full_attention_layers, header.recurrent_layers) == (1, 3)
    assert header.kind == "model"


@pytest.mark.parametrize(
    ("arch", "keys", "expected"),
    [
        # (full, sliding, recurrent, window) of 8 layers whose tensors say nothing
        ("gemma2", {}, (4, 4, 0, 4096)),
        ("gemma3", {"attention.sliding_window": 512}, (1, 7, 0, 512)),
        ("gemma3", {}, (8, 0, 0, 0)),
        ("gpt-oss", {"attention.sliding_window": 128}, (4, 4, 0, 128)),
        ("gemma3", {"attention.sliding_window": 9, "attention.sliding_window_pattern": 2}, (4, 4, 0, 9)),
        (
            "gemma4",
            {
                "attention.sliding_window": 7,
                "attention.sliding_window_pattern": [True, True, True, False] * 2,
            },
            (2, 6, 0, 7),
        ),
        ("smallthinker", {"attention.sliding_window": 4096}, (2, 6, 0, 4096)),
        ("phi3", {"attention.sliding_window": 2047}, (8, 0, 0, 0)),
        ("qwen2", {"attention.sliding_window": 2047}, (8, 0, 0, 0)),
        ("llama4", {"attention.sliding_window": 0}, (8, 0, 0, 0)),
        ("llama4", {}, (2, 6, 0, 8192)),
        ("qwen35", {}, (2, 0, 6, 0)),
        ("qwen35moe", {"full_attention_interval": 2}, (4, 0, 4, 0)),
        ("qwen35", {"nextn_predict_layers": 4}, (1, 0, 3, 0)),
        ("qwen35", {"attention.recurrent_layers": [True] * 5 + [False] * 3}, (3, 0, 5, 0)),
        ("jamba", {"attention.head_count_kv": [0, 0, 0, 8] * 2}, (2, 0, 6, 0)),
        ("granitehybrid", {"attention.head_count_kv": [0] * 7 + [4]}, (1, 0, 7, 0)),
        ("mamba2", {}, (0, 0, 8, 0)),
        ("rwkv7", {}, (0, 0, 8, 0)),
        ("llama", {}, (8, 0, 0, 0)),
    ],
)
def test_layout_from_metadata(tmp_path, arch, keys, expected):
    metadata = {f"{arch}.{key}": value for key, value in {"block_count": 8, **keys}.items()}
    header = read_header(
        small(tmp_path / "m.gguf", arch, metadata=metadata, tensors={"token_embd.weight": (4, 32)})
    )
    found = (
        header.full_attention_layers,
        header.sliding_layers,
        header.recurrent_layers,
        header.sliding_window,
    )
    assert found == expected


def test_layers_with_attention_and_state_count_twice_and_bare_ones_not_at_all(tmp_path):
    tensors = {
        "token_embd.weight": (4, 32),
        "blk.0.attn_k.weight": (4, 32),
        "blk.0.ssm_in.weight": (4, 32),
        "blk.1.ffn_up.weight": (4, 32),
    }
    path = small(tmp_path / "f.gguf", "falcon-h1", metadata={"falcon-h1.block_count": 2}, tensors=tensors)
    header = read_header(path)
    assert (header.full_attention_layers, header.recurrent_layers) == (1, 1)
    assert header.is_hybrid
    assert not header.supports_rollback


def test_linear_attention_has_key_projections_but_keeps_no_keys(tmp_path):
    """kimi-linear: both kinds of layer have `attn_k`; only the state tells them apart."""
    tensors = {"token_embd.weight": (4, 32), "blk.0.ssm_f_a.weight": (4, 32)}
    tensors |= {f"blk.{i}.attn_k.weight": (4, 32) for i in range(2)}
    keys = {"kimi-linear.block_count": 2, "kimi-linear.attention.head_count_kv": [0, 8]}
    header = read_header(small(tmp_path / "k.gguf", "kimi-linear", metadata=keys, tensors=tensors))
    assert (header.full_attention_layers, header.recurrent_layers) == (1, 1)
    assert header.n_head_kv == (0, 8)


def test_heads_of_layers_without_attention_are_none(tmp_path):
    """qwen35 states one number for all layers; only every fourth keeps keys."""
    assert read_header(files.random_qwen35(tmp_path / "q.gguf")).n_head_kv == (0, 0, 0, 2)
    assert read_header(files.random_mamba(tmp_path / "m.gguf")).n_head_kv == (0, 0)


def test_tensors_know_better_than_metadata(tmp_path):
    path = files.random_qwen35(tmp_path / "q.gguf", n_layer=6, full_attention_interval=3)
    data = path.read_bytes()
    interval = b"qwen35.full_attention_interval"
    at = data.index(interval) + len(interval) + 4
    path.write_bytes(data[:at] + (6).to_bytes(4, "little") + data[at + 4 :])
    header = read_header(path)
    assert header.metadata["qwen35.full_attention_interval"] == 6
    assert (header.full_attention_layers, header.recurrent_layers) == (2, 4)


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"arch": "clip"}, "projector"),
        ({"arch": "llama", "general_type": "mmproj"}, "projector"),
        ({"arch": "llama", "general_type": "adapter"}, "adapter"),
        ({"arch": "llama", "metadata": {"adapter.lora.alpha": 16.0}}, "adapter"),
        ({"arch": "llama", "tensors": {}}, "vocabulary"),
        ({"arch": "bert"}, "embedding"),
        ({"arch": "gemma-embedding"}, "embedding"),
        ({"arch": "qwen3", "metadata": {"qwen3.pooling_type": 3}}, "embedding"),
        ({"arch": "llama", "metadata": {"llama.attention.causal": False}}, "embedding"),
        ({"arch": "t5"}, "encoder-decoder"),
        ({"arch": "llada"}, "diffusion"),
        ({"arch": "sd3"}, "image"),
        ({"arch": "wavtokenizer-dec"}, "audio"),
        ({"arch": "eagle3"}, "draft-head"),
        ({"arch": "dflash"}, "draft-head"),
        ({"arch": "gemma4-assistant"}, "draft-head"),
        ({"arch": "llama", "tensors": {"blk.0.attn_k.weight": (4, 32)}}, "draft-head"),
        (
            {
                "arch": "qwen35",
                "metadata": {"qwen35.block_count": 5, "qwen35.nextn_predict_layers": 1},
                "tensors": {"token_embd.weight": (4, 32), "blk.4.nextn.eh_proj.weight": (4, 32)},
            },
            "draft-head",
        ),
        ({"arch": "llama", "general_type": "imatrix"}, "imatrix"),
        ({"arch": "llama", "metadata": {"imatrix.chunk_count": 5}}, "imatrix"),
    ],
)
@pytest.mark.parametrize("role", ["target", "draft"])
def test_what_is_no_language_model(tmp_path, options, kind, role):
    header = read_header(small(tmp_path / "x.gguf", **options))
    assert header.kind == kind
    with pytest.raises(ModelFileError, match=f"not a language model: it cannot be the {role}") as caught:
        header.require_model(role)
    assert caught.value.why


def test_a_newer_architecture_is_left_to_llama_cpp(tmp_path):
    header = read_header(small(tmp_path / "x.gguf", "localspec_future"))
    assert header.architecture == "localspec_future"
    header.require_model("target")


@pytest.mark.parametrize("tokenizer", ["no_vocab", "none", ""])
def test_without_tokenizer(tmp_path, tokenizer):
    header = read_header(files.random_llama(tmp_path / "x.gguf", tokenizer=tokenizer))
    assert header.kind == "model"
    assert not header.has_tokenizer
    with pytest.raises(ModelFileError, match="no tokenizer"):
        header.require_model("target")


def test_empty_architecture(tmp_path):
    path = files.header_only(tmp_path / "x.gguf", arch="", tensors={"token_embd.weight": (4, 32)})
    with pytest.raises(ModelFileError, match="which architecture"):
        read_header(path)


@pytest.mark.parametrize(
    ("file_type", "name", "expected"),
    [
        (15, "model.gguf", "Q4_K_M"),
        (1024 + 7, "model.gguf", "Q8_0"),
        (38, "model.gguf", "MXFP4"),
        (None, "Model-UD-Q4_K_XL.gguf", "UD-Q4_K_XL"),
        (None, "model-iq2_xxs.gguf", "IQ2_XXS"),
        (999, "model-Q5_K_S.gguf", "Q5_K_S"),
        (None, "model.gguf", "F32"),
        (0, "model.gguf", "F32"),
    ],
)
def test_quant_word(tmp_path, file_type, name, expected):
    assert read_header(files.random_llama(tmp_path / name, file_type=file_type)).quant == expected


def test_quant_of_a_file_that_calls_itself_unquantised(tmp_path):
    path = files.script_model(tmp_path / "x.gguf", {}, quant="q4_0")
    data = path.read_bytes()
    key = b"general.file_type"
    at = data.index(key) + len(key) + 4
    assert read_header(path).quant == "Q4_0"
    path.write_bytes(data[:at] + bytes(4) + data[at + 4 :])
    assert read_header(path).quant == "Q4_0"


def test_name_falls_back_to_the_file(tmp_path):
    assert read_header(files.random_llama(tmp_path / "some name.gguf", name=None)).name == "some name"


@pytest.mark.parametrize(
    ("template", "knows"), [("{{ enable_thinking }}", True), ("{{ x }}", False), (None, False)]
)
def test_thinking(tmp_path, template, knows):
    header = read_header(files.random_llama(tmp_path / "x.gguf", chat_template=template))
    assert header.knows_thinking is knows
    assert header.chat_template == template


def test_experts_and_tied_output(tmp_path):
    header = read_header(files.random_qwen3next(tmp_path / "x.gguf"))
    assert (header.n_expert, header.n_expert_used) == (4, 2)
    assert read_header(small(tmp_path / "y.gguf")).tied_output


def test_numbers_that_are_none(tmp_path):
    """Values of the wrong type or size count as not stated."""
    metadata = {"llama.context_length": "long", "llama.embedding_length": -5.5, "llama.expert_count": True}
    header = read_header(files.random_llama(tmp_path / "x.gguf", metadata=metadata))
    assert (header.n_ctx_train, header.n_embd, header.n_expert) == (0, 0, 0)


def test_too_many_layers(tmp_path):
    path = files.random_llama(tmp_path / "x.gguf", metadata={"llama.block_count": 1_000_000_000})
    with pytest.raises(ModelFileError, match="damaged"):
        read_header(path)


@pytest.mark.parametrize(
    ("edits", "said"),
    [
        ({270: "same", 290: "same"}, 'Tokens 270 and 290 are both "same"'),
        ({270: "<s>"}, 'Tokens 1 and 270 are both "<s>"'),
        ({270: "a\0b", 290: "a\0c"}, 'Tokens 270 and 290 are both "a\\x00c"'),
        ({270: "[EMPTY_290]", 290: ""}, "Tokens 270 and 290"),
    ],
)
def test_a_vocabulary_that_llama_cpp_would_break_off_at(tmp_path, edits, said):
    header = read_header(files.random_llama(tmp_path / "m.gguf", edits=edits))
    with pytest.raises(ModelFileError) as caught:
        header.require_model("target")
    assert said in caught.value.why
    assert "vocabulary of" in caught.value.message


@pytest.mark.parametrize("edits", [{270: "", 290: ""}, {270: "a\0b", 290: "c\0b"}, {270: "\0a", 290: "\0b"}])
def test_a_vocabulary_that_only_looks_odd(tmp_path, edits):
    read_header(files.random_llama(tmp_path / "m.gguf", edits=edits)).require_model("target")


NO_BYTES = {i: f"zz{i}" for i in range(3, 259)}
LETTERS = {300 - 1 - i: letter for i, letter in enumerate("abcdefghijklmnopqrstuvwxyz")}


@pytest.mark.parametrize(
    ("edits", "said"),
    [
        (NO_BYTES, '"a"'),
        (NO_BYTES | LETTERS, '"\\n"'),
        ({3 + ord("q"): "zz"}, "<0x71>"),
    ],
)
def test_a_vocabulary_that_cannot_read_ordinary_text(tmp_path, edits, said):
    """llama.cpp ends the process while it reads a prompt."""
    header = read_header(files.random_llama(tmp_path / "m.gguf", edits=edits))
    with pytest.raises(ModelFileError, match="cannot read ordinary text") as caught:
        header.require_model("target")
    assert said in caught.value.why
    header.require_model("draft")  # the target's vocabulary reads the text


@pytest.mark.parametrize(
    "edits",
    [
        NO_BYTES | LETTERS | {260: "\n"},
        {3 + ord("q"): "zz", 270: "q"},
        {3 + ord("q"): "<0x71>\0more"},
        {i: f"zz{i}" for i in range(3 + 128, 3 + 256)},
    ],
)
def test_a_vocabulary_that_reads_ordinary_text_without_all_bytes(tmp_path, edits):
    read_header(files.random_llama(tmp_path / "m.gguf", edits=edits)).require_model("target")


def test_other_tokenizers_need_no_byte_tokens(tmp_path):
    path = files.random_llama(tmp_path / "m.gguf", tokenizer="gpt2", edits=NO_BYTES)
    read_header(path).require_model("target")


def test_a_vocabulary_of_numbers_is_none(tmp_path):
    options = {"metadata": {"tokenizer.ggml.tokens": list(range(300))}}
    header = read_header(small(tmp_path / "m.gguf", **options))
    with pytest.raises(ModelFileError, match="has no tokenizer"):
        header.require_model("draft")
