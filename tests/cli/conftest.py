"""An in-memory cluster for commands."""

from __future__ import annotations

import pytest

from protocol.testing import FakeKafka


@pytest.fixture
def fake(kafka_fake: FakeKafka) -> FakeKafka:
    """Return a cluster with the empty topic `orders` of one partition."""
    kafka_fake.create_topic("orders", 1)
    return kafka_fake
