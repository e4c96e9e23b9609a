"""The app with the scripted engine, driven by Textual's pilot."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

from textual import events
from textual.pilot import Pilot

from localspec.chat.session import Session
from localspec.chat.store import ConversationStore
from localspec.measure.surroundings import Surroundings
from localspec.tui.advising import Neighbours
from localspec.tui.app import LocalspecApp
from localspec.tui.screens.chat import ChatScreen
from localspec.tui.widgets.notices import Notice
from localspec.worker.process import Worker
from localspec.worker.protocol import DraftSpec, Load

TARGET = "/models/target.gguf"
DRAFT = DraftSpec(kind="model", path="/models/draft.gguf")


@dataclass
class Pair:
    """What the app needs of a launch."""

    load: Load | None
    target_name: str = "big"
    draft_name: str = "small"
    notes: tuple[str, ...] = ()
    remembered: int = 0

    def remember(self) -> None:
        self.remembered += 1


class Around(Neighbours):
    """A machine on which others take this share of the CPU; by default a quiet one, whatever else the tests' does."""

    def __init__(self, share: float = 0.0, seen: Surroundings | None = None) -> None:
        super().__init__()
        self.share = share
        self.seen = seen or Surroundings(share, (), None, ())
        self.looks = 0

    def others(self, engine: int | None) -> float:
        return self.share

    def look(self, *, on_gpu: bool) -> Surroundings:
        self.looks += 1
        return self.seen


@dataclass
class Chat:
    """A running app."""

    app: LocalspecApp
    pilot: Pilot[None]
    worker: Worker
    session: Session
    pair: Pair

    @property
    def screen(self) -> ChatScreen:
        return self.app.chat

    async def until(self, condition: Callable[[], object], seconds: float = 20) -> None:
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                raise AssertionError("it did not come\n" + self.words())
            # Not pilot.pause(): it waits for an idle processor, which a stream does not leave.
            await asyncio.sleep(0.02)

    async def loaded(self) -> None:
        await self.until(lambda: not self.screen.busy)

    async def send(self, text: str) -> None:
        """Type a text (at once) and press Enter."""
        self.screen.prompt.put(text)
        self.app.post_message(events.Key("enter", "\r"))
        await self.until(lambda: self.screen.prompt._enter is not None)
        await self.until(lambda: self.screen.prompt._enter is None)
        await asyncio.sleep(0.1)

    async def ask(self, text: str = "hello") -> str:
        """Send and wait for the whole answer to be on the screen."""
        await self.send(text)
        await self.until(
            lambda: not self.screen.busy and all(a.idle for a in self.screen.conversation.answers())
        )
        await self.painted()
        return self.screen.last_answer()

    async def painted(self) -> None:
        """Wait until what was changed is laid out, however busy the machine."""
        for _ in range(2):  # new widgets are mounted in one pass and have a size in the next
            done = asyncio.Event()
            self.app.screen.call_after_refresh(done.set)
            await asyncio.wait_for(done.wait(), 20)

    def words(self) -> str:
        """The whole screen as text."""
        lines = self.app.screen._compositor.render_strips()
        return "\n".join(strip.text.rstrip() for strip in lines)

    def notices(self) -> str:
        return "\n".join(str(each.content) for each in self.screen.query(Notice))

    def figures(self) -> str:
        return str(self.screen._view.content)


@contextlib.asynccontextmanager
async def chat(
    script: str = "",
    *,
    size: tuple[int, int] = (80, 24),
    load: Load | None = None,
    draft: DraftSpec = DRAFT,
    wait: bool = True,
    notes: tuple[str, ...] = (),
    target_name: str = "big",
    host: str = "tests.fake_host:serve",
    store: ConversationStore | None = None,
    around: Neighbours | None = None,
    folder: Path,
) -> AsyncIterator[Chat]:
    """The app on a screen of `size` cells; the engine follows `script` (see tests/fake_host.py).

    What `store` holds is gone on with.
    """
    before = os.environ.get("LOCALSPEC_FAKE")
    os.environ["LOCALSPEC_FAKE"] = script
    worker = Worker(host=host, log_file=folder / "engine.log")
    session = Session(worker, seed=1, store=store)
    kept = store.newest() if store is not None else None
    if kept is not None:
        session.resume(kept)
    pair = Pair(load or Load(target=TARGET, draft=draft), target_name, notes=notes)
    app = LocalspecApp(session, worker, pair)
    app.chat.advisor.neighbours = around or Around()
    try:
        async with app.run_test(size=size) as pilot:
            running = Chat(app, pilot, worker, session, pair)
            if wait:
                await running.loaded()
            yield running
    finally:
        await asyncio.to_thread(worker.close, 1.0)
        if before is None:
            os.environ.pop("LOCALSPEC_FAKE", None)
        else:
            os.environ["LOCALSPEC_FAKE"] = before
