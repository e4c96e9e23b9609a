"""Every slash command, Ctrl+C and the clipboard, through the pilot."""

from __future__ import annotations

import base64
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from localspec.errors import UsageError
from localspec.options import OPTIONS
from localspec.spec.stats import Source
from localspec.tui import clipboard
from localspec.tui.commands import COMMANDS, LOAD_FLAGS, as_message, is_command, parse, suggestions
from localspec.tui.screens.help import Help
from localspec.worker.protocol import DraftSpec
from tests.tui.driver import chat


def test_what_is_a_command() -> None:
    assert is_command("/help")
    assert is_command("/nonsense 3")
    assert is_command("/system two\nlines")
    for text in ("hello", "//help", "/usr/bin/env is a path", "a /help", "", "  "):
        assert not is_command(text), text
    assert as_message("//help") == "/help"
    assert as_message("plain") == "plain"


def test_parse_says_what_is_allowed() -> None:
    assert parse("/n-draft 6")[1] == "6"
    assert parse("/system two\nlines")[1] == "two\nlines"
    assert parse("/retry")[0].name == "/regenerate"
    with pytest.raises(UsageError, match=r"no command /tepm.*Near it: /temp"):
        parse("/tepm 1")
    with pytest.raises(UsageError, match="needs a value"):
        parse("/temp")
    with pytest.raises(UsageError, match="takes nothing"):
        parse("/clear all")


def test_suggestions_narrow_down() -> None:
    assert suggestions("/") == list(COMMANDS)
    assert [each.name for each in suggestions("/te")] == ["/temp"]
    assert [each.name for each in suggestions("/retr")] == ["/regenerate"]
    for none in ("", "te", "/temp ", "//t", "/xyz"):
        assert suggestions(none) == []


@pytest.mark.parametrize("name", ["~nobody-at-all/x.md", "n" * 300, "a\0b", "/", "no/such/folder/x.md"])
async def test_a_copy_that_cannot_be_written_says_so(tmp_path: Path, name: str) -> None:
    async with chat("n=3", folder=tmp_path) as c:
        await c.ask()
        await c.send(f"/copy {name}")
        await c.until(lambda: "cannot be written" in c.notices() or "exists" in c.notices())
        assert "Something went wrong" not in c.notices()


async def test_a_fault_in_a_command_does_not_end_the_chat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with chat("n=3", folder=tmp_path) as c:

        def fail() -> None:
            raise ZeroDivisionError("[/red]")

        monkeypatch.setattr(c.screen, "action_help", fail)
        await c.send("/help")
        await c.until(lambda: "ZeroDivisionError: [/red]" in c.notices())
        assert await c.ask()


async def test_draft_off_and_on_in_mid_answer(tmp_path: Path) -> None:
    async with chat("n=2000,tok_s=100", folder=tmp_path) as c:
        await c.send("go")
        await c.until(lambda: c.screen.figures.stats.completion_tokens > 8)
        await c.send("/draft off")
        await c.until(lambda: "draft: off: switched off" in c.words())
        assert c.screen.answering
        await c.until(lambda: "Drafting is off: switched off." in c.notices())
        drafted = c.screen.figures.stats.drafted
        done = c.screen.figures.stats.completion_tokens
        await c.until(lambda: c.screen.figures.stats.completion_tokens > done + 5)
        assert c.screen.figures.stats.drafted == drafted
        await c.send("/draft on")
        await c.until(lambda: c.screen.figures.stats.drafted > drafted)
        await c.send("/n-draft 7")
        await c.until(lambda: c.screen.figures.draft.n_draft == 7)
        await c.until(lambda: "Drafting is on, 7 tokens a round." in c.notices())
        assert c.screen.answering


async def test_draft_commands_while_idle(tmp_path: Path) -> None:
    async with chat("n=5", folder=tmp_path) as c:
        await c.send("/n-draft 2")
        await c.until(lambda: "k 2" in c.words())
        await c.send("/n-draft auto:5")
        await c.until(lambda: "Drafting is on, the length by price." in c.notices())
        await c.until(lambda: "k ≤5 auto" in c.words())
        await c.send("/draft off")
        await c.until(lambda: "draft: off: switched off" in c.words())
    nothing = DraftSpec(kind="none", off_reason="no draft was asked for")
    async with chat(draft=nothing, folder=tmp_path) as c:
        await c.send("/draft on")
        await c.until(lambda: "Drafting is off: no draft was asked for." in c.notices())


