"""Ctrl-C anywhere in `Processor.run`: it ends all threads, leaves the group, and commits handled records only."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

from protocol.admin import Admin
from protocol.broker_errors import ErrorCode
from protocol.consumer.partition_consumer import ConsumerMessage
from protocol.consumer_group.kafka_consumer import KafkaConsumer
from protocol.consumer_group.rebalance_listener import ConsumerRebalanceListener
from protocol.errors import DeadlineExceeded, KafkaError, UsageError, WakeUp
from protocol.kafka_terms import TopicPartition
from protocol.processing.consumer_loop import ConsumerLoop
from protocol.processing.failures import NO_RETRIES
from protocol.processing.processor import Processor
from protocol.processing.worker_pool import WorkerPool
from protocol.producer.producer import Producer
from protocol.testing.fake_kafka.server import FakeKafka
from protocol.wire.messages.m00_produce import PRODUCE
from tests.protocol.processing.conftest import COOPERATIVE, EAGER, KIP_848
from tests.support.forked_child import check_in_child
from tests.support.interrupts import interrupted_at
from tests.support.soak import SOAK
from tests.support.wait_until import wait_until

pytestmark = pytest.mark.soak

RECORDS = 8
_CODE = ("protocol.processing", "protocol.consumer_group", "protocol.interrupts", "contextlib")
# Interrupt at every `_STEP`-th place.
_STEP = 1 if SOAK else 31


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


class Handler:
    """Keeps the offsets of handled records; with `fails`, raises for the second one."""

    def __init__(self, *, fails: bool = False) -> None:
        self.offsets: list[int] = []
        self.all_handled = threading.Event()
        self._fails = fails

    def __call__(self, message: ConsumerMessage) -> None:
        self.offsets.append(message.offset)
        if len(self.offsets) == RECORDS:
            self.all_handled.set()
        if self._fails and message.offset == 1:
            raise ValueError("no")

    def close_at_the_end(self, processor: Processor) -> None:
        self.all_handled.wait(20)
        processor.close()


def test_interrupted_run_ends_threads_leaves_the_group_and_commits_only_handled_records(fake: FakeKafka) -> None:
    with Admin({"bootstrap.servers": fake.bootstrap_servers}) as admin, ThreadPoolExecutor(1) as other:
        admin.describe_groups(["etl"])
        other.submit(int).result()
        others = set(threading.enumerate())
        place, reached = 1, True
        while reached:
            handle = Handler(fails=True)
            group = f"etl-{place}"
            properties = properties_of(fake, group)
            options = {"threads": 2, "dead_letter_topic": "failed", "retry": NO_RETRIES}
            processor = Processor(properties, handle, ["orders"], **options)  # type: ignore[arg-type]
            closing = other.submit(handle.close_at_the_end, processor)
            with suppress(KeyboardInterrupt), interrupted_at(place, _CODE) as was_reached:
                processor.run()
            reached = was_reached()
            processor.close()
            handle.all_handled.set()
            closing.result(20)
            with pytest.raises(UsageError, match="was run or closed before"):
                processor.run()
            wait_until(lambda: set(_client_threads()) <= others, lambda: str(_client_threads()))
            assert not admin.describe_groups([group])[group].members, place
            for committed in admin.list_consumer_group_offsets(group).values():
                assert committed is not None
                assert set(range(committed.offset)) <= set(handle.offsets), place
            place += _STEP
    assert place > 100, "run was interrupted"


def _client_threads() -> list[threading.Thread]:
    """Threads but those of the fake broker."""
    return [thread for thread in threading.enumerate() if "(_serve)" not in thread.name]


def test_consumer_given_to_a_processor_interrupted_anywhere_reads_all_other_records(fake: FakeKafka) -> None:
    place, reached = 1, True
    while reached:
        handle = Handler()
        given = {**properties_of(fake, f"etl-{place}"), "enable.auto.commit": False, "fetch.max.wait.ms": 10}
        with KafkaConsumer(given) as consumer, ThreadPoolExecutor(1) as other:
            consumer.assign([("orders", 0)])
            processor = Processor(consumer, handle, threads=1)
            closing = other.submit(handle.close_at_the_end, processor)
            with suppress(KeyboardInterrupt), interrupted_at(place, _CODE) as was_reached:
                processor.run()
            reached = was_reached()
            processor.close()
            handle.all_handled.set()
            closing.result(20)
            assert handle.offsets + read_offsets(consumer, RECORDS - len(handle.offsets)) == list(range(RECORDS)), place
        place += _STEP
    assert place > 100, "run was interrupted"


def test_consumer_given_to_a_processor_that_cannot_dispatch_reads_all_records(fake: FakeKafka) -> None:
    fake.create_topic("other", 2)
    for partition in range(2):
        fake.produce("other", *["value"] * 3, partition=partition)
    given = {**properties_of(fake, "etl"), "enable.auto.commit": False}
    with KafkaConsumer(given, columns=["offset", "value"]) as consumer:
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
    found: list[int] = []
    deadline = consumer.client.deadline(20_000)
    while len(found) < count and not deadline.passed:
        for several in consumer.poll(100).values():
            found += [offset for each in several for offset in each["offset"].to_pylist()]
    return found


def test_all_consumers_leave_the_group_after_several_interrupts(
    fake: FakeKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Meanwhile the other consumer is in a rebalance, and waits for its handlers."""
    fake.create_topic("wide", 4)
    for partition in range(4):
        fake.produce("wide", *["value"] * 2, partition=partition)
    release, begun, ended = threading.Event(), set[int](), threading.Event()

    def handle(message: ConsumerMessage) -> None:
        begun.add(message.partition)
        release.wait(60)

    def interrupt() -> None:
        try:
            wait_until(lambda: len(begun) == 4)
            joining.subscribe(["wide"])
            joining.poll(0)
            assert revoking.wait(20)
        except BaseException:  # else `run` would not end
            release.set()
            processor.close()
            raise
        while not ended.wait(0.3):
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    def raise_in_run(*_: object) -> None:
        if not ended.is_set():
            raise KeyboardInterrupt

    def note_and_release(loop: ConsumerLoop, *given: Any, **named: Any) -> None:
        if threading.current_thread().name == "processor-consumer-2":
            revoking.set()
        original(loop, *given, **named)

    original, revoking = ConsumerLoop.release, threading.Event()
    monkeypatch.setattr(ConsumerLoop, "release", note_and_release)
    former = signal.signal(signal.SIGUSR1, raise_in_run)
    joining = KafkaConsumer(properties_of(fake, "etl"))
    processor = Processor(properties_of(fake, "etl"), handle, ["wide"], threads=8, consumers=2, drain_timeout_ms=60_000)
    try:
        with ThreadPoolExecutor(1) as other:
            interrupting = other.submit(interrupt)
            with pytest.raises(KeyboardInterrupt):
                processor.run()
            ended.set()
            interrupting.result(20)
        with Admin({"bootstrap.servers": fake.bootstrap_servers}) as admin:
            assert len(admin.describe_groups(["etl"])["etl"].members) == 1, "that of `joining`"
    finally:
        ended.set()
        release.set()
        joining.close()
        signal.signal(signal.SIGUSR1, former)


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
    with ThreadPoolExecutor(1) as other:
        ran = other.submit(processor.run)
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
@pytest.mark.parametrize("given", [True, False], ids=["given consumer", "own consumer"])
def test_exactly_handled_records_are_committed_after_an_interrupt_in_a_revocation(
    fake: FakeKafka, monkeypatch: pytest.MonkeyPatch, protocol: dict[str, object], given: bool
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

    with KafkaConsumer(properties) as consumer, KafkaConsumer(properties) as joining, ThreadPoolExecutor(1) as other:
        processor = Processor(consumer if given else properties, handle, ["pair"], order="partition")
        joined = other.submit(join)
        with pytest.raises(KeyboardInterrupt):
            processor.run()
        joined.result(20)
        if given:
            consumer.commit_sync()
        with Admin({"bootstrap.servers": fake.bootstrap_servers}) as admin:
            committed = admin.list_consumer_group_offsets("etl")
    for partition in range(2):
        offset = committed["pair", partition]
        assert offset is not None
        assert [each for in_partition, each in handled if in_partition == partition] == list(range(offset.offset))
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
    with KafkaConsumer(properties) as consumer, KafkaConsumer(properties) as joining, ThreadPoolExecutor(1) as other:
        processor = Processor(consumer, handle, ["orders"], listener=Committing(), drain_timeout_ms=100)
        ran = other.submit(processor.run)
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
    with ThreadPoolExecutor(1) as other:
        ran = other.submit(processor.run)
        assert failed.wait(20)
        began_s = time.monotonic()
        processor.close()
        assert time.monotonic() - began_s < 20
        ran.result(20)
    with Admin({"bootstrap.servers": fake.bootstrap_servers}) as admin:
        committed = admin.list_consumer_group_offsets("etl").get(("orders", 0))
    assert committed is None or committed.offset == 0
