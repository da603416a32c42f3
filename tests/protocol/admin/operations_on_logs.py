"""Checks of `Admin`, each with the name of an operation: topics, configurations and partitions."""

from __future__ import annotations

import json
import re
from functools import partial

from protocol import EARLIEST, LATEST
from protocol.admin.configs import (
    AlterConfigOp,
    AlterConfigOpType,
    ConfigResource,
    ConfigResourceType,
    broker_resource,
    topic_resource,
)
from protocol.admin.topics import NewTopic
from tests.protocol.admin.kafkas_tools import CONFIGS, LOG_DIRS, METRICS, OFFSETS, REASSIGN, TOPICS, Cluster
from tests.protocol.fetch.consuming import produce
from tests.support.wait_for_brokers import wait_until_known
from tests.support.wait_until import wait_until

# -- topics ---------------------------------------------------------------------------------------


def create_topics(on: Cluster) -> None:
    on.admin.create_topics([NewTopic("created", 3, 1, {"retention.ms": "3600000"})])
    wait_until_known(on.kafka, "created", 3)
    shown = on.tool(TOPICS, "--describe", "--topic", "created")
    assert "PartitionCount: 3" in shown
    assert "retention.ms=3600000" in shown


def delete_topics(on: Cluster) -> None:
    name = on.topic()
    assert name in on.tool(TOPICS, "--list").split()
    on.admin.delete_topics([name])
    wait_until(lambda: name not in on.tool(TOPICS, "--list").split())


def list_topics(on: Cluster) -> None:
    on.topic()
    wait_until(lambda: set(on.admin.list_topics(internal=True)) == set(on.tool(TOPICS, "--list").split()))


def describe_topics(on: Cluster) -> None:
    name = on.topic(2)
    topic = on.admin.describe_topics([name])[name]
    shown = on.tool(TOPICS, "--describe", "--topic", name)
    if on.version >= (3, 1):
        assert f"TopicId: {topic.topic_id}" in shown
    for number, partition in topic.partitions.items():
        assert (
            f"Partition: {number} Leader: {partition.leader} Replicas: {partition.replicas[0]} Isr: {partition.isr[0]}"
            in shown
        )


def create_partitions(on: Cluster) -> None:
    name = on.topic()
    on.admin.create_partitions({name: 4})
    wait_until(lambda: "PartitionCount: 4" in on.tool(TOPICS, "--describe", "--topic", name))


def delete_records(on: Cluster) -> None:
    name = on.topic()
    produce(on.kafka, name, range(5))
    on.admin.delete_records({(name, 0): 3})
    assert offsets_of_tool(on, name, "-2") == f"{name}:0:3"


def offsets_of_tool(on: Cluster, topic: str, time: str) -> str:
    if on.version >= (3, 0):
        return on.tool(OFFSETS, "--topic", topic, "--time", time).strip()
    arguments = ("--broker-list", on.kafka.bootstrap_servers, "--topic", topic, "--time", time)
    return on.run(OFFSETS, *arguments).strip()


def list_offsets(on: Cluster) -> None:
    name = on.topic()
    produce(on.kafka, name, range(5))
    for time, word in ((EARLIEST, "-2"), (LATEST, "-1")):
        offset = on.admin.list_offsets({(name, 0): time})[name, 0].offset
        assert offsets_of_tool(on, name, word) == f"{name}:0:{offset}"


# -- configurations -------------------------------------------------------------------------------


def configs_of_tool(on: Cluster, topic: str, *arguments: str) -> str:
    return on.tool(CONFIGS, "--describe", "--entity-type", "topics", "--entity-name", topic, *arguments)


def describe_configs(on: Cluster) -> None:
    name = on.topic()
    entries = on.admin.describe_configs([topic_resource(name)])[topic_resource(name)]
    shown = configs_of_tool(on, name, "--all")
    assert {f" {entry.name}={entry.value} " in shown for entry in entries.values() if entry.value} == {True}
    assert len(re.findall(r"^ \S+=", shown, re.MULTILINE)) == len(entries)


def incremental_alter_configs(on: Cluster) -> None:
    name = on.topic()
    on.admin.incremental_alter_configs({topic_resource(name): [AlterConfigOp("retention.ms", "3600000")]})
    wait_until(lambda: " retention.ms=3600000 " in configs_of_tool(on, name))


def alter_configs(on: Cluster) -> None:
    name = on.topic()
    on.admin.alter_configs({topic_resource(name): {"max.message.bytes": "6000"}})
    wait_until(lambda: " max.message.bytes=6000 " in configs_of_tool(on, name))


