"""What `bench` and `tune` draw: a plot in the terminal, and the report of `--report`."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from localspec.cli import output

_WIDTH = 80
_NARROWEST = 40


def make_folder(folder: Path) -> None:
    """Make the folder of a report, before anything is measured for it.

    Raises:
        UsageError: It cannot be made, or cannot be written.
    """
    from localspec.measure.report import make_folder as make

    make(folder)


def plot(result: Mapping[str, Any]) -> None:
    """The speed over draft length on stdout, where that is a terminal that is wide enough.

    Args:
        result: The object of `--json`.
    """
    width = min(shutil.get_terminal_size().columns, _WIDTH)
    if not output.is_terminal(sys.stdout) or width < _NARROWEST:
        return
    from localspec.measure.report import sections
    from localspec.measure.report_terminal import terminal_plot

    colour = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    text = terminal_plot(sections(result), width=width, colour=colour)
    if text:
        # Not through `output.write`: it would show the colours' escapes. Names in the plot are clean already.
        sys.stdout.write(f"\n{text}")
        sys.stdout.flush()


def write_report(result: Mapping[str, Any], folder: Path) -> None:
    """Write the page and its pictures, and say where the page is.

    Args:
        result: The object of `--json`.
        folder: Of `--report`.

    Raises:
        UsageError: The folder cannot be written.
    """
    from localspec.measure.report import write

    output.say(f"Report: {write(result, folder).page}")
