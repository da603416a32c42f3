"""Partitions without unfinished records: their positions are committed, as those of `KafkaConsumer`."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest

from protocol import Client, ConsumerRebalanceListener, KafkaConsumer, Processor, TopicPartition, TransactionalProducer
from protocol.consumer.consumer_records import ConsumerRecords
from protocol.processing.consumer_loop import ConsumerLoop
from protocol.processing.worker_pool import WorkerPool
from protocol.testing import FakeKafka
from tests.protocol.fetch.consuming import records
from tests.protocol.processing.conftest import EMPTY, MANUAL_COMMIT, Committed, Handler, Running, Start, Write
from tests.support.wait_until import wait_until

NO_COMMIT_IN_TIME: dict[str, object] = {"auto.commit.interval.ms": 60_000}


class Pausing(ConsumerRebalanceListener):
    """Pauses assigned partitions, so that the polls of a test return no records."""

    def __init__(self, consumer: KafkaConsumer) -> None:
        self._consumer = consumer

    def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
        self._consumer.pause(partitions)


@pytest.mark.parametrize("given", ["properties", "subscribed", "assigned"])
def test_records_written_between_two_processors_are_handled_by_the_second_one(
    fake: FakeKafka, client: Client, write: Write, handler: Handler, committed: Committed, given: str
) -> None:
    """With `latest`, the default. Without a committed offset, the second one would begin behind them."""
    settings: dict[str, Any] = {**MANUAL_COMMIT, "auto.offset.reset": "latest"}

    def run(**properties: object) -> tuple[Running, KafkaConsumer | None]:
        if given == "properties":
            return Running(Processor(client, handler, ["orders"], config=settings | properties)), None
        consumer = KafkaConsumer(client, settings | properties)
        if given == "subscribed":
            consumer.subscribe(["orders"], Pausing(consumer))
            wait_until(lambda: (consumer.poll(20), len(consumer.positions()) == 2)[1])
            consumer.resume(consumer.assignment)
        else:
            consumer.assign([("orders", 0), ("orders", 1)])
        return Running(Processor(consumer, handler)), consumer

    def close(running: Running, consumer: KafkaConsumer | None) -> None:
        running.close()
        if consumer is not None:
            consumer.close()

    write([b"before"])
    fetches = len(fake.request_bodies("Fetch"))
    first = run(**NO_COMMIT_IN_TIME)
    wait_until(lambda: len(fake.request_bodies("Fetch")) > fetches)
    close(*first)
    assert committed() == {0: 1, 1: 0}
    write([b"between"])
    second = run()
    wait_until(lambda: committed() == {0: 2, 1: 0}, committed, every_s=0.02)
    close(*second)
    assert handler.values == [b"between"]


def test_lag_of_a_transactional_topic_at_rest_is_0(
    client: Client, start: Start, handler: Handler, committed: Committed
) -> None:
    """An unfinished record holds back the offset, also with a marker behind it."""

    def write_in_transaction(value: bytes, partition: int = 0) -> None:
        producer.begin_transaction()
        producer.send("orders", value, partition=partition)
        producer.commit_transaction()

    with TransactionalProducer(client, {"transactional.id": "t"}) as producer:
        producer.init_transactions()
        write_in_transaction(b"1")
        handler.block(b"2")
        start(handler)
        wait_until(lambda: committed() == {0: 2} | EMPTY, committed, every_s=0.02)
        write_in_transaction(b"2")
        write_in_transaction(b"3", partition=1)
    wait_until(lambda: committed() == {0: 2, 1: 2}, committed, every_s=0.02)
    assert handler.has_begun(b"2")
    handler.blocked[b"2"].set()
    wait_until(lambda: committed() == {0: 4, 1: 2}, committed, every_s=0.02)


def test_partition_that_its_user_has_paused_is_committed_at_its_position(
    client: Client, write: Write, handler: Handler, committed: Committed
) -> None:
    for partition in (0, 1):
        write([b"1", b"2"], partition=partition)
    with KafkaConsumer(client, MANUAL_COMMIT) as consumer:
        consumer.assign([("orders", 0), ("orders", 1)])
        consumer.pause([("orders", 1)])
        running = Running(Processor(consumer, handler))
        wait_until(lambda: committed() == {0: 2, 1: 0}, committed, every_s=0.02)
        running.close()
        assert consumer.paused == {("orders", 1)}
    assert committed() == {0: 2, 1: 0}
    assert len(handler.values) == 2


def test_records_that_could_not_be_passed_to_the_pool_are_handled_by_the_next_processor(
    fake: FakeKafka, start: Start, handler: Handler, committed: Committed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The positions are behind them. Those of the partition that comes second are in no tracker."""
    dispatch_all, add, written = ConsumerLoop._dispatch_all, WorkerPool.add, 0
    failed: list[int] = []

    def fail_once(loop: ConsumerLoop, polled: ConsumerRecords) -> None:
        def fail(*_: object) -> None:
            monkeypatch.setattr(WorkerPool, "add", add)
            raise MemoryError("as if")

        first = [batches[0]["offset"][0].as_py() for batches in polled.values()]
        if len(polled) == 2 and min(first) > 0 and not failed:
            failed.extend(first)
            monkeypatch.setattr(WorkerPool, "add", fail)
        dispatch_all(loop, polled)

    def is_committed() -> bool:
        return committed() == {0: written, 1: written}

    monkeypatch.setattr(ConsumerLoop, "_dispatch_all", fail_once)
    running = start(handler)
    while not running.ended:  # until a poll returns both partitions
        with fake.changed:
            for partition in (0, 1):
                fake.write("orders", partition, records(written, 5))
        written += 5
        wait_until(lambda: running.ended or is_committed(), every_s=0.02)
    assert isinstance(running.join(), MemoryError)
    assert committed() == {0: failed[0], 1: failed[1]}
    start(handler)
    wait_until(is_committed, committed, every_s=0.02)
    assert len(handler.values) == 2 * written
