"""One contract for two clusters: each test here runs with the model and with a real broker.

Other tests must not rely on behaviour of the model that these tests do not cover.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator

import pytest

from protocol.admin.groups import describe_group
from protocol.cluster.client import Client
from protocol.config import parse_client
from protocol.testing.fake_kafka.server import FakeKafka
from spark_kafka_source.local_kafka import LocalKafka
from tests.contract.members import GroupMember, new_group, stable
from tests.contract.transactions import TransactionalProducer

NewTopic = Callable[..., str]

FAKE, REAL = "fake", "real"


@pytest.fixture(params=[FAKE, pytest.param(REAL, marks=pytest.mark.kafka)])
def cluster_kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def fake() -> Iterator[FakeKafka]:
    with FakeKafka() as kafka:
        yield kafka


@pytest.fixture(scope="session")
def real(kafka1: LocalKafka) -> LocalKafka:
    """Return a real Kafka once its coordinators have loaded their state; before, they refuse requests."""
    with Client(parse_client({"bootstrap.servers": kafka1.bootstrap_servers})) as client:
        for _ in range(16):
            describe_group(client, new_group())
            TransactionalProducer(client).init()
    return kafka1


@pytest.fixture
def bootstrap_servers(cluster_kind: str, request: pytest.FixtureRequest) -> str:
    """Return the address of one broker."""
    kafka = request.getfixturevalue("fake" if cluster_kind == FAKE else "real")
    return str(kafka.bootstrap_servers)


@pytest.fixture
def new_topic(cluster_kind: str, request: pytest.FixtureRequest) -> NewTopic:
    """Return a function that creates topics: `new_topic(partitions=1, config=None) -> name`."""
    if cluster_kind == REAL:
        return request.getfixturevalue("topic1")  # type: ignore[no-any-return]
    kafka: FakeKafka = request.getfixturevalue("fake")

    def create(partitions: int = 1, config: dict[str, str] | None = None) -> str:
        return kafka.create_topic(f"topic-{uuid.uuid4().hex[:10]}", partitions, config=config).name

    return create


@pytest.fixture
def name(new_topic: NewTopic) -> str:
    """Return the name of a new topic with one partition."""
    return new_topic()


@pytest.fixture
def group() -> str:
    """Return the id of a group that does not exist yet."""
    return new_group()


@pytest.fixture
def client(bootstrap_servers: str) -> Iterator[Client]:
    with Client(parse_client({"bootstrap.servers": bootstrap_servers})) as client:
        yield client


@pytest.fixture
def member(client: Client) -> GroupMember:
    """Return the only member of a new classic group, which is stable."""
    return stable(client, new_group())[0]
