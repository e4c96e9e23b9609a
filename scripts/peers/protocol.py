"""How much is measured, and what the configurations are called."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from scripts.peers.native import DEFAULT_LENGTH, NGRAMS

PLAIN, AUTO, AUTO_FRESH = "plain", "auto", "auto, no profile"
SAMPLED = ((0.7, 0.9), (1.0, 0.95))
"""Temperature and top-p where tokens are drawn."""
ALL_NGRAMS = tuple(NGRAMS)
PROMPT_TOKENS = 48
"""Reading a prompt, and starting a server now and then, takes about as long as making so many tokens."""


@dataclass(frozen=True, slots=True)
class Long:
    """One comparison of long answers.

    Attributes:
        drafter: What drafts.
        chained: Lookup drafts too, which is the default of localspec; on texts that repeat themselves it pays whatever
            the draft does, so a draft alone is the harder test.
        temperature: At 0 a small model repeats itself, at 1 it hardly does.
        fresh: Without a profile too.
    """

    drafter: str
    chained: bool
    temperature: float
    fresh: bool = False

    @property
    def name(self) -> str:
        """Of the drafter."""
        return self.drafter if self.chained else alone(self.drafter)


WRONG = (Long("wrong", False, 0.0, fresh=True), Long("wrong", True, 1.0, fresh=True))
HARD = (*WRONG, Long("poor", False, 1.0))
ALL_LONG = (
    *HARD,
    *(Long("wrong", True, 0.0, fresh=True), Long("wrong", False, 1.0, fresh=True)),
    *(Long("poor", True, 0.0), Long("good", True, 0.0), Long("good", False, 1.0)),
)


@dataclass(frozen=True, slots=True)
class Protocol:
    """How much is measured."""

    tokens: int = 256
    repeats: int = 3
    kinds: tuple[str, ...] = ("code", "prose", "extraction", "edit")
    drafters: tuple[str, ...] = ("good", "poor")
    lengths: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 7, 8)
    """Of the comparison at the same length."""
    native_kinds: tuple[str, ...] = ("code", "prose", "extraction", "edit")
    native_repeats: int = 1
    """Each length is one more pair of the same comparison."""
    screen_tokens: int = 48
    """Of a first, short answer in every configuration; the fastest of each prompt kind go on to whole answers. 0 gives
    whole answers to all."""
    gate: float = 0.75
    """llama.cpp's p-min in the second comparison; 0 leaves it out."""
    gate_lengths: tuple[int, ...] = (DEFAULT_LENGTH, 8)
    ngrams: tuple[str, ...] = ALL_NGRAMS
    mixed: tuple[str, ...] = ("ngram-simple 4/16",)
    """Kinds of n-grams that are measured together with a draft model too, as localspec's own default does."""
    mixed_lengths: tuple[int, ...] = (DEFAULT_LENGTH, 7)
    rivals: tuple[int, ...] = (1, 2, 3, 5, 7)
    """Fixed lengths beside `auto` where the comparison at the same length was not run."""
    fresh_kinds: tuple[str, ...] = ("code", "extraction")
    stock_kinds: tuple[str, ...] = ("code", "edit")
    long_tokens: int = 2000
    first: int = 512
    """The beginning of a long answer that is looked at by itself."""
    long_repeats: int = 1
    long_answers: tuple[Long, ...] = HARD
    sample_tokens: int = 256
    seeds: int = 2
    edit_tokens: int = 256
    n_ctx: int = 2560
    threads: int = 2


FULL = replace(
    Protocol(),
    screen_tokens=0,
    gate_lengths=Protocol().lengths,
    mixed=ALL_NGRAMS,
    fresh_kinds=Protocol().kinds,
    stock_kinds=Protocol().kinds,
    long_answers=ALL_LONG,
    seeds=3,
)
QUICK = Protocol(
    tokens=48,
    repeats=1,
    lengths=(7,),
    native_kinds=("code",),
    screen_tokens=0,
    gate=0.0,
    ngrams=("ngram-simple 4/16",),
    mixed=("ngram-simple 4/16",),
    mixed_lengths=(DEFAULT_LENGTH,),
    rivals=(3, 7),
    fresh_kinds=("code", "prose"),
    stock_kinds=("code",),
    long_tokens=160,
    first=80,
    sample_tokens=96,
    seeds=1,
    edit_tokens=128,
)


def alone(drafter: str) -> str:
    """The name of a draft that is not chained with lookup."""
    return f"{drafter} alone"


def fixed(length: int) -> str:
    """The name of a fixed length."""
    return f"k={length}"


