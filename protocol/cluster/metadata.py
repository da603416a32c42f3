"""A Metadata reply as an immutable snapshot: brokers, controller, topics, partitions and their leaders. Sans-IO.

`client` sends the requests and decides when to refresh.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from protocol.broker_errors import ErrorCode, broker_error
from protocol.errors import UsageError
from protocol.kafka_terms import NO_TOPIC_ID
from protocol.position import is_another_topic as is_another_topic


@dataclass(frozen=True)
class Broker:
    """A broker with its advertised address."""

    node_id: int
    host: str
    port: int
    rack: str | None = None

    def __hash__(self) -> int:
        return self.node_id

    def __str__(self) -> str:
        return f"{self.host}:{self.port} (broker {self.node_id})"


@dataclass(frozen=True)
class Partition:
    """One partition. `leader` is a node id, -1 if there is none; `leader_epoch` is -1 if unknown.

    `offline_replicas` are the node ids of replicas whose broker or log directory is down.
    """

    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    error_code: int
    offline_replicas: tuple[int, ...] = ()


@dataclass(frozen=True)
class Topic:
    """One topic. `topic_id` has 16 bytes, all zero if the broker sends none (before Kafka 2.8).

    `partitions` are sorted, and from 0 on, since brokers report all of a topic.
    """

    name: str
    topic_id: bytes
    is_internal: bool
    partitions: Mapping[int, Partition]
    error_code: int

    @property
    def writable_partitions(self) -> tuple[int, ...]:
        """The partitions that have a leader, in order."""
        return tuple(sorted(number for number, partition in self.partitions.items() if partition.leader >= 0))

    @property
    def topic_id_text(self) -> str:
        """The topic id as Kafka's tools print it; "" if unknown."""
        return "" if self.topic_id == NO_TOPIC_ID else topic_id_text(self.topic_id)


def topic_id_text(topic_id: bytes) -> str:
    """Format a topic id as Kafka's tools print it: URL-safe base64 without padding."""
    return base64.urlsafe_b64encode(topic_id).rstrip(b"=").decode()


