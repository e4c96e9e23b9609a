"""The system's clipboard through the tools that own it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping

OSC52_LIMIT = 74_000
"""Bytes of text that terminals take in one OSC 52 sequence (100,000 characters in base64)."""

_TIMEOUT_S = 2.0


def tools(environ: Mapping[str, str], platform: str = sys.platform) -> list[list[str]]:
    """The commands that could reach the person's clipboard, best first.

    Args:
        environ: The process's environment.
        platform: As `sys.platform`.

    Returns:
        Argument lists; none where the clipboard belongs to another machine (SSH without a display).
    """
    found: list[list[str]] = []
    if platform == "darwin" and not (environ.get("SSH_CONNECTION") or environ.get("SSH_TTY")):
        found.append(["pbcopy"])
    if platform == "win32" or environ.get("WSL_DISTRO_NAME"):
        found.append(["clip.exe"])
    if environ.get("WAYLAND_DISPLAY"):
        found.append(["wl-copy"])
    if environ.get("DISPLAY"):
        found += [["xclip", "-selection", "clipboard"], ["xsel", "--clipboard", "--input"]]
    return found


def native_copy(text: str, environ: Mapping[str, str] | None = None) -> str:
    """Give a text to the first clipboard tool that takes it.

    Args:
        text: What to copy.
        environ: The environment to read; this process's own when None.

    Returns:
        The name of the tool that took it, or an empty text when none did.
    """
    environ = os.environ if environ is None else environ
    for command in tools(environ):
        program = shutil.which(command[0], path=environ.get("PATH"))
        if program is None:
            continue
        encoding = "utf-16-le" if command[0] == "clip.exe" else "utf-8"
        try:
            done = subprocess.run(
                [program, *command[1:]],
                input=text.encode(encoding, errors="replace"),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=_TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.SubprocessError):
            continue
        if done.returncode == 0:
            return command[0]
    return ""
