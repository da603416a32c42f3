"""Reads one range of one partition as Arrow batches, with the next Fetch in flight while this one is decoded.

Runs in Spark's executors (one call per task) and anywhere else. One thread, one connection to the leader. A moved
leader or a broken connection is the retry loop's business; records that are gone are `DataLoss`.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from protocol.broker_errors import ErrorCode, broker_error
from protocol.clock import Deadline
from protocol.cluster.client import FETCH as FETCH_PURPOSE
from protocol.cluster.client import Client
from protocol.cluster.metadata import NO_TOPIC_ID, Broker, topic_id_text
from protocol.config import ConsumerConfig
from protocol.consumer.list_offsets import EARLIEST, LATEST, list_offsets
from protocol.consumer.partition_consumer import Fetched, PartitionConsumer
from protocol.errors import BrokerError, DataLoss, KafkaError, TransportError
from protocol.net.connection import Reply
from protocol.records.decode import ALL_COLUMNS, decode
from protocol.wire.messages.m01_fetch import FETCH

log = logging.getLogger(__name__)

_FINAL_EPOCH = -1


@dataclass(frozen=True)
class Skipped:
    """Offsets [from_offset, until_offset) that were not in the log any more and were let go."""

    topic: str
    partition: int
    from_offset: int
    until_offset: int


class RangeConsumer:
    """Iterates over the Arrow batches of `topic`-`partition` in [from_offset, until_offset).

    Yields record batches with those of `columns` asked for (see `protocol.records.decode`), in the order of their
    offsets, at most some thousand rows each. `topic_id` (16 bytes), if known, is what the topic must still have.

    Raises `DataLoss` when a part of the range is not in the log any more; with `fail_on_data_loss=False` that part
    is skipped, logged, and kept in `skipped`. Raises `DeadlineExceeded` when nothing came for `poll_timeout_ms`.
    """

    def __init__(
        self,
        client: Client,
        config: ConsumerConfig,
        topic: str,
        partition: int,
        from_offset: int,
        until_offset: int,
        *,
        columns: Collection[str] = ALL_COLUMNS,
        topic_id: bytes = NO_TOPIC_ID,
        poll_timeout_ms: float = 120_000,
        fail_on_data_loss: bool = True,
    ) -> None:
        self._client = client
        self._config = config
        self._partition = PartitionConsumer(topic, partition, from_offset, until_offset, config)
        self._columns = columns
        self._topic_id = topic_id
        self._poll_timeout_ms = poll_timeout_ms
        self._fail_on_data_loss = fail_on_data_loss
        self._in_flight: tuple[Reply, Broker] | None = None
        self.skipped: list[Skipped] = []
        self.fetches = 0

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        partition = self._partition
        while not partition.done:
            fetched = self._next_fetched()
            if fetched is None:
                continue
            if not partition.done:
                self._send_ahead()
            yield from decode(
                fetched.records,
                first_offset=fetched.position,
                end_offset=partition.until_offset,
                aborted_transactions=fetched.aborted_transactions if self._read_committed else None,
                columns=self._columns,
                max_decompressed_bytes=self._config.max_decompressed_batch_bytes,
                check_crc=self._config.check_crcs,
                where=partition.name,
            )

    @property
    def _read_committed(self) -> bool:
        return self._config.isolation_level == "read_committed"

    # -- one fetch ----------------------------------------------------------------------------

    def _next_fetched(self) -> Fetched | None:
        """The next records, after as many empty replies as come; None after a hole was skipped."""
        partition = self._partition
        deadline = self._client.deadline(self._poll_timeout_ms)
        try:
            return self._client.retrying(
                f"Fetch of {partition.name} at offset {partition.position}",
                lambda: self._fetch_once(deadline),
                deadline,
                topics=[partition.topic],
            )
        except BrokerError as error:
            if error.code != ErrorCode.OFFSET_OUT_OF_RANGE:
                raise
            self._judge_hole(error, deadline)
            return None

    def _fetch_once(self, deadline: Deadline) -> Fetched:
        partition = self._partition
        while True:
            in_flight, self._in_flight = self._in_flight, None
            reply, broker = in_flight or self._send(deadline)
            self.fetches += 1
            body = reply.result(deadline.at_most_ms(self._client.config.request_timeout_ms))
            if body["error_code"] != ErrorCode.NONE:
                raise broker_error(
                    body["error_code"], f"Fetch of {partition.name} from {broker}", topic=partition.topic
                )
            for topic_row in body["responses"]:
                for row in topic_row["partitions"]:
                    fetched = partition.judge(row, broker)
                    if fetched is not None:
                        return fetched
            if deadline.passed:
                raise TransportError(
                    f"{partition.name}: {broker} sends no records at offset {partition.position}, although "
                    f"offsets up to {partition.until_offset} were there when the batch was planned; raise "
                    "kafkaConsumer.pollTimeoutMs if the broker only needs longer"
                )

    def _send(self, deadline: Deadline) -> tuple[Reply, Broker]:
        partition = self._partition
        topic_id = self._required_topic_id(deadline)
        broker, leadership = self._client.leader(partition.topic, partition.partition, deadline)
        row = partition.request_row(leadership.leader_epoch)

        def body(version: int) -> dict[str, Any]:
            key = {"topic_id": topic_id} if version >= 13 else {"topic": partition.topic}
            fields: dict[str, Any] = {
                "max_wait_ms": self._config.fetch_max_wait_ms,
                "min_bytes": self._config.fetch_min_bytes,
                "max_bytes": max(self._config.fetch_max_bytes, row["partition_max_bytes"]),
                "isolation_level": int(self._read_committed),
                "topics": [{**key, "partitions": [row]}],
            }
            if version >= 7:
                fields["session_epoch"] = _FINAL_EPOCH
            if version < 9:
                row.pop("current_leader_epoch", None)
            return fields

        reply = self._client.send(
            broker,
            FETCH,
            body,
            deadline,
            purpose=FETCH_PURPOSE,
            at_least=4,
            at_most=None if topic_id != NO_TOPIC_ID else 12,
        )
        return reply, broker

    def _required_topic_id(self, deadline: Deadline) -> bytes:
        """The topic's id; raises `DataLoss` when it is another one than the range was planned for."""
        partition, wanted = self._partition, self._topic_id
        topic_id = self._client.topic(partition.topic, deadline).topic_id
        if topic_id != wanted and NO_TOPIC_ID not in (wanted, topic_id):
            # What is remembered here may be older than the plan.
            self._client.expire_metadata([partition.topic])
            topic_id = self._client.topic(partition.topic, deadline).topic_id
        if topic_id != wanted and NO_TOPIC_ID not in (wanted, topic_id):
            raise DataLoss(
                f"{partition.name}: the topic was deleted and created again (its id was {topic_id_text(wanted)}, now "
                f"it is {topic_id_text(topic_id)}): offsets {partition.position} to {partition.until_offset} belonged "
                "to the old one. Start the query with a new checkpoint to read the new topic",
                topic=partition.topic,
                partition=partition.partition,
            )
        return topic_id

    def _send_ahead(self) -> None:
        try:
            self._in_flight = self._send(self._client.deadline(self._client.config.request_timeout_ms))
        except KafkaError as error:
            # The retry loop meets it again when these records are wanted.
            log.debug("%s: could not ask ahead: %s", self._partition.name, error)

    # -- records that are gone ----------------------------------------------------------------

    def _judge_hole(self, error: BrokerError, deadline: Deadline) -> None:
        partition = self._partition
        key = (partition.topic, partition.partition)
        start = list_offsets(self._client, {key: EARLIEST}, deadline=deadline)[key].offset
        end = list_offsets(self._client, {key: LATEST}, deadline=deadline)[key].offset
        position, until = partition.position, partition.until_offset
        if position < start:
            resume = min(start, until)
            cause = "retention or DeleteRecords has removed them"
        elif position > end:
            resume = until
            cause = "the log was truncated (unclean leader election) or the topic was created again"
        else:
            # In range again: a leader that was behind its high watermark for a moment.
            return
        message = (
            f"{partition.name}: offsets {position} to {resume} are not in the log any more; wanted "
            f"[{position}, {until}), the broker has [{start}, {end}). Likely cause: {cause}. To skip what is "
            "missing and go on, set failOnDataLoss=false"
        )
        if self._fail_on_data_loss:
            raise DataLoss(message, topic=partition.topic, partition=partition.partition) from error
        log.warning("%s (failOnDataLoss=false: %d offsets are skipped)", message, resume - position)
        self.skipped.append(Skipped(partition.topic, partition.partition, position, resume))
        partition.position = resume
