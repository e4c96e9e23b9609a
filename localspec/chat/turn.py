"""One message of a conversation, as it was said and as it is kept."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from localspec.worker.protocol import Message

EndReason = Literal["stop", "length", "context", "cancelled", "died", "failed", ""]


@dataclass(frozen=True, slots=True)
class Turn:
    """One message as it was said, with what is known about an answer."""

    role: Literal["user", "assistant"]
    content: str
    thinking: str = ""
    token_ids: tuple[int, ...] = ()
    """An answer's own ids: sent again, they are found in the caches."""
    reason: EndReason = ""
    """How an answer ended; `died`: with the engine, `failed`: with an error. Empty for a user."""
    seed: int = 0
    """The seed that made an answer."""
    stats: dict[str, Any] = field(default_factory=dict)
    """`Stats.to_json()` of an answer."""

    @property
    def unfinished(self) -> bool:
        """An answer that did not end by itself."""
        return self.role == "assistant" and self.reason != "stop"

    def to_message(self) -> Message:
        """The turn as the engine takes it."""
        return Message(self.role, self.content, self.token_ids, self.thinking)

    def to_record(self) -> dict[str, Any]:
        """The turn as the store keeps it."""
        record: dict[str, Any] = {"type": "message", "role": self.role, "content": self.content}
        if self.role == "assistant":
            record |= {
                "thinking": self.thinking,
                "token_ids": list(self.token_ids),
                "reason": self.reason,
                "seed": self.seed,
                "stats": self.stats,
            }
        return record

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> Turn:
        """Read what `to_record` wrote.

        Raises:
            KeyError, TypeError, ValueError: The record is damaged.
        """
        if record["role"] not in ("user", "assistant"):
            raise ValueError(record["role"])
        return cls(
            role=record["role"],
            content=str(record["content"]),
            thinking=str(record.get("thinking", "")),
            token_ids=tuple(int(i) for i in record.get("token_ids", ())),
            reason=record.get("reason", ""),
            seed=int(record.get("seed", 0)),
            stats=dict(record.get("stats", {})),
        )
