"""Administrative requests: the cluster, configurations, producers, log directories, reassignments, elections."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from protocol.broker_errors import ErrorCode
from protocol.testing.fake_kafka.broker import Broker
from protocol.testing.fake_kafka.configs import TOPIC_DEFAULTS, check_topic_config, topic_config
from protocol.testing.fake_kafka.controller import PartitionImage, TopicImage
from protocol.testing.fake_kafka.requests import Body, Refused, Request, row_of
from protocol.wire.messages.m61_describe_producers import DESCRIBE_PRODUCERS

_LOG_DIR = "/fake"
_TOPIC, _BROKER, _GROUP = 2, 4, 32
_FROM_TOPIC, _FROM_BROKER, _FROM_DEFAULT, _FROM_GROUP = 1, 4, 5, 8
_SET, _DELETE, _APPEND, _SUBTRACT = range(4)


def describe_cluster(broker: Broker, request: Request) -> Body:
    """Handle DescribeCluster."""
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


# -- configurations --------------------------------------------------------------------------------


def describe_configs(broker: Broker, request: Request) -> Body:
    """Handle DescribeConfigs."""

    def described(row: Body) -> Body:
        _require(broker, request, row)
        configs = _configs_of(broker, row["resource_type"], row["resource_name"])
        names = row["configuration_keys"]
        rows = [_config_row(name, *configs[name]) for name in sorted(configs) if names is None or name in names]
        return {"configs": rows, "error_message": None}

    return {"results": [_resource_row(row, partial(described, row)) for row in request.body["resources"]]}


def _configs_of(broker: Broker, kind: int, name: str) -> dict[str, tuple[str, int]]:
    """Return the value and the source of each configuration."""
    settings = broker.cluster.settings
    if kind == _TOPIC:
        own = broker.topic({"name": name}).config
        return {
            key: (value, _FROM_TOPIC if key in own else _FROM_DEFAULT if value == TOPIC_DEFAULTS[key] else _FROM_BROKER)
            for key, value in topic_config(settings, own).items()
        }
    if kind == _BROKER:
        return {key: (value, _FROM_BROKER) for key, value in settings.items()}
    if kind == _GROUP:
        return {key: (value, _FROM_GROUP) for key, value in broker.cluster.group_configs.get(name, {}).items()}
    raise Refused(ErrorCode.INVALID_REQUEST, error_message=f"Unsupported resource type: {kind}")


def _config_row(name: str, value: str, source: int) -> Body:
    return {"name": name, "value": value, "read_only": False, "config_source": source, "synonyms": []}


def _resource_row(row: Body, act: Callable[[], Body]) -> Body:
    identity = {"resource_type": row["resource_type"], "resource_name": row["resource_name"]}
    return row_of(act, **identity)


def _require(broker: Broker, request: Request, row: Body) -> None:
    """Raise `Refused` unless the principal may see or change the configuration."""
    if row["resource_type"] == _TOPIC:
        broker.cluster.authorizer.require(request.api, "Topic", row["resource_name"])
    else:
        broker.cluster.authorizer.require(request.api, "Cluster")


def alter_configs(broker: Broker, request: Request) -> Body:
    """Handle AlterConfigs, which replaces the whole configuration."""
    return _alter(broker, request, lambda row, _: {config["name"]: config["value"] for config in row["configs"]})


def incremental_alter_configs(broker: Broker, request: Request) -> Body:
    """Handle IncrementalAlterConfigs."""
    return _alter(broker, request, _changed)


def _alter(broker: Broker, request: Request, change: Callable[[Body, Mapping[str, str]], dict[str, str]]) -> Body:
    cluster = broker.cluster

    def alter(row: Body) -> Body:
        _require(broker, request, row)
        name, kind, apply = row["resource_name"], row["resource_type"], not request.body["validate_only"]
        if kind == _TOPIC:
            check_topic_config(config["name"] for config in row["configs"])
            changed = change(row, cluster.controller.topic(name).config)
            if apply:
                cluster.controller.set_config(name, changed)
        elif kind in (_BROKER, _GROUP):
            configs = cluster.settings if kind == _BROKER else cluster.group_configs.setdefault(name, {})
            changed = change(row, configs)
            if apply:
                configs.update(changed)
        else:
            raise Refused(ErrorCode.INVALID_REQUEST, error_message=f"Unsupported resource type: {kind}")
        return {"error_message": None}

    return {"responses": [_resource_row(row, partial(alter, row)) for row in request.body["resources"]]}


def _changed(row: Body, config: Mapping[str, str]) -> dict[str, str]:
    """Return a configuration after the operations of a row."""
    changed = dict(config)
    for changed_config in row["configs"]:
        name, operation, value = (
            changed_config["name"],
            changed_config["config_operation"],
            changed_config["value"] or "",
        )
        if operation == _DELETE:
            changed.pop(name, None)
        elif operation == _SET:
            changed[name] = value
        else:
            listed = [part for part in changed.get(name, TOPIC_DEFAULTS.get(name, "")).split(",") if part]
            present_parts = value.split(",")
            parts = [part for part in listed if part not in present_parts]
            changed[name] = ",".join([*parts, *present_parts] if operation == _APPEND else parts)
    return changed


# -- partitions ------------------------------------------------------------------------------------


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
        {"name": row["name"], "partitions": [{"partition_index": number} for number in row["partition_indexes"]]}
        for row in request.body["topics"]
    ]
    return {"topics": broker.rows(DESCRIBE_PRODUCERS, topics, producers)}


def describe_log_dirs(broker: Broker, request: Request) -> Body:
    """Return the sizes of the broker's replicas; all are in one directory."""
    broker.cluster.authorizer.require(request.api, "Cluster")
    requested = request.body["topics"]
    requested_keys = (
        None if requested is None else {(row["topic"], number) for row in requested for number in row["partitions"]}
    )
    by_topic: dict[str, list[Body]] = {}
    for topic in broker.image.topics.values():
        for number in range(len(topic.partitions)):
            replica = broker.replicas.get((topic.topic_id, number))
            if replica is not None and (requested_keys is None or (topic.name, number) in requested_keys):
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
                    partial(alter, topic["name"], partition["partition_index"], partition["replicas"]),
                    partition_index=partition["partition_index"],
                )
                for partition in topic["partitions"]
            ],
        }
        for topic in request.body["topics"]
    ]
    return {"error_code": ErrorCode.NONE, "error_message": None, "responses": responses}


