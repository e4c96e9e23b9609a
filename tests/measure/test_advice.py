"""Each row of the table of troubles: seen figures in, cause and command out."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import typer

from localspec.cli.app import build
from localspec.measure.advice import advise, best_length
from localspec.measure.seen import Seen

GOOD = Seen(
    target="big",
    draft="4b",
    n_draft=4,
    n_ctx=8192,
    speedup=1.8,
    low=1.75,
    high=1.85,
    acceptance_rate=0.75,
    mean_accepted_length=3.1,
    per_position=(0.9, 0.85, 0.8, 0.75),
    bound=1.9,
    cost_ratio=0.12,
    verify_curve=((1, 1.0), (2, 1.05), (3, 1.1), (4, 1.1), (5, 1.15)),
    target_layers=64,
    draft_layers=36,
    target_on_gpu=True,
    draft_on_gpu=True,
    vram_used=20,
    vram_total=24,
)
NO_GAIN = replace(GOOD, speedup=1.01, low=0.96, high=1.06, bound=1.1)
SLOWER = replace(GOOD, speedup=0.8, low=0.75, high=0.85, bound=0.82)

TABLE = {
    "no speedup": (NO_GAIN, "No speedup beyond noise: 1.01× (0.96 to 1.06)", "--repeats 7"),
    "slower": (SLOWER, "it is slower: 0.80× (0.75 to 0.85)", "localspec run big --draft none"),
    "out of memory": (
        replace(GOOD, out_of_memory="Target and draft do not fit into memory together."),
        "do not fit into memory together",
        "localspec run big --draft 4b --kv q8_0 --ctx 8192",
    ),
    "out of memory with a small cache": (
        replace(GOOD, out_of_memory="It does not fit.", kv="q8_0"),
        "does not fit",
        "localspec run big --draft 4b --kv q8_0 --ctx 4096",
    ),
    "out of memory with nothing left": (
        replace(GOOD, out_of_memory="It does not fit.", kv="q8_0", n_ctx=2048),
        "does not fit",
        "localspec run big --kv q8_0 --ctx 2048 --draft lookup",
    ),
    "repeats": (replace(GOOD, repetition=0.6), "repeats itself: 60%", "--temp 0.7"),
    "repeats when warm": (replace(GOOD, repetition=0.6, temperature=0.7), "repeats", "--repeat-penalty 1.1"),
    "acceptance near zero": (
        replace(SLOWER, acceptance_rate=0.03, per_position=(0.03, 0.0)),
        "Only 3% of the drafts had a right first token",
        "localspec check big 4b",
    ),
    "a drafter of one's own that could not draft": (
        replace(NO_GAIN, draft="my:Own", draft_off_reason="the drafter raised ValueError: no"),
        "Nothing was drafted: the drafter raised ValueError: no.",
        "localspec doctor",
    ),
    "lookup finds nothing": (
        replace(NO_GAIN, draft="lookup", acceptance_rate=0.03, per_position=(0.03,)),
        "Only 3%",
        "localspec models",
    ),
    "acceptance falls with depth": (
        replace(GOOD, acceptance_by_length=((200, 0.8), (2000, 0.7), (4000, 0.5))),
        "from 80% at 200 tokens to 50% at 4000",
        "localspec run big --draft 4b --n-draft auto",
    ),
    "a heavy draft": (
        replace(SLOWER, cost_ratio=0.8),
        "A draft step takes 0.80 of a target step",
        "localspec bench big --draft lookup",
    ),
    "a draft deeper than the target": (
        replace(SLOWER, cost_ratio=0.4, draft_layers=80),
        "the draft has 80 layers, the target 64",
        "localspec bench big --draft lookup",
    ),
    "the draft on the CPU": (
        replace(NO_GAIN, draft_on_gpu=False),
        "The target is on the GPU, the draft on the CPU",
        "--draft-gpu-layers -1",
    ),
    "too long a draft": (
        replace(SLOWER, per_position=(0.9, 0.3, 0.1, 0.1), cost_ratio=0.2),
        "Position 4 is accepted in 10%",
        "localspec bench big --draft 4b --n-draft 1",
    ),
    "another program on the GPU": (
        replace(GOOD, gpu_busy=True, gpu_programs=("blender",)),
        "Other programs used the GPU (blender)",
        "localspec bench big --draft 4b",
    ),
    "another program on the CPU": (
        replace(GOOD, others_cpu=0.4, busy_programs=("cc1plus",)),
        "up to 40% of the CPU (cc1plus)",
        "localspec bench big --draft 4b",
    ),
    "another program on the CPU that computes": (
        replace(GOOD, others_cpu=0.4, target_on_gpu=False, threads=8),
        "up to 40% of the CPU",
        "localspec bench big --draft 4b --threads 7",
    ),
    "another program on the GPU, in a chat": (
        replace(GOOD, one_answer=True, gpu_busy=True, gpu_percent=83, gpu_programs=("blender",)),
        "Other programs use the GPU: it is 83 % busy while we rest (blender)",
        "nvidia-smi",
    ),
    "another program on the CPU, in a chat": (
        replace(GOOD, one_answer=True, others_cpu=0.4, target_on_gpu=False, threads=8),
        "Other programs took 40% of the CPU",
        "localspec run big --draft 4b --threads 7 --continue",
    ),
    "acceptance falls in a chat": (
        replace(GOOD, one_answer=True, acceptance_by_length=((300, 0.8), (2100, 0.5))),
        "from 80% at 300 tokens of this conversation to 50% at 2,100",
        "/n-draft auto",
    ),
    "a heavy draft in a chat": (
        replace(SLOWER, one_answer=True, cost_ratio=0.8),
        "A draft step takes 0.80 of a target step",
        "localspec run big --draft lookup --continue",
    ),
    "repeats in a chat": (
        replace(GOOD, one_answer=True, repetition=0.6, temperature=0.7),
        "repeats",
        "/repeat-penalty 1.1",
    ),
    "a CPU build beside a GPU": (
        replace(GOOD, target_on_gpu=False, idle_gpu="RTX 3090", gpu_build="CMAKE_ARGS=x pip install y"),
        "beside an idle RTX 3090",
        "CMAKE_ARGS=x pip install y",
    ),
    "the draft is off": (
        replace(GOOD, draft_off_reason="the vocabularies differ"),
        "Nothing was drafted: the vocabularies differ",
        "localspec check big 4b",
    ),
    "a draft length of 0": (
        replace(GOOD, draft_off_reason="the draft length is 0", n_draft=0),
        "Nothing was drafted: the draft length is 0",
        "localspec bench big --draft 4b --n-draft auto",
    ),
    "one answer was slower": (
        replace(GOOD, one_answer=True, speedup=0.7, speeds="24.5 tok/s, plain 35.0", low=None, high=None),
        "this answer was slower than without: 0.70× (24.5 tok/s, plain 35.0)",
        "/n-draft auto",
    ),
    "one answer was slower with a length by price": (
        replace(GOOD, one_answer=True, speedup=0.7, speeds="24.5 tok/s, plain 35.0", auto=True),
        "0.70×",
        "/draft off",
    ),
    "the context is nearly full": (
        replace(GOOD, context_used=7400),
        "7,400 of 8,192 tokens of the context",
        "/drop",
    ),
    "other programs hold GPU memory": (
        replace(GOOD, vram_used=1 << 30, vram_total=24 << 30, gpu_held=6 << 30, gpu_programs=("blender",)),
        "hold 6.0 GiB of 24.0 GiB on the GPU (blender)",
        "nvidia-smi",
    ),
    "little RAM is free": (
        replace(GOOD, ram_free=1 << 30, ram_total=32 << 30),
        "1.0 GiB of 32.0 GiB RAM are free",
        "localspec run big --kv q8_0 --ctx 2048",
    ),
    "memory at the brim": (replace(GOOD, vram_used=239, vram_total=240), "100% of the GPU's", "--kv q8_0"),
}


@pytest.mark.parametrize("name", TABLE)
def test_the_table(name):
    seen, words, command = TABLE[name]
    found = [one for one in advise(seen) if words in one.seen]
    assert len(found) == 1, [one.seen for one in advise(seen)]
    assert command in found[0].command
    assert found[0].cause


def test_nothing_is_said_when_all_is_well():
    assert advise(GOOD) == []


def test_nothing_is_concluded_from_what_is_not_known():
    assert advise(Seen()) == []
    assert advise(Seen(target="big", draft="4b", speedup=1.2)) != []
    assert all("None" not in f"{one.seen}{one.cause}{one.command}" for one in advise(Seen(speedup=1.0)))


def test_a_gain_is_not_talked_down():
    assert advise(replace(GOOD, per_position=(0.1, 0.1), cost_ratio=0.7, draft_on_gpu=False)) == []


def test_one_answer_within_its_noise_says_nothing():
    for speedup in (0.95, 1.0, 1.05):
        assert advise(replace(GOOD, one_answer=True, speedup=speedup, low=None, high=None)) == []


def test_a_fixed_length_has_to_be_clearly_slower_since_its_plain_speed_is_an_estimate():
    one = replace(GOOD, one_answer=True, speedup=0.85, low=None, high=None, speeds="8.5 tok/s, plain 10.0")
    assert advise(one) == []
    assert [said.kind for said in advise(replace(one, auto=True))] == ["slower"]
    assert [said.kind for said in advise(replace(one, speedup=0.79))] == ["slower"]


def test_advice_names_its_rule():
    kinds = [one.kind for one in advise(replace(SLOWER, context_used=8000))]
    assert kinds == ["context", "slower"]


def test_an_automatic_length_is_not_told_to_be_shorter():
    seen = replace(SLOWER, per_position=(0.9, 0.3, 0.1, 0.1), cost_ratio=0.2, auto=True)
    assert not any("--n-draft" in one.command for one in advise(seen))


def test_every_command_parses():
    cli = typer.main.get_command(build())
    for seen, _, _ in TABLE.values():
        for advice in advise(seen):
            if not advice.command.startswith("localspec "):
                continue
            name, *rest = advice.command.split()[1:]
            command = cli.commands[name]
            with command.make_context(name, list(rest)):
                pass
            assert not re.search(r"  |\s$", advice.command)


@pytest.mark.parametrize(
    ("positions", "ratio", "slope", "best"),
    [
        ((0.9, 0.9, 0.9), 0.0, 0.0, 3),
        ((0.9, 0.1, 0.1), 0.2, 0.0, 1),
        ((0.1, 0.1), 0.5, 0.5, 0),
        ((), 0.1, 0.1, 0),
    ],
)
def test_the_best_length_by_the_measured_parts(positions, ratio, slope, best):
    curve = {n: 1 + slope * (n - 1) for n in range(1, 5)}
    length, gain = best_length(positions, curve, ratio)
    assert length == best
    assert gain >= 1.0
