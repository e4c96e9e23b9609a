"""What is run: the parts of the measurement, each against the rivals that it is about."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from functools import partial
from pathlib import Path

from localspec.errors import LocalspecError
from localspec.spec.events import Sampling
from scripts.peers.answers import GREEDY, LONG_EDIT, PROMPTS, as_ids
from scripts.peers.bench import Bench, of_ours, of_stock
from scripts.peers.native import DEFAULT_LENGTH, ENGINE_SPIN, Rival, by_model, by_ngram, mixed, simple
from scripts.peers.ours import Ours
from scripts.peers.protocol import AUTO, AUTO_FRESH, PLAIN, SAMPLED, Long, Protocol, fixed, tail
from scripts.peers.runner import BARE, NATIVE, OURS, PRICE, SAME_LENGTH, SCREEN, Cell, Entry
from scripts.peers.stock import PROMPT_LOOKUP, Stock

_COST_SECONDS = 2.0
_EDIT_LENGTHS = (7, 15)
_ENOUGH_LENGTHS = 3


# ------------------------------------------------------------------------------------------------------ the parts


def same_length(bench: Bench) -> None:
    """The same draft at the same fixed length, our loop against llama.cpp's; and llama.cpp's other ways to draft.

    With a screen, each configuration gives a short answer first, and the fastest ones of each kind go on.
    """
    protocol, files = bench.protocol, bench.files
    for drafter in protocol.drafters:
        rivals = _rivals(protocol, files.drafts[drafter])
        with bench.ours(files.padded, files.drafts[drafter]) as ours:
            if protocol.screen_tokens:
                _side_by_side(bench, SCREEN, drafter, ours, rivals)
            _side_by_side(bench, SAME_LENGTH, drafter, ours, rivals)
            depth = max(len(bench.asked(kind).ids) for kind in protocol.native_kinds) + protocol.tokens // 2
            ours.prices(bench.runner.prices("padded", drafter), depth, _COST_SECONDS)
    part = SCREEN if protocol.screen_tokens else SAME_LENGTH
    _side_by_side(bench, part, "lookup", None, [by_ngram(name) for name in protocol.ngrams])


def _rivals(protocol: Protocol, draft: Path) -> list[Rival]:
    """llama.cpp's configurations with this draft."""
    gated = protocol.gate_lengths if protocol.gate else ()
    return [
        *(by_model(draft, length) for length in protocol.lengths),
        *(by_model(draft, length, protocol.gate) for length in gated),
        *(mixed(name, draft, length) for name in protocol.mixed for length in protocol.mixed_lengths),
    ]


def _side_by_side(bench: Bench, part: str, drafter: str, ours: Ours | None, rivals: Sequence[Rival]) -> None:
    """Each rival, and beside it our engine where the rival has a fixed length; behind a screen those it let pass."""
    protocol = bench.protocol
    screened = part == SAME_LENGTH and protocol.screen_tokens > 0
    tokens = protocol.screen_tokens if part == SCREEN else protocol.tokens
    for rival in rivals:
        kinds = [
            kind
            for kind in protocol.native_kinds
            if not screened or rival.length in passed(bench, drafter, kind)
        ]
        if not kinds or (bench.server is None and not rival.length):
            continue
        with bench.native(bench.files.padded, rival) as server:
            for kind in kinds:
                asked = bench.asked(kind)
                length = rival.length
                bench.runner.group(
                    Cell(part, "padded", drafter, kind),
                    [
                        of_ours(ours, fixed(length), asked, tokens, length=length)
                        if ours is not None and length
                        else None,
                        bench.of_native(server, rival.name, asked, tokens),
                    ],
                    1 if part == SCREEN else protocol.native_repeats,
                )


def passed(bench: Bench, drafter: str, kind: str) -> set[int]:
    """The fixed lengths that the screen lets pass: llama.cpp's default, its fastest, and ours."""
    found = {DEFAULT_LENGTH} & set(bench.protocol.lengths)
    for tool, name in ((OURS, fixed), (NATIVE, simple)):
        speeds = bench.speeds(SCREEN, drafter, kind, tool)
        known = {n: speeds[name(n)] for n in bench.protocol.lengths if name(n) in speeds}
        if known:
            found.add(max(known, key=lambda length: known[length]))
    return found


def best_length(bench: Bench, drafter: str, kind: str) -> tuple[int, ...]:
    """The fixed length that was fastest at the same prompt, or those that may be where that was not measured."""
    speeds = bench.speeds(SAME_LENGTH, drafter, kind, OURS)
    found = {length: speeds[fixed(length)] for length in range(1, 17) if fixed(length) in speeds}
    rivals = bench.protocol.rivals
    screened = bench.speeds(SCREEN, drafter, kind, OURS)
    if not found or (not screened and len(found) < min(_ENOUGH_LENGTHS, len(rivals))):
        return rivals
    return (max(found, key=lambda length: found[length]),)


