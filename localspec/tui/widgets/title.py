"""One line on top: what is loaded and what goes on."""

from __future__ import annotations

from textual.content import Content
from textual.widgets import Static

from localspec.tui.text import MUTED, cells, one_line


class Title(Static):
    """The program, the target and its state."""

    def __init__(self) -> None:
        super().__init__("", markup=False)
        self._model = ""
        self._phase = ""

    def show(self, *, model: str | None = None, phase: str | None = None) -> None:
        """Change what is shown; None leaves it."""
        shown = (self._model, self._phase)
        self._model = self._model if model is None else one_line(model)
        self._phase = self._phase if phase is None else phase
        if (self._model, self._phase) != shown:
            self._paint()

    @property
    def phase(self) -> str:
        """What goes on."""
        return self._phase

    def on_resize(self) -> None:
        """Fit the names into the new width."""
        self._paint()

    def _paint(self) -> None:
        width = self.content_size.width
        name = "localspec"
        room = width - len(name) - len(self._phase) - 4
        model = one_line(self._model, room) if room >= 8 else ""
        gap = max(1, width - len(name) - 2 - cells(model) - len(self._phase))
        self.update(
            Content.assemble((name, "bold $text-primary"), "  ", (model, ""), " " * gap, (self._phase, MUTED))
        )
