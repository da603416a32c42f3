"""OffsetCommit and OffsetFetch of one group, each as one call with retries.

`offset_manager` decides when offsets are committed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from protocol.base.clock import Deadline
from protocol.broker_errors import ErrorCode, broker_error
from protocol.checked_values import checked_partition, checked_string
from protocol.cluster.call import Check, Row, call, call_partitions
from protocol.cluster.client import COORDINATOR, Client
from protocol.cluster.coordinators import group_coordinator
from protocol.cluster.metadata import Broker, Metadata
from protocol.errors import BrokerError, KafkaError, UsageError
from protocol.group.member import NO_MEMBER, GroupMember
from protocol.kafka_terms import NO_LEADER_EPOCH, NO_TOPIC_ID, NO_TOPIC_IDS, TopicIds, TopicPartition
from protocol.position import Position, is_another_topic
from protocol.wire.messages import m08_offset_commit, m09_offset_fetch, m28_txn_offset_commit
from protocol.wire.messages.m03_metadata import FIRST_WITH_ALLOW_AUTO_TOPIC_CREATION, METADATA
from protocol.wire.messages.m08_offset_commit import OFFSET_COMMIT
from protocol.wire.messages.m09_offset_fetch import OFFSET_FETCH
from protocol.wire.messages.m28_txn_offset_commit import TXN_OFFSET_COMMIT
from protocol.wire.parts import error_parts
from protocol.wire.schema import Api

_LAST_WITH_TOPIC_NAMES = {
    OFFSET_COMMIT: m08_offset_commit.LAST_WITH_TOPIC_NAMES,
    TXN_OFFSET_COMMIT: m28_txn_offset_commit.LAST_WITH_TOPIC_NAMES,
}
_REFUSED_FOR_MEMBERS = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION, ErrorCode.STALE_MEMBER_EPOCH)


@dataclass(frozen=True)
class CommittedOffset(Position):
    """A committed position, with its metadata. Two are equal also if only one has a topic id.

    Attributes
    ----------
    offset : int
        Offset of the next record to read; not negative, since a group would have no offset then.
    leader_epoch : int
        No record before `offset` has a newer leader epoch; -1 if unknown. Consumers commit that of the last record.
    metadata : str
        Free text, at most 32,767 bytes; brokers refuse more than `offset.metadata.max.bytes`.
    topic_id : bytes
        Id of the topic of the offset, which the commit must still have; zeros if unknown.

    Raises
    ------
    UsageError
        Kafka cannot store one of the values.
    """

    metadata: str = ""
    topic_id: bytes = field(default=NO_TOPIC_ID, kw_only=True, compare=False, repr=False)

    def __init__(
        self,
        offset: int,
        leader_epoch: int = NO_LEADER_EPOCH,
        metadata: str | None = "",
        *,
        topic_id: bytes = NO_TOPIC_ID,
    ) -> None:
        super().__init__(offset, leader_epoch, topic_id=topic_id)
        is_empty = metadata is None or metadata == ""
        self.__dict__["metadata"] = "" if is_empty else checked_string("metadata", metadata)


def to_commit(position: Position, metadata: str = "") -> CommittedOffset:
    """Return a position as one to commit."""
    return CommittedOffset(position.offset, position.leader_epoch, metadata, topic_id=position.topic_id)


CallerOffsets = Mapping[TopicPartition, int | CommittedOffset]
"""Offsets as callers pass them: a number is an offset without leader epoch and metadata."""


def as_committed_offset(key: TopicPartition, offset: int | CommittedOffset, metadata: str = "") -> CommittedOffset:
    """Return an offset that a caller passes for a partition; `UsageError` names the partition."""
    if isinstance(offset, CommittedOffset):
        return offset
    try:
        return CommittedOffset(offset, metadata=metadata)
    except UsageError as error:
        raise UsageError(f"{key[0]}-{key[1]}: {error}") from None


def as_committed_offsets(offsets: CallerOffsets) -> dict[TopicPartition, CommittedOffset]:
    """Return the offsets that a caller passes; raise `UsageError` for a partition or an offset that cannot exist."""
    if not isinstance(offsets, Mapping):
        raise UsageError(f"the offsets are {type(offsets).__name__}; pass a mapping of (topic, partition) to offset")
    return {checked_partition(key): as_committed_offset(key, offset) for key, offset in offsets.items()}


def offset_rows(offsets: Mapping[TopicPartition, CommittedOffset]) -> dict[TopicPartition, dict[str, Any]]:
    """Return the fields of OffsetCommit and TxnOffsetCommit for each partition."""
    return {
        key: {
            "committed_offset": entry.offset,
            "committed_leader_epoch": entry.leader_epoch,
            "committed_metadata": entry.metadata,
        }
        for key, entry in offsets.items()
    }


def commit_offsets(
    client: Client,
    group: str,
    offsets: Mapping[TopicPartition, CommittedOffset],
    deadline: Deadline,
    member: GroupMember = NO_MEMBER,
    on_reply: Callable[[TopicPartition, KafkaError | None], KafkaError | None] = lambda key, error: error,
    *,
    reply_deadline: Callable[[], Deadline] | None = None,
) -> None:
    """Commit all of `offsets`, with retries until `deadline`.

    Those with the id of a deleted topic are refused with UNKNOWN_TOPIC_ID, also if a new topic has its name. Raises
    `DeadlineExceeded` if some are not committed by `deadline`, and `BrokerError` for an error that is not retriable.

    `member`: the member that commits; by default none, which the coordinator accepts if the group has no members.
    `on_reply`: called with each partition of a reply and its error or None. Returns an error that fails the request, or
    None.
    `reply_deadline`: limit of one request, see `call_partitions`.
    """
    identity = {
        "group_id": group,
        "member_id": member.member_id,
        "generation_id_or_member_epoch": member.generation_id_or_member_epoch,
        "group_instance_id": member.group_instance_id,
    }
    check, options = topic_id_check(client, OFFSET_COMMIT, offsets, deadline)

    def handle(key: TopicPartition, row: Row, broker: Broker, error: BrokerError | None) -> KafkaError | None:
        if error is not None and member == NO_MEMBER and error.code in _REFUSED_FOR_MEMBERS:
            problem = f"{error}; the group has live members: use another group.id, or stop them"
            error = BrokerError(problem, **error.context, settings=("group.id",))
        return on_reply(key, error)

    call_partitions(
        client,
        OFFSET_COMMIT,
        identity,
        offset_rows(offsets),
        deadline,
        handle=handle,
        check=check,
        reply_deadline=reply_deadline,
        **options,
    )


def topic_id_check(
    client: Client,
    api: Api,
    offsets: Mapping[TopicPartition, Position],
    deadline: Deadline,
    *,
    at_most: int | None = None,
) -> tuple[Check, dict[str, Any]]:
    """Return arguments of `call_partitions` with which offsets of a deleted topic are refused with UNKNOWN_TOPIC_ID.

    If each topic has one known id, the request has the ids, and the coordinator compares them. Otherwise, or if the
    broker has no such version, the check compares them before the request. Offsets without a topic id are not compared.

    `api` is OffsetCommit or TxnOffsetCommit, `at_most` the newest version to send. The result is `check` and a dict
    with `topic_ids` and `at_most`.
    """
    last_with_names = _LAST_WITH_TOPIC_NAMES[api]
    ids_by_name = _ids_by_name(offsets) if at_most is None or at_most > last_with_names else None
    if ids_by_name is None:
        at_most = last_with_names if at_most is None else min(at_most, last_with_names)
    check = _same_topics(client, offsets, deadline, api, skip_if_by_id=ids_by_name is not None)
    return check, {"topic_ids": ids_by_name, "at_most": at_most}


def _ids_by_name(offsets: Mapping[TopicPartition, Position]) -> dict[str, bytes] | None:
    """Return the topics' ids by name; None if one is unknown, or if a topic has two."""
    ids: dict[str, bytes] = {}
    for (topic, _), position in offsets.items():
        if position.topic_id == NO_TOPIC_ID or ids.setdefault(topic, position.topic_id) != position.topic_id:
            return None
    return ids