def elect_leaders(broker: Broker, request: Request) -> Body:
    """Elect the preferred leaders, or with `election_type` 1 any replica for partitions without a leader."""
    cluster, requested = broker.cluster, request.body["topic_partitions"]
    cluster.authorizer.require(request.api, "Cluster")
    topics = cluster.controller.image.topics
    keys = (
        [(name, number) for name, topic in topics.items() for number in range(len(topic.partitions))]
        if requested is None
        else [(row["topic"], number) for row in requested for number in row["partitions"]]
    )

    def elect(topic: str, number: int) -> Body:
        if topic not in topics or number >= len(topics[topic].partitions):
            raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        partition = topics[topic].partitions[number]
        leader = _elected(partition, cluster.controller.image.brokers, unclean=request.body["election_type"] == 1)
        cluster.move_leader(topic, number, leader)
        return {"error_message": None}

    by_topic: dict[str, list[Body]] = {}
    for topic, number in keys:
        row = row_of(partial(elect, topic, number), partition_id=number)
        if requested is not None or row["error_code"] != ErrorCode.ELECTION_NOT_NEEDED:
            by_topic.setdefault(topic, []).append(row)
    results = [{"topic": topic, "partition_result": rows} for topic, rows in by_topic.items()]
    return {"error_code": ErrorCode.NONE, "replica_election_results": results}


def _elected(partition: PartitionImage, alive: Sequence[int], *, unclean: bool) -> int:
    """Return the new leader of a partition; raise `Refused` if there is none, or if it leads already."""
    if unclean:
        replicas = [replica for replica in partition.replicas if replica in alive]
        if partition.leader in alive:
            raise Refused(ErrorCode.ELECTION_NOT_NEEDED)
        if not replicas:
            raise Refused(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE)
        return replicas[0]
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
