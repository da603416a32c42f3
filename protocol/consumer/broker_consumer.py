"""Fetch requests to one broker for all partitions read from it, and the handling of the replies.

sarama's `brokerConsumer`, without goroutines. `BrokerConsumer` builds request bodies and reads reply bodies;
`send_fetch` and `resolve_leaders` send requests. Used by `range_consumer` (one thread for all brokers), `consumer`
(one thread per broker) and `log_samples`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from protocol.broker_errors import ErrorCode, broker_error
from protocol.clock import Deadline
from protocol.cluster.client import FETCH as FETCH_PURPOSE
from protocol.cluster.client import Client
from protocol.cluster.dispatch import is_retriable
from protocol.cluster.metadata import Broker, Metadata, is_another_topic, topic_id_text
from protocol.config import ConsumerConfig
from protocol.consumer.fetch_session import FINAL_EPOCH, SESSION_ERRORS, FetchSession, Key, Row, keys_of, topic_rows
from protocol.consumer.partition_consumer import Fetched, PartitionConsumer
from protocol.errors import BrokerError, KafkaError, TopicRecreated, TransportError
from protocol.kafka_terms import NO_REPLICA, NO_TOPIC_ID
from protocol.net.connection import Reply
from protocol.wire.messages.m01_fetch import (
    FETCH,
    FIRST_WITH_ISOLATION_LEVEL,
    FIRST_WITH_SESSIONS,
    LAST_WITH_TOPIC_NAMES,
)

log = logging.getLogger(__name__)


@dataclass
class FetchResult:
    """The result of a reply: records, and failures of single partitions. A partition in neither had no new data."""

    fetched: list[tuple[PartitionConsumer, Fetched]] = field(default_factory=list)
    failed: list[tuple[PartitionConsumer, KafkaError]] = field(default_factory=list)
    throttle_ms: int = 0


class BrokerConsumer:
    """Requests and replies of one broker, one request at a time.

    `sessions` enables incremental fetch sessions (KIP-227), which pay off for long-lived readers.
    """

    def __init__(self, broker: Broker, config: ConsumerConfig, *, sessions: bool) -> None:
        self.broker = broker
        self.requests = 0
        self._config = config
        self._session = FetchSession() if sessions else None
        self._in_session = False
        self._by_id = False
        self._asked: dict[Key, PartitionConsumer] = {}

    @property
    def by_id(self) -> bool:
        """True if the last request named topics by id (Fetch 13, Kafka 3.1): a recreated topic then cannot reply."""
        return self._by_id

    @property
    def asked(self) -> Collection[PartitionConsumer]:
        """Partitions of the request in flight."""
        return self._asked.values()

    def body(
        self, partitions: Sequence[PartitionConsumer], *, max_bytes: int, max_wait_ms: int
    ) -> Callable[[int], dict[str, Any]]:
        """Return the Fetch request as a function of its version.

        Parameters
        ----------
        partitions : sequence of PartitionConsumer
            Each at most once.
        max_bytes : int
            Limit of the whole reply; raised to the limit of the largest partition.
        max_wait_ms : int
        """

        def of_version(version: int) -> dict[str, Any]:
            self.requests += 1
            self._by_id = version > LAST_WITH_TOPIC_NAMES
            rows: dict[Key, Row] = {}
            self._asked = {}
            for partition in partitions:
                key = (partition.topic_id if self._by_id else partition.topic, partition.partition)
                rows[key] = partition.request_row()
                self._asked[key] = partition
            largest = max((row["partition_max_bytes"] for row in rows.values()), default=0)
            self._in_session = self._session is not None and version >= FIRST_WITH_SESSIONS
            return {
                "max_wait_ms": max_wait_ms,
                "min_bytes": self._config.fetch_min_bytes,
                "max_bytes": max(max_bytes, largest),
                "isolation_level": int(self._config.isolation_level == "read_committed"),
                "rack_id": self._config.client_rack,
                **self._session_fields(_known_to(version, rows)),
            }

        return of_version

    def _session_fields(self, rows: Mapping[Key, Row]) -> dict[str, Any]:
        if self._session is not None and self._in_session:
            return self._session.request(rows, by_id=self._by_id)
        return {"session_epoch": FINAL_EPOCH, "topics": topic_rows(rows, self._by_id)}

    def handle_response(self, body: Mapping[str, Any]) -> FetchResult:
        """Read the reply to the last request. Raises `ProtocolError` if the reply as a whole is invalid."""
        result = FetchResult(throttle_ms=body["throttle_time_ms"])
        asked, self._asked = self._asked, {}
        code = body["error_code"]
        complete = True
        if self._session is not None and self._in_session:
            complete = self._session.full
            self._session.accept(code, body["session_id"])
            if code in SESSION_ERRORS and not complete:
                # The broker has dropped the session, without loss: the next request is a full one.
                return result
        if code != ErrorCode.NONE:
            result.failed = [
                (each, broker_error(code, f"Fetch of {each.name} from {self.broker}", api="Fetch", topic=each.topic))
                for each in asked.values()
            ]
            return result
        for key, row in keys_of(body["responses"], self._by_id):
            partition = asked.pop(key, None)
            if partition is None:
                continue
            try:
                fetched = partition.handle_response(row, self.broker)
            except KafkaError as error:
                result.failed.append((partition, error))
            else:
                if fetched is not None:
                    result.fetched.append((partition, fetched))
        # A throttling broker may omit all partitions, and a session's reply contains only changed ones.
        if asked and complete and not result.throttle_ms:
            result.failed += [
                (each, TransportError(f"{self.broker} has answered a Fetch without {each.name}, which was requested"))
                for each in asked.values()
            ]
        return result

    def lost(self) -> list[PartitionConsumer]:
        """Handle a missing reply: return its partitions, and restart the session, whose state is unknown."""
        asked, self._asked = list(self._asked.values()), {}
        if self._session is not None:
            self._session.restart()
        return asked

    def close(self) -> dict[str, Any] | None:
        """Return the body of a request that closes the session; None if there is no session."""
        fields = self._session.close() if self._session is not None else None
        return {"max_wait_ms": 0, "min_bytes": 0, **fields} if fields else None


def _known_to(version: int, rows: Mapping[Key, Row]) -> Mapping[Key, Row]:
    """Remove the fields that this version does not have."""
    if version > LAST_WITH_TOPIC_NAMES - 1:
        return rows
    unknown = {"last_fetched_epoch"} if version >= 9 else {"last_fetched_epoch", "current_leader_epoch"}
    return {key: {name: value for name, value in row.items() if name not in unknown} for key, row in rows.items()}


def is_retriable_fetch(error: KafkaError) -> bool:
    """Return True if the same Fetch may succeed later.

    UNKNOWN_SERVER_ERROR counts as retriable, as in Java's consumer: a temporary failure of a disk or of remote storage
    causes it.
    """
    return is_retriable(error) or _is_unknown_server_error(error)


def log_retry(partition: PartitionConsumer, error: KafkaError) -> None:
    """Log a failed Fetch that is retried; as a warning, once, if only the broker's own log has the cause."""
    warns = _is_unknown_server_error(error) and partition.failure is None
    log.log(logging.WARNING if warns else logging.DEBUG, "%s is retried: %s", partition.name, error)


