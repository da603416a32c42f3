"""One partition being read: its position, how much to ask for next, and what each reply means.

sarama's `PartitionConsumer`, without channels. Pure: knows rows of requests and replies, no sockets, no clock.
Used by `broker_consumer`, which asks for many of them at once, and by those who own them: `range_consumer`, `consumer`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from protocol.broker_errors import ErrorCode, broker_error
from protocol.clock import Backoff
from protocol.cluster.metadata import Broker
from protocol.config import ConsumerConfig
from protocol.errors import BrokerError, KafkaError, LogTruncated, ProtocolError
from protocol.kafka_terms import NO_LEADER_EPOCH, NO_REPLICA, NO_TOPIC_ID
from protocol.records.decode import decode
from protocol.records.memory_records import MemoryRecords, read_batch_headers

UNBOUNDED = 2**63 - 1

_SMALLEST_FETCH_BYTES = 64 * 1024
# Before anything was read nobody knows how large this partition's records are; one that is larger still arrives,
# since a broker always sends at least one whole record batch (KIP-74).
_GUESSED_RECORD_BYTES = 1024


@dataclass(frozen=True)
class Fetched:
    """What one reply brought for a partition: `records` cover [position, next_offset).

    `epoch_before` is the leader epoch of the last record before `position`, -1 if unknown.
    """

    records: MemoryRecords
    position: int
    next_offset: int
    epoch_before: int
    aborted_transactions: list[dict[str, Any]] | None

    def epoch_at(self, offset: int) -> int:
        """The leader epoch of the last record before `offset`, of which one is here; -1 if unknown."""
        nth = int(np.searchsorted(self.records.headers["base_offset"], offset)) - 1
        return int(self.records.headers["partition_leader_epoch"][nth])

    def decode(
        self, config: ConsumerConfig, columns: Collection[str], where: str, until_offset: int = UNBOUNDED
    ) -> Iterator[pa.RecordBatch]:
        """Its records before `until_offset` that `config` lets a reader see; see `protocol.records.decode`."""
        return decode(
            self.records,
            first_offset=self.position,
            end_offset=min(until_offset, self.next_offset),
            aborted_transactions=self.aborted_transactions if config.isolation_level == "read_committed" else None,
            columns=columns,
            max_decompressed_bytes=config.max_decompressed_batch_bytes,
            check_crc=config.check_crcs,
            where=where,
        )


class PartitionConsumer:
    """Reads `topic`-`partition` from `position` up to, not including, `until_offset`.

    `record_bytes`, bytes per offset by topic as last seen, is shared by those that are read together.

    Attributes
    ----------
    last_epoch : leader epoch of the last record before `position`, -1 if unknown. The broker compares it with its
        log in every fetch (version 12 and later), so that a truncation below `position` is noticed.
    topic_id : 16 bytes, zeros if unknown; the topic must keep it.
    broker : whom to ask: the leader, or a replica in our rack that it named. None: must be looked up. `routed_at_s`:
        when that was done last.
    preferred_replica : the node id of that replica, -1 without one.
    high_watermark, last_stable_offset : as of the last reply; -1 before the first.
    failure : what went wrong last, None since the last good reply. `retry_at_s`: not to be asked before; from
        `along_at_s` on its broker may be looked up if others' are anyway.
    """

    def __init__(
        self,
        topic: str,
        partition: int,
        position: int,
        config: ConsumerConfig,
        *,
        until_offset: int = UNBOUNDED,
        topic_id: bytes = NO_TOPIC_ID,
        last_epoch: int = NO_LEADER_EPOCH,
        backoff: Backoff | None = None,
        record_bytes: dict[str, float] | None = None,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.position = position
        self.until_offset = until_offset
        self.topic_id = topic_id
        self.last_epoch = last_epoch
        self.broker: Broker | None = None
        self.routed_at_s = 0.0
        self.leader_epoch = NO_LEADER_EPOCH
        self.preferred_replica = NO_REPLICA
        self.high_watermark = -1
        self.last_stable_offset = -1
        self.failure: KafkaError | None = None
        self.retry_at_s = 0.0
        self.along_at_s = 0.0
        self._backoff = backoff or Backoff(100, 1_000)
        self._config = config
        self._record_bytes = {} if record_bytes is None else record_bytes
        self._at_least_bytes = 0

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition}"

    @property
    def known_epoch(self) -> int:
        """The newest leader epoch that this topic has had for sure; -1 if unknown."""
        return NO_LEADER_EPOCH if self.topic_id == NO_TOPIC_ID else self.last_epoch

    @property
    def done(self) -> bool:
        return self.position >= self.until_offset

    @property
    def attempts(self) -> int:
        """How often it was tried in vain since the last good reply."""
        return self._backoff.tries

    # -- what to ask --------------------------------------------------------------------------

    def fetch_bytes(self) -> int:
        """How many bytes to ask for: what is left of the range as far as known, within the configured limit.

        A small range in the middle of a long log must not cost a whole `max.partition.fetch.bytes`.
        """
        record_bytes = self._record_bytes.get(self.topic, _GUESSED_RECORD_BYTES)
        wanted = int((self.until_offset - self.position) * record_bytes * 1.1)
        wanted = min(max(_SMALLEST_FETCH_BYTES, wanted), self._config.max_partition_fetch_bytes)
        return max(wanted, self._at_least_bytes)

    def request_row(self) -> dict[str, Any]:
        """This partition's row of a Fetch request."""
        return {
            "partition": self.partition,
            "current_leader_epoch": self.leader_epoch,
            "fetch_offset": self.position,
            "last_fetched_epoch": self.last_epoch,
            "partition_max_bytes": self.fetch_bytes(),
        }

    def seek(self, offset: int) -> None:
        """Goes on from `offset`; nobody knows the epoch of the record before it."""
        self.position = offset
        self.last_epoch = NO_LEADER_EPOCH
        self._at_least_bytes = 0

    def at(self, offset: int, epoch_before: int = NO_LEADER_EPOCH) -> PartitionConsumer:
        """Another one at `offset`, with all that is known of the partition; a reply to this one leaves it alone."""
        other = copy(self)
        other.seek(offset)
        other.last_epoch = epoch_before
        if other.broker is not None and other.broker.node_id != other.preferred_replica:
            # A broker's thread may be in the middle of a change of both.
            other.preferred_replica = NO_REPLICA
        return other

    def forget_topic(self) -> None:
        """Read whatever topic has the name now. The next look at metadata finds its id."""
        self.topic_id, self.leader_epoch = NO_TOPIC_ID, NO_LEADER_EPOCH
        self.broker, self.preferred_replica = None, NO_REPLICA

    def postpone(self, error: KafkaError, now_s: float) -> None:
        """Notes a failure that may pass: the broker is looked up again, and asked after a while."""
        self.failure = error
        wait_s = self._backoff.next_s()
        self.retry_at_s = now_s + wait_s
        self.along_at_s = now_s + wait_s / 2
        self.broker = None
        self.preferred_replica = NO_REPLICA

    # -- what came ----------------------------------------------------------------------------

    def handle_response(self, row: Mapping[str, Any], broker: object) -> Fetched | None:
        """Reads one partition's row of a Fetch reply; advances the position past what came.

        Returns None when nothing came (an idle log, a throttled reply, the name of a replica to ask instead). Raises
        `BrokerError` for an error code, `LogTruncated`, and `ProtocolError` when a record batch can never arrive whole.
        """
        code = row["error_code"]
        if code != ErrorCode.NONE:
            hint = ""
            if code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE:
                hint = " (its record batches are zstd-compressed, which needs Fetch version 10: Kafka 2.1)"
            raise broker_error(
                code,
                f"Fetch of {self.name} at offset {self.position} from {broker}{hint}",
                api="Fetch",
                topic=self.topic,
                partition=self.partition,
                offset=self.position,
            )
        self.high_watermark = row["high_watermark"]
        self.last_stable_offset = row["last_stable_offset"]
        fetched = self._read(row, broker)
        if self.failure is not None:
            self.failure = None
            self._backoff.reset()
        return fetched

    def _read(self, row: Mapping[str, Any], broker: object) -> Fetched | None:
        data = row["records"]
        if not data:
            self._handle_empty(row, broker)
            return None
        records = read_batch_headers(data, self.name)
        if records.next_offset is None:
            self._grow(records.partial_bytes)
            return None
        position, self.position = self.position, max(self.position, records.next_offset)
        if self.position == position:
            raise ProtocolError(
                f"{self.name}: {broker} sent only records before offset {position}, which were not asked for"
            )
        epoch_before, self.last_epoch = self.last_epoch, int(records.headers["partition_leader_epoch"][-1])
        self._record_bytes[self.topic] = max(1.0, records.bytes_per_offset(position))
        self._at_least_bytes = 0
        return Fetched(
            records=records,
            position=position,
            next_offset=self.position,
            epoch_before=epoch_before,
            aborted_transactions=row["aborted_transactions"],
        )

    def _handle_empty(self, row: Mapping[str, Any], broker: object) -> None:
        # Only a leader sends us on: a replica that does so too would make a circle.
        if row["preferred_read_replica"] != NO_REPLICA and self.preferred_replica == NO_REPLICA:
            self.preferred_replica = row["preferred_read_replica"]
            self.broker = None
        agreed = row["diverging_epoch"]
        if agreed["end_offset"] < 0:
            return
        if agreed["end_offset"] < self.position:
            raise LogTruncated(
                f"{self.name}: the log was truncated below offset {self.position}: at {broker} it is still the one "
                f"that was read only up to offset {agreed['end_offset']} (leader epoch {agreed['epoch']}, read was "
                f"{self.last_epoch}). Likely cause: an unclean leader election. Offsets {agreed['end_offset']} to "
                f"{self.position} were read, and are others now, or none",
                topic=self.topic,
                partition=self.partition,
                offset=self.position,
                end_offset=agreed["end_offset"],
            )
        # Nothing is missing: the leader of that epoch was replaced before it wrote anything.
        self.last_epoch = agreed["epoch"]

    def _grow(self, partial_bytes: int) -> None:
        """A record batch was cut: ask for twice as much, or for what it announces, up to `fetch.max.bytes`."""
        limit = self._config.fetch_max_bytes
        asked = self.fetch_bytes()
        if asked >= limit:
            raise ProtocolError(
                f"{self.name}: the record batch at offset {self.position} has {partial_bytes} bytes, more than "
                f"fetch.max.bytes={limit}: raise it",
                settings=("fetch.max.bytes",),
            )
        self._at_least_bytes = min(limit, max(asked * 2, partial_bytes))


def is_about_the_log(error: KafkaError) -> bool:
    """Whether it says that the log lacks our offset: the leader's word counts, a follower's does not."""
    return isinstance(error, LogTruncated) or (
        isinstance(error, BrokerError) and error.code == ErrorCode.OFFSET_OUT_OF_RANGE
    )


def to_look_up(partitions: Iterable[PartitionConsumer], now_s: float) -> list[PartitionConsumer]:
    """Whose broker is to be looked up now: nobody's before one has waited long enough, then all that may come along.

    What fails together is tried again at slightly different times, and must not cost a request each.
    """
    homeless = [each for each in partitions if each.broker is None]
    if not any(each.retry_at_s <= now_s for each in homeless):
        return []
    return [each for each in homeless if min(each.along_at_s, each.retry_at_s) <= now_s]
