"""Does the text stay the same? With a draft it must; with a lossy cache this tells how far it does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from localspec.errors import LocalspecError, UsageError
from localspec.measure.answers import TOLD_TIME, StoppedError, ask, load_pair
from localspec.measure.prompts import Prompt
from localspec.spec.events import Finished, Sampling
from localspec.worker.process import Worker
from localspec.worker.protocol import Configure, DraftSpec, Generate, Load, Peek, Peeked, Ready

REFERENCE_KV = "f16"


@dataclass(frozen=True, slots=True)
class Difference:
    """Where two answers to one question part."""

    question: int
    temperature: float
    position: int
    """Index of the first token that differs."""
    without: int | None
    """The token without the draft; None where that answer had ended."""
    with_draft: int | None
    peeked: Peeked | None = None
    """The choice made again alone and in a batch; None when one of the answers had ended there, or it failed."""

    @property
    def near_tie(self) -> bool | None:
        """Whether rounding between batch sizes explains it; None when that is not known.

        It does when the target itself chooses differently in the two batches, or when the two scores are nearer than
        twice what the batch changed the logits by.
        """
        if self.peeked is None:
            return None
        alone, batched = self.peeked.alone, self.peeked.batched
        if alone.token != batched.token:
            return True
        moved = max((abs(alone.logits[token] - batched.logits[token]) for token in alone.logits), default=0.0)
        return min(alone.margin, batched.margin) <= 2 * moved

    def to_json(self) -> dict[str, Any]:
        """For `--json`."""
        found: dict[str, Any] = {
            "question": self.question,
            "temperature": self.temperature,
            "position": self.position,
            "token_without": self.without,
            "token_with": self.with_draft,
            "near_tie": self.near_tie,
        }
        if self.peeked is not None:
            for name, choice in (("alone", self.peeked.alone), ("batched", self.peeked.batched)):
                logits = {str(token): value for token, value in choice.logits.items()}
                found[name] = {"token": choice.token, "margin": choice.margin, "logits": logits}
            found["batch"] = self.peeked.width
            found["texts"] = {str(token): text for token, text in self.peeked.texts.items()}
        return found


@dataclass(slots=True)
class Check:
    """The comparison with and without a draft."""

    ready: Ready
    answers: int = 0
    """Pairs that were compared."""
    tokens: int = 0
    """Tokens that were compared and equal."""
    drafted: int = 0
    accepted: int = 0
    differences: list[Difference] = field(default_factory=list)
    partial: bool = False

    @property
    def identical(self) -> bool:
        """Whether every answer was the same."""
        return not self.differences


@dataclass(slots=True)
class Agreement:
    """A lossy cache beside f16: greedy answers, up to the first difference of each."""

    kv: str
    questions: int = 0
    different: int = 0
    """Questions whose answers part."""
    agreed: int = 0
    """Positions with the same choice before the first difference."""
    total: int = 0
    """Positions of the f16 answers."""
    partial: bool = False

    @property
    def share(self) -> float | None:
        """Of the f16 answers' positions, those that came before any difference."""
        return self.agreed / self.total if self.total else None

    @property
    def tokens_per_difference(self) -> float | None:
        """About how many tokens pass between two differing choices; None where none was seen.

        Each answer is watched until its first difference, so the differences over the choices watched is the estimate.
        """
        return (self.agreed + self.different) / self.different if self.different else None

    def to_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "kv": self.kv,
            "reference": REFERENCE_KV,
            "questions": self.questions,
            "different": self.different,
            "agreed_positions": self.agreed,
            "positions": self.total,
            "share": self.share,
            "tokens_per_difference": self.tokens_per_difference,
            "partial": self.partial,
        }


@dataclass(frozen=True, slots=True)
class Progress:
    """Where it is."""

    stage: Literal["load", "draft", "cache"]
    fraction: float
    question: int = 0


