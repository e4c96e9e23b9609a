"""The control groups of Linux that this process is in: where a container's limits stand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")


def control_groups(controller: str, root: Path = ROOT, own: Path = OWN) -> Iterator[tuple[Path, bool]]:
    """This process's group and each group above it: every one of them limits.

    Args:
        controller: `memory` or `cpu`.
        root: Where the groups are mounted.
        own: The file that names the process's groups.

    Yields:
        A folder, which need not exist, and whether the group is of the second version. Nothing but on Linux.
    """
    try:
        lines = own.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, name = ([*line.split(":", 2), "", ""])[:3]
        second = controllers == ""
        if not second and controller not in controllers.split(","):
            continue
        parts = [part for part in name.split("/") if part]
        for depth in range(len(parts), -1, -1):
            yield (root if second else root / controller).joinpath(*parts[:depth]), second