def list_config_resources(on: Cluster) -> None:
    metrics = ConfigResource(ConfigResourceType.CLIENT_METRICS, "every-metrics")
    result = partial(on.admin.list_config_resources, [ConfigResourceType.CLIENT_METRICS])
    assert result() == []
    on.admin.incremental_alter_configs({metrics: [AlterConfigOp("interval.ms", "60000")]})
    wait_until(lambda: result() == [metrics])
    wait_until(lambda: on.tool(METRICS, "--list").split() == [metrics.name])


# -- partitions -----------------------------------------------------------------------------------


def alter_partition_reassignments(on: Cluster) -> None:
    name = on.topic()
    if on.version < (3, 3):
        on.admin.alter_partition_reassignments({(name, 0): [1]})
        assert "Replicas: 1 " in on.tool(TOPICS, "--describe", "--topic", name)
        return
    on.admin.alter_partition_reassignments({(name, 0): [2]})
    wait_until(lambda: "Replicas: 2 " in on.tool(TOPICS, "--describe", "--topic", name))


def list_partition_reassignments(on: Cluster) -> None:
    name = on.topic()
    if on.version < (3, 3):
        assert on.admin.list_partition_reassignments() == {}
        assert "No partition reassignments found" in on.tool(REASSIGN, "--list")
        return
    produce(on.kafka, name, range(5_000))
    limited = topic_resource(name)
    rates = {"leader.replication.throttled.rate": "1", "follower.replication.throttled.rate": "1"}
    replicas = [AlterConfigOp(f"{side}.replication.throttled.replicas", "*") for side in ("leader", "follower")]
    brokers = {broker_resource(number): [AlterConfigOp(*rate) for rate in rates.items()] for number in (1, 2)}
    on.admin.incremental_alter_configs({**brokers, limited: replicas})
    on.admin.alter_partition_reassignments({(name, 0): [2]})
    reassignment = on.admin.list_partition_reassignments()[name, 0]
    shown = on.tool(REASSIGN, "--list")
    assert (reassignment.adding_replicas, reassignment.removing_replicas) == ((2,), (1,))
    assert f"{name}-0: replicas: {','.join(map(str, reassignment.replicas))}. adding: 2. removing: 1." in shown
    on.admin.alter_partition_reassignments({(name, 0): None})
    assert "No partition reassignments found" in on.tool(REASSIGN, "--list")
    removed = [AlterConfigOp(name, None, AlterConfigOpType.DELETE) for name in rates]
    on.admin.incremental_alter_configs(dict.fromkeys(brokers, removed))


def elect_leaders(on: Cluster) -> None:
    name = on.topic()
    if on.version < (3, 3):
        on.admin.elect_leaders([(name, 0)])
        assert "Leader: 1 " in on.tool(TOPICS, "--describe", "--topic", name)
        return
    on.admin.alter_partition_reassignments({(name, 0): [2, 1]})
    in_sync = re.compile(r"Leader: 1 Replicas: 2,1 Isr: (1,2|2,1)\b")
    wait_until(lambda: in_sync.search(on.tool(TOPICS, "--describe", "--topic", name)) is not None)
    on.admin.elect_leaders([(name, 0)])
    wait_until(lambda: "Leader: 2 " in on.tool(TOPICS, "--describe", "--topic", name))


def log_dirs_of_tool(on: Cluster, topic: str) -> dict[str, int]:
    """Return the bytes of partition 0 on broker 1 by directory."""
    shown = on.tool(LOG_DIRS, "--describe", "--topic-list", topic, "--broker-list", "1")
    (line,) = (line for line in shown.splitlines() if line.startswith("{"))
    return {
        log_dir["logDir"]: replica["size"]
        for broker in json.loads(line)["brokers"]
        for log_dir in broker["logDirs"]
        for replica in log_dir["partitions"]
        if replica["partition"] == f"{topic}-0" and not replica["isFuture"]
    }


def _log_dirs(on: Cluster, topic: str) -> dict[str, int]:
    log_dirs = on.admin.describe_log_dirs([1], partitions=[(topic, 0)])[1]
    return {
        path: log_dir.replicas[topic, 0].size_bytes
        for path, log_dir in log_dirs.items()
        if (topic, 0) in log_dir.replicas
    }


def describe_log_dirs(on: Cluster) -> None:
    name = on.topic()
    produce(on.kafka, name, range(5))
    assert _log_dirs(on, name) == log_dirs_of_tool(on, name)
    assert sum(_log_dirs(on, name).values()) > 0


def alter_replica_log_dirs(on: Cluster) -> None:
    name = on.topic()
    produce(on.kafka, name, range(5))
    (before,) = log_dirs_of_tool(on, name)
    target = str(on.folder / ("1-b" if before.endswith("1-a") else "1-a"))
    on.admin.alter_replica_log_dirs({(name, 0, 1): target})
    wait_until(lambda: list(log_dirs_of_tool(on, name)) == [target])
