"""Metadata, CreateTopics, DeleteTopics, CreatePartitions: any broker handles them with its image."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from protocol.broker_errors import ErrorCode
from protocol.testing.fake_kafka.broker import Broker
from protocol.testing.fake_kafka.configs import check_topic_config
from protocol.testing.fake_kafka.controller import NO_LEADER, PartitionImage, TopicImage, is_legal_name
from protocol.testing.fake_kafka.requests import Body, Refused, Request, row_of
from protocol.wire.messages.m03_metadata import METADATA
from protocol.wire.schema import NO_UUID


def metadata(broker: Broker, request: Request) -> Body:
    """Handle Metadata."""
    image, requested = broker.image, request.body["topics"]
    if requested is None:
        authorizer = broker.cluster.authorizer
        requested = [
            {"name": topic.name, "topic_id": topic.topic_id}
            for topic in image.topics.values()
            if authorizer.may(METADATA, "Topic", topic.name)
        ]
    rows = [
        _wanted(broker, topic_fields, create=request.body["allow_auto_topic_creation"]) for topic_fields in requested
    ]
    return {
        "brokers": broker.cluster.endpoints(image.brokers),
        "cluster_id": broker.cluster.cluster_id,
        "controller_id": min(image.brokers, default=-1),
        "topics": rows,
    }


def _wanted(broker: Broker, topic_fields: Body, *, create: bool) -> Body:
    name = topic_fields["name"]
    try:
        broker.cluster.faults.refuse(METADATA, broker.node_id)
        if name:
            broker.cluster.authorizer.require(METADATA, "Topic", name)
        if name is not None and not is_legal_name(name):
            raise Refused(ErrorCode.INVALID_TOPIC_EXCEPTION)
        topic = broker.topic(topic_fields)
        broker.cluster.authorizer.require(METADATA, "Topic", topic.name)
        return _topic(broker, topic)
    except Refused as refusal:
        code = refusal.code
    unknown = code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if create and unknown and name and broker.cluster.settings["auto.create.topics.enable"] == "true":
        # The topic exists at the next request.
        code = row_of(lambda: _create(broker, name))["error_code"] or code
    return {"error_code": code, "name": name, "topic_id": topic_fields["topic_id"], "partitions": []}


def _create(broker: Broker, name: str) -> Body:
    broker.cluster.controller.create_topic(name)
    return {}


def _topic(broker: Broker, topic: TopicImage) -> Body:
    rows = [_partition(broker, number, partition) for number, partition in enumerate(topic.partitions)]
    return {"error_code": ErrorCode.NONE, "name": topic.name, "topic_id": topic.topic_id, "partitions": rows}


def _partition(broker: Broker, number: int, partition: PartitionImage) -> Body:
    alive = broker.image.brokers
    leads = partition.leader in alive
    return {
        "error_code": ErrorCode.NONE if leads else ErrorCode.LEADER_NOT_AVAILABLE,
        "partition_index": number,
        "leader_id": partition.leader if leads else NO_LEADER,
        "leader_epoch": partition.leader_epoch,
        "replica_nodes": list(partition.replicas),
        "isr_nodes": list(partition.isr),
        "offline_replicas": [replica for replica in partition.replicas if replica not in alive],
    }


def _rows(topics: list[Body], act: Callable[[Body], Body]) -> list[Body]:
    return [row_of(partial(act, row), name=row["name"]) for row in topics]


def _require(broker: Broker, request: Request, name: str) -> None:
    """Raise `Refused` unless the principal may create, delete or change the topic."""
    broker.cluster.authorizer.require(request.api, "Topic", name)


def create_topics(broker: Broker, request: Request) -> Body:
    """Handle CreateTopics."""

    def create(row: Body) -> Body:
        if not broker.cluster.authorizer.may(request.api, "Cluster"):
            _require(broker, request, row["name"])
        config = {config["name"]: config["value"] for config in row["configs"]}
        check_topic_config(config)
        rows = sorted(row["assignments"], key=lambda assignment: assignment["partition_index"])
        if [row["partition_index"] for row in rows] != list(range(len(rows))):
            raise Refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT)
        created = broker.cluster.controller.create_topic(
            row["name"],
            row["num_partitions"],
            row["replication_factor"],
            config,
            assignment=[row["broker_ids"] for row in rows],
            validate_only=request.body["validate_only"],
        )
        copies = len(created.partitions[0].replicas)
        return {"topic_id": created.topic_id, "num_partitions": len(created.partitions), "replication_factor": copies}

    return {"topics": _rows(request.body["topics"], create)}


def delete_topics(broker: Broker, request: Request) -> Body:
    """Handle DeleteTopics."""

    def delete(row: Body) -> Body:
        if row["name"]:
            _require(broker, request, row["name"])
        topic = broker.topic(row, broker.cluster.controller.image)  # brokers forward the request to the controller
        _require(broker, request, topic.name)
        broker.cluster.delete_topic(topic.name)
        return {"name": topic.name, "topic_id": topic.topic_id}

    topics = [{**row, "topic_id": row["topic_id"] or NO_UUID} for row in request.body["topics"]]
    return {"responses": _rows(topics, delete)}


def create_partitions(broker: Broker, request: Request) -> Body:
    """Handle CreatePartitions."""

    def grow(row: Body) -> Body:
        _require(broker, request, row["name"])
        rows, validate_only = row["assignments"] or (), request.body["validate_only"]
        assignment = [row["broker_ids"] for row in rows]
        broker.cluster.controller.create_partitions(
            row["name"], row["count"], assignment=assignment, validate_only=validate_only
        )
        return {}

    return {"results": _rows(request.body["topics"], grow)}
