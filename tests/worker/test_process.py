"""The parent's end of the engine's process, against a scripted child."""

from __future__ import annotations

import gc
import itertools
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import psutil
import pytest

from localspec.errors import ContextFullError, DecodeError, LoadError, WorkerDiedError
from localspec.spec.events import DraftStatus, Finished, PromptProgress, Round
from localspec.worker import log
from localspec.worker.process import Worker
from localspec.worker.protocol import (
    Configure,
    DraftChanged,
    DraftSpec,
    Generate,
    Load,
    LoadProgress,
    MemoryUse,
    Message,
    Ready,
)

HOST = "tests.fake_host:serve"
SOON = 6.0
"""Two seconds are promised, one minute it would take without; this holds on a busy machine too."""
ROOT = Path(__file__).parents[2]
HELLO = Generate(0, messages=(Message("user", "Hello there"),))
posix = pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")


@pytest.fixture
def worker(tmp_path):
    with Worker(HOST, tmp_path / "engine.log") as made:
        yield made


def load(worker, script="", **fields):
    events = list(worker.load(Load(f"fake:{script}", **fields)))
    assert isinstance(events[-1], Ready)
    return events


def follow(seen, stream):
    """Keep what comes before an exception."""
    for event in stream:
        seen.append(event)


def texts(events):
    return "".join(p.text for e in events if isinstance(e, Round) for p in e.pieces)


def test_load_and_answer(worker):
    events = load(worker, "n=7,text=a b c", draft=DraftSpec("model", "/m/draft.gguf"), n_draft=3)
    assert {e.stage for e in events if isinstance(e, LoadProgress)} == {"target", "draft"}
    assert worker.alive
    assert worker.ready is events[-1]
    assert worker.ready.draft == DraftStatus("on", "", "draft.gguf", 3)
    answer = list(worker.generate(HELLO))
    assert isinstance(answer[0], PromptProgress)
    assert any(isinstance(e, MemoryUse) for e in answer)
    assert isinstance(answer[-1], Finished)
    assert answer[-1].reason == "stop"
    assert answer[-1].text == texts(answer) == "a b ca b ca "
    assert answer[-1].stats.accepted > 0


def test_every_answer_has_its_own_stream(worker):
    load(worker, "echo=last")
    for word in ("one", "two", "three"):
        events = list(worker.generate(Generate(0, messages=(Message("user", word),))))
        assert events[-1].text == word


# ------------------------------------------------------------------ the death of the child


@posix
@pytest.mark.parametrize("kind", ["abort", "segv", "kill"])
@pytest.mark.parametrize("phase", ["load", "prefill", "decode:3"])
def test_death_is_told_and_the_next_message_starts_a_new_child(worker, tmp_path, phase, kind):
    once = tmp_path / "died"
    script = f"n=9,crash={phase},kind={kind},once={once},text=one two "
    seen = []
    with pytest.raises(WorkerDiedError) as caught:
        follow(seen, itertools.chain(worker.load(Load(f"fake:{script}")), worker.generate(HELLO)))
    name = {"abort": "SIGABRT", "segv": "SIGSEGV", "kill": "SIGKILL"}[kind]
    doing = {"load": "loading", "prefill": "reading the prompt", "decode:3": "answering"}[phase]
    assert caught.value.message == f"The engine stopped while {doing} ({name})."
    assert str(worker.log_file) in caught.value.why
    assert ("GGML_ASSERT(n_tokens > 0) failed" in caught.value.why) == (kind == "abort")
    # All that the child had said before arrived before.
    assert sum(isinstance(e, LoadProgress) for e in seen) == (3 if phase == "load" else 5)
    assert sum(isinstance(e, Round) for e in seen) == (2 if phase == "decode:3" else 0)
    assert not worker.alive
    assert worker.ready is None
    again = list(worker.generate(HELLO))
    assert [type(e) for e in again if isinstance(e, (Ready, Finished))] == [Ready, Finished]
    assert again[-1].text == "one two one two one two one two one "


