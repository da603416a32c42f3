"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs, and Kafka's topic configurations with their defaults."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial

from protocol.broker_errors import ErrorCode
from protocol.testing.fake_kafka.broker import Broker
from protocol.testing.fake_kafka.requests import Body, Refused, Request, row_of

TOPIC_DEFAULTS: Mapping[str, str] = {
    "cleanup.policy": "delete",
    "compression.gzip.level": "-1",
    "compression.lz4.level": "9",
    "compression.type": "producer",
    "compression.zstd.level": "3",
    "delete.retention.ms": "86400000",
    "file.delete.delay.ms": "60000",
    "flush.messages": "9223372036854775807",
    "flush.ms": "9223372036854775807",
    "follower.replication.throttled.replicas": "",
    "index.interval.bytes": "4096",
    "leader.replication.throttled.replicas": "",
    "local.retention.bytes": "-2",
    "local.retention.ms": "-2",
    "max.compaction.lag.ms": "9223372036854775807",
    "max.message.bytes": "1048588",
    "message.timestamp.after.max.ms": "3600000",
    "message.timestamp.before.max.ms": "9223372036854775807",
    "message.timestamp.type": "CreateTime",
    "min.cleanable.dirty.ratio": "0.5",
    "min.compaction.lag.ms": "0",
    "min.insync.replicas": "1",
    "preallocate": "false",
    "remote.log.copy.disable": "false",
    "remote.log.delete.on.disable": "false",
    "remote.storage.enable": "false",
    "retention.bytes": "-1",
    "retention.ms": "604800000",
    "segment.bytes": "1073741824",
    "segment.index.bytes": "10485760",
    "segment.jitter.ms": "0",
    "segment.ms": "604800000",
    "unclean.leader.election.enable": "false",
}
"""Kafka's topic configurations. The model acts on the cleanup policy, the retention ones, `delete.retention.ms`,
`max.message.bytes`, `message.timestamp.type` and `min.insync.replicas`; it only stores the others."""

_TOPIC, _BROKER, _GROUP = 2, 4, 32
_FROM_TOPIC, _FROM_BROKER, _FROM_DEFAULT, _FROM_GROUP = 1, 4, 5, 8
_SET, _DELETE, _APPEND, _SUBTRACT = range(4)


def check_topic_config(names: Iterable[str]) -> None:
    """Raise `Refused` for a name that is no topic configuration."""
    for name in names:
        if name not in TOPIC_DEFAULTS:
            message = f"Unknown topic config name: {name}"
            raise Refused(ErrorCode.INVALID_CONFIG, error_message=message)


def topic_config(settings: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    """Return a topic's whole configuration: its own, else the brokers', else Kafka's default."""
    return {**{name: settings.get(name, default) for name, default in TOPIC_DEFAULTS.items()}, **own}


def describe_configs(broker: Broker, request: Request) -> Body:
    """Handle DescribeConfigs."""

    def described(row: Body) -> Body:
        broker.cluster.faults.refuse(request.api, broker.node_id)
        _require(broker, request, row)
        found = _configs_of(broker, row["resource_type"], row["resource_name"])
        wanted = row["configuration_keys"]
        rows = [_config_row(name, *found[name]) for name in sorted(found) if wanted is None or name in wanted]
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
    return _alter(broker, request, lambda row, _: {each["name"]: each["value"] for each in row["configs"]})


def incremental_alter_configs(broker: Broker, request: Request) -> Body:
    """Handle IncrementalAlterConfigs."""
    return _alter(broker, request, _changed)


def _alter(broker: Broker, request: Request, change: Callable[[Body, Mapping[str, str]], dict[str, str]]) -> Body:
    cluster = broker.cluster

    def alter(row: Body) -> Body:
        cluster.faults.refuse(request.api, broker.node_id)
        _require(broker, request, row)
        name, kind, apply = row["resource_name"], row["resource_type"], not request.body["validate_only"]
        if kind == _TOPIC:
            check_topic_config(each["name"] for each in row["configs"])
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
    for each in row["configs"]:
        name, operation, value = each["name"], each["config_operation"], each["value"] or ""
        if operation == _DELETE:
            changed.pop(name, None)
        elif operation == _SET:
            changed[name] = value
        else:
            listed = [part for part in changed.get(name, TOPIC_DEFAULTS.get(name, "")).split(",") if part]
            given = value.split(",")
            left = [part for part in listed if part not in given]
            changed[name] = ",".join([*left, *given] if operation == _APPEND else left)
    return changed
