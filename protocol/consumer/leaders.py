"""Resolve leaders, and send them what fetching needs: Fetch requests, and queries about their logs.

Runs in the caller's thread; no retries. Used by `bounded_reader`, `consumer` and `log_samples`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from protocol.broker_errors import ErrorCode, broker_error
from protocol.clock import Deadline
from protocol.cluster.client import FETCH as FETCH_PURPOSE
from protocol.cluster.client import Client
from protocol.cluster.metadata import Metadata, is_another_topic, topic_id_text
from protocol.consumer.fetch_position import FetchPosition
from protocol.consumer.fetch_request import (
    FetchRequestBuilder,
)
from protocol.consumer.list_offsets import end_of_epoch, list_offsets
from protocol.consumer.log_offsets import LogBounds
from protocol.errors import BrokerError, KafkaError, TopicRecreated
from protocol.kafka_terms import EARLIEST, LATEST, NO_LEADER_EPOCH, NO_REPLICA, NO_TOPIC_ID
from protocol.net.connection import Reply
from protocol.wire.messages.m01_fetch import (
    FETCH,
    FIRST_WITH_ISOLATION_LEVEL,
    LAST_WITH_TOPIC_NAMES,
)


def newest_version(partitions: Collection[FetchPosition]) -> int | None:
    """Return the newest version of Fetch that can name these topics; None for any."""
    by_name = any(each.topic_id == NO_TOPIC_ID for each in partitions)
    return LAST_WITH_TOPIC_NAMES if by_name else None


def send_fetch(
    client: Client,
    consumer: FetchRequestBuilder,
    partitions: Sequence[FetchPosition],
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
    client: Client, partitions: Collection[FetchPosition], deadline: Deadline
) -> dict[FetchPosition, KafkaError]:
    """Resolve the broker of each partition, with one metadata snapshot: the leader, or the replica that it named.

    Returns
    -------
    dict of FetchPosition to KafkaError
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
    failures: dict[FetchPosition, KafkaError] = {}
    now_s = client.clock.now_s()
    for partition in partitions:
        try:
            _route(snapshot, partition, now_s)
        except KafkaError as error:
            failures[partition] = error
    client.expire_metadata({each.topic for each, error in failures.items() if isinstance(error, BrokerError)})
    return failures


def _route(snapshot: Metadata, partition: FetchPosition, now_s: float) -> None:
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


def _is_another(snapshot: Metadata, partition: FetchPosition) -> bool:
    known = snapshot.topics.get(partition.topic)
    if known is None or known.error_code != ErrorCode.NONE:
        return False
    return is_another_topic(known.topic_id, partition.topic_id)


def look_up_log_bounds(client: Client, partition: FetchPosition, deadline: Deadline) -> LogBounds:
    """Request from the leader what `position_validation` needs after a refused position.

    A log whose message.format.version was changed to below 0.11 keeps no epochs and is not checked any more. Raises
    `BrokerError` or `DeadlineExceeded`.
    """
    key = (partition.topic, partition.partition)
    start = list_offsets(client, {key: EARLIEST}, deadline=deadline)[key].offset
    latest = list_offsets(client, {key: LATEST}, deadline=deadline)[key]
    in_range = start <= partition.position <= latest.offset
    if not in_range or latest.is_stale(partition.known_epoch) or partition.last_epoch == NO_LEADER_EPOCH:
        return LogBounds(start, latest)
    known = end_of_epoch(client, *key, partition.last_epoch, deadline) is not None
    if not known and end_of_epoch(client, *key, partition.leader_epoch, deadline) is None:
        partition.last_epoch = NO_LEADER_EPOCH
        known = True
    return LogBounds(start, latest, lacks_epoch=not known)
