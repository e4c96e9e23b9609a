"""From a `Load` to an engine: what is left out is said, and nothing is kept in memory for nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from localspec.errors import (
    AbortedError,
    DecodeError,
    LoadError,
    ModelFileError,
    OutOfMemoryError,
    UsageError,
)
from localspec.llama import backend
from localspec.llama.context import Context
from localspec.llama.model import Model
from localspec.memory import devices, hardware
from localspec.spec.answer import Request
from localspec.spec.events import Finished, Sampling
from localspec.worker import costs, opening, placement
from localspec.worker.kept import Kept
from localspec.worker.loading import Loaded, Loader
from localspec.worker.machine import default_threads, memory_use
from localspec.worker.opening import Opened
from localspec.worker.protocol import DraftSpec, Event, LoadProgress
from localspec.worker.warmup import warm_up
from tests import gguf_files
from tests.worker.conftest import Opener


def test_a_pair_is_loaded_and_described(load: Opener, events: list[Event], tiny: Path) -> None:
    draft = gguf_files.perturbed(tiny, tiny.with_name("draft.gguf"))
    ready = load(tiny, DraftSpec("model", str(draft)), kv_type="q8_0").ready
    assert (ready.draft.state, ready.draft.name, ready.draft.n_draft) == ("on", "draft.gguf", 4)
    assert ready.context_size == 256
    assert ready.target.path == str(tiny)
    assert (ready.target.device, ready.target.gpu_layers, ready.target.kv_type) == ("CPU", 0, "q8_0")
    assert ready.draft_model is not None
    assert all(ready.target.memory[part] > 0 for part in ("weights", "cache", "compute"))
    assert ready.memory.label == "RAM"
    assert ready.memory.used > 0
    stages = [event.stage for event in events if isinstance(event, LoadProgress)]
    assert list(dict.fromkeys(stages)) == ["target", "draft", "warmup"]
    assert [e.fraction for e in events if isinstance(e, LoadProgress) and e.stage == "target"][-1] == 1.0


def test_what_copies_of_a_state_may_take_is_told(load: Opener, tiny: Path, tmp_path: Path) -> None:
    hybrid = load(gguf_files.random_qwen35(tmp_path / "hybrid.gguf"), DraftSpec()).ready.target
    assert hybrid.memory["copies"] > 0
    assert "copies" not in load(tiny, DraftSpec()).ready.target.memory


def test_without_a_draft_only_one_row_of_logits_is_reserved(load: Opener, tiny: Path) -> None:
    loaded = load(tiny, DraftSpec(off_reason="nobody asked"))
    assert loaded.engine.context.max_outputs == 1
    assert loaded.ready.draft.reason == "nobody asked"
    assert len(loaded.opened.contexts) == 1


@pytest.mark.parametrize("arch", ["mamba", "qwen3next"])
def test_no_idle_draft_is_loaded_for_a_target_that_cannot_go_back(
    load: Opener, tiny: Path, tmp_path: Path, arch: str
) -> None:
    target = getattr(gguf_files, f"random_{arch}")(tmp_path / "target.gguf")
    loaded = load(target, DraftSpec("model", str(tiny)))
    assert loaded.ready.draft.state == "off"
    assert loaded.ready.draft.reason == f"{arch} targets cannot take rejected tokens back"
    assert len(loaded.opened.models) == 1


def test_a_hybrid_target_gets_snapshots_for_its_draft_length(load: Opener, tmp_path: Path) -> None:
    target = gguf_files.random_qwen35(tmp_path / "hybrid.gguf")
    assert load(target, DraftSpec("lookup"), n_draft=5).engine.context.snapshots == 5
    assert load(target, DraftSpec("lookup"), n_draft=31, auto=True).engine.n_draft == 7
    assert load(target).engine.context.snapshots == 0


@pytest.mark.parametrize("sidecar", [False, True])
@pytest.mark.parametrize("auto", [False, True])
def test_the_targets_own_block_drafts(load: Opener, tmp_path: Path, auto: bool, sidecar: bool) -> None:
    from localspec.models.gguf import read_header
    from localspec.spec.engine import Request
    from localspec.spec.events import Finished, Sampling

    target = gguf_files.random_qwen35(tmp_path / "target.gguf", n_nextn=0 if sidecar else 1)
    assert read_header(target).next_token_block is not sidecar
    path = str(gguf_files.random_qwen35(tmp_path / "mtp.gguf", n_nextn=1, sidecar=True)) if sidecar else ""

    def ids(loaded: Loaded) -> tuple[int, ...]:
        request = Request(
            [1, *range(5, 30)], Sampling(temperature=0.7, seed=1), max_tokens=60, ignore_eos=True
        )
        last = list(loaded.engine.generate(request))[-1]
        assert isinstance(last, Finished)
        return last.token_ids

    plain = ids(load(target))
    loaded = load(target, DraftSpec("mtp", path), auto=auto)
    assert loaded.ready.draft.state == "on"
    assert "mtp" in loaded.ready.draft.name
    assert ids(loaded) == plain


def test_a_block_that_fails_at_once_is_closed(
    load: Opener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from localspec.llama import mtp

    made: list[Context] = []

    class Seen(Context):
        def __init__(self, *given: Any, **options: Any) -> None:
            super().__init__(*given, **options)
            made.append(self)

    def fails(*_: object) -> None:
        raise DecodeError("There was no memory left to compute with.")

    monkeypatch.setattr(mtp, "Context", Seen)
    monkeypatch.setattr(mtp.NextTokenBlock, "decode", fails)
    loaded = load(gguf_files.random_qwen35(tmp_path / "target.gguf", n_nextn=1), DraftSpec("mtp"))
    assert "no memory left" in loaded.ready.draft.reason
    assert [context.handle for context in made] == [None]
    loaded.engine.context.decode([1], "last")
    with pytest.raises(DecodeError):  # the target hands out no hidden states any more
        mtp.NextTokenBlock._rows(
            SimpleNamespace(n_embd=64),  # type: ignore[arg-type]
            mtp._extension().llama_get_embeddings_nextn(loaded.engine.context.handle),
            1,
        )


def test_a_target_without_a_block_says_so(load: Opener, tmp_path: Path) -> None:
    loaded = load(gguf_files.random_qwen35(tmp_path / "target.gguf"), DraftSpec("mtp"))
    assert loaded.ready.draft.state == "off"
    assert "carries no next-token block" in loaded.ready.draft.reason


@pytest.mark.parametrize("n_batch", [8, 9, 16])
def test_a_batch_hardly_larger_than_the_draft(load: Opener, tmp_path: Path, n_batch: int) -> None:
    """llama.cpp aborts the process when a hybrid's batch is filled by the tokens that it keeps together."""
    from localspec.spec.engine import Request
    from localspec.spec.events import Sampling

    loaded = load(
        gguf_files.random_qwen35(tmp_path / "t.gguf"), DraftSpec("lookup"), n_batch=n_batch, n_draft=7
    )
    list(loaded.engine.generate(Request([1, *range(5, 60)] * 2, Sampling(temperature=0), max_tokens=60)))
    assert loaded.engine.n_draft == min(7, n_batch - 2)


