"""Administrative requests: groups, the cluster, active producers, log directories, reassignments, elections."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from protocol.broker_errors import ErrorCode
from protocol.testing.fake_kafka.broker import Broker
from protocol.testing.fake_kafka.consumer_group import ConsumerGroup, Partition
from protocol.testing.fake_kafka.controller import PartitionImage, TopicImage
from protocol.testing.fake_kafka.requests import Body, Refused, Request, row_of
from protocol.wire.messages.m10_find_coordinator import GROUP
from protocol.wire.messages.m61_describe_producers import DESCRIBE_PRODUCERS

_LOG_DIR = "/fake"


def list_groups(broker: Broker, request: Request) -> Body:
    """Return the groups that this broker coordinates, of both protocols."""
    groups, body = broker.cluster.groups, request.body
    rows: list[Body] = [
        {
            "group_id": each.group_id,
            "protocol_type": each.protocol_type or "",
            "group_state": each.state.value,
            "group_type": "classic",
        }
        for each in groups.groups.values()
    ] + [
        {
            "group_id": each.group_id,
            "protocol_type": "consumer",
            "group_state": each.state,
            "group_type": "consumer",
        }
        for each in groups.consumer_groups.values()
    ]
    authorizer = broker.cluster.authorizer
    states, types = ([each.lower() for each in body[name]] for name in ("states_filter", "types_filter"))
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


def describe_consumer_groups(broker: Broker, request: Request) -> Body:
    """Handle ConsumerGroupDescribe."""

    def described(group_id: str) -> Body:
        broker.cluster.faults.refuse(request.api, broker.node_id)
        broker.cluster.authorizer.require(request.api, "Group", group_id)
        broker.cluster.require_coordinator(broker, GROUP, group_id)
        group = broker.cluster.groups.consumer_groups.get(group_id)
        if group is None:
            raise Refused(ErrorCode.GROUP_ID_NOT_FOUND, error_message=f"Group {group_id} not found.")
        return _described(broker, group)

    return {"groups": [row_of(partial(described, each), group_id=each) for each in request.body["group_ids"]]}


def _described(broker: Broker, group: ConsumerGroup) -> Body:
    names = {topic.topic_id: topic.name for topic in broker.image.topics.values()}

    def partitions(of: set[Partition]) -> Body:
        by_id: dict[bytes, list[int]] = {}
        for topic_id, number in sorted(of):
            by_id.setdefault(topic_id, []).append(number)
        rows = [
            {"topic_id": each, "topic_name": names[each], "partitions": numbers}
            for each, numbers in by_id.items()
            if each in names
        ]
        return {"topic_partitions": rows}

    return {
        "group_state": group.state,
        "group_epoch": group.epoch,
        "assignment_epoch": group.epoch,
        "assignor_name": "uniform",
        "members": [
            {
                "member_id": each.member_id,
                "instance_id": each.instance_id,
                "member_epoch": each.epoch,
                "client_id": each.client_id,
                "client_host": "/127.0.0.1",
                "subscribed_topic_names": list(each.names),
                "subscribed_topic_regex": each.regex,
                "assignment": partitions(each.assigned),
                "target_assignment": partitions(group.target.get(each.member_id, set())),
                "member_type": 1,
            }
            for each in group.members.values()
        ],
    }


def delete_groups(broker: Broker, request: Request) -> Body:
    """Delete groups without members, and their committed offsets."""
    groups, offsets = broker.cluster.groups, broker.cluster.offsets

    def delete(group_id: str) -> Body:
        broker.cluster.faults.refuse(request.api, broker.node_id)
        broker.cluster.authorizer.require(request.api, "Group", group_id)
        broker.cluster.require_coordinator(broker, GROUP, group_id)
        found = groups.groups.get(group_id) or groups.consumer_groups.get(group_id)
        if found is None:
            raise Refused(ErrorCode.GROUP_ID_NOT_FOUND)
        if found.members:
            raise Refused(ErrorCode.NON_EMPTY_GROUP)
        groups.groups.pop(group_id, None)
        groups.consumer_groups.pop(group_id, None)
        offsets.committed.pop(group_id, None)
        return {}

    return {"results": [row_of(partial(delete, each), group_id=each) for each in request.body["groups_names"]]}


def delete_offsets(broker: Broker, request: Request) -> Body:
    """Handle OffsetDelete: topics that a member subscribes to are refused."""
    group_id = request.body["group_id"]
    broker.cluster.faults.refuse(request.api, broker.node_id)
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
                row_of(partial(delete, topic["name"], each["partition_index"]), partition_index=each["partition_index"])
                for each in topic["partitions"]
            ],
        }
        for topic in request.body["topics"]
    ]
    return {"error_code": ErrorCode.NONE, "topics": rows}


def describe_cluster(broker: Broker, request: Request) -> Body:
    """Handle DescribeCluster."""
    broker.cluster.faults.refuse(request.api, broker.node_id)
    alive = broker.image.brokers
    ids = broker.cluster.brokers if request.body["include_fenced_brokers"] else alive
    rows = [
        {("broker_id" if key == "node_id" else key): value for key, value in row.items()}
        | {"is_fenced": row["node_id"] not in alive}
        for row in broker.cluster.endpoints(ids)
    ]
    return {
        "error_code": ErrorCode.NONE,
        "cluster_id": broker.cluster.cluster_id,
        "controller_id": min(alive, default=-1),
        "brokers": rows,
    }


def describe_producers(broker: Broker, request: Request) -> Body:
    """Handle DescribeProducers."""

    def producers(topic: TopicImage, part: Body) -> Body:
        led = broker.led(topic, part["partition_index"])
        rows = [
            {
                "producer_id": producer_id,
                "producer_epoch": state.epoch,
                "last_sequence": state.batches[-1].last_sequence if state.batches else -1,
                "current_txn_start_offset": -1 if state.transaction_from is None else state.transaction_from,
            }
            for producer_id, state in led.log.producers.items()
        ]
        return {"active_producers": rows, "error_message": None}

    topics = [
        {"name": row["name"], "partitions": [{"partition_index": each} for each in row["partition_indexes"]]}
        for row in request.body["topics"]
    ]
    return {"topics": broker.rows(DESCRIBE_PRODUCERS, topics, producers)}


def describe_log_dirs(broker: Broker, request: Request) -> Body:
    """Return the sizes of the broker's replicas; all are in one directory."""
    broker.cluster.authorizer.require(request.api, "Cluster")
    wanted = request.body["topics"]
    asked = None if wanted is None else {(row["topic"], each) for row in wanted for each in row["partitions"]}
    by_topic: dict[str, list[Body]] = {}
    for topic in broker.image.topics.values():
        for number in range(len(topic.partitions)):
            replica = broker.replicas.get((topic.topic_id, number))
            if replica is not None and (asked is None or (topic.name, number) in asked):
                size_bytes = sum(len(batch.data) for batch in replica.log.batches)
                by_topic.setdefault(topic.name, []).append({"partition_index": number, "partition_size": size_bytes})
    topics = [{"name": name, "partitions": rows} for name, rows in by_topic.items()]
    return {"results": [{"error_code": ErrorCode.NONE, "log_dir": _LOG_DIR, "topics": topics}]}


