"""Topics: create, delete, add partitions, delete records.

Runs wherever its caller does. Requests about topics go to the controller, DeleteRecords to each partition's leader;
all in the one retry loop.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from protocol.broker_errors import ErrorCode, broker_error
from protocol.clock import Deadline
from protocol.cluster.client import Client
from protocol.errors import KafkaError
from protocol.wire.messages.m19_create_topics import CREATE_TOPICS
from protocol.wire.messages.m20_delete_topics import DELETE_TOPICS
from protocol.wire.messages.m21_delete_records import DELETE_RECORDS
from protocol.wire.messages.m37_create_partitions import CREATE_PARTITIONS
from protocol.wire.schema import Api


@dataclass(frozen=True)
class NewTopic:
    """A topic to be. -1 for `partitions` or `replication_factor` is the broker's default; `configs` are Kafka's own."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str] = field(default_factory=dict)


def create_topic(client: Client, topic: NewTopic, deadline: Deadline | None = None) -> None:
    """Creates it and waits until every partition has a leader. Raises `BrokerError` (TOPIC_ALREADY_EXISTS, …)."""
    deadline = deadline or client.deadline()
    row = {
        "name": topic.name,
        "num_partitions": topic.partitions,
        "replication_factor": topic.replication_factor,
        "assignments": [],
        "configs": [{"name": key, "value": value} for key, value in topic.configs.items()],
    }
    _ask_controller(client, CREATE_TOPICS, {"topics": [row]}, topic.name, "topics", deadline)
    client.retrying(
        f"leaders of {topic.name}", lambda: _require_leaders(client, topic, deadline), deadline, topics=[topic.name]
    )


def delete_topic(client: Client, name: str, deadline: Deadline | None = None) -> None:
    """Deletes a topic by name. Raises `BrokerError` (UNKNOWN_TOPIC_OR_PARTITION, …)."""
    deadline = deadline or client.deadline()

    def body(version: int) -> dict[str, Any]:
        # KIP-516: from version 6 on, a list of names or ids.
        return {"topics": [{"name": name}]} if version >= 6 else {"topic_names": [name]}

    _ask_controller(client, DELETE_TOPICS, body, name, "responses", deadline)
    client.expire_metadata([name])


def create_partitions(client: Client, name: str, count: int, deadline: Deadline | None = None) -> None:
    """Grows a topic to `count` partitions in all. Raises `BrokerError` (INVALID_PARTITIONS, …)."""
    deadline = deadline or client.deadline()
    row = {"name": name, "count": count, "assignments": None}
    _ask_controller(client, CREATE_PARTITIONS, {"topics": [row]}, name, "results", deadline)
    client.expire_metadata([name])


def delete_records(
    client: Client, before: Mapping[tuple[str, int], int], deadline: Deadline | None = None
) -> dict[tuple[str, int], int]:
    """Deletes the records before these offsets (-1: all of them). Returns each partition's new first offset."""
    deadline = deadline or client.deadline()
    done: dict[tuple[str, int], int] = {}

    def attempt() -> None:
        found, without = client.leaders([key for key in before if key not in done], deadline)
        for (topic, partition), (broker, _) in found.items():
            rows = [{"partition_index": partition, "offset": before[topic, partition]}]
            body = {"topics": [{"name": topic, "partitions": rows}], "timeout_ms": deadline.remaining_ms()}
            reply = client.ask(broker, DELETE_RECORDS, body, deadline)
            row = reply["topics"][0]["partitions"][0]
            if row["error_code"] != ErrorCode.NONE:
                raise broker_error(row["error_code"], f"DeleteRecords of {topic}-{partition} at {broker}", topic=topic)
            done[topic, partition] = row["low_watermark"]
        for error in without.values():
            raise error

    names = {topic for topic, _ in before}
    client.retrying(f"DeleteRecords of {', '.join(sorted(names))}", attempt, deadline, topics=names)
    return done


def _ask_controller(client: Client, api: Api, body: Any, topic: str, rows: str, deadline: Deadline) -> None:
    def with_timeout(version: int) -> dict[str, Any]:
        fields = body(version) if callable(body) else body
        return {**fields, "timeout_ms": deadline.remaining_ms()}

    def attempt() -> None:
        broker = client.controller(deadline)
        reply = client.ask(broker, api, with_timeout, deadline)
        for row in reply[rows]:
            if row["error_code"] != ErrorCode.NONE:
                why = f": {row['error_message']}" if row.get("error_message") else ""
                error: KafkaError = broker_error(
                    row["error_code"], f"{api.name} of {topic} at {broker}{why}", topic=topic
                )
                raise error

    client.retrying(f"{api.name} of {topic}", attempt, deadline, topics=[topic])


def _require_leaders(client: Client, topic: NewTopic, deadline: Deadline) -> None:
    client.expire_metadata([topic.name])
    known = client.topic(topic.name, deadline)
    for partition in range(max(topic.partitions, len(known.partitions), 1)):
        client.leader(topic.name, partition, deadline)
