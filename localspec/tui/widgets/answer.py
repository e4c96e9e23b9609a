"""One answer: thinking, streamed Markdown, or its tokens coloured by who chose them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterable

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Static

from localspec.spec.events import Piece, Rejected
from localspec.tui.markdown import AnswerMarkdown, BlockSplitter, make_parser, preview
from localspec.tui.text import clean
from localspec.tui.text import token as one_token
from localspec.tui.widgets.chunks import Chunks
from localspec.tui.widgets.thinking import Thinking

PAINT_S = 1 / 12
"""Least time between two updates of an answer on the screen, in seconds."""
_REST, _LONGEST_REST_S = 50, 0.4
"""After a paint that computed for t seconds the next one comes this many times t later, within limits: a model that is
computed on the same cores waits for every paint."""
_PREVIEW = 3_000  # characters of an open block that are worth styling at every update
_MOST_BLOCKS = 600
"""Blocks of Markdown in an answer, each a widget of 30 kB that every layout visits; what follows is plain text."""
_LONGEST_BLOCK = 40_000
"""Characters of an open block, of which every update lays out all; a longer one goes on as plain text."""
_MOST_ITEMS = 1_000
"""Lines of an open block other than code: each item of a list becomes several widgets in the end."""
ACCEPTED = "$text-success"
OWN = "bold $text-warning"
REJECTED = "$text-error"

_LEGEND = Content.assemble(
    ("■", ACCEPTED),
    " accepted from the draft   ",
    ("■", OWN),
    " the target's own   ",
    ("‹drafted›", REJECTED),
    " and not chosen",
)

log = logging.getLogger(__name__)


class Answer(Vertical):
    """An answer, while it is written and afterwards.

    Args:
        coloured: Show who chose each token instead of the Markdown.
    """

    def __init__(self, *, coloured: bool = False) -> None:
        super().__init__()
        self.thinking = Thinking()
        self._markdown = AnswerMarkdown()
        self._tail = Static("", classes="tail", markup=False)
        self._code = Chunks(classes="tail code")
        self._rest = Chunks(classes="tail")
        self._legend = Static(_LEGEND, classes="legend", markup=False)
        self._pieces = Chunks(classes="pieces")
        self._foot = Static("", classes="answer-foot", markup=False)
        self._splitter = BlockSplitter()
        self._parser = make_parser()
        self._runs: list[tuple[str, str]] = []
        self._runs_shown = 0
        self._fresh: list[str] = []
        self._code_shown = 0
        self._tail_lines = 0
        self._coloured = coloured
        self._wake = asyncio.Event()
        self._ending = False
        self._plain = False
        self._long = False
        self._painting = False
        # Before mounting: a short answer can be over by then.
        self._foot.display = False
        self._arrange()

    def compose(self) -> ComposeResult:
        """The parts, from top to bottom."""
        yield self.thinking
        yield self._markdown
        yield self._tail
        yield self._code
        yield self._rest
        yield self._legend
        yield self._pieces
        yield self._foot

    def on_mount(self) -> None:
        """Start painting."""
        self.run_worker(self._paint_loop(), exit_on_error=False, name="paint an answer")

    @property
    def text(self) -> str:
        """The answer so far, as the model wrote it, without the thinking."""
        return "".join(text for text, style in self._runs if style != REJECTED)

    @property
    def idle(self) -> bool:
        """Whether all that was fed is on the screen."""
        return not (self._fresh or self._painting or self._wake.is_set())

    def feed(self, pieces: Iterable[Piece | Rejected]) -> None:
        """Take what some tokens released, and what was drafted in vain in front of them.

        Cheap: painting happens later, and not for every token.
        """
        thought: list[str] = []
        tokens = 0
        for piece in pieces:
            if isinstance(piece, Rejected):
                self._runs.append((f"‹{one_token(piece.drafted)}›", REJECTED))
                continue
            text = clean(piece.text)
            if piece.thinking:
                thought.append(text)
                tokens += 1
                continue
            if text:
                self._runs.append((text, ACCEPTED if piece.drafted else OWN))
                self._fresh.append(text)
        if tokens:
            self.thinking.write("".join(thought), tokens)
        if self._fresh:
            if self.thinking.tokens:
                self.thinking.finish(fold=True)
            self._wake.set()

    def recall(self, text: str, thinking: str, foot: str) -> None:
        """Show an answer of an earlier time; who chose its tokens is not known any more."""
        if thinking:
            self.thinking.recall(clean(thinking))
        if text:
            self._runs.append((clean(text), ""))
            self._fresh.append(clean(text))
        self.finish(foot)

    def finish(self, foot: str) -> None:
        """The answer is over.

        Args:
            foot: One line about it, shown below it; empty for none.
        """
        self._ending = True
        self.thinking.finish(fold=False)
        self._foot.update(clean(foot))
        self._foot.display = bool(foot)
        self._wake.set()

    def colour(self, *, coloured: bool) -> None:
        """Switch between Markdown and coloured tokens; both always hold the whole answer."""
        self._coloured = coloured
        self._arrange()
        self._wake.set()

    def _arrange(self) -> None:
        self._pieces.display = self._coloured or self._plain
        self._legend.display = self._coloured
        self._markdown.display = not self._pieces.display
        self._rest.display = self._long and not self._pieces.display
        tail = self._splitter.tail and not self._pieces.display
        self._code.display = bool(tail and self._splitter.in_code)
        self._tail.display = bool(tail and not self._splitter.in_code)

    async def _paint_loop(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            self._painting = True
            computed = time.thread_time()
            try:
                await self._paint(ending=self._ending)
            except Exception:
                # Whatever this text did to the Markdown widget, the answer itself must stay readable.
                log.exception("Markdown failed; showing the answer as plain text")
                self._plain = True
                self._arrange()
            self._paint_pieces()
            self._painting = False
            took = await self._refreshed()
            computed = time.thread_time() - computed
            await asyncio.sleep(max(PAINT_S, 3 * took, min(_REST * computed, _LONGEST_REST_S)))

    async def _refreshed(self) -> float:
        """Wait until what was painted is on the screen; the seconds that this took."""
        started = time.monotonic()
        done = asyncio.Event()
        if self.call_after_refresh(done.set):
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(done.wait(), timeout=1.0)
        return time.monotonic() - started

    async def _paint(self, *, ending: bool) -> None:
        text, self._fresh = "".join(self._fresh), []
        if self._plain:
            return
        if self._long:
            self._rest.write([(text, "")])
            return
        was_code = self._splitter.in_code
        finished = self._splitter.feed(text)
        if self._too_long(finished):
            self._go_on_plain(finished)
            return
        if ending:
            finished += self._splitter.tail
            self._splitter = BlockSplitter()
        if finished or was_code != self._splitter.in_code:
            self._code.clear()
            self._code_shown = 0
        if not finished:
            self._paint_tail()
            return
        with self.app.batch_update():
            await self._markdown.append(finished)
            self._paint_tail()

    def _too_long(self, finished: str) -> bool:
        tail = self._splitter.tail
        lines = 0 if self._splitter.in_code else tail.count("\n")
        blocks = len(self._markdown.children) + finished.count("\n\n")
        return blocks > _MOST_BLOCKS or len(tail) > _LONGEST_BLOCK or lines > _MOST_ITEMS

    def _go_on_plain(self, finished: str) -> None:
        """The answer has become too long for Markdown: leave what is there, write what follows as it comes."""
        self._long = True
        tail, self._splitter = self._splitter.tail, BlockSplitter()
        self._rest.write([(finished + tail, "")])
        self._arrange()

    def _paint_tail(self) -> None:
        tail = self._splitter.tail
        if self._splitter.in_code:
            self._code.write([(tail[self._code_shown :], "")])
            self._code_shown = len(tail)
        elif tail:
            shown = preview(tail, self._parser) if len(tail) <= _PREVIEW else Content(tail.rstrip("\n"))
            lines = shown.get_height({}, max(1, self._tail.content_size.width))
            self._tail.update(shown, layout=lines != self._tail_lines)
            self._tail_lines = lines
        self._arrange()

    def _paint_pieces(self) -> None:
        if self._pieces.display and self._runs_shown < len(self._runs):
            self._pieces.write(self._runs[self._runs_shown :])
            self._runs_shown = len(self._runs)