def best_rival(bench: Bench, drafter: str, kind: str) -> Rival | None:
    """llama.cpp's fastest configuration at this prompt besides its default; None where none was measured."""
    protocol = bench.protocol
    part = SCREEN if protocol.screen_tokens else SAME_LENGTH
    known = {
        rival.name: rival
        for rival in (
            *_rivals(protocol, bench.files.drafts[drafter]),
            *(by_ngram(name) for name in protocol.ngrams),
        )
        if rival.name != simple(DEFAULT_LENGTH)
    }
    speeds = {
        name: speed
        for source in (drafter, "lookup")
        for name, speed in bench.speeds(part, source, kind, NATIVE).items()
        if name in known
    }
    return known[max(speeds, key=lambda name: speeds[name])] if speeds else None


def by_price(bench: Bench) -> None:
    """The default (`auto`, chained with lookup) against the best fixed length, and llama.cpp's default and best."""
    protocol, files = bench.protocol, bench.files
    for drafter in protocol.drafters:
        draft = files.drafts[drafter]
        with (
            bench.ours(files.padded, draft, auto=True) as auto,
            bench.ours(files.padded, draft, auto=True) as fresh,
            bench.ours(files.padded, draft) as by_length,
            bench.native(files.padded, by_model(draft, DEFAULT_LENGTH)) as server,
        ):
            for question in bench.questions():  # the profile of somebody who has asked a few other things
                auto.ask(question, GREEDY, protocol.tokens)
            auto.keep_profile()
            for kind in protocol.kinds:
                asked, tokens = bench.asked(kind), protocol.tokens
                rival = best_rival(bench, drafter, kind)
                with bench.native(files.padded, rival) if rival else nullcontext() as best:
                    bench.runner.group(
                        Cell(PRICE, "padded", drafter, kind),
                        [
                            of_ours(auto, AUTO, asked, tokens),
                            bench.of_native(server, simple(DEFAULT_LENGTH), asked, tokens),
                            bench.of_native(best, rival.name if rival else "", asked, tokens),
                            *(
                                of_ours(by_length, fixed(n), asked, tokens, length=n)
                                for n in best_length(bench, drafter, kind)
                            ),
                            of_ours(fresh, AUTO_FRESH, asked, tokens)
                            if kind in protocol.fresh_kinds
                            else None,
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
        rival = by_model(draft, DEFAULT_LENGTH)
        with bench.ours(files.small, draft) as ours, bench.native(files.small, rival) as server:
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
            name: stack.enter_context(bench.native(target, by_ngram(name))) for name in protocol.ngrams
        }
        auto.ask(other, GREEDY, tokens)  # the profile of somebody who has edited something else
        auto.keep_profile()
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
    for one in bench.protocol.long_answers:
        if one.drafter == "wrong" or one.drafter in bench.protocol.drafters:
            _long_answer(bench, one)


def _long_answer(bench: Bench, one: Long) -> None:
    protocol, files = bench.protocol, bench.files
    asked, tokens = bench.asked("prose"), protocol.long_tokens
    draft = files.drafts[one.drafter]
    sampling = Sampling(temperature=one.temperature, top_k=40, top_p=0.95, seed=1)
    with ExitStack() as stack:
        auto, fresh = (
            stack.enter_context(bench.ours(files.padded, draft, auto=True, chained=one.chained))
            if here
            else None
            for here in (True, one.fresh)
        )
        assert auto is not None
        auto.ask(bench.asked("code"), GREEDY, protocol.first // 2)
        auto.keep_profile()
        bench.runner.group(
            Cell("long", "padded", one.name, "prose", one.temperature),
            [
                # Where it is run without a profile too, only its beginning is asked for.
                of_ours(auto, AUTO, asked, protocol.first if fresh else tokens, sampling),
                of_ours(auto, PLAIN, asked, tokens, sampling),
                of_ours(fresh, AUTO_FRESH, asked, tokens, sampling) if fresh else None,
            ],
            protocol.long_repeats,
        )


def deep(bench: Bench) -> None:
    """The end of a long answer against a bare `llama_decode` loop there; the small model shows our own code most."""
    protocol, files = bench.protocol, bench.files
    asked, tokens = bench.asked("prose"), protocol.long_tokens
    last = tail(protocol)

    def bare_loop(spin: str = "") -> Stock:
        return Stock(files.small, "", n_ctx=protocol.n_ctx, threads=protocol.threads, bare=True, spin=spin)

    with bench.ours(files.small, "") as ours, bare_loop() as bare, bare_loop(ENGINE_SPIN) as patient:
        known = ours.ask(asked, GREEDY, tokens).ids[:-last]
        bench.runner.group(
            Cell("deep", "small", "", "prose"),
            [
                of_ours(ours, PLAIN, asked, tokens),
                Entry(BARE, PLAIN, partial(bare.step, asked, known, last), last),
                Entry(BARE, "threads as in our engine", partial(patient.step, asked, known, last), last),
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
        server = stack.enter_context(bench.native(files.padded, None))
        plain = _opened(bench, stack, files.padded, "")
        drafted = _opened(bench, stack, files.padded, draft)
        lookup = _opened(bench, stack, files.padded, PROMPT_LOOKUP)
        for kind in protocol.stock_kinds:
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
