"""The same parent with the real engine in the child, on a tiny random model."""

from __future__ import annotations

import multiprocessing
import os
import signal
from types import SimpleNamespace

import pytest

from localspec.errors import ModelFileError, WorkerDiedError
from localspec.spec.events import Finished, Round, Sampling
from localspec.worker.host import serve
from localspec.worker.loading import Loader
from localspec.worker.process import Worker
from localspec.worker.protocol import Configure, DraftSpec, Failed, Generate, Load, Message, Ready, Shutdown
from tests.gguf_files import perturbed, random_llama

QUESTION = Generate(0, messages=(Message("user", "hello"),), sampling=Sampling(seed=3), max_tokens=24)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    target = random_llama(folder / "target.gguf")
    return target, perturbed(target, folder / "draft.gguf", noise=0.05)


@pytest.fixture
def worker(tmp_path):
    with Worker("localspec.worker.host:serve", tmp_path / "engine.log") as made:
        yield made


def end(worker, question=QUESTION):
    return list(worker.generate(question))[-1]


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
def test_an_answer_survives_the_death_of_its_process(worker, pair):
    target, draft = pair
    ready = list(worker.load(Load(str(target), DraftSpec("model", str(draft)), n_ctx=512, threads=1)))[-1]
    assert isinstance(ready, Ready)
    assert ready.draft.state == "on"
    first = end(worker)
    assert first.stats.accepted > 0
    kept = []
    with pytest.raises(WorkerDiedError, match=r"while answering \(SIGSEGV\)"):
        follow(kept, worker)
    assert kept == list(first.token_ids[: len(kept)])
    again = end(worker)  # in a new process, with the same models
    assert again.token_ids == first.token_ids
    worker.configure(Configure(draft_on=False))
    plain = end(worker)
    assert plain.draft.reason == "switched off"
    assert plain.token_ids == first.token_ids


def follow(kept, worker):
    for event in worker.generate(QUESTION):
        if isinstance(event, Round):
            kept += [piece.token_id for piece in event.pieces]
            if worker.pid is not None:
                os.kill(worker.pid, signal.SIGSEGV)


def test_stop_and_what_comes_after(worker, pair):
    list(worker.load(Load(str(pair[0]), n_ctx=512, threads=1)))
    stream = worker.generate(Generate(0, messages=QUESTION.messages, ignore_eos=True))
    for event in stream:
        if isinstance(event, Round):
            worker.stop()
            break
    rest = list(stream)
    assert isinstance(rest[-1], Finished)
    assert rest[-1].reason in ("cancelled", "context")  # a fast machine may have been at the end
    worker.clear()
    assert end(worker).stats.reused_tokens == 0


def test_a_file_that_cannot_be_loaded_is_a_sentence_and_the_process_lives(worker, tmp_path):
    with pytest.raises(ModelFileError):
        list(worker.load(Load(str(tmp_path / "missing.gguf"))))
    assert worker.alive
    assert worker.ready is None


def test_a_fault_of_the_disk_does_not_end_the_process(monkeypatch):
    """Only a pipe whose other end is gone does."""

    def gone(_loader):
        raise FileNotFoundError(2, "No such file or directory", "target.gguf")

    monkeypatch.setattr(Loader, "load", gone)
    ours, theirs = multiprocessing.Pipe()
    ours.send((1, Load("target.gguf")))
    ours.send((2, Shutdown()))
    serve(theirs, SimpleNamespace(value=-1), "")
    ((request, event),) = ours.recv()
    assert request == 1
    assert isinstance(event, Failed)
    assert "target.gguf" in event.error.why