async def test_sampling_commands(tmp_path: Path) -> None:
    async with chat("echo=command", folder=tmp_path) as c:
        for command in (
            "/temp 0.3",
            "/top-p 0.8",
            "/top-k 7",
            "/min-p 0.05",
            "/repeat-penalty 1.1",
            "/presence-penalty 0.2",
            "/frequency-penalty -0.1",
            "/seed 99",
            "/max-tokens 700",
            "/think off",
            "/system Be brief.",
        ):
            await c.send(command)
            assert c.screen.prompt.text == "", command
        said = await c.ask("x")
        for part in (
            '"temperature": 0.3', '"top_p": 0.8', '"top_k": 7', '"min_p": 0.05', '"seed": 99', "Be brief.",
            '"repeat_penalty": 1.1', '"presence_penalty": 0.2', '"frequency_penalty": -0.1', '"max_tokens": 700',
            '"think": false',
        ):  # fmt: skip
            assert part in said, part
        for said in ("Temperature is 0.3", "top-p is 0.8", "top-k is 7", "min-p is 0.05", "The seed is 99"):
            assert said in c.notices()
        await c.until(lambda: "at most 700 tokens" in c.notices())
        await c.until(lambda: "template does not know how to switch thinking" in c.notices())
        await c.send("/system clear")
        assert c.session.system == ""
        await c.send("/think auto")
        assert c.session.think is None


def test_what_only_a_load_changes_tells_what_to_type() -> None:
    for typed, hint in (
        ("/overlap on", "localspec run --overlap on --continue"),
        ("/overlap", "localspec run --overlap auto --continue"),
        ("/kv q8_0", "localspec run --kv q8_0 --continue"),
        ("/ctx 16384", "localspec run --ctx 16384 --continue"),
        ("/lookup my notes.txt", "localspec run --lookup 'my notes.txt' --continue"),
        ("/model qwen3.8-27b", "localspec run qwen3.8-27b --continue"),
    ):
        with pytest.raises(UsageError, match="is chosen when the models load") as raised:
            parse(typed)
        assert raised.value.hint == hint
    assert parse("/n-draft 4")


def test_every_setting_of_a_chat_has_a_command_or_says_what_to_type() -> None:
    known = {name for command in COMMANDS for name in (command.name, *command.aliases)} | set(LOAD_FLAGS)
    flags = {option.flag.partition("/")[0] for option in OPTIONS.values() if option.flag.startswith("--")}
    assert {f"/{flag[2:]}" for flag in flags} <= known


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("/temp hot", "a number from 0 to 5"),
        ("/temp 9", "a number from 0 to 5"),
        ("/temp nan", "a number from 0 to 5"),
        ("/top-p 2", "a number greater than 0 and at most 1"),
        ("/top-p 0", "a number greater than 0 and at most 1"),
        ("/min-p 1.1", "a number from 0 to 1"),
        ("/top-k 1.5", "a whole number"),
        ("/top-k -1", "a whole number"),
        ("/n-draft 99", "a whole number N from 0 to 16"),
        ("/n-draft x", "a whole number N from 0 to 16"),
        ("/draft maybe", "on or off"),
        ("/draft 4b", "localspec run --draft 4b --continue"),
        ("/think maybe", "takes on, off or auto"),
        ("/max-tokens -1", "a whole number, 0 or more"),
        ("/repeat-penalty 0", "a number greater than 0 and at most 5"),
        ("/overlap on", "localspec run --overlap on --continue"),
        ("/seed -4", "a whole number"),
        ("/draft", "needs a value"),
        ("/bogus", "There is no command /bogus"),
        ("/theme nope", "There is no theme"),
        ("/copy", "There is no answer to copy yet"),
        ("/stats", "no figures yet"),
        ("/retry", "nothing to answer yet"),
        ("/drop", "nothing older to forget"),
    ],
)
async def test_bad_values_are_explained(tmp_path: Path, typed: str, said: str) -> None:
    async with chat(folder=tmp_path) as c:
        before = c.session.sampling
        await c.send(typed)
        assert said in c.notices()
        if typed != "/drop":
            assert c.screen.prompt.text == typed
        assert c.session.sampling == before


async def test_clear_forgets_all(tmp_path: Path) -> None:
    async with chat("n=2000,tok_s=200", folder=tmp_path) as c:
        await c.send("go")
        await c.until(lambda: c.screen.figures.stats.completion_tokens > 5)
        await c.send("/clear")
        await c.until(lambda: not c.screen.busy and not c.session.messages)
        await c.pilot.pause()
        assert not c.screen.conversation.answers()
        assert c.screen.figures.context_used == 0
        await c.until(lambda: "caches are empty" in c.notices())
        await c.until(lambda: "draft: on" in c.words())


