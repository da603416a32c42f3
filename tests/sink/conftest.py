"""An in-memory cluster with a topic, and an exactly-once query that writes to it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from protocol.testing.fake_kafka.server import FakeKafka
from spark_kafka_source.process_state import PROCESS
from tests.support.exactly_once_query import TOPIC, Query


@pytest.fixture(params=["2", "1"], ids=["transaction.version 2", "transaction.version 1"])
def cluster(request: pytest.FixtureRequest) -> Iterator[FakeKafka]:
    with FakeKafka(settings={"transaction.version": request.param}) as cluster:
        cluster.create_topic(TOPIC)
        yield cluster


@pytest.fixture
def query(cluster: FakeKafka) -> Iterator[Query]:
    yield Query(cluster.bootstrap_servers)
    PROCESS.reset()
