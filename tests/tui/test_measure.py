"""The stats panel, the bench in the chat, and advice, through Textual's pilot with scripted engines."""

from __future__ import annotations

import re
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from localspec.measure.surroundings import Program, Surroundings
from localspec.spec.events import DraftStatus, Rejected, Round
from localspec.spec.stats import Source, Stats
from localspec.tui.screens.bench import Bench
from localspec.tui.screens.measuring import Measuring
from localspec.tui.screens.tune import Tune
from localspec.tui.speed import Course
from localspec.tui.widgets.figures import Figures, panel, strip
from localspec.tui.widgets.stats import draw, net_sentence
from localspec.worker.protocol import DraftSpec, Load, MemoryUse
from tests.gguf_files import script_model
from tests.tui.driver import DRAFT, TARGET, Around, Chat, chat

PRICED = "tests.measure.priced_host:serve"
STATS = Stats(
    completion_tokens=301,
    rounds=100,
    drafted_rounds=100,
    drafted=400,
    accepted=225,
    drafted_at=(100,) * 4,
    accepted_at=(90, 70, 50, 30),
    decode_tokens=300,
    decode_s=6.0,
    draft_s=1.2,
    verify_s=4.5,
    other_s=0.3,
)


def figures(plain: float = 35.0, now: float | None = 63.0, stats: Stats = STATS) -> Figures:
    draft = DraftStatus("on", "", "d.gguf", 4, plain_s=1 / plain if plain else 0.0)
    return Figures(draft, stats, now, 300, 8192)


def course(rounds: int = 60) -> Course:
    made = Course()
    for number in range(rounds):
        made.add(replace(STATS, decode_s=number * 0.1, decode_tokens=number * 5))
    return made


def bench(c: Chat) -> Bench:
    screen = c.app.screen
    assert isinstance(screen, Bench)
    return screen


# -------------------------------------------------------------------- figures


def test_net_speedup_in_words() -> None:
    assert net_sentence(figures()).plain == "1.80×: 63.0 tok/s, plain ~35.0"
    assert net_sentence(figures(now=None)).plain == "1.43×: 50.0 tok/s, plain ~35.0"
    assert net_sentence(figures(plain=90)).plain == "0.70×: slower than plain (63.0 / ~90.0)"
    assert net_sentence(figures(plain=62)).plain == "1.02×: 63.0 tok/s, plain ~62.0"
    assert "not known yet" in net_sentence(figures(plain=0)).plain
    priced = figures()
    priced = replace(priced, draft=replace(priced.draft, auto=True))  # which makes plain steps
    assert net_sentence(priced).plain == "1.80×: 63.0 tok/s, plain 35.0"
    nothing = Figures(DraftStatus("off", "switched off", plain_s=0.1), Stats(), 10.0)
    assert net_sentence(nothing).plain == "net speedup: drafting is off; plain makes 10.0 tok/s"


def test_net_speedup_stands_in_the_lines_where_it_fits() -> None:
    full = replace(figures(), memory=MemoryUse("RAM", 1 << 30, 16 << 30))
    for shown in (figures(), full):
        assert "net 1.80×" in strip(shown, 76)[-1].plain
        assert len(strip(shown, 76)) == 3
    assert "RAM 1.0/16.0 GiB" in strip(full, 76)[-1].plain
    assert "net" not in "".join(line.plain for line in strip(figures(plain=0), 76))
    crowded = replace(full, draft=replace(full.draft, name="a-draft-with-a-name-of-some-length-Q4.gguf"))
    lines = strip(crowded, 76)
    assert "net" not in lines[-1].plain
    assert "RAM 1.0/16.0 GiB" in lines[-1].plain
    assert all(line.cell_length <= 76 for line in lines)
    assert any("net 1.80×" in line.plain for line in strip(figures(), 36))


def test_the_predicted_speedup_stands_beside_the_earned_one() -> None:
    full = replace(figures(), memory=MemoryUse("RAM", 1 << 30, 16 << 30))
    full = replace(full, draft=replace(full.draft, auto=True, predicted=1.94))
    assert "net 1.80× (1.94× predicted)" in strip(full, 100)[-1].plain
    narrow = "\n".join(line.plain for line in strip(full, 60))
    assert "net 1.80×" in narrow
    assert "predicted" not in narrow
    assert re.search(r"predicted speedup +1\.94×", "\n".join(line.plain for line in panel(full, 36)))
    assert "predicted" not in "\n".join(line.plain for line in panel(figures(), 36))


