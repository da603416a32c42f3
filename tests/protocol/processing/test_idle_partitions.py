"""Partitions without unfinished records: their positions are committed, as those of `KafkaConsumer`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, closing

import pytest

from protocol import Client, KafkaConsumer, Processor, TransactionalProducer
from protocol.testing import FakeKafka
from tests.protocol.processing.conftest import EMPTY, MANUAL_COMMIT, Committed, Handler, Running, Start, Write
from tests.support.wait_until import wait_until


@pytest.mark.parametrize("given", [False, True], ids=["properties", "an assigned consumer"])
def test_records_written_between_two_processors_are_handled_by_the_second_one(
    fake: FakeKafka, client: Client, write: Write, handler: Handler, committed: Committed, given: bool
) -> None:
    """With `latest`, the default. Without a committed offset, the second one would begin behind them."""

    def run_until(condition: Callable[[], bool], **properties: object) -> None:
        config = MANUAL_COMMIT | {"auto.offset.reset": "latest"} | properties
        with ExitStack() as opened:
            if given:
                consumer = opened.enter_context(KafkaConsumer(client, config))
                consumer.assign([("orders", 0), ("orders", 1)])
                processor = Processor(consumer, handler)
            else:
                processor = Processor(client, handler, ["orders"], config=config)
            opened.enter_context(closing(Running(processor)))
            wait_until(condition, lambda: str(committed()), every_s=0.02)

    write([b"before"])
    fetches = len(fake.request_bodies("Fetch"))
    run_until(lambda: len(fake.request_bodies("Fetch")) > fetches, **{"auto.commit.interval.ms": 60_000})
    assert committed() == {0: 1, 1: 0}
    write([b"between"])
    run_until(lambda: committed() == {0: 2, 1: 0})
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
