"""The model with sockets: a listener on a loopback port for each broker."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

from protocol.base.clock import SYSTEM_CLOCK, Clock
from protocol.broker_errors import ErrorCode, broker_error
from protocol.config import parse_consumer
from protocol.errors import UsageError
from protocol.fetch.partition_consumer import ConsumerMessage
from protocol.kafka_terms import TopicPartition
from protocol.producer.messages import Headers, Message
from protocol.producer.partitioner import partition_of
from protocol.testing.fake_kafka.cluster import Cluster
from protocol.testing.fake_kafka.controller import TopicImage
from protocol.testing.fake_kafka.faults import Fault, Kind, api_of
from protocol.testing.fake_kafka.handlers import SASL, VERSIONS
from protocol.testing.fake_kafka.listener import CUT, Handler, Listener, kept_port
from protocol.testing.fake_kafka.older_versions import newest_request, reply_in
from protocol.testing.fake_kafka.record_batches import Batch, Record, committed, read_batch, rows, write_batch
from protocol.testing.fake_kafka.requests import ANONYMOUS, Body, Pending, Request, TimedPending
from protocol.testing.fake_kafka.sasl import SaslSession
from protocol.wire.messages.m00_produce import PRODUCE
from protocol.wire.messages.m18_api_versions import API_VERSIONS
from protocol.wire.parts import refusal_reply
from protocol.wire.registry import API_BY_KEY
from protocol.wire.schema import Api

_LOOK_AGAIN_S = 0.01
"""Maximum time until a pending reply notices a timeout; other events are noticed immediately."""
_MAX_WAIT_S = 0.1
"""As `_LOOK_AGAIN_S`, for a reply whose own timeout is known, on a clock that does not jump."""


_Cluster = TypeVar("_Cluster", bound="FakeKafka")


class FakeKafka(Cluster):
    """An in-memory Kafka cluster that listens on loopback ports until it is closed. Thread-safe.

    Parameters
    ----------
    brokers : int
        Number of brokers; their ids are 1, 2, …
    clock : Clock
        Time of timeouts, sessions and delays; by default the system's.
    settings : mapping of str to str, optional
        Broker settings by Kafka's names, such as `auto.create.topics.enable`; the others have the values of
        `DEFAULT_SETTINGS`.
    host : str
        Address to listen on, also the one that brokers advertise.
    port : int
        Port of the first broker; the next brokers have the next ports. 0: free ports.
    users : mapping of str to str, optional
        Passwords by user name: clients must authenticate with SASL, by PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512.
    anonymous : bool
        Accept clients without SASL, too, as the principal `User:ANONYMOUS`.
    tls : ssl.SSLContext, optional
        A context of a server, with its certificate: the listeners speak TLS. It may require certificates of clients.
    record_requests : bool
        Keep all requests in `requests`.
    newest_versions : mapping of str to int, optional
        Newest version by kind of request, such as {"Fetch": 12}, as an older broker has it; -1: no such requests.

    Attributes
    ----------
    handlers
        By API: a test's handlers in place of the model's. A handler gets (body, version) and returns a body, raw bytes
        to send unchanged, `b""` to reset the connection, or None for silence. `listeners[broker].handlers` apply to
        one broker.
    before
        By API: a function called with each request before it is handled, to change the cluster in between.
    requests
        All requests of all brokers: (API name, version, body).
    """

    def __init__(
        self,
        brokers: int = 1,
        *,
        clock: Clock = SYSTEM_CLOCK,
        settings: Mapping[str, str] | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        users: Mapping[str, str] | None = None,
        anonymous: bool = False,
        tls: ssl.SSLContext | None = None,
        record_requests: bool = True,
        newest_versions: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__(brokers, clock=clock, settings=settings, users=users)
        self._newest_versions = {api_of(kind): newest for kind, newest in (newest_versions or {}).items()}
        self.tls = tls
        self.anonymous = anonymous
        self.handlers: dict[Api, Handler] = {}
        self.before: dict[Api, Callable[[Body], object]] = {}
        self.requests: list[tuple[str, int, Body]] = []
        self.record_requests = record_requests
        self.closed = False
        self._host = host
        self._kept: dict[int, socket.socket] = {}
        self._turns: dict[str, int] = {}
        self.listeners: dict[int, _BrokerListener] = {}
        try:
            for number, node_id in enumerate(self.brokers):
                self.listeners[node_id] = _BrokerListener(self, node_id, port and port + number)
        except BaseException:
            self.close()
            raise
        self.addresses = {node_id: (listener.host, listener.port) for node_id, listener in self.listeners.items()}

    def __enter__(self: _Cluster) -> _Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections and listeners. Idempotent."""
        if self.closed:
            return
        self.closed = True
        for listener in self.listeners.values():
            listener.close()
        for reserved in self._kept.values():
            reserved.close()

    @property
    def host(self) -> str:
        """The address of all listeners."""
        return self._host

    @property
    def bootstrap_servers(self) -> str:
        """The addresses of all brokers, for `bootstrap.servers`."""
        return ",".join(map(self.address, self.brokers))

    def address(self, broker_id: int = 1) -> str:
        """Return `host:port` of one broker."""
        self.require_broker(broker_id)
        host, port = self.addresses[broker_id]
        return f"{host}:{port}"

    def client_properties(self, user: str | None = None, mechanism: str = "SCRAM-SHA-512") -> dict[str, str]:
        """Return the properties of a client: addresses, security protocol, and the credentials of a user.

        Parameters
        ----------
        user : str, optional
            One of `users`; by default the first.
        mechanism : str
            SASL mechanism.

        Notes
        -----
        With TLS the client also needs a trust store with the server's certificate authority.
        """
        properties = {"bootstrap.servers": self.bootstrap_servers}
        properties["security.protocol"] = ("SASL_" if self.authenticates else "") + ("SSL" if self.tls else "PLAINTEXT")
        if self.authenticates:
            name = user if user is not None else next(iter(self.credentials.passwords))
            properties |= {"sasl.mechanism": mechanism, "sasl.username": name}
            properties["sasl.password"] = self.credentials.passwords[name]
        return properties

    # -- records ------------------------------------------------------------------------------

    def produce(
        self,
        topic: str,
        *values: bytes | str | None,
        key: bytes | str | None = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> list[int]:
        """Write one record per value, in one record batch per partition.

        Parameters
        ----------
        topic : str
        *values : bytes, str or None
            None is a tombstone.
        key : bytes, str or None
        headers : sequence of (str, bytes or None)
        partition : int, optional
            By default the hash of the key decides, as in the Java client; without a key the partitions take turns.
        timestamp_ms : int, optional
            Milliseconds since 1970; by default now.

        Returns
        -------
        list of int
            The offset of each record in its partition.

        Raises
        ------
        UsageError
            The topic or the partition does not exist.
        BrokerError
            The cluster refuses the records, for example one without a key for a compacted topic, or the partition has
            no leader.
        """
        image = self._existing(topic, partition)
        time_ms = self.clock.wall_ms() if timestamp_ms is None else timestamp_ms
        messages = [Message(value, key, headers, time_ms, partition) for value in values]
        chosen = [self._partition(topic, len(image.partitions), message) for message in messages]
        offsets = {
            number: self._append(
                topic, number, [message for message, at in zip(messages, chosen, strict=True) if at == number]
            )
            for number in dict.fromkeys(chosen)
        }
        return [next(offsets[number]) for number in chosen]

    def _existing(self, topic: str, partition: int | None) -> TopicImage:
        """Return a topic; raise `UsageError` if it, or its partition, does not exist."""
        image = self.controller.image.topics.get(topic)
        if image is None or (partition is not None and not 0 <= partition < len(image.partitions)):
            subject = topic if partition is None else f"{topic}-{partition}"
            raise UsageError(f"{subject} does not exist in this cluster; call create_topic first", topic=topic)
        return image

    def _partition(self, topic: str, count: int, message: Message) -> int:
        if message.partition is not None:
            return message.partition
        if message.key is not None:
            return partition_of(message.key, count)
        self._turns[topic] = self._turns.get(topic, -1) + 1
        return self._turns[topic] % count

    def _append(self, topic: str, partition: int, messages: list[Message]) -> Iterator[int]:
        """Write one record batch; yield the offsets of its records."""
        records = [
            Record(message.value, message.key, offset_delta=delta, headers=tuple(message.headers))
            for delta, message in enumerate(messages)
        ]
        time_ms = messages[0].timestamp_ms
        data = write_batch(Batch(records, first_timestamp=time_ms, max_timestamp=time_ms))
        image = self.controller.topic(topic)
        rows = [{"topic_id": image.topic_id, "partition_data": [{"index": partition, "records": data}]}]
        leader = self.leader(topic, partition)
        reply = self.ask(leader, PRODUCE, {"acks": 1, "timeout_ms": 0, "topic_data": rows})
        (row,) = reply["responses"][0]["partition_responses"]
        if row["error_code"]:
            raise broker_error(row["error_code"], f"produce to {topic}-{partition}", topic=topic, partition=partition)
        return iter(range(row["base_offset"], row["base_offset"] + len(messages)))

    def records(
        self, topic: str, partition: int | None = None, *, isolation_level: str = "read_committed"
    ) -> list[ConsumerMessage]:
        """Return the records that a consumer would read now, by partition and offset.

        Parameters
        ----------
        topic : str
        partition : int, optional
            By default all partitions.
        isolation_level : {"read_committed", "read_uncommitted"}
            `read_uncommitted` adds records of open and aborted transactions.

        Raises
        ------
        UsageError
            The topic or the partition does not exist.
        ConfigurationError
            `isolation_level` has another value.
        """
        image = self._existing(topic, partition)
        committed_only = parse_consumer({"isolation.level": isolation_level}).isolation_level == "read_committed"
        numbers = range(len(image.partitions)) if partition is None else [partition]
        with self.changed:
            return [record for number in numbers for record in self._read(topic, number, committed_only)]

    def _read(self, topic: str, partition: int, committed_only: bool) -> Iterator[ConsumerMessage]:
        led = self._led(topic, partition)
        until = led.replica.last_stable_offset if committed_only else led.replica.high_watermark
        batches = [read_batch(batch.data) for batch in led.log.batches if batch.base_offset < until]
        aborted = led.log.aborted if committed_only else []
        visible = committed(batches, [{"producer_id": a.producer_id, "first_offset": a.first_offset} for a in aborted])
        for row in rows(visible):
            if led.log.start_offset <= row["offset"] < until:
                pairs = [(header["key"], header["value"]) for header in row.pop("headers") or ()]
                yield ConsumerMessage(topic=topic, partition=partition, headers=pairs or None, **row)

    def committed_offsets(self, group_id: str) -> dict[TopicPartition, int]:
        """Return the committed offsets of a group."""
        with self.changed:
            return {key: committed.offset for key, committed in self.offsets.committed.get(group_id, {}).items()}

    # -- requests and brokers -----------------------------------------------------------------

    def versions(self, api: Api) -> tuple[int, int]:
        """Return the first and the newest version of requests that the brokers handle; the newest is -1 for none."""
        first, newest = VERSIONS.get(api, (0, -1))
        return first, min(newest, self._newest_versions.get(api, newest))

    def request_bodies(self, kind: Api | str) -> list[Body]:
        """Return the bodies of all requests of one kind, in order."""
        name = api_of(kind).name
        return [body for api, _, body in list(self.requests) if api == name]

    def drop_connections(self, broker_id: int | None = None) -> None:
        """Close all open connections of one broker, or of all; clients may connect again at once."""
        for node_id, listener in list(self.listeners.items()):
            if broker_id in (None, node_id):
                listener.cut()

    def add_broker(self) -> int:
        """Start one more broker, without replicas, and return its id."""
        broker_id = max(self.brokers) + 1
        listener = self.listeners[broker_id] = _BrokerListener(self, broker_id)
        self.addresses[broker_id] = listener.host, listener.port
        self.join(broker_id)
        return broker_id

    def replace_broker(self, broker_id: int) -> int:
        """Replace a broker by a new one at another address, which gets its replicas; return the new broker's id."""
        self.require_broker(broker_id)
        added = self.add_broker()
        listener = self.listeners.pop(broker_id)
        listener.close()
        if broker_id not in self._kept:  # no other program gets the port
            self._kept[broker_id] = kept_port(listener.port)
        self.hand_over(broker_id, added)
        return added

    def truncate_log(self, topic: str, partition: int, end_offset: int) -> None:
        """Lose the records from an offset on, as in an unclean leader election; the leader's connections are reset."""
        leader = self.leader(topic, partition)
        super().truncate_log(topic, partition, end_offset)
        self.drop_connections(leader)

    def stop(self, broker_id: int) -> None:
        """Stop a broker: it refuses connections, and other in-sync replicas lead its partitions."""
        self.require_broker(broker_id)
        self.listeners[broker_id].close()
        self._kept[broker_id] = kept_port(self.addresses[broker_id][1])
        super().stop(broker_id)

    def start(self, broker_id: int) -> None:
        """Start a stopped broker again, at the same address and with its logs."""
        self.require_broker(broker_id)
        if broker_id not in self._kept:
            raise UsageError(f"broker {broker_id} is running")
        self._kept.pop(broker_id).close()
        self.listeners[broker_id] = _BrokerListener(self, broker_id, self.addresses[broker_id][1])
        super().start(broker_id)

    def move(self, broker_id: int) -> None:
        """Stop the broker, and start it at another address."""
        self.require_broker(broker_id)
        self.listeners[broker_id].close()
        super().stop(broker_id)
        moved = self.listeners[broker_id] = _BrokerListener(self, broker_id)
        self.addresses[broker_id] = moved.host, moved.port
        super().start(broker_id)


class _BrokerListener(Listener):
    """One broker's listener: replies of the test's handlers, of the pending faults, and of the model."""

    def __init__(self, kafka: FakeKafka, broker_id: int, port: int = 0) -> None:
        self._kafka = kafka
        self._broker_id = broker_id
        self.handlers: dict[Api, Handler] = {}
        # Of a connection, which has a thread.
        self._local = threading.local()
        super().__init__(kafka.host, port, kafka.tls, kafka.record_requests)

    def answer(self, api: Api, version: int, client_id: str | None, body: Body) -> Body | bytes | None:
        kafka = self._kafka
        if kafka.record_requests:
            kafka.requests.append((api.name, version, body))
        kafka.before.get(api, _nothing)(body)
        own = self.handlers.get(api) or kafka.handlers.get(api)
        if own is not None:
            return own(body, version)
        is_sasl = api in SASL
        must_authenticate = kafka.authenticates and not kafka.anonymous and not is_sasl and api is not API_VERSIONS
        if must_authenticate and self._sasl_session().principal is None:
            return CUT
        first, newest = kafka.versions(api)
        if not is_sasl and not first <= version <= newest:
            return _unsupported(first, newest) if api is API_VERSIONS else CUT
        if kafka.member(self._broker_id).silent:
            self._local.unanswered = True
            return None
        if getattr(self._local, "unanswered", False):  # replies are ordered: this one would be taken for the lost one
            return CUT
        if self._fault(Kind.REQUEST_LOST, api):
            return CUT
        principal = (self._sasl_session().principal if kafka.authenticates else None) or ANONYMOUS
        request = Request(api, version, newest_request(api, version, body), client_id or "", principal)
        if is_sasl:
            reply = self._sasl_reply(request)
        else:
            reply = self._when_due(kafka.handle(self._broker_id, request), principal)
        if api is API_VERSIONS:
            reply = self._with_versions(reply)
        if self._fault(Kind.REPLY_LOST, api):
            return CUT
        late = self._fault(Kind.REPLY_LATE, api)
        if late:
            until_s = kafka.clock.now_s() + late.late_s
            self._when_due(lambda: {} if kafka.clock.now_s() >= until_s else None, principal)
        edited = self._fault(Kind.REPLY_EDITED, api)
        if edited:
            changed = edited.edit(reply)
            return reply_in(api, version, changed) if isinstance(changed, dict) else changed
        if kafka.member(self._broker_id).silent:
            self._local.unanswered = True
            return None
        return _without_answer(reply) if api is PRODUCE and body["acks"] == 0 else reply_in(api, version, reply)

    def _with_versions(self, reply: Body) -> Body:
        """Return a reply to ApiVersions with the newest versions of this cluster."""
        rows = []
        for row in reply.get("api_keys", ()):
            api = API_BY_KEY.get(row["api_key"])
            newest = self._kafka.versions(api)[1] if api in VERSIONS else row["max_version"]
            if newest >= row["min_version"]:
                rows.append({**row, "max_version": newest})
        return {**reply, "api_keys": rows}

    def _sasl_session(self) -> SaslSession:
        """Return the session of the connection that this thread serves."""
        if not hasattr(self._local, "session"):
            self._local.session = SaslSession(self._kafka.credentials)
        session: SaslSession = self._local.session
        return session

    def _sasl_reply(self, request: Request) -> Body:
        refused = self._fault(Kind.REFUSED, request.api)
        if refused is not None:
            return refusal_reply(request.api, request.version, request.body, refused.code)
        if not self._kafka.authenticates:
            return refusal_reply(request.api, request.version, request.body, ErrorCode.ILLEGAL_SASL_STATE)
        return self._sasl_session().handle(request.api, request.body)

    def _fault(self, kind: Kind, api: Api) -> Fault | None:
        return self._kafka.fault(kind, api, self._broker_id)

    def _when_due(self, reply: Body | Pending, principal: str) -> Body:
        """Wait for a pending reply."""
        kafka = self._kafka
        while callable(reply):
            with kafka.changed:
                look = kafka.look(reply, principal)
                if look is not None or kafka.closed:
                    return look or {}
                kafka.changed.wait(self._look_again_s(reply))
        return reply

    def _look_again_s(self, reply: Pending) -> float:
        """Return the time after which a pending reply may be due without an event."""
        clock = self._kafka.clock
        if clock is not SYSTEM_CLOCK or not isinstance(reply, TimedPending):
            return _LOOK_AGAIN_S
        return min(_MAX_WAIT_S, max(0.0, reply.until_s - clock.now_s()))


def _nothing(body: Body) -> None:
    pass


def _unsupported(first: int, newest: int) -> Body:
    """Return the reply to an ApiVersions request of an unknown version, from which a client chooses another one."""
    row = {"api_key": API_VERSIONS.key, "min_version": first, "max_version": newest}
    return {"error_code": ErrorCode.UNSUPPORTED_VERSION, "api_keys": [row]}


def _without_answer(reply: Body) -> bytes | None:
    """Handle acks=0, which has no reply: an error closes the connection."""
    rows = (row for topic in reply["responses"] for row in topic["partition_responses"])
    return CUT if any(row["error_code"] for row in rows) else None