def test_net_speedup_stands_in_the_panel() -> None:
    shown = "\n".join(line.plain for line in panel(figures(), 36))
    assert re.search(r"net speedup +1\.80×", shown)
    assert re.search(r"net speedup +–", "\n".join(line.plain for line in panel(figures(plain=0), 36)))


def test_the_course_keeps_every_token() -> None:
    made = Course()
    assert made.rates(10) == []
    for seconds, tokens in ((0.0, 0), (0.1, 1), (0.4, 6), (0.5, 9), (1.5, 10), (1.6, 12), (2.0, 20)):
        made.add(replace(STATS, decode_s=seconds, decode_tokens=tokens))
    for parts in (1, 2, 5, 50):
        rates = made.rates(parts)
        step = made.seconds / len(rates)
        assert sum(rate * step for _, rate in rates) == pytest.approx(20)
    (_, first), (_, second) = made.rates(2)
    assert (first, second) == pytest.approx((9.5, 10.5))
    made.reset()
    assert made.rates(2) == []


def test_a_steady_speed_is_drawn_above_zero() -> None:
    """A curve scaled from its own minimum would lie on the floor."""
    plot = [line.plain for line in draw(figures(plain=0), course(), 76, 12)]
    curve = [number for number, line in enumerate(plot) if any("\u2801" <= c <= "\u28ff" for c in line)]
    floor = next(number for number, line in enumerate(plot) if line.strip().startswith("0┤"))
    assert curve
    assert max(curve) <= 3 < floor


@pytest.mark.parametrize(("width", "room"), [(76, 11), (76, 4), (150, 38), (56, 20), (24, 8), (24, 3)])
def test_the_panel_keeps_to_its_room(width: int, room: int) -> None:
    lines = draw(figures(), course(), width, room)
    assert len(lines) <= room
    assert all(line.cell_length <= width for line in lines)
    shown = "\n".join(line.plain for line in lines)
    assert "1.80×" in shown


def test_the_panel_tells_the_sources_apart_where_there_are_several() -> None:
    alone = replace(STATS, by_source={"d.gguf": Source(100, 400, 225)})
    assert "d.gguf" not in "\n".join(line.plain for line in draw(figures(stats=alone), course(), 100, 20))
    several = {"lookup": Source(40, 300, 200), "\x1b[31m" + "long" * 30: Source(60, 100, 25)}
    both = replace(STATS, by_source=several)
    for width, room in ((100, 20), (40, 30)):
        lines = [line.plain for line in draw(figures(stats=both), course(), width, room)]
        assert any(re.search(r"lookup +200 of 300 +67 %$", line.rstrip()) for line in lines)
        assert any("…" in line and line.rstrip().endswith("25 of 100  25 %") for line in lines)
        assert all(len(line) <= width for line in lines)
        assert "\x1b" not in "".join(lines)


def test_the_panel_lists_rejected_drafts_where_there_is_room() -> None:
    rejected = (Rejected(" cat", "\x1b[31m\n", 0.414), Rejected("[b]", "</b>" * 30))
    for width in (40, 100):
        words = [line.plain for line in draw(figures(), course(), width, 34, rejected)]
        assert all(len(line) <= width for line in words)
        shown = "\n".join(words)
        assert re.search(r"·cat → ␛\[31m⏎ +41 %", shown)
        assert re.search(r"\[b\] → </b>\S*…\S*</b>", shown)
    assert "drafted →" not in "\n".join(line.plain for line in draw(figures(), course(), 100, 34))
    assert len(draw(figures(), course(), 74, 12, rejected)) <= 12


async def test_f2_lists_the_rejected_drafts_of_an_answer(tmp_path: Path) -> None:
    async with chat("n=40,accept=0.5", folder=tmp_path, size=(200, 50)) as c:
        await c.pilot.press("f2")
        await c.ask()
        await c.until(lambda: re.search(r"·wrong → \S+ +42 %", c.words()))


