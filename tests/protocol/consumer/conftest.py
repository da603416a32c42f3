"""Consumers in groups of a real Kafka, in both group protocols."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import pytest

from protocol import Client, KafkaConsumer
from protocol.group.commits.committed_offsets import fetch_offsets
from protocol.testing import FakeKafka
from protocol.testing.fake_kafka import consumer_group as fake_consumer_group
from spark_kafka_source.local_kafka import LocalKafka
from tests.conftest import NEEDS_KIP_848, TopicFactory, topic_factory
from tests.protocol.consumer.members import Member, consumer_of
from tests.protocol.fetch.consuming import client_of
from tests.support.small_cluster import SmallCluster

_CLASSIC: dict[str, object] = {"group.protocol": "classic", "heartbeat.interval.ms": 100}
EAGER = {**_CLASSIC, "partition.assignment.strategy": "range"}
COOPERATIVE = {**_CLASSIC, "partition.assignment.strategy": "cooperative-sticky"}
KIP_848: dict[str, object] = {"group.protocol": "consumer"}

PROTOCOLS = pytest.mark.parametrize("protocol", [EAGER, COOPERATIVE, KIP_848], ids=["eager", "cooperative", "kip848"])

NewConsumer = Callable[..., KafkaConsumer]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[SmallCluster]:
    """Yield a cluster with topics `orders` and `returns`, whose coordinator gets a heartbeat every 100 ms (KIP-848)."""
    monkeypatch.setattr(fake_consumer_group, "HEARTBEAT_INTERVAL_MS", 100)
    with SmallCluster("orders", "returns") as fake:
        yield fake


@pytest.fixture
def fake_client(fake: FakeKafka) -> Iterator[Client]:
    """Yield a client of `fake`."""
    with client_of(fake.bootstrap_servers) as client:
        yield client


@pytest.fixture(scope="module")
def client(kafka1: LocalKafka) -> Iterator[Client]:
    with client_of(kafka1, metadata_max_age_ms=1_000) as client:
        yield client


@pytest.fixture(scope="module")
def lasting_topic(kafka1: LocalKafka) -> Iterator[TopicFactory]:
    """As `topic1`, for all tests of a file."""
    yield from topic_factory(kafka1)


@pytest.fixture(
    params=[EAGER, COOPERATIVE, pytest.param(KIP_848, marks=NEEDS_KIP_848)], ids=["eager", "cooperative", "kip848"]
)
def protocol(request: pytest.FixtureRequest) -> dict[str, object]:
    """Return properties of each kind of rebalance."""
    return dict(request.param)


@pytest.fixture
def group(client: Client) -> str:
    """Return a new group id. Its coordinator is ready: a broker creates `__consumer_offsets` for its first group."""
    name = f"group-{uuid.uuid4().hex[:10]}"
    fetch_offsets(client, name, None, client.deadline())
    return name


@pytest.fixture
def new_consumer(client: Client, group: str) -> Iterator[NewConsumer]:
    """Yield `new_consumer(**{"auto.offset.reset": "latest"})`, in the test's group; by default it starts at the
    earliest offset."""
    with ExitStack() as consumers:
        yield lambda **properties: consumers.enter_context(consumer_of(client, group=group, **properties))


@pytest.fixture
def new_member(client: Client, group: str) -> Iterator[Callable[..., Member]]:
    """Yield `new_member("orders", **properties)`, in the test's group."""
    with ExitStack() as members:
        yield lambda topic, **properties: members.enter_context(closing(Member(client, group, topic, **properties)))