def _same_topics(
    client: Client, offsets: Mapping[TopicPartition, Position], deadline: Deadline, api: Api, *, skip_if_by_id: bool
) -> Check:
    """Return a check for `call_partitions` that a commit by topic name is not of a deleted topic with that name.

    It compares the ids with the metadata of the coordinator itself. If it does not know the new topic yet, it
    accepts the commit, and deletes it when it learns of the deletion. `skip_if_by_id`: there is no check if the
    broker supports a version with topic ids.
    """

    def check(broker: Broker, partitions: Collection[TopicPartition]) -> dict[TopicPartition, BrokerError]:
        if skip_if_by_id:
            version = client.connection(broker, COORDINATOR, deadline).choose_version(api)
            if version > _LAST_WITH_TOPIC_NAMES[api]:
                return {}
        compared = [key for key in partitions if offsets[key].topic_id != NO_TOPIC_ID]
        if not compared:
            return {}
        topic_ids = _topic_ids_at(client, broker, {topic for topic, _ in compared}, deadline)
        errors: dict[TopicPartition, BrokerError] = {}
        for topic, partition in compared:
            if not offsets[topic, partition].is_in(topic_ids.get(topic, NO_TOPIC_ID)):
                problem = f"commit of {topic}-{partition}: the offset belongs to a deleted topic of that name"
                errors[topic, partition] = broker_error(
                    ErrorCode.UNKNOWN_TOPIC_ID, problem, topic=topic, partition=partition
                )
        return errors

    return check