class Verifier:
    """Asks fixed questions in one way and in another.

    Args:
        worker: Has nothing running; it keeps what was loaded last.
        questions: What is asked, each from empty caches.
        tokens: Longest answer.
        think: For templates that know it.
        progress: Told where it is.
        cancelled: Asked often. Whoever sets it also calls `worker.stop()`.
    """

    def __init__(
        self,
        worker: Worker,
        questions: Sequence[Prompt],
        tokens: int,
        *,
        think: bool | None = None,
        progress: Callable[[Progress], None] = lambda event: None,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> None:
        self._worker = worker
        self._questions = tuple(questions)
        self._tokens = tokens
        self._think = think
        self._progress = progress
        self._cancelled = cancelled

    def check_draft(self, load: Load, samplings: Sequence[Sampling]) -> Check:
        """Answer every question with each sampling, without and with the draft, and compare ids.

        Raises:
            UsageError: The pair does not draft.
            LocalspecError: The load or an answer failed, or nothing was drafted at all.
        """
        ready = self._load(load)
        if ready.draft.state != "on":
            raise UsageError(
                f"There is no draft to verify: {ready.draft.reason}.",
                hint="localspec verify --draft lookup",
            )
        check = Check(ready)
        steps = [(sampling, number) for sampling in samplings for number in range(len(self._questions))]
        reason = ""
        try:
            for step, (sampling, number) in enumerate(steps):
                self._progress(Progress("draft", step / len(steps), number + 1))
                command = self._command(number, sampling)
                plain = self._answer(command, draft_on=False)
                drafted = self._answer(command, draft_on=True)
                reason = drafted.draft.reason
                check.answers += 1
                check.drafted += drafted.stats.drafted
                check.accepted += drafted.stats.accepted
                check.tokens += common_prefix(plain.token_ids, drafted.token_ids)
                if plain.token_ids != drafted.token_ids:
                    found = _difference(number, sampling, plain, drafted)
                    check.differences.append(self._explain(found, command, plain, load.n_draft + 1))
        except StoppedError:
            check.partial = True
        if not check.drafted and not check.partial:
            raise LocalspecError(
                "Nothing was drafted, so nothing was verified.",
                why=f"{reason}." if reason else "",
                hint="localspec doctor",
            )
        return check

    def compare_cache(self, load: Load) -> Agreement:
        """Greedy answers with an f16 cache and with the one of `load`, both without a draft.

        Raises:
            LocalspecError: A load or an answer failed.
        """
        agreement = Agreement(load.kv_type)
        alone = replace(load, draft=DraftSpec("none"))
        try:
            references = list(self._greedy(replace(alone, kv_type=REFERENCE_KV), 0.0))
            for reference, other in zip(references, self._greedy(alone, 0.5), strict=True):
                agreement.questions += 1
                agreement.different += reference.token_ids != other.token_ids
                agreement.agreed += common_prefix(reference.token_ids, other.token_ids)
                agreement.total += len(reference.token_ids)
        except StoppedError:
            agreement.partial = True
        return agreement

    def _greedy(self, load: Load, share: float) -> Iterator[Finished]:
        self._load(load)
        for number in range(len(self._questions)):
            self._progress(Progress("cache", share + number / len(self._questions) / 2, number + 1))
            yield self._answer(self._command(number, Sampling(temperature=0.0)))

    def _load(self, load: Load) -> Ready:
        return load_pair(self._worker, load, lambda event: self._progress(Progress("load", event.fraction)))

    def _command(self, number: int, sampling: Sampling) -> Generate:
        messages = self._questions[number].messages
        return Generate(
            0,
            messages=messages,
            sampling=sampling,
            max_tokens=self._tokens,
            think=self._think,
            now=TOLD_TIME,
        )

    def _answer(self, command: Generate, draft_on: bool | None = None) -> Finished:
        if self._cancelled():
            raise StoppedError
        if draft_on is not None:
            self._worker.configure(Configure(draft_on=draft_on))
        return ask(self._worker, command, self._cancelled)[1]

    def _explain(self, found: Difference, command: Generate, plain: Finished, width: int) -> Difference:
        """Look at the choice again, where both answers made one."""
        if found.without is None or found.with_draft is None:
            return found
        candidates = (found.without, found.with_draft)
        try:
            peeked = self._worker.peek(Peek(command, plain.token_ids[: found.position], candidates, width))
        except LocalspecError:
            return found  # the difference counts whether it can be explained or not
        return replace(found, peeked=peeked)


def _difference(number: int, sampling: Sampling, plain: Finished, drafted: Finished) -> Difference:
    at = common_prefix(plain.token_ids, drafted.token_ids)
    return Difference(number, sampling.temperature, at, _at(plain.token_ids, at), _at(drafted.token_ids, at))


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the common prefix of two id lists."""
    return next((at for at, (one, other) in enumerate(zip(a, b)) if one != other), min(len(a), len(b)))  # noqa: B905


def _at(ids: Sequence[int], index: int) -> int | None:
    return ids[index] if index < len(ids) else None
