"""Ctrl-C in waits of `Processor.run`, and other ends of it."""

from __future__ import annotations

import signal
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
from protocol.group.membership.membership import Membership
from protocol.kafka_terms import TopicPartition
from protocol.processing.consumer_loop import ConsumerLoop
from protocol.processing.failures import NO_RETRIES
from protocol.processing.processor import Processor
from protocol.processing.worker_pool import WorkerPool
from protocol.producer.producer import Producer
from protocol.testing.fake_kafka.server import FakeKafka
from protocol.wire.messages.m00_produce import PRODUCE
from tests.protocol.processing.conftest import COOPERATIVE, EAGER, KIP_848, Recording
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


def test_consumer_given_to_a_processor_interrupted_in_a_pause_reads_all_other_records(fake: FakeKafka) -> None:
    was_paused = threading.Event()
    handled: list[int] = []

    class PauseInterrupted(KafkaConsumer):
        def pause(self, partitions: Collection[TopicPartition]) -> None:
            super().pause(partitions)
            was_paused.set()
            raise KeyboardInterrupt

    def handle(message: ConsumerMessage) -> None:
        handled.append(message.offset)
        was_paused.wait(20)

    with PauseInterrupted({**properties_of(fake, "etl"), "enable.auto.commit": False}) as consumer:
        consumer.assign([("orders", 0)])
        with pytest.raises(KeyboardInterrupt):
            Processor(consumer, handle, threads=1, max_in_flight=1).run()
        assert was_paused.is_set()
        assert handled + read_offsets(consumer, RECORDS - len(handled)) == list(range(RECORDS))


def read_offsets(consumer: KafkaConsumer, count: int) -> list[int]:
    """Return the offsets of this number of records."""
    collected: list[int] = []
    deadline = consumer.client.deadline(20_000)
    while len(collected) < count and not deadline.passed:
        for several in consumer.poll(100).values():
            collected += [offset for value in several for offset in value["offset"].to_pylist()]
    return collected


