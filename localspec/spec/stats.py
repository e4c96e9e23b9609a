"""Raw counters of one answer. Rates are derived when they are read.

Words (the field's):
    drafted: proposed by the drafter and put into a verify batch.
    accepted: drafted and equal to the target's own choice.
    bonus: the token that the target adds at the end of every round.
    round: one draft and one verify.
    acceptance rate: accepted / drafted.
    mean accepted length: 1 + accepted / rounds, tokens that one target step yields.
    per-position acceptance, conditional: of the rounds that accepted positions 1..i-1 and drafted position i,
        the share that accepted i. Unconditional: of all the rounds that drafted position i.
"""

from __future__ import annotations

from dataclasses import dataclass, field

MAX_POSITIONS = 64  # positions counted apart; the totals count every position


@dataclass(frozen=True, slots=True)
class Source:
    """The share of one source of drafts."""

    rounds: int = 0
    """Rounds that put at least one token of it into the batch."""
    drafted: int = 0
    accepted: int = 0

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted / drafted, None while nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else None

    def __add__(self, other: Source) -> Source:
        return Source(
            self.rounds + other.rounds, self.drafted + other.drafted, self.accepted + other.accepted
        )

    def __sub__(self, other: Source) -> Source:
        return Source(
            self.rounds - other.rounds, self.drafted - other.drafted, self.accepted - other.accepted
        )

    def to_json(self) -> dict[str, object]:
        """The entry in `by_source` of `--json`."""
        return {
            "rounds": self.rounds,
            "drafted": self.drafted,
            "accepted": self.accepted,
            "acceptance_rate": self.acceptance_rate,
        }


@dataclass(frozen=True, slots=True)
class Stats:
    """Counters of one answer; times in seconds."""

    prompt_tokens: int = 0
    """Tokens of the whole prompt, reused ones included."""
    reused_tokens: int = 0
    """Prompt tokens that the target's cache held already."""
    completion_tokens: int = 0
    """Tokens of the answer, without the end-of-generation token."""
    rounds: int = 0
    """Verify passes of the target; plain steps count as rounds with nothing drafted."""
    drafted_rounds: int = 0
    """Rounds that put at least one drafted token into the batch."""
    drafted: int = 0
    accepted: int = 0
    drafted_at: tuple[int, ...] = ()
    """Rounds that drafted position i (index 0 is the first position)."""
    accepted_at: tuple[int, ...] = ()
    """Rounds that accepted position i."""
    prompt_s: float = 0.0
    """Time to evaluate the prompt in the target."""
    ttft_s: float = 0.0
    """From the request to the first token."""
    decode_tokens: int = 0
    """Tokens after the first: what `decode_s` was spent on."""
    decode_s: float = 0.0
    """Time after the first token."""
    draft_s: float = 0.0
    verify_s: float = 0.0
    other_s: float = 0.0
    """Time of our own code in the rounds: choosing, bookkeeping, text."""
    by_source: dict[str, Source] = field(default_factory=dict)
    """What each source drafted: `lookup`, `lookup in files`, the name of a drafter; in order of their first rounds."""

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted / drafted, None while nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def mean_accepted_length(self) -> float | None:
        """1 + accepted / rounds, None before the first round."""
        return 1 + self.accepted / self.rounds if self.rounds else None

    @property
    def decode_tok_s(self) -> float | None:
        """Tokens after the first over the time after the first, None before there is one."""
        return self.decode_tokens / self.decode_s if self.decode_tokens and self.decode_s > 0 else None

    @property
    def prompt_tok_s(self) -> float | None:
        """Newly evaluated prompt tokens per second, None when nothing was evaluated."""
        fresh = self.prompt_tokens - self.reused_tokens
        return fresh / self.prompt_s if fresh > 0 and self.prompt_s > 0 else None

    @property
    def per_position(self) -> tuple[float, ...]:
        """Conditional acceptance at positions 1, 2, ... (up to the last position that was reached)."""
        reached = (self.drafted_rounds, *self.accepted_at)
        # Position i counts among the rounds that accepted i-1 *and* drafted i; a shorter draft does not reach i.
        return tuple(
            accepted / min(before, drafted)
            for accepted, before, drafted in zip(self.accepted_at, reached, self.drafted_at, strict=False)
            if min(before, drafted)
        )

    @property
    def per_position_unconditional(self) -> tuple[float, ...]:
        """Of the rounds that drafted position i, the share that accepted it."""
        return tuple(a / d for a, d in zip(self.accepted_at, self.drafted_at, strict=True) if d)

    def to_json(self) -> dict[str, object]:
        """The `stats` object of `--json`."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "reused_tokens": self.reused_tokens,
            "completion_tokens": self.completion_tokens,
            "ttft_s": self.ttft_s,
            "prompt_tok_s": self.prompt_tok_s,
            "decode_tok_s": self.decode_tok_s,
            "rounds": self.rounds,
            "drafted": self.drafted,
            "accepted": self.accepted,
            "acceptance_rate": self.acceptance_rate,
            "mean_accepted_length": self.mean_accepted_length,
            "per_position": list(self.per_position),
            "per_position_unconditional": list(self.per_position_unconditional),
            "draft_s": self.draft_s,
            "verify_s": self.verify_s,
            "other_s": self.other_s,
            "by_source": {name: source.to_json() for name, source in self.by_source.items()},
        }


@dataclass(slots=True)
class Counters:
    """The same counters while they run."""

    prompt_tokens: int = 0
    reused_tokens: int = 0
    completion_tokens: int = 0
    rounds: int = 0
    drafted_rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    drafted_at: list[int] = field(default_factory=list)
    accepted_at: list[int] = field(default_factory=list)
    prompt_s: float = 0.0
    ttft_s: float = 0.0
    decode_s: float = 0.0
    draft_s: float = 0.0
    verify_s: float = 0.0
    other_s: float = 0.0
    by_source: dict[str, Source] = field(default_factory=dict)

    def add_round(self, drafted: int, accepted: int, source: str = "") -> None:
        """Count a round that verified `drafted` tokens and accepted the first `accepted` of them.

        Args:
            drafted: Tokens put into the batch.
            accepted: How many of them were right.
            source: Where they come from.
        """
        if drafted:
            self.by_source[source] = self.by_source.get(source, Source()) + Source(1, drafted, accepted)
        self.rounds += 1
        self.drafted += drafted
        self.accepted += accepted
        self.drafted_rounds += drafted > 0
        counted = min(drafted, MAX_POSITIONS)
        while len(self.drafted_at) < counted:
            self.drafted_at.append(0)
            self.accepted_at.append(0)
        for index in range(counted):
            self.drafted_at[index] += 1
            self.accepted_at[index] += index < accepted

    def snapshot(self) -> Stats:
        """The counters so far."""
        return Stats(
            prompt_tokens=self.prompt_tokens,
            reused_tokens=self.reused_tokens,
            completion_tokens=self.completion_tokens,
            rounds=self.rounds,
            drafted_rounds=self.drafted_rounds,
            drafted=self.drafted,
            accepted=self.accepted,
            drafted_at=tuple(self.drafted_at),
            accepted_at=tuple(self.accepted_at),
            prompt_s=self.prompt_s,
            ttft_s=self.ttft_s,
            decode_tokens=max(self.completion_tokens - 1, 0),
            decode_s=self.decode_s,
            draft_s=self.draft_s,
            verify_s=self.verify_s,
            other_s=self.other_s,
            by_source=dict(self.by_source),
        )
