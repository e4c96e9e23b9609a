"""One conversation: what was said, what is asked next, and what is kept when an answer breaks off.

No screen here: the TUI and `localspec run` consume the events that `ask` and `regenerate` pass on.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Generator
from dataclasses import replace
from typing import Any, Protocol

from localspec.chat.store import Conversation, ConversationStore
from localspec.chat.turn import EndReason, Turn
from localspec.errors import LocalspecError, UsageError, WorkerDiedError
from localspec.spec.events import Finished, Piece, Round, Sampling
from localspec.worker.protocol import Event, Generate, Message


class Engine(Protocol):
    """What a session needs of a worker (`localspec.worker.process.Worker`)."""

    def generate(self, command: Generate) -> Generator[Event, None, None]:
        """Answer; the request's number is given here."""

    def clear(self) -> None:
        """Forget the caches."""


class Session:
    """A conversation with a worker.

    Nothing that was typed is lost: a message is kept (and stored) before its answer starts, and whatever
    arrived of an answer is kept when it was stopped, when it failed, when the engine died, when the stream is
    dropped.

    Args:
        worker: The engine.
        system: The system message; empty = none.
        sampling: How tokens are chosen; its seed is replaced by the conversation's.
        seed: The seed of every conversation; None = a new one for each.
        max_tokens: Limit of one answer; 0 = none.
        stops: Texts that end an answer; it does not hold them.
        think: `enable_thinking` for templates that know it; None leaves it to the template.
        store: Where conversations are kept; None = nowhere.
        about: Facts that the store keeps with each conversation (`target`, `draft`).
    """

    def __init__(
        self,
        worker: Engine,
        *,
        system: str = "",
        sampling: Sampling | None = None,
        seed: int | None = None,
        max_tokens: int = 0,
        stops: tuple[str, ...] = (),
        think: bool | None = None,
        store: ConversationStore | None = None,
        about: dict[str, Any] | None = None,
    ) -> None:
        self.worker = worker
        self.max_tokens = max_tokens
        self.stops = stops
        self.think = think
        self._system = system
        self._fixed_seed = seed
        self._sampling = sampling or Sampling()
        self._store = store
        self._about = about or {}
        self._turns: list[Turn] = []
        self._typed = ""
        self._began = 0.0  # what templates that tell the time tell throughout the conversation
        self._unstored: list[dict[str, Any]] = []
        self._conversation: Conversation | None = None
        self._notices: list[str] = []
        self._told_about_store = False
        self._running = False
        self._new_conversation()

    # ------------------------------------------------------------- properties

    @property
    def messages(self) -> tuple[Turn, ...]:
        """The conversation, without the system message; the last turn may still be without an answer."""
        return tuple(self._turns)

    @property
    def system(self) -> str:
        """The system message; change it with `set_system`."""
        return self._system

    @property
    def sampling(self) -> Sampling:
        """How the next answer's tokens are chosen; may be replaced. A changed seed is kept for good."""
        return self._sampling

    @sampling.setter
    def sampling(self, value: Sampling) -> None:
        if value.seed != self._sampling.seed:
            self._fixed_seed = value.seed
        self._sampling = value

    @property
    def seed(self) -> int:
        """The seed of the next answer."""
        return self._sampling.seed

    @property
    def title(self) -> str:
        """The first line of the first message, cut to 60 characters; empty before it."""
        first = next((turn.content for turn in self._turns if turn.role == "user"), "").strip()
        line = first.splitlines()[0] if first else ""
        return line if len(line) <= 60 else line[:59].rstrip() + "…"

    @property
    def typed(self) -> str:
        """What stood unsent in the prompt when the conversation was left; see `keep_typed`."""
        return self._typed

    @property
    def running(self) -> bool:
        """Whether an answer is being made."""
        return self._running

    @property
    def unanswered(self) -> bool:
        """Whether the last message is a user's: its answer failed before the first token."""
        return bool(self._turns) and self._turns[-1].role == "user"

    def take_notices(self) -> tuple[str, ...]:
        """Sentences to show once (a conversation that cannot be stored); empties the list."""
        notices, self._notices = tuple(self._notices), []
        return notices

    # ------------------------------------------------------------------ talk

    def ask(self, text: str) -> Generator[Event, None, None]:
        """Add a message (at once, not at the first event) and answer it.

        Yields:
            The worker's events; where it had to be started again, those of the load first.

        Raises:
            ContextFullError: The conversation does not fit. The message stays: `drop_oldest` and then
            `retry`,
                or `undo` to take the text back.
            LocalspecError: The answer failed or the engine died; what had arrived of it is in `messages`.
        """
        self._refuse_while_running()
        self._add(Turn("user", text))
        return self._answer()

    def retry(self) -> Generator[Event, None, None]:
        """Answer the last message, which has no answer, with the same seed. Raises as `ask`."""
        self._refuse_while_running()
        if not self.unanswered:
            raise UsageError("There is no message without an answer.")
        return self._answer()

    def regenerate(self) -> Generator[Event, None, None]:
        """Answer the last message again, without its old answer and with seed + 1. Raises as `ask`."""
        self._refuse_while_running()
        if not self._turns:
            raise UsageError("There is nothing to answer yet.")
        if not self.unanswered:
            self._sampling = replace(self._sampling, seed=self.seed + 1)
            self._turns.pop()
            self._record({"type": "remove", "count": 1})
        return self._answer()

    def undo(self) -> str:
        """Remove the last user's message and its answer.

        Returns:
            The message's text, to be put back into the prompt; empty when there was none.
        """
        self._refuse_while_running()
        count = next((i for i, turn in enumerate(reversed(self._turns), 1) if turn.role == "user"), 0)
        if not count:
            return ""
        text = self._turns[-count].content
        del self._turns[-count:]
        self._record({"type": "remove", "count": count})
        return text

    def drop_oldest(self) -> tuple[Turn, ...]:
        """Make room: forget the oldest message and its answer. System message and last message stay.

        Returns:
            What was dropped (the store still has it); empty when there was nothing to drop.
        """
        self._refuse_while_running()
        starts = [i for i, turn in enumerate(self._turns) if turn.role == "user"]
        if len(starts) < 2:
            return ()
        dropped = tuple(self._turns[: starts[1]])
        del self._turns[: starts[1]]
        self._record({"type": "drop", "count": len(dropped)})
        return dropped

    def set_system(self, text: str) -> None:
        """Replace the system message, from the next answer on."""
        self._system = text
        if self._conversation is not None:
            self._record({"type": "system", "content": text})

    def keep_typed(self, text: str) -> None:
        """Keep what stands unsent in the prompt, to be found there when the conversation is gone on with."""
        text = text if text.strip() else ""
        if text != self._typed:
            self._typed = text
            self._record({"type": "typed", "content": text})

    def clear(self) -> None:
        """Start a new conversation: no messages, empty caches, a new seed unless one was asked for."""
        self._refuse_while_running()
        self._new_conversation()
        self.worker.clear()

    def resume(self, conversation: Conversation) -> None:
        """Go on with a stored conversation.

        Token ids of another target are left out: they name other tokens here. One that another chat has open, or that a
        newer localspec wrote, is left as it is: what is said from now on goes into a copy.
        """
        self._refuse_while_running()
        self._turns, self._typed, self._began = [], "", time.time()
        target, first = self._about.get("target"), conversation.head.get("target")
        for record in conversation.records:
            if record.get("target", first) != target:
                record = record | {"token_ids": []}  # noqa: PLW2901
            with contextlib.suppress(KeyError, TypeError, ValueError):  # a damaged record is left out
                self._replay(record)
        self._conversation, self._unstored = conversation, []
        if conversation.newer or not conversation.claim():
            who = (
                "A newer localspec wrote this conversation"
                if conversation.newer
                else "Another chat has this open"
            )
            self._notices.append(f"{who}: it stays as it is, and what you say here goes into a copy.")
            self._conversation, self._unstored = None, [turn.to_record() for turn in self._turns]
        if self._fixed_seed is None:
            seeds = [turn.seed for turn in self._turns if turn.role == "assistant"]
            seed = seeds[-1] if seeds else conversation.head.get("seed")
            if isinstance(seed, int):
                self._sampling = replace(self._sampling, seed=seed)
        self.worker.clear()

    # -------------------------------------------------------------- internals

    def command(self) -> Generate:
        """The request that answers the conversation as it stands."""
        head = (Message("system", self._system),) if self._system else ()
        return Generate(
            request=0,  # the worker numbers its requests
            messages=(*head, *(turn.to_message() for turn in self._turns)),
            sampling=self._sampling,
            max_tokens=self.max_tokens,
            stop=self.stops,
            think=self.think,
            now=self._began,
        )

    def _answer(self) -> Generator[Event, None, None]:
        # The request gets its number now, so that a stop between here and the first event is not lost.
        return self._follow(self.worker.generate(self.command()))

    def _follow(self, events: Generator[Event, None, None]) -> Generator[Event, None, None]:
        pieces: list[Piece] = []
        last: Round | Finished | None = None
        reason: EndReason = "cancelled"
        self._running = True
        try:
            for event in events:
                if isinstance(event, Round):
                    pieces += event.pieces
                    last = event
                elif isinstance(event, Finished):
                    last, reason = event, event.reason
                    self._keep(pieces, last, reason)
                    pieces = []
                yield event
        except WorkerDiedError:
            reason = "died"
            raise
        except LocalspecError:
            reason = "failed"
            raise
        finally:
            self._running = False
            events.close()
            if pieces:
                self._keep(pieces, last, reason)

    def _keep(self, pieces: list[Piece], last: Round | Finished | None, reason: EndReason) -> None:
        """Keep an answer, or what there is of it. One without any token is none."""
        if isinstance(last, Finished):
            content, thinking, ids = last.text, last.thinking, last.token_ids
        else:
            content = "".join(piece.text for piece in pieces if not piece.thinking)
            thinking = "".join(piece.text for piece in pieces if piece.thinking)
            ids = tuple(piece.token_id for piece in pieces)
        if not ids and reason == "cancelled":
            return
        stats = last.stats.to_json() if last is not None else {}
        self._add(Turn("assistant", content, thinking, ids, reason, self.seed, stats))

    def _add(self, turn: Turn) -> None:
        self._append(turn)
        made_by = {"target": self._about["target"]} if turn.token_ids and "target" in self._about else {}
        self._record(turn.to_record() | made_by)

    def _append(self, turn: Turn) -> None:
        self._turns.append(turn)
        if turn.role == "user":
            self._typed = ""  # it was sent

    def _new_conversation(self) -> None:
        self._turns, self._typed, self._began = [], "", time.time()
        self._conversation, self._unstored = None, []
        seed = secrets.randbelow(2**31) if self._fixed_seed is None else self._fixed_seed
        self._sampling = replace(self._sampling, seed=seed)

    def _record(self, record: dict[str, Any]) -> None:
        """Store one record; where that fails the chat goes on, says so once, and tries again with the next one."""
        if self._store is None:
            return
        self._unstored.append(record)
        try:
            if self._conversation is None:
                head = self._about | {"system": self._system, "seed": self.seed}
                self._conversation = self._store.create(head)
            while self._unstored:
                self._conversation.append(self._unstored[0])
                del self._unstored[0]
        except OSError as error:
            if not self._told_about_store:
                self._told_about_store = True
                said = error.strerror or type(error).__name__
                self._notices.append(f"The conversation cannot be stored ({said}); it goes on without.")
            return
        if self._told_about_store:
            self._told_about_store = False
            self._notices.append("The conversation is stored again, all of it.")

    def _replay(self, record: dict[str, Any]) -> None:
        kind = record.get("type")
        if kind in ("conversation", "system"):
            self._system = str(record.get("system" if kind == "conversation" else "content", ""))
        elif kind == "message":
            self._append(Turn.from_record(record))
        elif kind == "typed":
            self._typed = str(record["content"])
        elif kind == "remove":
            del self._turns[max(0, len(self._turns) - int(record["count"])) :]
        elif kind == "drop":
            del self._turns[: int(record["count"])]

    def _refuse_while_running(self) -> None:
        if self._running:
            raise UsageError("An answer is being made.", why="Stop it first.")
