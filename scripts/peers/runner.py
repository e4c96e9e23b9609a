"""Runs the answers of a measurement in alternating order and keeps what they gave."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from localspec.errors import LocalspecError
from scripts.peers.answers import Answer, Prices
from scripts.peers.protocol import PROMPT_TOKENS

SCREEN, SAME_LENGTH, PRICE = "screen", "same length", "price"
OURS, NATIVE, STOCK, BARE = "localspec", "llama.cpp", "llama-cpp-python", "llama_decode loop"


class OutOfTimeError(Exception):
    """The time that was given is over."""


@dataclass(frozen=True, slots=True)
class Cell:
    """What a group of runs is about."""

    part: str
    model: str
    drafter: str
    kind: str
    temperature: float = 0.0


@dataclass(frozen=True, slots=True)
class Entry:
    """One program in one configuration."""

    tool: str
    config: str
    run: Callable[[], Answer]
    tokens: int
    """About how many it makes, for the time that is left."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One answer that was measured."""

    cell: Cell
    tool: str
    config: str
    group: int
    """Runs of one group and repeat were made next to each other."""
    repeat: int
    answer: Answer


@dataclass(slots=True)
class Runner:
    """Groups of runs, one after the other.

    Attributes:
        work: Of all answers, in tokens, their prompts counted as some; only for the time that is left.
        deadline: `time.monotonic()` at which no new answer is begun.
        samples: What was measured.
        left_out: Sentences about what was not, and why.
        verify: By model, the times of its batches.
        steps: By model and drafter, the times of a draft step.
    """

    work: float = 0.0
    deadline: float | None = None
    samples: list[Sample] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    verify: dict[str, dict[int, list[float]]] = field(default_factory=dict)
    steps: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    _groups: int = 0
    _done: float = 0.0
    began: float = field(default_factory=time.monotonic)

    def prices(self, model: str, drafter: str) -> Prices:
        """Where the costs of a pair are noted; its target is shared by all drafters, and lookup has no steps."""
        return Prices(self.verify.setdefault(model, {}), self.steps.setdefault((model, drafter), []))

    def group(self, cell: Cell, entries: Sequence[Entry | None], repeats: int = 1) -> None:
        """Run these next to each other, in alternating order. A run that fails is left out and named.

        Raises:
            OutOfTimeError: The time is over.
        """
        present = [entry for entry in entries if entry is not None]
        for repeat in range(repeats):
            turned = (repeat + self._groups) % 2
            for entry in present[::-1] if turned else present:
                if self.deadline is not None and time.monotonic() > self.deadline:
                    raise OutOfTimeError
                try:
                    answer = entry.run()
                except LocalspecError as error:
                    what = f"{entry.tool}, {entry.config} ({cell.part}, {cell.drafter}, {cell.kind})"
                    self.note(f"{what}: {error.message} {error.why}".rstrip())
                    continue
                finally:
                    self._done += entry.tokens + PROMPT_TOKENS
                self.samples.append(Sample(cell, entry.tool, entry.config, self._groups, repeat, answer))
                self._tell(cell, entry, answer)
        self._groups += 1

    def note(self, sentence: str) -> None:
        """Something is left out."""
        if sentence not in self.left_out:
            self.left_out.append(sentence)
            print(f"left out: {sentence}", file=sys.stderr, flush=True)

    def _tell(self, cell: Cell, entry: Entry, answer: Answer) -> None:
        took = time.monotonic() - self.began
        left = took * (self.work - self._done) / self._done if self._done < self.work else 0.0
        if self.deadline is not None:
            left = min(left, max(self.deadline - time.monotonic(), 0.0))
        where = " ".join(filter(None, (cell.part, cell.drafter, cell.kind)))
        print(
            f"[{took / 60:5.1f} min, about {left / 60:.0f} left] {where}: {entry.tool} {entry.config}"
            f" {answer.tok_s:.2f} tok/s",
            file=sys.stderr,
            flush=True,
        )
