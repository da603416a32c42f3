"""The cluster as one state machine: brokers, controller, coordinators, and the operations of tests.

`ask` sends one request and returns its reply, without sockets; `server.FakeKafka` has the sockets. Thread-safe.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from protocol.broker_errors import ErrorCode, broker_error
from protocol.clock import SYSTEM_CLOCK, Clock
from protocol.errors import UsageError
from protocol.kafka_terms import TopicPartition
from protocol.testing.fake_kafka.authorizer import ITSELF, Authorizer
from protocol.testing.fake_kafka.broker import Broker, Hosted, Replica
from protocol.testing.fake_kafka.configs import check_topic_config, topic_config
from protocol.testing.fake_kafka.controller import Controller, TopicImage
from protocol.testing.fake_kafka.faults import ALWAYS, Edit, Fault, Faults, Kind, api_of, code_of
from protocol.testing.fake_kafka.groups import Groups
from protocol.testing.fake_kafka.handlers import HANDLERS, refused
from protocol.testing.fake_kafka.log import Log
from protocol.testing.fake_kafka.log_cleaner import clean
from protocol.testing.fake_kafka.offsets import Offsets
from protocol.testing.fake_kafka.quotas import Quotas
from protocol.testing.fake_kafka.requests import Body, Pending, Refused, Request
from protocol.testing.fake_kafka.sasl import Credentials
from protocol.testing.fake_kafka.transactions import Transactions
from protocol.wire import frame
from protocol.wire.messages.m10_find_coordinator import GROUP
from protocol.wire.schema import Api

P = ParamSpec("P")
T = TypeVar("T")

DEFAULT_SETTINGS = {
    "auto.create.topics.enable": "false",
    "broker.session.timeout.ms": "9000",
    "default.replication.factor": "1",
    "group.initial.rebalance.delay.ms": "0",
    "group.max.session.timeout.ms": "1800000",
    "group.min.session.timeout.ms": "1000",
    "log.retention.check.interval.ms": "-1",
    "max.message.bytes": "1048588",
    "min.insync.replicas": "1",
    "num.partitions": "1",
    "offset.metadata.max.bytes": "4096",
    "process.roles": "",
    "transaction.max.timeout.ms": "900000",
    "transaction.version": "2",
}
"""Defaults by Kafka's names for brokers, topics and features, as in `conf/kafka-broker.properties` if it has them.

