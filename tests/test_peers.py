"""The comparison with other programs, without weights: models it makes, answers it reads, figures it works out."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest

from localspec.errors import LoadError, LocalspecError, UsageError
from localspec.spec.events import DraftStatus, Finished, Round, Sampling
from localspec.spec.stats import Counters
from scripts.peers import build, models, native, ours, parts, protocol, table, words
from scripts.peers.answers import GREEDY, PROMPTS, Answer, Asked, Mark, Prices, as_ids, shared
from scripts.peers.bench import Bench
from scripts.peers.runner import (
    BARE,
    NATIVE,
    OURS,
    SCREEN,
    STOCK,
    Cell,
    Entry,
    OutOfTimeError,
    Runner,
    Sample,
)
from scripts.peers.stock import Stock
from scripts.peers.targets import Target, evaluate
from tests.gguf_files import random_gemma3, random_llama, script_model


def greedy(path: Path, ids: list[int], tokens: int) -> tuple[int, ...]:
    asked = Asked(PROMPTS["code"], tuple(ids))
    with Stock(path, "", n_ctx=256, threads=1, bare=True) as child:
        return child.step(asked, (), tokens).ids


# ------------------------------------------------------------------------------------------------------------ models


def test_a_padded_model_is_deeper_and_says_the_same(tmp_path: Path) -> None:
    small = random_llama(tmp_path / "small.gguf", seed=3)
    padded = models.pad(small, tmp_path / "padded.gguf", 3)
    before, after = gguf.GGUFReader(small), gguf.GGUFReader(padded)
    assert after.fields["llama.block_count"].contents() == 3 * before.fields["llama.block_count"].contents()
    kept = {name for name in before.fields if not name.startswith("GGUF.")}
    assert all(
        after.fields[name].contents() == before.fields[name].contents()
        for name in kept - {"llama.block_count"}
    )
    tensors = {tensor.name: tensor.data for tensor in after.tensors}
    assert np.array_equal(tensors["blk.3.ffn_up.weight"], tensors["blk.5.ffn_up.weight"])
    assert tensors["blk.3.ffn_down.weight"].any()
    assert not tensors["blk.4.ffn_down.weight"].any()
    assert not tensors["blk.4.attn_output.weight"].any()
    assert greedy(padded, [1, 5, 6, 7], 40) == greedy(small, [1, 5, 6, 7], 40)
    assert not list(tmp_path.glob("*.writing"))


def test_padding_refuses_what_it_would_change(tmp_path: Path) -> None:
    small = random_llama(tmp_path / "small.gguf")
    with pytest.raises(UsageError, match="0 times"):
        models.pad(small, tmp_path / "padded.gguf", 0)
    with pytest.raises(UsageError, match="cannot be padded") as refused:
        models.pad(random_gemma3(tmp_path / "windows.gguf"), tmp_path / "padded.gguf", 2)
    assert "number" in refused.value.why
    reader = gguf.GGUFReader(small)
    writer = gguf.GGUFWriter(tmp_path / "odd.gguf", "llama")
    writer.add_uint32("llama.block_count", 2)
    for tensor in reader.tensors:
        if not tensor.name.endswith("ffn_down.weight"):
            writer.add_tensor(tensor.name, tensor.data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(UsageError, match="cannot be padded"):
        models.pad(tmp_path / "odd.gguf", tmp_path / "padded.gguf", 2)
    assert not (tmp_path / "padded.gguf").exists()


def test_the_wrong_draft_costs_the_same_and_never_agrees(tmp_path: Path) -> None:
    right = script_model(tmp_path / "right.gguf", {token: token + 1 for token in range(3, 290)})
    wrong = models.always_wrong(right, tmp_path / "wrong.gguf")
    shapes = [
        {t.name: (tuple(t.shape), t.tensor_type) for t in gguf.GGUFReader(f).tensors} for f in (right, wrong)
    ]
    assert shapes[0] == shapes[1]
    assert greedy(right, [1, 10], 5) == (11, 12, 13, 14, 15)
    text = list(greedy(right, [1, 10], 20))
    asked = Asked(PROMPTS["code"], (1, 10))
    with Stock(wrong, "", n_ctx=256, threads=1, bare=True) as child:
        for end in range(1, 20):
            assert child.step(asked, tuple(text[:end]), 1).ids[0] != text[end]


def test_models_are_made_once_and_never_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = random_llama(tmp_path / "source.gguf", n_embd=256)
    made: list[str] = []
    files = models.prepare(tmp_path / "models", source, 2, None, made.append)
    assert made == [
        f"making {n}" for n in ("smol-Q4_0.gguf", "smol-Q4_0x2.gguf", "smol-Q2_K.gguf", "smol-wrong.gguf")
    ]
    assert all(path.is_file() for path in (files.small, files.padded, *files.drafts.values()))
    models.prepare(tmp_path / "models", source, 2, None, made.append)
    assert len(made) == 4
    files.padded.unlink()
    monkeypatch.setattr(models, "_copy", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        models.prepare(tmp_path / "models", source, 2, None)
    assert sorted(path.name for path in (tmp_path / "models").iterdir()) == [
        "smol-Q2_K.gguf",
        "smol-Q4_0.gguf",
        "smol-wrong.gguf",
    ]


# ------------------------------------------------------------------------------------------------------------ answers


def test_rates_of_an_answer() -> None:
    answer = Answer(
        tokens=41, seconds=4.0, drafted=60, accepted=20, marks=(Mark(1, 0.0), Mark(21, 1.0), Mark(41, 4.0))
    )
    assert answer.tok_s == 10
    assert answer.rounds == 20
    assert answer.tokens_per_round == 2
    assert answer.acceptance == pytest.approx(1 / 3)
    assert answer.part(1, 21) == 20
    assert answer.part(21, 41) == pytest.approx(20 / 3)
    assert answer.part(22, 41) == 0
    assert Answer(tokens=1, seconds=0.0).tok_s == 0
    assert Answer(tokens=1, seconds=0.0).tokens_per_round is None


@pytest.mark.parametrize(
    ("one", "two", "same"),
    [
        ({"ids": (1, 2)}, {"ids": (1, 2, 3)}, True),
        ({"ids": (1, 9)}, {"ids": (1, 2, 3)}, False),
        ({"text": " a tal"}, {"text": "a tale", "ids": (1,)}, True),
        ({"text": "a caf\ufffd"}, {"text": "a café"}, True),
        ({"text": "a tale"}, {"text": "a song"}, False),
        ({"text": ""}, {"text": "a song"}, None),
    ],
)
def test_answers_agree_as_far_as_both_go(
    one: dict[str, object], two: dict[str, object], same: bool | None
) -> None:
    answers = [Answer(tokens=3, seconds=1.0, **fields) for fields in (one, two)]  # type: ignore[arg-type]
    assert answers[0].agrees(answers[1]) is same
    assert answers[1].agrees(answers[0]) is same


def test_answers_are_compared_as_far_as_their_texts_are_the_same() -> None:
    marks = (Mark(1, 0.5), Mark(5, 1.5, 3, 0), Mark(8, 2.5, 7, 4), Mark(12, 4.5, 10, 4))
    one = Answer(
        12, 4.0, drafted=10, accepted=8, lengths={3: 2, 4: 1}, free=4, marks=marks, ids=tuple(range(12))
    )
    two = replace(one, ids=(*range(9), 77, 78, 79))
    cut, other = shared(one, two)
    assert (cut.tokens, cut.seconds, cut.drafted, cut.accepted, cut.free) == (8, 2.0, 7, 5, 4)
    assert cut.lengths == {3: 1, 4: 1}
    assert cut.ids == other.ids == tuple(range(8))
    assert cut.tok_s == pytest.approx(3.5)
    assert shared(one, one) == (one, one)
    assert shared(one, replace(one, ids=())) == (one, replace(one, ids=()))  # a program that tells no ids


def test_the_bound_is_the_time_of_drafts_and_batches_alone() -> None:
    prices = Prices()
    assert prices.bound(Answer(tokens=11, seconds=1, drafted=30, accepted=0)) is None
    prices.add({1: 0.1, 4: 0.2}, 0.01)
    prices.add({1: 0.3, 4: 0.2}, 0.03)
    prices.add({1: 0.1, 4: 0.2}, 0.02)
    # 10 rounds of 3 drafted: each 0.2 + 3 * 0.02 (the medians), and 25 tokens come out.
    exact = Answer(tokens=26, seconds=9, drafted=30, accepted=15, lengths={3: 10})
    assert prices.bound(exact) == pytest.approx(25 / (10 * 0.26))
    assert prices.bound(replace(exact, lengths={})) == pytest.approx(25 / (10 * 0.26))
    mixed = Answer(tokens=21, seconds=9, drafted=15, accepted=5, lengths={0: 10, 3: 5})
    assert prices.bound(mixed) == pytest.approx(20 / (10 * 0.1 + 5 * 0.26))
    # What lookup proposed took no steps of the model.
    assert prices.bound(replace(exact, free=12)) == pytest.approx(25 / (10 * 0.26 - 12 * 0.02))


def test_every_program_gets_the_ids_that_the_template_makes(tmp_path: Path) -> None:
    path = random_llama(tmp_path / "model.gguf")
    first, second = as_ids(path, [PROMPTS["edit"], PROMPTS["prose"]])
    assert first.prompt is PROMPTS["edit"]
    assert first.ids[0] == 1
    assert len(first.ids) > 200
    assert first.ids != second.ids


def test_lengths_of_rounds_come_from_the_counters() -> None:
    counters = Counters(completion_tokens=1)
    off = DraftStatus("on")
    rounds = [Round((), counters.snapshot(), off, 0, 0)]
    for number, (drafted, accepted) in enumerate([(3, 1), (3, 3), (0, 0)], 1):
        counters.add_round(drafted, accepted, ("small.gguf", "lookup", "")[number - 1])
        counters.completion_tokens += accepted + 1
        counters.decode_s = float(number)
        rounds.append(Round((), counters.snapshot(), off, 0, 0))
    end = Finished("length", "", "", (1,) * 8, counters.snapshot(), off, 0, 0)
    answer = ours.to_answer(rounds, end)
    assert answer.lengths == {3: 2, 0: 1}
    assert (answer.drafted, answer.free) == (6, 3)
    assert answer.marks == ((1, 0.0, 0, 0), (3, 1.0, 3, 0), (7, 2.0, 6, 3), (8, 3.0, 6, 3))
    assert (answer.rounds, answer.tokens_per_round) == (3, pytest.approx(7 / 3))


# ------------------------------------------------------------------------------------------------------------- server

REPLY = {
    "tokens": [7, 8, 9],
    "timings": {
        "cache_n": 0,
        "prompt_n": 12,
        "predicted_n": 41,
        "predicted_ms": 2000.0,
        "draft_n": 60,
        "draft_n_accepted": 20,
    },
}


def test_the_servers_answer_is_read() -> None:
    answer = native.read_answer(REPLY, 12)
    assert (answer.tok_s, answer.rounds, answer.acceptance, answer.ids) == (20, 20, 1 / 3, (7, 8, 9))


@pytest.mark.parametrize("changed", [{"cache_n": 5}, {"prompt_n": 11}, {"predicted_ms": None}])
def test_an_answer_to_something_else_is_refused(changed: dict[str, object]) -> None:
    with pytest.raises(LocalspecError, match="llama-server"):
        native.read_answer({**REPLY, "timings": {**REPLY["timings"], **changed}}, 12)
    with pytest.raises(LocalspecError, match="timings"):
        native.read_answer({}, 12)


def test_the_server_is_asked_for_the_same_distribution() -> None:
    body = native.request((1, 2, 3), Sampling(temperature=0.7, top_k=40, top_p=0.9, seed=5), 64)
    assert body["prompt"] == [1, 2, 3]
    assert (body["n_predict"], body["ignore_eos"], body["cache_prompt"]) == (64, True, False)
    assert body["samplers"] == ["temperature", "top_k", "top_p", "min_p"]
    assert (body["temperature"], body["top_p"], body["min_p"], body["seed"]) == (0.7, 0.9, 0.0, 5)


SERVER = """#!{python}
import json, sys
from http.server import BaseHTTPRequestHandler, HTTPServer
arguments = sys.argv[1:]
if "--version" in arguments:
    sys.exit("version: 1.2 (build 3)\\nbuilt with GNU")
