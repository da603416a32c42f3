"""One replica's log: record batches, leader epochs, and the producer state that follows from the batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from protocol.broker_errors import ErrorCode
from protocol.kafka_terms import NO_LEADER_EPOCH, NO_PRODUCER_ID
from protocol.records.batch_header import (
    CONTROL,
    HEADER_BYTES,
    LAYOUT,
    LOG_APPEND_TIME,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    TRANSACTIONAL,
    checksum,
)
from protocol.testing.fake_kafka.producer_state import ProducerState, Written, last_sequence
from protocol.testing.fake_kafka.record_batches import marker, read_batch, write_batch
from protocol.testing.fake_kafka.requests import Refused

NO_OFFSET = -1


@dataclass(frozen=True)
class LogBatch:
    """A record batch and its header fields."""

    data: bytes
    base_offset: int
    last_offset: int
    leader_epoch: int
    crc: int
    attributes: int
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int

    @classmethod
    def of(cls, data: bytes) -> LogBatch:
        """Parse the header of a record batch."""
        base, _, epoch, _, crc, attributes, delta, _, max_ms, *producer = LAYOUT.unpack_from(data)
        return cls(data, base, base + delta, epoch, crc, attributes, max_ms, *producer)

    def placed(self, base_offset: int, leader_epoch: int) -> LogBatch:
        """Return the batch with its offset in the log; the checksum covers neither offset nor epoch."""
        data = bytearray(self.data)
        data[0:8] = base_offset.to_bytes(8, "big")
        data[12:16] = leader_epoch.to_bytes(4, "big", signed=True)
        last_offset = base_offset + self.last_offset - self.base_offset
        return replace(
            self, data=bytes(data), base_offset=base_offset, last_offset=last_offset, leader_epoch=leader_epoch
        )

    def with_append_time(self, time_ms: int) -> LogBatch:
        """Return the batch with the time at which a broker appended it, in place of the records' own."""
        data = bytearray(self.data)
        data[21:23] = (self.attributes | LOG_APPEND_TIME).to_bytes(2, "big")
        data[35:43] = time_ms.to_bytes(8, "big")
        data[17:21] = checksum(data).to_bytes(4, "big")
        return LogBatch.of(bytes(data))


def batches_of(data: bytes) -> Iterator[LogBatch]:
    """Split bytes into record batches."""
    position = 0
    while position < len(data):
        size = LOG_OVERHEAD_BYTES + int.from_bytes(data[position + 8 : position + 12], "big")
        if size < HEADER_BYTES or position + size > len(data):
            raise Refused(ErrorCode.CORRUPT_MESSAGE)
        yield LogBatch.of(data[position : position + size])
        position += size


@dataclass(frozen=True)
class AbortedTransaction:
    """An aborted transaction, from its first record to its marker."""

    producer_id: int
    first_offset: int
    last_offset: int