`process.roles` is `broker` for a cluster without ZooKeeper. `log.retention.check.interval.ms` is -1: retention and
compaction run only in `clean_logs`.
"""


def _step(method: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], T]:
    """Run a change of the cluster under the lock; apply its consequences and wake all waiting threads."""

    @wraps(method)
    def step(self: Any, /, *arguments: P.args, **options: P.kwargs) -> T:
        with self.changed:
            self.advance()
            try:
                return method(self, *arguments, **options)
            finally:
                self.advance()
                self.changed.notify_all()

    return step


class Cluster:
    """A cluster of brokers with the ids 1, 2, …; `FakeKafka` explains the parameters."""

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
        self.offsets: Offsets = Offsets(self.groups, self.settings)
        self.transactions: Transactions = Transactions(self, self.settings)
        self.coordinators: dict[tuple[int, str], int] = {}
        self._cleaned_s = clock.now_s()
        self.advance()

    # -- requests -----------------------------------------------------------------------------

    @_step
    def handle(self, broker_id: int, request: Request) -> Body | Pending:
        """Handle a request at a broker; return the reply, or a pending one."""
        handler, broker = HANDLERS[request.api], self.brokers[broker_id]
        self.authorizer.principal = request.principal
        try:
            return handler(broker, request)
        except Refused as refusal:
            return refused(request, refusal)
        finally:
            self.authorizer.principal = ITSELF

    def look(self, pending: Pending, principal: str = ITSELF) -> Body | None:
        """Return a pending reply to a principal's request if it is due."""
        with self.changed:
            self.advance()
            self.authorizer.principal = principal
            try:
                return pending()
            finally:
                self.authorizer.principal = ITSELF

    def ask(self, broker_id: int, api: Api, body: Body, version: int | None = None) -> Body:
        """Send one request; return the reply as a client decodes it. Raises `TimeoutError` if it is not due yet."""
        number = api.last if version is None else version
        sent = b"".join(frame.encode_request(api, number, 0, "test", body))[4:]
        given = self.handle(broker_id, Request(api, number, frame.decode_request(sent)[4], "test", ITSELF))
        reply = self.look(given) if callable(given) else given
        if reply is None:
            raise TimeoutError(f"{api.name}: the reply is not due yet")
        return frame.decode_response(api, number, b"".join(frame.encode_response(api, number, 0, reply))[4:])

    # -- consequences -------------------------------------------------------------------------

    def advance(self) -> None:
        """Apply timeouts, send images to brokers, and replicate."""
        now_s = self.clock.now_s()
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
            if broker.running and not broker.silent and not broker.isolated and broker.image != self.controller.image:
                broker.apply(self.controller.image)
        for broker in self.brokers.values():
            for led in list(broker.leads()):
                self._replicate(broker, led)

    def _replicate(self, leader: Broker, led: Hosted) -> None:
        ends = [led.log.end_offset]
        for node_id in led.partition.replicas:
            if node_id == leader.node_id:
                continue
            follower = self.brokers[node_id]
            followed = follower.follow(led)
            if followed and node_id not in led.partition.isr and node_id in self.controller.image.brokers:
                self._join_isr(led, node_id)
            elif not followed and node_id in led.partition.isr:
                replica = follower.replicas.get((led.topic.topic_id, led.number))
                ends.append(replica.log.end_offset if replica else 0)
        required = led.topic.config.get("min.insync.replicas", self.settings["min.insync.replicas"])
        if len(led.partition.isr) >= min(int(required), len(led.partition.replicas)):
            led.replica.high_watermark = min(ends)

    def _join_isr(self, led: Hosted, node_id: int) -> None:
        now = self.controller.image.topics[led.topic.name].partitions[led.number]
        if now.leader_epoch == led.partition.leader_epoch and node_id not in now.isr:
            self.controller.set_isr(led.topic.name, led.number, (*now.isr, node_id))

    def endpoints(self, node_ids: Iterable[int]) -> list[Body]:
        """Return the addresses of brokers, as rows of a reply."""
        return [
            {"node_id": node_id, "host": self.addresses[node_id][0], "port": self.addresses[node_id][1]}
            for node_id in sorted(node_ids)
            if node_id in self.addresses
        ]

    def write_marker(self, partition: TopicPartition, producer_id: int, epoch: int, *, commit: bool) -> bool:
        """Return True if the marker is written, or is not needed because the partition is deleted."""
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
        now_ms = self.clock.wall_ms()
        led.log.append_marker(producer_id, epoch, led.partition.leader_epoch, commit=commit, now_ms=now_ms)
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

    @_step
    def move_coordinator(self, key: str, broker_id: int, kind: int = GROUP) -> None:
        """Move a coordinator; pending requests get NOT_COORDINATOR, and the new coordinator loads the stored state."""
        self.require_broker(broker_id)
        self.coordinators[kind, key] = broker_id
        if kind == GROUP and key in self.groups.groups:
            self.groups.groups[key].load(self.clock.now_s())

    @_step
    def rehash_coordinators(self) -> None:
        """Move the coordinator of each group and transactional id to the next broker."""
        alive = self.controller.image.brokers
        for (kind, key), broker_id in list(self.coordinators.items()):
            following = [each for each in alive if each > broker_id] or list(alive)
            self.move_coordinator(key, following[0], kind)

    @_step
    def rebalance(self, group_id: str) -> None:
        """Start a rebalance of a classic group: all its members must join again.

        Raises
        ------
        UsageError
            There is no classic group with this id.
        """
        if group_id not in self.groups.groups:
            kind = "of the consumer protocol" if group_id in self.groups.consumer_groups else "unknown"
            raise UsageError(f"group {group_id} is {kind}; rebalance needs a classic group with members")
        self.groups.groups[group_id].rebalance(self.clock.now_s())

    @_step
    def hold_markers(self, held: bool = True) -> None:
        """Keep transactions that end from now on in their prepared state, until called with False."""
        self.transactions.markers_held = held

    # -- topics and logs ----------------------------------------------------------------------

    @_step
    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        replication_factor: int = -1,
        *,
        config: Mapping[str, str] | None = None,
        topic_id: bytes | None = None,
    ) -> TopicImage:
        """Create a topic.

        Parameters
        ----------
        name : str
        partitions, replication_factor : int
            -1: the defaults in `settings`.
        config : mapping of str to str, optional
            Topic configurations by Kafka's names.
        topic_id : bytes, optional
            16 bytes; random by default.

        Raises
        ------
        Refused
            CreateTopics would fail.
        """
        check_topic_config(config or {})
        return self.controller.create_topic(name, partitions, replication_factor, config, topic_id)

    @_step
    def delete_topic(self, name: str) -> None:
        """Delete a topic, its records and its committed offsets."""
        self.controller.delete_topic(name)
        self.offsets.delete_topic(name)

    @_step
    def create_partitions(self, name: str, count: int) -> None:
        """Increase a topic's number of partitions to `count`."""
        self.controller.create_partitions(name, count)

    def log(self, topic: str, partition: int = 0, broker_id: int | None = None) -> Log:
        """Return the log of the leader, or of a broker's replica. Changes by a test take effect with the next step."""
        return self._led(topic, partition, broker_id).log

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

    @_step
    def write(self, topic: str, partition: int, records: bytes) -> None:
        """Append record batches unchanged, offsets included, without any checks."""
        self.log(topic, partition).write(records)

    @_step
    def rewrite(self, topic: str, partition: int, records: bytes = b"", *, start: int | None = None) -> None:
        """Replace the leader's log with these record batches; the log start offset is that of the first, or `start`."""
        led = self._led(topic, partition)
        led.replica.log = Log(start or 0, start or 0)
        led.log.write(records)
        led.log.begin_epoch(led.partition.leader_epoch)
        if start is not None:
            led.log.start_offset = start

    @_step
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
        found = self.controller.topic(topic)
        if broker_id in self.brokers and broker_id not in found.partitions[partition].replicas:
            self._copy_log(found, partition, broker_id)
        self.controller.elect(topic, partition, broker_id, None if isr is None else tuple(isr))

    @_step
    def set_leader_epoch(self, topic: str, partition: int, epoch: int) -> None:
        """Set the leader epoch, as after as many elections."""
        known = self.controller.topic(topic).partitions[partition]
        self.controller.change(topic, partition, replace(known, leader_epoch=epoch))

    @_step
    def reassign(self, topic: str, partition: int, replicas: Sequence[int]) -> None:
        """Move a partition to other brokers, which get a copy of its log at once."""
        found = self.controller.topic(topic)
        if not 0 <= partition < len(found.partitions):
            raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        for broker_id in set(replicas) & self.brokers.keys() - set(found.partitions[partition].replicas):
            self._copy_log(found, partition, broker_id)
        self.controller.reassign(topic, partition, replicas)

    @_step
    def shuffle_leaders(self) -> None:
        """Move the leader of each partition to its next replica, or to another broker if it has only one."""
        for topic in list(self.controller.image.topics.values()):
            for number, partition in enumerate(topic.partitions):
                others = [each for each in partition.isr if each != partition.leader]
                others = others or [each for each in self.controller.image.brokers if each != partition.leader]
                if others:
                    self.move_leader(topic.name, number, others[0])

    def _copy_log(self, topic: TopicImage, number: int, broker_id: int) -> None:
        if topic.partitions[number].leader in self.brokers:
            led = self._led(topic.name, number)
            copied = Replica(led.log.copy(), led.replica.high_watermark)
            self.brokers[broker_id].replicas[topic.topic_id, number] = copied

    @_step
    def shrink_log(self, topic: str, partition: int, start_offset: int) -> None:
        """Delete the records before an offset, as retention does."""
        self.log(topic, partition).delete_before(start_offset)

    @_step
    def clean_logs(self, topic: str | None = None) -> None:
        """Apply retention and compaction now, to one topic or to all.

        By default they run only in this call, so that records with old timestamps stay. Set
        `log.retention.check.interval.ms` to run them at intervals.
        """
        for broker in self.brokers.values():
            for led in list(broker.leads()):
                if topic in (None, led.topic.name):
                    config = topic_config(self.settings, led.topic.config)
                    clean(led.log, config, led.replica.last_stable_offset, self.clock.wall_ms())

    # -- brokers ------------------------------------------------------------------------------

    def require_broker(self, broker_id: int) -> None:
        """Raise `UsageError` if the cluster has no broker with this id."""
        if broker_id not in self.brokers:
            raise UsageError(f"broker {broker_id} does not exist; the brokers are {', '.join(map(str, self.brokers))}")

    @_step
    def stop(self, broker_id: int) -> None:
        """Stop accepting connections at a broker; other brokers become leaders of its partitions."""
        self.require_broker(broker_id)
        self.brokers[broker_id].running = False
        self.controller.fence(broker_id)

    @_step
    def start(self, broker_id: int) -> None:
        """Start the broker again, with its logs."""
        self.require_broker(broker_id)
        self.brokers[broker_id].running = True
        self.controller.unfence(broker_id)

    @_step
    def join(self, broker_id: int) -> None:
        """Add a broker to the cluster."""
        self.brokers[broker_id] = Broker(self, broker_id)
        self.controller.unfence(broker_id)

    @_step
    def silence(self, broker_id: int, silent: bool = True) -> None:
        """Make a host silent, or not. The cluster notices silence after `broker.session.timeout.ms`."""
        self.require_broker(broker_id)
        self.brokers[broker_id].silent_since_s = self.clock.now_s() if silent else None
        if not silent:
            self.controller.unfence(broker_id)

    @_step
    def fence(self, broker_id: int) -> None:
        """Fence a broker, as if it had stopped."""
        self.require_broker(broker_id)
        self.controller.fence(broker_id)

    @_step
    def isolate(self, broker_id: int, isolated: bool = True) -> None:
        """Isolate a broker from the controller's decisions: it serves clients with the state that it has."""
        self.require_broker(broker_id)
        self.brokers[broker_id].isolated = isolated

    # -- faults -------------------------------------------------------------------------------

    @_step
    def refuse(
        self,
        kind: Api | str,
        code: ErrorCode | str,
        times: int = 1,
        *,
        broker: int | None = None,
        partition: TopicPartition | None = None,
    ) -> None:
        """Refuse the next requests (or their rows for a partition) with an error code, without effect.

        Parameters
        ----------
        kind : Api or str
            Kind of request by its name in Kafka, such as "Produce" or "OffsetCommit".
        code : ErrorCode or str
            Kafka's error code by its name, such as "NOT_LEADER_OR_FOLLOWER".
        times : int
            Number of requests.
        broker : int, optional
            Only requests at this broker.
        partition : (str, int), optional
            Only rows of this topic and partition.
        """
        self.faults.add(Fault(Kind.REFUSED, api_of(kind), times, broker, partition, code=code_of(code)))

    @_step
    def lose_requests(self, kind: Api | str, times: int = 1, *, broker: int | None = None) -> None:
        """Reset the connection for the next requests, without handling them."""
        self.faults.add(Fault(Kind.REQUEST_LOST, api_of(kind), times, broker))

    @_step
    def lose_replies(self, kind: Api | str, times: int = 1, *, broker: int | None = None) -> None:
        """Handle the next requests, and reset the connection instead of replying."""
        self.faults.add(Fault(Kind.REPLY_LOST, api_of(kind), times, broker))

    @_step
    def delay_replies(self, kind: Api | str, seconds: float, times: int = 1, *, broker: int | None = None) -> None:
        """Delay the next replies by a number of seconds of the cluster's clock."""
        self.faults.add(Fault(Kind.REPLY_LATE, api_of(kind), times, broker, late_s=seconds))

    @_step
    def edit_replies(self, kind: Api | str, edit: Edit, times: int = ALWAYS, *, broker: int | None = None) -> None:
        """Replace the next replies by the result of `edit`: another body, raw bytes, or None for no reply."""
        self.faults.add(Fault(Kind.REPLY_EDITED, api_of(kind), times, broker, edit=edit))

    @_step
    def clear_faults(self) -> None:
        """Remove all faults that have not happened yet."""
        self.faults.clear()

    def fault(self, kind: Kind, api: Api, broker_id: int) -> Fault | None:
        """Return the next fault of a kind; for the server."""
        with self.changed:
            return self.faults.take(kind, api, broker_id)
