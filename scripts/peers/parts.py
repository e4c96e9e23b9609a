"""What is run: the parts of the measurement, each against the rivals that it is about."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median

from localspec.errors import LocalspecError
from localspec.measure.prompts import QUESTIONS
from localspec.spec.events import Sampling
from scripts.peers.answers import GREEDY, LONG_EDIT, PROMPTS, Answer, Asked, as_ids
from scripts.peers.models import Files
from scripts.peers.native import (
    DEFAULT_LENGTH,
    DEFAULT_P_MIN,
    Server,
    draft_flags,
    ngram_flags,
)
from scripts.peers.ours import Ours
from scripts.peers.protocol import AUTO, AUTO_FRESH, PLAIN, SAMPLED, Protocol, fixed, simple
from scripts.peers.runner import BARE, NATIVE, OURS, STOCK, Cell, Entry, Runner
from scripts.peers.stock import ENGINE_SPIN, PROMPT_LOOKUP, Stock

_COST_SECONDS = 2.0
_EDIT_LENGTHS = (7, 15)
_QUESTIONS = 2
_ENOUGH_LENGTHS = 3


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

    def ours(self, target: Path, draft: Path | str, *, auto: bool = False) -> Ours:
        """Our engine with a pair."""
        return Ours(target, draft, auto=auto, n_ctx=self.protocol.n_ctx, threads=self.protocol.threads)

    @contextmanager
    def native(self, target: Path, flags: Sequence[str]) -> Iterator[Server | None]:
        """llama.cpp with a pair, None where it is not there or does not start."""
        if self.server is None:
            yield None
            return
        try:
            server = Server(
                self.server, target, flags, n_ctx=self.protocol.n_ctx, threads=self.protocol.threads
            )
        except LocalspecError as error:
            self.runner.note(f"llama-server {' '.join(flags)}: {error.message} {error.why}")
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
    """A run of localspec; its name says how."""

    def run() -> Answer:
        if config == AUTO_FRESH:
            ours.forget()
        return ours.ask(asked, sampling, tokens, length=length, plain=config == PLAIN)

    return Entry(OURS, config, run, tokens)


def of_stock(child: Stock | None, config: str, asked: Asked, tokens: int) -> Entry | None:
    """A run of a stock `Llama`, None where there is none."""
    return None if child is None else Entry(STOCK, config, partial(child.ask, asked, tokens), tokens)


# ------------------------------------------------------------------------------------------------------ the parts


def same_length(bench: Bench) -> None:
    """The same draft at the same fixed length: our loop against llama.cpp's; then its gate, and its n-gram kinds."""
    protocol, files = bench.protocol, bench.files
    for drafter in protocol.drafters:
        draft = files.drafts[drafter]
        with bench.ours(files.padded, draft) as ours:
            for length in protocol.lengths:
                with ExitStack() as stack:
                    open_gate, gated = (
                        stack.enter_context(bench.native(files.padded, draft_flags(draft, length, p_min)))
                        if p_min is not None
                        else None
                        for p_min in (0.0, protocol.gate or None)
                    )
                    for kind in protocol.native_kinds:
                        asked = bench.asked(kind)
                        tokens = protocol.tokens
                        bench.runner.group(
                            Cell("same length", "padded", drafter, kind),
                            [
                                of_ours(ours, fixed(length), asked, tokens, length=length),
                                bench.of_native(open_gate, simple(length), asked, tokens),
                                bench.of_native(gated, simple(length, protocol.gate), asked, tokens),
                            ],
                            protocol.native_repeats,
                        )
                ours.prices(
                    bench.runner.prices("padded", drafter), len(asked.ids) + tokens // 2, _COST_SECONDS
                )
    _ngrams(bench)


def _ngrams(bench: Bench) -> None:
    protocol, files = bench.protocol, bench.files
    with bench.ours(files.padded, "lookup", auto=True) as ours:
        for ngram in protocol.ngrams:
            with bench.native(files.padded, ngram_flags(ngram)) as server:
                if server is None:
                    continue
                for kind in protocol.native_kinds:
                    asked = bench.asked(kind)
                    bench.runner.group(
                        Cell("same length", "padded", "lookup", kind),
                        [
                            of_ours(ours, AUTO, asked, protocol.tokens),
                            bench.of_native(server, ngram, asked, protocol.tokens),
                        ],
                        protocol.native_repeats,
                    )