def test_the_panels_tell_where_each_model_runs() -> None:
    placed = replace(figures(), target_on="RTX 3090", draft_on="CPU")
    assert "target on RTX 3090, draft on CPU" in "\n".join(
        line.plain for line in draw(placed, course(), 100, 20)
    )
    alone = draw(replace(placed, draft_on=""), course(), 60, 30)
    assert alone[-1].plain == "target on RTX 3090"
    shown = "\n".join(line.plain for line in panel(placed, 36))
    assert re.search(r"target +RTX 3090", shown)
    assert re.search(r"draft +CPU", shown)
    long = replace(placed, target_on="NVIDIA Corporation GeForce RTX 3090 Founders Edition")
    for width, room in ((76, 11), (100, 20), (40, 20)):
        assert all(line.cell_length <= width for line in draw(long, course(), width, room))
    assert all(line.cell_length <= 36 for line in panel(long, 36))


def test_the_panels_tell_whether_the_draft_works_beside_the_target() -> None:
    placed = replace(figures(), target_on="RTX 3090", draft_on="CPU")
    on = replace(placed, draft=replace(placed.draft, overlap=True))
    assert draw(on, course(), 60, 30)[-1].plain == "target on RTX 3090, draft on CPU, overlapped"
    assert "d.gguf, overlapped" in "\n".join(line.plain for line in strip(on, 100))
    off = replace(placed, draft=replace(placed.draft, no_overlap="switched off"))
    said = "target on RTX 3090, draft on CPU; no overlap: switched off"
    assert draw(off, course(), 64, 30)[-1].plain == said
    for width in (100, 76, 50):
        assert all(line.cell_length <= width for line in strip(on, width))
    assert "overlap" not in "\n".join(line.plain for line in strip(off, 100))


def test_the_panel_has_every_part_at_80_columns() -> None:
    shown = "\n".join(line.plain for line in draw(figures(), course(), 76, 11))
    for part in (
        "tok/s over this answer",
        "╌╌ plain",
        "accepted at position, once reached",
        "90%",
        "time of a round 60.0 ms",
        "draft       12.0 ms  20 %",
        "verify      45.0 ms  75 %",
        "own code     3.0 ms   5 %",
    ):
        assert part in shown, part


# ---------------------------------------------------------------------- panel


@pytest.mark.parametrize("size", [(80, 24), (200, 50), (40, 20)])
async def test_f2_shows_and_hides_the_stats(tmp_path: Path, size: tuple[int, int]) -> None:
    async with chat("n=120,tok_s=400,plain_s=0.05", folder=tmp_path, size=size) as c:
        await c.pilot.press("f2")
        await c.until(lambda: "net speedup: " in c.words())
        await c.ask()
        await c.until(lambda: "plain ~20.0" in c.words())
        await c.until(lambda: "×" in c.words())
        if size[0] >= 80:
            await c.until(lambda: "tok/s over this answer" in c.words())
            await c.until(lambda: "time of a round" in c.words())
            await c.until(lambda: "fox" in c.words())  # the conversation is still there
        await c.pilot.press("f2")
        await c.until(lambda: "plain ~20.0" not in c.words())


async def test_stats_and_colours_have_their_own_keys(tmp_path: Path) -> None:
    async with chat(folder=tmp_path, size=(100, 40)) as c:
        await c.pilot.press("f2")
        assert c.screen._stats.display
        assert not c.screen.coloured
        await c.pilot.press("f4")
        assert c.screen.coloured
        await c.until(lambda: "F2 stats" in c.words())


# ---------------------------------------------------------------------- bench


