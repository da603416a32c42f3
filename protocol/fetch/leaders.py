"""Resolve leaders, and send them what fetching needs: Fetch requests, and queries about their logs.

Runs in the caller's thread; no retries. Used by `bounded_reader`, `partition_fetcher` and `log_samples`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from protocol.base.clock import Deadline
from protocol.broker_errors import ErrorCode, broker_error
from protocol.cluster.client import FETCH as FETCH_PURPOSE
from protocol.cluster.client import Client
from protocol.cluster.metadata import Metadata, Topic, topic_id_text
from protocol.errors import BrokerError, KafkaError, LogTruncated, TopicRecreated, TopicUnknown
from protocol.fetch.fetch_failures import (
    CheckLog,
    Fail,
    InvalidPosition,
    Retry,
    decide,
    lost_by_truncation,
    lost_from_range,
    validate_position,
)
from protocol.fetch.fetch_position import FetchPosition, P, Route
from protocol.fetch.fetch_request import FetchRequest, FetchResult
from protocol.fetch.list_offsets import end_of_epoch, list_offsets
from protocol.fetch.log_offsets import LogBounds
from protocol.kafka_terms import EARLIEST, LATEST, NO_LEADER_EPOCH, NO_REPLICA
from protocol.net.connection import Reply
from protocol.position import is_another_topic
from protocol.wire.messages.m01_fetch import FETCH, FIRST_WITH_ISOLATION_LEVEL


def send_fetch(client: Client, request: FetchRequest[P], deadline: Deadline, *, purpose: str = FETCH_PURPOSE) -> Reply:
    """Send a Fetch in the newest version that can name its topics. Raises as `Client.send`."""
    return client.send(
        request.broker,
        FETCH,
        request.body,
        deadline,
        purpose=purpose,
        at_least=FIRST_WITH_ISOLATION_LEVEL,
        at_most=request.newest_version,
    )


def receive_fetch(client: Client, request: FetchRequest[P], body: Mapping[str, Any]) -> FetchResult[P]:
    """Handle a reply, and adopt the leaders that it names."""
    result = request.handle_response(body)
    client.adopt_leaders(result.leaders)
    return result


def resolve_leaders(client: Client, partitions: Collection[P], deadline: Deadline) -> dict[P, KafkaError]:
    """Resolve the broker of each partition, with one metadata snapshot: the leader, or the replica that it named.

    Returns partitions without a broker: `BrokerError` (retriable) if there is no leader, or if brokers do not agree on
    the topic id or too few answer, `TopicRecreated` if the topic has another id than before, `DeadlineExceeded` if no
    broker replied.
    """
    try:
        snapshot = _snapshot(client, partitions, deadline)
    except KafkaError as error:
        return dict.fromkeys(partitions, error)
    failures: dict[P, KafkaError] = {}
    now_s = client.clock.now_s()
    for partition in partitions:
        try:
            route = _route(snapshot, partition)
        except KafkaError as error:
            failures[partition] = error
        else:
            partition.route(route, now_s)
    client.expire_metadata({partition.topic for partition, error in failures.items() if isinstance(error, BrokerError)})
    return failures


class _Snapshot(NamedTuple):
    """Metadata, and the ids that several brokers report for topics that seem to be recreated.

    Ids are not ordered: the other id may be that of the deleted topic, from a broker that lags behind. The topic was
    recreated if all that answer, and more than half do, report the other id: a broker's metadata never go back to a
    deleted topic.
    """

    metadata: Metadata
    ids_at_brokers: Mapping[str, set[bytes]]


def _snapshot(client: Client, partitions: Collection[FetchPosition], deadline: Deadline) -> _Snapshot:
    topics = {partition.topic for partition in partitions}
    metadata = client.snapshot(topics, deadline)
    if recreated := _recreated_topics(metadata, partitions):
        # Cached metadata may be older than the plan of the range.
        client.expire_metadata(recreated)
        metadata = client.snapshot(topics, deadline)
        recreated = _recreated_topics(metadata, partitions)
    return _Snapshot(metadata, client.ids_at_brokers(recreated, deadline) if recreated else {})


def _recreated_topics(metadata: Metadata, partitions: Collection[FetchPosition]) -> set[str]:
    return {partition.topic for partition in partitions if _is_recreated(metadata, partition)}


def _require_same_topic(snapshot: _Snapshot, partition: FetchPosition) -> Topic:
    topic = snapshot.metadata.topic(partition.topic)
    if _is_recreated(snapshot.metadata, partition):
        ids = snapshot.ids_at_brokers.get(partition.topic)
        if ids != {topic.topic_id}:
            cause = "brokers do not agree" if ids else "too few brokers answer to agree"
            raise broker_error(
                ErrorCode.INCONSISTENT_TOPIC_ID,
                f"{partition.name}: {cause} on the topic id {topic_id_text(partition.topic_id)}; one has "
                f"{topic_id_text(topic.topic_id)}",
                api="Metadata",
                topic=partition.topic,
                partition=partition.partition,
            )
        before = partition.assigned_topic_id if partition.position.is_in(topic.topic_id) else partition.topic_id
        raise TopicRecreated(
            f"{partition.name}: the topic was deleted and created again (its id was {topic_id_text(before)}, now it is "
            f"{topic_id_text(topic.topic_id)})",
            topic=partition.topic,
            partition=partition.partition,
            topic_id=topic.topic_id,
        )
    return topic


def _route(snapshot: _Snapshot, partition: FetchPosition) -> Route:
    """Return where to fetch from. Raises as `resolve_leaders` returns."""
    topic = _require_same_topic(snapshot, partition)
    broker, leadership = snapshot.metadata.leader(partition.topic, partition.partition)
    if partition.preferred_replica != NO_REPLICA:
        replica = snapshot.metadata.brokers.get(partition.preferred_replica)
        if replica is None:
            raise broker_error(
                ErrorCode.REPLICA_NOT_AVAILABLE,
                f"{partition.name}: {broker} names broker {partition.preferred_replica} as the replica to read from",
                topic=partition.topic,
                partition=partition.partition,
            )
        broker = replica
    return Route(broker, leadership.leader_epoch, topic.topic_id)


def _is_recreated(metadata: Metadata, partition: FetchPosition) -> bool:
    topic = metadata.topics.get(partition.topic)
    if topic is None or topic.error_code != ErrorCode.NONE:
        return False
    is_assigned = not is_another_topic(topic.topic_id, partition.assigned_topic_id)
    return not (partition.position.is_in(topic.topic_id) and is_assigned)


def look_up_log_bounds(client: Client, partition: FetchPosition, deadline: Deadline) -> LogBounds:
    """Request from the leader what `validate_position` needs after a refused position.

    Also changes the position: drops its epoch if leaders have been older for 30 s, or if the leader's log keeps no
    epochs (message.format.version was changed to below 0.11). Call `validate_position`, which reads it, afterwards.
    Raises `BrokerError` or `DeadlineExceeded`.
    """
    key = partition.topic_partition
    start = list_offsets(client, {key: EARLIEST}, deadline=deadline)[key].offset
    latest = list_offsets(client, {key: LATEST}, deadline=deadline)[key]
    if latest.is_stale(partition.known_epoch):
        partition.drop_stale_epoch(client.clock.now_s())
    position = partition.position
    in_range = start <= position.offset <= latest.offset
    if not in_range or latest.is_stale(partition.known_epoch) or position.leader_epoch == NO_LEADER_EPOCH:
        return LogBounds(start, latest)
    is_known = end_of_epoch(client, key, position, deadline) is not None
    in_leader_epoch = replace(position, leader_epoch=partition.leader_epoch)
    if not is_known and end_of_epoch(client, key, in_leader_epoch, deadline) is None:
        partition.drop_epoch()
        is_known = True
    return LogBounds(start, latest, lacks_epoch=not is_known)


def _confirm_truncation(
    client: Client, partition: FetchPosition, error: LogTruncated, deadline: Deadline
) -> Retry | InvalidPosition:
    """Ask the leader where the epoch ended, if only epochs or the high watermark suggest that the log was truncated.

    `LogTruncated` describes the keys of its context.
    """
    if "end_offset" in error.context:
        return lost_by_truncation(partition, error)
    epoch_end = end_of_epoch(client, partition.topic_partition, partition.until, deadline)
    if epoch_end is not None and epoch_end < partition.until_offset:
        return lost_from_range(partition, error, epoch_end)
    partition.confirm_end(keep_epoch=epoch_end is not None and "record_epoch" not in error.context)
    return Retry(error, refresh_metadata=False)


def _has_newer_leader(client: Client, partition: FetchPosition) -> bool:
    """Return True if the cached metadata have a newer leader than the one of this request."""
    topic = client.remembered_topic(partition.topic)
    current = topic.partitions.get(partition.partition) if topic is not None else None
    return (
        topic is not None
        and current is not None
        and topic.topic_id == partition.topic_id
        and current.leader_epoch > partition.leader_epoch
    )


def decide_with_leader(
    client: Client, partition: FetchPosition, error: KafkaError, deadline: Deadline
) -> Retry | InvalidPosition | Fail:
    """Decide what the failure of a Fetch means; query the leader if the log may have lost the position.

    Raises nothing. Sends requests only for such failures: up to four queries, and for the metadata, one after the
    other, within `deadline`.
    """
    action = decide(partition, error)
    if isinstance(action, Retry) and action.refresh_metadata and _has_newer_leader(client, partition):
        return Retry(error, refresh_metadata=False, at_once=True)
    if not isinstance(action, CheckLog):
        return action
    try:
        if isinstance(action.error, LogTruncated):
            action = _confirm_truncation(client, partition, action.error, deadline)
        else:
            action = validate_position(partition, look_up_log_bounds(client, partition, deadline), action.error)
        if isinstance(action, InvalidPosition):
            # Requested by name, a broker may have replied for a recreated topic.
            client.expire_metadata([partition.topic])
            _route(_snapshot(client, [partition], deadline), partition)
    except KafkaError as failure:
        # An unknown topic is retried: the next metadata show if it was deleted.
        action = decide(partition, failure.answer if isinstance(failure, TopicUnknown) else failure)
    return Fail(action.error) if isinstance(action, CheckLog) else action
