"""One measured answer, whoever gave it, and what is asked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import NamedTuple

from localspec.measure import figures
from localspec.measure.prompts import BUILT_IN, Prompt
from localspec.spec.events import Sampling

GREEDY = Sampling(temperature=0.0, top_k=40, top_p=0.95, seed=1)

_EXTRACTION = """\
Read the note. List each task as JSON with the keys "person", "what" and "due". Give the JSON only.

Tomasz restored the pool size at 03:51. Amara will add a check to the pipeline by 24 May. Luis asked for an alarm on \
refused connections; Tomasz will set it up by 17 May. Hanne has asked two suppliers for offers: Fjordnett replies by \
22 May, Elektro Vest has replied. Ingrid prepares the decision for 28 May. Luis expects the archive to be copied by \
23 May; Amara plans a restore test for 29 May."""

_EDIT = """\
Rename the variable `totals` to `sums` and print the whole code again. Change nothing else.

```python
def by_month(rows):
    totals = {}
    for row in rows:
        key = row["date"].strftime("%Y-%m")
        if key not in totals:
            totals[key] = 0.0
        totals[key] += row["amount"]
    return totals


def by_customer(rows):
    totals = {}
    for row in rows:
        key = row["customer"]
        totals[key] = totals.get(key, 0.0) + row["amount"]
    return totals
```"""

PROMPTS: dict[str, Prompt] = {
    "code": BUILT_IN[0],
    "prose": BUILT_IN[1],
    "extraction": Prompt("extraction", _EXTRACTION),
    "edit": Prompt("edit", _EDIT),
}
"""Short ones: a padded target on a CPU reads a long prompt for longer than it answers."""
LONG_EDIT = BUILT_IN[3]
"""Its answer is longer than what is measured of it, so nothing behind the end of the answer counts."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A prompt as all programs get it."""

    prompt: Prompt
    ids: tuple[int, ...]


class Mark(NamedTuple):
    """How far an answer was at the end of a round; all counted from its beginning."""

    tokens: int
    seconds: float
    drafted: int = 0
    free: int = 0


@dataclass(frozen=True, slots=True)
class Answer:
    """What one program made of one prompt. Times in seconds, from the first token on."""

    tokens: int
    """Of the answer."""
    seconds: float
    """From the first token to the last."""
    drafted: int = 0
    accepted: int = 0
    lengths: Mapping[int, int] = field(default_factory=dict)
    """Rounds by the number of tokens drafted, where they are known."""
    free: int = 0
    """Of the drafted, those that no model drafted."""
    marks: Sequence[Mark] = ()
    """The end of each round, where they are known."""
    ids: tuple[int, ...] = ()
    text: str = ""
    """Where a program does not tell its ids."""

    def agrees(self, other: Answer) -> bool | None:
        """Whether both are the same as far as both go, None where that cannot be told."""
        if self.ids and other.ids:
            shared = min(len(self.ids), len(other.ids))
            return self.ids[:shared] == other.ids[:shared]
        one, two = (answer.text.strip().rstrip("\ufffd") for answer in (self, other))
        return one.startswith(two) or two.startswith(one) if one and two else None

    @property
    def tok_s(self) -> float:
        """Tokens after the first over their time."""
        return (self.tokens - 1) / self.seconds if self.tokens > 1 and self.seconds > 0 else 0.0

    @property
    def rounds(self) -> int:
        """Target steps after the first token: each gives the accepted tokens and one of its own."""
        return max(self.tokens - 1 - self.accepted, 0)

    @property
    def tokens_per_round(self) -> float | None:
        """Tokens that one target step gives on average."""
        return (self.tokens - 1) / self.rounds if self.rounds else None

    @property
    def acceptance(self) -> float | None:
        """Accepted over drafted."""
        return self.accepted / self.drafted if self.drafted else None

    def part(self, start: int, end: int) -> float:
        """Speed between two numbers of tokens of the answer, in tok/s; 0 where single rounds are not known."""
        inside = [mark for mark in self.marks if start <= mark.tokens <= end]
        if len(inside) < 2 or inside[-1].seconds <= inside[0].seconds:
            return 0.0
        return (inside[-1].tokens - inside[0].tokens) / (inside[-1].seconds - inside[0].seconds)

    def up_to(self, tokens: int) -> Answer:
        """Its rounds that ended with at most so many tokens; as it is where single rounds are not known."""
        marks = [mark for mark in self.marks if mark.tokens <= tokens]
        if not marks or tokens >= self.tokens:
            return self
        steps = [(one, two) for one, two in pairwise(marks) if two.tokens > one.tokens]
        first, last = marks[0], marks[-1]
        return Answer(
            tokens=last.tokens,
            seconds=last.seconds - first.seconds,
            drafted=last.drafted - first.drafted,
            accepted=last.tokens - first.tokens - len(steps),
            lengths=Counter(two.drafted - one.drafted for one, two in steps),
            free=last.free - first.free,
            marks=marks,
            ids=self.ids[: last.tokens],
        )


