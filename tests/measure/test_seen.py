"""From an answer of a chat, or a look at the machine, to what advice looks at."""

from __future__ import annotations

from dataclasses import replace

import pytest

from localspec.measure.advice import advise
from localspec.measure.seen import from_answer, from_machine
from localspec.measure.surroundings import Program, Surroundings
from localspec.spec.events import DraftStatus, Finished, Sampling
from localspec.spec.stats import Stats
from localspec.worker.protocol import DraftSpec, Load, MemoryUse, ModelInfo, Ready

GIB = 1 << 30
ON = DraftStatus("on", "", "d.gguf", 4, plain_s=0.02)
STATS = Stats(
    prompt_tokens=100,
    completion_tokens=201,
    rounds=80,
    drafted_rounds=80,
    drafted=320,
    accepted=120,
    drafted_at=(80, 80, 80, 80),
    accepted_at=(60, 40, 15, 5),
    decode_tokens=200,
    decode_s=2.0,
    draft_s=0.32,
    verify_s=1.6,
)
MODEL = ModelInfo("t.gguf", "t", "llama", "Q4_0", 1, 1, 4096, 30, 0, "CPU", "f16", {})
READY = Ready(MODEL, replace(MODEL, n_layer=10), ON, 4096, 8, MemoryUse("RAM", 1, 9), False, None, {})
LOAD = Load("t.gguf", DraftSpec("model", "d.gguf"))
FINISHED = Finished("stop", "", "", tuple(range(201)), STATS, ON, 301, 4096)


def seen(finished=FINISHED, ready=READY, load=LOAD, memory=None, wanted=True, **more):
    return from_answer(
        ready,
        load,
        finished,
        target="my target",
        draft="d",
        sampling=Sampling(),
        memory=memory,
        wanted=wanted,
        **more,
    )


def test_figures_of_an_answer():
    found = seen()
    assert found.speedup == pytest.approx(2.0)
    assert found.speeds == "100.0 tok/s, plain 50.0"
    assert found.cost_ratio == pytest.approx(0.05)
    assert found.target == "'my target'"
    assert advise(found) == []


def test_a_slower_answer():
    slow = replace(FINISHED, stats=replace(STATS, decode_s=6.0))
    assert [one.kind for one in advise(seen(slow))] == ["slower"]


def test_a_short_answer_concludes_nothing_about_speed():
    short = replace(FINISHED, stats=replace(STATS, completion_tokens=63, decode_tokens=62, decode_s=6.0))
    assert advise(seen(short)) == []
    few = replace(FINISHED, stats=replace(STATS, decode_s=6.0, drafted_rounds=15))
    assert advise(seen(few)) == []


def test_nothing_accepted():
    none = replace(STATS, accepted=2, accepted_at=(2, 0, 0, 0), decode_s=6.0)
    kinds = [one.kind for one in advise(seen(replace(FINISHED, stats=none)))]
    assert kinds[0] == "nothing_accepted"


def test_a_draft_that_is_off():
    off = DraftStatus("off", "llama.cpp could not decode it", "d.gguf")
    plain = replace(STATS, drafted_rounds=0, drafted=0, drafted_at=(), accepted_at=())
    finished = replace(FINISHED, stats=plain, draft=off)
    assert [one.kind for one in advise(seen(finished))] == ["off"]
    assert advise(seen(finished, wanted=False)) == []  # the person did that
    assert advise(seen(finished, load=replace(LOAD, auto=True))) == []  # the price did that
    refused = replace(READY, draft=off)
    assert [one.kind for one in advise(seen(finished, refused, replace(LOAD, auto=True)))] == ["off"]


def test_context_and_memory_count_for_short_answers_too():
    short = replace(FINISHED, stats=Stats(completion_tokens=3), context_used=3900)
    full = MemoryUse("VRAM", 239 * GIB // 10, 24 * GIB)
    assert [one.kind for one in advise(seen(short, memory=full))] == ["context", "nearly_full"]


def test_other_programs_beside_an_answer():
    around = Surroundings(0.6, (Program(1, "cc1plus", 0.4),), 60, (Program(2, "blender"),))
    on_cpu = seen(others_cpu=0.4, surroundings=around)
    assert [one.kind for one in advise(on_cpu)] == ["busy"]
    assert "40% of the CPU (cc1plus)" in advise(on_cpu)[0].seen
    on_gpu = replace(READY, target=replace(MODEL, gpu_layers=31), draft_model=replace(MODEL, gpu_layers=31))
    said = advise(seen(ready=on_gpu, others_cpu=0.9, surroundings=around))
    assert [one.kind for one in said] == ["busy"]
    assert "60 % busy while we rest (blender)" in said[0].seen
    assert advise(seen(ready=on_gpu, others_cpu=0.9, surroundings=replace(around, gpu_percent=3))) == []
    short = replace(FINISHED, stats=replace(STATS, completion_tokens=63))
    assert advise(seen(short, others_cpu=0.9, surroundings=around)) == []


def test_a_look_at_the_machine():
    nothing = Surroundings(0.9, (), None, ())
    assert advise(from_machine(nothing, vram_free=0, vram_total=0, ram_free=0, ram_total=0)) == []
    held = Surroundings(0.0, (), 3, (Program(1, "blender", gpu_bytes=GIB),))
    found = from_machine(held, vram_free=18 * GIB, vram_total=24 * GIB, ram_free=GIB, ram_total=64 * GIB)
    said = advise(found)
    assert [one.kind for one in said] == ["held", "scarce"]
    assert "6.0 GiB of 24.0 GiB on the GPU (blender)" in said[0].seen
    busy = replace(held, gpu_percent=80)
    kinds = [
        one.kind for one in advise(from_machine(busy, vram_free=0, vram_total=0, ram_free=9, ram_total=10))
    ]
    assert kinds == ["busy"]