async def test_regenerate_replaces_the_answer(tmp_path: Path) -> None:
    async with chat("echo=command", folder=tmp_path) as c:
        first = await c.ask("again?")
        await c.send("/regenerate")
        await c.until(lambda: len(c.session.messages) == 2 and c.session.messages[1].content != first)
        await c.until(lambda: not c.screen.busy)
        assert len(c.screen.conversation.answers()) == 1
        assert f'"seed": {c.session.seed}' in c.session.messages[1].content


async def test_regenerate_in_mid_answer(tmp_path: Path) -> None:
    async with chat("n=2000,tok_s=200", folder=tmp_path) as c:
        await c.send("go")
        await c.until(lambda: c.screen.figures.stats.completion_tokens > 5)
        seed = c.session.seed
        await c.send("/retry")
        await c.until(lambda: c.session.seed == seed + 1 and c.screen.answering)
        await c.until(lambda: c.screen.figures.stats.completion_tokens > 5)
        assert [m.role for m in c.session.messages] == ["user"]


async def test_stats_tell_the_sources_apart(tmp_path: Path) -> None:
    async with chat("n=10", folder=tmp_path) as c:
        await c.ask("hello")
        several = {"lookup": Source(2, 9, 6), "[red]\x1b[31m": Source(3, 4, 1)}
        figures = c.screen.figures
        c.screen.figures = replace(figures, stats=replace(figures.stats, by_source=several))
        await c.send("/stats")
        await c.until(lambda: "lookup: 2 rounds: drafted 9, accepted 6 (67 %)" in c.notices())
        await c.until(lambda: "[red]␛[31m: 3 rounds: drafted 4, accepted 1 (25 %)" in c.notices())


async def test_retry_after_a_failure_keeps_the_message(tmp_path: Path) -> None:
    async with chat("fail=generate", folder=tmp_path) as c:
        await c.ask("my question")
        await c.until(lambda: "llama_decode failed." in c.notices())
        await c.until(lambda: "/retry" in c.notices())
        await c.send("/retry")
        await c.until(lambda: c.notices().count("llama_decode failed.") == 2)
        assert [m.content for m in c.session.messages] == ["my question"]


async def test_drop_makes_room(tmp_path: Path) -> None:
    async with chat("fail=context,fits=2,n=3", folder=tmp_path) as c:
        await c.ask("first")
        await c.ask("second")
        await c.until(lambda: "/drop" in c.notices())
        await c.send("/drop")
        await c.until(lambda: not c.screen.busy and len(c.session.messages) == 2)
        assert c.session.messages[0].content == "second"


async def test_literal_slash_and_help_and_quit(tmp_path: Path) -> None:
    async with chat("echo=last", folder=tmp_path) as c:
        assert await c.ask("//help me") == "/help me"
        assert await c.ask("/usr/bin is a path") == "/usr/bin is a path"
        await c.send("/help")
        assert isinstance(c.app.screen, Help)
        await c.pilot.press("escape")
        await c.send("/quit")
        await c.until(lambda: not c.app.is_running)
        assert c.app.return_code == 0


async def test_stats_theme_colour_thinking(tmp_path: Path) -> None:
    async with chat("think=8,n=8", folder=tmp_path) as c:
        await c.ask()
        await c.send("/stats")
        await c.until(lambda: "drafted" in c.notices())
        await c.until(lambda: "mean accepted length" in c.notices())
        await c.send("/colour")
        assert c.screen.coloured
        answer = c.screen.conversation.answers()[0]
        folded = answer.thinking.folded
        await c.send("/thinking")
        assert answer.thinking.folded is not folded
        await c.send("/theme localspec-light")
        assert c.app.theme == "localspec-light"


async def test_tab_completes(tmp_path: Path) -> None:
    async with chat(folder=tmp_path) as c:
        await c.pilot.press("/", "n")
        await c.until(lambda: "draft length" in c.words())
        await c.pilot.press("tab")
        assert c.screen.prompt.text == "/n-draft "
        assert "draft length" not in c.words()


# ------------------------------------------------------------------- Ctrl+C


async def test_ctrl_c_twice_leaves(tmp_path: Path) -> None:
    async with chat(folder=tmp_path) as c:
        await c.pilot.press("ctrl+c")
        await c.until(lambda: "Press Ctrl+C again to leave" in c.words())
        assert c.app.is_running
        await c.pilot.press("ctrl+c")
        await c.until(lambda: not c.app.is_running)


