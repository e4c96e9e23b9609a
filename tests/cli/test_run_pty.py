"""`localspec run -p` on a terminal: what a person sees, and Ctrl+C."""

from __future__ import annotations

import signal
import sys
import time

import pytest

pexpect = pytest.importorskip("pexpect", reason="needs pseudo-terminals")
if not hasattr(pexpect, "spawn"):
    pytest.skip("needs pseudo-terminals", allow_module_level=True)

from tests.cli.program import environment  # noqa: E402
from tests.gguf_files import script_model  # noqa: E402


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return str(script_model(tmp_path_factory.mktemp("models") / "target.gguf", {}))


def start(home, *arguments, script="", term="xterm-256color"):
    return pexpect.spawn(
        sys.executable,
        ["-m", "localspec", *arguments],
        env=environment(home, script, TERM=term),
        encoding="utf-8",
        timeout=20,
        dimensions=(24, 100),
    )


def test_ctrl_c_during_an_answer_keeps_what_there_is(tmp_path, target):
    program = start(
        tmp_path, "run", target, "--draft", "none", "-p", "hi", script="tok_s=20,n=1000,text=tick "
    )
    program.expect_exact("tick tick ")
    program.sendintr()
    program.expect_exact("(stopped)")
    program.expect("tok/s")
    program.expect(pexpect.EOF)
    program.close()
    assert program.exitstatus == 130
    assert "Traceback" not in program.before


@pytest.mark.parametrize("when", ["start", "load", "prefill"])
def test_ctrl_c_before_the_answer_leaves_without_a_traceback(tmp_path, target, when):
    script = {"start": "load_s=30", "load": "load_s=4", "prefill": "prefill_s=4"}[when]
    program = start(tmp_path, "run", target, "--draft", "none", "-p", "hi", script=script)
    if when == "load":
        program.expect_exact("Loading the target: ")
    elif when == "prefill":
        program.expect_exact("Reading the prompt: ")
    else:
        program.expect(pexpect.TIMEOUT, timeout=0.5)  # somewhere in the start of parent or child
    program.sendintr()
    program.expect(pexpect.EOF)
    program.close()
    assert program.exitstatus == 130 or (when == "start" and program.signalstatus == 2)
    assert "Traceback" not in program.before


def test_a_second_ctrl_c_leaves_an_engine_that_does_not_stop(tmp_path, target):
    script = "stubborn=1,tok_s=10,n=1000,text=tick "
    program = start(tmp_path, "run", target, "--draft", "none", "-p", "hi", script=script)
    program.expect_exact("tick tick ")
    program.sendintr()
    program.expect_exact("tick ")
    program.sendintr()
    program.expect(pexpect.EOF, timeout=5)
    program.close()
    assert program.exitstatus == 130
    assert "Traceback" not in program.before


def test_control_characters_of_the_answer_are_made_visible(tmp_path, target):
    text = "a\x1b]0;title\x07b\x9bc [/red]"
    program = start(tmp_path, "run", target, "--draft", "none", "-p", text, script="echo=last")
    program.expect_exact("a␛]0;title␇b\\x9bc [/red]")
    program.expect(pexpect.EOF)


def test_thinking_is_shown_faintly(tmp_path, target):
    program = start(tmp_path, "run", target, "--draft", "none", "-p", "hi", script="n=2,think=3,text=yes no")
    program.expect_exact("\x1b[2mLet ")
    program.expect_exact("yes no")
    program.expect(pexpect.EOF)


def test_a_dumb_terminal_gets_no_codes(tmp_path, target):
    prompt = ("run", target, "--draft", "none", "-p", "hi")
    program = start(tmp_path, *prompt, script="n=2,think=3,load_s=1,text=yes no", term="dumb")
    program.expect_exact("Let me think")
    program.expect_exact("yes no")
    program.expect(pexpect.EOF)
    program = start(tmp_path, *prompt, script="n=2,load_s=1,text=yes no", term="dumb")
    program.expect(pexpect.EOF)
    assert "yes no" in program.before
    assert "\x1b" not in program.before


def test_a_dumb_terminal_gets_no_chat(tmp_path, target):
    program = start(tmp_path, "run", target, term="dumb")
    program.expect(pexpect.EOF)
    program.close()
    assert "This terminal cannot show the chat." in program.before
    assert "\x1b" not in program.before
    assert program.exitstatus == 2


def test_a_chat_that_was_killed_is_gone_on_with(tmp_path, target):
    arguments, script = ("run", target, "--draft", "none"), "n=3,text=alpha beta "
    program = start(tmp_path, *arguments, script=script)
    program.expect("ready")
    program.send("what is kept?")
    time.sleep(0.3)
    program.send("\r")
    program.expect_exact("3 tokens")
    program.kill(signal.SIGKILL)
    program.close()
    program = start(tmp_path, *arguments, "--continue", script=script)
    program.expect_exact("Going on with “what is kept?”")
    program.sendcontrol("q")
    program.expect(pexpect.EOF)


def test_there_is_nothing_to_go_on_with(tmp_path, target):
    program = start(tmp_path, "run", target, "--draft", "none", "--continue")
    program.expect_exact("There is no conversation to go on with.")
    program.expect(pexpect.EOF)
    program = start(tmp_path, "run", target, "--continue", "-p", "hi")
    program.expect_exact("--continue belongs to the chat.")
    program.expect(pexpect.EOF)


@pytest.mark.parametrize("reply", ["n", "\x04"])
def test_a_download_is_asked_for_and_can_be_declined(tmp_path, reply):
    program = start(tmp_path, "run", "--draft", "4b", "--n-draft", "8", "-p", "hi")
    program.expect_exact("qwen3.8-27b")
    program.expect_exact("19.0 GB")
    program.expect_exact("qwen3.5-4b")
    program.expect_exact("localspec run demo")
    program.expect_exact("Download 21.7 GB? [Y/n] ")
    if reply == "n":
        program.sendline(reply)
    else:
        program.send(reply)
    program.expect_exact("localspec pull qwen3.8-27b --draft qwen3.5-4b")
    program.expect(pexpect.EOF)
    program.close()
    assert program.exitstatus == 1
