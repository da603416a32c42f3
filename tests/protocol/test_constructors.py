"""Clients, consumers and producers are constructed from properties, keyword arguments or a shared client."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

import protocol
from protocol.errors import ConfigurationError, UsageError
from tests.support.process_connections import connections_to
from tests.support.small_cluster import SmallCluster
from tests.support.wait_until import wait_until


@pytest.fixture
def fake() -> Iterator[SmallCluster]:
    with SmallCluster() as fake:
        yield fake


def assign(consumer: protocol.KafkaConsumer) -> None:
    consumer.assign([("orders", 0)])
    consumer.poll(timeout_ms=0)


USES: dict[str, Callable[[Any], object]] = {
    "Admin": lambda admin: admin.list_topics(),
    "Consumer": lambda consumer: consumer.consume_partition("orders", 0),
    "ConsumerGroup": lambda group: None,
    "KafkaConsumer": assign,
    "Producer": lambda producer: producer.send_and_wait("orders", b"1"),
    "TransactionalProducer": lambda producer: producer.init_transactions(),
}
PROPERTIES = {"ConsumerGroup": {"group.id": "g"}, "TransactionalProducer": {"transactional.id": "t"}}


@pytest.mark.parametrize("name", USES)
def test_own_client_is_closed_with_its_user(fake: SmallCluster, name: str) -> None:
    connections = connections_to(fake.bootstrap_servers)
    properties = {"bootstrap.servers": fake.bootstrap_servers, **PROPERTIES.get(name, {})}
    with getattr(protocol, name)(properties) as user:
        USES[name](user)
        wait_until(lambda: connections() or name == "ConsumerGroup")
    wait_until(lambda: not connections())


@pytest.mark.parametrize("name", USES)
def test_keywords_are_properties_with_underscores_for_dots(fake: SmallCluster, name: str) -> None:
    values = {key.replace(".", "_"): value for key, value in PROPERTIES.get(name, {}).items()}
    with getattr(protocol, name)(bootstrap_servers=fake.bootstrap_servers, **values) as user:
        USES[name](user)


@pytest.mark.parametrize(
    "call",
    [*(getattr(protocol, name) for name in USES), lambda text: protocol.read(text, "orders"),
     lambda text: protocol.write(text, "orders", pa.table({"value": ["1"]}))],
    ids=[*USES, "read", "write"],
)  # fmt: skip
def test_address_in_place_of_properties_is_refused(call: Callable[[Any], object]) -> None:
    with pytest.raises(UsageError, match=r"^the properties are a str; give a dict, such as .*bootstrap.servers"):
        call("127.0.0.1:9092")


@pytest.mark.parametrize("name", sorted(set(USES) - {"Admin"}))
def test_shared_client_stays_open(fake: SmallCluster, name: str) -> None:
    with protocol.Client(bootstrap_servers=fake.bootstrap_servers) as client:
        with getattr(protocol, name)(client, PROPERTIES.get(name)) as user:
            USES[name](user)
        assert client.metadata(["orders"])


@pytest.mark.parametrize("name", [*USES, "OffsetManager"])
def test_closed_shared_client_is_refused_at_construction(name: str) -> None:
    client = protocol.Client(bootstrap_servers="127.0.0.1:1")
    assert not client.closed
    client.close()
    assert client.closed
    properties: object = "g" if name == "OffsetManager" else PROPERTIES.get(name)
    with pytest.raises(UsageError, match="this client is closed"):
        getattr(protocol, name)(*(client,) if name == "Admin" else (client, properties))


@pytest.mark.parametrize("name", [*USES, "Client"])
def test_missing_address_and_wrong_value_are_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match=r"bootstrap\.servers is missing"):
        getattr(protocol, name)(PROPERTIES.get(name))
    with pytest.raises(ConfigurationError, match=r"request\.timeout\.ms is 'soon'"):
        getattr(protocol, name)(PROPERTIES.get(name), bootstrap_servers="127.0.0.1:1", request_timeout_ms="soon")
