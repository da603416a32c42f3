"""The client of one cluster: metadata, leaders, coordinators, and requests to the right broker.

Equivalent to sarama's `Client`. Consumers, groups, producers and administration use it.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from protocol.base.clock import SYSTEM_CLOCK, Backoff, Clock, Deadline
from protocol.base.condition import Lock, locked
from protocol.base.interrupts import join, start
from protocol.base.listing import listed, listed_by_cause
from protocol.broker_errors import ErrorCode, Refresh, broker_error
from protocol.cluster import dispatch
from protocol.cluster.coordinators import CoordinatorKey
from protocol.cluster.metadata import Broker, Metadata, NewLeader, Partition, Topic
from protocol.config import ClientConfig, named_properties, parse_client
from protocol.errors import (
    AuthenticationFailed,
    BrokerError,
    ConfigurationError,
    ConnectFailed,
    DeadlineExceeded,
    FrameTooLarge,
    KafkaError,
    ProtocolError,
    SecurityError,
    TransportError,
    UnsupportedVersion,
    UsageError,
)
from protocol.kafka_terms import NO_TOPIC_ID, TopicPartition
from protocol.metrics.client_sensors import ClientSensors, Metric
from protocol.net.connection import BrokerIdentity, Connection, Reply
from protocol.net.pool import ConnectionPool
from protocol.settings.secret import hide_variables
from protocol.wire.messages.m03_metadata import FIRST_WITH_ALLOW_AUTO_TOPIC_CREATION, METADATA
from protocol.wire.messages.m10_find_coordinator import FIND_COORDINATOR
from protocol.wire.schema import Api, Body

log = logging.getLogger(__name__)

T = TypeVar("T")


CONTROL = "control"
FETCH = "fetch"
PRODUCE = "produce"
LIVENESS = "liveness"  # short questions about a silent broker or a missing topic
COORDINATOR = "coordinator"  # of groups and transactions; the purpose of each group member begins with it

# Log a warning if no broker answers within this time: the user may have mistyped an address.
_QUIET_S = 10
# Shorter timeout until the first reply of a broker, since the addresses or the security settings may be wrong.
_FIRST_ANSWER_MS = 30_000
# A request that any broker can answer gives the first candidate this part (1/n) of the time, if there are n or more.
_SHARES = 3
# Failures of a broker that a retry does not resolve, as long as no other broker works.
_LASTING = (SecurityError, FrameTooLarge, UnsupportedVersion)
ABOUT_THE_SILENT_MS = 2_000
# About a topic. More brokers hardly improve the evidence, and each may cost a connection.
_MAX_BROKERS_ASKED = 5
_TOPIC_CHECK_MS = 2_000


class Client:
    """Connections to one cluster, its metadata, and its coordinators.

    Opens no socket before the first call. Thread-safe. Each call takes a deadline, or uses
    `default.api.timeout.ms` from now; each request within a call has at most `request.timeout.ms`.

    Parameters
    ----------
    config : ClientConfig
        From `protocol.config.parse_client`.
    clock : Clock
        Time source; tests pass their own.
    format_error : callable
        Formats an error for log messages, for integrations with their own property names.

    Attributes
    ----------
    has_answered : bool
        True after the first reply of a broker. A caller that knows that the settings are right may set it.
    sensors : ClientSensors
        Record events for `metrics`.
    """

    @hide_variables
    def __init__(
        self,
        config: ClientConfig | Mapping[str, object] | None = None,
        clock: Clock = SYSTEM_CLOCK,
        *,
        format_error: Callable[[KafkaError], str] = str,
        **properties: object,
    ) -> None:
        if not isinstance(config, ClientConfig):
            config = parse_client(named_properties(config, properties))
        self.config = config
        self.clock = clock
        self.format_error = format_error
        self.sensors = ClientSensors(config.client_id)
        self.pool = ConnectionPool(config, clock, self._is_departed, self.sensors)
        """The connections of this client."""
        self._lock = Lock()
        self._metadata = Metadata()
        self._cluster_id: str | None = None
        self._metadata_at_s: dict[str, float] = {}
        self._coordinators: dict[CoordinatorKey, Broker] = {}
        # Brokers that have replied since the last FindCoordinator that they are not the coordinator.
        self._refusing: dict[CoordinatorKey, Broker] = {}
        # Addresses of brokers with open connections; bootstrap addresses may differ from them.
        self._addresses: set[tuple[str, int]] = set()
        # Those at which another broker has replied since the last metadata: all bootstrap servers may be gone.
        self._reused_addresses: set[tuple[str, int]] = set()
        self._asking_about_the_silent = Lock()
        self._closed = False
        self.has_answered = False

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections; waiting calls raise `ConnectionLost`. Idempotent."""
        self._closed = True
        self.pool.close()

    @property
    def closed(self) -> bool:
        """True after `close`. Consumers, producers and offset managers refuse a closed client."""
        return self._closed

    @property
    def cluster_id(self) -> str | None:
        """The id in the first Metadata reply; None before it, and if the brokers have none (before Kafka 0.10.1)."""
        return self._cluster_id

    def require_open(self) -> None:
        """Raise `UsageError` if the client is closed."""
        if self._closed:
            raise UsageError("this client is closed")

    def deadline(self, timeout_ms: float | None = None) -> Deadline:
        """Return a deadline `timeout_ms` from now; by default `default.api.timeout.ms`."""
        return Deadline.after_ms(self.config.default_api_timeout_ms if timeout_ms is None else timeout_ms, self.clock)

    def metrics(self, groups: Collection[str] | None = None) -> list[Metric]:
        """Return the metrics of this client and of all consumers and producers that share it. Sends no request.

        Parameters
        ----------
        groups : collection of str, optional
            Groups of metrics, such as "consumer-fetch-manager-metrics"; by default all that are in use. docs/metrics.md
            lists them.
        """
        with self._lock:
            node_ids = {(broker.host, broker.port): broker.node_id for broker in self._metadata.brokers.values()}
        return self.sensors.read(self.clock.now_s(), node_ids, groups)

    # -- requests -----------------------------------------------------------------------------

    def connection(self, broker: Broker, purpose: str, deadline: Deadline) -> Connection:
        """Return the open connection to a broker for this purpose, or open it.

        A broker of Kafka 4.4 or later refuses connections with the ids of another broker or cluster. Bootstrap servers
        get none, since their node ids are unknown.

        Raises
        ------
        UsageError
            The client is closed.
        TransportError, SecurityError
            The connection cannot be opened by `deadline`.
        """
        self.require_open()
        cluster_id, node_id = self._cluster_id, broker.node_id
        intended = None if cluster_id is None or node_id < 0 else BrokerIdentity(cluster_id, node_id)
        try:
            return self.pool.get(broker.host, broker.port, purpose, deadline, intended)
        except ConnectFailed as error:
            if "intended" in error.context:
                self._forget_broker(broker)
            raise

    def _forget_broker(self, broker: Broker) -> None:
        """Remove a broker from the metadata, so that `_candidates` has its reused address without its node id."""
        with self._lock:
            brokers = dict(self._metadata.brokers)
            former = brokers.get(broker.node_id)
            if former is not None and (former.host, former.port) == (broker.host, broker.port):
                del brokers[broker.node_id]
                self._reused_addresses.add((broker.host, broker.port))
                self._metadata = replace(self._metadata, brokers=brokers)

    def disconnect(self, connection: Connection) -> None:
        """Close one connection; calls that wait on it raise `ConnectionLost`."""
        self.pool.discard(connection)

    def hang_up(self, purpose: str) -> None:
        """Close all connections of a purpose; calls that wait on them raise `ConnectionLost`."""
        self.pool.discard_purpose(purpose)

    def send(
        self,
        broker: Broker,
        api: Api,
        body: Body,
        deadline: Deadline,
        *,
        purpose: str = CONTROL,
        at_least: int = 0,
        at_most: int | None = None,
        replies: bool = True,
    ) -> Reply:
        """Send one request without waiting for the reply.

        Parameters
        ----------
        broker : Broker
        api : Api
        body : dict or callable
            Fields of the request, or a function from the version to the fields.
        deadline : Deadline
        purpose : str
            Requests of different purposes use different connections.
        at_least, at_most : int
            Range of versions; the newest that client and broker support is used.
        replies : bool
            False for Produce with acks=0, which has no reply.

        Returns
        -------
        Reply
            The pending reply; `result` waits for it.

        Raises
        ------
        TransportError, SecurityError
            The request was not sent.
        UnsupportedVersion
            Client and broker have no version in common.
        """
        connection = self.connection(broker, purpose, deadline)
        version = connection.choose_version(api, at_least, at_most)
        fields = body(version) if callable(body) else body
        return connection.send(api, version, fields, self._request_deadline(deadline), replies=replies)

    def ask(
        self,
        broker: Broker,
        api: Api,
        body: Body,
        deadline: Deadline,
        *,
        purpose: str = CONTROL,
        at_least: int = 0,
        at_most: int | None = None,
    ) -> dict[str, Any]:
        """Send one request and wait for its reply. One attempt; the caller handles error codes in the reply."""
        reply = self.send(broker, api, body, deadline, purpose=purpose, at_least=at_least, at_most=at_most)
        return self._result(broker, reply, deadline)

    def _result(self, broker: Broker, reply: Reply, deadline: Deadline) -> dict[str, Any]:
        """Wait for a reply. Raises `ConnectFailed` after a Metadata reply that must not be used."""
        body = reply.result(self._request_deadline(deadline))
        if reply.api is METADATA:
            self._require_same_cluster(broker, body)
        return body

    def _require_same_cluster(self, broker: Broker, metadata: Mapping[str, Any]) -> None:
        """Disconnect a broker of another cluster, or one that fails or requires a rebootstrap (KIP-1102).

        Addresses are reused, so a broker of another cluster may reply at a known address.
        """
        code, cluster_id, address = metadata["error_code"], metadata["cluster_id"], f"{broker.host}:{broker.port}"
        with self._lock:
            if code == ErrorCode.NONE and self._cluster_id is None:
                self._cluster_id = cluster_id
            expected = self._cluster_id
            if code == ErrorCode.REBOOTSTRAP_REQUIRED:
                self._metadata = replace(self._metadata, brokers={})
                self._reused_addresses.clear()
                self._metadata_at_s.clear()
                self._coordinators.clear()
        if code != ErrorCode.NONE:
            error = ConnectFailed(f"{broker_error(code, f'{address}: Metadata')}")
        elif not metadata["brokers"]:  # as Java's client: another broker may know them
            raise ConnectFailed(f"{address}: this broker has just started and does not know the cluster yet")
        elif cluster_id not in (None, expected):
            error = ConnectFailed(
                f"{address}: this broker belongs to cluster {cluster_id}, this client to cluster {expected}: another "
                "cluster uses the address now, or bootstrap.servers has addresses of two clusters",
                settings=("bootstrap.servers",),
                cluster_id=cluster_id,
            )
        else:
            return
        self.pool.discard_address((broker.host, broker.port), error)
        raise error

    def ask_many(
        self, requests: Mapping[Broker, Body], api: Api, deadline: Deadline, **options: Any
    ) -> tuple[dict[Broker, dict[str, Any]], KafkaError | None]:
        """Send one request to each broker in parallel.

        Returns
        -------
        replies : dict of Broker to dict
            The replies that arrived.
        failure : KafkaError or None
            The last transport error.
        """
        bodies: dict[Broker, dict[str, Any]] = {}
        replies: dict[Broker, Reply] = {}
        failure: KafkaError | None = None
        for broker, body in requests.items():
            try:
                replies[broker] = self.send(broker, api, body, deadline, **options)
            except TransportError as error:
                failure = error
        for broker, reply in replies.items():
            try:
                bodies[broker] = self._result(broker, reply, deadline)
            except TransportError as error:
                failure = error
        return bodies, failure

    def retrying(
        self,
        operation: str,
        attempt: Callable[[], T],
        deadline: Deadline,
        *,
        topics: Iterable[str] = (),
        coordinator_of: CoordinatorKey | None = None,
        max_attempts: int | None = None,
        unknown_topic_s: float | None = None,
    ) -> T:
        """Call `attempt` in the retry loop (`dispatch.retrying`).

        A retriable failure refreshes the metadata of `topics`, or the coordinator of `coordinator_of`. An `attempt` at
        several coordinators calls `forget_coordinator` itself, with each failure.
        """

        def refresh(error: KafkaError, kind: Refresh) -> None:
            if coordinator_of is not None:
                self.forget_coordinator(coordinator_of, error)
            if kind is Refresh.METADATA:
                self.expire_metadata(topics)

        return dispatch.retrying(
            operation,
            attempt,
            deadline=deadline,
            backoff=Backoff(self.config.retry_backoff_ms, self.config.retry_backoff_max_ms),
            refresh=refresh,
            max_attempts=max_attempts,
            unknown_topic_s=unknown_topic_s,
        )

    def ask_any(self, api: Api, body: Body, deadline: Deadline, **options: Any) -> dict[str, Any]:
        """Send a request to one broker after the other until one replies; recently failed brokers come last.

        Each broker gets a share of the time, so that an unresponsive one does not use all of it.

        Raises
        ------
        ConnectFailed
            No broker replied, or replied with valid bytes; the message has the failures.
        FrameTooLarge, SecurityError, UnsupportedVersion
            As before, if no failure is one that a retry may resolve.
        """

        def ask(deadline: Deadline) -> dict[str, Any]:
            return self._ask_one_of(self._candidates(), api, body, deadline, **options)

        return ask(deadline) if self.has_answered else self._until_first_answer(api.name, ask, deadline)

    def _until_first_answer(self, operation: str, ask: Callable[[Deadline], T], deadline: Deadline) -> T:
        """Retry `ask` until `deadline`, or until an earlier one while no broker has answered this client yet."""
        if not self.has_answered:
            deadline = deadline.at_most_ms(max(_FIRST_ANSWER_MS, self.config.request_timeout_ms))
        try:
            answer = self.retrying(operation, lambda: ask(deadline), deadline)
        except DeadlineExceeded as error:
            raise error if self.has_answered else _never_answered(error) from error.__cause__
        self.has_answered = True
        return answer

    def _ask_one_of(
        self,
        candidates: Sequence[Broker],
        api: Api,
        body: Body,
        deadline: Deadline,
        *,
        bootstrap_servers: Sequence[tuple[str, int]] | None = None,
        **options: Any,
    ) -> dict[str, Any]:
        failures: list[KafkaError] = []
        causes: list[tuple[str, str]] = []
        for place, broker in enumerate(candidates):
            address = f"{broker.host}:{broker.port}"
            if failures and deadline.passed:
                causes.append((address, "not tried, the deadline had passed"))
                continue
            share = self._share(deadline, len(candidates) - place)
            try:
                return self.ask(broker, api, body, share, **options)
            except AuthenticationFailed:
                # Credentials apply to the whole cluster, and failures may lock an account: do not try other brokers.
                raise
            except (TransportError, ProtocolError, SecurityError, UnsupportedVersion) as error:
                failures.append(error)
                cause = error.__cause__ if "retry_in_ms" in error.context else error
                causes.append((address, str(cause).removeprefix(f"{address}: ")))
        if all(isinstance(error, UnsupportedVersion) for error in failures):
            raise UnsupportedVersion(listed(dict.fromkeys(map(str, failures)), separator="; ")) from failures[-1]
        lasting = all(isinstance(error, _LASTING) for error in failures)
        kind = type(failures[-1]) if lasting else ConnectFailed
        addresses = [f"{host}:{port}" for host, port in bootstrap_servers or self.config.bootstrap_servers]
        servers = listed(addresses, separator=",")
        raise kind(
            f"no broker could be reached (bootstrap.servers={servers}): {listed_by_cause(causes)}",
            settings=("bootstrap.servers", *(name for error in failures for name in error.settings)),
        ) from failures[-1]

    # -- metadata -----------------------------------------------------------------------------

    def metadata(
        self, topics: Iterable[str] | None, deadline: Deadline | None = None, *, create: bool = False
    ) -> Metadata:
        """Fetch the metadata of these topics; errors of single topics are in the snapshot.

        Parameters
        ----------
        topics : iterable of str or None
            None fetches all topics.
        deadline : Deadline, optional
        create : bool
            Let brokers with auto.create.topics.enable create missing topics, for producers only. Until they exist, the
            topics have the error UNKNOWN_TOPIC_OR_PARTITION or LEADER_NOT_AVAILABLE.

        Returns
        -------
        Metadata
            All topics known so far, with the fetched ones updated.

        Raises
        ------
        DeadlineExceeded
            No broker answered in time. Before the first reply of any broker, the limit is 30 s, or
            `request.timeout.ms` if that is longer.
        """
        names = None if topics is None else sorted(set(topics))
        deadline = deadline or self.deadline()
        quiet = Deadline.after_ms(_QUIET_S * 1_000, self.clock)
        errors: list[KafkaError] = []

        def ask(deadline: Deadline) -> Metadata:
            requested = None if names is None else [{"name": name} for name in names]
            body = {"topics": requested, "allow_auto_topic_creation": create}
            try:
                return Metadata.from_reply(
                    self._ask_one_of(
                        self._candidates(), METADATA, body, deadline, at_least=FIRST_WITH_ALLOW_AUTO_TOPIC_CREATION
                    )
                )
            except ConnectFailed as error:
                if quiet.passed and not errors:
                    errors.append(error)
                    log.warning("%s. Retrying for %.0f s more", self.format_error(error), deadline.remaining_s())
                raise

        operation = f"Metadata of {'all topics' if names is None else listed(names) or 'the cluster'}"
        newer = self._until_first_answer(operation, ask, deadline)
        return self._update_metadata(newer, all_topics=names is None)

    def _update_metadata(self, newer: Metadata, *, all_topics: bool) -> Metadata:
        """Add a reply to the known metadata, and close connections to brokers that have left the cluster."""
        with self._lock:
            metadata = self._metadata.updated_by(newer)
            self._metadata = metadata.without(metadata.topics.keys() - newer.topics.keys()) if all_topics else metadata
            self._reused_addresses.clear()
            now = {(broker.host, broker.port) for broker in newer.brokers.values()}
            departed = self._addresses - now - set(self.config.bootstrap_servers) if now else set()
            self._addresses |= now
            now_s = self.clock.now_s()
            for name in newer.topics:
                self._metadata_at_s[name] = now_s
            metadata = self._metadata
        departed -= self.pool.close_departed(departed)
        with self._lock:
            self._addresses -= departed
        return metadata

    def snapshot(self, topics: Iterable[str], deadline: Deadline | None = None, *, create: bool = False) -> Metadata:
        """Return metadata that includes these topics, cached up to `metadata.max.age.ms`.

        One request refreshes all outdated topics. A caller with many topics takes one snapshot for all of them, and
        expires the outdated ones after it has checked them all. `create` and `DeadlineExceeded` are as in `metadata`.
        """
        with self._lock:
            stale, metadata = [name for name in topics if self._is_stale(name)], self._metadata
        return self.metadata(stale, deadline, create=create) if stale else metadata

    def topic(self, name: str, deadline: Deadline | None = None, *, create: bool = False) -> Topic:
        """Return one topic of a `snapshot`; raise `BrokerError` if the topic has an error."""
        snapshot = self.snapshot([name], deadline, create=create)
        try:
            return snapshot.topic(name)
        except BrokerError:
            self.expire_metadata([name])
            raise

    def unknown_to_brokers(self, topics: Collection[str], deadline: Deadline | None = None) -> set[str]:
        """Return the topics that none of up to five brokers knows, after one Metadata request to each.

        Returns an empty set if one of these brokers does not answer or is not a KRaft broker. A KRaft broker serves
        clients only after it has caught up with the cluster's metadata, so an unknown topic that existed before was
        deleted. A ZooKeeper-based broker that has just started does not know its topics yet.
        """
        deadline = (deadline or self.deadline()).at_most_ms(_TOPIC_CHECK_MS)
        try:
            brokers = self._some_brokers(deadline)
            if not all(self.connection(broker, LIVENESS, deadline).is_kraft for broker in brokers):
                return set()
            replies = self._ask_each_about(brokers, topics, deadline)
        except KafkaError as error:
            log.debug("cannot tell whether %s was deleted: %s", listed(sorted(topics)), error)
            return set()
        unknown = set(topics) if replies and len(replies) == len(brokers) else set()
        for rows in replies:
            unknown = {
                name
                for name in unknown
                if name in rows and rows[name].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            }
        return unknown

    def ids_at_brokers(self, topics: Collection[str], deadline: Deadline) -> dict[str, set[bytes]]:
        """Return the ids of topics, after one Metadata request to each of up to five brokers.

        A topic has several ids if a broker lags behind the controller. Zeros: a broker does not know the topic, or
        sends no ids. There are none if at most half of the brokers answer: these may be the ones that lag behind.
        The cached metadata are not changed.
        """
        ids: dict[str, set[bytes]] = {name: set() for name in topics}
        deadline = deadline.at_most_ms(_TOPIC_CHECK_MS)
        try:
            brokers = self._some_brokers(deadline)
            replies = self._ask_each_about(brokers, topics, deadline)
        except KafkaError as error:
            log.debug("cannot tell whether %s was recreated: %s", listed(sorted(topics)), error)
            return ids
        for rows in replies if 2 * len(replies) > len(brokers) else []:
            for name in ids.keys() & rows.keys():
                if rows[name].error_code == ErrorCode.NONE:
                    ids[name].add(rows[name].topic_id)
                elif rows[name].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    ids[name].add(NO_TOPIC_ID)
        return ids

    def _some_brokers(self, deadline: Deadline) -> list[Broker]:
        with self._lock:
            brokers = list(self._metadata.brokers.values())
        # A client that has asked coordinators only knows none.
        brokers = brokers or list(self.metadata((), deadline).brokers.values())
        return random.sample(brokers, min(len(brokers), _MAX_BROKERS_ASKED))

    def _ask_each_about(
        self, brokers: Iterable[Broker], topics: Iterable[str], deadline: Deadline
    ) -> list[Mapping[str, Topic]]:
        """Return the topics in the Metadata reply of each broker that replies.

        The requests are sent in parallel threads, since connecting to a silent broker takes the whole deadline.
        """
        body = {"topics": [{"name": name} for name in topics], "allow_auto_topic_creation": False}
        replies: list[Mapping[str, Topic]] = []

        def ask(broker: Broker) -> None:
            try:
                # Not on a connection of others: after this short deadline it is closed, with the requests in flight.
                reply = self.ask(
                    broker, METADATA, body, deadline, purpose=LIVENESS, at_least=FIRST_WITH_ALLOW_AUTO_TOPIC_CREATION
                )
                replies.append(Metadata.from_reply(reply).topics)
            except KafkaError as error:
                log.debug("%s does not answer which topics exist: %s", broker, error)

        threads = [
            threading.Thread(target=ask, args=(broker,), name=f"ask-{broker}", daemon=True) for broker in brokers
        ]
        for thread in threads:
            start(thread)
        for thread in threads:
            join(thread)
        return replies

    def remembered_topic(self, name: str) -> Topic | None:
        """Return the topic from the newest cached metadata of any age, without a request; None if it has an error."""
        with self._lock:
            topic = self._metadata.topics.get(name)
        return topic if topic is not None and topic.error_code == ErrorCode.NONE else None

    def leader(self, topic: str, partition: int, deadline: Deadline | None = None) -> tuple[Broker, Partition]:
        """Return the partition's leader, in one attempt; raise `BrokerError` (retriable) if there is none."""
        leaders, failures = self.leaders([(topic, partition)], deadline)
        for error in failures.values():
            raise error
        return leaders[topic, partition]

    def leaders(
        self, partitions: Iterable[TopicPartition], deadline: Deadline | None = None
    ) -> tuple[dict[TopicPartition, tuple[Broker, Partition]], dict[TopicPartition, BrokerError]]:
        """Return the leaders of partitions, in one attempt for all of them.

        Returns
        -------
        leaders : dict of TopicPartition to (Broker, Partition)
        failures : dict of TopicPartition to BrokerError
            Partitions without a leader.

        Raises
        ------
        DeadlineExceeded
            No broker answered in time.
        """
        keys = list(partitions)
        snapshot = self.snapshot({topic for topic, _ in keys}, deadline)
        leaders_by_key: dict[TopicPartition, tuple[Broker, Partition]] = {}
        failures: dict[TopicPartition, BrokerError] = {}
        for key in keys:
            try:
                leaders_by_key[key] = snapshot.leader(*key)
            except BrokerError as error:
                failures[key] = error
        self.expire_metadata({topic for topic, _ in failures})
        return leaders_by_key, failures

    def adopt_leaders(self, leaders: Collection[NewLeader]) -> None:
        """Add leaders that replies name to the cached metadata, where their epochs are newer."""
        if leaders:
            with self._lock:
                self._metadata = self._metadata.with_leaders(leaders)
                self._addresses |= {(leader.broker.host, leader.broker.port) for leader in leaders}

    def brokers(self, deadline: Deadline | None = None) -> Mapping[int, Broker]:
        """Return all brokers by node id, from the newest metadata."""
        with self._lock:
            brokers = self._metadata.brokers
        return brokers or self.metadata([], deadline).brokers

    def refresh_brokers(
        self, bootstrap_servers: str | Sequence[str], deadline: Deadline | None = None
    ) -> Mapping[int, Broker]:
        """Replace the bootstrap servers of this running client, and fetch the brokers from them.

        For a cluster whose brokers all have new addresses. Consumers and producers that share the client continue with
        the new addresses. After an error, the client keeps its former addresses.

        Parameters
        ----------
        bootstrap_servers : str or sequence of str
            As the property `bootstrap.servers`.
        deadline : Deadline, optional

        Returns
        -------
        mapping of int to Broker
            All brokers by node id.

        Raises
        ------
        ConfigurationError
            An address is malformed, or belongs to another cluster.
        DeadlineExceeded
            None of these servers answered in time.
        """
        self.require_open()
        addresses = bootstrap_servers if isinstance(bootstrap_servers, str) else ",".join(bootstrap_servers)
        servers = parse_client({"bootstrap.servers": addresses}).bootstrap_servers
        candidates = [Broker(-1 - i, host, port) for i, (host, port) in enumerate(servers)]
        deadline = deadline or self.deadline()
        body = {"topics": [], "allow_auto_topic_creation": False}
        first = FIRST_WITH_ALLOW_AUTO_TOPIC_CREATION

        def ask() -> Metadata:
            try:
                return Metadata.from_reply(
                    self._ask_one_of(candidates, METADATA, body, deadline, bootstrap_servers=servers, at_least=first)
                )
            except ConnectFailed as error:
                cause = error.__cause__
                if not isinstance(cause, KafkaError) or "cluster_id" not in cause.context:
                    raise
                raise ConfigurationError(
                    f"bootstrap.servers={addresses}: these brokers belong to cluster {cause.context['cluster_id']}, "
                    f"this client to cluster {self._cluster_id}. Open another client for another cluster.",
                    settings=("bootstrap.servers",),
                ) from error

        newer = self.retrying(f"Metadata from {addresses}", ask, deadline)
        with self._lock:
            self.config = replace(self.config, bootstrap_servers=servers)
            self._coordinators.clear()
        return self._update_metadata(newer, all_topics=False).brokers

    def controller(self, deadline: Deadline | None = None) -> Broker:
        """Return the controller, which handles CreateTopics and similar requests; refreshes the metadata."""
        snapshot = self.metadata([], deadline)
        broker = snapshot.brokers.get(snapshot.controller_id)
        if broker is None:
            raise broker_error(ErrorCode.NOT_CONTROLLER, "the cluster has no controller at the moment")
        return broker

    def _is_stale(self, name: str) -> bool:
        fetched_at_s = self._metadata_at_s.get(name)
        max_age_s = self.config.metadata_max_age_ms / 1000
        return (
            name not in self._metadata.topics or fetched_at_s is None or self.clock.now_s() - fetched_at_s > max_age_s
        )

    def expire_metadata(self, topics: Iterable[str]) -> None:
        """Make the next `snapshot` fetch these topics."""
        with self._lock:
            for name in topics:
                self._metadata_at_s.pop(name, None)

    # -- coordinators -------------------------------------------------------------------------

    def coordinator(self, key: CoordinatorKey, deadline: Deadline) -> Broker:
        """Return the coordinator, cached or by FindCoordinator, in one attempt; raise `BrokerError` (retriable)."""
        with self._lock:
            cached = self._coordinators.get(key)
        if cached is not None:
            return cached
        broker = key.found(self.ask_any(FIND_COORDINATOR, key.body, deadline, at_least=key.first_version))
        with self._lock:
            self._coordinators[key] = broker
            self._addresses.add((broker.host, broker.port))
            has_refused = self._refusing.pop(key, None) == broker
            if has_refused:  # all refused on the connections that are replaced now
                self._refusing = {other: refusing for other, refusing in self._refusing.items() if refusing != broker}
        if has_refused:  # a connection may have reached another broker, as after a change of addresses
            self.pool.discard_address((broker.host, broker.port), purpose=COORDINATOR)
        return broker

    def forget_coordinator(self, key: CoordinatorKey, error: KafkaError | None = None) -> None:
        """Make the next `coordinator` send FindCoordinator.

        Parameters
        ----------
        key : CoordinatorKey
        error : KafkaError, optional
            Failure of a request to the coordinator; codes that do not concern the coordinator have no effect. After
            NOT_COORDINATOR, `coordinator` also replaces the connections if FindCoordinator names the same broker.
        """
        has_refused = error is not None and dispatch.what_to_refresh(error) is Refresh.COORDINATOR
        if isinstance(error, BrokerError) and not has_refused:
            return
        with self._lock:
            broker = self._coordinators.pop(key, None)
            if broker is not None and has_refused:
                self._refusing[key] = broker

    # -- inside -------------------------------------------------------------------------------

    def _request_deadline(self, deadline: Deadline) -> Deadline:
        return deadline.at_most_ms(self.config.request_timeout_ms)

    def _is_departed(self, address: tuple[str, int], deadline: Deadline) -> bool:
        """Return True if other brokers report that an unresponsive broker has left the cluster.

        The cluster notices that after nine seconds by default, long before `request.timeout.ms`. Called by threads
        that wait for a reply on a connection; the request therefore uses other connections.
        """
        candidates = [broker for broker in self._candidates() if (broker.host, broker.port) != address]
        if address not in self._addresses or not candidates or self._closed:
            return False
        deadline = deadline.at_most_ms(ABOUT_THE_SILENT_MS)
        body = {"topics": [], "allow_auto_topic_creation": False}

        def ask(free: bool) -> dict[str, Any] | None:
            if not free:
                return None
            return self._ask_one_of(
                candidates, METADATA, body, deadline, purpose=LIVENESS, at_least=FIRST_WITH_ALLOW_AUTO_TOPIC_CREATION
            )

        try:
            reply = locked(self._asking_about_the_silent, 0, ask)
        except KafkaError as error:
            log.debug("%s:%d is unresponsive; cannot determine if it has left the cluster: %s", *address, error)
            return False
        if reply is None:  # another thread asks
            return False
        return address not in {(row["host"], row["port"]) for row in reply["brokers"]}

    def _share(self, deadline: Deadline, attempts: int) -> Deadline:
        """Return the deadline of one of `attempts` candidates: a third of the time, more for the last two."""
        max_ms = min(deadline.remaining_s() * 1000, self.config.request_timeout_ms)
        return deadline.at_most_ms(max_ms / min(attempts, _SHARES))

    def _candidates(self) -> list[Broker]:
        """Return brokers from metadata, bootstrap servers, then reused addresses.

        Each kind is in random order; failed ones last, latest last.
        """
        with self._lock:
            brokers = list(self._metadata.brokers.values())
            addresses = {(broker.host, broker.port) for broker in brokers}
            reused = sorted(self._reused_addresses - addresses - set(self.config.bootstrap_servers))
        bootstrap = [address for address in self.config.bootstrap_servers if address not in addresses]
        for candidates in (brokers, bootstrap, reused):
            random.shuffle(candidates)
        brokers += [Broker(-1 - number, *address) for number, address in enumerate(bootstrap + reused)]
        return sorted(brokers, key=lambda broker: self.pool.failed_at_s(broker.host, broker.port))