async def test_ctrl_c_stops_an_answer_first(tmp_path: Path) -> None:
    async with chat("n=2000,tok_s=100", folder=tmp_path) as c:
        await c.send("go")
        await c.until(lambda: c.screen.figures.stats.completion_tokens > 3)
        await c.pilot.press("ctrl+c")
        await c.until(lambda: not c.screen.busy, 3)
        assert c.app.is_running
        assert c.session.messages[-1].role == "assistant"


@pytest.mark.parametrize("script", ["load_s=30", "prefill_s=30", "n=9000,tok_s=50"])
async def test_ctrl_q_leaves_in_every_phase(tmp_path: Path, script: str) -> None:
    async with chat(script, folder=tmp_path, wait=False) as c:
        if not script.startswith("load"):
            await c.loaded()
            await c.send("go")
        await c.pilot.press("ctrl+q")
        await c.until(lambda: not c.app.is_running, 2)


async def test_ctrl_d_leaves_from_an_empty_box_only(tmp_path: Path) -> None:
    async with chat("n=2000,tok_s=100", folder=tmp_path) as c:
        await c.send("go")
        await c.until(lambda: c.screen.answering)
        c.screen.prompt.put("ab")
        await c.pilot.press("left", "ctrl+d")
        await c.until(lambda: c.screen.prompt.text == "a")
        assert c.app.is_running
        c.screen.prompt.put("")
        await c.pilot.press("ctrl+d")
        await c.until(lambda: not c.app.is_running)
        assert c.app.return_code == 0


async def test_ctrl_c_copies_a_selection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copied = []
    monkeypatch.setattr(clipboard, "native_copy", lambda text: copied.append(text) or "stub")
    async with chat("n=3,text=answer ", folder=tmp_path) as c:
        await c.ask()
        c.screen.prompt.put("take this")
        c.screen.prompt.select_all()
        await c.pilot.press("ctrl+c")
        await c.until(lambda: "Copied with stub." in c.notices())
        assert copied == ["take this"]
        assert c.screen.prompt.text == "take this"
        await c.send("/copy")
        await c.until(lambda: len(copied) == 2)
        assert copied[1] == "answer answer answer "


# ---------------------------------------------------------------- clipboard


def tool(folder: Path, name: str, code: int) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\ncat > '{folder}/taken'\nexit {code}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def test_native_tools_in_order(tmp_path: Path) -> None:
    x11 = {"PATH": f"{tmp_path}:/bin:/usr/bin", "DISPLAY": ":0"}
    tool(tmp_path, "xclip", 1)
    tool(tmp_path, "xsel", 0)
    assert clipboard.native_copy("tëxt", x11) == "xsel"
    assert (tmp_path / "taken").read_text(encoding="utf-8") == "tëxt"
    tool(tmp_path, "wl-copy", 0)
    assert clipboard.native_copy("x", x11 | {"WAYLAND_DISPLAY": "w"}) == "wl-copy"


def test_no_tool_no_claim(tmp_path: Path) -> None:
    assert clipboard.native_copy("x", {"PATH": str(tmp_path), "DISPLAY": ":0"}) == ""
    tool(tmp_path, "pbcopy", 0)
    assert clipboard.tools({}, "darwin") == [["pbcopy"]]
    assert clipboard.tools({"SSH_CONNECTION": "1 2 3 4"}, "darwin") == []
    assert clipboard.tools({}, "linux") == []


async def test_copy_falls_back_to_the_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clipboard, "native_copy", lambda text: "")
    async with chat("n=2,text=ab ", folder=tmp_path) as c:
        await c.ask()
        written = []
        monkeypatch.setattr(c.app._driver, "write", written.append)
        await c.send("/copy")
        await c.until(lambda: "/copy FILE" in c.notices())
        assert f"\x1b]52;c;{base64.b64encode(b'ab ab ').decode()}\a" in written
        assert "Copied" not in c.notices()
        monkeypatch.undo()


async def test_copy_saves_to_a_file(tmp_path: Path) -> None:
    async with chat("n=2,text=ab [x] ", folder=tmp_path) as c:
        await c.ask()
        file = tmp_path / "answer [1].md"
        await c.send(f"/copy {file}")
        assert file.read_text() == "ab [x] "
        await c.send(f"/copy {file}")
        await c.until(lambda: "exists" in c.notices())
        c.screen.prompt.put("")
        await c.send(f"/copy {tmp_path}/no/such/folder.md")
        await c.until(lambda: "cannot be written" in c.notices())
