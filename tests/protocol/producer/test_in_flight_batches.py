"""Batches in flight: the order of result sinks and of the acknowledged ranges."""

from __future__ import annotations

from dataclasses import dataclass

from protocol.producer.in_flight_batches import (
    BatchResult,
    CompletedRows,
    InFlightBatch,
    InFlightBatches,
    ProducedRange,
    ResultSinkRows,
)


@dataclass
class RecordingSink:
    """Records the acknowledged ranges when its result arrives."""

    in_flight_batches: InFlightBatches
    acknowledged: ProducedRange | None = None
    reports_failures = False

    def complete(self, partition: int, first: int, count: int, result: BatchResult) -> None:
        self.acknowledged = self.in_flight_batches.acknowledged_now().get(("orders", partition))


def test_acknowledged_range_is_updated_before_the_sink_is_called() -> None:
    in_flight_batches = InFlightBatches()
    sink = RecordingSink(in_flight_batches)
    in_flight_batch = InFlightBatch("orders", 1, 100, 3, [ResultSinkRows(sink, 0, 3)])
    in_flight_batches.begin([in_flight_batch])
    in_flight_batches.end([CompletedRows(in_flight_batch, 0, 3, BatchResult(base_offset=7))])
    assert sink.acknowledged == ProducedRange(7, 9, 3)