@posix
@pytest.mark.parametrize(("kind", "cause"), [("exit", "exit code 3"), ("raise", "exit code 1")])
def test_a_child_that_leaves_by_itself(worker, kind, cause):
    load(worker, f"crash=decode,kind={kind}")
    with pytest.raises(WorkerDiedError, match=cause) as caught:
        list(worker.generate(HELLO))
    assert ("a fault of the child's Python code" in caught.value.why) == (kind == "raise")


@posix
def test_killed_from_outside_while_idle_and_while_answering(worker):
    load(worker, "tok_s=50,n=1000")
    os.kill(worker.pid, signal.SIGKILL)
    until = time.monotonic() + 2
    while worker.alive and time.monotonic() < until:
        time.sleep(0.01)
    assert not worker.alive
    stream = worker.generate(HELLO)
    for event in stream:  # a new child answers at once
        if isinstance(event, Round):
            break
    os.kill(worker.pid, signal.SIGKILL)
    killed = time.monotonic()
    with pytest.raises(WorkerDiedError, match="SIGKILL"):
        list(stream)
    assert time.monotonic() - killed < SOON


def leave_one_behind(conn, stop, log_file):
    """A child's main: what it started outlives it, with copies of all that it had open."""
    pid = os.fork()
    if pid == 0:
        time.sleep(60)
        os._exit(0)
    Path(log_file).with_suffix(".pid").write_text(str(pid))
    os.kill(os.getpid(), signal.SIGKILL)


@posix
def test_a_death_is_told_though_something_else_holds_the_pipe(tmp_path):
    with Worker("tests.worker.test_process:leave_one_behind", tmp_path / "engine.log") as worker:
        with pytest.raises(WorkerDiedError, match="SIGKILL"):
            load(worker)
        left = int((tmp_path / "engine.pid").read_text())
        assert not gone(left)
        os.kill(left, signal.SIGKILL)


def test_a_stopped_evaluation_is_not_quoted_as_the_cause(tmp_path):
    file = tmp_path / "engine.log"
    file.write_text("CUDA error: no device\nllama_decode: failed to decode, ret = 2\n")
    assert log.last_error(file) == "It said: CUDA error: no device."
    file.write_text("llama_decode: failed to decode, ret = -3\n")
    assert "ret = -3" in log.last_error(file)


def test_only_what_the_last_child_said_is_quoted(worker, tmp_path):
    worker.log_file.write_text("CUDA error: an old one\n")
    load(worker, "crash=decode,kind=exit")
    with pytest.raises(WorkerDiedError) as caught:
        list(worker.generate(HELLO))
    assert "an old one" not in caught.value.why


def test_out_of_memory_is_guessed_for_a_kill_during_load(worker):
    with pytest.raises(WorkerDiedError) as caught:
        load(worker, "crash=load,kind=kill")
    assert "memory runs out" in caught.value.why


def test_a_reload_restores_drafting_as_it_was(worker, tmp_path):
    script = f"crash=decode:2,once={tmp_path / 'died'},n=20"
    load(worker, script, draft=DraftSpec("model", "d.gguf"), n_draft=4)
    worker.configure(Configure(draft_on=False, n_draft=7))
    with pytest.raises(WorkerDiedError):
        list(worker.generate(HELLO))
    end = list(worker.generate(HELLO))[-1]
    assert end.draft == DraftStatus("off", "switched off", "d.gguf")
    worker.configure(Configure(draft_on=True))
    end = list(worker.generate(HELLO))[-1]
    assert end.draft == DraftStatus("on", "", "d.gguf", 7)