def best_length(bench: Bench, drafter: str, kind: str) -> tuple[int, ...]:
    """The fixed length that was fastest at the same prompt, or those that may be where that was not measured."""
    found: dict[int, list[float]] = {}
    for sample in bench.runner.samples:
        cell = sample.cell
        if (cell.part, cell.drafter, cell.kind, sample.tool) == ("same length", drafter, kind, OURS):
            found.setdefault(int(sample.config.removeprefix("k=")), []).append(sample.answer.tok_s)
    rivals = bench.protocol.rivals
    if len(found) < min(_ENOUGH_LENGTHS, len(rivals)):
        return rivals
    return (max(found, key=lambda length: median(found[length])),)


def by_price(bench: Bench) -> None:
    """The default (`auto`, chained with lookup) against the best fixed length and against llama.cpp's default."""
    protocol, files = bench.protocol, bench.files
    for drafter in protocol.drafters:
        draft = files.drafts[drafter]
        flags = draft_flags(draft, DEFAULT_LENGTH, DEFAULT_P_MIN)
        with (
            bench.ours(files.padded, draft, auto=True) as auto,
            bench.ours(files.padded, draft, auto=True) as fresh,
            bench.ours(files.padded, draft) as by_length,
            bench.native(files.padded, flags) as server,
        ):
            for question in bench.questions():  # the profile of somebody who has asked a few other things
                auto.ask(question, GREEDY, protocol.tokens)
            for kind in protocol.kinds:
                asked, tokens = bench.asked(kind), protocol.tokens
                lengths = {DEFAULT_LENGTH, *best_length(bench, drafter, kind)}
                bench.runner.group(
                    Cell("price", "padded", drafter, kind),
                    [
                        of_ours(auto, AUTO, asked, tokens),
                        bench.of_native(server, simple(DEFAULT_LENGTH), asked, tokens),
                        *(of_ours(by_length, fixed(n), asked, tokens, length=n) for n in sorted(lengths)),
                        of_ours(fresh, AUTO_FRESH, asked, tokens) if kind in protocol.fresh_kinds else None,
                    ],
                    protocol.repeats,
                )
                auto.prices(
                    bench.runner.prices("padded", drafter), len(asked.ids) + tokens // 2, _COST_SECONDS
                )


def sampled(bench: Bench) -> None:
    """Tokens a round when tokens are drawn. The padding changes nothing about them, so it is left away."""
    protocol, files = bench.protocol, bench.files
    for drafter in protocol.drafters:
        draft = files.drafts[drafter]
        flags = draft_flags(draft, DEFAULT_LENGTH, DEFAULT_P_MIN)
        with bench.ours(files.small, draft) as ours, bench.native(files.small, flags) as server:
            for temperature, top_p in SAMPLED:
                for kind in protocol.kinds:
                    for seed in range(1, protocol.seeds + 1):
                        sampling = Sampling(temperature=temperature, top_k=40, top_p=top_p, seed=seed)
                        asked, tokens = bench.asked(kind), protocol.sample_tokens
                        bench.runner.group(
                            Cell("sampled", "small", drafter, kind, temperature),
                            [
                                of_ours(
                                    ours,
                                    fixed(DEFAULT_LENGTH),
                                    asked,
                                    tokens,
                                    sampling,
                                    length=DEFAULT_LENGTH,
                                ),
                                bench.of_native(server, simple(DEFAULT_LENGTH), asked, tokens, sampling),
                            ],
                        )


