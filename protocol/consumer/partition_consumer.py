"""One partition being read: its position, how much to ask for next, and the judgement of each reply.

sarama's `PartitionConsumer`, without channels. Pure: knows rows of requests and replies, no sockets, no clock.
Used by `range_consumer`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from protocol.broker_errors import ErrorCode, broker_error
from protocol.config import ConsumerConfig
from protocol.errors import ProtocolError
from protocol.records.scan import Scan, scan

_SMALLEST_FETCH_BYTES = 64 * 1024
# Before anything was read nobody knows how large this partition's records are; one that is larger still arrives,
# since a broker always sends at least one whole record batch (KIP-74).
_GUESSED_RECORD_BYTES = 1024


@dataclass(frozen=True)
class Fetched:
    """What one reply brought for a partition: `records` cover [position, next_offset)."""

    records: Scan
    position: int
    next_offset: int
    aborted_transactions: list[dict[str, Any]] | None
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int


class PartitionConsumer:
    """Reads `topic`-`partition` from `position` up to, not including, `until_offset`."""

    def __init__(self, topic: str, partition: int, position: int, until_offset: int, config: ConsumerConfig) -> None:
        self.topic = topic
        self.partition = partition
        self.position = position
        self.until_offset = until_offset
        self._config = config
        self._record_bytes: float = _GUESSED_RECORD_BYTES
        self._at_least_bytes = 0

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition}"

    @property
    def done(self) -> bool:
        return self.position >= self.until_offset

    def fetch_bytes(self) -> int:
        """How many bytes to ask for: what is left of the range as far as known, within the configured limit.

        A small range in the middle of a long log must not cost a whole `max.partition.fetch.bytes`.
        """
        wanted = int((self.until_offset - self.position) * self._record_bytes * 1.1)
        wanted = min(max(_SMALLEST_FETCH_BYTES, wanted), self._config.max_partition_fetch_bytes)
        return max(wanted, self._at_least_bytes)

    def request_row(self, leader_epoch: int) -> dict[str, Any]:
        """This partition's row of a Fetch request."""
        return {
            "partition": self.partition,
            "current_leader_epoch": leader_epoch,
            "fetch_offset": self.position,
            "partition_max_bytes": self.fetch_bytes(),
        }

    def judge(self, row: Mapping[str, Any], broker: object) -> Fetched | None:
        """Reads one partition's row of a Fetch reply; advances the position past what came.

        Returns None when nothing came (an idle log, a throttled reply). Raises `BrokerError` for an error code,
        and `ProtocolError` when a record batch can never arrive whole.
        """
        code = row["error_code"]
        if code != ErrorCode.NONE:
            hint = ""
            if code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE:
                hint = " (its record batches are zstd-compressed, which needs Fetch version 10: Kafka 2.1)"
            raise broker_error(
                code,
                f"Fetch of {self.name} at offset {self.position} from {broker}{hint}",
                topic=self.topic,
                partition=self.partition,
                offset=self.position,
            )
        records = row["records"]
        if not records:
            return None
        scanned = scan(records)
        if scanned.next_offset is None:
            self._grow(scanned.partial_bytes)
            return None
        position, self.position = self.position, max(self.position, scanned.next_offset)
        if self.position == position:
            raise ProtocolError(
                f"{self.name}: {broker} sent only records before offset {position}, which were not asked for"
            )
        self._record_bytes = max(1.0, len(records) / (self.position - position))
        self._at_least_bytes = 0
        return Fetched(
            records=scanned,
            position=position,
            next_offset=self.position,
            aborted_transactions=row["aborted_transactions"],
            high_watermark=row["high_watermark"],
            last_stable_offset=row["last_stable_offset"],
            log_start_offset=row["log_start_offset"],
        )

    def _grow(self, partial_bytes: int) -> None:
        """A record batch was cut: ask for twice as much, or for what it announces, up to `fetch.max.bytes`."""
        limit = self._config.fetch_max_bytes
        asked = self.fetch_bytes()
        if asked >= limit:
            raise ProtocolError(
                f"{self.name}: the record batch at offset {self.position} has {partial_bytes} bytes, more than "
                f"kafka.fetch.max.bytes={limit}: raise that option"
            )
        self._at_least_bytes = min(limit, max(asked * 2, partial_bytes))
