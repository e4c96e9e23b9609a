"""The chat: conversation, prompt and figures, and what the person does with them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from pathlib import PurePath
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Vertical
from textual.widgets import Static, TextArea

from localspec.chat.session import Session
from localspec.errors import UsageError
from localspec.tui import clipboard, text
from localspec.tui.commanding import Commands
from localspec.tui.commands import as_message, is_command, suggestions
from localspec.tui.screens.bench import Bench
from localspec.tui.screens.events import Events, Pair
from localspec.tui.screens.help import Help
from localspec.tui.screens.tune import Tune
from localspec.tui.widgets.answer import Answer
from localspec.tui.widgets.figures import Figures
from localspec.tui.widgets.hints import Suggestions
from localspec.tui.widgets.notices import UserMessage
from localspec.worker.process import Worker
from localspec.worker.protocol import Event

DRAIN_S = 1 / 15
PANEL_SIZE = (110, 26)
"""From this width and height on, the figures stand beside the conversation."""
LEAST_SIZE = (28, 9)
"""Below this width or height nothing useful fits."""
LOW = 18
"""Below this height the title and the keys give way."""


class ChatScreen(Events):
    """One conversation with one pair of models.

    Args:
        session: The conversation.
        worker: The engine's process.
        launch: What to load first.
        coloured: Begin with the tokens coloured by who chose them.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "stop", "stop", priority=True, show=False),
        Binding("f1", "help", "help", priority=True, show=False),
        Binding("f2", "stats", "stats", priority=True, show=False),
        Binding("f3", "thinking", "thinking", priority=True, show=False),
        Binding("f4", "colour", "colour", priority=True, show=False),
        Binding("pageup", "page(-1)", "scroll up", priority=True, show=False),
        Binding("pagedown", "page(1)", "scroll down", priority=True, show=False),
        Binding("ctrl+end", "follow", "follow the answer", priority=True, show=False),
    ]

    def __init__(self, session: Session, worker: Worker, launch: Pair, *, coloured: bool = False) -> None:
        super().__init__(session, worker, launch, coloured=coloured)
        self._commands = Commands(self)
        self._suggestions = Suggestions()

    def compose(self) -> ComposeResult:
        """The parts of the screen, from top to bottom."""
        yield self._title
        with Container(id="body"):
            with Vertical(id="main"):
                yield self.conversation
                yield self._stats
                yield self._loading
                yield self._suggestions
                yield self.prompt
            yield self._view
        yield self._keys
        yield Static("", id="too-small", markup=False)

    def on_mount(self) -> None:
        """Load the models; the prompt can be used meanwhile."""
        self.prompt.focus()
        self._view.show(self.figures)
        self.set_interval(DRAIN_S, self._drain)
        self.call_after_refresh(self._recall)
        load = self._launch.load if self._launch is not None else None
        if load is None:
            self.fail(UsageError("There is nothing to load yet.", hint="localspec pull demo"))
            return
        self._title.show(model=PurePath(load.target).name)
        self._loading.start()
        self._start("load", lambda: self.worker.load(load))

    async def _recall(self) -> None:
        """Show a conversation that is gone on with."""
        turns = self.session.messages
        for turn in turns:
            if turn.role == "user":
                self.prompt.remember(turn.content)
                self.conversation.add(UserMessage(turn.content))
                continue
            answer = Answer(coloured=self.coloured)
            await self.conversation.add(answer)
            answer.recall(turn.content, turn.thinking, "broken off" if turn.unfinished else "")
        if self.session.typed and not self.prompt.text:
            self.prompt.put(self.session.typed)
        if turns:
            self.say(f"Going on with “{text.one_line(self.session.title, 60)}”. /clear begins anew.")
        if self.session.unanswered:
            self.say("The last message has no answer yet: /retry asks it again.")

    # ------------------------------------------------------------------ layout

    def on_resize(self, event: events.Resize) -> None:
        """Choose the layout for this size."""
        width, height = event.size.width, event.size.height
        panel = width >= PANEL_SIZE[0] and height >= PANEL_SIZE[1]
        tiny = width < LEAST_SIZE[0] or height < LEAST_SIZE[1]
        self.set_class(panel, "-panel")
        self.set_class(tiny, "-tiny")
        self.set_class(height < LOW, "-low")
        self._view.lay_out(panel=panel)
        if not tiny and self.focused is None:
            self.prompt.focus()  # it lost the focus while it was hidden
        note = f"Too small: {width}x{height}. From {LEAST_SIZE[0]}x{LEAST_SIZE[1]} on there is room."
        self.query_one("#too-small", Static).update(note)

    # ----------------------------------------------------------------- sending

    def on_prompt_sent(self) -> None:
        """Enter was pressed."""
        self._send()

    def _send(self) -> None:
        typed = self.prompt.text
        if not typed.strip():
            return
        if is_command(typed):
            self._run(typed)
        elif self.busy:
            self._armed = True
            self._show_keys()
        else:
            self.ask(typed)

    def _run(self, typed: str) -> None:
        try:
            said = self._commands.run(typed)
        except UsageError as error:
            self.fail(error)  # the text stays in the box, to be mended
            return
        except Exception as error:  # a fault of ours must not take the conversation along
            self.unexpected(error)
            return
        self.prompt.remember(typed.strip())
        self.prompt.put("")
        if said:
            self.say(said)

    def ask(self, typed: str) -> None:
        """Send a message and show its answer as it comes."""
        message = as_message(typed.strip("\n"))
        self.prompt.remember(typed)
        self.prompt.put("")
        self.conversation.add(UserMessage(message))
        self._answering(lambda: self.session.ask(message))

    def _answering(self, source: Callable[[], Iterable[Event]]) -> None:
        self._answer = Answer(coloured=self.coloured)
        self.conversation.add(self._answer)
        self.conversation.follow()
        self._start("answer", source)

    def regenerate(self) -> None:
        """Answer the last message again."""
        answers = self.conversation.answers()
        if answers and not self.session.unanswered:
            answers[-1].remove()
        self._answering(self.session.regenerate)

    def drop_oldest(self) -> None:
        """Make room in the context, then answer what is still open."""
        dropped = self.session.drop_oldest()
        if not dropped:
            self.fail(UsageError("There is nothing older to forget.", hint="/clear"))
            return
        self.say(f"Forgot {len(dropped)} messages, from “{text.one_line(dropped[0].content, 40)}” on.")
        if self.session.unanswered:
            self._answering(self.session.retry)

    def clear(self) -> None:
        """Forget the conversation and both caches."""

        def source() -> Iterable[Event]:
            self.session.clear()
            return ()

        self.conversation.restart()
        self.advisor.clear()
        self.figures = Figures(
            draft=self.figures.draft,
            memory=self.figures.memory,
            context_size=self.figures.context_size,
            target_on=self.figures.target_on,
            draft_on=self.figures.draft_on,
        )
        self._start("clear", source)
        self.say("The conversation and both caches are empty.")

    def bench(self) -> None:
        """Measure the pair on a screen of its own; the conversation is read again with the next turn."""
        load = self.worker.loaded
        if load is None:
            self.fail(UsageError("There is nothing to measure: no model was loaded.", hint="localspec run"))
        elif load.draft.kind != "none" and load.n_draft == 0:
            self.fail(
                UsageError("The draft length is 0: there is no draft to measure.", hint="/n-draft auto")
            )
        else:
            screen = Bench(self.worker, load, self._names, self.session.sampling, think=self.session.think)
            self.app.push_screen(screen, self._measured)

    def tune(self) -> None:
        """Find the fastest drafter on a screen of its own; then load the pair again that was loaded."""
        load = self.worker.loaded
        if load is None:
            self.fail(UsageError("There is nothing to tune: no model was loaded.", hint="localspec run"))
            return

        def done(said: str | None) -> None:
            self._measured(said)
            self._loading.start()
            self._start("load", lambda: self.worker.load(load))

        think = self.session.think
        self.app.push_screen(
            Tune(self.worker, load, self._names[0], self.session.sampling, think=think), done
        )

    def _measured(self, said: str | None) -> None:
        if said:
            self.say(said)

    def when_idle(self, action: Callable[[], None], *, stop: bool = False) -> None:
        """Do something now, or as soon as what runs has ended.

        Args:
            action: What to do.
            stop: Stop a running answer for it (a load goes on).
        """
        if not self.busy:
            action()
            return
        self._then = action
        if stop and self._kind == "answer":
            self._stop_running()

    # ------------------------------------------------------------------ prompt

    def on_text_area_changed(self, event: TextArea.Changed) -> None:
        """Suggest commands; a text that is being changed is not sent by itself."""
        self._suggestions.show(suggestions(event.text_area.text))
        if self._armed:
            self._armed = False
            self._show_keys()

    def on_prompt_complete(self) -> None:
        """Tab: complete the command that is being typed."""
        found = suggestions(self.prompt.text)
        if found:
            self.prompt.put(f"{found[0].name} " if found[0].argument else found[0].name)

    def on_prompt_left(self) -> None:
        """Ctrl+D in an empty box leaves, as in a shell."""
        self.leave()

    # ----------------------------------------------------------------- actions

    def action_stop(self) -> None:
        """Esc: stop what runs."""
        if self._armed:
            self._armed = False
            self._show_keys()
        elif self._feed is not None and self._kind != "clear":
            self._title.show(phase="stopping")
            self._stop_running()

    def _stop_running(self) -> None:
        self._stopping = True
        self.worker.stop()

    def action_help(self) -> None:
        """Show the help."""
        self.app.push_screen(Help())

    def action_stats(self) -> None:
        """Show or hide the stats."""
        self._stats.toggle()

    def action_colour(self) -> None:
        """Colour the answers by who chose the tokens, or show them as Markdown again."""
        self.coloured = not self.coloured
        for answer in self.conversation.answers():
            answer.colour(coloured=self.coloured)

    def action_thinking(self) -> None:
        """Fold all thinking, or unfold it when all is folded."""
        blocks = [answer.thinking for answer in self.conversation.answers() if answer.thinking.display]
        folded = any(not block.folded for block in blocks)
        for block in blocks:
            block.fold(folded=folded)

    def action_page(self, pages: int) -> None:
        """Scroll the conversation."""
        lines = max(1, self.conversation.size.height - 2)
        self.conversation.scroll_relative(y=pages * lines, animate=False)

    def action_follow(self) -> None:
        """Follow the end of the conversation again."""
        self.conversation.follow()

    def settle(self, timeout: float) -> None:
        """After the end, of the engine too: keep what had arrived of an answer, and what stands unsent in the prompt.

        Args:
            timeout: Seconds to wait for the answer.
        """
        if self._feed is not None:
            self._feed.join(timeout)
        typed = self.prompt.text
        self.session.keep_typed("" if is_command(typed) else typed)

    def leave(self) -> None:
        """Leave the program."""
        self.app.exit(return_code=0)

    def on_key(self, event: events.Key) -> None:
        """Typing goes into the prompt, wherever the focus went."""
        if event.is_printable and event.character and not self.prompt.has_focus:
            self.prompt.focus()
            self.prompt.insert(event.character)

    # -------------------------------------------------------------------- copy

    def last_answer(self) -> str:
        """The text of the newest answer, also of one that is being written."""
        if self._answer is not None and self._answer.text:
            return self._answer.text
        said = (turn.content for turn in reversed(self.session.messages) if turn.role == "assistant")
        return next(said, "")

    def selected_text(self) -> str:
        """What is selected in the prompt or on the screen; empty when nothing is."""
        return self.prompt.selected_text or self.get_selected_text() or ""

    def unselect(self) -> None:
        """Forget the selection."""
        self.clear_selection()
        self.prompt.selection = type(self.prompt.selection).cursor(self.prompt.cursor_location)

    def copy(self, copied: str) -> None:
        """Copy a text; what is said about it is what is known."""

        def work() -> None:
            self._results.put((clipboard.native_copy(copied), copied))

        # A thread of its own: a clipboard tool may hang, and leaving must not wait for it.
        threading.Thread(target=work, name="localspec copy", daemon=True).start()