def alter_reassignments(broker: Broker, request: Request) -> Body:
    """Move partitions to other replicas, at once. Replicas None, to cancel a move, are refused: none is in progress."""

    def alter(topic: str, number: int, replicas: list[int] | None) -> Body:
        if replicas is None:
            raise Refused(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
        broker.cluster.reassign(topic, number, replicas)
        return {"error_message": None}

    broker.cluster.authorizer.require(request.api, "Cluster")
    responses = [
        {
            "name": topic["name"],
            "partitions": [
                row_of(
                    partial(alter, topic["name"], each["partition_index"], each["replicas"]),
                    partition_index=each["partition_index"],
                )
                for each in topic["partitions"]
            ],
        }
        for topic in request.body["topics"]
    ]
    return {"error_code": ErrorCode.NONE, "error_message": None, "responses": responses}


def elect_leaders(broker: Broker, request: Request) -> Body:
    """Elect the preferred leaders, or with `election_type` 1 any replica for partitions without a leader."""
    cluster, asked = broker.cluster, request.body["topic_partitions"]
    cluster.authorizer.require(request.api, "Cluster")
    topics = cluster.controller.image.topics
    wanted = (
        [(name, number) for name, topic in topics.items() for number in range(len(topic.partitions))]
        if asked is None
        else [(row["topic"], number) for row in asked for number in row["partitions"]]
    )

    def elect(topic: str, number: int) -> Body:
        if topic not in topics or number >= len(topics[topic].partitions):
            raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        partition = topics[topic].partitions[number]
        leader = _elected(partition, cluster.controller.image.brokers, unclean=request.body["election_type"] == 1)
        cluster.move_leader(topic, number, leader)
        return {"error_message": None}

    by_topic: dict[str, list[Body]] = {}
    for topic, number in wanted:
        row = row_of(partial(elect, topic, number), partition_id=number)
        if asked is not None or row["error_code"] != ErrorCode.ELECTION_NOT_NEEDED:
            by_topic.setdefault(topic, []).append(row)
    results = [{"topic": topic, "partition_result": rows} for topic, rows in by_topic.items()]
    return {"error_code": ErrorCode.NONE, "replica_election_results": results}


def _elected(partition: PartitionImage, alive: Sequence[int], *, unclean: bool) -> int:
    """Return the new leader of a partition; raise `Refused` if there is none, or if it leads already."""
    if unclean:
        left = [each for each in partition.replicas if each in alive]
        if partition.leader in alive:
            raise Refused(ErrorCode.ELECTION_NOT_NEEDED)
        if not left:
            raise Refused(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE)
        return left[0]
    preferred = partition.replicas[0]
    if partition.leader == preferred:
        raise Refused(ErrorCode.ELECTION_NOT_NEEDED)
    if preferred not in alive or preferred not in partition.isr:
        raise Refused(ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE)
    return preferred


def list_reassignments(broker: Broker, request: Request) -> Body:
    """Return no reassignments: each is complete at once."""
    broker.cluster.authorizer.require(request.api, "Cluster")
    return {"error_code": ErrorCode.NONE, "error_message": None, "topics": []}
