"""Connections: deadlines, matching of replies, and peers that are no Kafka brokers."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from itertools import pairwise
from typing import Any

import pytest

from protocol.base.clock import SYSTEM_CLOCK, Deadline
from protocol.config import ClientConfig
from protocol.errors import ConnectFailed, ConnectionLost, Corrupt, FrameTooLarge, RequestTimedOut
from protocol.net import byte_stream
from protocol.net.connection import BrokerIdentity, Connection, Reply
from protocol.net.pool import ConnectionPool
from protocol.net.reachability import Reachability
from protocol.testing.fake_kafka.clock import ManualClock
from protocol.testing.fake_kafka.listener import kept_port
from protocol.testing.fake_kafka.server import FakeKafka
from protocol.version import __version__
from protocol.wire.messages.m03_metadata import METADATA
from protocol.wire.messages.m18_api_versions import API_VERSIONS
from tests.support.no_broker import no_broker
from tests.support.older_brokers import limit_handshake
from tests.support.wait_until import wait_until


def pool(**settings: Any) -> ConnectionPool:
    return ConnectionPool(ClientConfig(bootstrap_servers=(("127.0.0.1", 1),), **settings), SYSTEM_CLOCK)


def metadata(cluster: str) -> dict[str, Any]:
    return {"brokers": [], "cluster_id": cluster, "controller_id": 0, "topics": []}


def after(milliseconds: float) -> Deadline:
    return Deadline.after_ms(milliseconds)


@pytest.fixture
def fake() -> Iterator[FakeKafka]:
    with silent_kafka() as fake:
        yield fake


def silent_kafka() -> FakeKafka:
    """Return a broker that answers no Metadata request until a test sets another handler."""
    fake = FakeKafka()
    fake.handlers[METADATA] = lambda body, version: None
    return fake


def connect(fake: FakeKafka) -> Connection:
    return pool().get(*fake.addresses[1], "control", after(5000))


def ask(connection: Connection, *topics: str, timeout_ms: float = 5_000) -> Reply:
    """Send a Metadata request."""
    return connection.send(METADATA, 9, {"topics": [{"name": name} for name in topics]}, after(timeout_ms))


def test_pipelined_replies_match_their_requests_in_any_order_of_waiting(fake: FakeKafka) -> None:
    counter = iter(range(100))
    fake.handlers[METADATA] = lambda body, version: metadata(f"c{next(counter)}")
    connection = connect(fake)
    replies = [ask(connection) for _ in range(20)]
    answers = {i: replies[i].result(after(5000))["cluster_id"] for i in reversed(range(20))}
    assert answers == {i: f"c{i}" for i in range(20)}


def test_broker_is_told_the_name_and_version_of_this_package(fake: FakeKafka) -> None:
    connect(fake)
    ((api, _, body),) = fake.requests
    assert api == "ApiVersions"
    assert (body["client_software_name"], body["client_software_version"]) == ("spark-kafka-source", __version__)
    # KIP-511: brokers refuse other characters.
    assert re.fullmatch(r"[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?", __version__)


def versions_of_handshakes(fake: FakeKafka) -> list[int]:
    return [version for api, version, _ in fake.listeners[1].requests if api == "ApiVersions"]


@pytest.mark.parametrize(
    ("last", "names_versions", "first_connection"),
    [(5, True, [4]), (4, True, [4]), (3, True, [4, 3]), (1, False, [4, 0])],
)
def test_handshake_falls_back_to_the_brokers_newest_version_and_remembers_it(
    fake: FakeKafka, last: int, names_versions: bool, first_connection: list[int]
) -> None:
    limit_handshake(fake, last, names_versions=names_versions)
    connect_to, intended = partial(pool().get, *fake.addresses[1]), BrokerIdentity("fake", 1)
    connect_to("control", after(5_000))
    features = [connect_to(purpose, after(5_000), intended).features for purpose in ("fetch", "produce")]
    assert versions_of_handshakes(fake) == [*first_connection, last, last]
    assert features == [{"group.version": 1} if last >= 3 else {}] * 2


def test_upgraded_and_downgraded_brokers_are_noticed_and_their_ids_compared(fake: FakeKafka) -> None:
    connect_to = partial(pool(reconnect_backoff_ms=0).get, *fake.addresses[1])
    limit_handshake(fake, 4)
    connect_to("control", after(5_000), BrokerIdentity("fake", 2))
    del fake.handlers[API_VERSIONS]
    for _ in range(2):
        with pytest.raises(ConnectFailed, match=r"this is not broker 2 of cluster fake \(REBOOTSTRAP_REQUIRED\)"):
            connect_to("fetch", after(5_000), BrokerIdentity("fake", 2))
    connect_to("fetch", after(5_000), BrokerIdentity("fake", 1))
    limit_handshake(fake, 4)
    connect_to("produce", after(5_000), BrokerIdentity("fake", 2))
    assert versions_of_handshakes(fake) == [4, *[4, 5] * 3, 5, 4]


def test_connection_serves_only_the_broker_that_it_was_opened_for(fake: FakeKafka) -> None:
    limit_handshake(fake, 4)
    connect_to = partial(pool().get, *fake.addresses[1], "control", after(20_000))
    first, second, *again = (connect_to(BrokerIdentity("fake", broker_id)) for broker_id in (1, 2, 1, 2))
    assert first is not second
    assert again == [first, second]


@pytest.mark.parametrize("is_older", [False, True])
def test_connection_to_a_bootstrap_server_serves_a_broker_after_comparison(fake: FakeKafka, is_older: bool) -> None:
    if is_older:
        limit_handshake(fake, 4)
    connect_to = partial(pool(reconnect_backoff_ms=0).get, *fake.addresses[1], "control", after(20_000))
    bootstrap = connect_to()
    with nullcontext() if is_older else pytest.raises(ConnectFailed, match="this is not broker 2 of"):
        assert connect_to(BrokerIdentity("fake", 2)) is bootstrap
    assert bootstrap.closed is not is_older
    bootstrap = connect_to()
    assert connect_to(BrokerIdentity("fake", 1)) is bootstrap
    assert versions_of_handshakes(fake) == ([4, 4] if is_older else [4, 5, 5, 5])


def test_lost_connection_fails_all_requests_in_flight(fake: FakeKafka) -> None:
    connection = connect(fake)
    replies = [ask(connection) for _ in range(3)]
    fake.drop_connections()
    for reply in replies:
        with pytest.raises(ConnectionLost):
            reply.result(after(5000))


@pytest.mark.parametrize(
    ("greeting", "words"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "HTTP"),
        (b"\x15\x03\x03\x00\x02\x02\x46", "TLS.*set security.protocol to SSL or SASL_SSL"),
        (b"\x7f\xff\xff\xff" + b"\0" * 16, "2147483647 bytes; the limit is max.response.bytes=104857600"),
        (b"\xff\xff\xff\xff" + b"\0" * 16, "announces -1 bytes"),
    ],
)
def test_peer_that_is_no_broker_is_recognised_at_once(greeting: bytes, words: str) -> None:
    with no_broker(greeting) as server, pytest.raises(FrameTooLarge, match=words):  # no `RequestTimedOut` after 5 s
        connect(server)


def test_reply_to_another_request_is_refused(fake: FakeKafka) -> None:
    fake.handlers[METADATA] = lambda body, version: b"\0\0\0\x08" + b"\0\0\x7f\xff" + b"\0" * 4
    connection = connect(fake)
    with pytest.raises(Corrupt, match="reply 32767 came, 1"):
        ask(connection).result(after(5000))
    assert connection.closed


def test_purposes_have_separate_connections_and_idle_ones_are_replaced(fake: FakeKafka) -> None:
    connections = pool(connections_max_idle_ms=50)
    first = connections.get(*fake.addresses[1], "fetch", after(2000))
    assert connections.get(*fake.addresses[1], "group", after(2000)) is not first
    replaced = lambda: connections.get(*fake.addresses[1], "fetch", after(2000)) is not first  # noqa: E731
    wait_until(replaced, every_s=0.06)
    assert first.closed


def test_connection_idle_for_too_long_is_closed_when_another_one_is_used(fake: FakeKafka) -> None:
    clock = ManualClock(1_000)
    with silent_kafka() as departed:
        connections = ConnectionPool(ClientConfig(bootstrap_servers=(("127.0.0.1", 1),)), clock)
        idle = connections.get(*departed.addresses[1], "fetch", after(2000))
        busy = connections.get(*departed.addresses[1], "group", after(2000))
        ask(busy, timeout_ms=60_000)  # gets no reply
        for _ in range(10):
            clock.advance(60)
            used = connections.get(*fake.addresses[1], "fetch", after(2000))
            used.last_used_s = clock.now_s()
            assert idle.closed == (clock.now_s() > 1_541)
    assert (len(connections), busy.closed, used.closed) == (2, False, False)


class TestWaitingThreads:
    """Several threads use one connection; each has its own deadline."""

    @pytest.fixture(autouse=True)
    def _silence_is_noticed_soon(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(byte_stream, "SILENCE_MS", 10)

    def test_waiter_times_out_while_another_thread_reads_longer(self, fake: FakeKafka) -> None:
        connection = connect(fake)
        patient, hasty = (ask(connection) for _ in range(2))
        with ThreadPoolExecutor() as threads:
            reading = threads.submit(patient.result, after(20_000))
            wait_for_a_reader(connection)
            started_s = time.monotonic()
            with pytest.raises(RequestTimedOut, match="no reply to Metadata v9 in time"):
                hasty.result(after(300))
            assert 0.25 < time.monotonic() - started_s < 15
            with pytest.raises(ConnectionLost, match="no reply to Metadata v9 in time; Metadata v9 was in flight"):
                reading.result(10)
        assert connection.closed

    def test_waiter_gets_its_reply_while_another_thread_continues_reading(self, fake: FakeKafka) -> None:
        release = threading.Event()

        def answer(body: dict[str, Any], version: int) -> dict[str, Any]:
            if body["topics"]:
                release.wait(20)
            return metadata("last" if body["topics"] else "first")

        fake.handlers[METADATA] = answer
        connection = connect(fake)
        first = ask(connection)
        last = ask(connection, "t")
        with ThreadPoolExecutor() as threads:
            reading = threads.submit(last.result, after(20_000))
            wait_for_a_reader(connection)
            assert first.result(after(5_000))["cluster_id"] == "first"
            assert not reading.done()
            release.set()
            assert reading.result(10)["cluster_id"] == "last"

    def test_waiter_takes_over_reading_when_the_reader_has_its_reply(self, fake: FakeKafka) -> None:
        release = threading.Event()

        def answer(body: dict[str, Any], version: int) -> dict[str, Any]:
            release.wait(20)
            return metadata("c")

        fake.handlers[METADATA] = answer
        connection = connect(fake)
        replies = [ask(connection) for _ in range(5)]
        with ThreadPoolExecutor() as threads:
            waiting = [threads.submit(reply.result, after(20_000)) for reply in replies]
            wait_for_a_reader(connection)
            release.set()
            assert [future.result(10)["cluster_id"] for future in waiting] == ["c"] * 5

    def test_send_behind_a_blocked_request_times_out(self, fake: FakeKafka, monkeypatch: pytest.MonkeyPatch) -> None:
        release = threading.Event()
        fake.handlers[METADATA] = lambda body, version: metadata(str(release.wait(20)))
        connection = connect(fake)
        ask(connection)
        large = ["t" * 20_000] * 2_000
        with ThreadPoolExecutor() as threads:
            begun, send = threading.Event(), connection.stream.send
            monkeypatch.setattr(connection.stream, "send", lambda *arguments: (begun.set(), send(*arguments))[1])
            sending = threads.submit(ask, connection, *large, timeout_ms=20_000)
            assert begun.wait(20)
            started_s = time.monotonic()
            with pytest.raises(RequestTimedOut, match=r"127\.0\.0\.1:\d+: Metadata v9 could not be sent in time"):
                ask(connection, timeout_ms=300)
            assert 0.25 < time.monotonic() - started_s < 15
            assert not connection.closed
            release.set()
            assert sending.result(20).result(after(20_000))["cluster_id"] == "True"


def wait_for_a_reader(connection: Connection) -> None:
    """Wait until a thread reads from the broker."""
    event = threading.Event()
    connection.stream.on_silence = lambda deadline: event.set()
    assert event.wait(10)


class TestReconnecting:
    def test_failed_address_is_retried_with_growing_delays(self) -> None:
        reachability = Reachability(50, 1_000)
        address, now_s, tries = ("b", 9092), 100.0, []
        while now_s < 110:
            if reachability.current_backoff(address, now_s) is None:
                tries.append(now_s)
                for _ in range(3):
                    reachability.failed(address, ConnectFailed("b:9092: refused"), now_s)
            now_s += 0.001
        waits = [after - before for before, after in pairwise(tries)]
        for wait, expected in zip(waits, [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0], strict=False):
            assert expected * 0.8 <= wait <= expected * 1.2 + 0.002
        reachability.answered(address)
        assert reachability.current_backoff(address, now_s) is None
        assert reachability.failures(address) == 0

    @pytest.fixture
    def dead_address(self) -> Iterator[tuple[str, int]]:
        with kept_port() as closed_port:
            yield closed_port.getsockname()

    def test_connect_during_reconnect_backoff_fails_at_once_with_the_reason(
        self, dead_address: tuple[str, int]
    ) -> None:
        host, port = dead_address
        clock = ManualClock(1_000)
        connections = ConnectionPool(
            ClientConfig((("127.0.0.1", 1),), reconnect_backoff_ms=60_000, reconnect_backoff_max_ms=120_000), clock
        )
        with pytest.raises(ConnectFailed, match="refused"):
            connections.get(host, port, "control", after(5_000))
        with pytest.raises(
            ConnectFailed, match=rf"{host}:{port}: in back-off for another \d+ ms after a failure .*refused"
        ):
            connections.get(host, port, "fetch", after(5_000))
        clock.advance(75)
        with pytest.raises(ConnectFailed, match="cannot connect"):
            connections.get(host, port, "fetch", after(5_000))
        clock.advance(90)
        with pytest.raises(ConnectFailed, match="in back-off for another"):
            connections.get(host, port, "fetch", after(5_000))

    def test_returned_broker_is_used_and_its_failures_are_forgotten(self, fake: FakeKafka) -> None:
        fake.handlers[METADATA] = lambda body, version: metadata("c")
        clock, address = ManualClock(1_000), fake.addresses[1]
        connections = ConnectionPool(ClientConfig((address,)), clock)
        lost = connections.get(*address, "control", Deadline.after_ms(5_000, clock))
        fake.drop_connections()
        with pytest.raises(ConnectionLost):
            ask(lost).result(after(5_000))
        assert connections.failed_at_s(*address) > 0
        clock.advance(1)
        connections.get(*address, "control", Deadline.after_ms(5_000, clock))
        assert connections.failed_at_s(*address) < 0


def test_idle_connection_to_a_departed_broker_is_closed_soon(fake: FakeKafka) -> None:
    clock, address = ManualClock(), fake.addresses[1]
    connections = ConnectionPool(ClientConfig((address,)), clock)
    connection = connections.get(*address, "control", Deadline.after_ms(5_000, clock))
    clock.advance(4)
    assert connections.close_departed([address]) == {address}, "a caller may be about to use the connection"
    clock.advance(2)
    assert connections.close_departed([]) == set()
    assert not connection.closed
    assert connections.close_departed([address]) == set()
    assert (connection.closed, len(connections)) == (True, 0)


def test_connection_on_which_a_fake_broker_was_silent_is_reset() -> None:
    """Replies are ordered: a later one would be taken for the one that was lost."""
    with FakeKafka() as fake:
        connection = connect(fake)
        fake.silence(1)
        first = ask(connection)
        wait_until(lambda: any(api == "Metadata" for api, _, _ in fake.requests))
        fake.silence(1, silent=False)
        with pytest.raises(ConnectionLost):
            ask(connection).result(after(5000))
        with pytest.raises(ConnectionLost):
            first.result(after(5000))
