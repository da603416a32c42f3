"""Offsets that a processor commits after its topic was deleted and created again: those of the new topic only."""

from __future__ import annotations

from protocol.cluster.client import Client
from protocol.group.commits.committed_offsets import CommittedOffset, fetch_offsets
from protocol.testing.fake_kafka.server import FakeKafka
from tests.protocol.fetch.consuming import records
from tests.protocol.processing.conftest import GROUP, Handler, Start
from tests.support.wait_until import wait_until

KEY = ("orders", 0)


def value(offset: int) -> bytes:
    """Return the value that `records` writes at this offset."""
    return b"%010d" % offset


def recreate(fake: FakeKafka) -> None:
    with fake.changed:
        fake.delete_topic("orders")
        fake.create_topic("orders", 1)


def committed(client: Client) -> CommittedOffset | None:
    return fetch_offsets(client, GROUP, [KEY], client.deadline()).get(KEY)


def await_commit(client: Client, offset: int) -> None:
    def found() -> bool:
        to = committed(client)
        return to is not None and to.offset == offset

    wait_until(found, lambda: str(committed(client)))


def test_close_after_a_recreation_skips_no_record_of_the_new_topic(
    fake: FakeKafka, client: Client, start: Start, handler: Handler
) -> None:
    fake.write(*KEY, records(0, 10))
    running = start(handler)
    await_commit(client, 10)
    recreate(fake)
    await_commit(client, 0)
    running.close()
    assert committed(client) == CommittedOffset(0)
    fake.write(*KEY, records(0, 20))
    handler.values.clear()
    start(handler)
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
    recreate(fake)
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
