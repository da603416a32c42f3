"""Fixtures of the consumer tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from protocol.cluster.client import Client
from spark_kafka_source.local_kafka import LocalKafka
from tests.protocol.fetch.consuming import client_of


@pytest.fixture(scope="module")
def client(kafka: LocalKafka) -> Iterator[Client]:
    with client_of(kafka) as made:
        yield made
