"""Why a member's session, or a part of its claims, came to an end: a value that everybody can be told."""

from __future__ import annotations

from dataclasses import dataclass

from protocol.errors import KafkaError


@dataclass(frozen=True)
class EndReason:
    """Which error or deadline it was, in words; `settings`: those among them that whoever reads it may set."""

    words: str
    settings: frozenset[str] = frozenset()

    def __str__(self) -> str:
        return self.words

    @property
    def error(self) -> KafkaError:
        """For whom it is one."""
        return KafkaError(self.words, settings=self.settings)

    @classmethod
    def of(cls, error: KafkaError) -> EndReason:
        return cls(str(error), error.settings)
