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

    Attributes
    ----------
    sent : sequence of SentRows
        The calls whose rows these are, in row order.
    original : ProducerBatch or None
        After a split, the original batch; this one has its rows from `first_row` on.
    rows_left : int
        Rows without a result, those of its parts included. Only `pending_rows` changes it, in the original.
    result : BatchResult or None
        Result, set once: by `partition_producer`, or by `batch_assembler` for rows that were never sent.
    created_s : float
        Begin of the delivery timeout: the time of the encoding, or the end of `linger.ms` if that was earlier.
    base_sequence, attempts, in_flight : int, int, bool
        Only `partition_producer` changes these, and `maybe_written`, in the producer's thread.
    maybe_written : bool
        A try ended without a reply that tells whether the batch was written. Never reset.
    last_error : KafkaError or None
        Error of the last try; set by `note`, read by other threads.
    compression_ratio : float
        Size of `records` over their uncompressed size.
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
