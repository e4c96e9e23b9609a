"""The engine on SmolLM2-135M: real text, real acceptance, the same ids whatever drafts."""

from __future__ import annotations

from pathlib import Path

import pytest

from localspec.spec.draft_model import ModelDrafter
from localspec.spec.engine import Engine, Request
from localspec.spec.events import Finished, Sampling
from tests.spec.conftest import Bench

pytestmark = pytest.mark.weights

QUESTIONS = (
    "Write a Python function that reverses a string.",
    "Now add a docstring.",
    "Thanks. Repeat the whole function.",
)


def talk(engine: Engine, sampling: Sampling) -> list[Finished]:
    ids: list[int] = []
    answers = []
    for question in QUESTIONS:
        ids += engine.vocab.tokenize(f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n")
        last = list(engine.generate(Request(list(ids), sampling, max_tokens=48)))[-1]
        assert isinstance(last, Finished)
        answers.append(last)
        ids += [*last.token_ids, *engine.vocab.tokenize("<|im_end|>\n")]
    return answers


@pytest.mark.parametrize(
    ("temperature", "kv_type"), [(0.0, "f16"), (0.7, "f16"), (0.7, "q8_0"), (1.0, "f16")]
)
def test_three_turns_with_any_draft_are_the_same_text(
    bench: Bench, demo_pair: tuple[Path, Path], temperature: float, kv_type: str
) -> None:
    target, draft = demo_pair
    sampling = Sampling(temperature=temperature, top_p=0.9, seed=7)
    options = {"kv_type": kv_type, "n_ctx": 1024, "threads": 2}
    plain = [answer.token_ids for answer in talk(bench.engine(target, **options), sampling)]
    assert sum(map(len, plain)) > 60
    for other, n_draft in ((draft, 1), (draft, 4), (draft, 16), (target, 7), ("lookup", 5)):
        answers = talk(bench.engine(target, other, n_draft, **options), sampling)
        assert [answer.token_ids for answer in answers] == plain, (other, n_draft)
        if other == draft and n_draft == 4:
            accepted = sum(answer.stats.accepted for answer in answers)
            assert accepted / sum(answer.stats.drafted for answer in answers) > 0.25
        # Each later turn finds the earlier ones in both caches.
        assert all(answer.stats.reused_tokens > 40 for answer in answers[1:])


def test_shared_noise_accepts_more_than_a_greedy_draft(bench: Bench, demo_pair: tuple[Path, Path]) -> None:
    """The draft that uses the target's noise agrees more often than one that proposes its likeliest token."""
    target, draft = demo_pair

    def accepted_length(greedy: bool) -> float:
        engine = bench.engine(target, draft, 3, n_ctx=1024, threads=2)
        assert isinstance(engine.drafter, ModelDrafter)
        if greedy:
            from localspec.spec.sampling import Sampler

            original = engine.drafter.draft
            likeliest = Sampler(Sampling(temperature=0))
            engine.drafter.draft = lambda ids, k, _sampler, go_on: original(ids, k, likeliest, go_on)  # type: ignore[method-assign]
        tokens = rounds = 0
        for seed in range(3):
            answers = talk(engine, Sampling(temperature=1.0, top_p=0.95, seed=seed))
            tokens += sum(answer.stats.accepted + answer.stats.rounds for answer in answers)
            rounds += sum(answer.stats.rounds for answer in answers)
            engine.clear()
        return tokens / rounds

    assert accepted_length(greedy=False) > 1.05 * accepted_length(greedy=True)


def test_threads_and_cache_type_of_the_draft_change_no_text(
    demo_pair: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from localspec.llama.log import NativeLog
    from localspec.worker.loading import Loader
    from localspec.worker.protocol import DraftSpec, Load

    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path))
    target, path = map(str, demo_pair)
    sampling = Sampling(temperature=0.7, top_p=0.9, seed=7)
    log = NativeLog()
    log.install()

    def answers(spec: DraftSpec) -> list[Finished]:
        command = Load(target, spec, n_draft=4, n_ctx=1024, threads=2)
        loaded = Loader(command, log, lambda event: None, lambda: False).load()
        try:
            assert (loaded.ready.draft.state == "on") is (spec.kind == "model")
            return talk(loaded.engine, sampling)
        finally:
            loaded.close()

    plain = [answer.token_ids for answer in answers(DraftSpec())]
    for wishes in ({"threads": 1, "device": "cpu"}, {"kv_type": "q4_0"}):
        found = answers(DraftSpec("model", path, **wishes))  # type: ignore[arg-type]
        assert [answer.token_ids for answer in found] == plain, wishes
        assert sum(answer.stats.accepted for answer in found) > 0
