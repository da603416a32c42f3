"""Describe groups with Kafka's ConsumerGroupCommand or librdkafka, find their coordinators, and set their offsets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, OffsetSpec, ResourceType

from protocol.admin.groups import Member, describe_group
from protocol.cluster.client import Client
from protocol.cluster.coordinators import group_coordinator
from protocol.config import parse_client
from protocol.group.commits.committed_offsets import fetch_offsets
from spark_kafka_source.local_kafka import LocalKafka
from tests.support.wait_until import attempts, wait_until

T = TypeVar("T")

_NOT_READY = {KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.NOT_COORDINATOR}


@dataclass(frozen=True)
class GroupRow:
    """A group's committed offset of one partition; None without one."""

    topic: str
    partition: int
    current_offset: int | None
    log_end_offset: int | None
    lag: int | None


def described_by_kafka(kafka: LocalKafka, group: str) -> list[GroupRow]:
    """Return the rows of `kafka-consumer-groups.sh --describe --group GROUP`, sorted by topic and partition."""
    rows = []
    header: list[str] = []
    for line in kafka.describe_group(group).splitlines():
        words = line.split()
        if words[:1] == ["GROUP"]:
            header = words
        elif header and words[:1] == [group]:
            cells = dict(zip(header, words, strict=False))
            numbers = [_number(cells[name]) for name in ("CURRENT-OFFSET", "LOG-END-OFFSET", "LAG")]
            rows.append(GroupRow(cells["TOPIC"], int(cells["PARTITION"]), *numbers))
    return sorted(rows, key=lambda row: (row.topic, row.partition))


def set_session_timeout(kafka: LocalKafka, group: str, timeout_ms: int) -> None:
    """Set the session timeout of a KIP-848 group, which is a group config on the brokers."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
    entry = ConfigEntry("consumer.session.timeout.ms", str(timeout_ms), incremental_operation=AlterConfigOpType.SET)
    changed = ConfigResource(ResourceType.GROUP, group, incremental_configs=[entry])
    for answer in admin.incremental_alter_configs([changed]).values():
        answer.result(30)


def describe(kafka: LocalKafka, group: str) -> list[GroupRow]:
    """Return the same rows by librdkafka, which starts no JVM."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
    partitions = ConsumerGroupTopicPartitions(group)
    committed = _again_until_ready(lambda: admin.list_consumer_group_offsets([partitions])[group].result(30))
    offsets = {(partition.topic, partition.partition): partition.offset for partition in committed.topic_partitions}
    ends = admin.list_offsets({TopicPartition(*key): OffsetSpec.latest() for key in offsets}) if offsets else {}
    rows = []
    for partition, end in ends.items():
        key, log_end = (partition.topic, partition.partition), end.result(30).offset
        current = None if offsets[key] < 0 else offsets[key]
        rows.append(GroupRow(*key, current, log_end, None if current is None else log_end - current))
    return sorted(rows, key=lambda row: (row.topic, row.partition))


def members_of(kafka: LocalKafka, group: str) -> tuple[Member, ...]:
    """Return the members, by this project's client: librdkafka may crash while a group is being created."""
    with Client(parse_client({"bootstrap.servers": kafka.bootstrap_servers})) as client:
        return describe_group(client, group).members


def _again_until_ready(ask: Callable[[], T], timeout_s: float = 60) -> T:
    """Retry while the coordinator is loading, not available or has moved."""
    for _ in attempts(timeout_s, 0.05):
        try:
            return ask()
        except KafkaException as error:
            if error.args[0].code() not in _NOT_READY:
                raise
    return ask()


def wait_for_lag_zero(kafka: LocalKafka, group: str, partitions: int, timeout_s: float = 90) -> list[GroupRow]:
    """Wait until `partitions` rows exist and all have lag 0."""
    # Not by librdkafka, which may crash while the first group of a cluster is being created.
    with Client(parse_client({"bootstrap.servers": kafka.bootstrap_servers})) as client:
        wait_until(
            lambda: fetch_offsets(client, group, None, client.deadline(timeout_s * 1000)),
            lambda: f"group {group} has no offsets after {timeout_s} s",
            timeout_s,
            0.05,
        )
    for _ in attempts(timeout_s, 0.05):
        rows = describe(kafka, group)
        if len(rows) == partitions and all(row.lag == 0 for row in rows):
            return rows
    raise AssertionError(f"no lag 0 on {partitions} partitions after {timeout_s} s: {rows}")


def coordinator_of(kafka: LocalKafka, group: str) -> int:
    """Return the broker id of the group's current coordinator."""
    with Client(parse_client({"bootstrap.servers": kafka.bootstrap_servers})) as client:
        deadline = client.deadline()
        label = f"FindCoordinator of {group}"
        return client.retrying(label, lambda: client.coordinator(group_coordinator(group), deadline), deadline).node_id


def move_group(kafka: LocalKafka, group: str, offsets: Mapping[tuple[str, int], int], timeout_s: float = 60) -> None:
    """Set a group's offsets as a non-member; retry while its coordinator is not ready."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
    expected = [TopicPartition(*key, offset) for key, offset in offsets.items()]
    for _ in attempts(timeout_s, 0.05):
        answer = admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, expected)])[group].result(60)
        errors = [partition.error for partition in answer.topic_partitions if partition.error]
        if not errors:
            return
        assert {error.code() for error in errors} <= _NOT_READY, errors
    raise AssertionError(errors)


def _number(cell: str) -> int | None:
    return None if cell == "-" else int(cell)