def _topic_ids_at(client: Client, broker: Broker, topics: Collection[str], deadline: Deadline) -> dict[str, bytes]:
    """Return the ids of the topics that a broker knows."""
    body = {"topics": [{"name": name} for name in sorted(topics)], "allow_auto_topic_creation": False}
    first = FIRST_WITH_ALLOW_AUTO_TOPIC_CREATION
    cluster = Metadata.from_reply(client.ask(broker, METADATA, body, deadline, purpose=COORDINATOR, at_least=first))
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return {name: topic.topic_id for name, topic in cluster.topics.items() if topic.error_code != unknown}


def fetch_positions(
    client: Client,
    group: str,
    partitions: Collection[TopicPartition],
    deadline: Deadline,
    *,
    pending: set[TopicPartition] | None = None,
    expected_ids: TopicIds = NO_TOPIC_IDS,
    unknown_topic_s: float | None = None,
) -> tuple[dict[TopicPartition, CommittedOffset], dict[TopicPartition, CommittedOffset]]:
    """Return a group's offsets with the ids of the topics to which they belong.

    The coordinator knows the topic by the same id before and after it returns the offset. Since Kafka 4.2 it also
    compares this id with that of the commit: after a failover, the new coordinator may still have offsets of topics
    that were deleted meanwhile. Offsets committed before Kafka 4.1, in a transaction before 4.4, have no id.

    The second result has the offsets of topics that the coordinator does not know: they may just have been deleted.
    Partitions without a committed offset are in neither. Ids are zeros before Kafka 2.8.

    `pending` and the errors are those of `fetch_offsets`, `unknown_topic_s` and `TopicUnknown` those of
    `call_partitions`. `expected_ids`: ids of the topics to read; retry until the coordinator knows the topics of all
    offsets by these ids.
    """
    coordinator_key, names = group_coordinator(group), {topic for topic, _ in partitions}

    def topic_ids() -> dict[str, bytes]:
        return _topic_ids_at(client, client.coordinator(coordinator_key, deadline), names, deadline)

    def ask() -> tuple[dict[TopicPartition, CommittedOffset], dict[TopicPartition, CommittedOffset]]:
        before = topic_ids()
        has_id = {partition: before.get(partition[0], NO_TOPIC_ID) != NO_TOPIC_ID for partition in partitions}
        with_id, without = (
            [partition for partition in partitions if has_id[partition] is with_ids] for with_ids in (True, False)
        )
        offsets = fetch_offsets(client, group, with_id, deadline, topic_ids=before, pending=pending) if with_id else {}
        offsets |= fetch_offsets(client, group, without, deadline, pending=pending) if without else {}
        after = topic_ids() if offsets else before
        if changed := {topic for topic, _ in offsets if before.get(topic) != after.get(topic)}:
            problem = f"offsets of group {group}: the coordinator has learned of a new topic {min(changed)}"
            raise broker_error(ErrorCode.UNKNOWN_TOPIC_ID, problem)
        for key, topic_id in expected_ids.items():
            topic = key[0]
            if key in offsets and (topic not in after or is_another_topic(after[topic], topic_id)):
                problem = f"offsets of group {group}: the coordinator does not know the topic {topic} that is read"
                raise broker_error(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, problem, topic=topic)
        present = {key: offset.in_topic(after[key[0]]) for key, offset in offsets.items() if key[0] in after}
        return present, {key: offset for key, offset in offsets.items() if key not in present}

    operation = f"offsets of {coordinator_key} and their topics"
    return client.retrying(operation, ask, deadline, coordinator_of=coordinator_key, unknown_topic_s=unknown_topic_s)


