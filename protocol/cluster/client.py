"""The client of one cluster: metadata, leaders, coordinators, and requests sent to the right broker.

sarama's `Client`. Owns the connection pool, the newest metadata and the coordinators found so far; used by
consumer, group, producer and admin. Safe for several threads. Opens no socket before the first call.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from protocol.broker_errors import ErrorCode, Refresh, broker_error
from protocol.clock import SYSTEM_CLOCK, Backoff, Clock, Deadline
from protocol.cluster import dispatch
from protocol.cluster.coordinators import CoordinatorKey
from protocol.cluster.metadata import Broker, Metadata, Partition, Topic
from protocol.config import ClientConfig, named_properties, parse_client
from protocol.errors import (
    AuthenticationFailed,
    BrokerError,
    ConnectFailed,
    DeadlineExceeded,
    KafkaError,
    ProtocolError,
    SecurityError,
    TransportError,
    UnsupportedVersion,
    UsageError,
)
from protocol.kafka_terms import TopicPartition
from protocol.net.connection import Connection, Reply
from protocol.net.pool import ConnectionPool
from protocol.wire.messages.m03_metadata import FIRST_WITH_ALLOW_AUTO_TOPIC_CREATION, METADATA
from protocol.wire.messages.m10_find_coordinator import FIND_COORDINATOR
from protocol.wire.schema import Api, Body

log = logging.getLogger(__name__)

T = TypeVar("T")


CONTROL = "control"
FETCH = "fetch"
PRODUCE = "produce"
COORDINATOR = "coordinator"  # of groups and transactions; each member of a group has another purpose

# So long may brokers be away without a word. Whoever has mistyped an address should not wait for minutes to learn it.
_QUIET_S = 10
# Until a broker has answered for the first time, its address or the security settings may be wrong.
_FIRST_ANSWER_MS = 30_000
# Of the brokers that any question may go to, the first gets this part of the time (1/n), if there are as many.
_SHARES = 3
_ABOUT_THE_SILENT_MS = 2_000
# More brokers would hardly make a deletion more certain, and each may cost a connection.
_ASKED_ABOUT_DELETION = 5
_ABOUT_DELETION_MS = 2_000


class Client:
    """Asks the brokers of one cluster.

    Deadlines: every call takes one, or counts `default.api.timeout.ms` from now; each request inside it has at
    most `request.timeout.ms`. `words`: what log lines of this package say of an error.
    """

    def __init__(
        self,
        config: ClientConfig | Mapping[str, object] | None = None,
        clock: Clock = SYSTEM_CLOCK,
        *,
        words: Callable[[KafkaError], str] = str,
        **properties: object,
    ) -> None:
        if not isinstance(config, ClientConfig):
            config = parse_client(named_properties(config, properties))
        self.config = config
        self.clock = clock
        self.words = words
        self._pool = ConnectionPool(config, clock, self._is_departed)
        self._lock = threading.Lock()
        self._metadata = Metadata()
        self._metadata_at_s: dict[str, float] = {}
        self._coordinators: dict[CoordinatorKey, Broker] = {}
        # Of brokers, as long as there are connections to them; bootstrap addresses may be others.
        self._addresses: set[tuple[str, int]] = set()
        self._asking_about_the_silent = threading.Lock()
        self._closed = False
        self.has_answered = False
        """True once a broker has answered this client. A caller that knows the cluster from elsewhere may set it."""

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes every connection; calls that wait get `ConnectionLost`."""
        self._closed = True
        self._pool.close()

    def deadline(self, timeout_ms: float | None = None) -> Deadline:
        """A deadline `timeout_ms`, by default `default.api.timeout.ms`, from now."""
        return Deadline.after_ms(self.config.default_api_timeout_ms if timeout_ms is None else timeout_ms, self.clock)

    # -- requests -----------------------------------------------------------------------------

    def connection(self, broker: Broker, purpose: str, deadline: Deadline) -> Connection:
        if self._closed:
            raise UsageError("this client is closed")
        return self._pool.get(broker.host, broker.port, purpose, deadline)

    def disconnect(self, connection: Connection) -> None:
        """Closes one connection for good; whoever waits on it gets `ConnectionLost`."""
        self._pool.discard(connection)

    def hang_up(self, purpose: str) -> None:
        """Closes the connections of one purpose; whoever waits on one gets `ConnectionLost`."""
        self._pool.discard_purpose(purpose)

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
        """Sends one request, in the newest version both sides speak, and returns its reply to come."""
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
        """Sends one request and waits for its body. One try; errors inside the body are the caller's to handle."""
        reply = self.send(broker, api, body, deadline, purpose=purpose, at_least=at_least, at_most=at_most)
        return reply.result(self._request_deadline(deadline))

    def ask_many(
        self, requests: Mapping[Broker, Body], api: Api, deadline: Deadline, **options: Any
    ) -> tuple[dict[Broker, dict[str, Any]], KafkaError | None]:
        """One request to each broker, all in flight at once: the bodies of those that answered, and one failure."""
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
                bodies[broker] = reply.result(self._request_deadline(deadline))
            except TransportError as error:
                failure = error
        return bodies, failure

    def retrying(
        self,
        what: str,
        attempt: Callable[[], T],
        deadline: Deadline,
        *,
        topics: Iterable[str] = (),
        coordinator_of: CoordinatorKey | None = None,
        max_attempts: int | None = None,
        unknown_topic_s: float | None = None,
    ) -> T:
        """`attempt` in the one retry loop; `topics` and `coordinator_of` say what a refresh is about."""

        def refresh(error: KafkaError, kind: Refresh) -> None:
            if coordinator_of is not None and (kind is Refresh.COORDINATOR or not isinstance(error, BrokerError)):
                self.forget_coordinator(coordinator_of)
            if kind is Refresh.METADATA:
                self.expire_metadata(topics)

        return dispatch.retrying(
            what,
            attempt,
            deadline=deadline,
            backoff=Backoff(self.config.retry_backoff_ms, self.config.retry_backoff_max_ms),
            refresh=refresh,
            max_attempts=max_attempts,
            unknown_topic_s=unknown_topic_s,
        )

    def ask_any(self, api: Api, body: Body, deadline: Deadline, **options: Any) -> dict[str, Any]:
        """Asks brokers one after the other until one answers; those that have failed lately come last.

        Each gets a share of the time, so that one that is silent does not use it up. Raises `ConnectFailed` with what
        was wrong with each; where nothing a later try may mend was, `ProtocolError`, `SecurityError` or
        `UnsupportedVersion`.
        """

        def ask(deadline: Deadline) -> dict[str, Any]:
            return self._ask_one_of(self._candidates(), api, body, deadline, **options)

        return ask(deadline) if self.has_answered else self._until_first_answer(api.name, ask, deadline)

    def _until_first_answer(self, what: str, ask: Callable[[Deadline], T], deadline: Deadline) -> T:
        """Retry `ask` by `deadline`, or by an earlier one while no broker has ever answered this client."""
        if not self.has_answered:
            deadline = deadline.at_most_ms(max(_FIRST_ANSWER_MS, self.config.request_timeout_ms))
        try:
            answer = self.retrying(what, lambda: ask(deadline), deadline)
        except DeadlineExceeded as error:
            raise error if self.has_answered else _never_answered(error) from error.__cause__
        self.has_answered = True
        return answer

    def _ask_one_of(
        self, candidates: Sequence[Broker], api: Api, body: Body, deadline: Deadline, **options: Any
    ) -> dict[str, Any]:
        failures: list[KafkaError] = []
        words: list[str] = []
        for place, broker in enumerate(candidates):
            address = f"{broker.host}:{broker.port}"
            if failures and deadline.passed:
                words.append(f"{address}: not asked, the time was over")
                continue
            share = self._share(deadline, len(candidates) - place)
            try:
                return self.ask(broker, api, body, share, **options)
            except AuthenticationFailed:
                # Accounts are the cluster's, and may lock: the others are not tried.
                raise
            except (TransportError, ProtocolError, SecurityError, UnsupportedVersion) as error:
                failures.append(error)
                words.append(str(error) if address in str(error) else f"{address}: {error}")
        transient = any(isinstance(error, TransportError) for error in failures)
        kind = ConnectFailed if transient else type(failures[-1])
        raise kind(
            "no broker could be reached (bootstrap.servers="
            + ",".join(f"{host}:{port}" for host, port in self.config.bootstrap_servers)
            + f"): {'; '.join(words)}",
            settings=("bootstrap.servers", *(name for error in failures for name in error.settings)),
        ) from failures[-1]

    # -- metadata -----------------------------------------------------------------------------

    def metadata(
        self, topics: Iterable[str] | None, deadline: Deadline | None = None, *, create: bool = False
    ) -> Metadata:
        """A fresh snapshot of these topics; None asks for all of them. Errors of single topics stay in the snapshot.

        With `create` brokers that allow it create the topics that are not there; until they have, those have the error
        UNKNOWN_TOPIC_OR_PARTITION or LEADER_NOT_AVAILABLE. Only who writes may ask for that.

        Raises `DeadlineExceeded` when no broker answered in time. While no broker has ever answered this client, that
        is after 30 s at the latest, or after `request.timeout.ms` if that is longer.
        """
        names = None if topics is None else sorted(set(topics))
        deadline = deadline or self.deadline()
        quiet = Deadline.after_ms(_QUIET_S * 1_000, self.clock)
        told: list[KafkaError] = []

        def ask(deadline: Deadline) -> Metadata:
            wanted = None if names is None else [{"name": name} for name in names]
            body = {"topics": wanted, "allow_auto_topic_creation": create}
            try:
                return Metadata.from_reply(
                    self._ask_one_of(
                        self._candidates(), METADATA, body, deadline, at_least=FIRST_WITH_ALLOW_AUTO_TOPIC_CREATION
                    )
                )
            except ConnectFailed as error:
                if quiet.passed and not told:
                    told.append(error)
                    log.warning("%s. It is tried for %.0f s more", self.words(error), deadline.remaining_s())
                raise

        what = f"Metadata of {'all topics' if names is None else listed(names) or 'the cluster'}"
        newer = self._until_first_answer(what, ask, deadline)
        with self._lock:
            before = self._metadata if names is not None else self._metadata.without(self._metadata.topics)
            self._metadata = before.updated_by(newer)
            now = {(broker.host, broker.port) for broker in newer.brokers.values()}
            departed = self._addresses - now - set(self.config.bootstrap_servers) if now else set()
            self._addresses |= now
            now_s = self.clock.now_s()
            for name in newer.topics:
                self._metadata_at_s[name] = now_s
            known = self._metadata
        departed -= self._pool.close_departed(departed)
        with self._lock:
            self._addresses -= departed
        return known

    def snapshot(self, topics: Iterable[str], deadline: Deadline | None = None, *, create: bool = False) -> Metadata:
        """Metadata that these topics are in, from memory where that is younger than `metadata.max.age.ms`.

        The others are asked for together: whoever is about many topics or partitions takes one snapshot for all of
        them, and expires what proves to be out of date when it has looked at all. `create` is as for
        `metadata`. Raises `DeadlineExceeded`.
        """
        with self._lock:
            stale, known = [name for name in topics if self._is_stale(name)], self._metadata
        return self.metadata(stale, deadline, create=create) if stale else known

    def topic(self, name: str, deadline: Deadline | None = None, *, create: bool = False) -> Topic:
        """The topic, as in a `snapshot`; raises `BrokerError` if it has one."""
        snapshot = self.snapshot([name], deadline, create=create)
        try:
            return snapshot.topic(name)
        except BrokerError:
            self.expire_metadata([name])
            raise

    def unknown_to_brokers(self, topics: Collection[str], deadline: Deadline | None = None) -> set[str]:
        """Return those of `topics` that no broker knows, after one Metadata request to each of up to five brokers.

        Returns nothing when one of them does not answer, or is no KRaft broker. A KRaft broker serves clients only
        after it has caught up with the cluster's metadata, so for a topic that was seen before the answer means that
        it was deleted. A broker of a ZooKeeper cluster that has just started says the same of topics that are there.
        """
        with self._lock:
            known = list(self._metadata.brokers.values())
        asked = random.sample(known, min(len(known), _ASKED_ABOUT_DELETION))
        deadline = (deadline or self.deadline()).at_most_ms(_ABOUT_DELETION_MS)
        body = {"topics": [{"name": name} for name in topics], "allow_auto_topic_creation": False}
        try:
            if not all(self.connection(broker, CONTROL, deadline).is_kraft for broker in asked):
                return set()
            requests: dict[Broker, Body] = dict.fromkeys(asked, body)
            replies, failure = self.ask_many(
                requests, METADATA, deadline, at_least=FIRST_WITH_ALLOW_AUTO_TOPIC_CREATION
            )
        except KafkaError as error:
            log.debug("cannot tell whether %s was deleted: %s", listed(sorted(topics)), error)
            return set()
        unknown = set(topics) if replies and failure is None else set()
        for reply in replies.values():
            rows = Metadata.from_reply(reply).topics
            unknown = {
                name
                for name in unknown
                if name in rows and rows[name].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            }
        return unknown

    def remembered_topic(self, name: str) -> Topic | None:
        """The topic as the last answer had it, however old that is; None where it was an error. Asks nobody."""
        with self._lock:
            known = self._metadata.topics.get(name)
        return known if known is not None and known.error_code == ErrorCode.NONE else None

    def leader(self, topic: str, partition: int, deadline: Deadline | None = None) -> tuple[Broker, Partition]:
        """The partition's leader. One look; raises `BrokerError` (retriable) while there is none."""
        found, failures = self.leaders([(topic, partition)], deadline)
        for error in failures.values():
            raise error
        return found[topic, partition]

    def leaders(
        self, partitions: Iterable[TopicPartition], deadline: Deadline | None = None
    ) -> tuple[dict[TopicPartition, tuple[Broker, Partition]], dict[TopicPartition, BrokerError]]:
        """The partitions' leaders, and why the others have none just now. One look at all of them together.

        Raises `DeadlineExceeded` when no broker answered in time.
        """
        keys = list(partitions)
        snapshot = self.snapshot({topic for topic, _ in keys}, deadline)
        found: dict[TopicPartition, tuple[Broker, Partition]] = {}
        failures: dict[TopicPartition, BrokerError] = {}
        for key in keys:
            try:
                found[key] = snapshot.leader(*key)
            except BrokerError as error:
                failures[key] = error
        self.expire_metadata({topic for topic, _ in failures})
        return found, failures

    def brokers(self, deadline: Deadline | None = None) -> Mapping[int, Broker]:
        """All brokers by node id, from the newest metadata."""
        with self._lock:
            known = self._metadata.brokers
        return known or self.metadata([], deadline).brokers

    def controller(self, deadline: Deadline | None = None) -> Broker:
        """The broker that takes CreateTopics and the like, freshly looked up."""
        snapshot = self.metadata([], deadline)
        broker = snapshot.brokers.get(snapshot.controller_id)
        if broker is None:
            raise broker_error(ErrorCode.NOT_CONTROLLER, "the cluster has no controller just now")
        return broker

    def _is_stale(self, name: str) -> bool:
        fetched_at_s = self._metadata_at_s.get(name)
        max_age_s = self.config.metadata_max_age_ms / 1000
        return (
            name not in self._metadata.topics or fetched_at_s is None or self.clock.now_s() - fetched_at_s > max_age_s
        )

    def expire_metadata(self, topics: Iterable[str]) -> None:
        """Makes the next question about these topics ask the brokers."""
        with self._lock:
            for name in topics:
                self._metadata_at_s.pop(name, None)

    # -- coordinators -------------------------------------------------------------------------

    def coordinator(self, key: CoordinatorKey, deadline: Deadline) -> Broker:
        """The coordinator, from memory or FindCoordinator. One look; raises `BrokerError` (retriable)."""
        with self._lock:
            known = self._coordinators.get(key)
        if known is not None:
            return known
        broker = key.found(self.ask_any(FIND_COORDINATOR, key.body, deadline, at_least=key.first_version))
        with self._lock:
            self._coordinators[key] = broker
            self._addresses.add((broker.host, broker.port))
        return broker

    def forget_coordinator(self, key: CoordinatorKey) -> None:
        with self._lock:
            self._coordinators.pop(key, None)

    # -- inside -------------------------------------------------------------------------------

    def _request_deadline(self, deadline: Deadline) -> Deadline:
        return deadline.at_most_ms(self.config.request_timeout_ms)

    def _is_departed(self, address: tuple[str, int], deadline: Deadline) -> bool:
        """Whether a broker that has gone silent is not in the cluster any more, as the others say.

        The cluster notices that (nine seconds by default) long before `request.timeout.ms` is over. Called by who
        waits for a reply on some connection, so it asks on connections of its own.
        """
        others = [broker for broker in self._candidates() if (broker.host, broker.port) != address]
        if address not in self._addresses or not others or self._closed:
            return False
        if not self._asking_about_the_silent.acquire(blocking=False):
            return False
        try:
            deadline = deadline.at_most_ms(_ABOUT_THE_SILENT_MS)
            body = {"topics": [], "allow_auto_topic_creation": False}
            reply = self._ask_one_of(
                others, METADATA, body, deadline, purpose="liveness", at_least=FIRST_WITH_ALLOW_AUTO_TOPIC_CREATION
            )
        except KafkaError as error:
            log.debug("%s:%d is silent, and nobody says whether it is gone: %s", *address, error)
            return False
        finally:
            self._asking_about_the_silent.release()
        brokers = {(row["host"], row["port"]) for row in reply["brokers"]}
        # One that has just started may know none yet.
        return bool(brokers) and address not in brokers

    def _share(self, deadline: Deadline, left: int) -> Deadline:
        """How long one of `left` candidates may take: a third, but the last ones more."""
        most_ms = min(deadline.remaining_s() * 1000, self.config.request_timeout_ms)
        return deadline.at_most_ms(most_ms / min(left, _SHARES))

    def _candidates(self) -> list[Broker]:
        """Those known from metadata before the bootstrap ones, and what has failed, the latest last, after all others.

        Beside that in random order.
        """
        with self._lock:
            known = list(self._metadata.brokers.values())
        random.shuffle(known)
        bootstrap = [Broker(-1 - i, host, port) for i, (host, port) in enumerate(self.config.bootstrap_servers)]
        random.shuffle(bootstrap)
        addresses = {(broker.host, broker.port) for broker in known}
        both = known + [broker for broker in bootstrap if (broker.host, broker.port) not in addresses]
        return sorted(both, key=lambda broker: self._pool.failed_at_s(broker.host, broker.port))


