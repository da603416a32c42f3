"""Fixtures of the consumer tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from protocol.cluster.client import Client
from protocol.fetch.consumer import Consumer
from protocol.testing.fake_kafka.server import FakeKafka
from spark_kafka_source.local_kafka import LocalKafka
from tests.conftest import TopicFactory
from tests.protocol.fetch.consuming import TOPIC_ID, client_of, consumer_of, produce, records

Written = Callable[..., str]


@pytest.fixture(scope="module")
def client(kafka: LocalKafka) -> Iterator[Client]:
    with client_of(kafka) as made:
        yield made


@pytest.fixture
def written(kafka: LocalKafka, topic: TopicFactory) -> Written:
    """Return `written(records, partitions=1, size=10, settings=None) -> name`, for topics with records."""

    def create(records: int, partitions: int = 1, **options: Any) -> str:
        name = topic(partitions)
        produce(kafka, name, range(records), partitions, **options)
        return name

    return create


@pytest.fixture
def fake() -> Iterator[FakeKafka]:
    """Yield a broker with offsets 0 to 4 of orders-0 and orders-1."""
    with FakeKafka() as fake:
        fake.create_topic("orders", 2, topic_id=TOPIC_ID)
        for partition in range(2):
            fake.write("orders", partition, records(0, 5))
        yield fake


@pytest.fixture
def fake_client(fake: FakeKafka) -> Iterator[Client]:
    """Yield a client of `fake` with short back-offs."""
    with client_of(fake.bootstrap_servers, retry_backoff_ms=5, retry_backoff_max_ms=10) as client:
        yield client


@pytest.fixture
def consumer(fake_client: Client) -> Iterator[Consumer]:
    """Yield a consumer of `fake`."""
    with consumer_of(fake_client, {"fetch.max.wait.ms": 20}) as consumer:
        yield consumer
