"""The cluster as one state machine: its requests, and the operations of tests.

`ask` sends one request and returns its reply, without sockets; `server.FakeKafka` has the sockets. Thread-safe.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from protocol.broker_errors import ErrorCode
from protocol.errors import UsageError
from protocol.kafka_terms import TopicPartition
from protocol.testing.fake_kafka.authorizer import ITSELF
from protocol.testing.fake_kafka.broker import Broker, ClusterState, step
from protocol.testing.fake_kafka.configs import check_topic_config
from protocol.testing.fake_kafka.controller import TopicImage
from protocol.testing.fake_kafka.faults import ALWAYS, Edit, Fault, Kind, api_of, code_of
from protocol.testing.fake_kafka.handlers import HANDLERS, SASL, VERSIONS, refuses_by_row
from protocol.testing.fake_kafka.log import Log
from protocol.testing.fake_kafka.replica import Replica
from protocol.testing.fake_kafka.requests import Body, Pending, Refused, Request
from protocol.wire import frame
from protocol.wire.messages.m01_fetch import FETCH
from protocol.wire.messages.m02_list_offsets import LIST_OFFSETS
from protocol.wire.messages.m08_offset_commit import OFFSET_COMMIT
from protocol.wire.messages.m10_find_coordinator import GROUP
from protocol.wire.messages.m12_heartbeat import HEARTBEAT
from protocol.wire.messages.m28_txn_offset_commit import TXN_OFFSET_COMMIT
from protocol.wire.parts import refusal_reply
from protocol.wire.schema import Api, Route

_READING = frozenset({FETCH, HEARTBEAT, LIST_OFFSETS})
"""Requests that cannot make a pending reply due. Each step wakes the threads of all pending replies."""
_SOON_S = 0.01
"""Maximum time until a pending reply notices a timeout: between steps, nothing else changes."""


class Cluster(ClusterState):
    """A cluster of brokers with the ids 1, 2, …; `FakeKafka` explains the parameters."""

    # -- requests -----------------------------------------------------------------------------

    def handle(self, broker_id: int, request: Request) -> Body | Pending:
        """Handle a request at a broker; return the reply, or a pending one."""
        if request.api in _READING:
            with self.changed:
                self.advance()
                return self._handle(broker_id, request)
        return self._change(broker_id, request)

    @step
    def _change(self, broker_id: int, request: Request) -> Body | Pending:
        return self._handle(broker_id, request)

    def _handle(self, broker_id: int, request: Request) -> Body | Pending:
        handler, broker = HANDLERS[request.api], self.member(broker_id)
        self.authorizer.principal = request.principal
        try:
            if not refuses_by_row(request.api):
                self.faults.refuse(request.api, broker_id)
            return handler(broker, request)
        except Refused as refusal:
            newest = VERSIONS[request.api][1]
            return {**refusal_reply(request.api, newest, request.body, refusal.code), **refusal.fields}
        finally:
            self.authorizer.principal = ITSELF

    def look(self, pending: Pending, principal: str = ITSELF) -> Body | None:
        """Return a pending reply to a principal's request if it is due."""
        with self.changed:
            if not 0 <= self.clock.now_s() - self.advanced_s < _SOON_S:
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
        handle = self.handle(broker_id, Request(api, number, frame.decode_request(sent)[4], "test", ITSELF))
        reply = self.look(handle) if callable(handle) else handle
        if reply is None:
            raise TimeoutError(f"{api.name}: the reply is not due yet")
        return frame.decode_response(api, number, b"".join(frame.encode_response(api, number, 0, reply))[4:])

    # -- coordinators -------------------------------------------------------------------------

    @step
    def move_coordinator(self, key: str, broker_id: int, kind: int = GROUP) -> None:
        """Move a coordinator; pending requests get NOT_COORDINATOR, and the new coordinator loads the stored state."""
        self.require_broker(broker_id)
        self.coordinators[kind, key] = broker_id
        if kind == GROUP and key in self.groups.groups:
            self.groups.groups[key].load(self.clock.now_s())

    @step
    def rehash_coordinators(self) -> None:
        """Move the coordinator of each group and transactional id to the next broker."""
        alive = self.controller.image.brokers
        for (kind, key), broker_id in list(self.coordinators.items()):
            following = [broker for broker in alive if broker > broker_id] or list(alive)
            self.move_coordinator(key, following[0], kind)

    @step
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

    @step
    def hold_markers(self, hold: bool = True) -> None:
        """From now on, leave ending transactions in PrepareCommit or PrepareAbort, until called with False."""
        self.transactions.markers_held = hold

    # -- topics and logs ----------------------------------------------------------------------

    @step
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

    @step
    def create_partitions(self, name: str, count: int) -> None:
        """Increase a topic's number of partitions to `count`."""
        self.controller.create_partitions(name, count)

    def log(self, topic: str, partition: int = 0, broker_id: int | None = None) -> Log:
        """Return the log of the leader, or of a broker's replica. Changes by a test take effect with the next step."""
        self.is_stale = True
        return self._led(topic, partition, broker_id).log

    @step
    def write(self, topic: str, partition: int, records: bytes) -> None:
        """Append record batches unchanged, offsets included, without any checks."""
        self.log(topic, partition).write(records)

    @step
    def rewrite(self, topic: str, partition: int, records: bytes = b"", *, start: int | None = None) -> None:
        """Replace the leader's log with these record batches; the log start offset is that of the first, or `start`."""
        led = self._led(topic, partition)
        led.replica.log = Log(start or 0, start or 0)
        led.log.write(records)
        led.log.begin_epoch(led.partition.leader_epoch)
        if start is not None:
            led.log.start_offset = start

    @step
    def set_leader_epoch(self, topic: str, partition: int, epoch: int) -> None:
        """Set the leader epoch, as after as many elections."""
        image = self.controller.topic(topic).partitions[partition]
        self.controller.change(topic, partition, replace(image, leader_epoch=epoch))

    @step
    def shuffle_leaders(self) -> None:
        """Move the leader of each partition to another in-sync replica, or to any other broker if there is none."""
        for topic in list(self.controller.image.topics.values()):
            for number, partition in enumerate(topic.partitions):
                followers = [broker for broker in partition.isr if broker != partition.leader]
                followers = followers or [
                    broker for broker in self.controller.image.brokers if broker != partition.leader
                ]
                if followers:
                    self.move_leader(topic.name, number, followers[0])

    @step
    def shrink_log(self, topic: str, partition: int, start_offset: int) -> None:
        """Delete the records before an offset, as retention does."""
        self.log(topic, partition).delete_before(start_offset)

    @step
    def truncate_log(self, topic: str, partition: int, end_offset: int) -> None:
        """Lose the records from an offset on, as in an unclean leader election: all replicas have lost them.

        A broker that is away does not become the leader: it could write other records at the same offsets in an epoch
        that it led before.
        """
        led = self._led(topic, partition)
        led.log.truncate(end_offset)
        led.replica.high_watermark = min(led.replica.high_watermark, end_offset)
        key = led.topic.topic_id, partition
        for node_id in led.partition.replicas:
            if node_id != led.partition.leader and key in self.brokers[node_id].replicas:
                self.brokers[node_id].replicas[key].log = led.log.copy()
        running = [node_id for node_id in led.partition.replicas if node_id in self.controller.image.brokers]
        others = (node_id for node_id in running if node_id != led.partition.leader)
        leader = next((node_id for node_id in others if self.brokers[node_id].is_reachable), led.partition.leader)
        self.controller.elect(topic, partition, leader, running or (leader,))

    # -- brokers ------------------------------------------------------------------------------

    def member(self, broker_id: int) -> Broker:
        """Return a broker; raise `ConnectionAbortedError`, which closes a connection, if it has left the cluster."""
        try:
            return self.brokers[broker_id]
        except KeyError:
            raise ConnectionAbortedError(f"broker {broker_id} has left the cluster") from None

    def require_broker(self, broker_id: int) -> None:
        """Raise `UsageError` if the cluster has no broker with this id."""
        if broker_id not in self.brokers:
            raise UsageError(f"broker {broker_id} does not exist; the brokers are {', '.join(map(str, self.brokers))}")

    @step
    def stop(self, broker_id: int) -> None:
        """Stop accepting connections at a broker; other brokers become leaders of its partitions."""
        self.require_broker(broker_id)
        self.brokers[broker_id].running = False
        self.controller.fence(broker_id)

    @step
    def start(self, broker_id: int) -> None:
        """Start the broker again, with its logs."""
        self.require_broker(broker_id)
        self.brokers[broker_id].running = True
        self.controller.unfence(broker_id)

    @step
    def join(self, broker_id: int) -> None:
        """Add a broker to the cluster."""
        self.brokers[broker_id] = Broker(self, broker_id)
        self.controller.unfence(broker_id)

    @step
    def hand_over(self, broker_id: int, successor_id: int) -> None:
        """Move the replicas of a broker, with their logs, to another one, and remove the broker from the cluster."""
        former, successor = self.brokers[broker_id], self.brokers[successor_id]
        for key, replica in former.replicas.items():
            successor.replicas[key] = Replica(replica.log.copy(), replica.high_watermark)
        self.controller.hand_over(broker_id, successor_id)
        del self.brokers[broker_id], self.addresses[broker_id]

    @step
    def silence(self, broker_id: int, silent: bool = True) -> None:
        """Make a host silent, or not. The cluster notices silence after `broker.session.timeout.ms`."""
        self.require_broker(broker_id)
        self.brokers[broker_id].silent_since_s = self.clock.now_s() if silent else None
        if not silent:
            self.controller.unfence(broker_id)

    @step
    def fence(self, broker_id: int) -> None:
        """Fence a broker, as if it had stopped."""
        self.require_broker(broker_id)
        self.controller.fence(broker_id)

    @step
    def isolate(self, broker_id: int, isolated: bool = True) -> None:
        """Isolate a broker from the controller's decisions: it serves clients with the state that it has."""
        self.require_broker(broker_id)
        self.brokers[broker_id].isolated = isolated

    # -- faults -------------------------------------------------------------------------------

    @step
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

        Raises
        ------
        UsageError
            The cluster has no such requests, or does not refuse single partitions of them.
        """
        api = self._handled(kind)
        if partition is not None and api.route is not Route.LEADER and api not in (OFFSET_COMMIT, TXN_OFFSET_COMMIT):
            raise UsageError(f"{api.name} is refused as a whole in FakeKafka: leave out partition")
        self.faults.add(Fault(Kind.REFUSED, api, times, broker, partition, code=code_of(code)))

    @step
    def lose_requests(self, kind: Api | str, times: int = 1, *, broker: int | None = None) -> None:
        """Reset the connection for the next requests, without handling them."""
        self.faults.add(Fault(Kind.REQUEST_LOST, self._handled(kind), times, broker))

    @step
    def lose_replies(self, kind: Api | str, times: int = 1, *, broker: int | None = None) -> None:
        """Handle the next requests, and reset the connection instead of replying."""
        self.faults.add(Fault(Kind.REPLY_LOST, self._handled(kind), times, broker))

    @step
    def delay_replies(self, kind: Api | str, seconds: float, times: int = 1, *, broker: int | None = None) -> None:
        """Delay the next replies by a number of seconds of the cluster's clock."""
        self.faults.add(Fault(Kind.REPLY_LATE, self._handled(kind), times, broker, late_s=seconds))

    @step
    def edit_replies(self, kind: Api | str, edit: Edit, times: int = ALWAYS, *, broker: int | None = None) -> None:
        """Replace the next replies by the result of `edit`: another body, raw bytes, or None for no reply."""
        self.faults.add(Fault(Kind.REPLY_EDITED, self._handled(kind), times, broker, edit=edit))

    def deny(self, operation: str, resource: str, name: str) -> Callable[[], None]:
        """Deny an operation to all users but super users, whatever the ACLs say.

        Parameters
        ----------
        operation : str
            By Kafka's name, such as "Read".
        resource, name : str
            Type and name, such as "Topic" and "orders".

        Returns
        -------
        callable
            Ends it.

        Raises
        ------
        UsageError
            The cluster has no authorizer.
        """
        if not self.authorizer.enabled:
            raise UsageError("this cluster has no authorizer: FakeKafka needs the setting authorizer.class.name")
        return self.authorizer.deny(operation, resource, name)

    def _handled(self, kind: Api | str) -> Api:
        """Return the API of a request kind; raise `UsageError` if the cluster has no such requests."""
        api = api_of(kind)
        if api in SASL and not self.authenticates:
            raise UsageError(f"no client of this cluster sends {api.name}: FakeKafka needs users=")
        if api not in (*HANDLERS, *SASL):
            raise UsageError(f"FakeKafka does not handle {api.name}")
        return api

    @step
    def clear_faults(self) -> None:
        """Remove all faults that have not happened yet."""
        self.faults.clear()

    def fault(self, kind: Kind, api: Api, broker_id: int) -> Fault | None:
        """Return the next fault of a kind; for the server."""
        with self.changed:
            return self.faults.take(kind, api, broker_id)