if "none.gguf" in arguments:
    sys.exit("0.1 system_info: n_threads = 1 / 2 | CPU : AVX2 = 1 | REPACK = 1 | \\n0.2 cannot load")
if "--spec-type" in arguments and arguments[arguments.index("--spec-type") + 1] == "broken":
    print("error: unknown type")
    sys.exit(1)
class Handler(BaseHTTPRequestHandler):
    def reply(self, found):
        data = json.dumps(found).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
    def do_GET(self):
        self.reply({{"status": "ok"}})
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        times = {{"cache_n": 0, "prompt_n": len(body["prompt"])}}
        times |= {{"predicted_n": body["n_predict"], "predicted_ms": 1000}}
        self.server.answers = getattr(self.server, "answers", 0) + 1
        self.reply({{"tokens": [self.server.answers], "timings": times}})
    def log_message(self, *_):
        pass
HTTPServer(("127.0.0.1", int(arguments[arguments.index("--port") + 1])), Handler).serve_forever()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="a script that is a program")
def test_a_server_is_started_asked_and_ended(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "llama-server"
    program.write_text(SERVER.format(python=sys.executable))
    program.chmod(0o755)
    assert native.find_server(tmp_path) == program
    assert native.about(program) == {
        "version": "version: 1.2 (build 3) built with GNU",
        "instructions": "CPU : AVX2 = 1 | REPACK = 1",
    }
    asked = Asked(PROMPTS["code"], (1, 2, 3))
    rival = native.by_model(Path("draft.gguf"), 3)
    with native.Server(program, Path("t.gguf"), rival, n_ctx=64, threads=1) as server:
        answers = [server.ask(asked, Sampling(temperature=0.0), 21) for _ in range(2)]
        assert [answer.tok_s for answer in answers] == [20, 20]
        assert [answer.ids for answer in answers] == [(1,), (2,)]  # one process gave both
        process = server._process
        assert process is not None
    assert process.poll() is not None
    with native.Server(program, Path("t.gguf"), native.by_ngram("ngram-mod"), n_ctx=64, threads=1) as server:
        answers = [server.ask(asked, Sampling(temperature=0.0), 21) for _ in range(2)]
        assert [answer.ids for answer in answers] == [(1,), (1,)]  # what the first answer taught is forgotten
        assert server._process is None
    broken = native.Rival("broken", ("--spec-type", "broken"))
    with pytest.raises(LoadError, match="did not come up") as failed:
        native.Server(program, Path("t.gguf"), broken, n_ctx=64, threads=1)
    assert "unknown type" in failed.value.why
    with pytest.raises(LoadError, match="no llama-server"):
        native.find_server(tmp_path / "elsewhere")


def flags_of(rival: native.Rival) -> dict[str, str]:
    return dict(zip(rival.flags[::2], rival.flags[1::2], strict=True))


def test_rivals_wait_as_our_engine_does() -> None:
    assert native.patient({"A": "b"}) == {"A": "b", "GOMP_SPINCOUNT": "1000"}
    for chosen in ({"GOMP_SPINCOUNT": "7"}, {"OMP_WAIT_POLICY": "passive"}):
        assert native.patient(chosen) == chosen
    assert native.patient({}, spin="") == {}


def test_each_way_to_draft_is_named_to_the_server() -> None:
    simple = native.by_model(Path("d.gguf"), 5, 0.75)
    flags = flags_of(simple)
    assert flags["--spec-type"] == "draft-simple"
    assert flags["--spec-draft-model"] == "d.gguf"
    assert flags["--spec-draft-n-max"] == "5"
    assert flags["--spec-draft-p-min"] == "0.75"
    assert (simple.length, simple.remembers) == (0, False)  # a gate makes it another rule than a fixed length
    assert native.by_model(Path("d.gguf"), 5).length == 5
    both = native.mixed("ngram-simple 4/16", Path("d.gguf"), 7)
    flags = flags_of(both)
    assert flags["--spec-type"] == "draft-simple,ngram-simple"
    assert flags["--spec-ngram-simple-size-m"] == "16"
    assert flags["--spec-draft-n-max"] == "7"
    assert (both.length, both.remembers) == (0, True)
    assert all(flags_of(native.by_ngram(name)) for name in native.NGRAMS)


# -------------------------------------------------------------------------------------------------------------- stock


@pytest.mark.parametrize("draft", ["", "prompt lookup", "model"])
def test_the_stock_loop_answers_with_and_without_a_draft(tmp_path: Path, draft: str) -> None:
    path = random_llama(tmp_path / "model.gguf", readable=True)
    (asked,) = as_ids(path, [PROMPTS["extraction"]])
    named: Path | str = path if draft == "model" else draft
    with Stock(path, named, n_ctx=1024, threads=1) as child:
        answers = [child.ask(asked, 24) for _ in range(2)]
    assert answers[0].text
    assert answers[0].agrees(answers[1])
    assert all(answer.tokens > 10 and answer.tok_s > 0 for answer in answers)
    if draft == "model":  # its own draft: all of it is right
        assert answers[1].acceptance is not None
        assert answers[1].acceptance > 0.8


def test_a_stock_child_that_dies_is_an_error_not_a_crash(tmp_path: Path) -> None:
    with pytest.raises(LocalspecError, match="llama-cpp-python"):
        Stock(tmp_path / "nothing.gguf", "", n_ctx=64, threads=1)
    child = Stock(random_llama(tmp_path / "m.gguf"), "", n_ctx=512, threads=1)
    child._process.kill()
    with pytest.raises(LocalspecError, match="ended with code"):
        child.ask(Asked(PROMPTS["edit"], (1,)), 4)
    child.close()


# ------------------------------------------------------------------------------------------------------------- runner

CELL = Cell("price", "padded", "good", "code")


def test_who_goes_first_changes_and_a_failure_is_named() -> None:
    order: list[str] = []

    def run(name: str) -> Answer:
        order.append(name)
        if name == "b":
            raise LocalspecError("b is broken.")
        return Answer(tokens=11, seconds=1.0)

    runner = Runner(work=100)
    entries = [Entry(OURS, name, lambda name=name: run(name), 10) for name in "abc"]
    runner.group(CELL, [*entries, None], repeats=2)
    runner.group(CELL, entries)
    assert "".join(order) == "abc" + "cba" + "cba"
    assert len(runner.samples) == 6
    assert {sample.group for sample in runner.samples} == {0, 1}
    assert runner.left_out == ["localspec, b (price, good, code): b is broken."]


def test_no_answer_begins_after_the_deadline() -> None:
    runner = Runner(work=100, deadline=0.0)
    with pytest.raises(OutOfTimeError):
        runner.group(CELL, [Entry(OURS, "auto", lambda: pytest.fail("it ran"), 10)])
    assert runner.samples == []


# ------------------------------------------------------------------------------------------------------------ targets


def at(speed: float, **more: object) -> Answer:
    return replace(Answer(tokens=101, seconds=100 / speed), **more)  # type: ignore[arg-type]


def samples_of(
    cell: Cell, speeds: dict[tuple[str, str], Answer], group: int = 0, repeat: int = 0
) -> list[Sample]:
    return [Sample(cell, tool, config, group, repeat, answer) for (tool, config), answer in speeds.items()]


def no_prices(_model: str, _drafter: str) -> Prices:
    return Prices()


def test_nothing_measured_is_no_figure_and_no_verdict() -> None:
    targets = evaluate([], no_prices)
    assert len(targets) >= 12
    for target in targets.values():
        assert target.figure is None
        assert target.met is None
        assert "not measured" in target.how


def test_the_same_length_is_compared_pair_by_pair() -> None:
    cell = Cell("same length", "padded", "good", "code")
    found = [
        *samples_of(cell, {(OURS, "k=3"): at(10), (NATIVE, "draft-simple k=3 p-min 0"): at(10)}, repeat=0),
        *samples_of(cell, {(OURS, "k=3"): at(22), (NATIVE, "draft-simple k=3 p-min 0"): at(20)}, repeat=1),
        *samples_of(cell, {(OURS, "k=3"): at(4), (NATIVE, "draft-simple k=3 p-min 0"): at(2)}, repeat=2),
        *samples_of(cell, {(OURS, "k=5"): at(9), (NATIVE, "draft-simple k=5 p-min 0"): at(10)}, group=1),
        *samples_of(cell, {(OURS, "k=7"): at(9), (NATIVE, "draft-simple k=7 p-min 0.75"): at(1)}, group=2),
    ]
    target = evaluate(found, no_prices)["native_ratio_same_k"]
    assert target.figure == pytest.approx((1.1 * 0.9) ** 0.5)  # the median of 1.0, 1.1 and 2.0; and 0.9
    assert target.met
    assert "k=5" in target.how


def test_auto_is_compared_with_the_best_length_and_with_llama_cpps_default() -> None:
    default = (NATIVE, "draft-simple k=3 p-min 0")
    speeds = {(OURS, "auto"): at(19), (OURS, "k=3"): at(15), (OURS, "k=7"): at(20), default: at(10)}
    speeds |= {(NATIVE, "ngram-simple 4/16 + k=7"): at(38)}
    found = samples_of(CELL, {**speeds, (OURS, "auto, no profile"): at(12)})
    found += samples_of(replace(CELL, kind="prose"), {**speeds, (OURS, "auto"): at(40)}, group=1)
    # What the short answers say chooses rivals and is no rival itself.
    found += samples_of(replace(CELL, part=SCREEN), {(OURS, "k=3"): at(1), default: at(99)}, group=2)
    targets = evaluate(found, no_prices)
    assert targets["auto_vs_best_fixed"].figure == pytest.approx(0.95)
    assert targets["auto_vs_best_fixed"].met is False
    assert "good code" in targets["auto_vs_best_fixed"].how
    assert targets["auto_vs_best_fixed_no_profile"].figure == pytest.approx(0.6)
    assert targets["auto_vs_best_fixed_no_profile"].met is None
    assert targets["default_vs_llamacpp_default"].figure == pytest.approx((1.9 * 4) ** 0.5)
    assert targets["default_vs_llamacpp_best"].figure == pytest.approx((0.5 * 40 / 38) ** 0.5)
    assert "ngram-simple 4/16 + k=7" in targets["default_vs_llamacpp_best"].how
    assert targets["native_ratio_same_k"].figure == pytest.approx(1.5)


def test_the_lengths_are_compared_at_one_price_too() -> None:
    prices = Prices({1: [0.1], 4: [0.2], 8: [0.4]}, [0.02])

    def answer(seconds: float, **counts: object) -> Answer:
        return Answer(tokens=41, seconds=seconds, **counts)  # type: ignore[arg-type]

    found = samples_of(
        CELL,
        {
            (OURS, "auto"): answer(99.0, drafted=30, accepted=30, lengths={3: 10}),  # a slow minute
            (OURS, "k=3"): answer(2.0, drafted=48, accepted=24, lengths={3: 16}),
            (OURS, "k=7"): answer(3.0, drafted=56, accepted=32, lengths={7: 8}),
            (NATIVE, "draft-simple k=3 p-min 0"): answer(0.1, drafted=30, accepted=30, lengths={3: 10}),
        },
    )
    targets = evaluate(found, lambda model, drafter: prices)
    # auto: 10 * (0.2 + 3 * 0.02); k=3: 16 of these; k=7: 8 * (0.4 + 7 * 0.02).
    assert targets["auto_vs_best_fixed_priced"].figure == pytest.approx((16 * 0.26) / (10 * 0.26))
    assert targets["auto_vs_best_fixed_priced_no_profile"].figure is None
    assert targets["auto_vs_best_fixed"].figure == pytest.approx(2 / 99)
    # Another text from the third token on says nothing about the lengths.
    marks = (Mark(1, 0.0), Mark(2, 0.1), Mark(41, 3.0, 56))
    other = answer(3.0, marks=marks, ids=(1, 2, *[9] * 39))
    auto = answer(99.0, marks=marks, ids=(1, 2, *[8] * 39))
    targets = evaluate(samples_of(CELL, {(OURS, "auto"): auto, (OURS, "k=7"): other}), lambda m, d: prices)
    assert targets["auto_vs_best_fixed"].figure is None


def test_tokens_a_round_are_counted_over_all_answers_of_a_temperature() -> None:
    def drawn(temperature: float, mine: int, theirs: int, group: int) -> list[Sample]:
        cell = Cell("sampled", "small", "poor", "code", temperature)
        return samples_of(
            cell,
            {
                (OURS, "k=3"): at(1, accepted=mine, drafted=150),
                (NATIVE, "draft-simple k=3 p-min 0"): at(1, accepted=theirs, drafted=150),
            },
            group,
        )

    targets = evaluate([*drawn(0.7, 60, 50, 0), *drawn(0.7, 40, 50, 1), *drawn(1.0, 60, 50, 2)], no_prices)
    assert targets["tokens_per_round_t07"].figure == pytest.approx(1.0)
    assert targets["tokens_per_round_t10"].figure == pytest.approx(1.25)


def test_long_answers_are_looked_at_whole_and_at_their_beginning() -> None:
    def long(first: float, rest: float) -> Answer:
        seconds = 511 / first + 1488 / rest
        return Answer(
            2000, seconds, drafted=9, marks=(Mark(1, 0.0), Mark(512, 511 / first), Mark(2000, seconds))
        )

    wrong, good = Cell("long", "padded", "wrong alone", "prose"), Cell("long", "padded", "good", "prose")
    found = samples_of(
        wrong,
        {
            (OURS, "plain"): long(10, 10),
            (OURS, "auto"): long(9.8, 10),
            (OURS, "auto, no profile"): long(9, 10),
        },
    )
    chained = replace(wrong, drafter="wrong", temperature=1.0)
    found += samples_of(chained, {(OURS, "plain"): long(10, 10), (OURS, "auto, no profile"): long(12, 12)}, 1)
    found += samples_of(good, {(OURS, "plain"): long(10, 10), (OURS, "auto"): long(15, 15)}, group=2)
    targets = evaluate(found, no_prices)
    assert targets["wrong_draft_512_no_profile"].figure == pytest.approx(0.9)
    assert targets["wrong_draft_512_no_profile"].met is False
    assert targets["wrong_draft_512_profile"].figure == pytest.approx(0.98)
    assert targets["wrong_draft_512_profile"].met
    assert targets["wrong_draft_2000"].figure == pytest.approx(1999 / (511 / 9 + 148.8) / 10)
    assert targets["wrong_draft_2000_chained"].figure == pytest.approx(1.2)
    assert targets["wrong_draft_512_profile_chained"].figure is None
    assert targets["auto_vs_plain_2000"].figure == pytest.approx(1.5)
    assert targets["auto_vs_plain_2000"].met
    short = [
        replace(s, answer=replace(s.answer, tokens=160, marks=(Mark(1, 0.0), Mark(160, 16.0)))) for s in found
    ]
    quick = evaluate(short, no_prices)["wrong_draft_512_no_profile"]
    assert quick.figure == pytest.approx(1.0)
    assert quick.met is None
    assert "160 tokens" in quick.how


def test_the_end_of_an_answer_is_compared_with_the_bare_loop() -> None:
    marks = tuple(Mark(count, (count - 1) * 0.1 + max(count - 1800, 0) * 0.1) for count in range(1, 2001))
    mine = Answer(2000, marks[-1].seconds, marks=marks)  # 10 tok/s, and 5 over the last 200
    cell = Cell("deep", "small", "", "prose")
    found = samples_of(cell, {(OURS, "plain"): mine, (BARE, "plain"): Answer(200, 199 / 4)})
    assert evaluate(found, no_prices)["deep_speed"].figure == pytest.approx(1.25)


def test_an_edit_and_the_bound() -> None:
    prices = Prices()
    prices.add({1: 0.1, 16: 0.5}, None)
    answer = Answer(
        tokens=161, seconds=6.25, drafted=150, accepted=150, lengths={15: 10}
    )  # the bound: 160 in 5 s
    cell = Cell("edit", "edit", "lookup", "edit")
    found = samples_of(cell, {(OURS, "auto"): answer, (OURS, "plain"): at(10)})
    targets = evaluate(
        found, lambda model, drafter: prices if (model, drafter) == ("edit", "lookup") else Prices()
    )
    assert targets["edit_lookup"].figure == pytest.approx(2.56)
    assert targets["measured_over_bound"].figure == pytest.approx(0.8)
    assert targets["measured_over_bound"].met is False


# -------------------------------------------------------------------------------------------------------------- table


def test_the_table_holds_medians_spread_and_ratios(capsys: pytest.CaptureFixture[str]) -> None:
    name = "draft-simple k=3 p-min 0"
    found: list[Sample] = []
    for repeat, (mine, theirs) in enumerate([(10.0, 8.0), (12.0, 12.0), (11.0, 22.0)]):
        ids = (1, 2, 4) if repeat == 2 else (1, 2, 3)
        speeds = {
            (OURS, "k=3"): at(mine, drafted=150, accepted=50, ids=(1, 2, 3)),
            (NATIVE, name): at(theirs, drafted=150, accepted=50, ids=ids),
            (STOCK, "plain"): at(5),
        }
        found += samples_of(CELL, speeds, repeat=repeat)
    rows = {(row.tool, row.config): row for row in table.rows(found, no_prices)}
    theirs_row = rows[NATIVE, name]
    assert (theirs_row.runs, theirs_row.tok_s, theirs_row.low, theirs_row.high) == pytest.approx(
        (3, 12, 8, 22)
    )
    assert theirs_row.to_ours == pytest.approx(1.0)  # the median of 0.8, 1.0 and 2.0
    assert theirs_row.acceptance == pytest.approx(1 / 3)
    assert theirs_row.tokens_per_round == 2
    assert theirs_row.same_text is False
    assert rows[OURS, "k=3"].same_text is None
    assert rows[STOCK, "plain"].acceptance is None
    assert rows[STOCK, "plain"].to_ours == pytest.approx(5 / 11)
    json.dumps([row.to_json() for row in rows.values()])
    table.print_table(list(rows.values()), print)
    table.print_targets({"some_figure": Target(0.9, 0.95, "made up")}, print)
    printed = capsys.readouterr().out
    assert "price · padded · good · code" in printed
    assert "(8.00-22.00)" in printed
    assert "other text" in printed
    assert "MISSED" in printed


def test_drawn_texts_are_compared_with_our_own_only() -> None:
    cell = replace(CELL, temperature=1.0)
    speeds = {
        (OURS, "auto"): at(10, ids=(1, 2, 3)),
        (OURS, "plain"): at(10, ids=(1, 2, 4)),
        (NATIVE, "draft-simple k=3 p-min 0"): at(10, ids=(9, 9, 9)),
    }
    same = {(row.tool, row.config): row.same_text for row in table.rows(samples_of(cell, speeds), no_prices)}
    assert same[OURS, "plain"] is False
    assert same[NATIVE, "draft-simple k=3 p-min 0"] is None


def test_a_bound_in_the_table_uses_the_costs_of_the_pair() -> None:
    prices = Prices({1: [0.1], 4: [0.2]}, [0.02])
    found = samples_of(CELL, {(NATIVE, "draft-simple k=3 p-min 0"): at(2, drafted=150, accepted=50)})
    (row,) = table.rows(found, lambda model, drafter: prices)
    assert row.to_bound == pytest.approx(2 / (100 / (50 * 0.26)))


def test_the_plan_counts_what_is_run_and_the_cuts_name_the_rest() -> None:
    whole, default, quick = (
        protocol.plan(one, list(parts.PARTS), native=True)
        for one in (protocol.FULL, protocol.Protocol(), protocol.QUICK)
    )
    assert list(whole) == list(parts.PARTS)
    assert sum(c.work for c in quick.values()) < sum(c.work for c in default.values()) / 8
    assert sum(c.work for c in default.values()) < 0.6 * sum(c.work for c in whole.values())
    without = protocol.plan(protocol.Protocol(), ["native"], native=False)["native"]
    assert without.answers < default["native"].answers
    assert protocol.cuts(protocol.FULL, list(parts.PARTS)) == []
    said = " ".join(protocol.cuts(protocol.Protocol(), list(parts.PARTS)))
    assert "p-min 0.75, draft lengths 1, 2, 4, 5, 6, 7" in said
    assert "wrong (with lookup, T 0)" in said
    assert "Seeds of drawn answers: 2 instead of 3." in said
    assert protocol.cuts(protocol.Protocol(), ["deep"]) == []


class FakeServer(contextlib.ExitStack):
    """Answers at a speed that its name tells."""

    def __init__(self, rival: native.Rival | None, speeds: dict[str, float]) -> None:
        super().__init__()
        self.speed = speeds.get(rival.name if rival else "plain", 10.0)

    def ask(self, asked: Asked, sampling: Sampling, tokens: int) -> Answer:
        return at(self.speed)


class FakeOurs:
    """The same for our engine, at fixed lengths."""

    def __init__(self, speeds: dict[int, float]) -> None:
        self.speeds = speeds
        self.lengths: list[tuple[int, int]] = []

    def ask(
        self, asked: Asked, sampling: Sampling, tokens: int, *, length: int = 0, plain: bool = False
    ) -> Answer:
        self.lengths.append((length, tokens))
        return at(self.speeds.get(length, 5.0))


def test_a_screen_lets_the_default_and_the_fastest_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draft = tmp_path / "d.gguf"
    files = models.Files(tmp_path, tmp_path, {"good": draft}, None)
    chosen = replace(protocol.Protocol(), native_kinds=("code",), drafters=("good",))
    bench = Bench(files, tmp_path / "llama-server", chosen, Runner())
    bench._asked["code"] = Asked(PROMPTS["code"], (1, 2))
    theirs = {native.simple(5): 30.0, "ngram-simple 4/16 + k=7": 50.0, "ngram-map-k": 60.0}
    opened: list[str] = []

    def server(_program: Path, _target: Path, rival: native.Rival, **_: int) -> FakeServer:
        opened.append(rival.name)
        return FakeServer(rival, theirs)

    monkeypatch.setattr("scripts.peers.bench.Server", server)
    fake, rivals = FakeOurs({6: 20.0}), parts._rivals(chosen, draft)
    assert len(rivals) == 8 + 2 + 2
    parts._side_by_side(bench, "screen", "good", fake, rivals)  # type: ignore[arg-type]
    assert len(opened) == 12
    assert fake.lengths == [(length, 48) for length in range(1, 9)]
    assert parts.passed(bench, "good", "code") == {3, 5, 6}
    parts._side_by_side(bench, "same length", "good", fake, rivals)  # type: ignore[arg-type]
    assert opened[12:] == [native.simple(length) for length in (3, 5, 6)]
    assert [length for length, tokens in fake.lengths if tokens == 256] == [3, 5, 6]
    assert parts.best_length(bench, "good", "code") == (6,)
    best = parts.best_rival(bench, "good", "code")
    assert best is not None
    assert best.name == "ngram-simple 4/16 + k=7"
    parts._side_by_side(bench, "screen", "lookup", None, [native.by_ngram("ngram-map-k")])
    best = parts.best_rival(bench, "good", "code")
    assert best is not None
    assert best.name == "ngram-map-k"


class FakeEngine(contextlib.ExitStack):
    """Our engine, which notes what it is asked and from which profile it begins."""

    def __init__(self, chained: bool, log: list[tuple[object, ...]]) -> None:
        super().__init__()
        self.chained, self.log, self.begins = chained, log, "as it was"

    def keep_profile(self) -> None:
        self.begins = "asked before"

    def renew(self) -> None:
        self.begins = "renewed"

    def forget(self) -> None:
        self.begins = "new"

    def ask(
        self,
        asked: Asked,
        sampling: Sampling,
        tokens: int,
        *,
        length: int | None = None,
        plain: bool = False,
    ) -> Answer:
        how = "plain" if plain else self.begins
        self.log.append((asked.prompt.kind, how, self.chained, sampling.temperature, tokens))
        return at(10)


def test_a_wrong_draft_is_measured_without_lookup_and_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(
        models.Files(tmp_path, tmp_path, dict.fromkeys(("good", "poor", "wrong"), tmp_path), None),
        None,
        replace(protocol.Protocol(), drafters=("good",)),
        Runner(),
    )
    bench._asked.update({kind: Asked(prompt, (1,)) for kind, prompt in PROMPTS.items()})
    log: list[tuple[object, ...]] = []
    monkeypatch.setattr("scripts.peers.bench.Ours", lambda *_, chained, **__: FakeEngine(chained, log))
    parts.long_answers(bench)
    alone, chained = log[:4], log[4:]
    assert alone == [
        ("code", "as it was", False, 0.0, 256),
        ("prose", "renewed", False, 0.0, 512),
        ("prose", "plain", False, 0.0, 2000),
        ("prose", "new", False, 0.0, 2000),
    ]
    # The other order now; and no poor draft, since it is not among the drafters.
    assert chained == [
        ("code", "as it was", True, 0.0, 256),
        ("prose", "new", True, 1.0, 2000),
        ("prose", "plain", True, 1.0, 2000),
        ("prose", "renewed", True, 1.0, 512),
    ]
    cells = {(sample.cell.drafter, sample.cell.temperature) for sample in bench.runner.samples}
    assert cells == {("wrong alone", 0.0), ("wrong", 1.0)}
    cost = protocol.plan(bench.protocol, ["long"], native=False)["long"]
    assert cost.answers >= len(bench.runner.samples)


def test_the_best_length_is_that_of_the_same_cell(tmp_path: Path) -> None:
    runner = Runner()
    bench = Bench(
        models.Files(tmp_path, tmp_path, {"good": tmp_path}, None), None, protocol.Protocol(), runner
    )
    assert parts.best_length(bench, "good", "code") == protocol.Protocol().rivals
    assert parts.best_rival(bench, "good", "code") is None
    for group, (length, speed) in enumerate([(1, 9.0), (2, 12.0), (3, 15.0), (4, 11.0), (5, 10.0)]):
        cell = Cell("same length", "padded", "good", "code")
        runner.samples += samples_of(cell, {(OURS, f"k={length}"): at(speed)}, group)
        runner.samples += samples_of(
            replace(cell, kind="prose"), {(OURS, f"k={length}"): at(30 - speed)}, group
        )
    assert parts.best_length(bench, "good", "code") == (3,)
    assert parts.best_length(bench, "good", "prose") == (1,)


def test_a_profile_is_the_same_for_each_answer(tmp_path: Path) -> None:
    path = script_model(tmp_path / "right.gguf", {token: 100 + (token - 99) % 24 for token in range(3, 259)})
    wrong = models.always_wrong(path, tmp_path / "wrong.gguf")
    (asked,) = as_ids(path, [PROMPTS["edit"]])
    with ours.Ours(path, wrong, auto=True, chained=False, n_ctx=1024, threads=1) as engine:
        answer = engine.ask(asked, GREEDY, 300)
        ready = engine._worker.ready
        assert ready is not None
        assert ready.draft.name == "wrong.gguf"  # lookup is no part of it
        assert answer.accepted == 0
        assert (
            answer.lengths.get(ours.LONGEST_FIXED, 0) < 150
        )  # by price; as a fixed length it would be all rounds
        engine.keep_profile()
        kept = {file.name: file.read_bytes() for file in engine._profile.rglob("*.json")}  # type: ignore[union-attr]
        assert kept
        engine.ask(asked, GREEDY, 24)
        engine.renew()
        for file in engine._home.rglob("*.json"):
            assert kept.get(file.name) == file.read_bytes()
        home, profile = engine._home, engine._profile
    assert not home.exists()
    assert profile is not None
    assert not profile.exists()


# -------------------------------------------------------------------------------------------------------------- words


def test_what_was_named_is_looked_at_before_an_hour_is_spent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here = tmp_path / "here.gguf"
    here.touch()
    words.check_files(tmp_path / "new.json", here, None)
    words.check_files(Path("-"))
    words.check_folder(tmp_path / "new")
    with pytest.raises(UsageError, match="no file"):
        words.check_files(None, tmp_path / "nothing.gguf")
    with pytest.raises(UsageError, match="no folder"):
        words.check_files(tmp_path / "nowhere" / "out.json")
    with pytest.raises(UsageError, match="is a folder"):
        words.check_files(tmp_path)
    with pytest.raises(UsageError, match="is no folder"):
        words.check_folder(here)
    assert words.explain(UsageError("What.", why="Why.", hint="type this")) == 2
    assert capsys.readouterr().err == "What.\nWhy.\nTry: type this\n"


@pytest.mark.parametrize(
    ("script", "arguments", "said"),
    [
        ("bench_peers", ("--base", "nothing.gguf"), "There is no file nothing.gguf."),
        ("bench_peers", ("--llama-cpp", "."), "There is no llama-server in ."),
        ("bench_peers", ("--tokens", "0"), "--tokens is 1 at least"),
        ("soak", ("--target", "nothing.gguf"), "There is no file nothing.gguf."),
        ("bench_overlap", ("nothing.gguf", "nothing.gguf"), "There is no file nothing.gguf."),
    ],
)
def test_scripts_refuse_in_words(tmp_path: Path, script: str, arguments: tuple[str, ...], said: str) -> None:
    program = Path(__file__).parent.parent / "scripts" / script
    more = ["--base", __file__] if "--llama-cpp" in arguments else []
    done = subprocess.run(
        [sys.executable, str(program), *arguments, *more],
        check=False,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "LOCALSPEC_HOME": str(tmp_path / "home")},
        timeout=120,
    )
    assert done.returncode != 0
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "home" / "cache" / "peers").exists()