def fetch_start_offsets(
    client: Client,
    group: str,
    topic_ids: TopicIds,
    deadline: Deadline,
    *,
    unknown_topic_s: float | None = None,
) -> dict[TopicPartition, CommittedOffset]:
    """Return a group's offsets to start at in the topics with these ids; see `fetch_positions`.

    Raises `TopicUnknown` if the coordinator knows other topics of these names for `unknown_topic_s`.
    """
    options: dict[str, Any] = {"expected_ids": topic_ids, "unknown_topic_s": unknown_topic_s}
    return fetch_positions(client, group, topic_ids, deadline, **options)[0]


def fetch_offsets(
    client: Client,
    group: str,
    partitions: Iterable[TopicPartition] | None,
    deadline: Deadline,
    *,
    require_stable: bool = True,
    topic_ids: Mapping[str, bytes] | None = None,
    pending: set[TopicPartition] | None = None,
) -> dict[TopicPartition, CommittedOffset]:
    """Return the committed offsets of a group; partitions without one are omitted.

    Raises `DeadlineExceeded` if the coordinator does not respond by `deadline` or transactions are still open, and
    `BrokerError` if it refuses the request with an error that is not retriable, or does not know a topic id.

    `partitions`: those to fetch; None fetches all.
    `require_stable`: wait for open transactions that send offsets of the group (KIP-447).
    `topic_ids`: ids of all topics. A coordinator since Kafka 4.2 omits offsets that were committed with other ids.
    `pending`: receives the partitions whose offsets are in an open transaction; without it, the call waits for the end.
    """
    by_topic: dict[str, list[int]] = {}
    asked_for = tuple(partitions or ())
    for topic, partition in asked_for:
        by_topic.setdefault(topic, []).append(partition)
    ids = topic_ids or {}

    def body(version: int) -> dict[str, Any]:
        has_ids = bool(ids) and version > m09_offset_fetch.LAST_WITH_TOPIC_NAMES
        rows = [
            {**({"topic_id": ids[topic]} if has_ids else {"name": topic}), "partition_indexes": indexes}
            for topic, indexes in by_topic.items()
        ]
        topics = None if partitions is None else rows
        # Since version 8 a request may have several groups (KIP-709).
        group_body: dict[str, Any] = {"group_id": group, "topics": topics}
        if version >= 8:
            return {"groups": [group_body], "require_stable": require_stable}
        return {**group_body, "require_stable": require_stable} if version >= 7 else group_body

    accept = {ErrorCode.UNKNOWN_TOPIC_ID}  # with the same ids, a retry would fail again
    if pending is not None:
        accept.add(ErrorCode.UNSTABLE_OFFSET_COMMIT)
    # Versions before 2 cannot fetch all partitions. A partition missing in the response is an error: it may have a
    # committed offset.
    reply = call(
        client,
        OFFSET_FETCH,
        body,
        deadline,
        to=group_coordinator(group),
        complete=asked_for,
        accept=accept,
        topic_ids=topic_ids,
        at_least=2,
        at_most=OFFSET_FETCH.last if ids else m09_offset_fetch.LAST_WITH_TOPIC_NAMES,
    )
    parts = list(error_parts(OFFSET_FETCH, reply))
    if refused := next((part for part in parts if part.code == ErrorCode.UNKNOWN_TOPIC_ID), None):
        raise broker_error(refused.code, f"offsets of group {group}", **refused.context)
    answers = {part.partition: part.fields for part in parts if part.partition is not None}
    if pending is not None:
        unstable = ErrorCode.UNSTABLE_OFFSET_COMMIT
        pending.update(part.partition for part in parts if part.code == unstable and part.partition is not None)
    return {
        key: CommittedOffset(row["committed_offset"], row["committed_leader_epoch"], row["metadata"] or "")
        for key, row in answers.items()
        if row["committed_offset"] >= 0
    }