async def test_bench_measures_and_leaves_the_conversation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCALSPEC_PRICED", "plain=0.05,step=0.005,accept=1,curve=0.1")
    load = Load(target=TARGET, draft=DRAFT, n_draft=4)
    async with chat(host=PRICED, load=load, folder=tmp_path) as c:
        c.session.max_tokens = 8
        await c.ask("hello")
        before = c.session.messages
        await c.send("/bench")
        await c.until(lambda: isinstance(c.app.screen, Bench) and not bench(c).running)
        await c.until(lambda: "together" in c.words(), 5)
        words = c.words()
        # A round of 5 tokens costs 1.4 + 4 x 0.1 target steps.
        for part in ("code", "prose", "extraction", "edit", "together", "20.0", "2.7", "100 %"):
            assert part in words, part
        shown = "\n".join(line.plain for line in (*bench(c).results(74), *bench(c).remarks()))
        assert "The draft is faster: 2.7" in shown
        assert "The texts with and without the draft are the same." in shown
        assert "a draft step takes 0.10 of a target step" in shown
        assert "In full: localspec bench big --draft small" in shown
        plot = [line.plain for line in bench(c)._drawn[1]]
        assert "tok/s of each answer  ● plain  ▲ drafted" in plot[0]
        assert sum(line.count("●") for line in plot[1:]) == sum(line.count("▲") for line in plot[1:]) == 8
        assert "answer 16" in plot[-1]
        assert all(len(line) <= 76 for line in plot)
        assert c.worker.draft_on
        await c.pilot.press("escape")
        await c.until(lambda: "Measured: 2.7" in c.notices())
        assert c.session.messages == before
        await c.ask("and again")
        assert c.screen.figures.stats.reused_tokens == 0  # the bench emptied the caches
        assert len(c.session.messages) == 4


async def test_bench_says_that_off_is_fastest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALSPEC_PRICED", "plain=0.05,step=0.03,accept=0.1,curve=0.5")
    load = Load(target=TARGET, draft=DRAFT, n_draft=4)
    async with chat(host=PRICED, load=load, folder=tmp_path, size=(120, 40)) as c:
        await c.send("/draft off")
        await c.send("/bench")
        await c.until(lambda: isinstance(c.app.screen, Bench) and not bench(c).running)
        await c.until(lambda: "Off is fastest: the draft is slower: 0." in c.words(), 5)
        await c.until(lambda: "Try: localspec" in c.words())
        await c.pilot.press("q")
        await c.until(lambda: "Measured: 0." in c.notices())
        # It was off before: it is off now.
        await c.until(lambda: "draft: off: switched off" in c.words())


async def test_bench_without_a_draft(tmp_path: Path) -> None:
    off = DraftSpec(kind="none", off_reason="no draft matches")
    async with chat(host=PRICED, draft=off, folder=tmp_path) as c:
        await c.send("/bench")
        await c.until(lambda: isinstance(c.app.screen, Bench) and not bench(c).running)
        await c.until(lambda: "Only plain decoding was measured" in c.words(), 5)
        assert "no draft matches" in " ".join(c.words().split())


async def test_escape_stops_the_bench_and_keeps_what_there_is(tmp_path: Path) -> None:
    async with chat("tok_s=600,n=20", folder=tmp_path) as c:
        await c.send("/bench")
        await c.until(lambda: isinstance(c.app.screen, Bench) and bench(c)._result is not None)
        await c.pilot.press("escape")
        await c.until(lambda: not bench(c).running, 5)
        await c.until(lambda: "Stopped" in c.words() and "Esc closes this" in c.words(), 5)
        await c.pilot.press("escape")
        await c.until(lambda: "It was stopped before the end." in " ".join(c.notices().split()))
        assert await c.ask("still here?")
        await c.until(lambda: "draft: on" in c.words())


async def test_a_dead_engine_ends_the_bench_with_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCALSPEC_PRICED", "die=4")
    async with chat(host=PRICED, folder=tmp_path) as c:
        await c.send("/bench")
        await c.until(lambda: isinstance(c.app.screen, Bench) and not bench(c).running)
        await c.until(lambda: "Broken off" in c.words(), 5)
        await c.until(lambda: "SIGKILL" in " ".join(c.words().split()), 5)
        await c.pilot.press("escape")
        await c.until(lambda: c.app.screen is c.screen)


async def test_ctrl_c_stops_a_bench_and_twice_leaves(tmp_path: Path) -> None:
    async with chat("tok_s=100,n=20", folder=tmp_path) as c:
        await c.send("/bench")
        await c.until(lambda: isinstance(c.app.screen, Measuring) and bench(c)._fraction > 0)
        await c.pilot.press("ctrl+c")
        await c.until(lambda: not bench(c).running, 5)
        assert c.app.is_running


