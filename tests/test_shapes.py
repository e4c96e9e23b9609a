"""The measurement without weights: files with drawn weights, forced acceptance, and the script as it is called."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest

from localspec.errors import UsageError
from localspec.llama.context import Context
from localspec.llama.model import Model
from localspec.spec.draft_model import ModelDrafter
from localspec.spec.engine import Engine
from scripts.peers import forced, forced_runs, shapes
from scripts.peers.clock import NativeClock
from scripts.peers.native import DEFAULT_LENGTH

SCRIPT = Path(__file__).parent.parent / "scripts" / "bench_shapes"
TINY = shapes.shape_of("2x256x512")


# ------------------------------------------------------------------------------------------------------------- files


@pytest.mark.parametrize("quant", list(shapes.FORMATS))
def test_drawn_weights_are_centred_and_have_the_deviation_that_keeps_a_signal(
    tmp_path: Path, quant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shapes, "_PIECE", 100)  # a matrix is written in several pieces
    path = shapes.write(tmp_path / "m.gguf", TINY, quant, 1024)
    reader = gguf.GGUFReader(path)
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    assert set(tensors) >= {name for name, _, _ in TINY.matrices(1024)}
    for name, rows, columns in TINY.matrices(1024):
        tensor = tensors[name]
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        assert values.shape == (rows, columns)
        assert values.std() == pytest.approx(1 / np.sqrt(columns), rel=0.05)
        assert abs(values.mean()) < 0.05 / np.sqrt(columns)
    assert not np.array_equal(tensors["blk.0.attn_k.weight"].data, tensors["blk.1.attn_k.weight"].data)
    matrices = sum(tensors[name].n_bytes for name, _, _ in TINY.matrices(1024))
    assert shapes.file_size(TINY, quant, 1024) == matrices
    assert not list(tmp_path.glob("*.partial"))


def test_llama_cpp_computes_with_such_a_file(tmp_path: Path) -> None:
    model = Model(shapes.write(tmp_path / "m.gguf", TINY, "q4_k", 1024))
    context = Context(model, n_ctx=64, max_outputs=4, threads=1)
    try:
        context.decode([300, 301, 302, 303], "all")
        rows = np.array(context.logits())
        assert rows.shape == (4, 1024)
        assert np.isfinite(rows).all()
        assert 0.1 < rows.std() < 10
        assert not np.allclose(rows[0], rows[3])
    finally:
        context.close()
        model.close()


def test_known_shapes_have_the_size_that_their_name_says() -> None:
    for name, shape in shapes.SHAPES.items():
        billions = shape.parameters(32_000 if shape.width < 2048 else 151_936) / 1e9
        assert billions == pytest.approx(float(name.removesuffix("b")), rel=0.3)
        assert all(columns % 256 == 0 for _, _, columns in shape.matrices(512))


@pytest.mark.parametrize("said", ["huge", "2x100x512", "0x256x512", "2x256", "x"])
def test_what_is_no_shape_is_refused(said: str) -> None:
    with pytest.raises(UsageError) as refused:
        shapes.shape_of(said)
    assert refused.value.why


def test_a_file_that_cannot_be_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match="cannot be written in q4_k"):
        shapes.write(tmp_path / "m.gguf", replace(TINY, ffn=96), "q4_k", 1024)
    with pytest.raises(UsageError, match="too small"):
        shapes.write(tmp_path / "m.gguf", TINY, "q4_0", 10)
    monkeypatch.setattr(shapes.shutil, "disk_usage", lambda _: type("Disk", (), {"free": 1000})())
    with pytest.raises(UsageError, match="GB are free") as refused:
        shapes.write(tmp_path / "m.gguf", TINY, "q4_0", 1024)
    assert "--folder" in refused.value.hint
    assert list(tmp_path.iterdir()) == []


# ------------------------------------------------------------------------------------------------ forced acceptance


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    target = Model(shapes.write(tmp_path / "t.gguf", TINY, "q4_0", 1024))
    draft = Model(shapes.write(tmp_path / "d.gguf", shapes.shape_of("1x256x256"), "q4_0", 1024))
    context = Context(target, n_ctx=512, max_outputs=17, threads=1)
    draft_context = Context(draft, n_ctx=512, max_outputs=16, threads=1)
    drafter = ModelDrafter(draft_context, name="d", n_vocab=1024)
    yield Engine(context, target.vocab, drafter=drafter, n_draft=16)
    for one in (draft_context, context, draft, target):
        one.close()


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_exactly_what_the_script_says_is_accepted(engine: Engine, temperature: float) -> None:
    script = forced.Script.drawn(1024, 20, 200)
    clock = NativeClock()
    try:
        for acceptance, length in ((0.0, 4), (0.6, 3), (0.6, 3), (1.0, 5)):
            found = forced.ask(engine, script, acceptance, 200, clock, length=length, temperature=temperature)
            answer = found.answer
            assert answer.ids == script.ids[20:220]
            # Replayed by hand: a round takes right drafts up to the first wrong one, and a token of its own.
            at, rounds, accepted = 21, 0, 0
            while at < 220:
                room = min(length, 220 - at - 1)
                right = 0
                while right < room and script.luck[at + right] < acceptance:
                    right += 1
                at, rounds, accepted = at + right + 1, rounds + 1, accepted + right
            assert (answer.rounds, answer.accepted) == (rounds, accepted)
            assert len(found.own_s) == len(found.round_s) == rounds
            assert all(0 < own < whole for own, whole in zip(found.own_s, found.round_s, strict=True))
        plain = forced.ask(engine, script, 1.0, 50, clock, length=0)
        assert (plain.answer.drafted, plain.answer.tokens) == (0, 50)
    finally:
        clock.stop()


def test_the_clock_leaves_llama_cpp_as_it_was() -> None:
    import llama_cpp

    before = llama_cpp.llama_decode
    clock = NativeClock()
    assert llama_cpp.llama_decode is not before
    clock.stop()
    assert llama_cpp.llama_decode is before


def test_the_bound_of_a_chance() -> None:
    assert forced_runs.tokens_per_round(0.5, 3) == pytest.approx(1.875)
    verify = {1: 0.1, 4: 0.25}
    assert forced_runs.bound(0.5, 3, verify, 0.01) == pytest.approx(1.875 * 0.1 / (0.25 + 0.03))
    assert forced_runs.bound(1.0, 0, verify, 0.01) == 1
    rival = forced_runs.synthetic(Path("d.gguf"), DEFAULT_LENGTH, 0.5)
    flags = dict(zip(rival.flags[::2], rival.flags[1::2], strict=True))
    assert flags["--spec-synth-len"] == "1.875000"
    assert flags["--spec-draft-n-max"] == "3"
    more = forced_runs.synthetic(Path("d.gguf"), 3, 0.5, ("--gpu-layers", "7"))
    assert more.flags == (*rival.flags, "--gpu-layers", "7")


def test_a_stop_keeps_the_repeats_that_are_complete(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = forced_runs.Settings((0.5,), (1, 2), tokens=16, depth=16, repeats=3)
    monkeypatch.setattr(forced_runs, "_COST_SECONDS", 0.01)
    clock, asked = NativeClock(), 0
    honest = forced_runs.ask

    def ask(*arguments: object, **more: object) -> forced.Measured:
        nonlocal asked
        asked += 1
        if asked == 1 + 4 + 2:  # to warm up, one repeat, and half another
            raise KeyboardInterrupt
        return honest(*arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(forced_runs, "ask", ask)
    try:
        runs = forced_runs.Runs(engine, settings, clock, lambda _: None)
        assert runs.go()
        found = runs.to_json()
        assert [(row["acceptance"], row["length"]) for row in found["rows"]] == [
            (0.5, "1"),
            (0.5, "2"),
            (0.5, "auto"),
        ]
        assert sum(row["best"] for row in found["rows"]) == 1
        asked = 5  # now in the first repeat
        with pytest.raises(KeyboardInterrupt):
            forced_runs.Runs(engine, settings, clock, lambda _: None).go()
    finally:
        clock.stop()


# -------------------------------------------------------------------------------------------------------- the script


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments], check=False, capture_output=True, text=True, timeout=120
    )


def test_the_script_writes_measures_and_finds_its_files_again(tmp_path: Path) -> None:
    shape = {"target": "2x256x512", "draft": "1x256x256", "vocab": "1024", "tokens": "16", "depth": "16"}
    small = [word for name, value in shape.items() for word in (f"--{name}", value)]
    small += ["--repeats", "1", "--threads", "1"]
    command = [*small, "--folder", str(tmp_path), "--lengths", "2", "--acceptance", "1"]
    done = run(*command, "--json", "-")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert set(found["verify_s"]) == {str(n) for n in range(1, 18)}
    assert found["draft_step_s"] > 0
    fixed, auto = found["rows"]
    assert (fixed["length"], auto["length"]) == ("2", "auto")
    assert fixed["accepted"] == fixed["drafted"] == 10
    assert fixed["tokens_per_round"] == 3
    assert 0 < fixed["own_share"] < 1
    done = run(*command)
    assert done.returncode == 0, done.stderr
    assert "writing" not in done.stderr
    assert "draft step" in done.stdout
    assert "best" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--target", "huge"), "There is no shape 'huge'."),
        (("--target", "900x65536x65536"), "of memory"),
        (("--acceptance", "1.5"), "0 to 1"),
    ],
)
def test_the_script_refuses_in_words(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    done = run(*arguments, "--folder", str(tmp_path))
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())
