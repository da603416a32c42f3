"""Ctrl-C in waits of `Processor.run`, and other ends of it."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Collection
from typing import Any

import pytest

from protocol import Client, ConsumerRebalanceListener, KafkaConsumer, Processor, TopicPartition
from protocol.errors import DeadlineExceeded, KafkaError, UsageError, WakeUp
from protocol.fetch.partition_consumer import ConsumerMessage
from protocol.processing.failures import NO_RETRIES
from protocol.testing import FakeKafka
from tests.protocol.processing.conftest import MANUAL_COMMIT, Committed, Write
from tests.support.background import background
from tests.support.forked_child import check_in_child
from tests.support.wait_until import wait_until

pytestmark = pytest.mark.soak


VALUES = [b"value"] * 8


def test_consumer_given_to_a_processor_that_cannot_dispatch_reads_all_records(client: Client, write: Write) -> None:
    for partition in (0, 1):
        write(VALUES, partition=partition)
    with KafkaConsumer(client, MANUAL_COMMIT, columns=["offset", "value"]) as consumer:
        consumer.assign([("orders", 0), ("orders", 1)])
        with pytest.raises(UsageError, match="needs the column key"):
            Processor(consumer, lambda message: None).run()
        offsets: list[int] = []

        def poll() -> bool:
            batches = [batch for several in consumer.poll(100).values() for batch in several]
            offsets.extend(offset for batch in batches for offset in batch["offset"].to_pylist())
            return len(offsets) >= 16

        wait_until(poll)
        assert sorted(offsets) == sorted([*range(8), *range(8)])


@pytest.fixture
def new_processor(client: Client, write: Write) -> Callable[..., Processor]:
    """Return `new_processor(handler, **options)`, for the eight records of orders-0."""
    write(VALUES)
    return lambda handler, **options: Processor(client, handler, ["orders"], config=MANUAL_COMMIT, **options)


def test_signal_handler_that_closes_the_processor_ends_run(
    new_processor: Callable[..., Processor], committed: Committed
) -> None:
    def handle(message: ConsumerMessage) -> None:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    processor = new_processor(handle)
    former = signal.signal(signal.SIGUSR1, lambda *_: processor.close())
    try:
        processor.run()
    finally:
        signal.signal(signal.SIGUSR1, former)
    assert committed()[0] > 0


def test_processor_is_refused_in_a_forked_child(new_processor: Callable[..., Processor]) -> None:
    running = threading.Event()
    processor = new_processor(lambda message: running.set())

    def check() -> None:
        with pytest.raises(UsageError, match="before a fork"):
            processor.close()

    with background(processor.run):
        assert running.wait(20)
        check_in_child(check)
        processor.close()


def test_commit_of_a_listener_includes_no_record_whose_handler_still_runs(
    client: Client, write: Write, committed: Committed
) -> None:
    write(VALUES)
    release, begun, revoked = threading.Event(), threading.Event(), threading.Event()

    class Committing(ConsumerRebalanceListener):
        def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None:
            consumer.commit_sync()
            revoked.set()

    def handle(message: ConsumerMessage) -> None:
        begun.set()
        release.wait(60)

    with KafkaConsumer(client, MANUAL_COMMIT) as consumer, KafkaConsumer(client, MANUAL_COMMIT) as joining:
        processor = Processor(consumer, handle, ["orders"], listener=Committing(), drain_timeout_ms=100)
        with background(processor.run):
            assert begun.wait(20)
            joining.subscribe(["orders"])
            wait_until(lambda: joining.poll(20) or revoked.is_set())
            release.set()
            processor.close()
        assert not committed().get(0)


@pytest.mark.parametrize("kind", [WakeUp, DeadlineExceeded])
def test_exception_of_the_listener_that_poll_also_raises_ends_run(
    new_processor: Callable[..., Processor], kind: type[KafkaError]
) -> None:
    class Raising(ConsumerRebalanceListener):
        def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
            raise kind("as if")

    processor = new_processor(lambda message: None, listener=Raising())
    with pytest.raises(kind, match="as if"):
        processor.run()


@pytest.mark.parametrize("kind", [SystemExit, ZeroDivisionError])
def test_exception_in_the_thread_of_another_consumer_is_raised(
    new_processor: Callable[..., Processor], kind: type[BaseException]
) -> None:
    class Raising(ConsumerRebalanceListener):
        def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
            if threading.current_thread().name == "processor-consumer-2":
                raise kind

    processor = new_processor(lambda message: None, consumers=2, listener=Raising())
    with pytest.raises(kind):
        processor.run()


def test_close_does_not_wait_for_the_delivery_of_dead_letters(
    fake: FakeKafka, new_processor: Callable[..., Processor], committed: Committed
) -> None:
    fake.refuse("Produce", "NOT_ENOUGH_REPLICAS", 1_000_000)
    failed = threading.Event()

    def handle(message: ConsumerMessage) -> None:
        failed.set()
        raise ValueError("as if")

    options: dict[str, Any] = {"dead_letter_topic": "dead", "retry": NO_RETRIES, "drain_timeout_ms": 100}
    processor = new_processor(handle, **options)
    with background(processor.run):
        assert failed.wait(20)
        began_s = time.monotonic()
        processor.close()
        assert time.monotonic() - began_s < 20
    assert not committed().get(0)