@pytest.mark.parametrize("broken", ["missing", "no model"])
def test_a_draft_that_cannot_be_used_is_left_out_with_its_reason(
    load: Opener, tiny: Path, tmp_path: Path, broken: str
) -> None:
    path = tmp_path / "draft.gguf"
    if broken == "no model":
        path.write_bytes(b"<!DOCTYPE html><html></html>")
    loaded = load(tiny, DraftSpec("model", str(path)))
    assert loaded.ready.draft.state == "off"
    assert "draft.gguf" in loaded.ready.draft.reason
    assert len(loaded.opened.models) == 1


def test_a_draft_that_llama_cpp_refuses_is_left_out_with_its_reason(
    load: Opener, tiny: Path, tmp_path: Path
) -> None:
    path = gguf_files.header_only(
        tmp_path / "odd.gguf",
        arch="localspec_future",
        tensors={"token_embd.weight": (300, 32), "output.weight": (300, 32)},
    )
    loaded = load(tiny, DraftSpec("model", str(path)))
    assert loaded.ready.draft.state == "off"
    assert loaded.ready.draft.reason.startswith("the draft could not be loaded")


def test_a_target_with_keys_that_nobody_knows_gets_to_llama_cpp(load: Opener, tmp_path: Path) -> None:
    tensors = {"token_embd.weight": (300, 32), "blk.0.attn_k.weight": (4, 32)}
    path = gguf_files.header_only(tmp_path / "odd.gguf", arch="localspec_future", tensors=tensors)
    with pytest.raises(LoadError, match="localspec_future"):
        load(path)


