"""The soak script, in small: a chat of many moves through the engine's process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SOAK = Path(__file__).parent.parent.parent / "scripts" / "soak"


@pytest.mark.parametrize("flags", [(), ("--auto",)])
def test_sixty_turns(flags: tuple[str, ...]) -> None:
    command = [
        sys.executable,
        str(SOAK),
        "--turns",
        "60",
        "--sample",
        "3",
        "--tokens",
        "1000",
        "--ctx",
        "512",
    ]
    done = subprocess.run(
        [*command, "--json", *flags], check=False, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    chat, long_answer = found["chat"], found["long_answer"]
    assert found["passed"]
    assert chat["faults"] == []
    assert chat["checked"] >= 15
    assert chat["accepted"] > 100
    # Every kind of move was made, and the context was full now and then.
    assert set(chat["moves"]) >= {"question", "again", "edit", "stop", "change", "clear", "context full"}
    assert [reading["at"] for reading in chat["readings"]] == [3, 15, 30, 45, 60]
    assert all(reading["child_mb"] > 10 for reading in chat["readings"])
    assert long_answer["tokens"] == 1000
    for part in (chat, long_answer):
        assert part["growth"]["flat"]
        assert part["growth"]["threads"] <= 0
        assert part["growth"]["files"] <= 0
