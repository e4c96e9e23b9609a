"""What all parts of the measurement share: the models, the programs, and the runs that are made of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median

from localspec.errors import LocalspecError
from localspec.measure.prompts import QUESTIONS
from localspec.spec.events import Sampling
from scripts.peers.answers import GREEDY, PROMPTS, Answer, Asked, as_ids
from scripts.peers.models import Files
from scripts.peers.native import Rival, Server
from scripts.peers.ours import Ours
from scripts.peers.protocol import AUTO, AUTO_FRESH, PLAIN, Protocol
from scripts.peers.runner import NATIVE, OURS, STOCK, Entry, Runner
from scripts.peers.stock import Stock

_QUESTIONS = 2


@dataclass(slots=True)
class Bench:
    """The measurement.

    Attributes:
        files: The models.
        server: llama.cpp's server, None where there is none.
        protocol: How much is measured.
        runner: Runs it and keeps the samples.
    """

    files: Files
    server: Path | None
    protocol: Protocol
    runner: Runner
    _asked: dict[str, Asked] = field(default_factory=dict)

    def asked(self, kind: str) -> Asked:
        """A prompt with its ids."""
        if not self._asked:
            prompts = {**PROMPTS, **{f"question {n}": one for n, one in enumerate(QUESTIONS[:_QUESTIONS])}}
            found = as_ids(self.files.small, list(prompts.values()))
            self._asked = dict(zip(prompts, found, strict=True))
        return self._asked[kind]

    def questions(self) -> list[Asked]:
        """Prompts that are not measured, for a profile."""
        return [self.asked(f"question {n}") for n in range(_QUESTIONS)]

    def speeds(self, part: str, drafter: str, kind: str, tool: str) -> dict[str, float]:
        """The median speeds of a program so far, by configuration."""
        found: dict[str, list[float]] = {}
        for sample in self.runner.samples:
            cell = sample.cell
            if (cell.part, cell.drafter, cell.kind, sample.tool) == (part, drafter, kind, tool):
                found.setdefault(sample.config, []).append(sample.answer.tok_s)
        return {config: median(values) for config, values in found.items()}

    def ours(self, target: Path, draft: Path | str, *, auto: bool = False, chained: bool = True) -> Ours:
        """Our engine with a pair."""
        protocol = self.protocol
        return Ours(target, draft, auto=auto, n_ctx=protocol.n_ctx, threads=protocol.threads, chained=chained)

    @contextmanager
    def native(self, target: Path, rival: Rival | None) -> Iterator[Server | None]:
        """llama.cpp with a pair (None: without a draft), None where it is not there or does not start."""
        if self.server is None:
            yield None
            return
        try:
            server = Server(
                self.server, target, rival, n_ctx=self.protocol.n_ctx, threads=self.protocol.threads
            )
        except LocalspecError as error:
            self.runner.note(f"llama-server, {rival.name if rival else PLAIN}: {error.message} {error.why}")
            yield None
            return
        with server:
            yield server

    def of_native(
        self,
        server: Server | None,
        config: str,
        asked: Asked,
        tokens: int,
        sampling: Sampling = GREEDY,
    ) -> Entry | None:
        """A run of a server, None where there is none."""
        if server is None:
            return None
        return Entry(NATIVE, config, partial(server.ask, asked, sampling, tokens), tokens)


def of_ours(
    ours: Ours,
    config: str,
    asked: Asked,
    tokens: int,
    sampling: Sampling = GREEDY,
    *,
    length: int | None = None,
) -> Entry:
    """A run of localspec; its name says how. By price it begins with the profile that was kept, or with none."""

    def run() -> Answer:
        if config == AUTO_FRESH:
            ours.forget()
        elif config == AUTO:
            ours.renew()
        return ours.ask(asked, sampling, tokens, length=length, plain=config == PLAIN)

    return Entry(OURS, config, run, tokens)


def of_stock(child: Stock | None, config: str, asked: Asked, tokens: int) -> Entry | None:
    """A run of a stock `Llama`, None where there is none."""
    return None if child is None else Entry(STOCK, config, partial(child.ask, asked, tokens), tokens)
