"""The state of one partition or range being read: position, size of the next Fetch, and its replies. Sans-IO.

Only its own methods set its fields. `fetch_request` requests many of them at once; `bounded_reader` and
`partition_fetcher` own them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from protocol.base.clock import Backoff
from protocol.broker_errors import ErrorCode, broker_error
from protocol.cluster.metadata import Broker
from protocol.cluster.unknown_topic import UnknownTopicTimer
from protocol.config import ConsumerConfig
from protocol.errors import BrokerError, KafkaError, LogTruncated, ProtocolError
from protocol.fetch import log_offsets
from protocol.fetch.log_offsets import Range
from protocol.kafka_terms import NO_LEADER_EPOCH, NO_REPLICA, NO_TOPIC_ID, TopicPartition
from protocol.position import Position, RecordPositions
from protocol.records.decode import RowFilter, decode
from protocol.records.memory_records import MemoryRecords, read_batch_headers

P = TypeVar("P", bound="FetchPosition")

UNBOUNDED = 2**63 - 1
_NO_END = Position(UNBOUNDED)

_NOT_HOSTED = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.INCONSISTENT_TOPIC_ID)

_MIN_FETCH_BYTES = 64 * 1024
# The size of records is unknown before the first reply. A larger record still arrives, since a broker always sends at
# least one complete record batch (KIP-74).
_GUESSED_RECORD_BYTES = 1024


@dataclass(frozen=True)
class CompletedFetch:
    """The records of one partition in a reply, which cover the offsets from `start` to `next_offset`."""

    records: MemoryRecords
    start: Position
    next_offset: int
    aborted_transactions: list[dict[str, Any]] | None

    @property
    def record_bytes(self) -> int:
        """Bytes of the record batches."""
        return self.records.buffer.nbytes

    def positions(self) -> RecordPositions:
        """Return the positions of the records."""
        headers = self.records.headers
        epochs = headers["partition_leader_epoch"]
        first = np.flatnonzero(np.append(True, epochs[1:] != epochs[:-1]))
        changes = zip(headers["base_offset"][first].tolist(), epochs[first].tolist(), strict=True)
        return RecordPositions(self.start, tuple(changes))

    def decode(
        self,
        config: ConsumerConfig,
        columns: Collection[str],
        where: str,
        until_offset: int = UNBOUNDED,
        row_filter: RowFilter | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Decode the records before `until_offset` as configured by `config`; see `protocol.records.decode`."""
        return decode(
            self.records,
            first_offset=self.start.offset,
            end_offset=min(until_offset, self.next_offset),
            aborted_transactions=self.aborted_transactions if config.isolation_level == "read_committed" else None,
            columns=columns,
            max_decompressed_bytes=config.max_decompressed_batch_bytes,
            check_crc=config.check_crcs,
            where=where,
            row_filter=row_filter,
        )


class Route(NamedTuple):
    """The broker to fetch a partition from (the leader, or the replica it named), the leader epoch and the topic id."""

    broker: Broker
    leader_epoch: int
    topic_id: bytes


