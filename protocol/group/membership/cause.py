"""Why a member's session, or a part of its claims, came to an end: a value that everybody can be told."""

from __future__ import annotations

from dataclasses import dataclass

from protocol.errors import KafkaError


@dataclass(frozen=True)
class Cause:
    """Which error or deadline it was, in words; `error`: what a broker or the transport said, if it was that."""

    words: str
    error: KafkaError | None = None

    def __str__(self) -> str:
        return self.words

    @classmethod
    def of(cls, error: KafkaError) -> Cause:
        return cls(str(error), error)
