"""A record batch on its way to a partition's leader: Java's `ProducerBatch`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from protocol.errors import KafkaError
from protocol.kafka_terms import NO_SEQUENCE
from protocol.producer.results import BatchResult, SentRows
from protocol.records.encode import EncodedBatch


@dataclass(eq=False)
class ProducerBatch:
    """One record batch; `records` are its bytes, whose header is finalized before sending.

    `sent` has the calls whose rows these are, in row order. After a split, `original` is the original batch, and this
    one has its rows from `first_row` on. `rows_left` counts the rows without a result, those of its parts included;
    only `pending_rows` changes it, in the original. `result` is set once: by `partition_producer`, or by
    `batch_assembler` for rows that were never sent.

    `created_s` is the begin of the delivery timeout: the time of the encoding, or the end of `linger.ms` if that was
    earlier. `compression_ratio` is the size of `records` over their uncompressed size.

    Only `partition_producer` changes `base_sequence`, `attempts`, `in_flight` and `maybe_written`, in the producer's
    thread. `maybe_written`: a try ended without a reply that tells whether the batch was written; never reset.
    `last_error` is the error of the last try; set by `note`, read by other threads.
    """

    topic: str
    partition: int
    records: EncodedBatch
    record_count: int
    created_s: float
    sent: Sequence[SentRows] = ()
    original: ProducerBatch | None = None
    first_row: int = 0
    result: BatchResult | None = None
    base_sequence: int = NO_SEQUENCE
    attempts: int = 0
    in_flight: bool = False
    maybe_written: bool = False
    last_error: KafkaError | None = None
    compression_ratio: float = 1.0
    rows_left: int = field(init=False)
    size_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        self.rows_left = self.record_count
        self.size_bytes = len(self.records)

    def note(self, error: KafkaError) -> None:
        """Record the error of a try, for the messages of callers that wait."""
        self.last_error = error
        if self.original is not None:
            self.original.last_error = error
