"""Unclean elections: one, and a second one before anything is read from the first truncation on (KIP-320)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from protocol import Client, KafkaConsumer
from protocol.errors import DataLoss, LogTruncated
from protocol.fetch import log_offsets
from protocol.fetch.log_offsets import Range
from protocol.group.commits.committed_offsets import CommittedOffset, commit_offsets, fetch_offsets
from protocol.testing import FakeKafka
from tests.contract.raw_requests import written
from tests.protocol.consumer.members import ReadingHandler, consumer_of, group_of, read
from tests.protocol.fetch.consuming import client_of, reader, rows_of
from tests.support.background import background
from tests.support.wait_until import wait_until

KEY = ("orders", 0)


@pytest.fixture
def fake() -> Iterator[FakeKafka]:
    """Yield a broker whose log orders-0 has ten record batches, of one record each, of leader epoch 0."""
    with FakeKafka() as fake:
        fake.create_topic("orders")
        yield fake


@pytest.fixture
def client(fake: FakeKafka) -> Iterator[Client]:
    with client_of(fake.address(1), retry_backoff_ms=5, retry_backoff_max_ms=10) as client:
        write(client, 10)
        yield client


def write(client: Client, count: int) -> None:
    for _ in range(count):
        written(client, "orders", b"")


def elect(fake: FakeKafka, end: int) -> None:
    """Elect a leader whose log ends earlier."""
    with fake.changed:
        fake.log("orders").truncate(end)
        fake.move_leader("orders", 0, 1)


def new_consumer(client: Client, reset: str = "earliest") -> KafkaConsumer:
    consumer = consumer_of(client, **{"auto.offset.reset": reset, "fetch.max.wait.ms": 20})
    consumer.assign([KEY])
    return consumer


def moved_to(consumer: KafkaConsumer, offset: int) -> Callable[[], bool]:
    """Poll, which returns no records, until the position has moved."""
    return lambda: not consumer.poll(20) and consumer.position(KEY) == offset


@pytest.mark.parametrize("reader", ["the same consumer", "the next one, from a commit"])
@pytest.mark.parametrize("grown", [7, 2], ids=["grown past the position", "shorter than the position"])
def test_second_truncation_is_read_from_its_own_end(fake: FakeKafka, client: Client, grown: int, reader: str) -> None:
    with new_consumer(client) as consumer, new_consumer(client) as second:
        read(consumer, 10)
        elect(fake, 6)
        wait_until(moved_to(consumer, 6))
        consumer.commit_sync()
        assert consumer.committed([KEY]) == {KEY: CommittedOffset(6, 0)}
        elect(fake, 3)
        write(client, grown)
        reading = consumer if reader == "the same consumer" else second
        assert [offset for _, offset in read(reading, grown)] == list(range(3, 3 + grown))


def test_user_continues_with_offset_and_epoch_of_the_error(fake: FakeKafka, client: Client) -> None:
    with new_consumer(client, "none") as consumer:
        consumer.seek(KEY, 0)
        read(consumer, 10)
        for end in (6, 3):
            elect(fake, end)
            with pytest.raises(LogTruncated) as raised:
                read(consumer, 1)
            assert raised.value.context["end_offset"] == end
            assert raised.value.context["end_epoch"] == 0
            consumer.seek(KEY, CommittedOffset(end, raised.value.context["end_epoch"]))
        consumer.commit_sync()
        assert consumer.committed([KEY]) == {KEY: CommittedOffset(3, 0)}
        write(client, 7)
        assert [offset for _, offset in read(consumer, 7)] == list(range(3, 10))


@pytest.mark.parametrize(("offset", "first"), [(6, 6), (15, 0)])
def test_epoch_of_an_earlier_topic_holds_up_no_start(
    client: Client, monkeypatch: pytest.MonkeyPatch, offset: int, first: int
) -> None:
    """A committed epoch that is newer than the topic's leaders may be a stale leader's reply, for a while."""
    monkeypatch.setattr(log_offsets, "STALE_LEADER_MS", 300)
    commit_offsets(client, "etl", {KEY: CommittedOffset(offset, 2)}, client.deadline())
    with new_consumer(client) as consumer:
        assert [offset for _, offset in read(consumer, 10 - first)] == list(range(first, 10))


def test_seek_to_a_committed_offset_detects_a_truncation_below_it(fake: FakeKafka, client: Client) -> None:
    elect(fake, 3)
    write(client, 7)
    with new_consumer(client) as consumer:
        for started in (False, True):
            consumer.seek(KEY, CommittedOffset(6, 0))
            assert [offset for _, offset in read(consumer, 7)] == list(range(3, 10)), started


def test_handler_commits_the_epoch_of_a_truncation(fake: FakeKafka, client: Client) -> None:
    commit_offsets(client, "etl", {KEY: CommittedOffset(10, 0)}, client.deadline())
    elect(fake, 6)
    group = group_of(client, **{"auto.commit.interval.ms": 50})
    with background(lambda: group.consume(["orders"], ReadingHandler())), group:
        wait_until(lambda: fetch_offsets(client, "etl", [KEY], client.deadline()) == {KEY: CommittedOffset(6, 0)})


def test_rest_of_a_range_is_read_from_the_second_truncation(fake: FakeKafka, client: Client) -> None:
    losses: list[str] = []

    def truncate_again(loss: DataLoss, skipped: Range) -> None:
        losses.append(str(loss))
        if len(losses) == 1:
            elect(fake, 3)
            write(client, 9)

    expected = Range(*KEY, 8, 12, topic_id=client.topic("orders").topic_id, from_epoch=0)
    elect(fake, 6)
    write(client, 6)
    rows = rows_of(reader(client, [expected], on_loss=truncate_again))
    assert [offset for offset, _ in rows[expected]] == list(range(3, 12))
    assert len(losses) == 2
