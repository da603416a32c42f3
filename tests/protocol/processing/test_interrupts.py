"""Ctrl-C in waits of `Processor.run`, and other ends of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from protocol.admin import Admin
from protocol.broker_errors import ErrorCode
from protocol.consumer.kafka_consumer import KafkaConsumer
from protocol.consumer.rebalance_listener import ConsumerRebalanceListener
from protocol.errors import DeadlineExceeded, KafkaError, UsageError, WakeUp
from protocol.fetch.partition_consumer import ConsumerMessage
from protocol.kafka_terms import TopicPartition
from protocol.processing.consumer_loop import ConsumerLoop
from protocol.processing.failures import NO_RETRIES
from protocol.processing.processor import Processor
from protocol.producer.producer import Producer
from protocol.testing.fake_kafka.server import FakeKafka
from protocol.wire.messages.m00_produce import PRODUCE
from tests.support.forked_child import check_in_child
from tests.support.wait_until import wait_until

pytestmark = pytest.mark.soak

RECORDS = 8


@pytest.fixture
def fake() -> Iterator[FakeKafka]:
    with FakeKafka() as fake:
        fake.create_topic("orders")
        fake.create_topic("failed")
        with Producer({"bootstrap.servers": fake.bootstrap_servers}) as producer:
            for _ in range(RECORDS):
                producer.send("orders", b"value")
        yield fake


def properties_of(fake: FakeKafka, group: str) -> dict[str, object]:
    return {"bootstrap.servers": fake.bootstrap_servers, "group.id": group, "auto.offset.reset": "earliest"}


def test_consumer_given_to_a_processor_that_cannot_dispatch_reads_all_records(fake: FakeKafka) -> None:
    fake.create_topic("other", 2)
    for partition in range(2):
        fake.produce("other", *["value"] * 3, partition=partition)
    properties = {**properties_of(fake, "etl"), "enable.auto.commit": False}
    with KafkaConsumer(properties, columns=["offset", "value"]) as consumer:
        consumer.assign([("other", 0), ("other", 1)])
        with pytest.raises(UsageError, match="needs the column key"):
            Processor(consumer, lambda message: None).run()
        assert sorted(read_offsets(consumer, 6)) == [0, 0, 1, 1, 2, 2]


def read_offsets(consumer: KafkaConsumer, count: int) -> list[int]:
    """Return the offsets of this number of records."""
    collected: list[int] = []
    deadline = consumer.client.deadline(20_000)
    while len(collected) < count and not deadline.passed:
        for several in consumer.poll(100).values():
            collected += [offset for value in several for offset in value["offset"].to_pylist()]
    return collected


def test_consumer_is_given_back_without_the_listener_of_the_processor(
    fake: FakeKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    assigned: list[object] = []
    monkeypatch.setattr(ConsumerLoop, "assigned", lambda loop, partitions: assigned.append(partitions))
    with KafkaConsumer({**properties_of(fake, "etl"), "enable.auto.commit": False}) as consumer:
        processor = Processor(consumer, lambda message: processor.close(), ["orders"])
        processor.run()
        assert len(assigned) == 1
        consumer.enforce_rebalance()
        wait_until(lambda: consumer.poll(100))
        assert len(assigned) == 1


def test_processor_is_refused_in_a_forked_child(fake: FakeKafka) -> None:
    running = threading.Event()
    processor = Processor(properties_of(fake, "etl"), lambda message: running.set(), ["orders"])
    with ThreadPoolExecutor(1) as executor:
        ran = executor.submit(processor.run)
        assert running.wait(20)

        def check() -> None:
            with pytest.raises(UsageError, match="before a fork"):
                processor.close()

        check_in_child(check)
        processor.close()
        ran.result(20)


def test_commit_of_a_listener_includes_no_record_whose_handler_still_runs(fake: FakeKafka) -> None:
    release, begun, revoked = threading.Event(), threading.Event(), threading.Event()

    class Committing(ConsumerRebalanceListener):
        def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None:
            consumer.commit_sync()
            revoked.set()

    def handle(message: ConsumerMessage) -> None:
        begun.set()
        release.wait(60)

    properties = {**properties_of(fake, "etl"), "enable.auto.commit": False}
    with KafkaConsumer(properties) as consumer, KafkaConsumer(properties) as joining, ThreadPoolExecutor(1) as executor:
        processor = Processor(consumer, handle, ["orders"], listener=Committing(), drain_timeout_ms=100)
        ran = executor.submit(processor.run)
        assert begun.wait(20)
        joining.subscribe(["orders"])
        wait_until(lambda: joining.poll(20) or revoked.is_set())
        release.set()
        processor.close()
        ran.result(20)
        with Admin({"bootstrap.servers": fake.bootstrap_servers}) as admin:
            committed = admin.list_consumer_group_offsets("etl").get(("orders", 0))
    assert committed is None or committed.offset == 0


@pytest.mark.parametrize("kind", [WakeUp, DeadlineExceeded])
def test_exception_of_the_listener_that_poll_also_raises_ends_run(fake: FakeKafka, kind: type[KafkaError]) -> None:
    class Raising(ConsumerRebalanceListener):
        def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
            raise kind("as if")

    processor = Processor(properties_of(fake, "etl"), lambda message: None, ["orders"], listener=Raising())
    with pytest.raises(kind, match="as if"):
        processor.run()


@pytest.mark.parametrize("kind", [SystemExit, ZeroDivisionError])
def test_exception_in_the_thread_of_another_consumer_is_raised(fake: FakeKafka, kind: type[BaseException]) -> None:
    class Raising(ConsumerRebalanceListener):
        def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
            if threading.current_thread().name == "processor-consumer-2":
                raise kind

    fake.create_topic("wide", 4)
    properties = properties_of(fake, "etl")
    processor = Processor(properties, lambda message: None, ["wide"], consumers=2, listener=Raising())
    with pytest.raises(kind):
        processor.run()


def test_close_does_not_wait_for_the_delivery_of_dead_letters(fake: FakeKafka) -> None:
    fake.refuse(PRODUCE, ErrorCode.NOT_ENOUGH_REPLICAS, 1_000_000)
    failed = threading.Event()

    def handle(message: ConsumerMessage) -> None:
        failed.set()
        raise ValueError("as if")

    options: dict[str, Any] = {"dead_letter_topic": "failed", "retry": NO_RETRIES, "drain_timeout_ms": 100}
    processor = Processor(properties_of(fake, "etl"), handle, ["orders"], **options)
    with ThreadPoolExecutor(1) as executor:
        ran = executor.submit(processor.run)
        assert failed.wait(20)
        began_s = time.monotonic()
        processor.close()
        assert time.monotonic() - began_s < 20
        ran.result(20)
    with Admin({"bootstrap.servers": fake.bootstrap_servers}) as admin:
        committed = admin.list_consumer_group_offsets("etl").get(("orders", 0))
    assert committed is None or committed.offset == 0
