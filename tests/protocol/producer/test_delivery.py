"""Batches in flight: the order of result sinks and of the acknowledged ranges."""

from __future__ import annotations

from dataclasses import dataclass

from protocol.producer.delivery import Deliveries, Delivery, Ended, Outcome, ProducedRange, ReceiptPart


@dataclass
class Looking:
    """Records the acknowledged ranges when its result arrives."""

    deliveries: Deliveries
    seen: ProducedRange | None = None
    tells_failures = False

    def settle(self, partition: int, first: int, count: int, outcome: Outcome) -> None:
        self.seen = self.deliveries.acknowledged_now().get(("orders", partition))


def test_what_is_told_is_in_the_account_before() -> None:
    deliveries = Deliveries()
    looking = Looking(deliveries)
    delivery = Delivery("orders", 1, 100, 3, [ReceiptPart(looking, 0, 3)])
    deliveries.begin([delivery])
    deliveries.end([Ended(delivery, 0, 3, Outcome(base_offset=7))])
    assert looking.seen == ProducedRange(7, 9, 3)
