"""The real engine in its process: answers, templates, changes in mid-answer, faults."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from localspec.errors import ContextFullError, TemplateError
from localspec.spec.events import Finished, Sampling
from localspec.worker.process import Worker
from localspec.worker.protocol import (
    DraftSpec,
    Generate,
    Load,
    MeasureCosts,
    MemoryUse,
    Message,
    Notice,
    Ready,
)
from tests import gguf_files

NO_SYSTEM = (
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    + gguf_files.TEMPLATE
)


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Worker]:
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path / "home"))
    with Worker(log_file=tmp_path / "engine.log") as made:
        yield made


def load(worker: Worker, target: Path, draft: DraftSpec | None = None, **options: Any) -> Ready:
    options = {"n_ctx": 512, "threads": 1, "n_draft": 4, **options}
    ready = list(worker.load(Load(str(target), draft or DraftSpec(), **options)))[-1]
    assert isinstance(ready, Ready)
    return ready


def ask(worker: Worker, *texts: str, **options: Any) -> list[Any]:
    roles = ("user", "assistant")
    messages = tuple(Message(roles[i % 2], text) for i, text in enumerate(texts))  # type: ignore[arg-type]
    options = {
        "messages": messages,
        "sampling": Sampling(temperature=0),
        "max_tokens": 40,
        "ignore_eos": True,
        **options,
    }
    return list(worker.generate(Generate(0, **options)))


def test_an_answer_with_and_without_a_draft_in_the_real_process(worker: Worker, tmp_path: Path) -> None:
    target = gguf_files.random_llama(tmp_path / "target.gguf")
    draft = gguf_files.perturbed(target, tmp_path / "draft.gguf", noise=0.05)
    texts = []
    for spec in (DraftSpec(), DraftSpec("lookup"), DraftSpec("model", str(draft))):
        for auto in (False, True):
            load(worker, target, spec, auto=auto)
            finished = ask(worker, "Hello there")[-1]
            assert isinstance(finished, Finished)
            assert len(finished.token_ids) == 40
            texts.append(finished.token_ids)
    assert len(set(texts)) == 1


def test_a_system_message_that_the_template_refuses_is_folded_and_said_once(
    worker: Worker, tmp_path: Path
) -> None:
    load(worker, gguf_files.random_llama(tmp_path / "t.gguf", chat_template=NO_SYSTEM))
    messages = (Message("system", "Be brief."), Message("user", "Hello"))
    first = ask(worker, messages=messages)
    (notice,) = [event for event in first if isinstance(event, Notice)]
    assert "system" in notice.sentences[0]
    assert not [event for event in ask(worker, messages=messages) if isinstance(event, Notice)]
    folded = ask(worker, "Be brief.\n\nHello")[-1]
    assert first[-1].token_ids == folded.token_ids


def test_a_refusal_is_an_error_and_the_next_answer_works(worker: Worker, tmp_path: Path) -> None:
    refusing = (
        "{% if 'bad' in messages[-1]['content'] %}{{ raise_exception('No.') }}{% endif %}"
        + gguf_files.TEMPLATE
    )
    load(worker, gguf_files.random_llama(tmp_path / "t.gguf", chat_template=refusing))
    with pytest.raises(TemplateError) as caught:
        ask(worker, "bad")
    assert "No." in caught.value.why
    assert isinstance(ask(worker, "good")[-1], Finished)


def test_a_conversation_too_long_for_the_context_is_an_error(worker: Worker, tmp_path: Path) -> None:
    load(worker, gguf_files.random_llama(tmp_path / "t.gguf"), n_ctx=64)
    with pytest.raises(ContextFullError):
        ask(worker, "word " * 100)
    assert isinstance(ask(worker, "hi")[-1], Finished)


def test_memory_is_reported_and_bos_is_there_exactly_once(worker: Worker, tmp_path: Path) -> None:
    answers = []
    for add_bos, template in (
        (True, "<s>" + gguf_files.TEMPLATE),
        (True, gguf_files.TEMPLATE),
        (False, "<s>" + gguf_files.TEMPLATE),
    ):
        ready = load(
            worker,
            gguf_files.random_llama(
                tmp_path / f"{len(answers)}.gguf", add_bos=add_bos, chat_template=template
            ),
        )
        assert ready.memory.label in ("RAM", "VRAM")
        answers.append(ask(worker, "Hello")[-1])
    assert len({answer.token_ids for answer in answers}) == 1
    assert len({answer.stats.prompt_tokens for answer in answers}) == 1
    bare = load(worker, gguf_files.random_llama(tmp_path / "no.gguf", add_bos=False))
    assert isinstance(bare, Ready)
    assert ask(worker, "Hello")[-1].stats.prompt_tokens == answers[0].stats.prompt_tokens - 1


def test_the_next_turn_reuses_the_answer_as_it_was_generated(worker: Worker, tmp_path: Path) -> None:
    """Byte tokens: the tokenizer would split the text of the answer otherwise than the model did."""
    load(worker, gguf_files.random_llama(tmp_path / "t.gguf", readable=True))
    first = ask(worker, "Hello")[-1]
    answer = Message("assistant", first.text, first.token_ids)
    messages = (Message("user", "Hello"), answer, Message("user", "And?"))
    second = ask(worker, messages=messages)[-1]
    assert second.stats.reused_tokens >= first.stats.prompt_tokens + len(first.token_ids) - 1


def test_memory_events_come_during_a_long_answer(worker: Worker, tmp_path: Path) -> None:
    load(worker, gguf_files.random_llama(tmp_path / "t.gguf"))
    events = ask(worker, "Hello", max_tokens=200)
    assert any(isinstance(event, MemoryUse) for event in events)


THINKER = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content.split('</think>')[-1] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|><think>{% endif %}"
)


@pytest.mark.parametrize("kind", ["none", "lookup", "mtp", "model"])
@pytest.mark.parametrize("auto", [False, True])
def test_a_chat_with_a_hybrid_that_thinks_reads_on_from_the_last_question(
    worker: Worker, tmp_path: Path, kind: Any, auto: bool
) -> None:
    """Its state cannot be cut back to where the thinking is left out; the prompt is not read again all the same."""
    target = gguf_files.random_qwen35(tmp_path / "t.gguf", n_nextn=1, chat_template=THINKER)
    path = str(gguf_files.random_qwen35(tmp_path / "d.gguf", seed=1)) if kind == "model" else ""
    load(worker, target, DraftSpec(kind, path), auto=auto, n_ctx=1024)
    messages: list[Message] = []
    before, texts = 0, []
    for turn in range(4):
        messages.append(Message("user", f"What is {turn} times the cat on the mat?"))
        finished = ask(worker, messages=tuple(messages))[-1]
        stats = finished.stats
        if turn:
            assert before - 25 < stats.reused_tokens < before
        before = stats.prompt_tokens
        if turn == 2:
            worker.costs(MeasureCosts((1, 2), seconds=0.05))
        again = ask(worker, messages=tuple(messages))[-1]
        assert again.token_ids == finished.token_ids
        assert before - 25 < again.stats.reused_tokens < before
        texts.append(finished.token_ids)
        assert finished.thinking  # all of it: random weights do not come to an end
        messages.append(Message("assistant", "It is on it.", (), finished.thinking))
    worker.clear()
    fresh = ask(worker, messages=tuple(messages[:-1]))[-1]
    assert (fresh.stats.reused_tokens, fresh.token_ids) == (0, texts[-1])