def test_a_switch_during_a_reload_counts(worker, tmp_path):
    load(worker, f"crash=decode,once={tmp_path / 'died'}", draft=DraftSpec("lookup"))
    worker.configure(Configure(draft_on=True))
    with pytest.raises(WorkerDiedError):
        list(worker.generate(HELLO))
    for event in worker.generate(HELLO):
        if isinstance(event, LoadProgress):
            worker.configure(Configure(draft_on=False))
    assert event.draft == DraftStatus("off", "switched off", "lookup")


# ------------------------------------------------------------------ failures that the child survives


def test_failures_are_raised_and_the_child_lives(worker):
    load(worker, "fail=decode,n=30")
    pid = worker.pid
    seen = []
    with pytest.raises(DecodeError, match="llama_decode failed"):
        follow(seen, worker.generate(HELLO))
    assert sum(isinstance(e, Round) for e in seen) == 2
    load_error = worker.load(Load("fake:fail=load"))
    with pytest.raises(LoadError) as caught:
        list(load_error)
    assert caught.value.hint == "localspec doctor"
    load(worker, "fail=context,fits=0")
    with pytest.raises(ContextFullError):
        list(worker.generate(HELLO))
    assert worker.alive
    assert worker.pid != pid  # each load has a fresh process


def test_generate_without_a_load_is_refused(worker):
    with pytest.raises(WorkerDiedError, match="No model"):
        list(worker.generate(HELLO))


def test_a_failed_load_is_tried_again_by_the_next_message(worker, tmp_path):
    with pytest.raises(WorkerDiedError):
        load(worker, f"crash=load,kind=exit,once={tmp_path / 'x'},n=3")
    assert isinstance(list(worker.generate(HELLO))[-1], Finished)


# ------------------------------------------------------------------ stopping


@pytest.mark.parametrize("script", ["tok_s=20,n=10000", "prefill_s=60", "load_s=60"])
def test_stop_reaches_every_phase(worker, script):
    stopped_at = []

    def stop():
        stopped_at.append(time.monotonic())
        worker.stop()

    threading.Timer(0.8, stop).start()
    if script.startswith("load_s"):
        with pytest.raises(LoadError, match="stopped"):
            list(worker.load(Load(f"fake:{script}")))
    else:
        load(worker, script)
        end = list(worker.generate(HELLO))[-1]
        assert end.reason == "cancelled"
    assert time.monotonic() - stopped_at[0] < SOON


def test_a_stop_counts_from_the_call_not_from_the_first_event(worker):
    load(worker, "tok_s=20,n=10000")
    stream = worker.generate(HELLO)
    worker.stop()
    assert list(stream)[-1].reason == "cancelled"


def test_a_stop_while_idle_does_not_cancel_what_comes_next(worker):
    load(worker, "n=4")
    worker.stop()
    assert list(worker.generate(HELLO))[-1].reason == "stop"


def test_an_abandoned_stream_is_cancelled_and_leaves_nothing_behind(worker):
    load(worker, "tok_s=100,n=100000,echo=last")
    long = Generate(0, messages=(Message("user", "old " * 2000),))
    short = Generate(0, messages=(Message("user", "new"),))
    for _ in range(3):
        stream = worker.generate(long)
        for event in stream:
            if isinstance(event, Round):
                break
        stream.close()
        events = list(worker.generate(short))
        assert texts(events) == "new"
        assert events[-1].reason == "stop"


def test_a_dropped_stream_is_cancelled_too(worker):
    load(worker, "tok_s=100,n=100000")
    next(worker.generate(HELLO))
    gc.collect()
    began = time.monotonic()
    worker.clear()  # comes after the cancelled answer
    assert time.monotonic() - began < SOON


# ------------------------------------------------------------------ while it runs


def test_configure_acts_in_the_running_answer(worker):
    load(worker, "tok_s=200,n=120", draft=DraftSpec("lookup"), n_draft=4)
    changed = None
    lengths = set()
    for event in worker.generate(HELLO):
        if isinstance(event, Round):
            lengths.add(event.draft.n_draft if event.draft.state == "on" else 0)
            if len(lengths) == 1 and changed is None:
                worker.configure(Configure(n_draft=2))
                changed = False
        if isinstance(event, DraftChanged):
            changed = event.draft
    assert changed == DraftStatus("on", "", "lookup", 2)
    assert lengths == {4, 2}


