"""The controller: topics, leaders of partitions, and the brokers in the cluster.

Each decision makes a new `Image`. Brokers act by the image that they have received, which may be older.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from protocol.broker_errors import ErrorCode
from protocol.testing.fake_kafka.requests import Refused

Assignment = Sequence[Sequence[int]]
"""Broker ids of the replicas of each new partition, the preferred leader first; empty: the controller chooses."""

_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")
NO_LEADER = -1


def is_legal_name(name: str) -> bool:
    """Return True if a topic may have this name."""
    return _LEGAL_NAME.fullmatch(name) is not None and name not in (".", "..")


@dataclass(frozen=True)
class PartitionImage:
    """State of a partition; `leader` is `NO_LEADER` if there is none."""

    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


@dataclass(frozen=True)
class TopicImage:
    """State of a topic."""

    name: str
    topic_id: bytes
    partitions: tuple[PartitionImage, ...]
    config: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Image:
    """State of the cluster: node ids of the `brokers` in it, and `topics` by name."""

    brokers: tuple[int, ...] = ()
    topics: Mapping[str, TopicImage] = field(default_factory=dict)

    def topic_of_id(self, topic_id: bytes) -> TopicImage | None:
        """Return the topic with an id, if there is one."""
        return next((topic for topic in self.topics.values() if topic.topic_id == topic_id), None)


class Controller:
    """The controller; `image` is the newest image."""

    def __init__(self, brokers: Sequence[int], settings: Mapping[str, str]) -> None:
        self.image = Image(tuple(brokers))
        self._settings = settings
        self._next_broker = 0

    # -- topics -------------------------------------------------------------------------------

    def create_topic(
        self,
        name: str,
        partitions: int = -1,
        replication_factor: int = -1,
        config: Mapping[str, str] | None = None,
        topic_id: bytes | None = None,
        *,
        assignment: Assignment = (),
        validate_only: bool = False,
    ) -> TopicImage:
        """Create a topic, with leaders in turn or as assigned; raise `Refused` if CreateTopics would fail."""
        count, copies = self._check_new_topic(name, partitions, replication_factor)
        assert topic_id is None or self.image.topic_of_id(topic_id) is None, "two topics have one id"
        rows = self._assigned(assignment) or tuple(self._new_partition(copies) for _ in range(count))
        topic = TopicImage(name, topic_id or uuid.uuid4().bytes, rows, dict(config or {}))
        if not validate_only:
            self._put(topic)
        return topic

    def _assigned(self, assignment: Assignment) -> tuple[PartitionImage, ...]:
        """Return partitions with these replicas; raise `Refused` for unknown brokers."""
        for replicas in assignment:
            if not replicas or len(set(replicas)) < len(replicas) or not set(replicas) <= set(self.image.brokers):
                raise Refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT)
        return tuple(PartitionImage(brokers[0], 0, tuple(brokers), tuple(brokers)) for brokers in assignment)

    def _check_new_topic(self, name: str, partitions: int, replication_factor: int) -> tuple[int, int]:
        """Return the numbers of partitions and replicas of a new topic; raise `Refused` if it cannot be created."""
        count = int(self._settings["num.partitions"]) if partitions == -1 else partitions
        copies = int(self._settings["default.replication.factor"]) if replication_factor == -1 else replication_factor
        if not is_legal_name(name):
            raise Refused(ErrorCode.INVALID_TOPIC_EXCEPTION)
        if name in self.image.topics:
            raise Refused(ErrorCode.TOPIC_ALREADY_EXISTS, error_message=f"Topic '{name}' already exists.")
        if count < 1:
            raise Refused(ErrorCode.INVALID_PARTITIONS)
        if not 1 <= copies <= len(self.image.brokers):
            raise Refused(ErrorCode.INVALID_REPLICATION_FACTOR)
        return count, copies

    def set_config(self, name: str, config: Mapping[str, str]) -> None:
        """Replace a topic's configuration. Raises `Refused`."""
        self._put(replace(self.topic(name), config=dict(config)))

    def create_partitions(
        self, name: str, count: int, *, assignment: Assignment = (), validate_only: bool = False
    ) -> None:
        """Increase a topic's number of partitions to `count`. Raises `Refused`."""
        topic = self.topic(name)
        new = count - len(topic.partitions)
        if new <= 0:
            raise Refused(ErrorCode.INVALID_PARTITIONS)
        if assignment and len(assignment) != new:
            raise Refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT)
        copies = len(topic.partitions[0].replicas)
        added = self._assigned(assignment) or tuple(self._new_partition(copies) for _ in range(new))
        if not validate_only:
            self._put(replace(topic, partitions=(*topic.partitions, *added)))

    def reassign(self, name: str, partition: int, replicas: Sequence[int]) -> None:
        """Replace the replicas of a partition; its leader stays if it is one of them. Raises `Refused`."""
        was, (new,) = self.topic(name).partitions[partition], self._assigned([replicas])
        leader = was.leader if was.leader in new.replicas else new.leader
        self.change(name, partition, replace(new, leader=leader, leader_epoch=was.leader_epoch + 1))

    def hand_over(self, broker: int, successor: int) -> None:
        """Replace a broker by another one in all partitions, and remove it from the cluster."""
        for topic, number, partition in self._partitions_of(broker):
            replicas, isr = (
                tuple(successor if node_id == broker else node_id for node_id in node_ids)
                for node_ids in (partition.replicas, partition.isr)
            )
            leader = successor if partition.leader == broker else partition.leader
            self.change(topic, number, PartitionImage(leader, partition.leader_epoch + 1, replicas, isr))
        self.fence(broker)
        self.unfence(successor)

    def delete_topic(self, name: str) -> None:
        """Remove a topic. Raises `Refused`."""
        topic = self.topic(name)
        remaining = {key: kept_topic for key, kept_topic in self.image.topics.items() if kept_topic is not topic}
        self.image = replace(self.image, topics=remaining)

    def topic(self, name: str) -> TopicImage:
        """Return a topic of the newest image; raise `Refused` if it is unknown."""
        if name not in self.image.topics:
            raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return self.image.topics[name]

    def _new_partition(self, copies: int) -> PartitionImage:
        brokers, first = self.image.brokers, self._next_broker
        self._next_broker += 1
        replicas = tuple(brokers[(first + nth) % len(brokers)] for nth in range(copies))
        return PartitionImage(replicas[0], 0, replicas, replicas)

    # -- leaders ------------------------------------------------------------------------------

    def elect(self, name: str, partition: int, leader: int, isr: Sequence[int] | None = None) -> None:
        """Elect a leader for the next epoch; a broker without a replica gets the replicas of all others.

        `isr` defaults to the current one plus the leader; it may omit followers that lag.
        """
        was = self.topic(name).partitions[partition]
        replicas = was.replicas if leader in (*was.replicas, NO_LEADER) else (leader,)
        in_sync = tuple(isr) if isr is not None else tuple(broker for broker in was.isr if broker in replicas)
        if leader != NO_LEADER and leader not in in_sync:
            in_sync = (*in_sync, leader)
        self.change(name, partition, PartitionImage(leader, was.leader_epoch + 1, replicas, in_sync))

    def set_isr(self, name: str, partition: int, isr: Sequence[int]) -> None:
        """Replace the in-sync replicas of a partition."""
        was = self.topic(name).partitions[partition]
        self.change(name, partition, replace(was, isr=tuple(isr)))

    def fence(self, broker: int) -> None:
        """Remove a broker from the cluster; other in-sync replicas become leaders."""
        if broker not in self.image.brokers:
            return
        self.image = replace(
            self.image, brokers=tuple(broker_id for broker_id in self.image.brokers if broker_id != broker)
        )
        for topic, number, partition in self._partitions_of(broker):
            isr = tuple(replica for replica in partition.isr if replica != broker)
            if partition.leader == broker:
                self.elect(topic, number, isr[0] if isr else NO_LEADER, isr or partition.isr)
            elif isr:
                self.set_isr(topic, number, isr)

    def unfence(self, broker: int) -> None:
        """Return a broker to the cluster. It leads partitions without a leader; as a follower it first catches up."""
        if broker not in self.image.brokers:
            self.image = replace(self.image, brokers=tuple(sorted((*self.image.brokers, broker))))
        for topic, number, partition in self._partitions_of(broker):
            if partition.leader == NO_LEADER and broker in partition.isr:
                self.elect(topic, number, broker, (broker,))

    def _partitions_of(self, broker: int) -> list[tuple[str, int, PartitionImage]]:
        return [
            (topic.name, number, partition)
            for topic in self.image.topics.values()
            for number, partition in enumerate(topic.partitions)
            if broker in partition.replicas
        ]

    def change(self, name: str, partition: int, changed: PartitionImage) -> None:
        """Replace the state of a partition."""
        topic = self.topic(name)
        rows = [*topic.partitions]
        rows[partition] = changed
        self._put(replace(topic, partitions=tuple(rows)))

    def _put(self, topic: TopicImage) -> None:
        self.image = replace(self.image, topics={**self.image.topics, topic.name: topic})
