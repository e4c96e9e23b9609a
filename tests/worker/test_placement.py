"""Which devices target and draft get, with devices of our choice."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from localspec.errors import UsageError
from localspec.memory.devices import Device
from localspec.memory.plan import ModelMemory
from localspec.worker.placement import Placement, computed_elsewhere, place, unused
from localspec.worker.protocol import DraftSpec, Load


def card(name: str, kind: str = "gpu", description: str = "") -> SimpleNamespace:
    return SimpleNamespace(name=name, description=description, kind=kind, free=1 << 30, total=1 << 30)


CPU = card("CPU", "cpu")
TWO = (card("CUDA0"), CPU, card("CUDA1"), card("Vulkan0", "igpu"))


def placed(
    device: str, cards: Sequence[Any] | None = TWO, *, draft_model: bool = True, **options: Any
) -> Placement:
    command = Load("t.gguf", DraftSpec("model", "d.gguf", device=device), **options)
    return place(command, None if cards is None else lambda: cards, draft_model=draft_model)


def ids(devices: Sequence[Any] | None) -> list[str] | None:
    return None if devices is None else [device.id for device in devices]


def test_auto_leaves_the_draft_where_the_target_goes() -> None:
    made = placed("auto")
    assert (ids(made.target), made.draft, made.draft_stays_on_cpu) == (["CUDA0", "CUDA1"], None, False)
    assert ids(made.found) == ["CUDA0", "CUDA1", "Vulkan0"]
    assert ids(placed("auto", (CPU, card("Vulkan0", "igpu"))).target) == ["Vulkan0"]


def test_a_target_that_is_not_split_has_the_first_gpu() -> None:
    made = placed("gpu1", split_mode="none")
    assert (ids(made.target), ids(made.draft)) == (["CUDA0"], ["CUDA1"])


def test_the_cpu_and_any_gpu_can_be_named() -> None:
    made = placed("cpu")
    assert (ids(made.target), made.draft, made.draft_stays_on_cpu) == (["CUDA0", "CUDA1"], (), True)
    assert ids(placed("vulkan0").draft) == ["Vulkan0"], "the integrated GPU that the target leaves alone"
    assert not placed("1").draft_stays_on_cpu


def test_a_build_for_the_cpu_has_the_cpu_only() -> None:
    assert placed("cpu", None).draft_stays_on_cpu
    with pytest.raises(UsageError, match="no device gpu0 for the draft"):
        placed("gpu0", None)


def test_what_is_no_model_of_its_own_is_put_nowhere() -> None:
    assert placed("gpu9", draft_model=False).draft is None


def test_wishes_that_mean_nothing_to_the_drafter_are_told() -> None:
    def said(kind: Any, path: str = "", **wishes: Any) -> list[str]:
        return unused(Load("t.gguf", DraftSpec(kind, path, **wishes)))

    every = {"device": "cpu", "gpu_layers": 3, "threads": 2, "kv_type": "q8_0"}
    assert said("model", "d.gguf", **every) == []
    assert said("mtp", "mtp-t.gguf", **every) == []
    (block,) = said("mtp", **every)
    assert block.startswith("--draft-device and --draft-gpu-layers change nothing: the next-token block")
    assert said("mtp", threads=2, kv_type="q8_0") == []
    (lookup,) = said("lookup", **every)
    assert lookup == (
        "--draft-device, --draft-gpu-layers, --draft-threads and --draft-kv change nothing: "
        "lookup drafts without a model."
    )
    assert said("lookup", device="gpu1")[0].startswith("--draft-device changes nothing")
    (custom,) = said("custom", kv_type="q8_0")
    assert custom == "--draft-kv changes nothing: a drafter of your own decides that itself."
    assert said("lookup") == said("custom") == said("mtp") == said("none", **every) == []


@pytest.mark.parametrize(
    ("gpu_layers", "cards", "splits", "kv_type", "said"),
    [
        (65, 1, 2, "f16", ""),
        (65, 2, 3, "f16", ""),
        (65, 1, 34, "iq4_nl", "iq4_nl cache is the likely reason"),
        (65, 1, 34, "f16", "--flash-attn off"),
        (40, 1, 34, "iq4_nl", ""),  # the person knows that some layers are on the CPU
        (65, 0, 34, "f16", ""),
    ],
)
def test_what_the_cpu_computes_of_a_model_on_a_gpu_is_told(
    gpu_layers: int, cards: int, splits: int, kv_type: str, said: str
) -> None:
    used = tuple(Device(f"Card {i}", "gpu", 1, 1, f"CUDA{i}") for i in range(cards))
    item = ModelMemory("target", "big", (1, 0), (1, 0), (1, 0), gpu_layers, 65, used)
    notes = computed_elsewhere(item, splits, kv_type)
    assert bool(notes) == bool(said)
    assert said in "".join(notes)
    assert computed_elsewhere(None, splits, kv_type) == []
