"""Requests about groups: their offsets, their members, and their deletion."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from protocol.broker_errors import ErrorCode
from protocol.kafka_terms import NO_TOPIC_ID, TopicPartition
from protocol.testing.fake_kafka.broker import Broker, named
from protocol.testing.fake_kafka.consumer_group import ConsumerGroup, Partition
from protocol.testing.fake_kafka.controller import TopicImage
from protocol.testing.fake_kafka.offsets import Committed
from protocol.testing.fake_kafka.requests import Body, Refused, Request, row_of
from protocol.wire.messages import m08_offset_commit, m28_txn_offset_commit
from protocol.wire.messages.m08_offset_commit import OFFSET_COMMIT
from protocol.wire.messages.m09_offset_fetch import OFFSET_FETCH
from protocol.wire.messages.m10_find_coordinator import GROUP
from protocol.wire.messages.m15_describe_groups import DESCRIBE_GROUPS
from protocol.wire.messages.m28_txn_offset_commit import TXN_OFFSET_COMMIT

_LAST_WITH_TOPIC_NAMES = {
    OFFSET_COMMIT: m08_offset_commit.LAST_WITH_TOPIC_NAMES,
    TXN_OFFSET_COMMIT: m28_txn_offset_commit.LAST_WITH_TOPIC_NAMES,
}
_NOTHING = {"committed_offset": -1, "committed_leader_epoch": -1, "metadata": ""}

# -- OffsetCommit, TxnOffsetCommit -----------------------------------------------------------------


def commit_offsets(broker: Broker, request: Request, now_s: float) -> Body:
    """Handle OffsetCommit."""
    body, groups = request.body, broker.cluster.groups

    def check() -> None:
        generation, member_id = body["generation_id_or_member_epoch"], body["member_id"]
        _check(broker, body, generation, in_transaction=False)
        if body["group_id"] in groups.consumer_groups:
            return
        group = groups.create(body["group_id"])
        if member_id in group.members:
            member = group.members[member_id]
            member.expires_s = now_s + member.session_timeout_ms / 1000

    return _commit(broker, request, check, broker.cluster.offsets.committed.setdefault(body["group_id"], {}))


def commit_in_transaction(broker: Broker, request: Request, now_s: float) -> Body:
    """Handle TxnOffsetCommit."""
    body, cluster = request.body, broker.cluster
    cluster.authorizer.require(TXN_OFFSET_COMMIT, "TransactionalId", body["transactional_id"])
    cluster.transactions.require_group(request)
    by_group = cluster.offsets.pending.setdefault(body["producer_id"], {})

    def check() -> None:
        _check(broker, body, body["generation_id_or_member_epoch"], in_transaction=True)
        cluster.groups.create(body["group_id"])

    return _commit(broker, request, check, by_group.setdefault(body["group_id"], {}))


def _check(broker: Broker, body: Body, generation: int, *, in_transaction: bool) -> None:
    who = body["member_id"], body["group_instance_id"], generation
    broker.cluster.groups.check_commit(body["group_id"], *who, in_transaction=in_transaction)


def _commit(broker: Broker, request: Request, check: Callable[[], None], into: dict[TopicPartition, Committed]) -> Body:
    """Refuse unknown topics first; then check the sender once for all rows."""
    refusal = _refusal_of(check)
    has_ids = request.version > _LAST_WITH_TOPIC_NAMES[request.api]

    def commit(topic: TopicImage, part: Body) -> Body:
        if part["partition_index"] >= len(topic.partitions):
            raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if refusal is not None:
            raise refusal
        if len(part["committed_metadata"] or "") > broker.cluster.offsets.max_metadata:
            raise Refused(ErrorCode.OFFSET_METADATA_TOO_LARGE)
        topic_id = topic.topic_id if has_ids else NO_TOPIC_ID
        into[topic.name, part["partition_index"]] = Committed.of(part, topic_id)
        return {}

    return {"topics": broker.rows(request.api, request.body["topics"], commit)}


def _refusal_of(check: Callable[[], None]) -> Refused | None:
    try:
        check()
    except Refused as refusal:
        return refusal
    return None


# -- OffsetFetch, OffsetDelete ---------------------------------------------------------------------


def fetch_offsets(broker: Broker, request: Request) -> Body:
    """Handle OffsetFetch."""
    stable = request.body["require_stable"]
    return {"groups": [_offsets_of(broker, group_fields, stable) for group_fields in request.body["groups"]]}


def _offsets_of(broker: Broker, group_fields: Body, stable: bool) -> Body:
    group_id = group_fields["group_id"]
    try:
        broker.cluster.authorizer.require(OFFSET_FETCH, "Group", group_id)
        broker.cluster.require_coordinator(broker, GROUP, group_id)
    except Refused as refusal:
        return {"group_id": group_id, "topics": [], "error_code": refusal.code}
    topics = group_fields["topics"] if group_fields["topics"] is not None else _all_topics(broker, group_id)
    rows = [{**named(topic), "partitions": _offset_rows(broker, group_id, topic, stable)} for topic in topics]
    return {"group_id": group_id, "topics": rows, "error_code": ErrorCode.NONE}


def _offset_rows(broker: Broker, group_id: str, group_fields: Body, stable: bool) -> list[Body]:
    offsets = broker.cluster.offsets

    def offset(number: int) -> Body:
        # A request by topic name succeeds for a deleted topic.
        key = (group_fields.get("name") or broker.topic(group_fields).name, number)
        broker.cluster.authorizer.require(OFFSET_FETCH, "Topic", key[0])
        if stable:
            broker.cluster.faults.refuse(OFFSET_FETCH, broker.node_id, key)
            if offsets.is_pending(group_id, key):
                raise Refused(ErrorCode.UNSTABLE_OFFSET_COMMIT)
        committed = offsets.committed.get(group_id, {}).get(key)
        # A coordinator may have offsets of a topic that was deleted before it took over the group.
        return (
            committed.row()
            if committed and committed.belongs_to(bytes(group_fields.get("topic_id", NO_TOPIC_ID)))
            else _NOTHING
        )

    numbers = group_fields["partition_indexes"]
    return [{**_NOTHING, **row_of(partial(offset, number), partition_index=number)} for number in numbers]


def _all_topics(broker: Broker, group_id: str) -> list[Body]:
    by_topic: dict[str, list[int]] = {}
    for name, number in sorted(broker.cluster.offsets.committed.get(group_id, {})):
        by_topic.setdefault(name, []).append(number)
    return [
        {"name": name, "topic_id": broker.image.topics[name].topic_id, "partition_indexes": numbers}
        for name, numbers in by_topic.items()
        if name in broker.image.topics and broker.cluster.authorizer.may(OFFSET_FETCH, "Topic", name)
    ]


def delete_offsets(broker: Broker, request: Request) -> Body:
    """Handle OffsetDelete: topics that a member subscribes to are refused."""
    group_id = request.body["group_id"]
    broker.cluster.authorizer.require(request.api, "Group", group_id)
    broker.cluster.require_coordinator(broker, GROUP, group_id)
    subscribed = broker.cluster.groups.subscribed_topics(group_id, broker.image.topics)
    committed = broker.cluster.offsets.committed.get(group_id, {})

    def delete(topic: str, number: int) -> Body:
        broker.cluster.authorizer.require(request.api, "Topic", topic)
        if topic not in broker.image.topics or number >= len(broker.image.topics[topic].partitions):
            raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if topic in subscribed:
            raise Refused(ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC)
        committed.pop((topic, number), None)
        return {}

    rows = [
        {
            "name": topic["name"],
            "partitions": [
                row_of(
                    partial(delete, topic["name"], partition["partition_index"]),
                    partition_index=partition["partition_index"],
                )
                for partition in topic["partitions"]
            ],
        }
        for topic in request.body["topics"]
    ]
    return {"error_code": ErrorCode.NONE, "topics": rows}


# -- ListGroups, DescribeGroups, ConsumerGroupDescribe, DeleteGroups -------------------------------


def list_groups(broker: Broker, request: Request) -> Body:
    """Return the groups that this broker coordinates, of both protocols."""
    groups, body = broker.cluster.groups, request.body
    rows: list[Body] = [
        {
            "group_id": group.group_id,
            "protocol_type": group.protocol_type or "",
            "group_state": group.state.value,
            "group_type": "classic",
        }
        for group in groups.groups.values()
    ] + [
        {"group_id": group.group_id, "protocol_type": "consumer", "group_state": group.state, "group_type": "consumer"}
        for group in groups.consumer_groups.values()
    ]
    authorizer = broker.cluster.authorizer
    states, types = ([name_text.lower() for name_text in body[name]] for name in ("states_filter", "types_filter"))
    return {
        "groups": [
            row
            for row in rows
            if broker.cluster.coordinator(GROUP, row["group_id"]) == broker.node_id
            and (authorizer.may(request.api, "Cluster") or authorizer.allows("Describe", "Group", row["group_id"]))
            and (not states or row["group_state"].lower() in states)
            and (not types or row["group_type"] in types)
        ]
    }


def describe_groups(broker: Broker, request: Request) -> Body:
    """Handle DescribeGroups."""

    def described(group_id: str) -> Body:
        broker.cluster.authorizer.require(DESCRIBE_GROUPS, "Group", group_id)
        broker.cluster.require_coordinator(broker, GROUP, group_id)
        return broker.cluster.groups.describe(group_id)

    return {"groups": [row_of(partial(described, group_id), group_id=group_id) for group_id in request.body["groups"]]}


def describe_consumer_groups(broker: Broker, request: Request) -> Body:
    """Handle ConsumerGroupDescribe."""

    def described(group_id: str) -> Body:
        broker.cluster.authorizer.require(request.api, "Group", group_id)
        broker.cluster.require_coordinator(broker, GROUP, group_id)
        group = broker.cluster.groups.consumer_groups.get(group_id)
        if group is None:
            raise Refused(ErrorCode.GROUP_ID_NOT_FOUND, error_message=f"Group {group_id} not found.")
        return _described(broker, group)

    return {
        "groups": [row_of(partial(described, group_id), group_id=group_id) for group_id in request.body["group_ids"]]
    }


def _described(broker: Broker, group: ConsumerGroup) -> Body:
    names = {topic.topic_id: topic.name for topic in broker.image.topics.values()}

    def partitions(of: set[Partition]) -> Body:
        by_id: dict[bytes, list[int]] = {}
        for topic_id, number in sorted(of):
            by_id.setdefault(topic_id, []).append(number)
        rows = [
            {"topic_id": topic_id, "topic_name": names[topic_id], "partitions": numbers}
            for topic_id, numbers in by_id.items()
            if topic_id in names
        ]
        return {"topic_partitions": rows}

    return {
        "group_state": group.state,
        "group_epoch": group.epoch,
        "assignment_epoch": group.epoch,
        "assignor_name": "uniform",
        "members": [
            {
                "member_id": member.member_id,
                "instance_id": member.instance_id,
                "member_epoch": member.epoch,
                "client_id": member.client_id,
                "client_host": "/127.0.0.1",
                "subscribed_topic_names": list(member.names),
                "subscribed_topic_regex": member.regex,
                "assignment": partitions(member.assigned),
                "target_assignment": partitions(group.target.get(member.member_id, set())),
                "member_type": 1,
            }
            for member in group.members.values()
        ],
    }


def delete_groups(broker: Broker, request: Request) -> Body:
    """Delete groups without members, and their committed offsets."""
    groups, offsets = broker.cluster.groups, broker.cluster.offsets

    def delete(group_id: str) -> Body:
        broker.cluster.authorizer.require(request.api, "Group", group_id)
        broker.cluster.require_coordinator(broker, GROUP, group_id)
        group = groups.groups.get(group_id) or groups.consumer_groups.get(group_id)
        if group is None:
            raise Refused(ErrorCode.GROUP_ID_NOT_FOUND)
        if group.members:
            raise Refused(ErrorCode.NON_EMPTY_GROUP)
        groups.groups.pop(group_id, None)
        groups.consumer_groups.pop(group_id, None)
        offsets.committed.pop(group_id, None)
        return {}

    return {
        "results": [row_of(partial(delete, group_id), group_id=group_id) for group_id in request.body["groups_names"]]
    }