def test_a_draft_that_fails_half_way_is_not_kept_in_memory(
    load: Opener, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise LoadError("No context could be made.")

    monkeypatch.setattr(Opened, "_model_drafter", fails)
    loaded = load(tiny, DraftSpec("model", str(gguf_files.perturbed(tiny, tiny.with_name("draft.gguf")))))
    assert loaded.ready.draft.reason == "the draft could not be loaded: No context could be made"
    assert (len(loaded.opened.models), len(loaded.opened.contexts)) == (1, 1)
    assert loaded.ready.draft_model is None


def test_a_target_that_cannot_be_used_is_an_error(load: Opener, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError):
        load(tmp_path / "missing.gguf")


def test_a_draft_that_does_not_fit_is_dropped_and_said(
    load: Opener, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draft = gguf_files.random_llama(tiny.with_name("draft.gguf"), n_embd=128, n_layer=8)
    need = sum(load(tiny).ready.target.memory.values())
    for free, kept in ((10 * need + (64 << 20), True), (int(1.3 * need), False)):
        monkeypatch.setattr(
            devices, "system_memory", lambda free=free: devices.Device("RAM", "cpu", free, free)
        )
        loaded = load(tiny, DraftSpec("model", str(draft)))
        assert (loaded.ready.draft.state == "on") is kept
        if not kept:
            assert loaded.ready.draft.reason == "target and draft do not fit into memory together"
            assert any("The draft was dropped" in note for note in loaded.ready.notes)
    monkeypatch.setattr(devices, "system_memory", lambda: devices.Device("RAM", "cpu", 1000, 1000))
    with pytest.raises(OutOfMemoryError, match="does not fit"):
        load(tiny)


def test_the_context_is_no_longer_than_the_model_was_trained_for(load: Opener, tmp_path: Path) -> None:
    path = gguf_files.random_llama(tmp_path / "short.gguf", n_ctx=128)
    loaded = load(path, n_ctx=4096)
    assert loaded.ready.context_size == 128
    assert any("128 tokens" in note for note in loaded.ready.notes)
    assert load(path, n_ctx=0).ready.context_size == 128


def test_a_gpu_beside_a_cpu_only_build_is_told(
    load: Opener, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        hardware, "seen_gpus", lambda: (hardware.SeenGpu("GeForce RTX 3090", "-DGGML_CUDA=on"),)
    )
    monkeypatch.setattr(backend, "supports_gpu_offload", lambda: False)
    (note,) = load(tiny).ready.notes
    assert "GeForce RTX 3090 is not used" in note
    assert "built for the CPU only" in note
    assert "localspec doctor" in note
    # A build for the card whose driver does not work need not be built again.
    monkeypatch.setattr(backend, "gpu_backends", lambda: ("CUDA",))
    (note,) = load(tiny).ready.notes
    assert "built for CUDA and finds no device. A missing or old driver" in note
    said = "ggml_cuda_init: failed to initialize CUDA: CUDA driver version is insufficient"
    assert said in placement.idle_gpu(("CUDA",), ("a", said, "b"))


def test_layers_asked_for_without_a_gpu_are_told(load: Opener, tiny: Path) -> None:
    if backend.supports_gpu_offload():
        pytest.skip("this build has a GPU")
    assert any("99 layers were asked for" in note for note in load(tiny, gpu_layers=99).ready.notes)


def test_a_stopped_load_gives_everything_back(load: Opener, tiny: Path) -> None:
    with pytest.raises(LoadError, match="was stopped"):
        load(tiny, cancelled=lambda: True)


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_a_load_that_is_stopped_while_it_measures_is_no_load(
    load: Opener, events: list[Event], tiny: Path, share: float
) -> None:
    """Half a curve would be kept, and drafting might never seem to pay again."""

    def stopped() -> bool:
        return any(
            isinstance(e, LoadProgress) and (e.stage, e.fraction >= share) == ("warmup", True) for e in events
        )

    draft = gguf_files.perturbed(tiny, tiny.with_name("draft.gguf"))
    with pytest.raises(LoadError, match=r"Loading tiny\.gguf was stopped"):
        load(tiny, DraftSpec("model", str(draft)), auto=True, cancelled=stopped)


def test_measuring_is_seen(load: Opener, events: list[Event], tiny: Path) -> None:
    draft = gguf_files.perturbed(tiny, tiny.with_name("draft.gguf"))
    load(tiny, DraftSpec("model", str(draft)), auto=True)
    shares = [e.fraction for e in events if isinstance(e, LoadProgress) and e.stage == "warmup"]
    assert shares == sorted(shares)
    assert (shares[0], shares[-1]) == (0.0, 1.0)
    assert len({share for share in shares if 0.0 < share < 1.0}) > 10
    stages = [e.doing for e in events if isinstance(e, LoadProgress)]
    assert list(dict.fromkeys(stages)) == ["Loading the target", "Loading the draft", "Warming up"]


def test_a_stop_reaches_the_first_evaluation(tiny: Path) -> None:
    """On a slow disk it takes as long as reading the file."""
    model = Model(tiny)
    context = Context(model, n_ctx=64)
    with pytest.raises(AbortedError):
        warm_up(context, 1, lambda: True, Kept("chunks", ("here",)))
    assert warm_up(context, 1, lambda: False, Kept("chunks", ("here",))) > 0
    context.close()
    model.close()


def test_a_file_that_is_taken_away_while_it_is_loaded(
    load: Opener, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = Loader._target

    def then_take_it_away(*given: Any) -> Any:
        made = make(*given)
        tiny.unlink()
        return made

    monkeypatch.setattr(Loader, "_target", then_take_it_away)
    assert load(tiny, DraftSpec("lookup"), auto=True).ready.draft.state == "on"


def test_a_cache_that_cannot_be_is_refused_before_any_weights_are_read(
    load: Opener, events: list[Event], tiny: Path, tmp_path: Path
) -> None:
    narrow = gguf_files.random_llama(tmp_path / "narrow.gguf", n_embd=96)
    with pytest.raises(LoadError, match=r"narrow\.gguf cannot have a q8_0 cache.* 24 numbers"):
        load(narrow, kv_type="q8_0")
    with pytest.raises(UsageError, match="needs flash attention"):
        load(tiny, kv_type="q8_0", flash_attn="off")
    assert events == []
    ready = load(tiny, DraftSpec("model", str(narrow), kv_type="q8_0")).ready
    assert ready.draft.reason == "narrow.gguf cannot have a q8_0 cache"
    assert any("24 numbers" in note for note in ready.notes)


def test_what_llama_cpp_said_about_a_draft_is_told(
    load: Opener, tiny: Path, draft: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise LoadError("No context could be made.", why="llama.cpp said: cudaMalloc failed: out of memory.")

    monkeypatch.setattr(Opened, "_model_drafter", fails)
    notes = load(tiny, DraftSpec("model", str(draft))).ready.notes
    assert any("There is no draft: " in note and "cudaMalloc failed" in note for note in notes)


def test_a_template_from_a_file(load: Opener, tiny: Path, tmp_path: Path) -> None:
    file = tmp_path / "my.jinja"
    file.write_text("{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}", encoding="utf-8")
    loaded = load(tiny, template_file=str(file))
    assert loaded.template.render([{"role": "user", "content": "hi"}]).text == "[user]hi"
    for unusable in (None, b"{% if", b"\xff\xfe\x00", b"", b"{{ raise_exception('never') }}"):
        file.unlink(missing_ok=True)
        if unusable is not None:
            file.write_bytes(unusable)
        # It was asked for: another one in its place would answer in another way.
        with pytest.raises(LoadError, match=r"my\.jinja cannot be used"):
            load(tiny, template_file=str(file))


def test_flash_attention_and_the_split_reach_the_engine(load: Opener, tiny: Path) -> None:
    assert load(tiny, flash_attn="off", split_mode="none").ready.target.path == str(tiny)
    with pytest.raises(UsageError, match="needs flash attention"):
        load(tiny, flash_attn="off", kv_type="q8_0")


def test_threads_and_memory_of_this_machine() -> None:
    assert default_threads() >= 1
    assert memory_use().total > memory_use().used > 0


def test_a_fixed_length_knows_what_its_rounds_cost_beside_a_plain_step(load: Opener, tiny: Path) -> None:
    """Without it a long first prompt would be compared with a plain step in an empty cache."""
    engine = load(tiny, DraftSpec("lookup"), n_draft=4).engine
    before = engine.plain.seconds
    assert before > 0
    assert engine.context.length == 0
    for _ in range(60):  # a round of five tokens that takes as long as a hundred plain steps
        engine.plain.saw(5, 100 * before)
    assert engine.plain.seconds > 2 * before


def test_slow_steps_are_not_timed_again(load: Opener, tiny: Path) -> None:
    engine = load(tiny, DraftSpec("lookup"), n_draft=4).engine
    assert costs.round_time(engine, 0.5) == {}
    assert set(costs.round_time(engine, 0.01)) == {1, 5}
    engine.set_length(0)
    assert costs.round_time(engine, 0.01) == {}


# ------------------------------------------------------------------ where the draft runs

MIB = 1 << 20


def cards(*free_mib: int) -> Callable[[], tuple[backend.NativeDevice, ...]]:
    """GPUs that the planner believes in; the real build runs everything on the CPU all the same."""
    return lambda: tuple(
        backend.NativeDevice(f"CUDA{i}", f"Card {i}", "gpu", free * MIB, free * MIB)
        for i, free in enumerate(free_mib)
    )


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[dict[str, Any]]]:
    """What models and contexts were made with, the draft's behind the target's."""
    seen: dict[str, list[dict[str, Any]]] = {"models": [], "contexts": []}

    class SeenModel(Model):
        def __init__(self, path: Path, **options: Any) -> None:
            seen["models"].append(options)
            super().__init__(path, **{**options, "devices": None, "tensor_split": ()})

    class SeenContext(Context):
        def __init__(self, model: Model, **options: Any) -> None:
            seen["contexts"].append(options)
            super().__init__(model, **options)

    monkeypatch.setattr(opening, "Model", SeenModel)
    monkeypatch.setattr(opening, "Context", SeenContext)
    return seen


@pytest.fixture
def two_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "supports_gpu_offload", lambda: True)
    monkeypatch.setattr(backend, "gpus", cards(4000, 4000))


@pytest.fixture
def draft(tiny: Path) -> Path:
    return gguf_files.perturbed(tiny, tiny.with_name("draft.gguf"))


@pytest.mark.usefixtures("two_cards")
def test_a_draft_on_the_cpu_beside_a_target_on_the_gpu(
    load: Opener, opened: dict[str, list[dict[str, Any]]], tiny: Path, draft: Path
) -> None:
    ready = load(tiny, DraftSpec("model", str(draft), device="cpu"), n_draft=3).ready
    assert ready.draft.state == "on"
    assert ready.draft_model is not None
    assert (ready.draft_model.device, ready.draft_model.gpu_layers) == ("CPU", 0)
    assert (ready.target.device, ready.target.gpu_layers) == ("Card 0 + Card 1", ready.target.n_layer + 1)
    # No GPU may even be opened for it, and neither its cache nor its prompts may go there.
    assert [one["devices"] for one in opened["models"]] == [None, []]
    assert [one["offload"] for one in opened["contexts"]] == [True, False]
    assert opened["models"][1]["gpu_layers"] == 0


@pytest.mark.usefixtures("two_cards")
def test_a_draft_on_the_second_gpu(
    load: Opener, opened: dict[str, list[dict[str, Any]]], tiny: Path, draft: Path
) -> None:
    ready = load(tiny, DraftSpec("model", str(draft), device="gpu1")).ready
    assert ready.draft_model is not None
    assert ready.draft_model.device == "Card 1"
    assert ready.draft_model.gpu_layers == ready.draft_model.n_layer + 1
    target, of_draft = opened["models"]
    assert of_draft["devices"] == ["CUDA1"]
    assert target["devices"] == ["CUDA0", "CUDA1"], "shares mean nothing without an order"
    assert target["tensor_split"][0] > target["tensor_split"][1]
    assert all(one["offload"] for one in opened["contexts"])
    alone = load(tiny, DraftSpec("model", str(draft), device="CUDA1"), split_mode="none").ready
    assert alone.target.device == "Card 0"
    assert opened["models"][2]["tensor_split"] == ()


@pytest.mark.usefixtures("two_cards")
def test_a_device_that_is_not_there_is_an_error_that_lists_those_that_are(
    load: Opener, tiny: Path, draft: Path
) -> None:
    with pytest.raises(UsageError, match="There is no device CUDA5 for the draft") as caught:
        load(tiny, DraftSpec("model", str(draft), device="CUDA5"))
    assert caught.value.why == "There is: cpu, gpu0 (CUDA0, Card 0), gpu1 (CUDA1, Card 1)."


def test_threads_and_cache_type_of_the_draft(
    load: Opener, opened: dict[str, list[dict[str, Any]]], tiny: Path, draft: Path
) -> None:
    ready = load(tiny, DraftSpec("model", str(draft), threads=3, kv_type="q8_0"), n_ubatch=64).ready
    assert ready.draft_model is not None
    assert (ready.target.threads, ready.draft_model.threads, ready.threads) == (1, 3, 1)
    assert (ready.target.kv_type, ready.draft_model.kv_type) == ("f16", "q8_0")
    keys = ("threads", "kv_type", "n_ubatch")
    assert [[one[key] for key in keys] for one in opened["contexts"]] == [[1, "f16", 64], [3, "q8_0", 64]]
    assert ready.draft_model.memory["cache"] == ready.target.memory["cache"] * 34 // 64
    opened["contexts"].clear()
    load(tiny, DraftSpec("model", str(draft)), kv_type="q8_0")
    assert [[one[key] for key in keys] for one in opened["contexts"]] == [[1, "q8_0", 512]] * 2


@pytest.mark.usefixtures("two_cards", "opened")
def test_prices_are_kept_apart_by_where_and_how_the_draft_runs(
    load: Opener, tiny: Path, draft: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys: list[object] = []
    real = Loader._price_key

    def seen(self: Loader, *arguments: Any) -> tuple[object, ...]:
        keys.append(real(self, *arguments))
        return real(self, *arguments)

    monkeypatch.setattr(Loader, "_price_key", seen)
    wishes: tuple[dict[str, Any], ...] = (
        {},
        {"threads": 2},
        {"kv_type": "q8_0"},
        {"device": "cpu"},
        {"device": "gpu0"},
        {"device": "gpu1"},
        {"gpu_layers": 0},
    )
    for wish in wishes:
        load(tiny, DraftSpec("model", str(draft), **wish))
    load(tiny, DraftSpec("model", str(draft)), n_ubatch=32)
    newer = [replace(card, description="A newer card") for card in cards(4000, 4000)()]
    monkeypatch.setattr(backend, "gpus", lambda: newer)
    load(tiny, DraftSpec("model", str(draft)))
    assert len({repr(key) for key in keys}) == len(keys) == len(wishes) + 2


@pytest.mark.parametrize("auto", [False, True])
def test_the_targets_own_block_takes_the_drafts_threads_and_cache_type(
    load: Opener, tmp_path: Path, auto: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from localspec.llama import mtp

    made: list[dict[str, Any]] = []

    class Seen(Context):
        def __init__(self, model: Model, **options: Any) -> None:
            made.append(options)
            super().__init__(model, **options)

    monkeypatch.setattr(mtp, "Context", Seen)
    target = gguf_files.random_qwen35(tmp_path / "target.gguf", n_embd=128, n_nextn=1)
    spec = DraftSpec("mtp", device="gpu1", threads=2, kv_type="q8_0")
    ready = load(target, spec, auto=auto, n_ubatch=32).ready
    assert ready.draft.state == "on"
    assert any("--draft-device changes nothing" in note for note in ready.notes)
    assert [(one["threads"], one["kv_type"], one["n_ubatch"]) for one in made] == [(2, "q8_0", 32)]


@pytest.mark.parametrize("drafter", ["model", "lookup", "mtp"])
def test_pieces_smaller_than_the_prompt_change_no_text(
    load: Opener, tiny: Path, draft: Path, tmp_path: Path, drafter: str
) -> None:
    from localspec.spec.engine import Request
    from localspec.spec.events import Finished, Sampling

    if drafter == "mtp":
        tiny = gguf_files.random_qwen35(tmp_path / "hybrid.gguf", n_nextn=1)
    path = str(draft) if drafter == "model" else ""

    def ids(spec: DraftSpec) -> tuple[int, ...]:
        engine = load(tiny, spec, n_ubatch=16, n_batch=128, n_draft=7).engine
        found: list[int] = []
        for seed in range(2):
            prompt = [1, *(5 + (7 * i + seed) % 40 for i in range(100))]
            request = Request(prompt, Sampling(temperature=0.7, seed=seed), max_tokens=40, ignore_eos=True)
            last = list(engine.generate(request))[-1]
            assert isinstance(last, Finished)
            found += last.token_ids
        return tuple(found)

    assert ids(DraftSpec(drafter, path)) == ids(DraftSpec())  # type: ignore[arg-type]


def test_every_round_of_an_answer_tells_about_the_plain_step(
    load: Opener, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = load(tiny, DraftSpec("model", str(tiny)), n_draft=4).engine
    seen: list[tuple[int, float]] = []
    monkeypatch.setattr(engine.plain, "saw", lambda n, seconds: seen.append((n, seconds)))
    request = Request([1, 6, 7], Sampling(temperature=0.0), max_tokens=30, ignore_eos=True)
    *_, finished = engine.generate(request)
    assert isinstance(finished, Finished)
    assert len(seen) == finished.stats.rounds
    assert sum(n - 1 for n, _ in seen) == finished.stats.drafted
    assert {n for n, _ in seen} >= {5}
    assert sum(seconds for _, seconds in seen) == pytest.approx(finished.stats.verify_s)