async def test_bench_of_a_draft_length_of_0_is_refused(tmp_path: Path) -> None:
    async with chat(folder=tmp_path) as c:
        await c.send("/n-draft 0")
        await c.send("/bench")
        await c.until(lambda: "The draft length is 0" in c.notices())
        assert c.app.screen is c.screen


# ----------------------------------------------------------------------- tune


async def test_tune_finds_saves_and_loads_the_pair_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("LOCALSPEC_PRICED", "plain=0.05,curve=0.02,step=0.005,accept=0.85")
    target = str(script_model(tmp_path / "target.gguf", {}, n_layer=15))
    draft = str(script_model(tmp_path / "draft.gguf", {}, n_layer=1))
    load = Load(target=target, draft=DraftSpec("model", draft))
    async with chat(host=PRICED, load=load, target_name=target, folder=tmp_path) as c:
        await c.send("/tune")
        await c.until(lambda: isinstance(c.app.screen, Tune) and not c.app.screen.running, 60)
        screen = c.app.screen
        assert isinstance(screen, Tune)
        assert screen._file is not None
        assert screen._file.is_file()
        shown = "\n".join(line.plain for line in screen.results(74))
        for part in ("no draft", "draft", "lookup", "auto", "20.0", "1.00×", "Fastest: ", "Saved as "):
            assert part in shown, part
        await c.until(lambda: "Done" in c.words())
        plot = "\n".join(line.plain for line in screen._drawn[1])
        for part in ("speedup over draft length: line predicted, points measured", "no draft", "auto", "×"):
            assert part in plot, part
        measured = [one for one in screen.series() if one.name and not one.joined]
        assert measured
        assert sum(plot.count(one.marker) for one in measured) > len(measured)  # more than the legend
        await c.pilot.press("escape")
        await c.until(lambda: "Fastest: " in c.notices() and not c.screen.busy)
        assert c.worker.loaded == load
        assert c.worker.ready is not None
        await c.until(lambda: "draft: on  draft.gguf" in c.words())


async def test_a_stopped_tune_saves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path / "home"))
    target = str(script_model(tmp_path / "target.gguf", {}, n_layer=2))
    load = Load(target=target, draft=DraftSpec("lookup"))
    async with chat("tok_s=200", load=load, target_name=target, folder=tmp_path) as c:
        await c.send("/tune")
        await c.until(lambda: isinstance(c.app.screen, Tune) and c.app.screen._fraction > 0)
        screen = c.app.screen
        assert isinstance(screen, Tune)
        await c.pilot.press("escape")
        await c.until(lambda: not screen.running, 10)
        await c.until(lambda: "Stopped" in c.words())
        await c.pilot.press("escape")
        await c.until(lambda: c.app.screen is c.screen and not c.screen.busy)
        assert "Nothing was measured." in c.notices() or "Not saved." in c.notices()
        assert not (tmp_path / "home" / "data" / "profiles").exists()
        await c.until(lambda: "draft: on  lookup" in c.words())


# --------------------------------------------------------------------- advice


async def test_a_slower_answer_is_told_once(tmp_path: Path) -> None:
    async with chat("n=120,tok_s=200,accept=0.5,plain_s=0.003", folder=tmp_path, size=(100, 40)) as c:
        await c.ask()
        said = " ".join(c.notices().split())
        assert "With the draft this answer was slower than without: 0." in said
        assert "plain 333.3" in said
        assert "Try: /n-draft auto" in said
        await c.ask("again")
        assert c.notices().count("slower than without") == 1
        await c.send("/clear")
        await c.until(lambda: not c.screen.busy)
        await c.ask("anew")
        assert c.notices().count("slower than without") == 1


async def test_an_acceptance_near_zero_is_told(tmp_path: Path) -> None:
    async with chat("n=80,accept=0", folder=tmp_path) as c:
        await c.ask()
        await c.until(lambda: "Only 0% of the drafts had a right first token" in c.notices())
        await c.until(lambda: "localspec check big small" in c.notices())


async def test_a_nearly_full_context_is_told(tmp_path: Path) -> None:
    async with chat("n=30,accept=1", load=Load(target=TARGET, draft=DRAFT, n_ctx=34), folder=tmp_path) as c:
        await c.ask("one two")
        await c.until(lambda: "32 of 34 tokens of the context are used" in c.notices())
        await c.until(lambda: "Try: /drop" in c.notices())


