"""The queue of one partition: the batches to send next, and the consequences of each reply. Sans-IO.

sarama's `partitionProducer`. Called by `sender`, which knows the brokers, and by `broker_producer`, which communicates
with one of them.

One rule keeps the order: after a failed batch, nothing is sent until all batches in flight are answered. Then sending
restarts from the oldest batch, one at a time, with the same sequence numbers.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from protocol.base.clock import Backoff
from protocol.broker_errors import ErrorCode, broker_error, error_row
from protocol.errors import DeadlineExceeded, KafkaError
from protocol.kafka_terms import NO_SEQUENCE, NO_TIMESTAMP_MS
from protocol.producer.idempotence import ProducerIdentity, Sequences, comes_before, sequence_after
from protocol.producer.producer_batch import ProducerBatch
from protocol.producer.results import BatchResult, ProducedRange
from protocol.records.decode import decode
from protocol.records.encode import EncodedBatch
from protocol.records.memory_records import read_batch_headers
from protocol.records.record_columns import NAMES, record_columns
from protocol.settings.property_kinds import MAX_INT32

# A retry closer to the deadline than this would have no time for a reply.
_LEAST_TIME_S = 0.2

_RETRY_SLOT_S = 0.05

_TOO_LARGE = (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE)

# Codes that prove that this try wrote nothing. After other failures, the records may be in the log. For example,
# NOT_LEADER_OR_FOLLOWER may end a wait for replication although the next leader has the records.
_NOT_WRITTEN = frozenset(
    {
        *_TOO_LARGE,
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.INVALID_RECORD,
        ErrorCode.INVALID_TIMESTAMP,
        ErrorCode.INVALID_REQUIRED_ACKS,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.TRANSACTION_ABORTABLE,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
        ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        ErrorCode.POLICY_VIOLATION,
    }
)


Encode = Callable[[pa.RecordBatch, Sequence[int], npt.NDArray[np.int64] | None], list[EncodedBatch]]
"""As `encode_batches`: columns, rows per record batch, and the row order (None: unchanged)."""


@dataclass
class PartitionProducer:
    """The queue of one partition. The driver calls `next_batch`, then `sending`, then one of the result methods.

    `encode` encodes the two halves of a batch that is too large for the broker.

    Batches fail in three ways. `_fail`: one batch at once, if it is certainly not written; otherwise as in the second
    way. `_fail_all_when_answered`: the queue, once nothing is in flight. `drop`: the queue at once, if no reply will be
    passed on any more. `unsendable` and `expire` use the first, `abandon` the second.
    """

    topic: str
    partition: int
    max_in_flight: int
    retries: int
    delivery_timeout_s: float
    backoff: Backoff
    encode: Encode
    acknowledged: ProducedRange = field(default_factory=ProducedRange)
    completed: list[ProducerBatch] = field(default_factory=list)
    """Completed batches, which the driver takes."""
    splits: int = 0
    """Number of batches split so far."""
    in_flight: int = 0
    leader_id: int = -1
    sent_at_s: float = 0.0
    waits_since_s: float = 0.0
    """Time since which the leader has accepted nothing, if batches wait."""
    sequences: Sequences | None = None
    """None: call `begin` before sending, with the session's successor of `broken_identity` if that is set, else with
    its identity."""
    broken_identity: ProducerIdentity | None = None
    _queue: deque[ProducerBatch] = field(default_factory=deque)
    _retry_at_s: float = 0.0
    _draining: bool = False
    """Nothing is sent until all batches in flight are answered."""
    _restart: bool = False
    """After draining, sequence numbers begin at 0 again, with another epoch."""
    _gap_from: int | None = None
    """Sequence number of the first batch that failed unwritten. Batches before it are answered first; then those behind
    it get new numbers."""
    _given_up: KafkaError | None = None
    """After draining, the whole queue fails with this error."""

    @property
    def name(self) -> str:
        """Topic and partition for messages."""
        return f"{self.topic}-{self.partition}"

    @property
    def idle(self) -> bool:
        """True if no batch waits or is in flight."""
        return not self._queue

    @property
    def unsent(self) -> int:
        """Number of batches not in flight."""
        return len(self._queue) - self.in_flight

    @property
    def failure_suffix(self) -> str:
        """The last failure of the oldest batch as the end of a sentence; "" if there is none."""
        failure = self._queue[0].last_error if self._queue else None
        return f"; the last failure: {failure}" if failure else ""

    def due_s(self, after_s: float) -> float | None:
        """Return the next time after `after_s` at which a retry or a delivery timeout is due; None if none is."""
        if self.idle or self.in_flight:
            return None
        return min((at_s for at_s in (self._retry_at_s, self.expires_at_s) if at_s > after_s), default=None)

    def append(self, batch: ProducerBatch) -> None:
        """Add a batch at the end of the queue."""
        if not self.unsent:
            self.waits_since_s = max(self.waits_since_s, batch.created_s)
        self._queue.append(batch)

    # -- sending ------------------------------------------------------------------------------

    def next_batch(self, now_s: float) -> ProducerBatch | None:
        """Return the batch to send now, or None."""
        if self._draining or now_s < self._retry_at_s or self.in_flight >= len(self._queue):
            return None
        alone = self.sequences is None or not self.sequences.confirmed
        if self.in_flight >= (1 if alone else self.max_in_flight):
            return None
        # Unless draining, the batches in flight are the front of the queue.
        batch = self._queue[self.in_flight]
        if self._gap_from is not None and not self._is_before_gap(batch):
            return None
        # A retried batch is sent alone: newer batches could push it out of the five batches that the broker remembers,
        # and the broker could then not detect a duplicate.
        if self.in_flight and (batch.attempts or self._queue[0].attempts > 1):
            return None
        return batch

    def begin(self, identity: ProducerIdentity) -> None:
        """Restart the sequence numbers at 0 with this identity. No batch is in flight."""
        self.sequences = Sequences(identity)
        self.broken_identity = None
        for batch in self._queue:
            batch.base_sequence = NO_SEQUENCE

    def sending(self, batch: ProducerBatch, leader_id: int, now_s: float) -> None:
        """Record that the batch is being sent; assign its sequence numbers on the first try."""
        assert self.sequences is not None
        if batch.base_sequence == NO_SEQUENCE:
            batch.base_sequence = self.sequences.take(batch.record_count)
        batch.attempts += 1
        batch.in_flight = True
        self.in_flight += 1
        self.leader_id = leader_id
        self.sent_at_s = self.waits_since_s = now_s

    # -- results ------------------------------------------------------------------------------

    def written(self, batch: ProducerBatch, base_offset: int, log_append_time_ms: int = -1) -> None:
        """Complete a written batch; `base_offset` is -1 if unknown."""
        self._returned(batch)
        self._queue.remove(batch)
        self._end(batch, BatchResult(base_offset, log_append_time_ms))
        self.acknowledged = self.acknowledged.plus(base_offset, batch.record_count)
        self.backoff.reset()
        if self.sequences is not None:
            self.sequences.confirmed = True
        if self._is_behind_gap(batch):
            # The broker accepted a batch behind the gap, so for the broker there is no gap.
            self._gap_from = None
        self._finish_draining()

    def refused(
        self,
        batch: ProducerBatch,
        code: int,
        where: str,
        now_s: float,
        detail: str | None = None,
        *,
        at_once: bool = False,
    ) -> None:
        """Handle an error code of `broker_errors`. The batch may be written, unless the code is in `_NOT_WRITTEN`.

        For messages: `where` is the broker and the version, `detail` the broker's own message. `at_once`: a retriable
        error is retried without a back-off, since the new leader is known.
        """
        self._returned(batch)
        error = self._error(batch, code, where, detail)
        batch.note(error)
        is_oldest = self._queue[0] is batch
        if code not in _NOT_WRITTEN:
            batch.maybe_written = True
        if code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            if is_oldest and self._gap_from is None:
                self._fail_all_when_answered(self._lost_by_broker(error))
            else:
                # Out of order because of an earlier batch's failure.
                self._retry(now_s)
        elif code == ErrorCode.UNKNOWN_PRODUCER_ID:
            if is_oldest and batch.maybe_written:
                self._fail_all_when_answered(error)
            else:  # brokers with this code refuse late copies of later batches as well
                self._restart = self._restart or is_oldest
                self._retry(now_s)
        elif code in _TOO_LARGE and batch.record_count > 1:
            self._split(batch)
        elif error_row(code).retriable and batch.attempts <= self.retries:
            self._retry(now_s, at_once=at_once)
        else:
            self._fail(batch, error)
        self._finish_draining()

    def lost(self, batch: ProducerBatch, error: KafkaError, now_s: float) -> None:
        """Handle a sent batch without a reply: it may be written."""
        self._returned(batch)
        batch.maybe_written = True
        batch.note(error)
        if batch.attempts <= self.retries:
            self._retry(now_s)
        else:
            self._fail(batch, error)
        self._finish_draining()

    def not_sent(self, batch: ProducerBatch, error: KafkaError, now_s: float) -> None:
        """Retry a batch that was not sent: no connection, or a failure before the last byte. Not counted as a try."""
        self._returned(batch)
        batch.attempts -= 1
        batch.note(error)
        self._retry(now_s)
        self._finish_draining()

    def unsendable(self, batch: ProducerBatch, error: KafkaError) -> None:
        """Fail a batch that no request to this broker can contain."""
        self._returned(batch)
        batch.attempts -= 1
        self._fail(batch, error)
        self._finish_draining()

    def drop(self, error: KafkaError) -> None:
        """Fail all batches, also those in flight, for which no result method may be called afterwards."""
        for batch in self._queue:
            self._end(batch, BatchResult(error=error))
        self._queue.clear()

    def postpone(self, error: KafkaError, now_s: float) -> None:
        """Back off, because the partition has no leader."""
        if self._queue:
            self._queue[0].note(error)
        self._back_off(now_s)

    def abandon(self, error: KafkaError) -> None:
        """Send nothing more; fail all batches once those in flight are answered."""
        self._fail_all_when_answered(error)
        self._finish_draining()

    def expire(self, now_s: float) -> None:
        """Fail batches older than `delivery.timeout.ms`, counted from their hand-over to the sender."""
        while self._queue and not self.in_flight:
            batch = self._queue[0]
            if now_s < self.expires_at_s:
                return
            error = DeadlineExceeded(
                f"{self.name}: {batch.record_count} records were not acknowledged in {self.delivery_timeout_s:.0f} s "
                f"(delivery.timeout.ms) and {batch.attempts} attempt(s){self.failure_suffix}",
                topic=self.topic,
                partition=self.partition,
                attempts=batch.attempts,
                settings=("delivery.timeout.ms",),
            )
            error.__cause__ = batch.last_error
            self._fail(batch, error)
            self._finish_draining()

    def deadline_s(self, batch: ProducerBatch) -> float:
        """Return the end of the batch's delivery timeout."""
        return batch.created_s + self.delivery_timeout_s

    def take_completed(self) -> list[ProducerBatch]:
        """Return and clear the batches completed since the last call."""
        completed, self.completed = self.completed, []
        return completed

    # -- inside -------------------------------------------------------------------------------

    @property
    def expires_at_s(self) -> float:
        """Time at which the oldest batch expires; infinity without one."""
        if not self._queue:
            return float("inf")
        batch = self._queue[0]
        return self.deadline_s(batch) - (_LEAST_TIME_S if batch.attempts else 0.0)

    def _end(self, batch: ProducerBatch, result: BatchResult) -> None:
        batch.result = result
        self.completed.append(batch)

    def _returned(self, batch: ProducerBatch) -> None:
        batch.in_flight = False
        self.in_flight -= 1

    def _retry(self, now_s: float, *, at_once: bool = False) -> None:
        if not self._draining and not at_once:
            self._back_off(now_s)
        self._draining = True

    def _back_off(self, now_s: float) -> None:
        # Partitions that failed together retry together, in one request.
        self._retry_at_s = math.ceil((now_s + self.backoff.next_s()) / _RETRY_SLOT_S) * _RETRY_SLOT_S

    def _fail(self, batch: ProducerBatch, error: KafkaError) -> None:
        if batch.maybe_written:
            self._fail_all_when_answered(error)
            return
        self._queue.remove(batch)
        self._end(batch, BatchResult(error=error))
        if batch.base_sequence != NO_SEQUENCE:
            self._draining = True
            if self._gap_from is None or self._is_before_gap(batch):
                self._gap_from = batch.base_sequence

    def _is_before_gap(self, batch: ProducerBatch) -> bool:
        gap, number = self._gap_from, batch.base_sequence
        return gap is not None and number != NO_SEQUENCE and comes_before(number, gap)

    def _is_behind_gap(self, batch: ProducerBatch) -> bool:
        gap, number = self._gap_from, batch.base_sequence
        return gap is not None and number != NO_SEQUENCE and not comes_before(number, gap)

    def _fail_all_when_answered(self, error: KafkaError) -> None:
        """Fail the queue: the records of a batch may be in the log, so later ones cannot be ordered behind them."""
        self._draining = True
        if self._given_up is None:
            self._given_up = error

    def _split(self, batch: ProducerBatch) -> None:
        """Replace a batch that is too large by two halves (KIP-126). Records keep their sequence numbers."""
        self.splits += 1
        half = batch.record_count // 2
        counts = [half, batch.record_count - half]
        encoded = list(self.encode(_rows(batch), counts, None))
        at = self._queue.index(batch)
        self._queue.remove(batch)
        first = 0
        for nth, records in enumerate(encoded):
            part = ProducerBatch(
                self.topic,
                self.partition,
                records,
                counts[nth],
                batch.created_s,
                original=batch.original or batch,
                first_row=batch.first_row + first,
                maybe_written=batch.maybe_written,
                last_error=batch.last_error,
                compression_ratio=batch.compression_ratio,
            )
            if batch.base_sequence != NO_SEQUENCE:
                part.base_sequence = sequence_after(batch.base_sequence, first)
            self._queue.insert(at + nth, part)
            first += counts[nth]
        self._draining = True

    def _finish_draining(self) -> None:
        """Prepare the remaining batches for a restart once no batch is in flight after a failure."""
        if self.in_flight or not (self._draining or self._gap_from is not None):
            return
        self._draining = False
        if self._given_up is not None:
            self.drop(self._unknown_outcome(self._given_up))
            self._given_up = None
            self._restart = True
        behind = list(filter(self._is_behind_gap, self._queue))
        if any(batch.maybe_written for batch in behind):
            # A late copy of a request must not write a batch behind the gap: the next epoch makes brokers refuse it.
            if any(map(self._is_before_gap, self._queue)):
                return  # these may be written, and keep their epoch; they are sent first
            self._restart = True
        if self._restart and self.sequences is not None:
            self.broken_identity = self.sequences.identity
            self.sequences = None
        elif self._gap_from is not None and self.sequences is not None:
            # Batches behind the gap were refused, so their numbers are free. Batches before it may be written.
            self.sequences.next = self._gap_from
            for batch in behind:
                batch.base_sequence = self.sequences.take(batch.record_count)
        self._restart = False
        self._gap_from = None

    # -- messages -----------------------------------------------------------------------------

    def _error(self, batch: ProducerBatch, code: int, where: str, detail: str | None) -> KafkaError:
        problem = f"Produce of {batch.record_count} records to {self.name} at {where}"
        if code in _TOO_LARGE:
            problem += (
                f", a record batch of {len(batch.records)} bytes (raise max.message.bytes of the topic, or "
                "message.max.bytes of the brokers, or write smaller records)"
            )
        if detail:
            problem += f" [{detail}]"
        return broker_error(
            code,
            problem,
            api="Produce",
            topic=self.topic,
            partition=self.partition,
            attempts=batch.attempts,
            records=batch.record_count,
        )

    def _lost_by_broker(self, error: KafkaError) -> KafkaError:
        return type(error)(
            f"{error}. The broker has lost records that it acknowledged before: its log was truncated (unclean leader "
            f"election), or the topic was deleted and created again. This producer had {self.acknowledged.count} "
            f"records acknowledged there, up to offset {self.acknowledged.last_offset}; write the missing ones again",
            **error.context,
        )

    def _unknown_outcome(self, error: KafkaError) -> KafkaError:
        unknown = sum(batch.record_count for batch in self._queue if batch.maybe_written)
        waiting = sum(batch.record_count for batch in self._queue) - unknown
        if not unknown and not waiting:
            return error
        result = type(error)(
            f"{error}. Of {self.name}, {unknown} records have an unknown outcome (written or not) and "
            f"{waiting} behind them were not written",
            **{**error.context, "unknown_records": unknown, "unwritten_records": waiting},
        )
        result.__cause__ = error.__cause__
        return result


def _rows(batch: ProducerBatch) -> pa.RecordBatch:
    """Decode the rows of a record batch."""
    batches = decode(
        read_batch_headers(batch.records),
        first_offset=0,
        end_offset=batch.record_count,
        columns=NAMES,
        check_crc=False,
        max_decompressed_bytes=MAX_INT32,  # `batch.size` has limited it
    )
    return record_columns(pa.Table.from_batches(list(batches)), NO_TIMESTAMP_MS)
