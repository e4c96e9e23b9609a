"""The chat on a real pseudo-terminal: what a person sees, and what is left of the terminal afterwards."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pexpect = pytest.importorskip("pexpect", reason="needs pseudo-terminals")
pyte = pytest.importorskip("pyte", reason="needs a terminal emulator")
if not hasattr(pexpect, "spawn"):
    pytest.skip("needs pseudo-terminals", allow_module_level=True)

import psutil  # noqa: E402

from localspec.chat.store import ConversationStore  # noqa: E402
from tests.cli.program import environment  # noqa: E402

COLUMNS, LINES = 80, 24


class Terminal:
    """A program on a pseudo-terminal, and the screen that it paints."""

    def __init__(self, folder: Path, script: str, redirect: str = "", **more: str) -> None:
        self.folder = folder
        self.screen = pyte.Screen(COLUMNS, LINES)
        self.stream = pyte.ByteStream(self.screen)
        self.raw = b""
        self.program = pexpect.spawn(
            "/bin/sh",
            ["-c", f"exec '{sys.executable}' -m tests.tui.program '{folder}' {redirect}"],
            env=environment(folder, script, TERM="xterm-256color", **more),
            cwd=str(Path(__file__).parents[2]),
            dimensions=(LINES, COLUMNS),
            timeout=20,
        )
        self.program.delaybeforesend = None

    def read(self, seconds: float = 0.05) -> None:
        try:
            data = self.program.read_nonblocking(1 << 16, timeout=seconds)
        except pexpect.TIMEOUT:
            return
        except pexpect.EOF:
            time.sleep(0.02)
            return
        self.raw += data
        # pyte does not know the keyboard protocol's sequences and would print their ends.
        self.stream.feed(data.replace(b"\x1b[>25u", b"").replace(b"\x1b[<u", b""))

    def until(self, condition: Callable[[], object], seconds: float = 20) -> None:
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                raise AssertionError("it did not come\n" + self.text)
            self.read()

    def sees(self, words: str, seconds: float = 20) -> None:
        self.until(lambda: words in self.text, seconds)

    @property
    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self.screen.display)

    def send(self, keys: bytes) -> None:
        self.program.send(keys)

    def ends(self, seconds: float) -> float:
        """Wait for the end; the seconds that it took. The code is `program.exitstatus`."""
        started = time.monotonic()
        self.until(lambda: not self.program.isalive(), seconds)
        self.read(0.1)
        self.program.close()
        return time.monotonic() - started

    def restored(self) -> None:
        """The terminal is as a shell needs it."""
        for sequence in (
            b"\x1b[?1049l",
            b"\x1b[?25h",
            b"\x1b[?1000l",
            b"\x1b[?1003l",
            b"\x1b[?2004l",
            b"\x1b[<u",
        ):
            assert sequence in self.raw, sequence
        tail = self.raw[self.raw.rindex(b"\x1b[?1049l") :]
        assert b"\x1b[?1000h" not in tail
        assert b"Traceback" not in self.raw

    def messages(self) -> list[str]:
        return (self.folder / "messages").read_text().splitlines()


def ready(folder: Path, script: str = "n=5,text=word ", **more: str) -> Terminal:
    terminal = Terminal(folder, script, **more)
    terminal.sees("ready")
    return terminal


def test_ask_and_ctrl_c_twice(tmp_path: Path) -> None:
    terminal = ready(tmp_path)
    terminal.send(b"hello there\r")
    terminal.sees("word word word word word")
    terminal.sees("5 tokens")
    terminal.send(b"\x03")
    terminal.sees("Press Ctrl+C again to leave")
    terminal.send(b"\x03")
    assert terminal.ends(3) < 2
    assert terminal.program.exitstatus == 0
    terminal.restored()
    assert terminal.messages() == ["'hello there'", "'word word word word word '"]


@pytest.mark.parametrize(
    ("script", "begin", "sign"),
    [
        ("load_s=60", b"", "Starting the engine"),
        ("native=load:60", b"", "Loading the target"),
        ("prefill_s=60", b"hi\r", "reading the prompt"),
        ("native=decode:60", b"hi\r", "reading the prompt 100%"),
        ("n=100000,tok_s=200", b"hi\r", "answering"),
    ],
)
def test_ctrl_q_in_every_phase(tmp_path: Path, script: str, begin: bytes, sign: str) -> None:
    terminal = Terminal(tmp_path, script)
    if begin:
        terminal.sees("ready")
        terminal.send(begin)
    terminal.sees(sign)
    terminal.send(b"\x11")
    assert terminal.ends(5) < 2.5
    assert terminal.program.exitstatus == 0
    terminal.restored()


@pytest.mark.parametrize("script", ["n=100000,tok_s=200", "native=decode:60"])
def test_sigterm_restores_the_terminal(tmp_path: Path, script: str) -> None:
    terminal = ready(tmp_path, script)
    terminal.send(b"hi\r")
    terminal.until(lambda: "answering" in terminal.text or "100%" in terminal.text)
    children = psutil.Process(terminal.program.pid).children(recursive=True)
    os.kill(terminal.program.pid, signal.SIGTERM)
    terminal.ends(5)
    assert terminal.program.exitstatus == 128 + signal.SIGTERM
    terminal.restored()
    assert not [child for child in psutil.wait_procs(children, timeout=2)[1] if child.is_running()]


def test_closed_terminal_ends_quietly(tmp_path: Path) -> None:
    terminal = ready(tmp_path, "n=100000,tok_s=200")
    terminal.send(b"hi\r")
    terminal.sees("answering")
    terminal.send(b"half a thought")
    terminal.sees("half a thought")
    process = psutil.Process(terminal.program.pid)
    children = process.children(recursive=True)
    terminal.program.ptyproc.fileobj.close()
    terminal.program.closed = terminal.program.ptyproc.closed = True
    assert not psutil.wait_procs([process, *children], timeout=5)[1]
    kept = ConversationStore(tmp_path / "kept").newest()
    assert kept is not None
    said = [(record.get("role", record["type"]), record["content"]) for record in kept.records[1:]]
    assert [who for who, _ in said] == ["user", "assistant", "typed"]
    assert said[0][1] == "hi"
    assert said[1][1].startswith("The quick")
    assert said[2][1] == "half a thought"


def test_abort_of_the_engine_leaves_a_terminal_that_works(tmp_path: Path) -> None:
    once = tmp_path / "once"
    terminal = ready(tmp_path, f"crash=decode:3,kind=abort,once={once},noise=1,n=40,tok_s=100,text=word ")
    terminal.send(b"first\r")
    terminal.sees("SIGABRT")
    terminal.sees("GGML_ASSERT")
    assert "native noise" not in terminal.text
    terminal.send(b"second\r")
    terminal.sees("40 tokens")
    terminal.send(b"/quit\r")
    terminal.ends(3)
    terminal.restored()
    assert "'second'" in terminal.messages()


@pytest.mark.parametrize(
    ("keys", "kept"),
    [
        (b"\x1b[200~a\r\nb\nc\r\x1b[201~", "'a\\nb\\nc\\n'"),
        (b"a\rb\rc", "'a\\nb\\nc'"),
        (b"a\rb\r", "'a\\nb\\n'"),
        (b"a\nb", "'a\\nb'"),
    ],
)
def test_paste_sends_nothing(tmp_path: Path, keys: bytes, kept: str) -> None:
    terminal = ready(tmp_path)
    terminal.send(keys)
    terminal.until(lambda: "│ b" in terminal.text)
    for _ in range(8):
        terminal.read()
    assert "tokens" not in terminal.text
    assert "│ a" in terminal.text
    terminal.send(b"!")
    terminal.sees("!")
    terminal.send(b"\r")
    terminal.sees("5 tokens")
    terminal.send(b"\x11")
    terminal.ends(3)
    assert terminal.messages()[0] == kept[:-1] + "!'"


@pytest.mark.parametrize("key", [b"\n", b"\x1b\r", b"\x1b[13;2u"])
def test_new_line_keys(tmp_path: Path, key: bytes) -> None:
    terminal = ready(tmp_path)
    terminal.send(b"one")
    terminal.sees("one")
    terminal.send(key)
    terminal.read(0.3)
    terminal.send(b"two")
    terminal.sees("two")
    lines = terminal.text.splitlines()
    first = next(i for i, line in enumerate(lines) if "│ one" in line)
    assert "│ two" in lines[first + 1]
    terminal.send(b"\x11")
    terminal.ends(3)
    assert terminal.messages() == []


def test_no_colour(tmp_path: Path) -> None:
    terminal = ready(tmp_path, NO_COLOR="1")
    terminal.send(b"hi\r")
    terminal.sees("5 tokens")
    colours = {cell.fg for line in terminal.screen.buffer.values() for cell in line.values()} - {"default"}
    assert all(len({colour[i : i + 2] for i in (0, 2, 4)}) == 1 for colour in colours if len(colour) == 6), (
        colours
    )
    terminal.send(b"\x11")
    terminal.ends(3)


def test_stderr_to_a_file_still_paints_on_the_terminal(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, "n=5,text=word ", redirect=f"2> '{tmp_path}/errors'")
    terminal.sees("ready")
    terminal.send(b"\x11")
    terminal.ends(3)
    terminal.restored()
    assert (tmp_path / "errors").read_text() == ""