@dataclass
class Log:
    """A log; `epochs` are (leader epoch, start offset), ascending."""

    start_offset: int = 0
    end_offset: int = 0
    batches: list[LogBatch] = field(default_factory=list)
    epochs: list[tuple[int, int]] = field(default_factory=list)
    producers: dict[int, ProducerState] = field(default_factory=dict)
    aborted: list[AbortedTransaction] = field(default_factory=list)

    def copy(self) -> Log:
        """Return a copy, as a follower has it."""
        producers = {key: state.copy() for key, state in self.producers.items()}
        lists = (self.batches.copy(), self.epochs.copy(), producers, self.aborted.copy())
        return Log(self.start_offset, self.end_offset, *lists)

    # -- appending ----------------------------------------------------------------------------

    def begin_epoch(self, leader_epoch: int) -> None:
        """Add a leader epoch that begins at the log end offset."""
        if not self.epochs or self.epochs[-1][0] < leader_epoch:
            self.epochs.append((leader_epoch, self.end_offset))

    def append(
        self, records: bytes, leader_epoch: int, max_bytes: int, append_time_ms: int | None = None
    ) -> tuple[int, int]:
        """Append one record batch of a client; return its base offset, and the offset that acknowledges it.

        A duplicate is not appended. `append_time_ms` replaces the timestamps (`LogAppendTime`). Raises `Refused`.
        """
        batches = list(batches_of(records))
        if len(batches) != 1 or batches[0].data[16] != MAGIC:
            raise Refused(ErrorCode.INVALID_RECORD)
        (batch,) = batches
        if len(batch.data) > max_bytes:
            raise Refused(ErrorCode.MESSAGE_TOO_LARGE)
        if checksum(batch.data) != batch.crc:
            raise Refused(ErrorCode.CORRUPT_MESSAGE)
        state = self.producers.get(batch.producer_id)
        if state is not None:
            before = state.duplicate_of(batch.producer_epoch, batch.base_sequence, batch.count)
            if before is not None:
                return before.base_offset, before.base_offset + batch.count
            state.check_epoch(batch.producer_epoch)
            state.check_sequence(batch.producer_epoch, batch.base_sequence)
            if state.transaction_from is not None and not batch.attributes & TRANSACTIONAL:
                raise Refused(ErrorCode.INVALID_TXN_STATE)
        if append_time_ms is not None:
            batch = batch.with_append_time(append_time_ms)
        self._add(batch.placed(self.end_offset, leader_epoch))
        return self.end_offset - batch.count, self.end_offset

    def append_marker(
        self, producer_id: int, producer_epoch: int, leader_epoch: int, *, commit: bool, now_ms: int
    ) -> None:
        """Append the control batch that ends a transaction."""
        batch = marker(0, producer_id, commit=commit)
        batch = replace(batch, producer_epoch=producer_epoch, first_timestamp=now_ms, max_timestamp=now_ms)
        self._add(LogBatch.of(write_batch(batch)).placed(self.end_offset, leader_epoch))

    def write(self, data: bytes) -> None:
        """Append record batches unchanged, offsets and leader epochs included, without any checks."""
        for batch in batches_of(data):
            if not self.batches:
                self.start_offset = batch.base_offset
            if batch.leader_epoch != NO_LEADER_EPOCH:
                self.begin_epoch(batch.leader_epoch)
            self._add(batch)

    def _add(self, batch: LogBatch) -> None:
        self.batches.append(batch)
        self.end_offset = batch.last_offset + 1
        if batch.producer_id != NO_PRODUCER_ID:
            self._remember(batch)

    def _remember(self, batch: LogBatch) -> None:
        state = self.producers.setdefault(batch.producer_id, ProducerState(batch.producer_epoch))
        if batch.attributes & CONTROL:
            (record,) = read_batch(batch.data).records
            if state.transaction_from is not None and (record.key or b"")[-1:] == b"\0":
                self.aborted.append(AbortedTransaction(batch.producer_id, state.transaction_from, batch.last_offset))
            state.transaction_from = None
            state.begin_epoch(batch.producer_epoch)
            return
        last = last_sequence(batch.base_sequence, batch.count)
        state.add(batch.producer_epoch, Written(batch.base_sequence, last, batch.base_offset))
        if batch.attributes & TRANSACTIONAL and state.transaction_from is None:
            state.transaction_from = batch.base_offset

    def truncate(self, end_offset: int) -> None:
        """Remove the records from this offset on, and the producer state that followed from them."""
        batches = [batch for batch in self.batches if batch.last_offset < end_offset]
        epochs = [(epoch, start) for epoch, start in self.epochs if start < end_offset or start == 0]
        self.batches, self.producers, self.aborted = [], {}, []
        for batch in batches:
            self._add(batch)
        self.end_offset = max(self.start_offset, end_offset)  # compaction may have removed the last batches before it
        self.epochs = epochs

    def delete_before(self, offset: int) -> None:
        """Remove records as retention and DeleteRecords do; a batch that reaches beyond the offset stays.

        The log start offset never decreases.
        """
        self.start_offset = max(self.start_offset, offset)
        self.batches = [batch for batch in self.batches if batch.last_offset >= offset]
        self.end_offset = max(self.end_offset, offset)

    # -- reading ------------------------------------------------------------------------------

    def last_stable_offset(self, high_watermark: int) -> int:
        """Return the last stable offset: all transactions before it are complete."""
        opened = [
            producer.transaction_from for producer in self.producers.values() if producer.transaction_from is not None
        ]
        return min([high_watermark, *opened])

    def read(self, offset: int, end_offset: int, max_bytes: int, *, at_least_one: bool) -> bytes:
        """Return batches from the one with this offset on; the last may be partial.

        Empty if the first is larger than `max_bytes`, unless `at_least_one`.
        """
        batches = [
            batch.data for batch in self.batches if offset <= batch.last_offset and batch.base_offset < end_offset
        ]
        if not batches or (len(batches[0]) > max_bytes and not at_least_one):
            return b""
        return b"".join(batches)[: max(max_bytes, len(batches[0]))]

    def aborted_between(self, offset: int, end_offset: int) -> list[AbortedTransaction]:
        """Return the aborted transactions with records in a range of offsets."""
        return [
            transaction
            for transaction in self.aborted
            if transaction.last_offset >= offset and transaction.first_offset < end_offset
        ]

    def offset_at(self, timestamp_ms: int, end_offset: int) -> tuple[int, int, int] | None:
        """Return (offset, timestamp, leader epoch) of the first record at or after a time."""
        for batch in self.batches:
            if batch.max_timestamp_ms < timestamp_ms or batch.last_offset < self.start_offset:
                continue
            read = read_batch(batch.data)
            for record in read.records:
                at_ms, offset = read.timestamp_of(record), batch.base_offset + record.offset_delta
                if at_ms >= timestamp_ms and self.start_offset <= offset < end_offset:
                    return offset, at_ms, batch.leader_epoch
        return None

    def offset_of_max_timestamp(self, end_offset: int) -> tuple[int, int, int] | None:
        """Return (offset, timestamp, leader epoch) of the first record with the largest timestamp."""
        largest = max(
            (batch.max_timestamp_ms for batch in self.batches if batch.last_offset < end_offset), default=None
        )
        return None if largest is None else self.offset_at(largest, end_offset)

    def epoch_at(self, offset: int) -> int:
        """Return the leader epoch of an existing or future offset."""
        return max((epoch for epoch, start in self.epochs if start <= offset), default=NO_LEADER_EPOCH)

    def common_end(self, other: Log) -> int:
        """Return the offset up to which both logs have the same records, by their leader epochs (KIP-101)."""
        common_epochs = {epoch for epoch, _ in self.epochs} & {epoch for epoch, _ in other.epochs}
        if not common_epochs:
            return 0 if self.epochs or other.epochs else min(self.end_offset, other.end_offset)
        newest = max(common_epochs)
        return min(self.end_of_epoch(newest)[1], other.end_of_epoch(newest)[1])

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        """Return the latest epoch up to this one, and its end offset; (-1, -1) if the log has only newer epochs."""
        if epoch == NO_LEADER_EPOCH or not self.epochs or epoch > self.epochs[-1][0]:
            return NO_LEADER_EPOCH, NO_OFFSET
        if epoch == self.epochs[-1][0]:
            return epoch, self.end_offset
        later = next(start for later_epoch, start in self.epochs if later_epoch > epoch)
        return max((earlier_epoch for earlier_epoch, _ in self.epochs if earlier_epoch <= epoch), default=epoch), later
