"""How much is measured, and what the configurations are called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scripts.peers.native import DEFAULT_P_MIN, NGRAM_TYPES

PLAIN, AUTO, AUTO_FRESH = "plain", "auto", "auto, no profile"
SAMPLED = ((0.7, 0.9), (1.0, 0.95))
"""Temperature and top-p where tokens are drawn."""


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
    gate: float = 0.75
    """llama.cpp's p-min in the second comparison; 0 leaves it out."""
    ngrams: tuple[str, ...] = NGRAM_TYPES
    rivals: tuple[int, ...] = (1, 2, 3, 5, 7)
    """Fixed lengths beside `auto` where the comparison at the same length was not run."""
    fresh_kinds: tuple[str, ...] = ("code", "prose", "extraction", "edit")
    long_tokens: int = 2000
    first: int = 512
    """The beginning of a long answer that is looked at by itself."""
    long_repeats: int = 1
    sample_tokens: int = 256
    seeds: int = 3
    edit_tokens: int = 256
    n_ctx: int = 2560
    threads: int = 2


QUICK = Protocol(
    tokens=48,
    repeats=1,
    lengths=(7,),
    native_kinds=("code",),
    gate=0.0,
    ngrams=("ngram-simple",),
    rivals=(3,),
    fresh_kinds=("code", "prose"),
    long_tokens=160,
    first=80,
    sample_tokens=96,
    seeds=1,
    edit_tokens=128,
)


def simple(length: int, p_min: float = DEFAULT_P_MIN) -> str:
    """The name of llama.cpp's drafts by a model."""
    return f"draft-simple k={length} p-min {p_min:g}"


def fixed(length: int) -> str:
    """The name of a fixed length."""
    return f"k={length}"


def work(protocol: Protocol, names: Sequence[str], *, native: bool) -> float:
    """Tokens that the parts make, about; only for the time that is left."""
    kinds, drafters = len(protocol.kinds), len(protocol.drafters)
    rivals = 1 if native else 0
    few = len(protocol.native_kinds) * protocol.native_repeats * protocol.tokens
    of: Mapping[str, float] = {
        "native": few
        * (
            drafters * len(protocol.lengths) * (1 + rivals * (1 + bool(protocol.gate)))
            + 2 * rivals * len(protocol.ngrams)
        ),
        "auto": protocol.tokens
        * protocol.repeats
        * drafters
        * (kinds * (1 + rivals + 2) + len(protocol.fresh_kinds)),
        "edit": protocol.edit_tokens * protocol.repeats * (6 + rivals * len(protocol.ngrams)),
        "sampled": protocol.sample_tokens * protocol.seeds * drafters * kinds * len(SAMPLED) * (1 + rivals),
        "long": protocol.long_tokens * protocol.long_repeats * (3 + 2 * drafters),
        "deep": protocol.long_tokens * protocol.repeats * 3,
        "stock": few * (5 + rivals),
    }
    return sum(of[name] for name in names)
