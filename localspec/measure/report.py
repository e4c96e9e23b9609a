"""The report of `bench` and `tune`: one HTML page that needs nothing else, and its pictures as SVG and PNG.

Everything comes from the object that `--json` prints, so a report can be made again from a stored result. The same
object gives the same bytes.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any

from localspec.errors import UsageError
from localspec.measure import report_bench, report_data, report_tune
from localspec.measure.report_data import Json, Section
from localspec.measure.report_page import page

if TYPE_CHECKING:
    from jinja2 import Template

PAGE = "report.html"


@dataclass(frozen=True, slots=True)
class Written:
    """Files of a report."""

    page: Path
    pictures: tuple[Path, ...]
    """SVG and PNG of each picture."""


def sections(result: Json) -> tuple[Section, ...]:
    """What the report of a result shows, in its order.

    Args:
        result: The object of `localspec bench --json` or `localspec tune --json`. What it lacks is said to be missing.
    """
    tune = result.get("kind") == "localspec tune"
    return report_tune.sections(result) if tune else report_bench.sections(result)


def make_folder(folder: Path) -> None:
    """Make the folder of a report, so that a folder that cannot be is known before anything is measured.

    Raises:
        UsageError: It cannot be made, or no file can be written there.
    """
    with _writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass


def write(result: Json, folder: Path) -> Written:
    """Write `report.html` and its pictures into a folder, in place of those of an earlier report.

    Args:
        result: The object of `localspec bench --json` or `localspec tune --json`.
        folder: Is made where it does not exist.

    Raises:
        UsageError: The folder cannot be written.
    """
    from markupsafe import Markup

    from localspec.measure import report_draw

    make_folder(folder)
    shown = sections(result)
    files: dict[str, bytes] = {}
    pictures = []
    for section in shown:
        drawing = None
        if section.plot is not None:
            title = report_data.clean(section.title)
            label = html.escape(report_data.clean(f"{section.title}. {section.sentence}"))
            drawing = Markup(
                report_draw.inline_svg(section.plot, section.slug, label)
            )  # ours: the label is escaped
            files[f"{section.slug}.svg"] = report_draw.svg(section.plot, section.slug, title).encode()
            files[f"{section.slug}.png"] = report_draw.png(section.plot, section.slug, title)
        pictures.append((section, drawing))
    text = _template().render(page=page(result), sections=pictures, colours=report_draw.COLOURS)
    files[PAGE] = text.encode()
    _write(folder, files, [f"{one.slug}.{kind}" for one in shown for kind in ("svg", "png")])
    return Written(folder / PAGE, tuple(folder / name for name in files if name != PAGE))


def _template() -> Template:
    from jinja2 import Environment, StrictUndefined

    # Every text of the page passes through `clean`: names may hold what no terminal and no page should show.
    environment = Environment(autoescape=True, undefined=StrictUndefined, finalize=_tidy)
    return environment.from_string(Path(__file__).with_name(PAGE).read_text(encoding="utf-8"))


def _tidy(value: Any) -> Any:
    return value if hasattr(value, "__html__") else report_data.clean(value)


def _write(folder: Path, files: Mapping[str, bytes], ours: Sequence[str]) -> None:
    with _writing(folder):
        for name in ours:
            if name not in files:
                (folder / name).unlink(missing_ok=True)  # of an earlier result that had this picture
        for name, content in files.items():
            (folder / name).write_bytes(content)


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"The report cannot be written to {folder}.",
            why=f"{error.strerror or error}.",
            hint="localspec bench --report report",
        ) from error