def _never_answered(error: DeadlineExceeded) -> DeadlineExceeded:
    settings = ("bootstrap.servers", "security.protocol")
    return DeadlineExceeded(
        f"{error}. No broker has answered since the start: check {' and '.join(settings)}",
        **{**error.context, "settings": settings},
    )


C = TypeVar("C")


@hide_variables
def open_client(
    client: Client | Mapping[str, object] | None,
    config: C | Mapping[str, object] | None,
    properties: Mapping[str, object],
    parse: Callable[[Mapping[str, object]], C],
) -> tuple[Client, bool, C]:
    """Return the client of a consumer or producer, whether that owns it, and its configuration.

    `client`: a client that is shared, and that its creator closes; or Kafka's properties, of which a client is made.
    `config`: properties of the consumer or producer, or the result of `parse`.
    `properties`: further properties, with underscores for dots in their names.
    `parse`: makes the configuration of all properties.
    Raises `UsageError`: the shared client is closed.
    """
    shared = client if isinstance(client, Client) else None
    if shared is not None:
        shared.require_open()
    if shared is not None and config is not None and not isinstance(config, Mapping):
        return shared, False, config
    merged = named_properties(None if isinstance(client, Client) else client, properties)
    if isinstance(config, Mapping):
        merged.update(config)
    parsed = parse(merged) if config is None or isinstance(config, Mapping) else config
    return (shared, False, parsed) if shared is not None else (Client(merged), True, parsed)