# -------------------------------------------------------------------------------------------------------------- build


def test_the_source_is_found_in_an_sdist(tmp_path: Path) -> None:
    import tarfile

    source = tmp_path / "llama_cpp_python-1.0" / "vendor" / "llama.cpp"
    source.mkdir(parents=True)
    (source / "CMakeLists.txt").write_text("project(x)")
    with tarfile.open(tmp_path / "good.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "llama_cpp_python-1.0", "llama_cpp_python-1.0")
    found = build.unpack(tmp_path / "good.tar.gz", tmp_path / "out")
    assert (found / "CMakeLists.txt").read_text() == "project(x)"
    with tarfile.open(tmp_path / "bad.tar.gz", "w:gz") as archive:
        archive.add(source / "CMakeLists.txt", "other-1.0/CMakeLists.txt")
    with pytest.raises(LoadError, match="does not hold"):
        build.unpack(tmp_path / "bad.tar.gz", tmp_path / "other")


def test_a_build_that_is_there_is_not_made_again(own_home: Path) -> None:
    assert build.built() is None
    folder = build.home() / "build"
    folder.mkdir(parents=True)
    assert build.built() is None
    (folder / "done").touch()
    assert own_home in folder.parents
    assert build.build((), 1, pytest.fail) == folder


def test_a_step_that_fails_says_its_last_words(tmp_path: Path) -> None:
    program = "print('one'); print('two'); raise SystemExit(3)"
    with pytest.raises(LoadError, match="ended with code 3") as failed:
        build._run([sys.executable, "-c", program], tmp_path / "log")
    assert "one / two" in failed.value.why
