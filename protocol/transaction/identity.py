"""The identity of a transactional producer. A value, which another process may receive to end the transaction."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TransactionalIdentity:
    """A transactional id with the producer id and epoch that its coordinator gave to its newest producer."""

    transactional_id: str
    producer_id: int
    producer_epoch: int

    @property
    def fields(self) -> dict[str, str | int]:
        """The fields of requests."""
        return {
            "transactional_id": self.transactional_id,
            "producer_id": self.producer_id,
            "producer_epoch": self.producer_epoch,
        }

    def __str__(self) -> str:
        return f"{self.transactional_id} (producer id {self.producer_id}, epoch {self.producer_epoch})"
