"""The model's thinking: apart from the answer, dim, foldable."""

from __future__ import annotations

from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import Static

from localspec.tui.widgets.chunks import Chunks


class Thinking(Vertical):
    """Thinking text under a heading that folds it away."""

    def __init__(self) -> None:
        super().__init__()
        self.display = False
        self._tokens = 0
        self._open = True
        self._done = False
        self._heading = Static("", classes="thinking-heading", markup=False)
        self._body = Chunks(classes="thinking-body")

    def compose(self) -> ComposeResult:
        """The parts, from top to bottom."""
        yield self._heading
        yield self._body

    @property
    def tokens(self) -> int:
        """Tokens of thinking so far."""
        return self._tokens

    def write(self, text: str, tokens: int) -> None:
        """Append thinking text that `tokens` tokens released."""
        self._tokens += tokens
        self.display = True
        self._body.write([(text, "")])
        self._head()

    def recall(self, text: str) -> None:
        """Show thinking of an earlier time, folded away."""
        self.display = True
        self._body.write([(text, "")])
        self.finish(fold=True)

    def finish(self, *, fold: bool) -> None:
        """The thinking has ended; fold it away where an answer follows, which is what counts then."""
        if not self._done:
            self._done = True
            self.fold(folded=fold)

    def fold(self, *, folded: bool) -> None:
        """Hide or show the text; the heading stays."""
        self._open = not folded
        self._body.display = self._open
        self._head()

    @property
    def folded(self) -> bool:
        """Whether the text is hidden."""
        return not self._open

    def _head(self) -> None:
        mark = "▾" if self._open else "▸"
        state = "Thought" if self._done else "Thinking"
        plural = "" if self._tokens == 1 else "s"
        count = f" · {self._tokens:,} token{plural}" if self._tokens else ""
        self._heading.update(f"{mark} {state}{count}")

    def on_click(self, event: events.Click) -> None:
        """Fold or unfold at a click on the heading."""
        if event.widget is self._heading:
            self.fold(folded=self._open)