def listed(names: Sequence[str]) -> str:
    """The first of them, in words."""
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _never_answered(error: DeadlineExceeded) -> DeadlineExceeded:
    settings = ("bootstrap.servers", "security.protocol")
    return DeadlineExceeded(
        f"{error}. No broker has answered since the start: check {' and '.join(settings)}",
        **{**error.context, "settings": settings},
    )


C = TypeVar("C")


def open_client(
    client: Client | Mapping[str, object] | None,
    config: C | Mapping[str, object] | None,
    properties: Mapping[str, object],
    parse: Callable[[Mapping[str, object]], C],
) -> tuple[Client, bool, C]:
    """Return the client of a consumer or producer, whether that owns it, and its configuration.

    Parameters
    ----------
    client : Client or mapping
        A client that is shared, and that its creator closes; or Kafka's properties, of which a client is made.
    config : mapping, optional
        Properties of the consumer or producer, or the result of `parse`.
    properties : mapping
        Further properties, with underscores for dots in their names.
    parse : callable
        Makes the configuration of all properties.
    """
    shared = client if isinstance(client, Client) else None
    if shared is not None and config is not None and not isinstance(config, Mapping):
        return shared, False, config
    given = named_properties(None if isinstance(client, Client) else client, properties)
    if isinstance(config, Mapping):
        given.update(config)
    parsed = parse(given) if config is None or isinstance(config, Mapping) else config
    return (shared, False, parsed) if shared is not None else (Client(given), True, parsed)
