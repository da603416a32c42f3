"""Offsets that a processor commits while handlers run, if its log is truncated, or its topic created again."""

from __future__ import annotations

import pytest

from protocol import Client, KafkaConsumer, Processor, RetryPolicy
from protocol.group.commits.committed_offsets import CommittedOffset, fetch_offsets
from protocol.testing import FakeKafka
from tests.protocol.fetch.consuming import records
from tests.protocol.processing.conftest import GROUP, MANUAL_COMMIT, Handler, Start
from tests.support.small_cluster import recreate_topic
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
        fake.write(*KEY, records(offset, end - offset, epoch=1))


def committed(client: Client) -> CommittedOffset | None:
    return fetch_offsets(client, GROUP, [KEY], client.deadline()).get(KEY)


def await_commit(client: Client, offset: int, epoch: int = 0) -> None:
    """Wait for a commit; offset 0 has no leader epoch."""
    expected = CommittedOffset(offset, epoch) if offset else CommittedOffset(0)
    wait_until(lambda: committed(client) == expected, lambda: str(committed(client)))


def test_offset_within_a_batch_is_committed_with_its_leader_epoch(
    fake: FakeKafka, client: Client, start: Start, handler: Handler
) -> None:
    """A batch of the next epoch is in the same Fetch reply."""
    fake.write(*KEY, records(0, 10) + records(10, 10, epoch=1))
    for offset in (10, 13):
        handler.block(value(offset))
    start(handler, order="partition", batch_size=None)
    await_commit(client, 10)
    handler.blocked[value(10)].set()
    await_commit(client, 13, epoch=1)
    handler.blocked[value(13)].set()
    await_commit(client, 20, epoch=1)


@pytest.fixture
def blocked_at_16(fake: FakeKafka, client: Client, start: Start, handler: Handler) -> FakeKafka:
    """Return a cluster with records 0 to 19, of which all but 16 are handled, and 16 is committed."""
    for first in range(0, 20, 5):
        fake.write(*KEY, records(first, 5))
    handler.block(value(16))
    start(handler, order="none", threads=2)
    await_commit(client, 16)
    return fake


def test_unfinished_record_that_the_log_has_lost_does_not_decide_the_offset(
    blocked_at_16: FakeKafka, client: Client, handler: Handler
) -> None:
    fake = blocked_at_16
    truncate(fake, 10, 15)
    await_commit(client, 15, epoch=1)
    fake.write(*KEY, records(15, 10, epoch=1))
    handler.blocked[value(16)].set()
    await_commit(client, 25, epoch=1)
    assert [message.offset for message in handler.begun].count(12) == 2


def test_consumer_handed_back_within_a_batch_notices_a_truncation(
    fake: FakeKafka, client: Client, handler: Handler
) -> None:
    """The owner continues at the first unfinished record, of which the log has another one."""
    fake.write(*KEY, records(0, 20))
    handler.failing[value(16)] = ZeroDivisionError()
    with KafkaConsumer(client, MANUAL_COMMIT) as consumer:
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


@pytest.mark.parametrize("reset", ["earliest", "latest"])
def test_close_after_a_recreation_skips_no_record_of_the_new_topic(
    fake: FakeKafka, client: Client, start: Start, handler: Handler, reset: str
) -> None:
    """By `latest`, the partition is idle: its position is one in the new topic."""
    fake.write(*KEY, records(0, 10))
    running = start(handler, **{"auto.offset.reset": reset})
    await_commit(client, 10, epoch=0 if reset == "earliest" else -1)  # without a record before
    recreate_topic(fake, "orders")
    await_commit(client, 0)
    running.close()
    assert committed(client) == CommittedOffset(0)
    fake.write(*KEY, records(0, 20))
    handler.values.clear()
    start(handler, **{"auto.offset.reset": reset})
    await_commit(client, 20)
    assert sorted(handler.values) == [value(offset) for offset in range(20)]


def test_late_handler_of_a_deleted_topic_does_not_change_the_offset(
    fake: FakeKafka, client: Client, start: Start, handler: Handler
) -> None:
    """A handler of a deleted topic's record returns after the first records of the new topic were handled."""
    fake.write(*KEY, records(0, 10))
    handler.block(value(4))
    running = start(handler, order="none", threads=3)
    await_commit(client, 4)
    recreate_topic(fake, "orders")
    await_commit(client, 0)
    handler.block(value(2))
    fake.write(*KEY, records(0, 4))
    await_commit(client, 2)
    handler.blocked[value(4)].set()
    wait_until(lambda: handler.values.count(value(4)) == 1)
    handler.blocked[value(2)].set()
    await_commit(client, 4)
    running.close()
    assert committed(client) == CommittedOffset(4, 0)
