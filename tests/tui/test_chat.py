"""Asking, streaming, stopping: the chat through Textual's pilot, with the scripted engine."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from textual import events

from localspec.chat.store import ConversationStore
from localspec.errors import ContextFullError, LocalspecError
from localspec.spec.events import Piece
from localspec.tui.screens.help import Help
from localspec.tui.widgets.answer import Answer
from localspec.worker.protocol import DraftSpec, Event, Generate, Load
from tests.tui.driver import TARGET, chat

BRACKETS = "see [0] and [/x] and [b + c], a[i] = [/red] [link=x]y [@click=app.bell]z[/] \\\\[ "


async def test_answer_streams_and_ends(tmp_path: Path) -> None:
    async with chat("n=60,text=one two three ", folder=tmp_path) as c:
        assert await c.ask("hello") == "one two three " * 20
        words = c.words()
        assert "hello" in words
        assert "one two three" in words
        assert "60 tokens" in words
        assert c.screen.phase == "ready"
        assert c.pair.remembered == 1


async def test_tokens_are_counted_not_chunks(tmp_path: Path) -> None:
    async with chat("n=200,accept=1,tok_s=2000", folder=tmp_path) as c:
        await c.ask()
        stats = c.screen.figures.stats
        assert stats.completion_tokens == 200
        assert stats.rounds == 40
        assert stats.decode_tok_s is not None
        assert stats.decode_tok_s * stats.decode_s == pytest.approx(199)
        await c.until(lambda: "200 tokens" in c.words())


async def test_square_brackets_everywhere(tmp_path: Path) -> None:
    load = Load(target="/models/[/red].gguf", draft=DraftSpec(kind="model", path="/models/[b]draft[/b].gguf"))
    script = f"n=40,notes=note [/red] [0],text={BRACKETS}"
    async with chat(script, load=load, notes=("pair [/green]",), folder=tmp_path, size=(110, 24)) as c:
        answer = await c.ask("what is [/blue] a[0]?")
        assert answer.startswith(BRACKETS.strip())
        c.screen.unexpected(ValueError("broken [/red] [0]"))
        c.screen.fail(LocalspecError("m [/red]", why="w [1]", hint="h [/x]"))
        await c.pilot.pause()
        assert "red] on CPU" in c.words()  # a slash ends a folder, the title shows the stem
        await c.until(lambda: "b].gguf" in c.figures())
        assert "what is [/blue] a[0]?" in str(c.screen.query("UserMessage").first().content)
        for said in ("note [/red] [0]", "pair [/green]", "broken [/red] [0]", "m [/red]", "w [1]", "h [/x]"):
            assert said in c.notices()


async def test_commands_with_brackets(tmp_path: Path) -> None:
    async with chat(folder=tmp_path) as c:
        await c.send("/[red] [0]")
        assert c.screen.prompt.text == "/[red] [0]"
        await c.until(lambda: "There is no command /[red]." in c.notices())
        await c.send("/temp [/red]")
        await c.until(lambda: "“[/red]”" in c.notices())
        await c.send("/system be [/bold] brief [0]")
        assert c.session.system == "be [/bold] brief [0]"
        await c.send("/system")
        await c.until(lambda: "be [/bold] brief [0]" in c.notices())


@pytest.mark.parametrize("key", ["f4", None])
async def test_control_characters_are_harmless(tmp_path: Path, key: str | None) -> None:
    text = "a\x1b[31mred\x9b31m\u202eright\x07end\n\n```\nx\x1b]0;t\x07\n```\n\n# h\x1b[2J\n\n"
    async with chat(f"n=30,text={text}", folder=tmp_path) as c:
        if key:
            await c.pilot.press(key)
        await c.ask("say \x1b[31m\x9b")
        words = c.words()
        for bad in "\x1b\x9b\u202e\x07":
            assert bad not in words
        assert "␛" in words


async def test_thinking_counts_and_is_apart(tmp_path: Path) -> None:
    async with chat("think=40,n=40,tok_s=60,text=answer ", folder=tmp_path, size=(100, 30)) as c:
        await c.send("hello")
        await c.until(lambda: c.screen.phase == "thinking")
        await c.until(lambda: c.screen.figures.now_tok_s)
        assert c.screen.figures.stats.completion_tokens > 0
        await c.until(lambda: "–" not in c.figures().split("tok/s")[0])
        await c.until(lambda: c.screen.phase == "answering")
        await c.until(lambda: not c.screen.busy)
        answer = c.screen.conversation.answers()[0]
        assert answer.thinking.tokens == 40
        assert answer.thinking.folded
        assert "think" not in answer.text
        assert c.screen.figures.stats.completion_tokens == 80
        await c.pilot.press("f3")
        assert not answer.thinking.folded
        assert "Let me think about this" in c.words() or "Thought · 40 tokens" in c.words()


async def test_thinking_without_an_answer_says_so(tmp_path: Path) -> None:
    async with chat("think=30,n=10", folder=tmp_path) as c:
        c.session.max_tokens = 20
        await c.ask()
        await c.until(lambda: "only thinking so far" in " ".join(c.words().split()))
        await c.until(lambda: "token limit reached" in c.words())
        await c.until(lambda: "▾ Thought · 20 tokens" in c.words())


async def test_typing_during_the_answer(tmp_path: Path) -> None:
    async with chat("n=400,tok_s=150", folder=tmp_path) as c:
        await c.send("first")
        await c.until(lambda: c.screen.figures.stats.completion_tokens > 5)
        await c.pilot.press(*"second")
        assert c.screen.prompt.text == "second"
        await c.pilot.press("enter")
        await c.until(lambda: "your text is kept" in c.words())
        assert c.screen.prompt.text == "second"
        assert c.screen.busy
        await c.pilot.press("!")
        assert "your text is kept" not in c.words()
        await c.pilot.press("escape")
        await c.until(lambda: not c.screen.busy)
        assert c.screen.prompt.text == "second!"
        assert len([m for m in c.session.messages if m.role == "user"]) == 1


async def test_enter_while_loading_sends_when_loaded(tmp_path: Path) -> None:
    async with chat("load_s=1,n=3", folder=tmp_path, wait=False) as c:
        await c.pilot.press(*"early")
        await c.pilot.press("enter")
        await c.until(lambda: "your text is kept" in c.words())
        assert "Loading the target" in c.words() or "Starting" in c.words()
        await c.until(lambda: len(c.session.messages) == 2)
        assert c.session.messages[0].content == "early"
        assert c.screen.prompt.text == ""


async def test_escape_stops_and_keeps_the_text(tmp_path: Path) -> None:
    async with chat("n=1000,tok_s=100,text=word ", folder=tmp_path) as c:
        await c.send("go")
        await c.until(lambda: c.screen.figures.stats.completion_tokens > 10)
        await c.pilot.press("escape")
        await c.until(lambda: not c.screen.busy, 3)
        kept = c.session.messages[-1].content
        assert kept.startswith("word word")
        await c.until(lambda: "stopped" in c.words())
        assert c.screen.last_answer() == kept


async def test_escape_before_the_request_was_made_is_not_lost(tmp_path: Path) -> None:
    async with chat("n=1000,tok_s=50,text=word ", folder=tmp_path) as c:
        real, pressed = c.worker.generate, threading.Event()

        def late(command: Generate) -> Iterator[Event]:
            assert pressed.wait(10)
            yield from real(command)

        c.worker.generate = late  # type: ignore[assignment,method-assign]
        await c.send("go")
        await c.pilot.press("escape")
        pressed.set()
        await c.until(lambda: not c.screen.busy, 8)  # the whole answer takes 20 seconds
        c.worker.generate = real  # type: ignore[method-assign]
        await c.send("/retry")
        await c.until(lambda: c.screen.figures.stats.completion_tokens > 20)  # that stop has ended


async def test_escape_during_the_prompt_leaves_no_empty_answer(tmp_path: Path) -> None:
    async with chat("prefill_s=20", folder=tmp_path) as c:
        await c.send("go")
        await c.until(lambda: "reading the prompt" in c.words())
        await c.pilot.press("escape")
        await c.until(lambda: not c.screen.busy, 3)
        await c.pilot.pause()
        assert not c.screen.conversation.answers()
        await c.until(lambda: "/retry" in c.notices())


async def test_toggle_colours_loses_nothing(tmp_path: Path) -> None:
    text = "# Head\\n\\nwith **bold**\\n\\n```py\\ncode = [0]\\n```\\n\\nend "
    async with chat(f"n=60,tok_s=80,text={text}", folder=tmp_path, size=(80, 50)) as c:
        await c.send("go")
        for _ in range(5):
            await c.pilot.press("f4")
            await c.pilot.pause(0.1)
        await c.until(lambda: not c.screen.busy)
        answer = c.screen.conversation.answers()[0]
        await c.until(lambda: answer.idle)
        await c.pilot.pause()
        assert c.screen.coloured
        assert answer._pieces.display
        assert not answer._markdown.display
        shown = "\n".join(str(each.content) for each in answer._pieces.children)
        assert "‹·wrong›" in shown
        assert shown.replace("‹·wrong›", "") == answer.text
        styles = {str(span.style) for each in answer._pieces.children for span in each.content.spans}
        assert len(styles) == 3
        await c.pilot.press("f4")
        await c.pilot.pause(0.2)
        assert answer._markdown.display
        assert answer._markdown.source == answer.text
        assert answer.text == c.session.messages[-1].content


@pytest.mark.parametrize("text", ["one\n\n", "- one\n"])
async def test_an_endless_answer_does_not_become_endless_widgets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setattr("localspec.tui.widgets.answer._MOST_BLOCKS", 10)
    monkeypatch.setattr("localspec.tui.widgets.answer._MOST_ITEMS", 15)
    monkeypatch.setattr("localspec.tui.widgets.answer._LONGEST_BLOCK", 400)
    async with chat(folder=tmp_path) as c:
        answer = Answer()
        await c.screen.conversation.add(answer)
        for _ in range(6):
            answer.feed([Piece(1, text * 10, False)])
            await c.until(lambda: answer.idle)
        answer.finish("")
        await c.until(lambda: answer.idle)
        assert len(list(answer.walk_children())) < 50
        shown = answer._markdown.source + "\n".join(str(each.content) for each in answer._rest.children)
        assert "".join(shown.split()) == "".join((text * 60).split())
        assert answer._rest.display
        assert answer.text == text * 60


async def test_the_welcome_stays_beside_notes_until_something_is_asked(tmp_path: Path) -> None:
    async with chat(folder=tmp_path, notes=("A very small model.",)) as c:
        await c.until(lambda: "A very small model." in c.words())
        await c.until(lambda: "Type a question and press Enter." in c.words())
        await c.ask()
        await c.until(lambda: "Type a question and press Enter." not in c.words())


async def test_unsent_text_is_there_when_the_chat_is_gone_on_with(tmp_path: Path) -> None:
    store = ConversationStore(tmp_path / "kept")
    async with chat("n=3", folder=tmp_path, store=store) as c:
        await c.ask("first")
        c.screen.prompt.put("half a\nthought [/red]")
        c.screen.settle(1.0)
    async with chat("n=3", folder=tmp_path, store=store) as c:
        await c.until(lambda: "Going on with" in c.notices())
        assert c.screen.prompt.text == "half a\nthought [/red]"
        c.screen.prompt.put("/quit")
        c.screen.settle(1.0)  # a command is no message
    assert store.newest().records[-1] == {"type": "typed", "content": ""}


async def test_what_had_arrived_is_kept_when_the_engine_is_closed_in_mid_answer(tmp_path: Path) -> None:
    store = ConversationStore(tmp_path / "kept")
    async with chat("n=900,tok_s=100,stubborn=1,text=alpha ", folder=tmp_path, store=store) as c:
        await c.send("go")
        await c.until(lambda: c.screen.figures.stats.completion_tokens > 4)
        c.worker.close(0.5)
        c.screen.settle(10.0)
        assert store.newest().records[-1]["content"].startswith("alpha alpha")


async def test_draft_status_is_always_there(tmp_path: Path) -> None:
    reason = "the vocabularies differ: token 1234 is “[/red]” in the target and “ hello” in the draft, so no"
    for size in ((80, 24), (40, 20), (200, 50)):
        off = DraftSpec(kind="none", off_reason=reason)
        async with chat(draft=off, folder=tmp_path, size=size) as c:
            await c.until(lambda: "draft: off" in c.words())
            await c.until(lambda c=c: all(word in c.words() for word in reason.split()), 5)
    async with chat(folder=tmp_path) as c:
        await c.until(lambda: "draft: on  draft.gguf" in c.words(), 5)


async def test_all_figures_fit_at_80_by_24(tmp_path: Path) -> None:
    async with chat("n=100,memory=RAM", folder=tmp_path) as c:
        await c.ask()
        words = c.words()
        lines = words.splitlines()
        assert len(lines) == 24
        for label in (
            "now",
            "answer",
            "tok/s",
            "TTFT",
            "context",
            "accepted",
            "mean length",
            "k 4",
            "at position",
        ):
            assert label in words, label
        assert "RAM 18.7/22.4 GiB" in words
        assert len(c.figures().splitlines()) == 3
        assert "1█ 2█" in words


async def test_load_failure_keeps_the_app(tmp_path: Path) -> None:
    async with chat("fail=load", folder=tmp_path) as c:
        said = c.notices()
        for sentence in ("The target could not be loaded.", "The script said so.", "localspec doctor"):
            assert sentence in said
        await c.until(lambda: "draft: off: nothing is loaded" in c.words())
        await c.ask("still here?")
        assert c.session.messages[0].content == "still here?"
        assert said.count("could not be loaded") < c.notices().count("could not be loaded")


@pytest.mark.parametrize("where", ["load", "prefill", "decode:3"])
async def test_death_of_the_engine(tmp_path: Path, where: str) -> None:
    once = tmp_path / "crashed"
    script = f"crash={where},kind=segv,once={once},n=30,tok_s=300,text=word "
    async with chat(script, folder=tmp_path) as c:
        if where != "load":
            await c.send("first")
            await c.pilot.press(*"typed")
            await c.until(lambda: not c.screen.busy)
            assert c.screen.prompt.text == "typed"
            c.screen.prompt.put("")
        await c.until(lambda: "SIGSEGV" in c.notices())
        await c.until(lambda: "engine.log" in c.notices())
        if where == "decode:3":
            assert c.session.messages[-1].content.startswith("word")
            assert "broken off" in c.words() or "broken off" in str(
                c.screen.conversation.answers()[0]._foot.content
            )
        assert await c.ask("second") == "word " * 30
        await c.until(lambda: "draft: on" in c.words())


async def test_unexpected_error_becomes_a_notice(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with chat(folder=tmp_path) as c:

        def broken(text: str) -> object:
            raise ZeroDivisionError("in a [/red] thread")

        c.session.ask = broken  # type: ignore[method-assign,assignment]
        await c.ask("x")
        await c.until(lambda: "ZeroDivisionError: in a [/red] thread" in c.notices())
        assert any(record.exc_info for record in caplog.records)
        await c.pilot.press(*"alive")
        assert c.screen.prompt.text == "alive"


async def test_a_failing_poll_never_ends_the_app(tmp_path: Path) -> None:
    async with chat(folder=tmp_path) as c:

        def broken() -> list[object]:
            c.worker.idle_events = list  # type: ignore[method-assign,assignment]
            raise OSError("no device")

        c.worker.idle_events = broken  # type: ignore[method-assign,assignment]
        await c.until(lambda: "no device" in c.notices())
        assert c.app.is_running


async def test_follows_the_tail_until_scrolled_up(tmp_path: Path) -> None:
    async with chat("n=400,tok_s=100,text=line\\n\\n", folder=tmp_path) as c:
        await c.send("go")
        view = c.screen.conversation
        await c.until(lambda: view.max_scroll_y > 40)
        await c.until(lambda: view.scroll_y > view.max_scroll_y - 3)
        await c.pilot.press("pageup")
        await c.pilot.press("pageup")
        at = view.scroll_y
        assert at < view.max_scroll_y - 10
        before = view.max_scroll_y
        await c.until(lambda: view.max_scroll_y > before + 10)
        assert view.scroll_y == at
        await c.pilot.press("ctrl+end")
        await c.until(lambda: view.scroll_y > at + 10)


async def test_long_stream_with_tables_and_code(tmp_path: Path) -> None:
    rows = "".join(f"| r{i} | [{i}] |\\n" for i in range(12))
    code = "".join(f"x{i} = [{i}]\\n" for i in range(30))
    text = f"Some words here.\\n\\n- a\\n- b\\n\\n| h | i |\\n|---|---|\\n{rows}\\n```py\\n{code}```\\n\\n## next\\n\\n"
    load = Load(target=TARGET, n_ctx=16384, draft=DraftSpec(kind="model", path="/d.gguf"))
    async with chat(f"n=6000,tok_s=900,text={text}", load=load, folder=tmp_path) as c:
        await c.send("go")
        await c.until(lambda: c.screen.figures.stats.completion_tokens > 500)
        await c.pilot.press(*"echo")
        assert c.screen.prompt.text == "echo"
        assert c.screen.busy
        await c.until(lambda: not c.screen.busy, 60)
        answer = c.screen.conversation.answers()[0]
        await c.until(lambda: answer.idle, 60)
        assert c.screen.figures.stats.completion_tokens == 6000
        assert answer._markdown.source == answer.text == c.session.messages[-1].content


async def test_resize_storm(tmp_path: Path) -> None:
    async with chat("n=400,tok_s=100,text=| a | b |\\n|--|--|\\n| 1 | 2 |\\n\\nwords ", folder=tmp_path) as c:
        await c.send("go")
        for _ in range(3):
            for size in (
                (200, 50),
                (20, 5),
                (1, 1),
                (80, 24),
                (2, 60),
                (300, 3),
                (110, 26),
                (28, 9),
                (29, 12),
            ):
                await c.pilot.resize_terminal(*size)
                await c.pilot.pause(0.02)
        await c.pilot.resize_terminal(20, 5)
        await c.pilot.pause()
        await c.until(lambda: "Too small" in c.words())
        await c.pilot.resize_terminal(80, 24)
        await c.pilot.pause()
        assert "Too small" not in c.words()
        await c.until(lambda: "draft: on" in c.words())
        assert c.app._exception is None


async def test_a_stored_conversation_is_shown_and_gone_on_with(tmp_path: Path) -> None:
    store = ConversationStore(tmp_path / "kept")
    async with chat("n=6,think=3,text=alpha [/red] ", store=store, folder=tmp_path) as c:
        await c.ask("first [/x] question")
    async with chat("n=2,text=beta ", store=store, folder=tmp_path, size=(100, 40)) as c:
        await c.until(lambda: "Going on with “first [/x] question”" in c.words())
        await c.until(lambda: "alpha [/red] alpha" in c.words())
        assert "first [/x] question" in c.words().partition("Going on")[0]
        await c.until(lambda: "▸ Thought" in c.words())
        assert "no answer yet" not in c.words()
        await c.ask("second")
        assert [turn.content for turn in c.session.messages if turn.role == "user"] == [
            "first [/x] question",
            "second",
        ]
        await c.pilot.press("up", "up")
        assert c.screen.prompt.text == "first [/x] question"
        await c.send("/regenerate")
        await c.until(lambda: not c.screen.busy)
    assert len(store.list()) == 1


async def test_a_message_without_an_answer_is_offered_again(tmp_path: Path) -> None:
    store = ConversationStore(tmp_path / "kept")
    store.create({}).append({"type": "message", "role": "user", "content": "lost?"})
    async with chat("n=2,text=beta ", store=store, folder=tmp_path) as c:
        await c.until(lambda: "The last message has no answer yet: /retry" in c.words())
        await c.send("/retry")
        await c.until(lambda: c.screen.last_answer() == "beta beta ")


async def test_enter_still_sends_after_the_terminal_was_tiny(tmp_path: Path) -> None:
    async with chat("n=3", folder=tmp_path) as c:
        c.screen.prompt.put("typed before")
        await c.pilot.resize_terminal(12, 4)
        await c.pilot.resize_terminal(80, 24)
        await c.until(lambda: c.screen.prompt.has_focus)
        await c.pilot.press("enter")
        await c.until(lambda: [turn.content for turn in c.session.messages][:1] == ["typed before"])


async def test_help_opens_and_closes(tmp_path: Path) -> None:
    async with chat(folder=tmp_path) as c:
        await c.pilot.press(*"kept")
        await c.pilot.press("f1")
        assert isinstance(c.app.screen, Help)
        await c.until(lambda: "Ctrl+J" in c.words())
        await c.pilot.press("pagedown", "pagedown", "pagedown", "pagedown")
        await c.pilot.press("escape")
        assert c.app.screen is c.screen
        assert c.screen.prompt.text == "kept"


async def test_closing_in_the_middle_of_a_burst(tmp_path: Path) -> None:
    for turn in range(20):
        async with chat(
            "n=20000,tok_s=2000,text=word ", load=Load(target=TARGET, n_ctx=10**6), folder=tmp_path
        ) as c:
            await c.send(f"go {turn}")
            await c.until(lambda: c.screen.figures.stats.completion_tokens > 0)
            c.app.exit()
        assert not c.app.is_running


async def test_text_that_no_markdown_widget_likes(tmp_path: Path) -> None:
    hard = (
        "# [/x] \U0001f600 `a`\\n\\n```[/red] \"'\\nx\\n```\\n\\n<div>html</div>\\n\\n[a](javascript:x) ![i](http://x/y)"
        "\\n\\n[ref]: http://x\\n\\n| `a` | **b** |\\n|--|\\n| x |\\n\\n> q\\n> > r\\n\\n1. a\\n   - b\\n\\n~~~\\nopen "
    )
    async with chat(f"n=80,tok_s=400,text={hard}", folder=tmp_path, size=(100, 60)) as c:
        await c.ask()
        answer = c.screen.conversation.answers()[0]
        assert not answer._plain
        words = c.words()
        for shown in ("<div>html</div>", "[a](javascript:x)", "![i](http://x/y)", "[ref]: http://x"):
            assert shown in words, shown


async def test_paste_keeps_all_lines_and_sends_nothing(tmp_path: Path) -> None:
    async with chat(folder=tmp_path) as c:
        for pasted, kept in (("a\nb\nc", "a\nb\nc"), ("a\r\nb\r\n", "a\nb\n"), ("a\rb", "a\nb")):
            c.screen.prompt.put("")
            c.app.post_message(events.Paste(pasted))
            await c.until(lambda kept=kept: c.screen.prompt.text == kept)
            await c.pilot.pause(0.1)
            assert not c.session.messages
        big = "line of a big paste\n" * 50_000
        c.screen.prompt.put("")
        c.app.post_message(events.Paste(big))
        await c.until(lambda: len(c.screen.prompt.text) == len(big), 30)


async def test_new_line_keys(tmp_path: Path) -> None:
    async with chat(folder=tmp_path) as c:
        await c.pilot.press("a", "ctrl+j", "b", "shift+enter", "c", "alt+enter", "d")
        assert c.screen.prompt.text == "a\nb\nc\nd"
        assert c.screen.prompt.size.height == 4
        assert not c.session.messages


async def test_up_recalls_prompts(tmp_path: Path) -> None:
    async with chat("n=2", folder=tmp_path) as c:
        await c.ask("one\nline")
        await c.ask("two")
        await c.pilot.press("up")
        assert c.screen.prompt.text == "two"
        await c.pilot.press("up")
        assert c.screen.prompt.text == "one\nline"
        await c.pilot.press("down")
        assert c.screen.prompt.text == "two"
        await c.pilot.press("down")
        assert c.screen.prompt.text == ""


async def test_answer_outlives_sampling_changes(tmp_path: Path) -> None:
    async with chat("echo=command", folder=tmp_path) as c:
        c.session.sampling = replace(c.session.sampling, temperature=0.25)
        assert '"temperature": 0.25' in await c.ask()


async def test_a_message_that_alone_is_too_long_is_not_told_to_drop_others(tmp_path: Path) -> None:
    async with chat("n=2", folder=tmp_path) as c:
        c.screen.fail(ContextFullError("Too long."))
        await c.until(lambda: "the Up key brings your text back" in c.notices())
        await c.ask("one")
        await c.ask("two")
        c.screen.fail(ContextFullError("Too long."))
        await c.until(lambda: "/drop forgets the oldest turn" in c.notices())
