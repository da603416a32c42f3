"""Offsets that a processor commits while handlers run, if the log is truncated by an unclean election."""

from __future__ import annotations

import pytest

from protocol.cluster.client import Client
from protocol.consumer.kafka_consumer import KafkaConsumer
from protocol.group.commits.committed_offsets import CommittedOffset, fetch_offsets
from protocol.processing.failures import RetryPolicy
from protocol.processing.processor import Processor
from protocol.testing.fake_kafka.server import FakeKafka
from tests.protocol.fetch.consuming import records
from tests.protocol.processing.conftest import GROUP, PROPERTIES, Handler, Start
from tests.support.wait_until import wait_until

KEY = ("orders", 0)


def value(offset: int) -> bytes:
    """Return the value of `records` at this offset."""
    return b"%010d" % offset


def truncate(fake: FakeKafka, offset: int, end: int) -> None:
    """Truncate the log at `offset`, and let it grow again to `end` in leader epoch 1."""
    with fake.changed:
        fake.log(*KEY).truncate(offset)
        fake.set_leader_epoch(*KEY, 1)
        if end > offset:
            fake.write(*KEY, records(offset, end - offset, epoch=1))


def committed(client: Client) -> CommittedOffset | None:
    return fetch_offsets(client, GROUP, [KEY], client.deadline()).get(KEY)


def test_offset_within_a_batch_is_committed_with_its_leader_epoch(
    fake: FakeKafka, client: Client, start: Start, handler: Handler
) -> None:
    """A batch of the next epoch is in the same Fetch reply."""
    fake.write(*KEY, records(0, 10) + records(10, 10, epoch=1))
    for offset in (10, 13):
        handler.block(value(offset))
    start(handler, order="partition", batch_size=None)
    wait_until(lambda: committed(client) == CommittedOffset(10, 0), lambda: str(committed(client)))
    handler.blocked[value(10)].set()
    wait_until(lambda: committed(client) == CommittedOffset(13, 1), lambda: str(committed(client)))
    handler.blocked[value(13)].set()
    wait_until(lambda: committed(client) == CommittedOffset(20, 1), lambda: str(committed(client)))


@pytest.fixture
def blocked_at_16(fake: FakeKafka, client: Client, start: Start, handler: Handler) -> FakeKafka:
    """Return a cluster with records 0 to 19, of which all but 16 are handled, and 16 is committed."""
    for first in range(0, 20, 5):
        fake.write(*KEY, records(first, 5))
    handler.block(value(16))
    start(handler, order="none", threads=2)
    wait_until(lambda: committed(client) == CommittedOffset(16, 0), lambda: str(committed(client)))
    return fake


def test_unfinished_record_that_the_log_has_lost_does_not_decide_the_offset(
    blocked_at_16: FakeKafka, client: Client, handler: Handler
) -> None:
    fake = blocked_at_16
    truncate(fake, 10, 15)
    wait_until(lambda: committed(client) == CommittedOffset(15, 1), lambda: str(committed(client)))
    fake.write(*KEY, records(15, 10, epoch=1))
    handler.blocked[value(16)].set()
    wait_until(lambda: committed(client) == CommittedOffset(25, 1), lambda: str(committed(client)))
    assert [message.offset for message in handler.begun].count(12) == 2


def test_consumer_handed_back_within_a_batch_notices_a_truncation(
    fake: FakeKafka, client: Client, handler: Handler
) -> None:
    """The owner continues at the first unfinished record, of which the log has another one."""
    fake.write(*KEY, records(0, 20))
    handler.failing[value(16)] = ZeroDivisionError()
    with KafkaConsumer(client, {**PROPERTIES, "enable.auto.commit": False}) as consumer:
        consumer.subscribe(["orders"])
        processor = Processor(consumer, handler, order="partition", retry=RetryPolicy(retries=0))
        with pytest.raises(ZeroDivisionError), processor:
            processor.run()
        consumer.commit_sync()
        assert committed(client) == CommittedOffset(16, 0)
        truncate(fake, 10, 30)
        collected: list[int] = []

        def poll() -> bool:
            collected.extend(message.offset for message in consumer.poll(50).messages())
            return len(collected) >= 20

        wait_until(poll)
        assert collected == list(range(10, 30))
