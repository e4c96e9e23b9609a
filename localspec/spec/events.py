"""What the engine says while it works. The CLI, the TUI, bench and tune read the same events."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from localspec.spec.stats import Stats

FinishReason = Literal["stop", "length", "context", "cancelled"]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is chosen. Temperature 0 is argmax; the seed then changes nothing."""

    temperature: float = 0.7
    top_k: int = 40
    """0 = all tokens."""
    top_p: float = 0.95
    min_p: float = 0.0
    repeat_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    penalty_last_n: int = 64
    """How many of the last tokens the penalties look at."""
    seed: int = 0
    """Names the text, with target, prompt and the other fields. The draft does not enter."""


@dataclass(frozen=True, slots=True)
class DraftStatus:
    """Whether drafting is on, and if not, why not."""

    state: Literal["on", "off"]
    reason: str = ""
    """Empty when on; otherwise one short sentence, without a full stop."""
    name: str = ""
    """What drafts: the file name of a draft model, `lookup`, or empty when none was asked for."""
    n_draft: int = 0
    """Draft length in use; with `auto`, that of the last round."""
    auto: bool = False
    """The length is chosen by price, round by round."""
    plain_s: float = 0.0
    """Seconds that the target takes for a token without a draft, as far as it is known now (0 = not). Its inverse is
    the speed to compare with: tok/s times this is the net speedup."""
    predicted: float | None = None
    """With `auto`: speed over plain decoding that the last rounds should have earned, by their chances and prices."""
    overlap: bool = False
    """The draft model drafts on while the target verifies."""
    no_overlap: str = ""
    """Why it does not, one short sentence without a full stop."""


@dataclass(frozen=True, slots=True)
class Piece:
    """The text that one token released.

    The text of a token can be empty (half a character, the start of a possible stop string); it then comes
    with a later piece, so that the joined texts always equal the whole answer. A token that ends the thinking
    and begins the answer gives two pieces, and what is released at the end of the answer comes under the last
    token once more: both repeat the `token_id`, so pieces are no count of tokens.
    """

    token_id: int
    text: str
    drafted: bool
    """True for an accepted draft token, False for the target's own (bonus) token."""
    thinking: bool = False
    """True inside the model's thinking; tags themselves are not text."""


@dataclass(frozen=True, slots=True)
class PromptProgress:
    """Prompt evaluation: `done` of `total` tokens are in the target's cache, `reused` were there before."""

    done: int
    total: int
    reused: int


@dataclass(frozen=True, slots=True)
class Rejected:
    """The first token of a draft that the target did not choose; what was drafted behind it fell with it."""

    drafted: str
    """Its text; of a control token its name."""
    chosen: str
    """What the target chose there."""
    probability: float | None = None
    """What the drafter gave its token, in its own shaped distribution; None where it has no probabilities."""


@dataclass(frozen=True, slots=True)
class Round:
    """One draft and one verify, with the answer's counters so far."""

    pieces: tuple[Piece, ...]
    stats: Stats
    draft: DraftStatus
    context_used: int
    context_size: int
    rejected: Rejected | None = None
    """None where all of the draft was accepted, nothing was drafted, or the answer ended inside the draft."""


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of an answer. `text` is the answer without the thinking."""

    reason: FinishReason
    text: str
    thinking: str
    token_ids: tuple[int, ...]
    stats: Stats
    draft: DraftStatus
    context_used: int
    context_size: int


EngineEvent = PromptProgress | Round | Finished