def shared(one: Answer, two: Answer) -> tuple[Answer, Answer]:
    """Two answers as far as they hold the same text: an easier text is drafted faster, whoever writes it."""
    both = enumerate(zip(one.ids, two.ids, strict=False))
    same = next((at for at, (a, b) in both if a != b), max(one.tokens, two.tokens))
    return one.up_to(same), two.up_to(same)


@dataclass(slots=True)
class Prices:
    """What the parts of a round cost on one pair, from all times that they were timed."""

    verify: dict[int, list[float]] = field(default_factory=dict)
    steps: list[float] = field(default_factory=list)

    def add(self, verify: Mapping[int, float], step: float | None) -> None:
        """Take note of one measurement."""
        for size, seconds in verify.items():
            self.verify.setdefault(size, []).append(seconds)
        if step is not None:
            self.steps.append(step)

    def bound(self, answer: Answer) -> float | None:
        """The speed that these costs allow for an answer's rounds, in tok/s; None where that cannot be told.

        The time of the drafts and verify passes that were made, nothing else: two answers of one pair compare by it
        whatever the machine did meanwhile. Where the lengths of single rounds are not known, all are taken to have
        drafted the mean.
        """
        if not self.verify or not answer.rounds:
            return None
        curve = {size: median(values) for size, values in self.verify.items()}
        step = median(self.steps) if self.steps else 0.0
        lengths: dict[float, int] = {float(drafted): count for drafted, count in answer.lengths.items()}
        lengths = lengths or {answer.drafted / answer.rounds: answer.rounds}
        cost = sum(count * _at(curve, 1 + n) for n, count in lengths.items())
        cost += step * (answer.drafted - answer.free)
        rounds = sum(lengths.values())
        tokens = answer.accepted + rounds
        return tokens / cost if cost > 0 else None


def _at(curve: Mapping[int, float], size: float) -> float:
    """The cost of a batch; between two sizes on the line between them."""
    below = int(size)
    low = figures.interpolate(curve, below)
    return low + (size - below) * (figures.interpolate(curve, below + 1) - low) if size > below else low


def as_ids(path: Path, prompts: Sequence[Prompt]) -> list[Asked]:
    """The prompts as ids, by the template and vocabulary of a model file.

    Raises:
        LocalspecError: The file cannot be loaded.
    """
    from localspec.llama.log import NativeLog
    from localspec.llama.model import Model
    from localspec.llama.template import ChatTemplate
    from localspec.models.gguf import read_header
    from localspec.worker.prompt import to_request
    from localspec.worker.protocol import Generate

    NativeLog().install()
    header, model = read_header(path), Model(path)
    try:
        vocab = model.vocab
        template, _ = ChatTemplate.from_model(
            header.chat_template,
            bos=vocab.text(vocab.bos),
            eos=vocab.text(vocab.eos),
            architecture=header.architecture,
            has_token=vocab.has_token,
        )
        return [
            Asked(prompt, tuple(to_request(Generate(0, messages=prompt.messages), template, vocab)[0].prompt))
            for prompt in prompts
        ]
    finally:
        model.close()