def topic_id_bytes(text: str) -> bytes:
    """Return the 16 bytes of an id as Kafka's tools print it; raise `UsageError` for other text."""
    try:
        topic_id = base64.b64decode(text + "==", altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        topic_id = b""
    if len(topic_id) != 16:
        raise UsageError(f"{text!r} is not a topic id; Kafka's tools print them as 22 characters")
    return topic_id


@dataclass(frozen=True)
class NewLeader:
    """The leader that a reply names after NOT_LEADER_OR_FOLLOWER or FENCED_LEADER_EPOCH (KIP-951)."""

    topic: str
    topic_id: bytes
    partition: int
    leader_epoch: int
    broker: Broker

    @classmethod
    def from_reply(
        cls, topic: str, topic_id: bytes, partition: int, row: Mapping[str, Any], reply: Mapping[str, Any]
    ) -> NewLeader | None:
        """Return the leader in a partition's row of a reply; None if there is none, as before Kafka 3.7."""
        leader = row["current_leader"]
        for node in reply["node_endpoints"]:
            if node["node_id"] == leader["leader_id"]:
                broker = Broker(node["node_id"], node["host"], node["port"], node["rack"])
                return cls(topic, topic_id, partition, leader["leader_epoch"], broker)
        return None


@dataclass(frozen=True)
class Metadata:
    """A snapshot of the cluster; `topics` has only the topics requested so far."""

    cluster_id: str | None = None
    controller_id: int = -1
    brokers: Mapping[int, Broker] = field(default_factory=dict)
    topics: Mapping[str, Topic] = field(default_factory=dict)

    @classmethod
    def from_reply(cls, reply: Mapping[str, Any]) -> Metadata:
        """Convert a decoded Metadata reply."""
        return cls(
            cluster_id=reply["cluster_id"],
            controller_id=reply["controller_id"],
            brokers={
                row["node_id"]: Broker(row["node_id"], row["host"], row["port"], row["rack"])
                for row in reply["brokers"]
            },
            topics={row["name"]: _topic(row) for row in reply["topics"] if row["name"] is not None},
        )

    def topic(self, name: str) -> Topic:
        """Return a topic; raise `BrokerError` if it has an error or is not in the snapshot."""
        topic = self.topics.get(name)
        code = topic.error_code if topic is not None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if topic is None or code != ErrorCode.NONE:
            raise broker_error(code, f"topic {name}", api="Metadata", topic=name)
        return topic

    def leader(self, topic: str, partition: int) -> tuple[Broker, Partition]:
        """Return the leader; raise `BrokerError` as `topic`, or (retriable) if the partition is unknown or has none."""
        current = self.topic(topic).partitions.get(partition)
        broker = self.brokers.get(current.leader) if current is not None else None
        if current is None or broker is None:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if current is None else ErrorCode.LEADER_NOT_AVAILABLE
            raise broker_error(code, f"{topic}-{partition}", topic=topic, partition=partition)
        return broker, current

    def updated_by(self, newer: Metadata) -> Metadata:
        """Return the newer snapshot, plus the topics that it does not contain.

        A leader never replaces one of a newer epoch, because a broker with outdated metadata may reply (KIP-320).
        """
        topics = dict(self.topics)
        for name, topic in newer.topics.items():
            topics[name] = _without_older_leaders(topic, self.topics.get(name))
        return Metadata(newer.cluster_id, newer.controller_id, newer.brokers, topics)

    def with_leaders(self, leaders: Iterable[NewLeader]) -> Metadata:
        """Return the snapshot with these leaders, except those of unknown topics and of epochs that are not newer."""
        brokers, topics = dict(self.brokers), dict(self.topics)
        for leader in leaders:
            topic = topics.get(leader.topic)
            partition = topic.partitions.get(leader.partition) if topic is not None else None
            if topic is None or partition is None or topic.topic_id != leader.topic_id:
                continue
            if partition.leader_epoch >= leader.leader_epoch:
                continue
            node_id = leader.broker.node_id
            newer = replace(partition, leader=node_id, leader_epoch=leader.leader_epoch, error_code=ErrorCode.NONE)
            brokers[node_id] = leader.broker
            topics[leader.topic] = replace(topic, partitions={**topic.partitions, leader.partition: newer})
        return replace(self, brokers=brokers, topics=topics)

    def without(self, names: Iterable[str]) -> Metadata:
        """Return the snapshot without these topics."""
        removed = set(names)
        return Metadata(
            self.cluster_id,
            self.controller_id,
            self.brokers,
            {name: topic for name, topic in self.topics.items() if name not in removed},
        )


def _topic(row: Mapping[str, Any]) -> Topic:
    partitions = {
        part["partition_index"]: Partition(
            partition=part["partition_index"],
            leader=part["leader_id"],
            leader_epoch=part["leader_epoch"],
            replicas=tuple(part["replica_nodes"]),
            isr=tuple(part["isr_nodes"]),
            error_code=part["error_code"],
            offline_replicas=tuple(part["offline_replicas"]),
        )
        for part in sorted(row["partitions"], key=lambda part: int(part["partition_index"]))
    }
    return Topic(row["name"], bytes(row["topic_id"]), row["is_internal"], partitions, row["error_code"])


def _without_older_leaders(topic: Topic, remembered: Topic | None) -> Topic:
    if remembered is None or remembered.topic_id != topic.topic_id or topic.error_code != ErrorCode.NONE:
        return topic
    partitions = {
        number: before
        if (before := remembered.partitions.get(number)) is not None and before.leader_epoch > part.leader_epoch >= 0
        else part
        for number, part in topic.partitions.items()
    }
    return Topic(topic.name, topic.topic_id, topic.is_internal, partitions, topic.error_code)