def cuts(protocol: Protocol, names: Sequence[str]) -> list[str]:
    """What `--full` would measure and this does not, in sentences.

    Args:
        protocol: What is measured.
        names: The parts that are run.
    """
    found = []
    if "native" in names and protocol.screen_tokens:
        found.append(
            f"llama.cpp's configurations gave an answer of {protocol.screen_tokens} tokens each; by draft and prompt "
            f"kind, k={DEFAULT_LENGTH} and the fastest lengths went on to {protocol.tokens} tokens, and the fastest of "
            "all went on beside the default of localspec."
        )
    for name, what in _WHAT.items():
        less = [one for one in getattr(FULL, name) if one not in getattr(protocol, name)]
        if less and any(part in names for part in what[1]):
            said = ", ".join(_words(one) for one in less)
            found.append(f"Not measured: {what[0]} {said}.")
    for name, (what_number, parts) in _NUMBERS.items():
        here, whole = getattr(protocol, name), getattr(FULL, name)
        if here < whole and any(part in names for part in parts):
            found.append(f"{what_number}: {here} instead of {whole}.")
    if "native" in names and not protocol.gate:
        found.append(f"Not measured: llama.cpp's p-min {FULL.gate:g}.")
    return found


_WHAT: dict[str, tuple[str, tuple[str, ...]]] = {
    "lengths": ("draft lengths in `native`:", ("native",)),
    "native_kinds": ("prompt kinds in `native`:", ("native",)),
    "gate_lengths": (f"with p-min {FULL.gate:g}, draft lengths", ("native",)),
    "ngrams": ("n-gram kinds", ("native", "edit")),
    "mixed": ("n-gram kinds together with a draft model:", ("native",)),
    "kinds": ("prompt kinds", ("auto", "sampled")),
    "drafters": ("drafts", ("native", "auto", "sampled")),
    "fresh_kinds": ("without a profile, prompt kinds", ("auto",)),
    "stock_kinds": ("by llama-cpp-python, prompt kinds", ("stock",)),
    "long_answers": ("long answers with a draft that is", ("long",)),
}
_NUMBERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "tokens": ("Tokens of an answer", ("native", "auto", "stock")),
    "repeats": ("Repeats", ("auto", "edit", "deep")),
    "long_tokens": ("Tokens of a long answer", ("long", "deep")),
    "sample_tokens": ("Tokens of a drawn answer", ("sampled",)),
    "seeds": ("Seeds of drawn answers", ("sampled",)),
    "edit_tokens": ("Tokens of an edit", ("edit",)),
}


def _words(one: object) -> str:
    if isinstance(one, Long):
        return f"{one.drafter} ({'with lookup' if one.chained else 'alone'}, T {one.temperature:g})"
    return str(one)


@dataclass(frozen=True, slots=True)
class Cost:
    """Answers and their tokens, about."""

    answers: float
    tokens: float

    @property
    def work(self) -> float:
        """In tokens, the prompts counted as some."""
        return self.tokens + PROMPT_TOKENS * self.answers


def plan(protocol: Protocol, names: Sequence[str], *, native: bool) -> dict[str, Cost]:
    """What each part will make, about.

    Args:
        protocol: How much is measured.
        names: The parts.
        native: Whether llama.cpp's server is there.
    """
    kinds, drafters, rivals = len(protocol.kinds), len(protocol.drafters), int(native)
    stock = len(protocol.stock_kinds) * protocol.native_repeats
    seeds = protocol.seeds * drafters * kinds * len(SAMPLED)
    auto = protocol.repeats * drafters * (kinds * (2 + 2 * rivals) + len(protocol.fresh_kinds))
    edits = protocol.repeats * (6 + rivals * len(protocol.ngrams))
    answers, tokens = 0.0, 0.0
    for one in protocol.long_answers:
        answers += 3 if one.fresh else 2
        tokens += 2 * protocol.long_tokens + (protocol.first if one.fresh else 0)
    answers, tokens = answers * protocol.long_repeats, tokens * protocol.long_repeats
    found = {
        "native": _of_native(protocol, rivals),
        "auto": Cost(auto, auto * protocol.tokens),
        "edit": Cost(edits, edits * protocol.edit_tokens),
        "sampled": Cost(seeds * (1 + rivals), seeds * (1 + rivals) * protocol.sample_tokens),
        "long": Cost(answers, tokens),
        "deep": Cost(3 * protocol.repeats, protocol.repeats * (protocol.long_tokens + 2 * tail(protocol))),
        "stock": Cost(stock * (5 + rivals), stock * (5 + rivals) * protocol.tokens),
    }
    return {name: found[name] for name in names}


def tail(protocol: Protocol) -> int:
    """Tokens at the end of a long answer that are looked at by themselves."""
    return min(200, protocol.long_tokens // 3)


def _of_native(protocol: Protocol, rivals: int) -> Cost:
    kinds, drafters, lengths = len(protocol.native_kinds), len(protocol.drafters), len(protocol.lengths)
    gated = len(protocol.gate_lengths) if protocol.gate else 0
    theirs = lengths + gated + len(protocol.mixed) * len(protocol.mixed_lengths)
    each = kinds * (drafters * (lengths + rivals * theirs) + rivals * len(protocol.ngrams))
    if not protocol.screen_tokens:
        return Cost(each * protocol.native_repeats, each * protocol.native_repeats * protocol.tokens)
    kept = kinds * drafters * 3 * (1 + rivals) * protocol.native_repeats  # the default, and about two more
    return Cost(each + kept, each * protocol.screen_tokens + kept * protocol.tokens)
