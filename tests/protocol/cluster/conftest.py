"""A cluster of two brokers, and a client that knows only the first one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from protocol.cluster.client import Client
from protocol.config import ClientConfig
from protocol.testing.fake_kafka.server import FakeKafka


@pytest.fixture
def fake() -> Iterator[FakeKafka]:
    """Yield two brokers with replicas of orders-0; the first leads it."""
    with FakeKafka(2) as kafka:
        kafka.create_topic("orders", 1, 2)
        yield kafka


@pytest.fixture
def client(fake: FakeKafka) -> Iterator[Client]:
    with client_of(fake) as client:
        yield client


def client_of(kafka: FakeKafka, **settings: int) -> Client:
    """Return a client that knows only the first broker."""
    return Client(ClientConfig((kafka.addresses[1],), **settings))