async def test_other_programs_are_told_once(tmp_path: Path) -> None:
    seen = Surroundings(0.5, (Program(7, "[b]cc1plus", 0.4),), None, ())
    around = Around(0.43, seen)
    async with chat("n=120,accept=0.9", around=around, folder=tmp_path, size=(100, 40)) as c:
        await c.ask()
        await c.until(lambda: "Other programs" in c.notices())
        await c.until(lambda: "Other programs took 43% of the CPU ([b]cc1plus)." in c.notices())
        await c.until(lambda: "Try: localspec run big --draft small --threads 1 --continue" in c.notices())
        await c.ask("again")
        assert around.looks == 1
        assert c.notices().count("Other programs") == 1


async def test_a_look_that_comes_under_the_next_answer_says_nothing(tmp_path: Path) -> None:
    class Late(Around):
        def look(self, *, on_gpu: bool) -> Surroundings:
            self.looks += 1
            asked.wait(10)
            return self.seen

    asked = threading.Event()
    around = Late(0.5)
    async with chat("n=70,accept=0.9", around=around, folder=tmp_path) as c:
        await c.ask()
        await c.until(lambda: around.looks == 1)
        around.share = 0.0
        await c.ask("again")
        asked.set()
        await c.until(lambda: not any(each.name == "localspec look" for each in threading.enumerate()))
        await c.until(c.screen.advisor._looks.empty)
        assert "Other programs" not in c.notices()


async def test_a_falling_acceptance_is_told(tmp_path: Path) -> None:
    async with chat("n=120,accept=0.9", folder=tmp_path, size=(100, 40)) as c:
        for depth in range(100, 2_100, 10):
            accepted = 3 if depth < 1_000 else 1
            stats = Stats(rounds=1, drafted=4, accepted=accepted)
            c.screen.advisor.round(Round((), stats, c.screen.figures.draft, depth, 4096))
            c.screen.advisor.round(Round((), Stats(), c.screen.figures.draft, depth, 4096))
        await c.ask()
        said = " ".join(c.notices().split())
        assert re.search(
            r"Acceptance has fallen from 7\d% at \d+ tokens of this conversation to 2\d% at", said
        )
        assert "Try: /n-draft auto" in said


async def test_a_good_answer_brings_no_advice(tmp_path: Path) -> None:
    async with chat("n=120,tok_s=400,accept=0.9,plain_s=0.01", folder=tmp_path) as c:
        await c.ask()
        assert "Try:" not in c.notices()


async def test_a_short_answer_brings_no_advice(tmp_path: Path) -> None:
    async with chat("n=20,tok_s=400,accept=0,plain_s=0.0001", folder=tmp_path) as c:
        await c.ask()
        assert "Try:" not in c.notices()


@pytest.mark.parametrize("name", ["bench", "tune"])
@pytest.mark.parametrize("size", [(80, 24), (200, 50)])
async def test_table_and_plot_are_both_seen_without_scrolling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, size: tuple[int, int]
) -> None:
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("LOCALSPEC_PRICED", "plain=0.05,curve=0.02,step=0.005,accept=0.85")
    target = str(script_model(tmp_path / "target.gguf", {}, n_layer=15))
    drafts = [str(script_model(tmp_path / f"draft-{n}.gguf", {}, n_layer=n)) for n in (1, 2)]
    load = Load(target=target, draft=DraftSpec("model", drafts[0]))
    async with chat(host=PRICED, load=load, target_name=target, folder=tmp_path, size=size) as c:
        await c.send(f"/{name}")
        await c.until(lambda: isinstance(c.app.screen, Measuring) and not c.app.screen.running, 60)
        if name == "bench":
            parts = ("tok/s of each answer", "code", "together", "┌", "└", "answer 16")
        else:
            parts = ("speedup over draft length", "no draft", "draft-2", "┌", "└", "auto")
        await c.until(lambda: "Done" in c.words() and all(part in c.words() for part in parts))
        box = c.app.screen.query_one("#measuring")
        assert box.scroll_offset.y == 0
