"""The command line as a whole: what it imports, how errors leave it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from localspec import __version__, paths
from localspec.cli import app
from localspec.errors import LocalspecError, PairingError
from tests.cli.program import environment, localspec
from tests.gguf_files import random_llama

HEAVY = ("textual", "llama_cpp", "pydantic", "numpy", "huggingface_hub", "jinja2", "psutil", "rich")


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path))


@pytest.mark.parametrize("flag", ["--help", "-h", "--version", ""])
def test_help_and_version_import_nothing_heavy(tmp_path, flag):
    program = (
        "import sys\n"
        "from localspec.cli.app import run\n"
        "try:\n"
        f"    run({[flag] if flag else []!r})\n"
        "except SystemExit as leaving:\n"
        "    assert leaving.code == 0, leaving.code\n"
        f"print(sorted({{m.partition('.')[0] for m in sys.modules}} & set({HEAVY!r})), file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment(tmp_path), check=True
    )
    assert done.stderr == "[]\n"
    assert ("Usage: localspec" in done.stdout) == (flag != "--version")
    if flag == "--version":
        assert done.stdout == f"localspec {__version__}\n"


def test_help_lists_every_command_in_order(tmp_path):
    done = localspec(tmp_path, "--help", COLUMNS="80")
    lines = done.stdout.partition("Commands:\n")[2].partition("\n\n")[0].splitlines()
    assert [line.split()[0] for line in lines if line.startswith("  ") and line[2] != " "] == list(
        app.COMMANDS
    )
    assert all(len(line.split()) > 1 for line in lines)
    assert not any(line.endswith("...") for line in lines)  # no summary is cut at 80 columns
    assert "Exit codes: 0 done; 1 " in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said", "hint"),
    [
        (["frob"], "No such command 'frob'.", "localspec --help"),
        (["qwen3-8b"], "No such command 'qwen3-8b'.", "localspec run qwen3-8b"),
        (["my dir/m.gguf"], "No such command 'my dir/m.gguf'.", "localspec run 'my dir/m.gguf'"),
        (["run", "--bogus"], "No such option: --bogus.", "localspec run --help"),
        (["run", "--n-draft", "many"], "--n-draft many is not allowed.", "localspec run --help"),
        (["run", "--temp"], "requires an argument.", "localspec run --help"),
        (["run", "--kv", "q3_k", "-p", "x"], "--kv q3_k is not allowed.", "localspec run --help"),
        (["bench", "--kv", "q3_k"], "--kv q3_k is not allowed.", "localspec bench --help"),
        (["verify", "--threads", "-1"], "--threads -1 is not allowed.", "localspec verify --help"),
        (["tune", "--kv", "f16,q3_k"], "--kv q3_k is not allowed.", "localspec tune --help"),
    ],
)
def test_usage_errors_are_three_sentences_and_exit_code_2(
    tmp_path, monkeypatch, capsys, arguments, said, hint
):
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path))
    assert run(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert err.endswith(f"  Try: {hint}\n")
    alone = len(arguments) == 1
    assert run(["--json", *arguments] if alone else [arguments[0], "--json", *arguments[1:]]) == 2
    out, err = capsys.readouterr()
    if not alone:  # there --json itself is the first thing that is not known
        error = json.loads(out)["error"]
        assert error["kind"] == "UsageError"
        assert said in error["message"]
        assert error["hint"] == hint


def run(arguments):
    with pytest.raises(SystemExit) as leaving:
        app.run(arguments)
    return leaving.value.code


def command_that(behave):
    """The program with one command, whose body is ours."""

    def command():
        """Do it."""
        return behave()

    return command


def run_with(monkeypatch, behave, *arguments):
    import types

    module = types.ModuleType("localspec.cli.only")
    module.command = command_that(behave)
    monkeypatch.setitem(sys.modules, "localspec.cli.only", module)
    monkeypatch.setattr(app, "COMMANDS", ("only", "run"))
    return run(["only", *arguments])


def raise_(error):
    raise error


def test_an_error_of_ours_is_three_sentences(monkeypatch, capsys):
    error = PairingError("They differ.", why="Token 5 is [/red] \x1b[31m.", hint="localspec check a b")
    assert run_with(monkeypatch, lambda: raise_(error)) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err == (
        "Target and draft do not match: They differ.\n  Token 5 is [/red] \x1b[31m.\n  Try: localspec check a b\n"
    )


@pytest.mark.parametrize(("returned", "code"), [(None, 0), (0, 0), (3, 3), (True, 1)])
def test_what_a_command_returns_is_the_exit_code(monkeypatch, returned, code):
    assert run_with(monkeypatch, lambda: returned) == code


def test_ctrl_c_is_130_without_a_word(monkeypatch, capsys):
    assert run_with(monkeypatch, lambda: raise_(KeyboardInterrupt())) == 130
    assert capsys.readouterr().err.strip() == ""


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_ctrl_c_that_a_library_turned_into_an_error(monkeypatch, capsys, flags):
    """Pydantic does, while its models are being built."""

    def behave():
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise ValueError("no validator") from None

    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(app, "build", behave)
    assert run(["check", *flags]) == 130
    assert signal.getsignal(signal.SIGINT) is before
    out, err = capsys.readouterr()
    assert "unexpected" not in out + err
    if flags:
        assert json.loads(out)["error"]["message"] == "Stopped before there was a result."


def test_an_unexpected_error_is_one_sentence_and_a_log(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path))
    monkeypatch.delenv("LOCALSPEC_DEBUG", raising=False)
    assert run_with(monkeypatch, lambda: raise_(ZeroDivisionError("by\nnought"))) == 1
    err = capsys.readouterr().err
    assert err.startswith("Error: Something unexpected happened (ZeroDivisionError: by nought).\n")
    assert "Traceback" not in err
    log = tmp_path / "state" / "logs" / "error.log"
    assert str(log) in err
    assert "Traceback" in log.read_text()
    monkeypatch.setenv("LOCALSPEC_DEBUG", "1")
    run_with(monkeypatch, lambda: raise_(ZeroDivisionError()))
    assert "Traceback" in capsys.readouterr().err


def test_json_errors_go_to_stdout(monkeypatch, capsys):
    monkeypatch.setattr(app, "build", lambda: raise_(LocalspecError("No.", why="So.", hint="x")))
    with pytest.raises(SystemExit):
        app.run(["check", "--json"])
    out, err = capsys.readouterr()
    assert json.loads(out) == {
        "error": {"kind": "LocalspecError", "message": "No.", "why": "So.", "hint": "x"}
    }
    assert err == ""


@pytest.mark.skipif(os.name != "posix", reason="a pipe of POSIX")
def test_a_reader_that_leaves_early_is_no_error(tmp_path):
    home = environment(tmp_path)
    command = f"{sys.executable} -m localspec run --help | head -n 1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, env=home, check=False)
    assert done.stdout.startswith("Usage: localspec run")
    assert done.stderr == ""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_output_that_cannot_be_written_is_said(tmp_path, flags):
    command = [sys.executable, "-m", "localspec", "models", *flags]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, env=environment(tmp_path), check=False
        )
    assert done.returncode == 1
    assert done.stderr == (
        "Error: The output could not be written.\n  No space left on device.\n  Try: df -h .\n"
    )


@pytest.mark.skipif(os.name != "posix", reason="a shell of POSIX")
@pytest.mark.parametrize(("closed", "shown"), [(">&-", "stderr"), ("2>&-", "stdout")])
def test_a_closed_stream_is_no_error(tmp_path, closed, shown):
    command = f"{sys.executable} -m localspec models {closed}"
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, env=environment(tmp_path), check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert bool(done.stdout) == (shown == "stdout")


@pytest.mark.skipif(os.name != "posix", reason="a shell of POSIX")
def test_the_engine_starts_where_every_stream_is_closed(tmp_path):
    """The files opened next would get the numbers of the closed streams, and the engine's pipe would be one of them."""
    target = random_llama(tmp_path / "t.gguf")
    command = f"{sys.executable} -m localspec run {target} --draft none -p hi <&- >&- 2>&-"
    done = subprocess.run(["bash", "-c", command], env=environment(tmp_path), check=False, timeout=60)
    assert done.returncode == 0


