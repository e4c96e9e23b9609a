"""Advice in the chat: what an answer showed, what else used the machine meanwhile, and what was said already."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from localspec.chat.session import Session
from localspec.measure.advice import Advice, advise
from localspec.measure.depth import Depths
from localspec.measure.seen import LEAST_TOKENS, from_answer
from localspec.measure.surroundings import BUSY_SHARE, Surroundings, Watch, look
from localspec.spec.events import Finished, Round
from localspec.worker.process import Worker
from localspec.worker.protocol import MemoryUse

_SETTLE_S = 2.5
"""A GPU's utilisation is a mean of the last moments: a look that comes sooner would see our own work."""


class Neighbours:
    """Watches the CPU during an answer, and looks at the machine when the answer is over."""

    def __init__(self) -> None:
        self._watch: Watch | None = None
        self._engine: int | None = None

    def answer_begins(self, engine: int | None) -> None:
        """Watch from now on; `engine` is the id of the engine's process, whose time is ours."""
        self._engine = engine
        self._watch = Watch((os.getpid(), engine)) if engine is not None else None

    def others(self, engine: int | None) -> float:
        """Share of the CPU that others took since the answer began; 0 where the engine was started again since."""
        return self._watch.others() if self._watch is not None and engine == self._engine else 0.0

    def look(self, *, on_gpu: bool) -> Surroundings:
        """What uses the machine now, without our own processes. Takes seconds; call it in a thread of its own."""
        if on_gpu:
            time.sleep(_SETTLE_S)
        seen = look()
        own = (os.getpid(), self._engine)
        return replace(
            seen,
            programs=tuple(one for one in seen.programs if one.pid not in own),
            gpu_programs=tuple(one for one in seen.gpu_programs if one.pid not in own),
        )


class Advisor:
    """Says the most pressing trouble of an answer that was not said in this conversation.

    Args:
        session: The conversation.
        worker: The engine's process.
        names: Target and draft as they are typed in a command.
        say: Shows advice.
    """

    def __init__(
        self, session: Session, worker: Worker, names: tuple[str, str], say: Callable[[Advice], None]
    ) -> None:
        self.neighbours = Neighbours()
        self._session = session
        self._worker = worker
        self._names = names
        self._say = say
        self._said: set[str] = set()
        self._depths = Depths()
        self._last: Finished | None = None
        self._looks: queue.SimpleQueue[tuple[Finished, float, Surroundings]] = queue.SimpleQueue()

    def clear(self) -> None:
        """A new conversation begins: all may be said again."""
        self._said.clear()
        self._depths.clear()
        self._last = None

    def answer_begins(self) -> None:
        """Watch the machine from now on."""
        self._last = None
        self.neighbours.answer_begins(self._worker.pid)

    def round(self, event: Round) -> None:
        """Take the figures of a round."""
        self._depths.add(event.stats, event.draft, event.context_used)

    def answer_ended(self, finished: Finished, memory: MemoryUse | None) -> None:
        """Give advice on this answer; where others may have disturbed it, first look who that is."""
        ready = self._worker.ready
        if ready is None:
            return
        self._last = finished
        on_gpu = ready.target.gpu_layers > 0
        others = self.neighbours.others(self._worker.pid)
        disturbed = on_gpu or others > BUSY_SHARE
        if finished.stats.completion_tokens < LEAST_TOKENS or not disturbed or "busy" in self._said:
            self._advise(finished, memory)
            return

        def work() -> None:
            self._looks.put((finished, others, self.neighbours.look(on_gpu=on_gpu)))

        threading.Thread(target=work, name="localspec look", daemon=True).start()

    def tick(self, memory: MemoryUse | None, *, idle: bool) -> None:
        """Give the advice that waited for a look.

        Args:
            memory: The use now.
            idle: Nothing runs. Under the next answer nobody would know what the advice is about, and what a look at the
                GPU saw may have been that answer.
        """
        while not self._looks.empty():
            finished, others, surroundings = self._looks.get()
            if idle and finished is self._last:
                self._advise(finished, memory, others, surroundings)

    def _advise(
        self,
        finished: Finished,
        memory: MemoryUse | None,
        others: float = 0.0,
        surroundings: Surroundings | None = None,
    ) -> None:
        ready, load = self._worker.ready, self._worker.loaded
        if ready is None or load is None:
            return
        target, draft = self._names
        seen = from_answer(
            ready,
            load,
            finished,
            target=target,
            draft=draft,
            sampling=self._session.sampling,
            memory=memory,
            wanted=self._worker.draft_on,
            depths=self._depths.ends(),
            others_cpu=others,
            surroundings=surroundings,
        )
        fresh = [advice for advice in advise(seen) if advice.kind not in self._said]
        # Of a context that is full the end of the answer tells already.
        if fresh and not (finished.reason == "context" and fresh[0].kind == "context"):
            self._said.add(fresh[0].kind)
            self._say(fresh[0])