def test_configure_while_idle_is_answered_outside_of_streams(worker):
    load(worker, draft=DraftSpec("lookup"))
    worker.configure(Configure(draft_on=False))
    until = time.monotonic() + 5
    found = []
    while not found and time.monotonic() < until:
        found = [e for e in worker.idle_events() if isinstance(e, DraftChanged)]
        time.sleep(0.01)
    assert found[0].draft == DraftStatus("off", "switched off", "lookup")
    assert not [e for e in worker.idle_events() if isinstance(e, DraftChanged)]


def test_clear_empties_the_caches(worker):
    load(worker, "n=3")
    list(worker.generate(HELLO))
    assert list(worker.generate(HELLO))[-1].stats.reused_tokens > 0
    worker.clear()
    assert list(worker.generate(HELLO))[-1].stats.reused_tokens == 0


@posix
def test_a_long_conversation_for_a_busy_child_blocks_nobody(worker):
    """The pipe holds some 200 kB; a child in native code does not read it."""
    load(worker, "native=prefill:1.2,n=3")
    first = worker.generate(HELLO)
    next(first)
    big = worker.generate(Generate(0, messages=(Message("user", "x" * 4_000_000),)))
    feed = threading.Thread(target=lambda: list(big))
    feed.start()
    time.sleep(0.1)
    began = time.monotonic()
    worker.configure(Configure(draft_on=False))
    worker.stop()
    assert time.monotonic() - began < 1
    list(first)
    feed.join(10)
    assert not feed.is_alive()


def test_a_process_that_cannot_be_started_is_a_sentence(worker, monkeypatch):
    from localspec.worker import child

    def refuse(self):
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(child.spawn.Process, "start", refuse)
    with pytest.raises(WorkerDiedError, match="could not be started") as caught:
        load(worker)
    assert "Resource temporarily unavailable" in caught.value.why


# ------------------------------------------------------------------ the end


@posix
@pytest.mark.parametrize(
    "script",
    [
        "load_s=60",
        "native=load:60",
        "prefill_s=60",
        "native=prefill:60",
        "tok_s=1",
        "native=decode:60",
        "stubborn=1,tok_s=1",
    ],
)
def test_close_ends_every_phase_in_two_seconds(tmp_path, script):
    worker = Worker(HOST, tmp_path / "log")
    errors = []

    def use():
        try:
            list(worker.load(Load(f"fake:{script}")))
            list(worker.generate(HELLO))
        except WorkerDiedError as error:
            errors.append(error)

    user = threading.Thread(target=use)
    user.start()
    until = time.monotonic() + 5
    while (worker.pid if "load" in script else worker.ready) is None and time.monotonic() < until:
        time.sleep(0.01)
    pid = worker.pid
    time.sleep(0.4)  # into the phase
    began = time.monotonic()
    worker.close()
    assert time.monotonic() - began < SOON
    assert not psutil.pid_exists(pid)
    worker.close()
    user.join(2)
    assert not user.is_alive()
    assert [error.message for error in errors] == ["The engine was closed."]
    with pytest.raises(WorkerDiedError, match="closed"):
        list(worker.load(Load("fake:")))


def test_a_stream_ends_as_closed_even_where_the_child_was_fast_enough_to_say_stopped(tmp_path):
    worker = Worker(HOST, tmp_path / "log")
    load(worker, "prefill_s=2")
    stream = worker.generate(HELLO)
    next(stream)
    worker.stop()
    time.sleep(0.3)  # by now it has said so
    worker.close()
    with pytest.raises(WorkerDiedError, match="closed"):
        list(stream)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts descriptors in /proc")