def test_all_consumers_leave_the_group_after_several_interrupts(
    fake: FakeKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Meanwhile the other consumer is in a rebalance, and waits for its handlers until `close` is interrupted."""
    fake.create_topic("wide", 2)
    listener = Recording()
    release, begun, ended = threading.Event(), set[int](), threading.Event()

    def handle(message: ConsumerMessage) -> None:
        begun.add(message.partition)
        release.wait(60)

    def interrupt() -> None:
        try:
            wait_until(listener.partitions_are_shared)
            for partition in range(2):
                fake.produce("wide", *["value"] * 2, partition=partition)
            wait_until(lambda: len(begun) == 2)
            joining.subscribe(["wide"])
            joining.poll(0)
            assert revoking.wait(20)
        except BaseException:  # else `run` would not end
            release.set()
            processor.close()
            raise
        while not ended.wait(0.3):
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    def raise_in_call(*_: object) -> None:
        if not ended.is_set():
            raise KeyboardInterrupt

    def note_and_release(loop: ConsumerLoop, *arguments: Any, **named: Any) -> None:
        if threading.current_thread().name == "processor-consumer-2":
            revoking.set()
        original(loop, *arguments, **named)

    original, revoking = ConsumerLoop.release, threading.Event()
    monkeypatch.setattr(ConsumerLoop, "release", note_and_release)
    former = signal.signal(signal.SIGUSR1, raise_in_call)
    joining = KafkaConsumer(properties_of(fake, "etl"))
    options: dict[str, Any] = {"threads": 8, "consumers": 2, "drain_timeout_ms": 60_000, "listener": listener}
    processor = Processor(properties_of(fake, "etl"), handle, ["wide"], **options)
    try:
        with ThreadPoolExecutor(1) as executor:
            interrupting = executor.submit(interrupt)
            for call in (processor.run, processor.close):
                with pytest.raises(KeyboardInterrupt):
                    call()
            ended.set()
            interrupting.result(20)
        processor.close()
        with Admin({"bootstrap.servers": fake.bootstrap_servers}) as admin:
            assert len(admin.describe_groups(["etl"])["etl"].members) == 1, "that of `joining`"
    finally:
        ended.set()
        release.set()
        joining.close()
        signal.signal(signal.SIGUSR1, former)


def test_member_leaves_before_its_client_closes_after_an_interrupt_of_its_end(
    fake: FakeKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The member leaves after `run` has raised, so the client would be closed before if nothing waited for it."""
    raised = threading.Event()

    class Interrupted(ConsumerRebalanceListener):
        def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None:
            raise KeyboardInterrupt

    def leave(*arguments: Any) -> None:
        raised.wait(20)
        original(*arguments)

    original = Membership.close
    monkeypatch.setattr(Membership, "close", leave)
    properties = properties_of(fake, "etl")
    processor = Processor(properties, lambda message: processor.close(), ["orders"], listener=Interrupted())
    with pytest.raises(KeyboardInterrupt):
        processor.run()
    raised.set()
    processor.close()
    with Admin({"bootstrap.servers": fake.bootstrap_servers}) as admin:
        assert not admin.describe_groups(["etl"])["etl"].members


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


def test_consumer_given_to_an_interrupted_processor_reads_unhandled_records(
    fake: FakeKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C ends the wait for handlers at the end of `run`."""
    release = threading.Event()

    def handle(message: ConsumerMessage) -> None:
        processor.close()
        release.wait(60)

    def interrupted_wait(*_: object) -> bool:
        monkeypatch.undo()
        raise KeyboardInterrupt

    with KafkaConsumer({**properties_of(fake, "etl"), "enable.auto.commit": False}) as consumer:
        processor = Processor(consumer, handle, ["orders"], threads=1, max_in_flight=1)
        monkeypatch.setattr(WorkerPool, "wait", interrupted_wait)
        with pytest.raises(KeyboardInterrupt):
            processor.run()
        release.set()
        assert read_offsets(consumer, RECORDS) == list(range(RECORDS))


@pytest.mark.parametrize("protocol", [EAGER, COOPERATIVE, KIP_848], ids=["eager", "cooperative", "kip848"])
@pytest.mark.parametrize("inputs", [True, False], ids=["given consumer", "own consumer"])
def test_exactly_handled_records_are_committed_after_an_interrupt_in_a_revocation(
    fake: FakeKafka, monkeypatch: pytest.MonkeyPatch, protocol: dict[str, object], inputs: bool
) -> None:
    """One partition is revoked, or both."""
    fake.create_topic("pair", 2)
    for partition in range(2):
        fake.produce("pair", *["value"] * RECORDS, partition=partition)
    properties = {**properties_of(fake, "etl"), "enable.auto.commit": False, **protocol}
    properties["auto.commit.interval.ms"] = 60_000
    release, begun, handled = threading.Event(), set[int](), list[tuple[int, int]]()

    def handle(message: ConsumerMessage) -> None:
        if message.offset == 3:
            begun.add(message.partition)
            release.wait(20)
        handled.append((message.partition, message.offset))

    def interrupted_wait(*_: object) -> bool:
        monkeypatch.undo()
        release.set()
        raise KeyboardInterrupt

    def join() -> None:
        wait_until(lambda: len(begun) == 2)
        monkeypatch.setattr(WorkerPool, "wait", interrupted_wait)
        joining.subscribe(["pair"])
        joining.poll(0)

    with KafkaConsumer(properties) as consumer, KafkaConsumer(properties) as joining, ThreadPoolExecutor(1) as executor:
        processor = Processor(consumer if inputs else properties, handle, ["pair"], order="partition")
        joined = executor.submit(join)
        with pytest.raises(KeyboardInterrupt):
            processor.run()
        joined.result(20)
        if inputs:
            consumer.commit_sync()
        with Admin({"bootstrap.servers": fake.bootstrap_servers}) as admin:
            committed = admin.list_consumer_group_offsets("etl")
    for partition in range(2):
        offset = committed["pair", partition]
        assert offset is not None
        assert [record for in_partition, record in handled if in_partition == partition] == list(range(offset.offset))
    assert len(handled) >= 8


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
