"""Batches in flight: the order of result sinks and of the acknowledged ranges."""

from __future__ import annotations

from dataclasses import dataclass

from protocol.producer.delivery import Deliveries, Delivery, Ended, Outcome, ProducedRange, ReceiptPart


@dataclass
class RecordingSink:
    """Records the acknowledged ranges when its result arrives."""

    deliveries: Deliveries
    acknowledged: ProducedRange | None = None
    tells_failures = False

    def settle(self, partition: int, first: int, count: int, outcome: Outcome) -> None:
        self.acknowledged = self.deliveries.acknowledged_now().get(("orders", partition))


def test_acknowledged_range_is_updated_before_the_sink_is_called() -> None:
    deliveries = Deliveries()
    sink = RecordingSink(deliveries)
    delivery = Delivery("orders", 1, 100, 3, [ReceiptPart(sink, 0, 3)])
    deliveries.begin([delivery])
    deliveries.end([Ended(delivery, 0, 3, Outcome(base_offset=7))])
    assert sink.acknowledged == ProducedRange(7, 9, 3)
