"""llama.cpp as the judge: it loads what the tests write, and our header says what it says."""

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest

from localspec.models import gguf_facts
from localspec.models.gguf import read_header
from localspec.models.vocab import read_vocabulary
from tests import gguf_files as files

llama_cpp = pytest.importorskip("llama_cpp")

BUILDERS = [
    files.random_llama,
    files.random_gemma3,
    files.random_qwen35,
    files.random_qwen3next,
    files.random_lfm2,
    files.random_mamba,
]
TYPES = {1: "SPM", 2: "BPE", 3: "WPM", 4: "UGM", 5: "RWKV"}


@pytest.fixture(scope="module", autouse=True)
def _quiet():
    """A failing test should show its assertion, not a thousand lines of llama.cpp."""
    from localspec.llama.log import NativeLog

    NativeLog().install()


def load(path: Path, *, vocab_only: bool = False):
    params = llama_cpp.llama_model_default_params()
    params.vocab_only = vocab_only
    params.n_gpu_layers = 0
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
    assert model, f"llama.cpp refused {path.name}"
    return model


def greedy(path: Path, prompt: list[int], count: int) -> list[int]:
    model = load(path)
    params = llama_cpp.llama_context_default_params()
    params.n_ctx = 256
    context = llama_cpp.llama_init_from_model(model, params)
    assert context
    vocab = llama_cpp.llama_model_get_vocab(model)
    n_vocab = llama_cpp.llama_vocab_n_tokens(vocab)
    tokens, found = list(prompt), []
    for _ in range(count):
        ids = (ctypes.c_int32 * len(tokens))(*tokens)  # kept alive: the batch only points to it
        batch = llama_cpp.llama_batch_get_one(ids, len(tokens))
        assert llama_cpp.llama_decode(context, batch) == 0
        logits = llama_cpp.llama_get_logits_ith(context, -1)[:n_vocab]
        tokens = [max(range(n_vocab), key=logits.__getitem__)]
        found += tokens
    llama_cpp.llama_free(context)
    llama_cpp.llama_model_free(model)
    return found


@pytest.mark.parametrize("build", BUILDERS)
def test_header_agrees_with_llama_cpp(tmp_path, build):
    path = build(tmp_path / "m.gguf")
    header = read_header(path)
    model = load(path)
    assert header.n_params == llama_cpp.llama_model_n_params(model)
    assert header.n_embd == llama_cpp.llama_model_n_embd(model)
    assert header.n_layer == llama_cpp.llama_model_n_layer(model)
    assert header.n_ctx_train == llama_cpp.llama_model_n_ctx_train(model)
    assert header.sliding_window == llama_cpp.llama_model_n_swa(model)
    assert header.is_hybrid == llama_cpp.llama_model_is_hybrid(model)
    assert header.is_recurrent == llama_cpp.llama_model_is_recurrent(model)
    assert sum(tensor.n_bytes for tensor in header.tensors) == llama_cpp.llama_model_size(model)
    llama_cpp.llama_model_free(model)


@pytest.mark.parametrize("build", BUILDERS)
def test_random_text_depends_on_the_history(tmp_path, build):
    path = build(tmp_path / "m.gguf")
    one = greedy(path, [files.BOS, 260, 270, 262], 24)
    other = greedy(path, [files.BOS, 261, 270, 262], 24)
    assert sum(a == b for a, b in zip(one, other, strict=True)) < 6
    assert len(set(one)) > 8
    assert files.EOS not in one


@pytest.mark.parametrize("quant", ["f32", "q4_0"])
def test_script_is_followed_exactly(tmp_path, quant):
    table = files.chain(files.BOS, 260, 270, 262, 265, 275, files.EOS)
    path = files.script_model(tmp_path / "s.gguf", table, quant=quant)
    assert greedy(path, [files.BOS], 6) == [260, 270, 262, 265, 275, files.EOS]


def test_noise_makes_a_draft_that_agrees_now_and_then(tmp_path):
    target = files.random_llama(tmp_path / "t.gguf")
    prompt = [files.BOS, 260]
    right = greedy(target, prompt, 24)
    agreement = []
    for noise in (0.0, 0.05, 1.0):
        draft = files.perturbed(target, tmp_path / "d.gguf", noise=noise)
        chosen = [greedy(draft, prompt + right[:i], 1)[0] for i in range(24)]
        agreement.append(sum(a == b for a, b in zip(chosen, right, strict=True)))
    assert agreement[0] == 24
    assert 6 <= agreement[1] <= 21
    assert agreement[2] <= 3


