"""Events of the engine, and what they do to the chat."""

from __future__ import annotations

import contextlib
import logging
import queue
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import PurePath
from typing import Any, Literal, Protocol

from textual.screen import Screen

from localspec.chat.session import Session
from localspec.errors import ContextFullError, LocalspecError
from localspec.measure.advice import Advice
from localspec.spec.events import DraftStatus, Finished, Piece, PromptProgress, Rejected, Round
from localspec.tui import clipboard, text
from localspec.tui.advising import Advisor
from localspec.tui.feed import Ended, Feed
from localspec.tui.speed import Course, Speedometer
from localspec.tui.widgets.answer import Answer
from localspec.tui.widgets.conversation import Conversation
from localspec.tui.widgets.figures import Figures, FiguresView
from localspec.tui.widgets.hints import BUSY, IDLE, Keys
from localspec.tui.widgets.loading import Loading
from localspec.tui.widgets.notices import Kind, Notice, advice_content, error_content
from localspec.tui.widgets.prompt import Prompt
from localspec.tui.widgets.stats import REJECTED, StatsPanel
from localspec.tui.widgets.title import Title
from localspec.worker.process import Worker
from localspec.worker.protocol import DraftChanged, Event, Load, LoadProgress, MemoryUse, Ready
from localspec.worker.protocol import Notice as EngineNotice

log = logging.getLogger(__name__)

FIGURES_S = 0.3
"""Time between two updates of the figures while an answer runs."""
_ENDS = {"length": "token limit reached", "context": "the context is full", "cancelled": "stopped"}


class Pair(Protocol):
    """What the chat needs of a `localspec.launch.Launch`."""

    @property
    def load(self) -> Load | None:
        """The command that loads the pair."""

    @property
    def target_name(self) -> str:
        """The target as it is typed in a command."""

    @property
    def draft_name(self) -> str:
        """The draft as it is typed after `--draft`."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences that the person should see once."""

    def remember(self) -> None:
        """The pair was loaded: take it again next time."""