def edited(bench: Bench) -> None:
    """An edit of a given text by lookup."""
    protocol, target = bench.protocol, bench.files.edit
    if target is None:
        bench.runner.note("The edit part: no model for it (--edit-target FILE, or --fetch).")
        return
    (asked, other), tokens = as_ids(target, [LONG_EDIT, PROMPTS["edit"]]), protocol.edit_tokens
    with ExitStack() as stack:
        auto = stack.enter_context(bench.ours(target, "lookup", auto=True))
        fresh = stack.enter_context(bench.ours(target, "lookup", auto=True))
        by_length = stack.enter_context(bench.ours(target, "lookup"))
        servers = {
            name: stack.enter_context(bench.native(target, ngram_flags(name))) for name in protocol.ngrams
        }
        auto.ask(other, GREEDY, tokens)  # the profile of somebody who has edited something else
        llama = _opened(bench, stack, target, PROMPT_LOOKUP)
        bench.runner.group(
            Cell("edit", "edit", "lookup", "edit"),
            [
                of_ours(auto, AUTO, asked, tokens),
                of_ours(auto, PLAIN, asked, tokens),
                of_ours(fresh, AUTO_FRESH, asked, tokens),
                *(of_ours(by_length, fixed(n), asked, tokens, length=n) for n in _EDIT_LENGTHS),
                *(bench.of_native(server, name, asked, tokens) for name, server in servers.items()),
                of_stock(llama, PROMPT_LOOKUP, asked, tokens),
            ],
            protocol.repeats,
        )
        auto.prices(bench.runner.prices("edit", "lookup"), len(asked.ids) + tokens // 2, _COST_SECONDS)


def long_answers(bench: Bench) -> None:
    """Long answers: `auto` must not lose against plain decoding, with a draft that is always wrong neither."""
    protocol, files = bench.protocol, bench.files
    asked, tokens = bench.asked("prose"), protocol.long_tokens
    for drafter in ("wrong", *protocol.drafters):
        with ExitStack() as stack:
            draft = files.drafts[drafter]
            auto = stack.enter_context(bench.ours(files.padded, draft, auto=True))
            fresh = stack.enter_context(bench.ours(files.padded, draft, auto=True))
            auto.ask(bench.asked("code"), GREEDY, protocol.first // 2)
            bench.runner.group(
                Cell("long", "padded", drafter, "prose"),
                [
                    of_ours(auto, AUTO, asked, tokens),
                    of_ours(auto, PLAIN, asked, tokens),
                    of_ours(fresh, AUTO_FRESH, asked, tokens) if drafter == "wrong" else None,
                ],
                protocol.long_repeats,
            )


def deep(bench: Bench) -> None:
    """The end of a long answer against a bare `llama_decode` loop there; the small model shows our own code most."""
    protocol, files = bench.protocol, bench.files
    asked, tokens = bench.asked("prose"), protocol.long_tokens
    tail = min(200, tokens // 3)

    def bare_loop(spin: str = "") -> Stock:
        return Stock(files.small, "", n_ctx=protocol.n_ctx, threads=protocol.threads, bare=True, spin=spin)

    with bench.ours(files.small, "") as ours, bare_loop() as bare, bare_loop(ENGINE_SPIN) as patient:
        known = ours.ask(asked, GREEDY, tokens).ids[:-tail]
        bench.runner.group(
            Cell("deep", "small", "", "prose"),
            [
                of_ours(ours, PLAIN, asked, tokens),
                Entry(BARE, PLAIN, partial(bare.step, asked, known, tail), tokens),
                Entry(BARE, "threads as in our engine", partial(patient.step, asked, known, tail), tokens),
            ],
            protocol.repeats,
        )


def stock(bench: Bench) -> None:
    """llama-cpp-python as it comes: plain, with its prompt lookup, and with our drafter in its own loop."""
    protocol, files = bench.protocol, bench.files
    drafter = protocol.drafters[0]
    draft, tokens = files.drafts[drafter], protocol.tokens
    with ExitStack() as stack:
        ours = stack.enter_context(bench.ours(files.padded, draft))
        server = stack.enter_context(bench.native(files.padded, ()))
        plain = _opened(bench, stack, files.padded, "")
        drafted = _opened(bench, stack, files.padded, draft)
        lookup = _opened(bench, stack, files.padded, PROMPT_LOOKUP)
        for kind in protocol.native_kinds:
            asked = bench.asked(kind)
            bench.runner.group(
                Cell("stock", "padded", drafter, kind),
                [
                    of_ours(ours, PLAIN, asked, tokens),
                    of_ours(ours, fixed(3), asked, tokens, length=3),
                    bench.of_native(server, PLAIN, asked, tokens),
                    *(
                        of_stock(child, name, asked, tokens)
                        for name, child in (
                            (PLAIN, plain),
                            ("our draft k=3", drafted),
                            (PROMPT_LOOKUP, lookup),
                        )
                    ),
                ],
                protocol.native_repeats,
            )


def _opened(bench: Bench, stack: ExitStack, target: Path, draft: Path | str) -> Stock | None:
    """A stock `Llama`, None where it does not come up."""
    protocol = bench.protocol
    try:
        return stack.enter_context(Stock(target, draft, n_ctx=protocol.n_ctx, threads=protocol.threads))
    except LocalspecError as error:
        bench.runner.note(f"Llama(draft_model={draft!s}): {error.message}")
        return None


PARTS = {
    "native": same_length,
    "auto": by_price,
    "edit": edited,
    "sampled": sampled,
    "long": long_answers,
    "deep": deep,
    "stock": stock,
}