def test_restarts_leak_no_descriptor_no_process_no_thread(tmp_path):
    with Worker(HOST, tmp_path / "log") as worker:
        load(worker, "n=2")
        counted = []
        for _ in range(5):
            load(worker, "n=2")
            list(worker.generate(HELLO))
            counted.append(
                (
                    len(list(Path("/proc/self/fd").iterdir())),
                    len(psutil.Process().children()),
                    threading.active_count(),
                )
            )
        assert len(set(counted)) == 1
    states = [child.status() for child in psutil.Process().children()]
    assert psutil.STATUS_ZOMBIE not in states


@posix
def test_the_child_ends_with_its_parent(tmp_path):
    program = textwrap.dedent(f"""
        import time
        from localspec.worker.process import Worker
        from localspec.worker.protocol import Load
        if __name__ == "__main__":
            worker = Worker({HOST!r})
            list(worker.load(Load("fake:")))
            print(worker.pid, flush=True)
            time.sleep(60)
    """)
    file = tmp_path / "program.py"
    file.write_text(program)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "LOCALSPEC_HOME": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, file], stdout=subprocess.PIPE, text=True, env=environment
    ) as parent:
        pid = int(parent.stdout.readline())
        assert psutil.pid_exists(pid)
        parent.kill()
    until = time.monotonic() + 3
    while not gone(pid) and time.monotonic() < until:
        time.sleep(0.02)
    assert gone(pid)


def gone(pid):
    """Ended; an orphan stays a zombie where no init process collects it."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@posix
def test_a_ctrl_c_of_the_terminal_does_not_reach_the_child(worker):
    load(worker, "n=3")
    for _ in range(3):
        os.kill(worker.pid, signal.SIGINT)
    time.sleep(0.1)
    assert list(worker.generate(HELLO))[-1].reason == "stop"


@posix
def test_native_output_ends_in_the_log(worker, capfd):
    load(worker, "noise=1,n=3")
    list(worker.generate(HELLO))
    worker.close()
    out, err = capfd.readouterr()
    assert (out, err) == ("", "")
    log = worker.log_file.read_text()
    assert "native noise on 1" in log
    assert "native noise on 2" in log


@posix
def test_it_starts_inside_an_application_that_took_stderr_away(tmp_path):
    """As Textual does: `sys.stderr.fileno()` is -1 when the first process of all is started."""
    program = textwrap.dedent(f"""
        import io, sys
        class Taken(io.StringIO):
            def fileno(self):
                return -1
        from localspec.worker.process import Worker
        from localspec.worker.protocol import Load
        if __name__ == "__main__":
            real, sys.stdout, sys.stderr = sys.stdout, Taken(), Taken()
            with Worker({HOST!r}) as worker:
                events = list(worker.load(Load("fake:")))
            print(type(events[-1]).__name__, file=real)
    """)
    file = tmp_path / "program.py"
    file.write_text(program)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "LOCALSPEC_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, file], capture_output=True, text=True, env=environment, check=False
    )
    assert (done.stdout, done.stderr) == ("Ready\n", "")


def test_a_log_folder_that_cannot_be_written_is_no_obstacle(tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    monkeypatch.setenv("LOCALSPEC_HOME", str(blocked))
    with Worker(HOST) as worker:
        load(worker, "n=1")
        assert worker.log_file.parent != blocked
        worker.log_file.unlink(missing_ok=True)


def test_old_logs_are_removed(tmp_path, monkeypatch):
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path))
    from localspec import paths
    from localspec.worker.log import KEEP, new_log_file

    paths.log_dir().mkdir(parents=True)
    for i in range(KEEP + 5):
        (paths.log_dir() / f"engine-20200101-{i:06}-1.log").touch()
    newest = new_log_file()
    kept = sorted(paths.log_dir().iterdir())
    assert len(kept) == KEEP
    assert kept[-1] == newest
