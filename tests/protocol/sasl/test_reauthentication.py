"""Sessions that expire (KIP-368): reading and writing continue on the same connections, without loss or duplicates."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from protocol.config import parse_consumer, parse_producer
from protocol.fetch.consumer import Consumer
from protocol.kafka_terms import EARLIEST
from protocol.producer.producer import Producer
from spark_kafka_source.local_kafka.users import sasl_properties
from tests.conftest import topic_factory
from tests.protocol.producer.producing import send_numbered
from tests.protocol.sasl.conftest import ClientFactory
from tests.protocol.sasl.test_real_broker import failed_logins, right, token_for
from tests.support.background import background
from tests.support.secured_kafka import USERS, SecuredKafka
from tests.support.soak import SOAK

pytestmark = [pytest.mark.soak, pytest.mark.kafka]

RUN_S = 60.0 if SOAK else 5.0
WAYS = {
    "a session of 2 s": (right("PLAIN"), "SHORT"),
    "a token of 5 s": (token_for("alice", lifetime_s=5), "SASL_SSL"),
}


@pytest.mark.parametrize("way", WAYS)
def test_reads_and_writes_continue_across_sessions(
    secured: SecuredKafka, client: ClientFactory, caplog: pytest.LogCaptureFixture, way: str
) -> None:
    new_topic = next(factory := topic_factory(secured.kafka))
    properties, listener = WAYS[way]
    for _ in range(3):
        topic, asking = new_topic(2), client(properties, listener)
        caplog.clear()
        with caplog.at_level(logging.DEBUG, "protocol.net.connection"):
            count, read = write_and_read(asking, topic)
        assert sorted(read) == list(range(count))
        opened, authentications = (
            sum(": sent " in line and text in line for line in caplog.messages)
            for text in (" correlation id 0,", " SaslHandshake ")
        )
        # On a busy machine a request may be in flight when its session expires, which closes the connection.
        if opened <= 3:
            break
    for _ in factory:
        pass
    # Three connections, for metadata, fetch and produce, each for the whole time.
    assert opened == 3
    assert authentications > opened + RUN_S / 5


def write_and_read(asking: object, topic: str) -> tuple[int, list[int]]:
    """Write records and read them meanwhile; return the number written and the numbers read."""
    read: list[int] = []
    written = [0]
    until_s = time.monotonic() + RUN_S

    def write() -> None:
        producer = Producer(asking, parse_producer({"batch.size": "2000"}))  # type: ignore[arg-type]
        while time.monotonic() < until_s:
            send_numbered(producer, topic, written[0], 100, 2)
            written[0] += 100
            producer.flush()
        producer.close()

    with Consumer(asking, parse_consumer({})) as consumer:  # type: ignore[arg-type]
        for partition in range(2):
            consumer.consume_partition(topic, partition, EARLIEST)
        with background(write):
            drain(consumer, read, lambda: time.monotonic() < until_s)
        deadline_s = time.monotonic() + 20
        drain(consumer, read, lambda: len(read) < written[0] and time.monotonic() < deadline_s)
    return written[0], read


def drain(consumer: Consumer, read: list[int], go_on: Callable[[], bool]) -> None:
    while go_on():
        consumers = consumer.poll(timeout_ms=100)
        if consumers is not None:
            read.extend(int(value[:9]) for value in consumers[1].column("value").to_pylist())


def let_broker_accept_reauthentication() -> None:
    """Wait for more than a second: within one, a broker rejects reauthentication."""
    time.sleep(1.1)


def test_another_user_authenticates_on_a_new_connection(
    client: ClientFactory, secured: SecuredKafka, tmp_path: Path
) -> None:
    """As after a rotation of secrets that changes the user: a broker rejects a new user on an open session."""
    name_file, password_file = (f"${{dir:{tmp_path}:{name}}}" for name in ("username", "password"))

    def signs_in(name: str) -> None:
        (tmp_path / "username").write_text(name)
        (tmp_path / "password").write_text(USERS[name])

    signs_in("carol")
    asking = client(sasl_properties("PLAIN", name_file, password_file), "SHORT")
    asking.metadata([])
    (connection,) = asking.pool.connections.values()
    before = failed_logins(secured.kafka)
    signs_in("bob")
    connection.reauthenticate_at_s = 0
    let_broker_accept_reauthentication()
    assert asking.metadata([]).brokers.keys() == {1}
    assert connection.closed
    assert failed_logins(secured.kafka) == before
