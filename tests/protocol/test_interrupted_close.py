"""Ctrl-C while a client closes: nothing of it is left behind, and a second `close` returns."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress

import pytest

from protocol.admin import Admin
from protocol.consumer_group.kafka_consumer import KafkaConsumer
from protocol.producer.producer import Producer
from protocol.producer.transactional_producer import TransactionalProducer
from protocol.testing.fake_kafka.server import FakeKafka
from tests.protocol.consumer_group.conftest import EAGER, KIP_848
from tests.support.interrupts import interrupted_at
from tests.support.wait_until import wait_until

Closable = KafkaConsumer | Producer | TransactionalProducer
_GROUP = "etl"
# Interrupt at every `_STEP`-th place.
_STEP = 7


@pytest.fixture
def fake() -> Iterator[FakeKafka]:
    with FakeKafka() as fake:
        fake.create_topic("orders")
        yield fake


def consumer_of(protocol: dict[str, object]) -> Callable[[Mapping[str, object]], Closable]:
    def open_consumer(given: Mapping[str, object]) -> Closable:
        consumer = KafkaConsumer({**given, "group.id": _GROUP, "auto.offset.reset": "earliest", **protocol})
        consumer.subscribe(["orders"])
        wait_until(lambda: consumer.poll(50) or consumer.assignment, every_s=0)
        return consumer

    return open_consumer


def producer_of(given: Mapping[str, object]) -> Closable:
    producer = Producer({**given, "linger.ms": 60_000})
    producer.send("orders", b"value")
    return producer


def transactional_producer_of(given: Mapping[str, object]) -> Closable:
    producer = TransactionalProducer({**given, "transactional.id": "x"})
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("orders", b"value")
    return producer


@pytest.mark.parametrize(
    "open_client",
    [consumer_of(EAGER), consumer_of(KIP_848), producer_of, transactional_producer_of],
    ids=["eager", "kip848", "producer", "transactional"],
)
def test_interrupted_close_leaves_no_thread_connection_or_member(
    fake: FakeKafka, open_client: Callable[[Mapping[str, object]], Closable]
) -> None:
    given = {"bootstrap.servers": fake.bootstrap_servers}
    with Admin(given) as admin:
        admin.describe_groups([_GROUP])
        others = set(threading.enumerate())
        place, reached = 1, True
        while reached:
            opened = open_client(given)
            pool = opened._client.pool
            with suppress(KeyboardInterrupt), interrupted_at(place, ("protocol.",)) as was_reached:
                opened.close()
            reached = was_reached()
            opened.close()
            wait_until(lambda: set(_client_threads()) <= others, lambda: str(_client_threads()))
            assert len(pool) == 0, place
            assert not admin.describe_groups([_GROUP])[_GROUP].members, place
            place += _STEP
    assert place > 100, "the close was interrupted"


def _client_threads() -> list[threading.Thread]:
    """Threads but those of the fake broker."""
    return [thread for thread in threading.enumerate() if "(_serve)" not in thread.name]
