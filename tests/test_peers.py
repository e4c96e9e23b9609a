"""The comparison with other programs, without weights: models it makes, answers it reads, figures it works out."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest

from localspec.errors import LoadError, LocalspecError, UsageError
from localspec.spec.events import DraftStatus, Finished, Round, Sampling
from localspec.spec.stats import Counters
from scripts.peers import build, models, native, ours, parts, protocol, table
from scripts.peers.answers import PROMPTS, Answer, Asked, Prices, as_ids
from scripts.peers.runner import BARE, NATIVE, OURS, STOCK, Cell, Entry, OutOfTimeError, Runner, Sample
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
    answer = Answer(tokens=41, seconds=4.0, drafted=60, accepted=20, marks=((1, 0.0), (21, 1.0), (41, 4.0)))
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
    # Where lookup proposed some, a proposed token cost less than the model's step.
    assert prices.bound(replace(exact, draft_s=0.3)) == pytest.approx(25 / (10 * 0.23))


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
        counters.add_round(drafted, accepted)
        counters.completion_tokens += accepted + 1
        counters.decode_s = float(number)
        rounds.append(Round((), counters.snapshot(), off, 0, 0))
    end = Finished("length", "", "", (1,) * 8, counters.snapshot(), off, 0, 0)
    answer = ours._answer(rounds, end)
    assert answer.lengths == {3: 2, 0: 1}
    assert answer.marks == ((1, 0.0), (3, 1.0), (7, 2.0), (8, 3.0))
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
        self.reply({{"tokens": [], "timings": times}})
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
    flags = native.draft_flags(Path("draft.gguf"), 3, 0.0)
    with native.Server(program, Path("t.gguf"), flags, n_ctx=64, threads=1) as server:
        answer = server.ask(Asked(PROMPTS["code"], (1, 2, 3)), Sampling(temperature=0.0), 21)
        assert answer.tok_s == 20
        process = server._process
    assert process.poll() is not None
    with pytest.raises(LoadError, match="did not come up") as failed:
        native.Server(program, Path("t.gguf"), native.ngram_flags("broken"), n_ctx=64, threads=1)
    assert "unknown type" in failed.value.why
    with pytest.raises(LoadError, match="no llama-server"):
        native.find_server(tmp_path / "elsewhere")


def test_a_draft_by_a_model_names_its_type() -> None:
    flags = native.draft_flags(Path("d.gguf"), 5, 0.75)
    assert flags[flags.index("--spec-type") + 1] == "draft-simple"
    assert flags[flags.index("--spec-draft-n-max") + 1] == "5"
    assert flags[flags.index("--spec-draft-p-min") + 1] == "0.75"


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
    found = samples_of(CELL, {**speeds, (OURS, "auto, no profile"): at(12)})
    found += samples_of(replace(CELL, kind="prose"), {**speeds, (OURS, "auto"): at(40)}, group=1)
    found += samples_of(
        Cell("same length", "padded", "lookup", "code"), {(NATIVE, "ngram-mod"): at(38)}, group=2
    )
    targets = evaluate(found, no_prices)
    assert targets["auto_vs_best_fixed"].figure == pytest.approx(0.95)
    assert targets["auto_vs_best_fixed"].met is False
    assert "good code" in targets["auto_vs_best_fixed"].how
    assert targets["auto_vs_best_fixed_no_profile"].figure == pytest.approx(0.6)
    assert targets["auto_vs_best_fixed_no_profile"].met is None
    assert targets["default_vs_llamacpp_default"].figure == pytest.approx((1.9 * 4) ** 0.5)
    assert targets["default_vs_llamacpp_best"].figure == pytest.approx((0.5 * 4) ** 0.5)


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
        return Answer(2000, seconds, drafted=9, marks=((1, 0.0), (512, 511 / first), (2000, seconds)))

    wrong, good = Cell("long", "padded", "wrong", "prose"), Cell("long", "padded", "good", "prose")
    found = samples_of(
        wrong,
        {
            (OURS, "plain"): long(10, 10),
            (OURS, "auto"): long(9.8, 10),
            (OURS, "auto, no profile"): long(9, 10),
        },
    )
    found += samples_of(good, {(OURS, "plain"): long(10, 10), (OURS, "auto"): long(15, 15)}, group=1)
    targets = evaluate(found, no_prices)
    assert targets["wrong_draft_512_no_profile"].figure == pytest.approx(0.9)
    assert targets["wrong_draft_512_no_profile"].met is False
    assert targets["wrong_draft_512_profile"].figure == pytest.approx(0.98)
    assert targets["wrong_draft_512_profile"].met
    assert targets["wrong_draft_2000"].figure == pytest.approx(1999 / (511 / 9 + 148.8) / 10)
    assert targets["auto_vs_plain_2000"].figure == pytest.approx(1.5)
    assert targets["auto_vs_plain_2000"].met
    short = [replace(s, answer=replace(s.answer, tokens=160, marks=((1, 0.0), (160, 16.0)))) for s in found]
    quick = evaluate(short, no_prices)["wrong_draft_512_no_profile"]
    assert quick.figure == pytest.approx(1.0)
    assert quick.met is None
    assert "160 tokens" in quick.how


def test_the_end_of_an_answer_is_compared_with_the_bare_loop() -> None:
    marks = tuple((count, (count - 1) * 0.1 + max(count - 1800, 0) * 0.1) for count in range(1, 2001))
    mine = Answer(2000, marks[-1][1], marks=marks)  # 10 tok/s, and 5 over the last 200
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


def test_a_bound_in_the_table_uses_the_costs_of_the_pair() -> None:
    prices = Prices({1: [0.1], 4: [0.2]}, [0.02])
    found = samples_of(CELL, {(NATIVE, "draft-simple k=3 p-min 0"): at(2, drafted=150, accepted=50)})
    (row,) = table.rows(found, lambda model, drafter: prices)
    assert row.to_bound == pytest.approx(2 / (100 / (50 * 0.26)))


def test_the_work_is_that_of_the_parts_asked_for() -> None:
    whole = protocol.work(protocol.Protocol(), list(parts.PARTS), native=True)
    assert whole == pytest.approx(
        sum(protocol.work(protocol.Protocol(), [name], native=True) for name in parts.PARTS)
    )
    assert protocol.work(protocol.QUICK, list(parts.PARTS), native=True) < whole / 20
    assert protocol.work(protocol.Protocol(), ["native"], native=False) < protocol.work(
        protocol.Protocol(), ["native"], native=True
    )


def test_the_best_length_is_that_of_the_same_cell(tmp_path: Path) -> None:
    runner = Runner()
    bench = parts.Bench(models.Files(tmp_path, tmp_path, {}, None), None, protocol.Protocol(), runner)
    assert parts.best_length(bench, "good", "code") == protocol.Protocol().rivals
    for group, (length, speed) in enumerate([(1, 9.0), (2, 12.0), (3, 15.0), (4, 11.0), (5, 10.0)]):
        cell = Cell("same length", "padded", "good", "code")
        runner.samples += samples_of(cell, {(OURS, f"k={length}"): at(speed)}, group)
        runner.samples += samples_of(
            replace(cell, kind="prose"), {(OURS, f"k={length}"): at(30 - speed)}, group
        )
    assert parts.best_length(bench, "good", "code") == (3,)
    assert parts.best_length(bench, "good", "prose") == (1,)


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
