"""Consumers that are members of groups, by both protocols, and what they have handled."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from protocol.cluster.client import Client
from protocol.consumer_group.config import parse_group_consumer
from protocol.consumer_group.consumer_group import ConsumerGroup
from protocol.consumer_group.kafka_consumer import KafkaConsumer
from protocol.consumer_group.session import ConsumerGroupClaim, ConsumerGroupSession
from protocol.group.membership.cause import Cause
from spark_kafka_source.local_kafka import LocalKafka
from spark_kafka_source.local_kafka.config import version_numbers
from tests.conftest import KAFKA_VERSION, TopicFactory, topic_factory
from tests.protocol.consumer.consuming import client_of

_CLASSIC: dict[str, object] = {"group.protocol": "classic", "heartbeat.interval.ms": 100}
EAGER = {**_CLASSIC, "partition.assignment.strategy": "range"}
COOPERATIVE = {**_CLASSIC, "partition.assignment.strategy": "cooperative-sticky"}
KIP_848: dict[str, object] = {"group.protocol": "consumer"}

NewConsumer = Callable[..., KafkaConsumer]


@pytest.fixture(scope="module")
def client(kafka1: LocalKafka) -> Iterator[Client]:
    with client_of(kafka1, metadata_max_age_ms=1_000) as client:
        yield client


@pytest.fixture(scope="module")
def lasting_topic(kafka1: LocalKafka) -> Iterator[TopicFactory]:
    """As `topic1`, for all tests of a file."""
    yield from topic_factory(kafka1)


@pytest.fixture(params=[EAGER, COOPERATIVE, KIP_848], ids=["eager", "cooperative", "kip848"])
def protocol(request: pytest.FixtureRequest) -> dict[str, object]:
    """How a group rebalances."""
    if request.param is KIP_848 and version_numbers(KAFKA_VERSION) < (4, 0):
        pytest.skip("the consumer protocol begins with Kafka 4.0")
    return dict(request.param)


@pytest.fixture
def group() -> str:
    return f"group-{uuid.uuid4().hex[:10]}"


@pytest.fixture
def new_consumer(client: Client, group: str) -> Iterator[NewConsumer]:
    """`new_consumer(**{"auto.offset.reset": "latest"})`: in the test's group, which begins at the earliest offset."""
    made: list[KafkaConsumer] = []

    def create(**properties: object) -> KafkaConsumer:
        given = {"group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": False, **properties}
        made.append(KafkaConsumer(client, parse_group_consumer(given)))
        return made[-1]

    yield create
    for consumer in made:
        consumer.close()


class Member:
    """A `ConsumerGroup` that consumes in a thread until it is closed, and notes what it sees: a handler, too."""

    def __init__(self, client: Client, group: str, topic: str, **properties: object) -> None:
        given = {"group.id": group, "auto.offset.reset": "earliest", "auto.commit.interval.ms": 100, **properties}
        self.errors: list[Exception] = []
        self.group = ConsumerGroup(client, parse_group_consumer(given), on_error=self.errors.append)
        self.setups: list[ConsumerGroupSession] = []
        self.cleanups: list[dict[str, list[int]]] = []
        self.claimed: list[tuple[int, int, int]] = []  # generation, partition, offset at which it began
        self.handled: list[tuple[int, int]] = []  # partition, offset
        self.causes: list[Cause] = []
        self.slow_s = 0.0
        self._topic = topic
        self._thread = threading.Thread(target=self._run, name=f"member of {group}")
        self._thread.start()

    def _run(self) -> None:
        while not self.group.closed:
            self.causes.append(self.group.consume([self._topic], self))

    def setup(self, session: ConsumerGroupSession) -> None:
        self.setups.append(session)

    def consume_claim(self, session: ConsumerGroupSession, claim: ConsumerGroupClaim) -> None:
        self.claimed.append((session.generation_id, claim.partition, claim.initial_offset))
        for message in claim.messages():
            time.sleep(self.slow_s)
            self.handled.append((claim.partition, message.offset))
            session.mark_message(message)

    def cleanup(self, session: ConsumerGroupSession) -> None:
        self.cleanups.append(session.claims)

    @property
    def numbers(self) -> list[int]:
        """The partitions that it has."""
        if not self.setups or self.setups[-1].ended.is_set():
            return []
        return [number for numbers in self.setups[-1].claims.values() for number in numbers]

    def close(self) -> None:
        self.group.close()
        self._thread.join(20)
        assert not self._thread.is_alive()


@pytest.fixture
def new_member(client: Client, group: str) -> Iterator[Callable[..., Member]]:
    """`new_member("orders", **properties)`, in the test's group."""
    made: list[Member] = []

    def create(topic: str, **properties: object) -> Member:
        made.append(Member(client, group, topic, **properties))
        return made[-1]

    yield create
    for member in made:
        member.close()


def wait_until(condition: Callable[[], Any], what: Callable[[], object] = lambda: "", timeout_s: float = 30) -> None:
    give_up_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < give_up_s, what()
        time.sleep(0.01)


def read(consumer: KafkaConsumer, count: int, timeout_s: float = 30) -> list[tuple[int, int]]:
    """So many records: partition and offset of each."""
    found: list[tuple[int, int]] = []
    wait_until(
        lambda: (
            found.extend((each.partition, each.offset) for each in consumer.poll(50).messages()) or len(found) >= count
        ),
        lambda: f"{len(found)} records of {count}",
        timeout_s,
    )
    return found
