"""Create and delete topics, add partitions, delete records.

Runs in the caller's thread. Sends topic requests to the controller and DeleteRecords to partition leaders, in the
shared retry loop.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from protocol.broker_errors import ErrorCode, broker_error
from protocol.clock import Deadline
from protocol.cluster.call import call, call_partitions
from protocol.cluster.client import Client
from protocol.cluster.metadata import is_another_topic
from protocol.kafka_terms import NO_TOPIC_ID
from protocol.wire.messages.m19_create_topics import CREATE_TOPICS
from protocol.wire.messages.m20_delete_topics import DELETE_TOPICS
from protocol.wire.messages.m21_delete_records import DELETE_RECORDS
from protocol.wire.messages.m37_create_partitions import CREATE_PARTITIONS


@dataclass(frozen=True)
class NewTopic:
    """A topic to create; -1 means the broker's default, and `configs` are Kafka's topic settings."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str] = field(default_factory=dict)


def create_topic(client: Client, topic: NewTopic, deadline: Deadline | None = None) -> None:
    """Create a topic, and wait until every partition has a leader; raise `BrokerError` (TOPIC_ALREADY_EXISTS, …)."""
    deadline = deadline or client.deadline()
    row = {
        "name": topic.name,
        "num_partitions": topic.partitions,
        "replication_factor": topic.replication_factor,
        "assignments": [],
        "configs": [{"name": key, "value": value} for key, value in topic.configs.items()],
    }
    created = call(client, CREATE_TOPICS, {"topics": [row]}, deadline, topics=[topic.name])
    topic_id = next((bytes(row.get("topic_id", NO_TOPIC_ID)) for row in created["topics"]), NO_TOPIC_ID)
    client.retrying(
        f"leaders of {topic.name}",
        lambda: _require_leaders(client, topic, topic_id, deadline),
        deadline,
        topics=[topic.name],
    )


def delete_topic(client: Client, name: str, deadline: Deadline | None = None) -> None:
    """Delete a topic by name; raise `BrokerError` (UNKNOWN_TOPIC_OR_PARTITION, …)."""

    def body(version: int) -> dict[str, Any]:
        # KIP-516: from version 6 on, the field is a list of names or ids.
        return {"topics": [{"name": name}]} if version >= 6 else {"topic_names": [name]}

    call(client, DELETE_TOPICS, body, deadline or client.deadline(), topics=[name])
    client.expire_metadata([name])


def create_partitions(client: Client, name: str, count: int, deadline: Deadline | None = None) -> None:
    """Increase a topic to `count` partitions in total; raise `BrokerError` (INVALID_PARTITIONS, …)."""
    row = {"name": name, "count": count, "assignments": None}
    call(client, CREATE_PARTITIONS, {"topics": [row]}, deadline or client.deadline(), topics=[name])
    client.expire_metadata([name])


def delete_records(
    client: Client, before: Mapping[tuple[str, int], int], deadline: Deadline | None = None
) -> dict[tuple[str, int], int]:
    """Delete records below an offset.

    Parameters
    ----------
    client
        The client to send with.
    before
        For each (topic, partition) the offset to delete up to, exclusive; -1 for all records.
    deadline
        The time limit; None for the client's default.

    Returns
    -------
    dict
        The new log start offset of each partition.
    """
    rows = {key: {"offset": offset} for key, offset in before.items()}
    answers = call_partitions(client, DELETE_RECORDS, {}, rows, deadline or client.deadline())
    return {key: row["low_watermark"] for key, row in answers.items()}


def _require_leaders(client: Client, topic: NewTopic, topic_id: bytes, deadline: Deadline) -> None:
    client.expire_metadata([topic.name])
    known = client.topic(topic.name, deadline)
    if is_another_topic(known.topic_id, topic_id):  # one that was deleted before: this broker is behind the controller
        raise broker_error(ErrorCode.UNKNOWN_TOPIC_ID, f"Metadata of {topic.name}", topic=topic.name)
    for partition in range(max(topic.partitions, len(known.partitions), 1)):
        client.leader(topic.name, partition, deadline)
