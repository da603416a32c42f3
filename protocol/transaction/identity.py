"""Who a transactional producer is to the brokers. A value: it may travel to another process, which then ends the
transaction.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TransactionalIdentity:
    """A transactional id, and the producer id and epoch that its coordinator has given to the newest producer of it."""

    transactional_id: str
    producer_id: int
    producer_epoch: int

    @property
    def fields(self) -> dict[str, str | int]:
        """As requests have them."""
        return {
            "transactional_id": self.transactional_id,
            "producer_id": self.producer_id,
            "producer_epoch": self.producer_epoch,
        }

    def __str__(self) -> str:
        return f"{self.transactional_id} (producer id {self.producer_id}, epoch {self.producer_epoch})"
