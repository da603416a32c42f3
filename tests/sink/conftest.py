"""An in-memory cluster with a topic, an exactly-once query that writes to it, and a new process for each test."""

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
def query(cluster: FakeKafka) -> Query:
    return Query(cluster.bootstrap_servers)


@pytest.fixture(autouse=True)
def _reset_process() -> Iterator[None]:
    PROCESS.reset()
    yield
    PROCESS.reset()
