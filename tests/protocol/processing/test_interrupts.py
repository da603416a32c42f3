"""Ctrl-C in waits of `Processor.run`, and other ends of it."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Collection, Iterator
from typing import Any

import pytest

from protocol import ConsumerRebalanceListener, KafkaConsumer, Processor, TopicPartition
from protocol.errors import DeadlineExceeded, KafkaError, UsageError, WakeUp
from protocol.fetch.partition_consumer import ConsumerMessage
from protocol.processing.consumer_loop import ConsumerLoop
from protocol.processing.failures import NO_RETRIES
from protocol.testing import FakeKafka
from tests.support.background import background
from tests.support.forked_child import check_in_child
from tests.support.wait_until import wait_until

pytestmark = pytest.mark.soak


@pytest.fixture
def fake() -> Iterator[FakeKafka]:
    with FakeKafka() as fake:
        fake.create_topic("orders")
        fake.create_topic("failed")
        fake.produce("orders", *["value"] * 8)
        yield fake


@pytest.fixture
def properties(fake: FakeKafka) -> dict[str, object]:
    """Return properties of a member of the group "etl" that commits what the test says."""
    member = {"group.id": "etl", "auto.offset.reset": "earliest", "enable.auto.commit": False}
    return {"bootstrap.servers": fake.bootstrap_servers, **member}


def test_consumer_given_to_a_processor_that_cannot_dispatch_reads_all_records(
    fake: FakeKafka, properties: dict[str, object]
) -> None:
    fake.create_topic("other", 2)
    for partition in range(2):
        fake.produce("other", *["value"] * 3, partition=partition)
    with KafkaConsumer(properties, columns=["offset", "value"]) as consumer:
        consumer.assign([("other", 0), ("other", 1)])
        with pytest.raises(UsageError, match="needs the column key"):
            Processor(consumer, lambda message: None).run()
        offsets: list[int] = []

        def poll() -> bool:
            batches = [batch for several in consumer.poll(100).values() for batch in several]
            offsets.extend(offset for batch in batches for offset in batch["offset"].to_pylist())
            return len(offsets) >= 6

        wait_until(poll)
        assert sorted(offsets) == [0, 0, 1, 1, 2, 2]


def test_consumer_is_given_back_without_the_listener_of_the_processor(
    properties: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    assigned: list[object] = []
    monkeypatch.setattr(ConsumerLoop, "assigned", lambda loop, partitions: assigned.append(partitions))
    with KafkaConsumer(properties) as consumer:
        processor = Processor(consumer, lambda message: processor.close(), ["orders"])
        processor.run()
        assert len(assigned) == 1
        consumer.enforce_rebalance()
        wait_until(lambda: consumer.poll(100))
        assert len(assigned) == 1


def test_signal_handler_that_closes_the_processor_ends_run(fake: FakeKafka, properties: dict[str, object]) -> None:
    def handle(message: ConsumerMessage) -> None:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    processor = Processor(properties, handle, ["orders"])
    former = signal.signal(signal.SIGUSR1, lambda *_: processor.close())
    try:
        processor.run()
    finally:
        signal.signal(signal.SIGUSR1, former)
    assert fake.committed_offsets("etl")["orders", 0] > 0


def test_processor_is_refused_in_a_forked_child(properties: dict[str, object]) -> None:
    running = threading.Event()
    processor = Processor(properties, lambda message: running.set(), ["orders"])

    def check() -> None:
        with pytest.raises(UsageError, match="before a fork"):
            processor.close()

    with background(processor.run):
        assert running.wait(20)
        check_in_child(check)
        processor.close()


def test_commit_of_a_listener_includes_no_record_whose_handler_still_runs(
    fake: FakeKafka, properties: dict[str, object]
) -> None:
    release, begun, revoked = threading.Event(), threading.Event(), threading.Event()

    class Committing(ConsumerRebalanceListener):
        def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None:
            consumer.commit_sync()
            revoked.set()

    def handle(message: ConsumerMessage) -> None:
        begun.set()
        release.wait(60)

    with KafkaConsumer(properties) as consumer, KafkaConsumer(properties) as joining:
        processor = Processor(consumer, handle, ["orders"], listener=Committing(), drain_timeout_ms=100)
        with background(processor.run):
            assert begun.wait(20)
            joining.subscribe(["orders"])
            wait_until(lambda: joining.poll(20) or revoked.is_set())
            release.set()
            processor.close()
        assert not fake.committed_offsets("etl").get(("orders", 0))


@pytest.mark.parametrize("kind", [WakeUp, DeadlineExceeded])
def test_exception_of_the_listener_that_poll_also_raises_ends_run(
    properties: dict[str, object], kind: type[KafkaError]
) -> None:
    class Raising(ConsumerRebalanceListener):
        def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
            raise kind("as if")

    processor = Processor(properties, lambda message: None, ["orders"], listener=Raising())
    with pytest.raises(kind, match="as if"):
        processor.run()


@pytest.mark.parametrize("kind", [SystemExit, ZeroDivisionError])
def test_exception_in_the_thread_of_another_consumer_is_raised(
    fake: FakeKafka, properties: dict[str, object], kind: type[BaseException]
) -> None:
    class Raising(ConsumerRebalanceListener):
        def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
            if threading.current_thread().name == "processor-consumer-2":
                raise kind

    fake.create_topic("wide", 4)
    processor = Processor(properties, lambda message: None, ["wide"], consumers=2, listener=Raising())
    with pytest.raises(kind):
        processor.run()


def test_close_does_not_wait_for_the_delivery_of_dead_letters(fake: FakeKafka, properties: dict[str, object]) -> None:
    fake.refuse("Produce", "NOT_ENOUGH_REPLICAS", 1_000_000)
    failed = threading.Event()

    def handle(message: ConsumerMessage) -> None:
        failed.set()
        raise ValueError("as if")

    options: dict[str, Any] = {"dead_letter_topic": "failed", "retry": NO_RETRIES, "drain_timeout_ms": 100}
    processor = Processor(properties, handle, ["orders"], **options)
    with background(processor.run):
        assert failed.wait(20)
        began_s = time.monotonic()
        processor.close()
        assert time.monotonic() - began_s < 20
    assert not fake.committed_offsets("etl").get(("orders", 0))