def _is_unknown_server_error(error: KafkaError) -> bool:
    return isinstance(error, BrokerError) and error.code == ErrorCode.UNKNOWN_SERVER_ERROR


def newest_version(partitions: Collection[PartitionConsumer]) -> int | None:
    """Return the newest version of Fetch that can name these topics; None for any."""
    by_name = any(each.topic_id == NO_TOPIC_ID for each in partitions)
    return LAST_WITH_TOPIC_NAMES if by_name else None


def send_fetch(
    client: Client,
    consumer: BrokerConsumer,
    partitions: Sequence[PartitionConsumer],
    deadline: Deadline,
    *,
    max_bytes: int,
    max_wait_ms: int,
    purpose: str = FETCH_PURPOSE,
) -> Reply:
    """Send the Fetch of `consumer.body`, in the newest version that can name the topics. Raises as `Client.send`."""
    return client.send(
        consumer.broker,
        FETCH,
        consumer.body(partitions, max_bytes=max_bytes, max_wait_ms=max_wait_ms),
        deadline,
        purpose=purpose,
        at_least=FIRST_WITH_ISOLATION_LEVEL,
        at_most=newest_version(partitions),
    )


def resolve_leaders(
    client: Client, partitions: Collection[PartitionConsumer], deadline: Deadline
) -> dict[PartitionConsumer, KafkaError]:
    """Resolve the broker of each partition, with one metadata snapshot: the leader, or the replica that it named.

    Returns
    -------
    dict of PartitionConsumer to KafkaError
        Partitions without a broker: `BrokerError` (retriable) if there is no leader, `TopicRecreated` if the topic has
        another id than before, `DeadlineExceeded` if no broker replied.
    """
    topics = {each.topic for each in partitions}
    try:
        snapshot = client.snapshot(topics, deadline)
        if another := {each.topic for each in partitions if _is_another(snapshot, each)}:
            # Cached metadata may be older than the plan of the range.
            client.expire_metadata(another)
            snapshot = client.snapshot(topics, deadline)
    except KafkaError as error:
        return dict.fromkeys(partitions, error)
    failures: dict[PartitionConsumer, KafkaError] = {}
    now_s = client.clock.now_s()
    for partition in partitions:
        try:
            _route(snapshot, partition, now_s)
        except KafkaError as error:
            failures[partition] = error
    client.expire_metadata({each.topic for each, error in failures.items() if isinstance(error, BrokerError)})
    return failures


def _route(snapshot: Metadata, partition: PartitionConsumer, now_s: float) -> None:
    known = snapshot.topic(partition.topic)
    if _is_another(snapshot, partition):
        raise TopicRecreated(
            f"{partition.name}: the topic was deleted and created again (its id was "
            f"{topic_id_text(partition.topic_id)}, now it is {topic_id_text(known.topic_id)})",
            topic=partition.topic,
            partition=partition.partition,
        )
    broker, leadership = snapshot.leader(partition.topic, partition.partition)
    if partition.preferred_replica != NO_REPLICA:
        replica = snapshot.brokers.get(partition.preferred_replica)
        if replica is None:
            raise broker_error(
                ErrorCode.REPLICA_NOT_AVAILABLE,
                f"{partition.name}: {broker} names broker {partition.preferred_replica} as the replica to read from",
                topic=partition.topic,
                partition=partition.partition,
            )
        broker = replica
    partition.topic_id = known.topic_id
    partition.leader_epoch = leadership.leader_epoch
    partition.routed_at_s = now_s
    # Set last: from now on the thread of that broker fetches the partition.
    partition.broker = broker


def _is_another(snapshot: Metadata, partition: PartitionConsumer) -> bool:
    known = snapshot.topics.get(partition.topic)
    if known is None or known.error_code != ErrorCode.NONE:
        return False
    return is_another_topic(known.topic_id, partition.topic_id)