class FetchPosition:
    """The fetching of one partition, from `position` up to, not including, the offset of `until`.

    Partitions that are read together share `record_bytes`: bytes per offset by topic, as last seen.

    Thread rule: an open partition is changed by the thread of its broker, which handles replies without a lock, and by
    the leader thread while no broker's thread fetches it. Other threads replace it (`at`) under the lock, and read
    single fields at any time. The reader's thread calls only `postpone`, while an error stops the fetches.

    `position`: the next record to fetch; `FetchBuffer.position` is the next one to deliver. Each Fetch (since version
    12) has its leader epoch. The topic must keep its id.
    `assigned_topic_id`: id of the only topic of this name that may be read; zeros: of any.
    `until`: the end of the records to fetch, without end by default. With a leader epoch: a record below the offset
    with a newer epoch was written after a truncation.
    `confirmed_epoch`: newest leader epoch whose leader had all records before `until`. If the log of a newer leader
    seems to end before `until`, the leader is queried, and may confirm the end (`confirm_end`).
    `broker`: the leader, or the replica in the client's rack that the leader named. None: it must be resolved.
    `leader_epoch`: epoch of the leader that was resolved; -1 if unknown.
    `routed_at_s`: time of the last resolution.
    `preferred_replica`: node id of the replica named by the leader, -1 if none.
    `high_watermark`, `last_stable_offset`: from the last reply of this topic; -1 before the first.
    `failure`: the last failure since the last successful reply.
    `retry_at_s`: time of the next try after a failure.
    `batch_retry_at_s`: time from which the broker may be resolved together with those of other partitions.
    """

    def __init__(
        self,
        topic: str,
        partition: int,
        position: Position,
        config: ConsumerConfig,
        *,
        until: Position = _NO_END,
        assigned_topic_id: bytes = NO_TOPIC_ID,
        backoff: Backoff | None = None,
        record_bytes: dict[str, float] | None = None,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.position = position
        self.until = until
        self.assigned_topic_id = assigned_topic_id
        self.confirmed_epoch = until.leader_epoch
        self.broker: Broker | None = None
        self.routed_at_s = 0.0
        self.leader_epoch = NO_LEADER_EPOCH
        self.preferred_replica = NO_REPLICA
        self.high_watermark = -1
        self.last_stable_offset = -1
        self.failure: KafkaError | None = None
        self.retry_at_s = 0.0
        self.batch_retry_at_s = 0.0
        self._backoff = backoff or Backoff(100, 1_000)
        self._config = config
        self._record_bytes = {} if record_bytes is None else record_bytes
        self._at_least_bytes = 0
        # The caller gave the leader epoch of `position`; no record has confirmed it.
        self._epoch_from_caller = True
        self._stale_since_s: float | None = None

    @property
    def name(self) -> str:
        """Topic and partition for messages."""
        return f"{self.topic}-{self.partition}"

    @property
    def topic_partition(self) -> TopicPartition:
        """Topic name and partition number."""
        return self.topic, self.partition

    @property
    def offset(self) -> int:
        """Offset of the next record to fetch."""
        return self.position.offset

    @property
    def topic_id(self) -> bytes:
        """Id of the topic that is read; zeros if unknown."""
        return self.position.topic_id

    @property
    def until_offset(self) -> int:
        """Offset after the last record to fetch."""
        return self.until.offset

    @property
    def known_epoch(self) -> int:
        """The newest leader epoch known for this topic id; -1 if unknown."""
        return NO_LEADER_EPOCH if self.topic_id == NO_TOPIC_ID else self.position.leader_epoch

    @property
    def done(self) -> bool:
        """True at the end of the range."""
        return self.offset >= self.until_offset

    @property
    def attempts(self) -> int:
        """Number of failures since the last successful reply."""
        return self._backoff.tries

    # -- requests -----------------------------------------------------------------------------

    def fetch_bytes(self) -> int:
        """Return the bytes to request: the estimated rest of the range, within the configured limits.

        A small range in a long log must not transfer a complete `max.partition.fetch.bytes`.
        """
        record_bytes = self._record_bytes.get(self.topic, _GUESSED_RECORD_BYTES)
        range_bytes = int((self.until_offset - self.offset) * record_bytes * 1.1)
        limit = min(self._config.max_partition_fetch_bytes, self._config.fetch_max_bytes)
        return max(min(max(_MIN_FETCH_BYTES, range_bytes), limit), self._at_least_bytes)

    def request_row(self) -> dict[str, Any]:
        """Return the partition's row of a Fetch request."""
        return {
            "partition": self.partition,
            "current_leader_epoch": self.leader_epoch,
            "fetch_offset": self.offset,
            "last_fetched_epoch": self.position.leader_epoch,
            "partition_max_bytes": self.fetch_bytes(),
        }

    def seek(self, position: Position) -> None:
        """Continue at `position`: in the topic that is read, unless the position has the id of another one."""
        if not position.is_in(self.topic_id):
            self.leader_epoch = NO_LEADER_EPOCH
            self.high_watermark = self.last_stable_offset = -1
            self.leave_broker()
        self.position = position.assumed_in(self.topic_id)
        self._epoch_from_caller = True
        self._stale_since_s = None
        self._at_least_bytes = 0

    def at(self, position: Position) -> FetchPosition:
        """Return a copy at `position`, which replies to this object do not affect."""
        fetch_position = copy(self)
        fetch_position.seek(position)
        broker = fetch_position.broker
        if broker is not None and broker.node_id != fetch_position.preferred_replica:
            # The broker's thread may be changing both fields.
            fetch_position.preferred_replica = NO_REPLICA
        return fetch_position

    def end_at(self, offset: int) -> None:
        """Fetch no records from this offset on."""
        self.until = replace(self.until, offset=offset)

    def route(self, route: Route, now_s: float) -> None:
        """Handle that the broker was resolved."""
        self.position = self.position.assumed_in(route.topic_id)
        self.leader_epoch = route.leader_epoch
        self.routed_at_s = now_s
        # Set last, since the broker's thread fetches the partition as soon as it is set.
        self.broker = route.broker

    def leave_broker(self) -> None:
        """Forget the broker, so that it is resolved again."""
        self.broker, self.preferred_replica = None, NO_REPLICA

    def drop_stale_epoch(self, now_s: float) -> None:
        """Handle that a leader is older than the position: forget the epoch if leaders have been older for 30 s.

        The epoch of a committed offset may be that of an earlier topic of the same name. One that was read here stays.
        """
        if self._stale_since_s is None:
            self._stale_since_s = now_s
        if self._epoch_from_caller and now_s - self._stale_since_s >= log_offsets.STALE_LEADER_MS / 1000:
            self.drop_epoch()

    def drop_epoch(self) -> None:
        """Forget the leader epoch of the position: Fetches do not compare it any more."""
        self.position = replace(self.position, leader_epoch=NO_LEADER_EPOCH)

    def confirm_end(self, *, keep_epoch: bool) -> None:
        """Record that the leader has all records before `until`.

        `keep_epoch`: check again after the next election. Otherwise, the range is never checked again: brokers other
        than Kafka's may number the epochs of record batches differently.
        """
        if keep_epoch:
            self.confirmed_epoch = self.leader_epoch
        else:
            self.until = replace(self.until, leader_epoch=NO_LEADER_EPOCH)
            self.confirmed_epoch = NO_LEADER_EPOCH

    def postpone(self, error: KafkaError, now_s: float, *, at_once: bool = False) -> None:
        """Record a retriable failure: back off unless `at_once`, and resolve the broker again."""
        self.failure = error
        wait_s = 0.0 if at_once else self._backoff.next_s()
        self.retry_at_s = now_s + wait_s
        self.batch_retry_at_s = now_s + wait_s / 2
        self.leave_broker()

    # -- replies ------------------------------------------------------------------------------

    def handle_response(self, row: Mapping[str, Any], broker: object) -> CompletedFetch | None:
        """Read the partition's row of a Fetch reply, and advance the position.

        Returns None if there are no records (end of the log, throttling, or another replica to read from).
        Raises `BrokerError`: the row has an error code. `LogTruncated`: the log has lost records that were read.
        `ProtocolError`: a record batch exceeds `fetch.max.bytes`.
        """
        code = row["error_code"]
        if code != ErrorCode.NONE:
            hint = ""
            if code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE:
                hint = " (its record batches are zstd-compressed, which needs Fetch version 10: Kafka 2.1)"
            raise broker_error(
                code,
                f"Fetch of {self.name} at offset {self.offset} from {broker}{hint}",
                api="Fetch",
                topic=self.topic,
                partition=self.partition,
                offset=self.offset,
            )
        self.high_watermark = row["high_watermark"]
        self.last_stable_offset = row["last_stable_offset"]
        fetched = self._read(row, broker)
        self._stale_since_s = None
        # A leader that names a replica has sent nothing: the failure may be that of the replica.
        if row["preferred_read_replica"] == NO_REPLICA:
            self.record_success()
        return fetched

    def record_success(self) -> None:
        """Forget the last failure: the broker has answered. A session's reply omits unchanged partitions."""
        if self.failure is not None:
            self.failure = None
            self._backoff.reset()

    def _read(self, row: Mapping[str, Any], broker: object) -> CompletedFetch | None:
        data = row["records"]
        if not data:
            self._handle_empty(row, broker)
            return None
        records = read_batch_headers(data, self.name)
        if records.next_offset is None:
            self._grow(records.partial_bytes)
            return None
        start = self.position
        if records.next_offset <= start.offset:
            raise ProtocolError(
                f"{self.name}: {broker} sent only records before offset {start.offset}, which were not requested"
            )
        batches = self._count_before_newer_epoch(records, broker)
        next_offset = records.next_offset
        if batches < len(records.headers):
            next_offset = int(records.headers["last_offset"][batches - 1]) + 1
        epoch = int(records.headers["partition_leader_epoch"][batches - 1])
        self.position = Position(next_offset, epoch, topic_id=start.topic_id)
        self._epoch_from_caller = False
        self._record_bytes[self.topic] = max(1.0, records.bytes_per_offset(start.offset))
        self._at_least_bytes = 0
        return CompletedFetch(records, start, next_offset, row["aborted_transactions"])

    def _count_before_newer_epoch(self, records: MemoryRecords, broker: object) -> int:
        """Return how many of the record batches were in the log when `until` was found.

        Raises `LogTruncated`, which the leader must confirm, if there are none.
        """
        offsets, epochs = records.headers["base_offset"], records.headers["partition_leader_epoch"]
        if self.until.leader_epoch == NO_LEADER_EPOCH:
            return len(offsets)
        newer = epochs > self.until.leader_epoch
        batches = int(np.argmax(newer)) if newer.any() else len(offsets)
        end = int(records.headers["last_offset"][batches - 1]) + 1 if batches else self.offset
        # A first newer record behind `until_offset` is suspect, too: compaction may have removed the records that
        # replaced the lost ones.
        if batches == len(offsets) or end >= self.until_offset:
            return len(offsets)
        if end > self.offset:
            return batches
        raise self._truncated(
            self.until_offset,
            f"{broker} has records of leader epoch {epochs[batches]} at offset {offsets[batches]}, and offsets up to "
            f"{self.until_offset} existed in leader epoch {self.until.leader_epoch}",
            record_epoch=int(epochs[batches]),
        )

    def _handle_empty(self, row: Mapping[str, Any], broker: object) -> None:
        from_leader, diverging = self.preferred_replica == NO_REPLICA, row["diverging_epoch"]
        # If the log diverges, the reader first goes back; only then can the end of the log be compared with `until`.
        if from_leader and diverging["end_offset"] < 0:
            self._suspect_truncation(broker)
        # Only a leader's redirection counts, otherwise two replicas could redirect in a circle.
        if row["preferred_read_replica"] != NO_REPLICA and from_leader:
            self.preferred_replica = row["preferred_read_replica"]
            self.broker = None
        if diverging["end_offset"] < 0:
            return
        if diverging["end_offset"] < self.offset:
            raise self._truncated(
                self.offset,
                f"{broker} has the log that was read only up to offset {diverging['end_offset']} (leader epoch "
                f"{diverging['epoch']}; read: {self.position.leader_epoch})",
                f". Offsets {diverging['end_offset']} to {self.offset} were read and now have other records or none",
                end_offset=diverging["end_offset"],
                end_epoch=diverging["epoch"],
            )
        # No record is missing: the leader of that epoch was replaced before its first record.
        self.position = replace(self.position, leader_epoch=diverging["epoch"])

    def _suspect_truncation(self, broker: object) -> None:
        """Raise `LogTruncated`, which the leader must confirm, if an election since `confirmed_epoch` allows it.

        A truncated log gives empty replies if it has no new records, or only those of an open transaction. After a
        clean election, the cause may be a high watermark that lags.
        """
        end = self.high_watermark if self.last_stable_offset < 0 else min(self.high_watermark, self.last_stable_offset)
        if end >= self.until_offset or not NO_LEADER_EPOCH < self.confirmed_epoch < self.leader_epoch:
            return
        raise self._truncated(
            self.until_offset,
            f"{broker} has it up to offset {end} in leader epoch {self.leader_epoch}, and offsets up to "
            f"{self.until_offset} existed in leader epoch {self.until.leader_epoch}",
        )

    def _truncated(self, below: int, cause: str, lost: str = "", **context: int) -> LogTruncated:
        text = f"{self.name}: the log was truncated below offset {below}: {cause}"
        return LogTruncated(
            f"{text}. Likely cause: an unclean leader election{lost}",
            topic=self.topic,
            partition=self.partition,
            offset=self.offset,
            **context,
        )

    def _grow(self, partial_bytes: int) -> None:
        """Handle a truncated record batch: request twice as much, or its size, up to `fetch.max.bytes`."""
        limit = self._config.fetch_max_bytes
        requested_bytes = self.fetch_bytes()
        if requested_bytes >= limit:
            raise ProtocolError(
                f"{self.name}: the record batch at offset {self.offset} has {partial_bytes} bytes, more than "
                f"fetch.max.bytes={limit}: raise it",
                settings=("fetch.max.bytes",),
            )
        self._at_least_bytes = min(limit, max(requested_bytes * 2, partial_bytes))


class RangePosition(FetchPosition):
    """The position in a bounded range, and the time for which its reader has waited for records.

    Times are of a clock that is paused while the caller processes a batch, except those of `FetchPosition`.

    `asked_at_s`: time of the first request for the next records; None if they were not requested yet.
    `unknown`: timer of a missing topic.
    """

    def __init__(
        self,
        source_range: Range,
        config: ConsumerConfig,
        *,
        poll_timeout_s: float,
        first_fetch_bytes: int | None = None,
        backoff: Backoff | None = None,
        record_bytes: dict[str, float] | None = None,
    ) -> None:
        super().__init__(
            source_range.topic,
            source_range.partition,
            source_range.start,
            config,
            until=Position(source_range.until_offset) if source_range.topic_id == NO_TOPIC_ID else source_range.end,
            backoff=backoff,
            record_bytes=record_bytes,
        )
        self.source_range = source_range
        self.asked_at_s: float | None = None
        self.unknown = UnknownTopicTimer.before_skipping()
        self._poll_timeout_s = poll_timeout_s
        self._fetch_bytes = first_fetch_bytes or config.max_partition_fetch_bytes

    @property
    def known_epoch(self) -> int:
        """The newest leader epoch known for this topic id; -1 if unknown."""
        if self.source_range.topic_id == NO_TOPIC_ID:
            return NO_LEADER_EPOCH
        return max(self.position.leader_epoch, self.source_range.until_epoch)

    def drop_stale_epoch(self, now_s: float) -> None:
        """Keep the epoch: the plan of the range has the topic's id."""

    @property
    def first_offset(self) -> int:
        """The first offset to read again if the log was truncated.

        If nothing was read before the range, records before it are not part of it.
        """
        return 0 if self.source_range.from_epoch != NO_LEADER_EPOCH else self.source_range.from_offset

    def fetch_bytes(self) -> int:
        """As `FetchPosition.fetch_bytes`, limited at the start of the range."""
        return max(self._at_least_bytes, min(super().fetch_bytes(), self._fetch_bytes))

    def begin_asking(self, now_s: float) -> None:
        """Record a request for the next records; the first one starts the time."""
        if self.asked_at_s is None:
            self.asked_at_s = now_s

    def served(self) -> None:
        """Record that a reply contained records."""
        self.asked_at_s = None
        self._fetch_bytes *= 2

    def record_lookup(self, error: KafkaError | None, now_s: float) -> None:
        """Record the result of a metadata lookup. Time in which the topic is unknown does not count as waiting."""
        began_s = self.unknown.began_s
        self.unknown.record(error, now_s)
        if began_s is not None and self.unknown.began_s is None and self.asked_at_s is not None:
            self.asked_at_s += now_s - began_s

    def postpone(self, error: KafkaError, now_s: float, *, at_once: bool = False) -> None:
        """As `FetchPosition.postpone`, but look up an unknown topic often enough for its timer."""
        super().postpone(error, now_s, at_once=at_once)
        self.retry_at_s = now_s + self.unknown.wait_s(self.retry_at_s - now_s)

    def waited_s(self, now_s: float) -> float:
        """Return the time since the first request for the next records."""
        return 0.0 if self.asked_at_s is None else now_s - self.asked_at_s

    def deadline_s(self, now_s: float) -> float:
        """Return the time at which the reader gives up.

        It is `poll_timeout_s` after the first request, later if the topic may have been deleted.
        """
        began_s = now_s if self.asked_at_s is None else self.asked_at_s
        at_s = began_s + self._poll_timeout_s
        if self.unknown.began_s is not None:
            at_s = max(at_s, self.unknown.began_s + self.unknown.longest_s)
        if isinstance(self.failure, BrokerError) and self.failure.code in _NOT_HOSTED:
            # A leader may forget a deleted topic before the other brokers do: the metadata decide.
            at_s = max(at_s, began_s + self.unknown.limit_s)
        return at_s

    def is_starved(self, now_s: float) -> bool:
        """Return True if replies came, but no records until the deadline."""
        if self.done or self.asked_at_s is None or self.failure is not None:
            return False
        return now_s >= self.deadline_s(now_s)


def due_for_leaders(partitions: Iterable[P], now_s: float) -> list[P]:
    """Return partitions due for a leader lookup, batched into one Metadata request.

    Returns none until the back-off of one partition is over; then also those whose back-off is half over.
    """
    without_leader = [partition for partition in partitions if partition.broker is None]
    if not any(partition.retry_at_s <= now_s for partition in without_leader):
        return []
    return [partition for partition in without_leader if min(partition.batch_retry_at_s, partition.retry_at_s) <= now_s]
