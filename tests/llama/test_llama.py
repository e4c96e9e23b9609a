"""The llama.cpp layer: tokens, log, contexts, errors with their reasons, quantising."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import llama_cpp
import pytest

from localspec.errors import AbortedError, LoadError, UsageError
from localspec.llama import backend
from localspec.llama.context import Context
from localspec.llama.log import NativeLog
from localspec.llama.model import Model
from localspec.llama.quantize import requantize
from tests import gguf_files
from tests.gguf_writer import EOS, FIRST_NAMED


@pytest.fixture
def log() -> NativeLog:
    made = NativeLog()
    made.install()
    return made


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gguf_files.random_llama(tmp_path_factory.mktemp("llama") / "tiny.gguf", n_embd=128)


def test_pieces_of_any_length(tmp_path: Path, log: NativeLog) -> None:
    words = {FIRST_NAMED + i: "-" * length for i, length in enumerate((31, 32, 33, 40, 64, 65, 128, 500))}
    path = gguf_files.script_model(tmp_path / "long.gguf", gguf_files.chain(*words, EOS), edits=words)
    model = Model(path, log=log)
    for token, text in words.items():
        assert model.vocab.piece(token) == text.encode()
        assert model.vocab.piece(token) == text.encode()  # from the cache too
    assert model.vocab.piece(EOS) == b""
    for none in (-1, model.vocab.n_tokens, 2**40):  # ids out of a damaged conversation
        assert model.vocab.piece(none) == b""
    model.close()


def test_text_survives_a_round_trip(tiny: Path, log: NativeLog) -> None:
    model = Model(tiny, log=log)
    for text in ("the cat sat", "naïve 😀 한국어\n\ttab", "x" * 5000, ""):
        ids = model.vocab.tokenize(text)
        assert b"".join(map(model.vocab.piece, ids)).decode().strip(" ") == text.strip(" ")
    assert model.vocab.tokenize("the", add_bos=True)[0] == model.vocab.bos == 1
    assert model.vocab.has_token("</s>")
    assert not model.vocab.has_token("<|im_end|>")
    assert model.vocab.is_eog(EOS)
    model.close()


def test_a_name_of_any_kind_loads(tiny: Path, tmp_path: Path, log: NativeLog) -> None:
    folder = tmp_path / "模型 ё é 🤖 [/red]"
    folder.mkdir(parents=True)
    path = folder / "my model.gguf"
    path.write_bytes(tiny.read_bytes())
    Model(path, log=log).close()


def test_a_refused_file_comes_with_the_reason(tmp_path: Path, log: NativeLog) -> None:
    path = gguf_files.header_only(
        tmp_path / "future.gguf", arch="localspec_future", tensors={"token_embd.weight": (300, 32)}
    )
    with pytest.raises(LoadError, match=r"could not load future\.gguf.*localspec_future"):
        Model(path, log=log)
    assert any("localspec_future" in line for line in log.lines)


def test_loading_can_be_stopped(tiny: Path, log: NativeLog) -> None:
    with pytest.raises(LoadError, match="was stopped"):
        Model(tiny, log=log, progress=lambda _fraction: False)


def test_close_twice_and_use_after_close(tiny: Path, log: NativeLog) -> None:
    model = Model(tiny, log=log)
    context = Context(model, n_ctx=64, log=log)
    context.close()
    context.close()
    model.close()
    model.close()
    with pytest.raises(LoadError, match="was closed"):
        Context(model, n_ctx=64)


def test_cache_types(tiny: Path, log: NativeLog) -> None:
    model = Model(tiny, log=log)
    for kv_type in backend.KV_TYPES:
        context = Context(model, n_ctx=64, kv_type=kv_type, log=log)
        context.decode([1, 5, 6], "last")
        context.close()
    with pytest.raises(UsageError, match="q9_9"):
        Context(model, n_ctx=64, kv_type="q9_9")
    for flash_attn in ("on", "off", "auto"):
        context = Context(model, n_ctx=64, flash_attn=flash_attn, log=log)  # type: ignore[arg-type]
        context.decode([1, 5, 6], "last")
        context.close()
    with pytest.raises(UsageError, match="needs flash attention, and it is switched off"):
        Context(model, n_ctx=64, kv_type="q8_0", flash_attn="off")
    model.close()
    narrow = Model(gguf_files.random_llama(tiny.with_name("narrow.gguf"), n_embd=64), log=log)
    with pytest.raises(LoadError, match="cannot have a q8_0 cache") as caught:
        Context(narrow, n_ctx=64, kv_type="q8_0", log=log)
    assert "16" in caught.value.why  # the head size that does not fit
    assert caught.value.hint == "localspec run --kv f16"
    narrow.close()


def test_a_batch_of_the_wrong_size_is_refused_before_it_reaches_native_code(
    tiny: Path, log: NativeLog
) -> None:
    model = Model(tiny, log=log)
    context = Context(model, n_ctx=128, n_batch=16, max_outputs=4, log=log)
    for tokens, outputs in (([], "none"), ([1] * 17, "none"), ([1] * 5, "all")):
        with pytest.raises(UsageError):
            context.decode(tokens, outputs)  # type: ignore[arg-type]
    context.decode([1] * 4, "all")
    assert context.logits().shape == (4, model.vocab.n_tokens)
    assert (context.length, context.room) == (4, 124)
    context.close()
    model.close()


def test_a_full_cache_is_an_error_that_changes_nothing(tiny: Path, log: NativeLog) -> None:
    from localspec.errors import DecodeError

    model = Model(tiny, log=log)
    context = Context(model, n_ctx=256, n_batch=256, log=log)
    context.decode([1] * 250, "none")
    with pytest.raises(DecodeError, match="status 1"):
        context.decode([1] * 10, "last")
    assert context.length == 250
    context.decode([1] * 6, "last")
    context.close()
    model.close()


def test_a_fork_leaves_the_first_line_as_it_was(tmp_path: Path, log: NativeLog) -> None:
    for build in (gguf_files.random_llama, gguf_files.random_qwen35, gguf_files.random_mamba):
        model = Model(build(tmp_path / f"{build.__name__}.gguf"), log=log)
        context = Context(model, n_ctx=128, branches=True, log=log)
        context.decode([1, 5, 6], "last")
        context.decode([7], "last")
        expected = context.logits()[0].copy()
        context.clear()
        context.decode([1, 5, 6], "last")
        context.fork()
        for token in (9, 10, 11):
            context.decode([token], "last")
        assert context.length == 6
        context.join()
        assert context.length == 3
        context.decode([7], "last")
        assert context.logits()[0] == pytest.approx(expected, abs=1e-4)
        context.close()
        model.close()


def test_memory_comes_back_after_close(tiny: Path, tmp_path: Path, log: NativeLog) -> None:
    import gc

    import psutil

    big = gguf_files.random_llama(tmp_path / "big.gguf", n_vocab=20_000, n_embd=128)

    def cycle() -> None:
        model = Model(big, log=log)
        context = Context(model, n_ctx=2048, max_outputs=8, log=log)
        context.decode([1, 2, 3], "all")
        context.logits()
        context.close()
        model.close()

    for _ in range(4):
        cycle()
    gc.collect()
    before = psutil.Process().memory_info().rss
    for _ in range(16):
        cycle()
    gc.collect()
    assert psutil.Process().memory_info().rss - before < 10 << 20


def test_logits_do_not_grow_with_the_context(tmp_path: Path, log: NativeLog) -> None:
    import psutil

    path = gguf_files.random_llama(tmp_path / "wide.gguf", n_vocab=152_064, n_embd=32, n_layer=1, n_ctx=8192)
    model = Model(path, log=log)
    context = Context(model, n_ctx=8192, max_outputs=5, log=log)
    before = psutil.Process().memory_info().rss
    for _ in context.extend([1 + i % 250 for i in range(8000)]):
        pass
    context.decode([1, 2, 3, 4, 5], "all")
    assert context.logits().shape == (5, 152_064)
    assert psutil.Process().memory_info().rss - before < 300 << 20
    context.close()
    model.close()


def test_requantize_makes_a_whole_file_or_none(tiny: Path, tmp_path: Path, log: NativeLog) -> None:
    made = tmp_path / "tiny-q8.gguf"
    requantize(tiny, made, "q8_0")
    Model(made, log=log).close()
    assert made.stat().st_size < tiny.stat().st_size
    with pytest.raises(UsageError, match="Q9"):
        requantize(tiny, tmp_path / "no.gguf", "Q9")
    with pytest.raises(LoadError, match="could not be made"):
        requantize(tmp_path / "missing.gguf", tmp_path / "no.gguf", "Q8_0")
    assert [p.name for p in tmp_path.iterdir()] == ["tiny-q8.gguf"]


def test_a_build_for_a_gpu_is_told_from_one_that_found_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [b"CPU", b"CUDA", b"BLAS"]
    functions = {
        "ggml_backend_reg_count": lambda: len(names),
        "ggml_backend_reg_get": lambda index: index,
        "ggml_backend_reg_name": lambda index: names[index],
    }
    monkeypatch.setattr(backend, "_ggml_function", lambda name, *_: functions[name])
    assert backend.gpu_backends() == ("CUDA",)


def test_the_build_tells_about_itself() -> None:
    assert bool(backend.gpu_backends()) >= backend.supports_gpu_offload()
    versions = backend.versions()
    assert versions["llama-cpp-python"].startswith("0.3.")
    assert versions["llama.cpp"]
    devices = backend.devices()
    assert any(device.kind == "cpu" and device.total > 0 for device in devices)
    assert bool(backend.gpus()) <= backend.supports_gpu_offload()


def test_a_batch_can_be_computed_in_smaller_pieces(tiny: Path, log: NativeLog) -> None:
    model = Model(tiny, log=log)
    tokens = [1, *range(5, 44)]
    rows = {}
    for n_ubatch, made in ((0, 64), (16, 16), (500, 64)):
        context = Context(model, n_ctx=256, n_batch=64, n_ubatch=n_ubatch, max_outputs=8, log=log)
        assert (context.n_batch, context.n_ubatch) == (64, made)
        context.decode(tokens[:-8], "none")
        context.decode(tokens[-8:], "all")
        rows[made] = context.logits().copy()
        context.close()
    assert rows[16] == pytest.approx(rows[64], abs=1e-3)
    model.close()


def test_snapshots_keep_within_a_piece(tmp_path: Path, log: NativeLog) -> None:
    """llama.cpp aborts the process when the tokens that it keeps together fill a piece."""
    model = Model(gguf_files.random_qwen35(tmp_path / "hybrid.gguf"), log=log)
    context = Context(model, n_ctx=256, n_batch=64, n_ubatch=8, snapshots=12, log=log)
    assert context.snapshots == 6
    context.decode([1, *range(5, 60)], "last")
    context.close()
    model.close()


def test_snapshots_keep_within_a_context_that_is_smaller_than_a_batch(tmp_path: Path, log: NativeLog) -> None:
    """llama.cpp cuts the batch to the context, and aborts as above."""
    model = Model(gguf_files.random_qwen35(tmp_path / "hybrid.gguf"), log=log)
    context = Context(model, n_ctx=8, n_batch=512, snapshots=12, log=log)
    assert (context.n_batch, context.snapshots) == (8, 6)
    context.decode([1, *range(5, 12)], "last")
    context.close()
    model.close()


def test_a_context_can_be_told_to_stop_and_not_to(tiny: Path, log: NativeLog) -> None:
    model = Model(tiny, log=log)
    context = Context(model, n_ctx=64, log=log)
    context.stop_when(lambda: True)
    with pytest.raises(AbortedError):
        context.decode([1], "last")
    context.stop_when(None)
    context.decode([1], "last")
    context.close()
    model.close()


@pytest.mark.parametrize(
    ("said", "hint"),
    [
        ("error loading model: device CUDA0 does not support split buffers", "--split-mode layer"),
        ("allocating 15000.00 MiB on device 0: cudaMalloc failed: out of memory", "--gpu-layers 30"),
        ("error loading model: unknown model architecture: 'x'", "pip install -U"),
    ],
)
def test_what_to_try_depends_on_the_reason(
    tiny: Path, log: NativeLog, monkeypatch: pytest.MonkeyPatch, said: str, hint: str
) -> None:
    def refuse(*_: object) -> None:
        log.receive(4, said + "\n")

    monkeypatch.setattr(llama_cpp, "llama_model_load_from_file", refuse)
    with pytest.raises(LoadError) as caught:
        Model(tiny, gpu_layers=40, log=log)
    assert said in caught.value.why
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("line", "splits"), [("nodes = 68, splits = 2, input", 2), ("splits = 67 / 66,", 66)]
)
def test_the_log_tells_how_the_work_is_split(log: NativeLog, line: str, splits: int) -> None:
    assert log.splits == 0
    log.receive(2, f"graph: {line}\nand so on\n")
    assert log.splits == splits


def test_an_empty_list_of_devices_is_the_cpu_alone(
    tiny: Path, log: NativeLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    load, init = llama_cpp.llama_model_load_from_file, llama_cpp.llama_init_from_model

    def loads(path: bytes, params: Any) -> Any:
        pointers = ctypes.cast(params.devices, ctypes.POINTER(ctypes.c_void_p)) if params.devices else None
        seen.append("all" if pointers is None else pointers[0])
        return load(path, params)

    def makes(model: Any, params: Any) -> Any:
        seen.append((params.offload_kqv, params.op_offload))
        return init(model, params)

    monkeypatch.setattr(llama_cpp, "llama_model_load_from_file", loads)
    monkeypatch.setattr(llama_cpp, "llama_init_from_model", makes)
    for devices, offload in ((None, True), ((), False)):
        model = Model(tiny, devices=devices, log=log)
        context = Context(model, n_ctx=64, offload=offload, log=log)
        context.decode([1, 5, 6], "last")
        context.close()
        model.close()
    assert seen == ["all", (True, True), None, (False, False)]


def test_shares_reach_llama_cpp(tiny: Path, log: NativeLog, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    load = llama_cpp.llama_model_load_from_file

    def loads(path: bytes, params: Any) -> Any:
        seen.append([params.tensor_split[i] for i in range(2)] if params.tensor_split else None)
        return load(path, params)

    monkeypatch.setattr(llama_cpp, "llama_model_load_from_file", loads)
    monkeypatch.setattr(llama_cpp, "llama_max_devices", lambda: 16)
    Model(tiny, log=log).close()
    Model(tiny, tensor_split=(3.0, 1.0), log=log).close()
    assert seen == [None, [3.0, 1.0]]


def test_a_device_that_is_gone_is_an_error(tiny: Path) -> None:
    with pytest.raises(LoadError, match="The device CUDA7 is gone"):
        backend.handles(["CUDA7"])
    with pytest.raises(LoadError, match="CUDA7"):
        Model(tiny, devices=["CUDA7"])
    (name,) = [device.name for device in backend.devices() if device.kind == "cpu"]
    found = backend.handles([name])
    assert found[0]
    assert list(found)[1:] == [None]
