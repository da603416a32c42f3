"""Brokers and the state of their cluster: a broker knows its cluster, and the cluster its brokers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

from protocol.base.clock import SYSTEM_CLOCK, Clock
from protocol.broker_errors import ErrorCode, broker_error
from protocol.kafka_terms import TopicPartition
from protocol.testing.fake_kafka.authorizer import Authorizer
from protocol.testing.fake_kafka.configs import DEFAULT_SETTINGS, topic_config
from protocol.testing.fake_kafka.controller import Controller, Image, TopicImage
from protocol.testing.fake_kafka.faults import Faults
from protocol.testing.fake_kafka.fetch_sessions import FetchSessions
from protocol.testing.fake_kafka.groups import Groups
from protocol.testing.fake_kafka.log_cleaner import clean
from protocol.testing.fake_kafka.offsets import Offsets
from protocol.testing.fake_kafka.quotas import Quotas
from protocol.testing.fake_kafka.replica import Hosted, Replica
from protocol.testing.fake_kafka.requests import Body, Refused, row_of
from protocol.testing.fake_kafka.sasl import Credentials
from protocol.testing.fake_kafka.transactions import Transaction, Transactions
from protocol.wire.schema import NO_UUID, Api

C = TypeVar("C", bound="ClusterState")
P = ParamSpec("P")
T = TypeVar("T")


def step(method: Callable[Concatenate[C, P], T]) -> Callable[Concatenate[C, P], T]:
    """Run a change of the cluster under the lock; apply its consequences and wake all waiting threads."""

    @wraps(method)
    def locked(self: C, /, *arguments: P.args, **options: P.kwargs) -> T:
        with self.changed:
            self.advance()
            try:
                return method(self, *arguments, **options)
            finally:
                self.is_stale = True
                self.advance()
                self.changed.notify_all()

    return locked


class Broker:
    """One broker.

    `running`: the broker accepts connections.
    `silent_since_s`: time since which the host sends nothing, as after a network failure.
    `isolated`: decisions of the controller do not reach the broker, not even its own fencing.
    """

    def __init__(self, cluster: ClusterState, node_id: int) -> None:
        self.cluster = cluster
        self.node_id = node_id
        self.image = Image()
        self.replicas: dict[tuple[bytes, int], Replica] = {}
        self.sessions = FetchSessions(int(cluster.settings["max.incremental.fetch.session.cache.slots"]))
        self.running = True
        self.isolated = False
        self.silent_since_s: float | None = None

    @property
    def silent(self) -> bool:
        """True if the host sends nothing."""
        return self.silent_since_s is not None

    @property
    def is_reachable(self) -> bool:
        """True if the controller reaches the broker, which then knows the newest image."""
        return self.running and not self.silent and not self.isolated

    # -- replicas -----------------------------------------------------------------------------

    def apply(self, image: Image) -> None:
        """Apply changes of the image: new replicas, removed replicas, and epochs in which the broker leads."""
        self.image = image
        hosted = {}
        for topic in image.topics.values():
            for number, partition in enumerate(topic.partitions):
                if self.node_id in partition.replicas:
                    replica = self.replicas.get((topic.topic_id, number)) or Replica()
                    hosted[topic.topic_id, number] = replica
                    if partition.leader == self.node_id:
                        replica.log.begin_epoch(partition.leader_epoch)
        self.replicas = hosted

    def follow(self, led: Hosted) -> bool:
        """Copy the leader's log, and truncate records that the leader does not have; return True if successful."""
        topic = self.image.topics.get(led.topic.name)
        if not self.running or self.silent or topic is None or topic.topic_id != led.topic.topic_id:
            return False
        replica = self.replicas.get((topic.topic_id, led.number))
        if replica is None or topic.partitions[led.number].leader_epoch != led.partition.leader_epoch:
            return False
        if replica.log != led.log:
            replica.log = led.log.copy()
            self.cluster.is_stale = True
        self.cluster.set_high_watermark(replica, min(led.replica.high_watermark, led.log.end_offset))
        return True

    def leads(self) -> Iterator[Hosted]:
        """Return all partitions that the broker leads."""
        for topic in self.image.topics.values():
            for number, partition in enumerate(topic.partitions):
                if partition.leader == self.node_id:
                    yield Hosted(topic, number, partition, self.replicas[topic.topic_id, number])

    # -- requests about partitions ----------------------------------------------------------------

    def topic(self, topic_fields: Body, image: Image | None = None) -> TopicImage:
        """Return the topic of a request's row, by id or name, in the broker's image or in another. Raises `Refused`."""
        image = image or self.image
        topic_id = bytes(topic_fields.get("topic_id", NO_UUID))
        name = topic_fields.get("name") or topic_fields.get("topic")
        topic_image = image.topics.get(name) if name else image.topic_of_id(topic_id)
        if topic_image is None:
            raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if name else ErrorCode.UNKNOWN_TOPIC_ID)
        return topic_image

    def hosted(self, topic: TopicImage, number: int, epoch: int = -1) -> Hosted:
        """Return the partition if the broker has a replica and knows no other epoch. Raises `Refused`."""
        if not 0 <= number < len(topic.partitions):
            raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        partition = topic.partitions[number]
        replica = self.replicas.get((topic.topic_id, number))
        if replica is None:
            raise Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if 0 <= epoch < partition.leader_epoch:
            raise Refused(ErrorCode.FENCED_LEADER_EPOCH)
        if epoch > partition.leader_epoch:
            raise Refused(ErrorCode.UNKNOWN_LEADER_EPOCH)
        return Hosted(topic, number, partition, replica)

    def led(self, topic: TopicImage, number: int, epoch: int = -1) -> Hosted:
        """Return the partition if the broker leads it. Raises `Refused`."""
        hosted = self.hosted(topic, number, epoch)
        if hosted.partition.leader != self.node_id:
            raise Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return hosted

    def still_leads(self, led: Hosted) -> bool:
        """Return False if the leader was elected again since, or the topic is deleted."""
        topic = self.image.topics.get(led.topic.name)
        if topic is None or topic.topic_id != led.topic.topic_id:
            return False
        return topic.partitions[led.number].leader_epoch == led.partition.leader_epoch

    def row(
        self, api: Api, topic_fields: Body, number: int, act: Callable[[TopicImage], Body], *, key: str, refused: Body
    ) -> Body:
        """Return a partition's row of a reply: the result of `act`, or the error with the fields `refused`.

        `key` is the name of the field with the partition's number.
        """

        def unless_refused() -> Body:
            name = topic_fields.get("name") or topic_fields.get("topic")
            if name:
                # Before the topic is looked up: others must not learn whether it exists.
                self.cluster.authorizer.require(api, "Topic", name)
            topic = self.topic(topic_fields)
            self.cluster.authorizer.require(api, "Topic", topic.name)
            self.cluster.faults.refuse(api, self.node_id, (topic.name, number))
            return act(topic)

        row = row_of(unless_refused, **{key: number})
        return {**refused, **row} if row["error_code"] else row

    def rows(
        self,
        api: Api,
        topics: Iterable[Body],
        act: Callable[[TopicImage, Body], Body],
        *,
        parts: str = "partitions",
        key: str = "partition_index",
        answers: str = "partitions",
        refused: Body | None = None,
    ) -> list[Body]:
        """Return the topics of a reply, with the result of `act` for each partition.

        `parts` and `answers` are the names of the fields with the partitions' rows.
        """

        def row(topic_fields: Body, part: Body) -> Body:
            return self.row(
                api, topic_fields, part[key], lambda topic: act(topic, part), key=key, refused=refused or {}
            )

        return [{**named(topic), answers: [row(topic, part) for part in topic[parts]]} for topic in topics]

    def newer_leaders(self, topics: Sequence[Body], answers: str, key: str) -> list[Body]:
        """Add the current leader to rows of partitions that moved to another broker; return the leaders' addresses."""
        leaders = set()
        for topic in topics:
            for row in topic[answers]:
                if row["error_code"] in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH):
                    partition = self.topic(topic).partitions[row[key]]
                    row["current_leader"] = {"leader_id": partition.leader, "leader_epoch": partition.leader_epoch}
                    leaders.add(partition.leader)
        return self.cluster.endpoints(leaders)