@pytest.mark.parametrize("command", ["models", "doctor", "run"])
def test_a_home_of_nobody_is_three_sentences(tmp_path, command):
    done = localspec(tmp_path, command, LOCALSPEC_HOME="~nobody-at-all/x")
    assert done.returncode == 2
    assert "LOCALSPEC_HOME is ~nobody-at-all/x, and there is no such user." in done.stderr
    assert "Traceback" not in done.stderr


def test_a_home_may_be_relative(monkeypatch):
    monkeypatch.setenv("LOCALSPEC_HOME", "some/where")
    assert paths.log_dir() == Path.cwd() / "some" / "where" / "state" / "logs"


def test_the_locale_does_not_matter(tmp_path):
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}
    done = localspec(tmp_path, "pull", "一二三", **locale)
    assert done.returncode == 1
    assert done.stderr.startswith("Unknown model: There is no model called ")
    assert localspec(tmp_path, "run", "--help", **locale).returncode == 0


def entry_points():
    script = Path(sysconfig.get_path("scripts")) / "localspec"
    return [[sys.executable, "-m", "localspec"], *([[str(script)]] if shutil.which(script) else [])]


@pytest.mark.parametrize("program", entry_points(), ids=lambda program: Path(program[-1]).name)
def test_every_entry_point_starts_the_engine_once(tmp_path, program):
    """Spawned children import the main module again; the command line must not run in them."""
    from tests.gguf_files import script_model

    target = script_model(tmp_path / "target.gguf", {})
    done = subprocess.run(
        [*program, "run", str(target), "-p", "hi", "--draft", "none"],
        capture_output=True,
        text=True,
        env=environment(tmp_path, "n=3,text=one two three"),
        stdin=subprocess.DEVNULL,
        timeout=60,
        check=False,
    )
    assert done.stdout == "one two three\n"
    assert done.stderr.count("draft: off") == 2  # before and after, of one process
    assert done.returncode == 0
