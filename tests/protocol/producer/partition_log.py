"""One partition's log at a broker, with Kafka's rules for producer ids, epochs and sequence numbers.

For tests of `PartitionProducer`: builders of its batches, and the replies of a broker with the producer states of the
in-memory cluster, which `tests/contract` compares with Kafka's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa

from protocol.base.clock import Backoff
from protocol.broker_errors import ErrorCode
from protocol.errors import ConnectionLost, KafkaError
from protocol.producer.idempotence import ProducerIdentity
from protocol.producer.partition_producer import PartitionProducer
from protocol.producer.producer_batch import ProducerBatch
from protocol.records.decode import decode
from protocol.records.encode import encode_batches
from protocol.records.memory_records import read_batch_headers
from protocol.records.record_columns import record_columns
from protocol.testing.fake_kafka.producer_state import ProducerState, Written, last_sequence
from protocol.testing.fake_kafka.requests import Refused

IDENTITY = ProducerIdentity(7, 0)
ENCODE = partial(encode_batches, compression="lz4")
LOST = ConnectionLost("the connection was reset")
WHERE = "broker 1"


@dataclass
class PartitionLog:
    """`values` are the records in order; a batch may have `largest` of them, and none of `too_large`."""

    largest: int = 1_000_000
    too_large: frozenset[int] = frozenset()
    values: list[int] = field(default_factory=list)
    _producers: dict[int, ProducerState] = field(default_factory=dict)

    def append(self, producer_id: int, epoch: int, sequence: int, values: list[int]) -> tuple[int, int]:
        """Return (error code, base offset) as the broker replies."""
        if len(values) > self.largest or not self.too_large.isdisjoint(values):
            return ErrorCode.MESSAGE_TOO_LARGE, -1
        if state := self._producers.get(producer_id):
            try:
                state.check_epoch(epoch)
                if duplicate := state.duplicate_of(epoch, sequence, len(values)):
                    return ErrorCode.NONE, duplicate.base_offset
                state.check_sequence(epoch, sequence)
            except Refused as refused:
                return refused.code, -1
        base_offset = len(self.values)
        self.values += values
        written = Written(sequence, last_sequence(sequence, len(values)), base_offset)
        self._producers.setdefault(producer_id, ProducerState(epoch)).add(epoch, written)
        return ErrorCode.NONE, base_offset


def producer(*, identity: ProducerIdentity | None = IDENTITY, retries: int = 2**31 - 1) -> PartitionProducer:
    made = PartitionProducer(
        "t", 0, max_in_flight=5, retries=retries, delivery_timeout_s=10.0, backoff=Backoff(100, 1_000), encode=ENCODE
    )
    if identity is not None:
        made.begin(identity)
    return made


def batch_of(values: list[int], now_s: float = 0.0) -> ProducerBatch:
    rows = pa.RecordBatch.from_pydict({"value": pa.array([b"%d" % value for value in values], pa.binary())})
    (records,) = ENCODE(record_columns(rows, 0), [len(values)])
    return ProducerBatch("t", 0, records, len(values), now_s)


def values_of(batch: ProducerBatch) -> list[int]:
    chunks = decode(read_batch_headers(batch.records), first_offset=0, end_offset=batch.record_count, check_crc=False)
    return [int(value) for chunk in chunks for value in chunk.column("value").to_pylist()]


def fill(made: PartitionProducer, count: int, rows: int = 10) -> None:
    for number in range(count):
        made.append(batch_of(list(range(number * rows, (number + 1) * rows))))


def send_all(made: PartitionProducer, now_s: float = 0.0) -> list[ProducerBatch]:
    sent = []
    while (batch := made.next_batch(now_s)) is not None:
        made.sending(batch, leader_id=1, now_s=now_s)
        sent.append(batch)
    return sent


def confirmed(count: int, rows: int = 10) -> tuple[PartitionProducer, list[ProducerBatch]]:
    """Return a producer whose first batch is acknowledged, and its next `count` batches in flight."""
    made = producer()
    fill(made, count + 1, rows)
    (first,) = send_all(made)
    made.written(first, 0)
    return made, send_all(made)


def numbers_of_the_rest(made: PartitionProducer) -> list[int]:
    """Return the sequence numbers of the remaining batches, sent to a broker that accepts all."""
    numbers = []
    while not made.idle:
        for batch in send_all(made, 1e9):
            numbers.append(batch.base_sequence)
            made.written(batch, -1)
    return numbers


def failures_of(made: PartitionProducer) -> list[KafkaError]:
    """Return each failure once, though several record batches may share it."""
    outcomes = [batch.result for batch in made.completed]
    return list(dict.fromkeys(outcome.error for outcome in outcomes if outcome and outcome.error))


def refuse_first(made: PartitionProducer, sent: list[ProducerBatch], code: ErrorCode, message: str = "") -> None:
    """Refuse the first batch with this code, and the later ones because their numbers are not the next."""
    for batch in sent:
        made.refused(batch, code, WHERE, 1.0, message if batch is sent[0] else "")
        code = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
