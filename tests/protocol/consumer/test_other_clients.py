"""One group of this project's two consumers and another client's: each record is handled by the owner of its
partition."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

import confluent_kafka
import pytest

from protocol import Client
from spark_kafka_source.local_kafka import LocalKafka
from tests import sarama
from tests.conftest import NEEDS_KIP_848, TopicFactory
from tests.protocol.consumer.conftest import COOPERATIVE, EAGER, KIP_848, NewConsumer
from tests.protocol.consumer.members import Member, Polling, Watch
from tests.protocol.fetch.consuming import produce
from tests.support.console_consumer import ConsoleConsumer
from tests.support.wait_until import wait_until

PARTITIONS, COUNT = 6, 600


class Other(Protocol):
    """Another client's member of the group."""

    def close(self) -> list[bytes]:
        """Leave the group; return the values received."""


class Librdkafka:
    def __init__(self, kafka: LocalKafka, topic: str, group: str, properties: dict[str, object]) -> None:
        settings = {"bootstrap.servers": kafka.bootstrap_servers, "group.id": group, "log_level": 0, **properties}
        self._consumer = confluent_kafka.Consumer(
            {**settings, "auto.offset.reset": "earliest", "auto.commit.interval.ms": 100}
        )
        self._consumer.subscribe([topic])
        self._closing = threading.Event()
        self._given: list[bytes] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._closing.is_set():
            if (message := self._consumer.poll(0.05)) is not None:
                assert message.error() is None
                self._given.append(message.value())
        self._consumer.close()

    def close(self) -> list[bytes]:
        self._closing.set()
        self._thread.join(20)
        return self._given


@pytest.fixture
def other_client(kafka1: LocalKafka, group: str) -> Callable[[str, str], Other]:
    def start(kind: str, topic: str) -> Other:
        if kind == "sarama":
            return sarama.GroupMember(sarama.build(), kafka1, topic, group)
        if kind == "java":
            return ConsoleConsumer(kafka1, topic, group)
        if kind == "java, kip848":
            return ConsoleConsumer(kafka1, topic, group, group_protocol="consumer")
        return Librdkafka(kafka1, topic, group, {"eager": EAGER, "cooperative": COOPERATIVE, "kip848": KIP_848}[kind])

    return start


@pytest.mark.parametrize(
    ("protocol", "kind"),
    [
        (EAGER, "eager"),
        (COOPERATIVE, "cooperative"),
        pytest.param(KIP_848, "kip848", marks=NEEDS_KIP_848),
        (EAGER, "java"),
        pytest.param(KIP_848, "java, kip848", marks=NEEDS_KIP_848),
        (EAGER, "sarama"),
    ],
    indirect=["protocol"],
    ids=["librdkafka, eager", "librdkafka, cooperative", "librdkafka, kip848", "java", "java, kip848", "sarama"],
)
def test_records_are_shared_with_other_clients(
    kafka1: LocalKafka,
    client: Client,
    topic1: TopicFactory,
    group: str,
    new_member: Callable[..., Member],
    new_consumer: NewConsumer,
    other_client: Callable[[str, str], Other],
    protocol: dict[str, object],
    kind: str,
) -> None:
    name, watch = topic1(PARTITIONS), Watch(kafka1, client, group)
    produce(kafka1, name, range(COUNT // 2), PARTITIONS)
    handler = new_member(name, **protocol)
    wait_until(lambda: len(handler.handled) > COUNT // 10)
    reference = other_client(kind, name)
    polling = Polling(new_consumer(**protocol, **{"enable.auto.commit": True, "auto.commit.interval.ms": 100}), name)
    try:
        wait_until(lambda: [len(numbers) for numbers in watch.owned()] == [2, 2, 2], watch.owned)
        handler.close()  # the other client may lead from now on
        wait_until(lambda: [len(numbers) for numbers in watch.owned()] == [3, 3], watch.owned)
        produce(kafka1, name, range(COUNT // 2, COUNT), PARTITIONS)
        wait_until(lambda: watch.owned() and watch.committed == COUNT, lambda: watch.committed)
    finally:
        values = reference.close()
    wait_until(lambda: [len(numbers) for numbers in watch.owned()] == [PARTITIONS], watch.owned)
    polling.close()
    polled = [message.value for message in polling.messages]
    assert sorted(handler.values + polled + values) == [b"%09d." % number for number in range(COUNT)]
    assert values
    assert polled
    assert handler.errors == []
