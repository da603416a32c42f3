"""A model of a cluster, with transactions before KIP-890 and since."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from protocol.cluster.client import Client
from protocol.config import parse_client
from protocol.producer.transactional_producer import TransactionalProducer
from protocol.testing.fake_kafka.clock import ManualClock
from protocol.testing.fake_kafka.server import FakeKafka
from tests.protocol.transaction.producing import MADE, started

QUICK = {"retry.backoff.ms": 10, "reconnect.backoff.ms": 0}


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    """Assert that producers that are closed or dropped leave no thread; close all others."""
    before = set(threading.enumerate())
    yield
    for producer in list(MADE):
        producer.abort()
    for thread in set(threading.enumerate()) - before:
        if thread.name.startswith("produce-"):
            thread.join(25)
            assert not thread.is_alive()


@pytest.fixture(params=["1", "2"], ids=["before KIP-890", "since KIP-890"])
def transaction_version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def clock() -> ManualClock:
    """Return the cluster's clock."""
    return ManualClock()


@pytest.fixture
def fake(transaction_version: str, clock: ManualClock) -> Iterator[FakeKafka]:
    """Yield three brokers; topic `orders` has three partitions."""
    with FakeKafka(3, clock=clock, settings={"transaction.version": transaction_version}) as fake:
        fake.create_topic("orders", 3)
        yield fake


@pytest.fixture
def client(fake: FakeKafka) -> Iterator[Client]:
    with Client(parse_client({"bootstrap.servers": fake.bootstrap_servers, **QUICK})) as client:
        yield client


@pytest.fixture
def producer(client: Client) -> TransactionalProducer:
    return started(client, "etl-0")
