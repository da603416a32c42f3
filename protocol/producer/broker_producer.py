"""Produce requests to one broker: record batches of several partitions per request, several requests in flight.

sarama's `brokerProducer`. Sends the batches of `PartitionProducer`s and passes each one its result. Called by `sender`,
which knows the leaders. Never retries.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from protocol.base.clock import Clock, Deadline
from protocol.base.listing import listed
from protocol.broker_errors import ErrorCode, Refresh, error_row
from protocol.cluster.client import Client
from protocol.cluster.metadata import Broker, NewLeader
from protocol.config import ProducerConfig
from protocol.errors import Corrupt, KafkaError, ProtocolError, TransportError
from protocol.kafka_terms import NO_REPLICA, NO_TOPIC_ID
from protocol.net.connection import Reply
from protocol.producer.idempotence import ProducerSession
from protocol.producer.partition_producer import PartitionProducer
from protocol.producer.producer_batch import ProducerBatch
from protocol.records.encode import finalize_header
from protocol.settings.secret import forget_frames
from protocol.wire.messages.m00_produce import LAST_WITH_TOPIC_NAMES, PRODUCE

log = logging.getLogger(__name__)

Part = tuple[PartitionProducer, ProducerBatch]

_FIRST_WITH_RECORD_BATCHES = 3
_FIRST_WITH_ZSTD = 7
# Generous size of lengths, counts and names around the records of one partition.
_OVERHEAD_BYTES = 300


@dataclass(frozen=True)
class _Batches:
    """The batches of one request, with the ids of their topics by name."""

    parts: Sequence[Part]
    topic_ids: Mapping[str, bytes]

    @property
    def last_version(self) -> int | None:
        """The last version that can name these topics; None: all can."""
        by_name = any(self.topic_ids[partition.topic] == NO_TOPIC_ID for partition, _ in self.parts)
        return LAST_WITH_TOPIC_NAMES if by_name else None

    def topic_data(self, version: int) -> list[dict[str, Any]]:
        """Return the rows of the request."""
        topics: dict[str, list[dict[str, Any]]] = {}
        for partition, batch in self.parts:
            topics.setdefault(partition.topic, []).append({"index": partition.partition, "records": batch.records})
        by_id = version > LAST_WITH_TOPIC_NAMES
        return [
            {**({"topic_id": self.topic_ids[name]} if by_id else {"name": name}), "partition_data": rows}
            for name, rows in topics.items()
        ]


@dataclass(frozen=True)
class _Request:
    reply: Reply
    batches: _Batches
    deadline: Deadline


class BrokerProducer:
    """Produce requests to one broker.

    `clock` is for the deadlines of requests, `purpose` the name of the connection in the pool. `on_stale_metadata` is
    called with the name of a topic after an error which shows that its cached metadata is outdated.
    """

    def __init__(
        self,
        client: Client,
        broker: Broker,
        config: ProducerConfig,
        session: ProducerSession,
        clock: Clock,
        purpose: str,
        on_stale_metadata: Callable[[str], None],
    ) -> None:
        self.broker = broker
        self._client = client
        self._config = config
        self._session = session
        self._clock = clock
        self._purpose = purpose
        self._on_stale_metadata = on_stale_metadata
        self._in_flight: deque[_Request] = deque()
        self.throttled_until_s = 0.0
        self.requests = 0

    @property
    def in_flight(self) -> int:
        """Number of unanswered requests."""
        return len(self._in_flight)

    @property
    def oldest_reply(self) -> Reply | None:
        """The reply that arrives next."""
        return self._in_flight[0].reply if self._in_flight else None

    @property
    def overdue(self) -> bool:
        """True if the oldest reply has missed its deadline."""
        return bool(self._in_flight) and self._in_flight[0].deadline.passed

    def due_s(self, after_s: float) -> float | None:
        """Return the time of the oldest reply's deadline, or of the end of throttling if that is after `after_s`."""
        moments = [request.deadline.at_s for request in islice(self._in_flight, 1)]
        moments += [self.throttled_until_s] if self.throttled_until_s > after_s else []
        return min(moments, default=None)

    def can_send(self, now_s: float) -> bool:
        """Return True if the broker accepts another request: not throttled, and not too many in flight."""
        return (
            len(self._in_flight) < self._config.max_in_flight_requests_per_connection
            and now_s >= self.throttled_until_s
        )

    # -- sending ------------------------------------------------------------------------------

    def send(self, partitions: Iterable[PartitionProducer], topic_ids: Mapping[str, bytes]) -> bool:
        """Send one request with the next batch of as many partitions as fit; return True if one was sent.

        `topic_ids` has the topic of each partition. With acks=0, sent batches count as written.
        """
        now_s = self._client.clock.now_s()
        parts = self._next_batches(partitions, now_s)
        if not parts:
            return False
        for partition, batch in parts:
            partition.sending(batch, self.broker.node_id, now_s)
            self._finalize_header(partition, batch)
        batches = _Batches(parts, topic_ids)
        last_versions = (self._session.last_produce_version, batches.last_version)
        timeout_s = self._client.config.request_timeout_ms / 1000
        delivery_s = max(part.deadline_s(batch) for part, batch in parts) - now_s
        deadline = Deadline.after_ms(min(timeout_s, max(0.05, delivery_s)) * 1000, self._clock)
        try:
            reply = self._client.send(
                self.broker,
                PRODUCE,
                lambda version: self._body(version, batches, deadline),
                deadline,
                purpose=self._purpose,
                at_least=_FIRST_WITH_ZSTD if self._config.compression_type == "zstd" else _FIRST_WITH_RECORD_BATCHES,
                at_most=min((version for version in last_versions if version is not None), default=None),
                replies=self._config.acks != 0,
            )
        except (TransportError, ProtocolError) as error:
            self._not_sent(parts, error)
            return False
        except KafkaError as error:
            # For example a broker that is too old.
            for partition, batch in parts:
                partition.unsendable(batch, error)
            return False
        self.requests += 1
        self._record_sent(parts, now_s)
        if self._config.acks == 0:
            for partition, batch in parts:
                partition.written(batch, -1)
        else:
            self._in_flight.append(_Request(reply, batches, deadline))
        return True

    def _record_sent(self, parts: Sequence[Part], now_s: float) -> None:
        sensors = self._client.sensors
        sensors.produce_requests.record((now_s,))
        for _, batch in parts:
            queue_ms = (now_s - batch.created_s) * 1000
            event = (now_s, batch.record_count, batch.size_bytes, queue_ms, batch.compression_ratio)
            sensors.produced[batch.topic].record(event)
            if batch.attempts > 1:
                sensors.retried[batch.topic].record((now_s, batch.record_count))

    def _next_batches(self, partitions: Iterable[PartitionProducer], now_s: float) -> list[Part]:
        parts: list[Part] = []
        free_bytes = self._config.max_request_size_bytes
        for partition in partitions:
            batch = partition.next_batch(now_s)
            if batch is None:
                continue
            free_bytes -= len(batch.records) + _OVERHEAD_BYTES
            if parts and free_bytes < 0:
                break
            parts.append((partition, batch))
        return parts

    def _finalize_header(self, partition: PartitionProducer, batch: ProducerBatch) -> None:
        assert partition.sequences is not None
        identity = partition.sequences.identity
        finalize_header(
            batch.records,
            producer_id=identity.producer_id,
            producer_epoch=identity.producer_epoch,
            base_sequence=batch.base_sequence,
            transactional=self._session.transactional_id is not None,
        )

    def _body(self, version: int, batches: _Batches, deadline: Deadline) -> dict[str, Any]:
        return {
            "transactional_id": self._session.transactional_id,
            "acks": self._config.acks,
            "timeout_ms": max(1, deadline.remaining_ms()),
            "topic_data": batches.topic_data(version),
        }

    def _not_sent(self, parts: Sequence[Part], error: KafkaError) -> None:
        now_s = self._client.clock.now_s()
        log.debug("%s: Produce could not be sent: %s", self.broker, error)
        forget_frames(error)  # the pool keeps the error, whose frames reference the record batches
        for partition, batch in parts:
            partition.not_sent(batch, error, now_s)
            self._on_stale_metadata(partition.topic)

    # -- replies ------------------------------------------------------------------------------

    def receive_reply(self) -> None:
        """Wait for the oldest reply, at most until its deadline, and pass the results to the partitions."""
        request = self._in_flight.popleft()
        try:
            body = request.reply.result(request.deadline)
        except KafkaError as error:  # also a TLS alert of the broker
            log.debug("%s: no reply to Produce: %s", self.broker, error)
            forget_frames(error)  # the pool keeps it
            now_s = self._client.clock.now_s()
            for partition, batch in request.batches.parts:
                partition.lost(batch, error, now_s)
                self._on_stale_metadata(partition.topic)
            return
        now_s = self._client.clock.now_s()
        self.throttled_until_s = max(self.throttled_until_s, now_s + body["throttle_time_ms"] / 1000)
        self._handle_response(request, body, now_s)

    def _handle_response(self, request: _Request, body: Mapping[str, Any], now_s: float) -> None:
        """Pass each batch its result, once. `PartitionProducer.refused` handles errors; here, they refresh metadata."""
        by_id = request.reply.version > LAST_WITH_TOPIC_NAMES
        answers = {
            (bytes(row["topic_id"]) if by_id else row["name"], answer["index"]): answer
            for row in body["responses"]
            for answer in row["partition_responses"]
        }
        where = f"{self.broker} (Produce v{request.reply.version})"
        topic_ids = request.batches.topic_ids
        for partition, batch in request.batches.parts:
            topic = topic_ids[partition.topic] if by_id else partition.topic
            answer = answers.get((topic, partition.partition))
            if answer is None:
                partition.lost(batch, Corrupt(f"{where}: the reply omits {partition.name}"), now_s)
                continue
            code = answer["error_code"]
            if code == ErrorCode.NONE:
                partition.written(batch, answer["base_offset"], answer["log_append_time_ms"])
            elif code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
                # An earlier try wrote it; the broker does not know its offset any more.
                partition.written(batch, -1)
            else:
                log.debug("%s: Produce to %s: %s", where, partition.name, error_row(code).name)
                is_stale = error_row(code).refresh is Refresh.METADATA
                if is_stale:
                    topic_id = topic_ids[partition.topic]
                    leader = NewLeader.from_reply(partition.topic, topic_id, partition.partition, answer, body)
                    self._client.adopt_leaders([] if leader is None else [leader])
                moved = is_stale and self._has_moved(partition)
                if is_stale and not moved:
                    self._on_stale_metadata(partition.topic)
                splits_before = partition.splits
                partition.refused(batch, code, where, now_s, _detail(answer), at_once=moved)
                if partition.splits > splits_before:
                    self._client.sensors.splits.record((now_s,))

    def _has_moved(self, partition: PartitionProducer) -> bool:
        """Return True if this broker is not the leader in cached metadata."""
        topic = self._client.remembered_topic(partition.topic)
        current = topic.partitions.get(partition.partition) if topic is not None else None
        return current is not None and current.leader not in (NO_REPLICA, self.broker.node_id)


def _detail(answer: Mapping[str, Any]) -> str | None:
    """Return the broker's own message, or the records that it rejects."""
    records = listed(
        [f"record {row['batch_index']}: {row['batch_index_error_message']}" for row in answer["record_errors"]],
        separator="; ",
    )
    return "; ".join(filter(None, (answer["error_message"], records))) or None
