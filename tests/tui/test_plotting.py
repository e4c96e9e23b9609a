"""Plots in the chat: what they show, in any size, in both themes, and whatever a name holds."""

from __future__ import annotations

import math

import pytest
from textual.app import App, ComposeResult
from textual.content import Content
from textual.widgets import Static

from localspec.tui.app import DARK, LIGHT
from localspec.tui.plotting import DASHES, LINE, REFERENCE, STYLES, Series, draw

RISING = tuple((float(x), float(x)) for x in range(1, 9))


def rows(drawn: list[object]) -> list[str]:
    return [line.plain for line in drawn]  # type: ignore[attr-defined]


@pytest.mark.parametrize(("width", "height"), [(76, 9), (24, 6), (110, 16), (40, 12), (190, 40)])
def test_it_keeps_to_its_room(width: int, height: int) -> None:
    series = [Series("a name that is rather long", RISING), Series("measured", RISING[::3], "●", STYLES[1])]
    drawn = draw("tok/s of each answer", series, width, height)
    assert len(drawn) == height
    assert all(line.cell_length <= width for line in drawn)
    assert any(line.startswith("0┤") for line in rows(drawn))
    assert any(line.startswith("5┤") or line.startswith("4┤") for line in rows(drawn))


@pytest.mark.parametrize(("width", "height"), [(23, 20), (80, 5), (0, 0)])
def test_without_room_there_is_no_plot(width: int, height: int) -> None:
    assert draw("t", [Series("a", RISING)], width, height) == []


def test_nothing_to_show_is_no_plot() -> None:
    assert draw("t", [], 80, 10) == []
    assert draw("t", [Series("a", ())], 80, 10) == []
    assert draw("t", [Series("a", ((1.0, math.nan), (math.inf, 2.0)))], 80, 10) == []


def test_a_single_point_and_zeros_can_be_drawn() -> None:
    assert any("●" in line for line in rows(draw("t", [Series("a", ((3.0, 7.0),), "●")], 60, 9))[1:])
    assert len(draw("t", [Series("a", ((1.0, 0.0), (2.0, 0.0)))], 60, 9)) == 9


def test_values_stand_where_they_belong() -> None:
    drawn = rows(
        draw("t", [Series("", ((0.0, 10.0), (10.0, 10.0)), DASHES), Series("", ((5.0, 5.0),), "●")], 60, 13)
    )
    dashes = next(number for number, line in enumerate(drawn) if DASHES in line)
    point = next(number for number, line in enumerate(drawn) if "●" in line)
    floor = next(number for number, line in enumerate(drawn) if line.strip().startswith("0┤"))
    assert abs((floor - dashes) - 2 * (floor - point)) <= 2
    assert 28 <= drawn[point].index("●") <= 36


def test_each_series_has_the_style_of_the_theme() -> None:
    drawn = draw(
        "t",
        [
            Series("plain", ((1.0, 2.0), (8.0, 2.0)), DASHES, REFERENCE),
            Series("drafted", RISING, LINE, STYLES[0]),
        ],
        60,
        9,
    )
    spans = [(line.plain[span.start : span.end], span.style) for line in drawn[1:] for span in line.spans]
    assert {style for piece, style in spans if set(piece) & {DASHES}} == {REFERENCE}
    assert {style for piece, style in spans if any("\u2801" <= one <= "\u28ff" for one in piece)} == {
        STYLES[0]
    }
    assert "\x1b" not in "".join(rows(drawn))


def test_names_from_outside_are_text() -> None:
    name = "[red]x[/] \x1b[31m\u202eevil" + "a" * 90
    drawn = draw("t", [Series(name, RISING)], 80, 9)
    assert "[red]x[/]" in drawn[0].plain
    assert "\x1b" not in drawn[0].plain
    assert "\u202e" not in drawn[0].plain
    assert drawn[0].cell_length <= 80


class Shown(App[None]):
    def __init__(self, theme: str) -> None:
        super().__init__()
        self._wanted = theme

    def compose(self) -> ComposeResult:
        series = [Series("plain", ((1.0, 2.0), (8.0, 2.0)), DASHES, REFERENCE)]
        series += [Series(style, RISING, "●", style) for style in STYLES]
        for one in series:
            yield Static(Content("\n").join(draw("t", [one], 60, 8)), markup=False)

    def on_mount(self) -> None:
        self.register_theme(DARK)
        self.register_theme(LIGHT)
        self.theme = self._wanted


def contrast(one: tuple[int, int, int], other: tuple[int, int, int]) -> float:
    def light(colour: tuple[int, int, int]) -> float:
        parts = [part / 255 for part in colour]
        parts = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]

    a, b = sorted((light(one), light(other)), reverse=True)
    return (a + 0.05) / (b + 0.05)


@pytest.mark.parametrize("theme", [DARK.name, LIGHT.name])
async def test_every_series_can_be_told_from_the_ground_in_both_themes(theme: str) -> None:
    app = Shown(theme)
    async with app.run_test(size=(80, 60)):
        seen: dict[str, float] = {}
        for shown in app.query(Static):
            for y in range(1, shown.size.height):
                for segment in shown.render_line(y):
                    style = segment.style
                    if style is None or style.color is None or style.bgcolor is None:
                        continue
                    for mark in set(segment.text) & {DASHES, "●"}:
                        ink, ground = style.color.get_truecolor(), style.bgcolor.get_truecolor()
                        seen[f"{mark}{ink.hex}"] = contrast(ink, ground)
        assert len(seen) == 1 + len(STYLES)
        assert min(seen.values()) >= 3.0, seen