class Events(Screen[None]):
    """What happens to a conversation: the engine's events become figures, answers and notes.

    Args:
        session: The conversation.
        worker: The engine's process.
        launch: What to load first.
        coloured: Begin with the tokens coloured by who chose them.
    """

    def __init__(self, session: Session, worker: Worker, launch: Pair, *, coloured: bool = False) -> None:
        super().__init__()
        self.session = session
        self.worker = worker
        self.figures = Figures()
        self.coloured = coloured
        self._launch: Pair | None = launch
        self._names = (launch.target_name, launch.draft_name)
        self.advisor = Advisor(session, worker, self._names, self._advise)
        self._speed = Speedometer()
        self._course = Course()
        self._rejected: deque[Rejected] = deque(maxlen=REJECTED)
        self._feed: Feed | None = None
        self._kind: Literal["load", "answer", "clear"] = "load"
        self._answer: Answer | None = None
        self._finished: Finished | None = None
        self._shown_at = 0.0
        self._then: Callable[[], None] | None = None
        self._armed = False
        self._stopping = False
        self._confirm_draft = False
        self._results: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
        self.conversation = Conversation(id="conversation")
        self.prompt = Prompt(id="prompt")
        self._title = Title()
        self._loading = Loading()
        self._keys = Keys()
        self._view = FiguresView(id="figures")
        self._stats = StatsPanel()

    # ------------------------------------------------------------------ events

    @property
    def busy(self) -> bool:
        """Whether models load or an answer runs."""
        return self._feed is not None

    @property
    def answering(self) -> bool:
        """Whether an answer runs."""
        return self._feed is not None and self._kind == "answer"

    @property
    def phase(self) -> str:
        """What goes on, in the words of the title."""
        return self._title.phase

    def _start(self, kind: Literal["load", "answer", "clear"], source: Callable[[], Iterable[Event]]) -> None:
        self._kind = kind
        self._stopping = False
        self._finished = None
        self._speed.reset()
        if kind == "answer":
            self._course.reset()
            self._rejected.clear()
            self.advisor.answer_begins()
        self._title.show(phase={"load": "loading", "answer": "reading the prompt", "clear": "clearing"}[kind])
        self._feed = Feed(source, name=f"localspec {kind}")
        self._show_keys()

    def _drain(self) -> None:
        try:
            feed = self._feed
            if self._stopping and feed is not None:
                self.worker.stop()  # again: one that came before the request was made has reached nothing
            arrived: list[Any] = feed.drain() if feed is not None else [*self.worker.idle_events()]
            pieces: list[Piece | Rejected] = []
            for event in arrived:
                if isinstance(event, Round):
                    pieces += _with_rejected(event)
                self._take(event)
                if isinstance(event, Finished | Ended):
                    self._give(pieces)
                    pieces = []
                if isinstance(event, Ended):
                    self._ended(event.error)
            self._give(pieces)
            self._loading.tick()
            now = time.monotonic()
            if not self.answering or now - self._shown_at >= FIGURES_S:
                self._shown_at = now
                self._view.show(self.figures)
                self._stats.show(self.figures, self._course, tuple(self._rejected))
            while not self._results.empty():
                self._copied(*self._results.get())
            self.advisor.tick(self.figures.memory, idle=not self.busy and self.is_current)
            for notice in self.session.take_notices() if arrived else ():
                self.say(notice, "warning")
        except Exception as error:  # a fault of ours must not take the conversation along
            self.unexpected(error)

    def _give(self, pieces: list[Piece | Rejected]) -> None:
        if pieces and self._answer is not None:
            self._answer.feed(pieces)

    def _take(self, event: Event | Ended) -> None:
        match event:
            case LoadProgress():
                self._loading.progress(event)
            case Ready():
                self._ready(event)
            case MemoryUse():
                self.figures = replace(self.figures, memory=event)
            case PromptProgress():
                fresh = event.total - event.reused
                share = (event.done - event.reused) / fresh if fresh > 0 else 1.0
                self._title.show(phase=f"reading the prompt {share:.0%}")
            case Round():
                self._round(event)
            case Finished():
                self._finished = event
                self._count(event)
            case DraftChanged():
                self._draft_changed(event.draft)
            case EngineNotice():
                for sentence in event.sentences:
                    self.say(sentence)
            case _:
                pass

    def _ready(self, event: Ready) -> None:
        self._loading.stop()
        self._title.show(model=_title_of(event))
        self.figures = replace(
            self.figures,
            draft=event.draft,
            memory=event.memory,
            context_size=event.context_size,
            target_on=event.target.device,
            draft_on=event.draft_model.device if event.draft_model is not None else "",
        )
        for note in event.notes:
            self.say(note, "warning")
        launch, self._launch = self._launch, None
        if launch is not None:
            for note in launch.notes:
                self.say(note)
            with contextlib.suppress(OSError, LocalspecError):
                launch.remember()

    def _round(self, event: Round) -> None:
        self._speed.add(event.stats)
        self._course.add(event.stats)
        self.advisor.round(event)
        if event.rejected is not None:
            self._rejected.appendleft(event.rejected)
        self._count(event)
        thinking = bool(event.pieces) and event.pieces[-1].thinking
        self._title.show(phase="thinking" if thinking else "answering")

    def _count(self, event: Round | Finished) -> None:
        self.figures = replace(
            self.figures,
            stats=event.stats,
            draft=event.draft,
            now_tok_s=self._speed.tok_s,
            context_used=event.context_used,
            context_size=event.context_size,
        )

    def _draft_changed(self, draft: DraftStatus) -> None:
        self.figures = replace(self.figures, draft=draft)
        if self._confirm_draft:
            self._confirm_draft = False
            length = "the length by price" if draft.auto else f"{draft.n_draft} tokens a round"
            state = f"on, {length}" if draft.state == "on" else f"off: {draft.reason}"
            self.say(f"Drafting is {state}.")

    def _ended(self, error: BaseException | None) -> None:
        self._feed = None
        self._loading.stop()
        loaded = self.worker.ready is not None
        self._title.show(phase="ready" if loaded else "not loaded")
        if not loaded:
            reason = "nothing is loaded, the next message loads again"
            draft = replace(self.figures.draft, state="off", reason=reason)
            self.figures = replace(self.figures, draft=draft, memory=None)
        self._close_answer(error)
        self.figures = replace(self.figures, now_tok_s=None)
        if isinstance(error, LocalspecError):
            self.fail(error)
            if self.session.unanswered:
                self.say("Your message is kept: /retry asks it again.")
        elif error is not None:
            self.unexpected(error)
        stopped = self._finished is not None and self._finished.reason == "cancelled"
        then, self._then = self._then, None
        armed, self._armed = self._armed, False
        self._show_keys()
        if error is None and self._finished is not None:
            self.advisor.answer_ended(self._finished, self.figures.memory)
        if then is not None:
            then()
        elif armed and error is None and not stopped:
            self.prompt.post_message(Prompt.Sent())

    def _close_answer(self, error: BaseException | None) -> None:
        answer, self._answer = self._answer, None
        if answer is None:
            return
        stats = self.figures.stats
        if not answer.text and not answer.thinking.tokens:
            # Nothing came: no empty answer stays behind.
            answer.remove()
            if error is None:
                self.say("Stopped before the first token. /retry asks again.")
            return
        foot = [f"{stats.completion_tokens:,} tokens", f"{text.rate(stats.decode_tok_s)} tok/s"]
        if stats.drafted:
            foot.append(f"{text.percent(stats.acceptance_rate)} accepted")
        if error is not None:
            foot.append("broken off")
        elif self._finished is not None and self._finished.reason in _ENDS:
            foot.append(_ENDS[self._finished.reason])
        if not answer.text:
            foot.append("only thinking so far")
        answer.finish(" · ".join(foot))
        if self._finished is not None and self._finished.reason == "context":
            self.say("The context is full. /drop forgets the oldest turn, /clear begins anew.", "warning")

    def _advise(self, advice: Advice) -> None:
        self.conversation.add(Notice(advice_content(advice), "advice"))

    # ----------------------------------------------------------------- talking

    def say(self, message: str, kind: Kind = "info") -> None:
        """Add a note to the conversation."""
        self.conversation.add(Notice(message, kind))

    def fail(self, error: LocalspecError) -> None:
        """Add an error to the conversation."""
        if isinstance(error, ContextFullError):
            older = sum(turn.role == "user" for turn in self.session.messages) > 1
            hint = (
                "/drop forgets the oldest turn and tries again"
                if older
                else "/clear begins anew; the Up key brings your text back"
            )
            error = ContextFullError(error.message, why=error.why, hint=hint)
        self.conversation.add(Notice(error_content(error), "error"))

    def unexpected(self, error: BaseException) -> None:
        """A fault of ours: one sentence on the screen, the rest in the log."""
        log.error("unexpected", exc_info=error)
        self.fail(
            LocalspecError(
                f"Something went wrong inside localspec: {type(error).__name__}: {error}",
                why="The chat goes on; the details are in the log.",
                hint="localspec doctor",
            )
        )

    def confirm_draft(self) -> None:
        """Say what the engine answers to the next change of drafting."""
        self._confirm_draft = True

    def _show_keys(self) -> None:
        message = ""
        if self._armed:
            what = "when the models are loaded" if self._kind == "load" else "when this answer is done"
            message = f"Busy, your text is kept: it goes out {what}"
        self._keys.show(BUSY if self.busy else IDLE, message)

    def warn(self, message: str) -> None:
        """Show a message in place of the keys, until the next change."""
        self._keys.show(BUSY if self.busy else IDLE, message)

    def unwarn(self) -> None:
        """Take that message away."""
        self._show_keys()

    def _copied(self, tool: str, copied: str) -> None:
        if tool:
            self.say(f"Copied with {tool}.")
        elif len(copied.encode()) <= clipboard.OSC52_LIMIT:
            self.app.copy_to_clipboard(copied)
            self.say(
                "Sent to the terminal's clipboard, which not every terminal has. /copy FILE saves the answer."
            )
        else:
            self.say("Too long for the terminal's clipboard. /copy FILE saves the last answer.", "warning")


def _with_rejected(event: Round) -> Iterable[Piece | Rejected]:
    """What a round released, with the token that was drafted in vain in front of what was chosen in its place."""
    rejected, pieces = event.rejected, event.pieces
    if rejected is None or (pieces and pieces[-1].thinking):
        return pieces
    at = next((place for place, piece in enumerate(pieces) if not piece.drafted), len(pieces))
    return (*pieces[:at], rejected, *pieces[at:])


def _title_of(ready: Ready) -> str:
    # The file's own name, as it was typed or pulled; `general.name` is often a training run's.
    return f"{PurePath(ready.target.path).stem} on {ready.target.device}"
