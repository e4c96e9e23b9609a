"""Runs the whole program in a process of its own, with a scripted engine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PRICED_HOST = "tests.measure.priced_host:serve"


def environment(home: Path, script: str = "", **more: str) -> dict[str, str]:
    """An environment without this person's files, hub or settings; the engine is the scripted one."""
    kept = {
        k: v for k, v in os.environ.items() if not k.startswith(("LOCALSPEC_", "HF_", "TYPER_", "PYTHONPATH"))
    }
    return kept | {
        "LOCALSPEC_HOME": str(home),
        "HF_HOME": str(home / "hf"),
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": str(ROOT),
        "LOCALSPEC_WORKER_HOST": "tests.fake_host:serve",
        "LOCALSPEC_FAKE": script,
        **more,
    }


def localspec(home: Path, *arguments: str, script: str = "", stdin: str | bytes = b"", **more: str):
    """Run `localspec ARGUMENTS`; stdout and stderr come back as bytes decoded strictly."""
    done = subprocess.run(
        [sys.executable, "-m", "localspec", *arguments],
        input=stdin.encode() if isinstance(stdin, str) else stdin,
        capture_output=True,
        env=environment(home, script, **more),
        timeout=60,
        check=False,
    )
    done.stdout, done.stderr = done.stdout.decode(), done.stderr.decode()
    return done


def priced(home: Path, *arguments: str, prices: str = "", **more: str):
    """Run `localspec ARGUMENTS` on the engine with set prices."""
    return localspec(home, *arguments, LOCALSPEC_WORKER_HOST=PRICED_HOST, LOCALSPEC_PRICED=prices, **more)