def test_shards_load(tmp_path):
    whole = files.random_llama(tmp_path / "whole.gguf")
    first = files.random_llama(tmp_path / "m.gguf", split_max_tensors=8)
    assert greedy(read_header(first).path, [1, 260], 8) == greedy(whole, [1, 260], 8)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"add_bos": False, "add_eos": True},
        {"add_bos": None, "add_eos": None, "bos_id": None, "eos_id": None},
        {"bos_id": 299, "eos_id": 5},
        {"bos_id": 300, "eos_id": 4_000_000_000},
        {"edits": {7: "", 9: "seven words and ünïcode 🤖", 270: "x" * 128}},
        {"tokenizer": "gpt2"},
        {"tokenizer": "gpt2", "add_bos": None, "add_eos": None, "bos_id": None, "eos_id": None},
        {"tokenizer": "gpt2", "tokenizer_pre": "llama-bpe", "add_bos": None},
        {"tokenizer": "gpt2", "tokenizer_pre": "tekken", "add_bos": None, "bos_id": None},
        {"tokenizer": "gpt2", "tokenizer_pre": "qwen2", "add_bos": None},
        {"tokenizer": "gpt2", "tokenizer_pre": "glm4", "bos_id": None},
        {"tokenizer": "gpt2", "tokenizer_pre": "gemma4", "add_bos": False},
    ],
)
def test_vocabulary_agrees_with_llama_cpp(tmp_path, options):
    path = files.random_llama(tmp_path / "v.gguf", **options)
    ours = read_vocabulary(read_header(path))
    model = load(path, vocab_only=True)
    vocab = llama_cpp.llama_model_get_vocab(model)
    special = [llama_cpp.llama_vocab_bos(vocab), llama_cpp.llama_vocab_eos(vocab)]
    assert ours.type == TYPES[llama_cpp.llama_vocab_type(vocab)]
    assert ours.size == llama_cpp.llama_vocab_n_tokens(vocab)
    assert ours.add_bos == llama_cpp.llama_vocab_get_add_bos(vocab)
    assert ours.add_eos == llama_cpp.llama_vocab_get_add_eos(vocab)
    assert [ours.bos_id, ours.eos_id] == [None if token < 0 else token for token in special]
    texts = ours.texts()
    for token in range(ours.size):
        assert llama_cpp.llama_vocab_get_text(vocab, token) == (texts[token] or b"[EMPTY_%d]" % token)
    llama_cpp.llama_model_free(model)


def test_tensor_types_are_those_of_ggml():
    folder = Path(llama_cpp.__file__).parent / "lib"
    libraries = [
        path
        for path in folder.iterdir()
        if "ggml-base" in path.name and path.suffix in (".so", ".dylib", ".dll")
    ]
    library = ctypes.CDLL(str(libraries[0]))
    library.ggml_type_size.restype = ctypes.c_size_t
    library.ggml_blck_size.restype = ctypes.c_int64
    library.ggml_type_name.restype = ctypes.c_char_p
    for number, block in gguf_facts.TENSOR_TYPES.items():
        assert library.ggml_type_name(number).decode().upper() == block.name
        assert (library.ggml_blck_size(number), library.ggml_type_size(number)) == (
            block.values,
            block.n_bytes,
        )
    for number in gguf_facts.REMOVED_TENSOR_TYPES:
        assert library.ggml_blck_size(number) == 0


LOADS = (
    "import sys, llama_cpp\n"
    "from localspec.llama.log import NativeLog\n"
    "NativeLog().install()\n"
    "params = llama_cpp.llama_model_default_params()\n"
    "for name in sys.argv[1:]:\n"
    "    print(bool(llama_cpp.llama_model_load_from_file(name.encode(), params)), flush=True)\n"
)


def test_llama_cpp_dies_at_the_vocabularies_that_we_refuse(tmp_path):
    odd = files.random_llama(tmp_path / "odd.gguf", edits={270: "", 290: "", 271: "a\0b", 291: "c\0b"})
    twice = files.random_llama(tmp_path / "twice.gguf", edits={270: "a\0b", 290: "a\0c"})
    ran = subprocess.run(
        [sys.executable, "-c", LOADS, odd, twice], capture_output=True, text=True, check=False
    )
    said = [line for line in ran.stdout.splitlines() if line in ("True", "False")]
    assert (said, ran.returncode != 0) == (["True"], True)
