"""Members of groups that consume in threads, and an observer of a group."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress

from confluent_kafka.admin import AdminClient

from protocol import Client, ConsumerGroup, ConsumerRebalanceListener, KafkaConsumer, TopicPartition
from protocol.cluster.call import call
from protocol.cluster.coordinators import group_coordinator
from protocol.consumer.session import ConsumerGroupClaim, ConsumerGroupHandler, ConsumerGroupSession
from protocol.errors import WakeUp
from protocol.fetch.partition_consumer import ConsumerMessage
from protocol.group.commits.committed_offsets import fetch_offsets
from protocol.group.member import GroupMember
from protocol.group.membership.assignment import EndReason
from protocol.wire.messages.m13_leave_group import LEAVE_GROUP
from protocol.wire.messages.m68_consumer_group_heartbeat import CONSUMER_GROUP_HEARTBEAT
from spark_kafka_source.local_kafka import LocalKafka
from tests.support.small_cluster import END, PARTITIONS
from tests.support.wait_until import wait_until


class IdleHandler(ConsumerGroupHandler):
    """Returns from each claim at once."""

    def setup(self, session: ConsumerGroupSession) -> None:
        pass

    def consume_claim(self, session: ConsumerGroupSession, claim: ConsumerGroupClaim) -> None:
        pass

    def cleanup(self, session: ConsumerGroupSession) -> None:
        pass


class ReadingHandler(ConsumerGroupHandler):
    """Reads each claim to its end."""

    def __init__(self) -> None:
        self.sessions: list[ConsumerGroupSession] = []
        self.cleanups = 0
        self.starts: dict[int, int] = {}  # by partition
        self.rows: Counter[str] = Counter()  # by topic

    def setup(self, session: ConsumerGroupSession) -> None:
        self.sessions.append(session)

    def consume_claim(self, session: ConsumerGroupSession, claim: ConsumerGroupClaim) -> None:
        self.starts[claim.partition] = claim.initial_offset
        for batch in claim:
            self.rows[claim.topic] += batch.num_rows

    def cleanup(self, session: ConsumerGroupSession) -> None:
        self.cleanups += 1


class Listener(ConsumerRebalanceListener):
    """Notes its calls; raises in each call of the method `raises`, and calls `function` once."""

    def __init__(self, raises: str = "") -> None:
        self.events: list[tuple[str, list[int]]] = []  # name and partitions of each call
        self.function: Callable[[], object] = lambda: None
        self._raises = raises

    @property
    def calls(self) -> list[str]:
        return [name for name, _ in self.events]

    @property
    def numbers(self) -> list[list[int]]:
        return [numbers for _, numbers in self.events]

    def partitions_are_shared(self) -> bool:
        """Return True if two consumers have one partition each since the last rebalance."""
        return sorted(self.events[-2:]) == [("assigned", [0]), ("assigned", [1])]

    def _note(self, name: str, partitions: Collection[TopicPartition]) -> None:
        self.events.append((name, sorted(number for _, number in partitions)))
        if name == self._raises:
            raise ZeroDivisionError(name)
        function, self.function = self.function, lambda: None
        function()

    def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
        self._note("assigned", partitions)

    def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None:
        self._note("revoked", partitions)

    def on_partitions_lost(self, partitions: Collection[TopicPartition]) -> None:
        self._note("lost", partitions)


def consumer_of(
    client: Client | Mapping[str, object],
    protocol: Mapping[str, object] | None = None,
    group: str | None = "etl",
    **properties: object,
) -> KafkaConsumer:
    """Return a consumer that starts at the earliest offset, and commits only when a test does."""
    defaults = {"auto.offset.reset": "earliest", "enable.auto.commit": False, **({"group.id": group} if group else {})}
    return KafkaConsumer(client, {**defaults, **(protocol or {}), **properties})


def subscribed(
    client: Client | Mapping[str, object],
    protocol: Mapping[str, object] | None = None,
    listener: ConsumerRebalanceListener | None = None,
    **properties: object,
) -> KafkaConsumer:
    """Return the only member of a group, which has read all records of orders in a `SmallCluster`."""
    consumer = consumer_of(client, protocol, **properties)
    consumer.subscribe(["orders"], listener)
    read(consumer, PARTITIONS * END)
    return consumer


def group_of(
    client: Client | Mapping[str, object],
    protocol: Mapping[str, object] | None = None,
    group: str = "etl",
    **properties: object,
) -> ConsumerGroup:
    """Return a member of a group that starts at the earliest offset."""
    return ConsumerGroup(client, {"group.id": group, "auto.offset.reset": "earliest", **(protocol or {}), **properties})


def remove_member(client: Client, group: str, member: GroupMember) -> None:
    """Remove a member, as an administrator does, and as the coordinator does at the session timeout."""
    who = {"member_id": member.member_id, "group_instance_id": None}
    if member.member_epoch >= 0:
        leaves = {"group_id": group, "member_id": member.member_id, "member_epoch": -1, "instance_id": None}
        call(client, CONSUMER_GROUP_HEARTBEAT, leaves, client.deadline())
    else:
        body = {"group_id": group, "members": [who]}
        call(client, LEAVE_GROUP, lambda version: body, client.deadline(), to=group_coordinator(group))


class Member:
    """A `ConsumerGroup` that consumes in a thread until it is closed, and records its calls; also the handler."""

    def __init__(
        self, client: Client, group: str, topic: str, values: list[bytes] | None = None, **properties: object
    ) -> None:
        defaults = {"group.id": group, "auto.offset.reset": "earliest", "auto.commit.interval.ms": 100}
        self.errors: list[Exception] = []
        self.group = ConsumerGroup(client, {**defaults, **properties}, on_error=self.errors.append)
        self.setups: list[ConsumerGroupSession] = []
        self.cleanups: list[dict[str, list[int]]] = []
        self.claimed: list[tuple[int, int, int]] = []  # generation, partition, start offset
        self.handled: list[tuple[int, int]] = []  # partition, offset
        self.values = [] if values is None else values  # may be shared by members: its order is that of all of them
        self.end_reasons: list[EndReason] = []
        self.slow_s = 0.0
        self._topic = topic
        self._thread = threading.Thread(target=self._run, name=f"member of {group}")
        self._thread.start()

    def _run(self) -> None:
        while not self.group.closed:
            self.end_reasons.append(self.group.consume([self._topic], self))

    def setup(self, session: ConsumerGroupSession) -> None:
        self.setups.append(session)

    def consume_claim(self, session: ConsumerGroupSession, claim: ConsumerGroupClaim) -> None:
        self.claimed.append((session.generation_id, claim.partition, claim.initial_offset))
        for message in claim.messages():
            time.sleep(self.slow_s)
            self.handled.append((claim.partition, message.offset))
            self.values.append(message.value or b"")
            session.mark_message(message)

    def cleanup(self, session: ConsumerGroupSession) -> None:
        self.cleanups.append(session.claims)

    @property
    def numbers(self) -> list[int]:
        """Return the assigned partitions."""
        if not self.setups or self.setups[-1].ended.is_set():
            return []
        return [number for numbers in self.setups[-1].claims.values() for number in numbers]

    def close(self) -> None:
        self.group.close()
        self._thread.join(20)
        assert not self._thread.is_alive()


class Polling:
    """A `KafkaConsumer` of this project that polls in a thread until it is closed, and notes the messages."""

    def __init__(self, consumer: KafkaConsumer, topic: str) -> None:
        self.messages: list[ConsumerMessage] = []
        self._consumer = consumer
        consumer.subscribe([topic])
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with self._consumer as consumer, suppress(WakeUp):
            while True:
                self.messages += consumer.poll(1_000).messages()

    @property
    def first_offsets(self) -> dict[int, int]:
        """Return the first offset read of each partition."""
        return {message.partition: message.offset for message in reversed(self.messages)}

    def close(self) -> None:
        self._consumer.wakeup()
        self._thread.join(20)
        assert not self._thread.is_alive()


class Watch:
    """Describes a group repeatedly: its owners, and that no committed offset decreases.

    `by_partition`: the committed offsets at the last call of `owned`.
    """

    def __init__(self, kafka: LocalKafka, client: Client, group: str) -> None:
        self._admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
        self._client = client
        self._group = group
        self.by_partition: dict[tuple[str, int], int] = {}

    def owned(self) -> list[list[int]]:
        """Return the partitions of each member; no partition has two owners."""
        for key, offset in fetch_offsets(self._client, self._group, None, self._client.deadline()).items():
            assert offset.offset >= self.by_partition.get(key, 0), f"{key} has decreased"
            self.by_partition[key] = offset.offset
        members = self._admin.describe_consumer_groups([self._group])[self._group].result(20).members
        owned = [sorted(partition.partition for partition in member.assignment.topic_partitions) for member in members]
        everything = [number for numbers in owned for number in numbers]
        assert len(everything) == len(set(everything)), owned
        return owned

    @property
    def committed(self) -> int:
        """Return the number of committed records at the last call of `owned`."""
        return sum(self.by_partition.values())


def read(consumer: KafkaConsumer, count: int, timeout_s: float = 30) -> list[tuple[int, int]]:
    """Return partition and offset of `count` records."""
    collected: list[tuple[int, int]] = []
    wait_until(
        lambda: (
            collected.extend((message.partition, message.offset) for message in consumer.poll(50).messages())
            or len(collected) >= count
        ),
        lambda: f"{len(collected)} records of {count}",
        timeout_s,
    )
    return collected