class ClusterState:
    """State of a cluster of brokers, and the operations that brokers and request handlers need. Thread-safe.

    `cluster.Cluster` adds the dispatch of requests and the operations of tests. If `is_stale`, replicas may lack
    records or high watermarks of their leaders.
    """

    def __init__(
        self,
        brokers: int = 1,
        *,
        clock: Clock = SYSTEM_CLOCK,
        settings: Mapping[str, str] | None = None,
        users: Mapping[str, str] | None = None,
    ) -> None:
        self.clock = clock
        self.settings = {**DEFAULT_SETTINGS, **(settings or {})}
        self.changed = threading.Condition(threading.RLock())
        self.faults = Faults()
        self.authenticates = users is not None
        self.credentials = Credentials(users or {})
        self.authorizer = Authorizer(self.settings)
        self.quotas = Quotas()
        self.cluster_id = "fake"
        self.group_configs: dict[str, dict[str, str]] = {}
        ids = range(1, brokers + 1)
        self.addresses: dict[int, tuple[str, int]] = {node_id: ("127.0.0.1", 9091 + node_id) for node_id in ids}
        self.brokers = {node_id: Broker(self, node_id) for node_id in ids}
        self.controller = Controller(tuple(ids), self.settings)
        self.groups = Groups(self.settings)
        self.offsets = Offsets(self.settings)
        self.transactions = Transactions(clock, self.offsets, self._write_marker_of, self.settings)
        self.coordinators: dict[tuple[int, str], int] = {}
        self._cleaned_s = self.advanced_s = clock.now_s()
        self.is_stale = True
        self.advance()

    # -- consequences -------------------------------------------------------------------------

    def advance(self) -> None:
        """Apply timeouts, send images to brokers, and replicate."""
        self.advanced_s = now_s = self.clock.now_s()
        for broker in self.brokers.values():
            timeout_s = int(self.settings["broker.session.timeout.ms"]) / 1000
            if broker.silent_since_s is not None and now_s - broker.silent_since_s >= timeout_s:
                self.controller.fence(broker.node_id)
        self.groups.tick(now_s)
        self.transactions.tick(now_s)
        interval_s = int(self.settings["log.retention.check.interval.ms"]) / 1000
        if 0 <= interval_s <= now_s - self._cleaned_s:
            self._cleaned_s = now_s
            self.clean_logs()
        for broker in self.brokers.values():
            if broker.is_reachable and broker.image != self.controller.image:
                broker.apply(self.controller.image)
                self.is_stale = True
        if self.is_stale:
            self.is_stale = False
            for broker in self.brokers.values():
                for led in list(broker.leads()):
                    self._replicate(broker, led)

    def set_high_watermark(self, replica: Replica, offset: int) -> None:
        """Set the high watermark of a replica, which followers learn in the next round."""
        if replica.high_watermark != offset:
            replica.high_watermark = offset
            self.is_stale = True

    def _replicate(self, leader: Broker, led: Hosted) -> None:
        ends = [led.log.end_offset]
        for node_id in led.partition.replicas:
            if node_id == leader.node_id:
                continue
            follower = self.brokers.get(node_id)  # None: it has left, and this leader does not know it yet
            followed = follower is not None and follower.follow(led)
            if followed and node_id not in led.partition.isr and node_id in self.controller.image.brokers:
                self._join_isr(led, node_id)
            elif not followed and node_id in led.partition.isr:
                replica = follower.replicas.get((led.topic.topic_id, led.number)) if follower else None
                ends.append(replica.log.common_end(led.log) if replica else 0)
        required = led.topic.config.get("min.insync.replicas", self.settings["min.insync.replicas"])
        if len(led.partition.isr) >= min(int(required), len(led.partition.replicas)):
            # A leader lowers it only with the end of its log.
            self.set_high_watermark(led.replica, min(led.log.end_offset, max(led.replica.high_watermark, min(ends))))

    def _join_isr(self, led: Hosted, node_id: int) -> None:
        topic = self.controller.image.topics.get(led.topic.name)
        if topic is None or topic.topic_id != led.topic.topic_id:
            return  # deleted, and this leader does not know it yet
        now = topic.partitions[led.number]
        if now.leader_epoch == led.partition.leader_epoch and node_id not in now.isr:
            self.controller.set_isr(led.topic.name, led.number, (*now.isr, node_id))

    def endpoints(self, node_ids: Iterable[int]) -> list[Body]:
        """Return the addresses of brokers, as rows of a reply."""
        return [
            {"node_id": node_id, "host": self.addresses[node_id][0], "port": self.addresses[node_id][1]}
            for node_id in sorted(node_ids)
            if node_id in self.addresses
        ]

    def _write_marker_of(self, partition: TopicPartition, ended: Transaction) -> bool:
        return self.write_marker(partition, ended.producer_id, ended.producer_epoch, commit=ended.commits)

    def write_marker(self, partition: TopicPartition, producer_id: int, epoch: int, *, commit: bool) -> bool:
        """Return True if the marker is on all in-sync replicas, or is not needed because the partition is deleted."""
        topic = self.controller.image.topics.get(partition[0])
        if topic is None or partition[1] >= len(topic.partitions):
            return True
        leader = self.brokers.get(topic.partitions[partition[1]].leader)
        if leader is None or not leader.running or leader.silent:
            return False
        try:
            led = leader.led(topic, partition[1])
        except Refused:
            return False
        # Coordinators write markers with acks=all: a marker that only the leader has could be lost with it.
        followers = [self.brokers.get(node_id) for node_id in led.partition.isr if node_id != leader.node_id]
        if not all(follower is not None and follower.follow(led) for follower in followers):
            return False
        now_ms = self.clock.wall_ms()
        led.log.append_marker(producer_id, epoch, led.partition.leader_epoch, commit=commit, now_ms=now_ms)
        self._replicate(leader, led)
        self.is_stale = True
        return True

    # -- coordinators -------------------------------------------------------------------------

    def coordinator(self, kind: int, key: str) -> int:
        """Return the broker that coordinates a group or transactional id; the same while it is in the cluster."""
        alive = self.controller.image.brokers
        if not alive:
            raise Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        chosen = self.coordinators.get((kind, key))
        if chosen not in alive:
            chosen = self.coordinators[kind, key] = alive[sum(key.encode()) % len(alive)]
        return chosen

    def require_coordinator(self, broker: Broker, kind: int, key: str) -> None:
        """Raise `Refused` unless the broker coordinates this group or transactional id."""
        if self.coordinator(kind, key) != broker.node_id:
            raise Refused(ErrorCode.NOT_COORDINATOR)

    # -- topics and logs ----------------------------------------------------------------------

    @step
    def delete_topic(self, name: str) -> None:
        """Delete a topic, its records and its committed offsets."""
        self.controller.delete_topic(name)
        self.offsets.delete_topic(name)

    def _led(self, name: str, number: int, broker_id: int | None = None) -> Hosted:
        broker = self.leader(name, number) if broker_id is None else broker_id
        return self.brokers[broker].hosted(self.controller.topic(name), number)

    def leader(self, topic: str, partition: int) -> int:
        """Return the broker that leads a partition; raise `BrokerError` if there is none."""
        leader = self.controller.topic(topic).partitions[partition].leader
        if leader < 0:
            name = f"{topic}-{partition}"
            raise broker_error(
                ErrorCode.LEADER_NOT_AVAILABLE, f"{name} has no leader", topic=topic, partition=partition
            )
        return leader

    @step
    def move_leader(self, topic: str, partition: int, broker_id: int, *, isr: Iterable[int] | None = None) -> None:
        """Elect another broker as leader of a partition for the next epoch.

        Parameters
        ----------
        topic, partition
        broker_id : int
            A replica leads with its own log: an unclean election if it was not in sync. Another broker gets a copy of
            the log. -1: the partition has no leader.
        isr : iterable of int, optional
            In-sync replicas afterwards; by default the present ones and the leader.
        """
        image = self.controller.topic(topic)
        if broker_id in self.brokers and broker_id not in image.partitions[partition].replicas:
            self._copy_log(image, partition, broker_id)
        self.controller.elect(topic, partition, broker_id, None if isr is None else tuple(isr))

    @step
    def reassign(self, topic: str, partition: int, replicas: Sequence[int]) -> None:
        """Move a partition to other brokers, which get a copy of its log at once."""
        image = self.controller.topic(topic)
        if not 0 <= partition < len(image.partitions):
            raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        for broker_id in set(replicas) & self.brokers.keys() - set(image.partitions[partition].replicas):
            self._copy_log(image, partition, broker_id)
        self.controller.reassign(topic, partition, replicas)

    def _copy_log(self, topic: TopicImage, number: int, broker_id: int) -> None:
        if topic.partitions[number].leader in self.brokers:
            led = self._led(topic.name, number)
            copied = Replica(led.log.copy(), led.replica.high_watermark)
            self.brokers[broker_id].replicas[topic.topic_id, number] = copied

    @step
    def clean_logs(self, topic: str | None = None) -> None:
        """Apply retention and compaction now, to one topic or to all.

        By default they run only in this call, so that records with old timestamps stay. Set
        `log.retention.check.interval.ms` to run them at intervals.
        """
        for broker in self.brokers.values():
            for led in list(broker.leads()):
                if topic in (None, led.topic.name):
                    config = topic_config(self.settings, led.topic.config)
                    self.is_stale = True
                    clean(led.log, config, led.replica.last_stable_offset, self.clock.wall_ms())


def named(topic_fields: Body) -> Body:
    """Return a request's reference to a topic: its name, its id, or both."""
    return {key: topic_fields[key] for key in ("topic", "name", "topic_id") if key in topic_fields}
