"""Decisions with injected memory: nothing here asks the machine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from localspec.errors import OutOfMemoryError, UsageError
from localspec.memory.devices import Device
from localspec.memory.plan import Plan, plan
from localspec.memory.sizes import STATE_COPIES, ModelSizes, Shape, copies_budget
from localspec.models.gguf import Header, TensorInfo, read_header
from tests import gguf_files

MIB, GIB = 1 << 20, 1 << 30


def model(
    name: str,
    weights_mib: float,
    *,
    n_layer: int = 10,
    n_ctx: int = 8192,
    kv_heads: int = 2,
    n_vocab: int = 1000,
) -> Header:
    """A header of a `llama` whose weights have the given size: 80 % in the layers, the rest in both ends."""
    layer, end = int(weights_mib * MIB * 0.8 / n_layer), int(weights_mib * MIB * 0.1)
    n_embd = 256
    tensors: list[TensorInfo] = []

    def add(tensor_name: str, shape: tuple[int, ...], n_bytes: int) -> None:
        tensors.append(TensorInfo(tensor_name, shape, "Q4_K", n_bytes, 0))

    add("token_embd.weight", (n_embd, n_vocab), end)
    add("output.weight", (n_embd, n_vocab), end)
    for i in range(n_layer):
        add(f"blk.{i}.attn_k.weight", (n_embd, 64 * kv_heads), 0)
        add(f"blk.{i}.attn_v.weight", (n_embd, 64 * kv_heads), 0)
        add(f"blk.{i}.ffn_up.weight", (n_embd, 1024), layer)
    return Header(
        path=Path(f"/models/{name}.gguf"),
        files=(Path(f"/models/{name}.gguf"),),
        size_bytes=int(weights_mib * MIB),
        kind="model",
        architecture="llama",
        name=name,
        quant="Q4_K_M",
        n_params=1,
        n_ctx_train=n_ctx,
        n_layer=n_layer,
        n_embd=n_embd,
        n_head=(4,) * n_layer,
        n_head_kv=(kv_heads,) * n_layer,
        head_dim_k=64,
        head_dim_v=64,
        head_dim_k_sliding=64,
        head_dim_v_sliding=64,
        n_ff=1024,
        n_vocab=n_vocab,
        sliding_window=0,
        full_attention_layers=n_layer,
        sliding_layers=0,
        recurrent_layers=0,
        n_nextn=0,
        n_expert=0,
        n_expert_used=0,
        tied_output=False,
        chat_template=None,
        tokenizer_model="llama",
        tokenizer_pre="",
        tensors=tuple(tensors),
        metadata={"llama.feed_forward_length": 1024},
    )


def gpu(free_mib: float, total_mib: float = 0, name: str = "Card") -> Device:
    return Device(name, "gpu", int(free_mib * MIB), int((total_mib or free_mib) * MIB))


def ram(free_mib: float) -> Device:
    return Device("RAM", "cpu", int(free_mib * MIB), int(free_mib * MIB))


TARGET = model("big", 80)
DRAFT = model("small", 20, n_layer=4)


def decide(
    *devices: Device, free_ram: float = 4000, draft: Header | None = DRAFT, n_ctx: int = 1024, **wishes: Any
) -> Plan:
    return plan(TARGET, draft, devices=devices, ram=ram(free_ram), n_ctx=n_ctx, n_ubatch=64, **wishes)


def test_everything_on_the_gpu_when_it_fits() -> None:
    made = decide(gpu(200))
    assert (made.gpu_layers, made.draft_gpu_layers, made.keep_draft, made.notes) == (11, 5, True, ())
    assert 100 * MIB * 0.8 < made.gpu_bytes < 190 * MIB


def test_the_draft_goes_first_and_it_is_said() -> None:
    made = decide(gpu(100))
    assert (made.gpu_layers, made.keep_draft, made.draft_gpu_layers) == (11, False, 0)
    assert [item.role for item in made.items] == ["target"]
    (note,) = made.notes
    assert note.startswith("The draft was dropped: target and draft need ")
    assert "memory on Card, and 95 MiB can be used" in note
    assert made.gpu_bytes <= 95 * MIB


def test_then_as_many_target_layers_as_fit() -> None:
    made = decide(gpu(50))
    assert 0 < made.gpu_layers < 11
    assert not made.keep_draft
    assert made.gpu_bytes <= 50 * MIB * 0.95
    one_more = decide(gpu(4000), gpu_layers=made.gpu_layers + 1, draft=None)
    assert one_more.gpu_bytes > 50 * MIB * 0.95
    assert f"{made.gpu_layers} of 11 layers of the target fit on Card" in made.notes[-1]


def test_no_layer_fits_on_the_gpu() -> None:
    made = decide(gpu(2))
    assert made.gpu_layers == 0
    assert made.gpu_bytes == 0
    assert made.notes[-1].startswith("0 of 11 layers")


def test_the_context_is_never_shrunk() -> None:
    for free in (50, 100, 200):
        made = decide(gpu(free))
        cells = 1024 * 10 * 2 * 2 * 64 * 2
        assert sum(made.items[0].cache) == cells


@pytest.mark.parametrize(("free", "keeps"), [(200, True), (100, False)])
def test_on_the_cpu_the_draft_goes_first_too(free: int, keeps: bool) -> None:
    made = decide(free_ram=free)
    assert made.keep_draft is keeps
    assert made.gpu_bytes == made.gpu_layers == 0
    assert bool(made.notes) is not keeps
    if not keeps:
        assert "of RAM" in made.notes[0]


def test_nothing_fits() -> None:
    with pytest.raises(OutOfMemoryError) as caught:
        decide(free_ram=50)
    assert caught.value.message == "big does not fit into the free memory of this machine."
    assert "weights" in caught.value.why
    assert "50 MiB" in caught.value.why
    # The weights alone are too much: no flag helps, a smaller model does.
    assert caught.value.hint == "localspec models"


def test_the_hint_is_the_mildest_change_that_works() -> None:
    def hint(free: float) -> str:
        with pytest.raises(OutOfMemoryError) as caught:
            decide(free_ram=free, draft=None, n_ctx=8192)
        return caught.value.hint

    # 80 MiB of weights and 40 MiB of f16 cache at 8192 cells.
    assert hint(118) == "localspec run --kv q8_0"
    assert hint(103) == "localspec run --ctx 4096 --kv q8_0"
    assert hint(93) == "localspec run --ctx 2048 --kv q8_0"
    made = plan(TARGET, None, devices=(), ram=ram(118), n_ctx=8192, n_ubatch=64, kv_type="q8_0")
    assert made.ram_bytes < 118 * MIB


def test_explicit_layers_are_obeyed_without_a_margin() -> None:
    made = decide(gpu(4000), gpu_layers=3, draft_gpu_layers=0)
    assert (made.gpu_layers, made.draft_gpu_layers, made.keep_draft) == (3, 0, True)
    assert made.items[1].gpu == 0
    tight = decide(gpu(4000)).items[0].gpu / MIB + 0.1
    assert decide(gpu(tight), draft=None, gpu_layers=11).gpu_layers == 11
    assert decide(gpu(tight), draft=None).gpu_layers < 11


def test_explicit_layers_that_cannot_fit_are_refused_with_a_number_that_does() -> None:
    with pytest.raises(OutOfMemoryError, match="11 layers of big do not fit on Card") as caught:
        decide(gpu(50), draft=None, gpu_layers=99)
    layers = int(caught.value.hint.removeprefix("localspec run --gpu-layers "))
    assert decide(gpu(50), draft=None, gpu_layers=layers).gpu_layers == layers


def test_gpu_layers_without_a_gpu_are_said_not_to_be() -> None:
    made = decide(gpu_layers=99)
    assert made.gpu_layers == 0
    assert made.notes == (
        "99 layers were asked for on a GPU, and this build sees none: everything is on the CPU.",
    )


def test_two_gpus_are_added_up_each_with_its_margin() -> None:
    alone = decide(gpu(60), draft=None)
    both = decide(gpu(60, name="A"), gpu(60, name="B"), draft=None)
    assert alone.gpu_layers < 11
    assert both.gpu_layers == 11
    # Each device has its own compute buffer.
    assert both.items[0].compute[0] == 2 * alone.items[0].compute[0]


def test_a_large_card_keeps_512_mib_and_no_more() -> None:
    header = model("huge", 23.0 * 1024, n_layer=60)
    made = plan(header, None, devices=[gpu(24 * 1024)], ram=ram(64 * 1024), n_ctx=1024, n_ubatch=64)
    assert made.gpu_layers == 61


def test_an_integrated_gpu_is_used_only_alone() -> None:
    shared = Device("Shared", "igpu", 4000 * MIB, 4000 * MIB)
    assert decide(shared).gpu_layers == 11
    assert [device.name for device in decide(shared, gpu(200)).devices] == ["Card"]


def test_unknown_memory_refuses_nothing_and_is_a_question_mark() -> None:
    made = decide(Device("Odd", "gpu", 0, 0))
    assert (made.gpu_layers, made.keep_draft) == (11, True)
    assert "The memory of Odd is not known" in made.notes[0]
    assert any("?" in line and "Odd" in line for line in made.table())
    assert made.to_json()["devices"][0]["free"] is None
    unknown = Device("RAM", "cpu", 0, 0)
    assert plan(TARGET, DRAFT, devices=(), ram=unknown, n_ctx=1024).keep_draft


def test_a_hybrid_pays_for_its_snapshots(tmp_path: Path) -> None:
    header = read_header(gguf_files.random_qwen35(tmp_path / "q.gguf"))

    def cache(n_rs_seq: int) -> int:
        made = plan(header, None, devices=(), ram=ram(4000), n_ctx=1024, n_rs_seq=n_rs_seq)
        return sum(made.items[0].cache)

    state = cache(1) - cache(0)
    assert state > 0
    assert cache(9) - cache(0) == 9 * state


def test_a_hybrid_draft_keeps_its_state_twice_however_much_is_drafted(tmp_path: Path) -> None:
    """It returns to the state before the draft, which a second sequence holds; it needs no snapshots."""
    header = read_header(gguf_files.random_qwen35(tmp_path / "q.gguf"))

    def cache(n_rs_seq: int, role: int) -> int:
        made = plan(header, header, devices=(), ram=ram(4000), n_ctx=1024, n_rs_seq=n_rs_seq)
        return sum(made.items[role].cache)

    state = cache(1, 0) - cache(0, 0)
    assert cache(9, 1) == cache(0, 1) == cache(0, 0) + state


def test_a_sidecar_takes_its_block_and_the_cache_of_it(tmp_path: Path) -> None:
    target = read_header(gguf_files.random_qwen35(tmp_path / "q.gguf"))
    sidecar = read_header(gguf_files.random_qwen35(tmp_path / "mtp-q.gguf", n_nextn=1, sidecar=True))
    placed = plan(target, sidecar, devices=(), ram=ram(4000), n_ctx=1024, n_rs_seq=4).items[1]
    assert sum(placed.weights) == sum(tensor.n_bytes for tensor in sidecar.tensors)
    heads, head = sidecar.n_head_kv[-1], sidecar.head_dim_k
    assert sum(placed.cache) == 1024 * 2 * 2 * heads * head


def test_copies_of_a_state_are_told_and_nothing_is_given_up_for_them(tmp_path: Path) -> None:
    hybrid = read_header(gguf_files.random_qwen35(tmp_path / "q.gguf"))
    plain = read_header(gguf_files.random_llama(tmp_path / "l.gguf"))
    one = ModelSizes(hybrid, Shape(n_ctx=1024)).state_bytes
    made = plan(hybrid, plain, devices=(), ram=ram(4000), n_ctx=1024, n_rs_seq=9)
    assert [item.copies for item in made.items] == [STATE_COPIES * one, 0]
    assert [item["copies"] for item in made.to_json()["models"]] == [STATE_COPIES * one, 0]
    assert sum(" copies of its state" in line for line in made.table()) == 1
    assert made.ram_bytes == sum(sum(item.weights + item.cache + item.compute) for item in made.items)
    assert copies_budget(64 * GIB) == 512 * MIB
    assert copies_budget(800 * MIB) == 100 * MIB  # never more than an eighth of what is free


def test_the_engine_makes_as_many_copies_as_are_counted() -> None:
    script = "from localspec.llama.checkpoints import _MOST; print(_MOST)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert int(done.stdout) == STATE_COPIES


def test_the_price_of_the_window_is_told_in_both_ways(tmp_path: Path) -> None:
    header = read_header(gguf_files.random_gemma3(tmp_path / "g.gguf", n_ctx=8192))
    made = plan(header, None, devices=(), ram=ram(4000), n_ctx=8192, n_ubatch=64)
    full = sum(made.items[0].cache)
    assert full == 6 * 8192 * 2 * 2 * 16 * 2
    (note,) = made.notes
    assert "6.0 MiB at full size" in note
    assert "kept to the window it would be 1.2 MiB" in note


def test_json_and_table_say_the_same() -> None:
    made = decide(gpu(200))
    said = json.loads(json.dumps(made.to_json()))
    assert said["needed"] == {"gpu": made.gpu_bytes, "ram": made.ram_bytes}
    assert [item["role"] for item in said["models"]] == ["target", "draft"]
    assert sum(item[part]["gpu"] for item in said["models"] for part in ("weights", "cache", "compute")) == (
        made.gpu_bytes
    )
    lines = made.table()
    assert lines[0].split() == ["weights", "cache", "buffers", "total", "where"]
    assert [line.split()[0] for line in lines[1:]] == ["target", "target", "draft", "draft", "free", "free"]
    assert lines[1].endswith("GPU, 11 of 11 layers")
    assert "200 MiB of 200 MiB  Card" in lines[-2]


def test_a_short_trained_draft_has_a_shorter_cache() -> None:
    short = model("short", 20, n_layer=4, n_ctx=512)
    made = plan(TARGET, short, devices=(), ram=ram(4000), n_ctx=4096)
    assert sum(made.items[1].cache) == 512 * 4 * 2 * 2 * 64 * 2


# ------------------------------------------------------------------ the draft by itself

A, B = gpu(200, name="A"), gpu(60, name="B")


def test_a_draft_on_the_cpu_takes_no_memory_of_the_gpu() -> None:
    made = decide(gpu(100), draft_devices=())
    assert (made.gpu_layers, made.draft_gpu_layers, made.keep_draft, made.notes) == (11, 0, True, ())
    item = made.place("draft")
    assert item is not None
    assert (item.gpu, item.devices) == (0, ())
    assert item.ram >= 20 * MIB
    assert made.gpu_bytes == decide(gpu(100), draft=None).gpu_bytes
    assert [line.split()[-1] for line in made.table() if line.startswith("draft")] == ["RAM"]
    # With the target's it did not fit, and the note says where it would.
    assert "--draft-device cpu" in decide(gpu(100)).notes[0]


def test_ram_is_checked_for_a_draft_on_the_cpu() -> None:
    made = decide(gpu(200), free_ram=15, draft_devices=())
    assert not made.keep_draft
    assert "of RAM" in made.notes[0]
    assert "--draft-device" not in made.notes[0]


def test_a_second_gpu_that_is_not_the_targets_is_counted_alone() -> None:
    """As with --split-mode none: the target has the first GPU for itself."""
    first = gpu(100, name="A")
    made = decide(first, draft_devices=[B])
    assert (made.gpu_layers, made.draft_gpu_layers, made.keep_draft) == (11, 5, True)
    item = made.place("draft")
    assert item is not None
    assert [device.name for device in item.devices] == ["B"]
    assert made.tensor_split == ()
    assert [device["name"] for device in made.to_json()["devices"]] == ["A", "B", "RAM"]
    assert made.to_json()["models"][1]["devices"] == ["B"]
    assert any(line.startswith("draft") and line.endswith("B, 5 of 5 layers") for line in made.table())
    small = decide(first, draft_devices=[gpu(10, name="B")])
    assert (small.gpu_layers, small.keep_draft) == (11, False)
    assert "it needs" in small.notes[0]
    assert "memory on B, and 9.5 MiB can be used" in small.notes[0]


def test_a_target_that_is_spread_leaves_room_where_the_draft_goes() -> None:
    made = decide(A, B, draft_devices=[B])
    draft = made.place("draft")
    assert draft is not None
    assert made.tensor_split == (A.free, B.free - draft.gpu)
    # By free memory alone B would take 60/260 of the target beside the whole draft.
    target = made.place("target")
    assert target is not None
    share = target.gpu * made.tensor_split[1] / sum(made.tensor_split)
    assert share + draft.gpu <= B.free
    assert decide(A, B).tensor_split == ()
    assert decide(A, B, draft_devices=()).tensor_split == ()
    assert decide(A, B, draft=None, draft_devices=[B]).tensor_split == ()


def test_a_draft_alone_on_a_gpu_beside_a_target_on_the_cpu() -> None:
    made = decide(B, gpu_layers=0, draft_devices=[B])
    assert (made.gpu_layers, made.draft_gpu_layers) == (0, 5)
    assert made.place("target").gpu == 0  # type: ignore[union-attr]
    assert decide(B, gpu_layers=0, draft_gpu_layers=2, draft_devices=[B]).draft_gpu_layers == 2


def test_the_drafts_cache_has_a_type_of_its_own() -> None:
    def caches(**wishes: str) -> list[int]:
        made = plan(TARGET, DRAFT, devices=(), ram=ram(4000), n_ctx=1024, **wishes)  # type: ignore[arg-type]
        return [sum(item.cache) for item in made.items]

    both, draft_only = caches(), caches(draft_kv_type="q8_0")
    assert draft_only[0] == both[0]
    assert draft_only[1] == both[1] * 34 // 64
    assert caches(kv_type="q8_0") == [both[0] * 34 // 64, draft_only[1]]
    assert caches(kv_type="q8_0", draft_kv_type="f16")[1] == both[1]
    with pytest.raises(UsageError, match="no cache type 'q3'"):
        caches(draft_kv_type="q3")


def test_a_next_token_block_has_the_drafts_cache_type(tmp_path: Path) -> None:
    header = read_header(gguf_files.random_qwen35(tmp_path / "q.gguf", n_embd=128, n_nextn=1))

    def cache(draft_kv_type: str, blocks: bool) -> int:
        made = plan(
            header, None, devices=(), ram=ram(4000), n_ctx=1024, draft_kv_type=draft_kv_type, next_token_blocks=blocks
        )  # fmt: skip
        return sum(made.items[0].cache)

    block = cache("", True) - cache("", False)
    assert block > 0
    assert cache("q8_0", True) - cache("q8_0", False) == block * 34 // 64
    assert cache("q8_0", False) == cache("", False)


def test_fewer_tokens_at_once_take_smaller_buffers() -> None:
    def buffers(n_ubatch: int) -> int:
        made = plan(TARGET, None, devices=(), ram=ram(4000), n_ctx=1024, n_ubatch=n_ubatch)
        return sum(made.items[0].compute)

    assert buffers(64) < buffers(512) < buffers(2048)
