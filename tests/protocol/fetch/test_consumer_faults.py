"""Killed brokers, moved leaders, lost sessions and connections: each row arrives once and in order."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest

from protocol.broker_errors import ErrorCode
from protocol.cluster.client import Client
from protocol.config import ConsumerConfig, parse_client
from protocol.errors import DataLoss, DeadlineExceeded, UsageError
from protocol.fetch.bounded_reader import BoundedReader
from protocol.fetch.consumer import Consumer
from protocol.fetch.log_offsets import Range
from protocol.kafka_terms import EARLIEST
from protocol.testing.fake_kafka.clock import ManualClock
from protocol.testing.fake_kafka.server import FakeKafka
from protocol.wire.messages.m01_fetch import FETCH
from protocol.wire.messages.m02_list_offsets import LIST_OFFSETS
from protocol.wire.messages.m23_offset_for_leader_epoch import OFFSET_FOR_LEADER_EPOCH
from spark_kafka_source.local_kafka import LocalKafka
from tests.conftest import TopicFactory
from tests.protocol.fetch.consuming import (
    TOPIC_ID,
    client_of,
    consumer_of,
    end_of_epoch,
    offsets_of,
    partition_now,
    produce,
    reader,
    records,
    reply,
    reply_row,
    rows_of,
    skip_loss,
)
from tests.support.background import background
from tests.support.soak import SOAK
from tests.support.wait_until import wait_until

pytestmark = pytest.mark.soak

# `make soak` kills brokers: the cluster notices after nine seconds, and a clean shutdown after one.
KILLS = SOAK


class Rows:
    """The rows read, by partition; each offset must follow the last one."""

    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer
        self.next: dict[int, int] = {}

    def read(self, until: Callable[[], bool]) -> None:
        wait_until(lambda: until() or self._poll(), lambda: f"it came to {self.next}", timeout_s=60)

    def _poll(self) -> None:
        if (read := self.consumer.poll(200)) is not None:
            stream, batch = read
            first = self.next.get(stream.partition, 0)
            assert offsets_of(batch) == list(range(first, first + batch.num_rows)), stream.name
            self.next[stream.partition] = first + batch.num_rows

    def all_at(self, offset: int, partitions: int) -> bool:
        return self.next == dict.fromkeys(range(partitions), offset)


def test_leader_is_restarted_under_load(kafka: LocalKafka, topic: TopicFactory) -> None:
    name = topic(6, replication_factor=3, config={"min.insync.replicas": "2"})
    settings = {"enable.idempotence": True, "acks": "all"}
    with client_of(kafka) as client, consumer_of(client) as consumer:
        consumer.consume_partitions({(name, number): EARLIEST for number in range(6)})
        rows = Rows(consumer)
        produce(kafka, name, range(600), 6, settings=settings)
        rows.read(lambda: rows.all_at(100, 6))
        victim = client.leader(name, 0)[0].node_id

        def load() -> None:
            for first in range(600, 6_000, 600):
                produce(kafka, name, range(first, first + 600), 6, settings=settings)
                if first == 1_200:
                    (kafka.kill if KILLS else kafka.stop)(victim)
            kafka.start(victim)

        with background(load):
            rows.read(lambda: rows.all_at(1_000, 6))
        produce(kafka, name, range(600), 6, settings=settings)
        rows.read(lambda: rows.all_at(1_100, 6))


@pytest.mark.skipif(not KILLS, reason="takes half a minute; run by `make soak`")
def test_truncation_by_unclean_election_is_data_loss(kafka: LocalKafka, topic: TopicFactory) -> None:
    """A hundred records exist only on the leader when they are read; then a replica without them becomes leader."""
    name = topic(1, replication_factor=2, config={"unclean.leader.election.enable": "true"})
    with client_of(kafka) as client, consumer_of(client) as consumer:
        stream = consumer.consume_partition(name, 0, EARLIEST)
        rows = Rows(consumer)
        produce(kafka, name, range(100))
        rows.read(lambda: rows.all_at(100, 1))
        leader, partition = client.leader(name, 0)
        [follower] = set(partition.replicas) - {leader.node_id}
        try:
            kafka.kill(follower)
            rows.read(lambda: len(partition_now(client, name).isr) == 1)
            produce(kafka, name, range(100))
            rows.read(lambda: rows.all_at(200, 1))
            kafka.kill(leader.node_id)
            kafka.start(follower)
            produce(kafka, name, range(150))
            with pytest.raises(DataLoss, match=rf"{name}-0: the log was truncated below offset 200: .* offset 100 "):
                rows.read(lambda: False)
            begins = Range(name, 0, 200, 250, from_epoch=partition.leader_epoch)
            with pytest.raises(DataLoss, match=r"unclean leader election. Offsets 100 to 200 were read"):
                list(BoundedReader(client, ConsumerConfig(), [begins]))
            planned = Range(name, 0, 50, 200, client.topic(name).topic_id, until_epoch=partition.leader_epoch)
            reading = BoundedReader(client, ConsumerConfig(), [planned], on_loss=skip_loss)
            assert [offset for offset, _ in rows_of(reading)[planned]] == list(range(50, 100))
            assert [(source_range.from_offset, source_range.until_offset) for source_range in reading.skipped] == [
                (100, 200)
            ]
            stream.seek(100)
            assert len(list(stream.messages(2_000))) == 150
        finally:
            kafka.start(*(number for number in (leader.node_id, follower) if kafka.pid(number) is None))


def test_topic_created_later_is_read(fake: FakeKafka) -> None:
    with (
        client_of(fake.bootstrap_servers, default_api_timeout_ms=1_000) as client,
        consumer_of(client) as consumer,
    ):
        stream = consumer.consume_partition("later", 0, 0)
        assert stream.poll(100) is None
        for polled in (stream, consumer):
            with pytest.raises(DeadlineExceeded, match=r"later-0: .* UNKNOWN_TOPIC_OR_PARTITION"):
                polled.poll(20_000)
        fake.create_topic("later", 1)
        fake.write("later", 0, records(0, 10))
        assert [message.offset for message in islice(stream.messages(20_000), 10)] == list(range(10))


def answers(fake: FakeKafka, *replies: Callable[[dict[str, Any]], Any]) -> None:
    """Answer Fetch with `replies` in turn, the last repeated; each is called with the request."""
    remaining = list(replies)

    def fetch(body: dict[str, Any], version: int) -> Any:
        if body["session_epoch"] == -1:
            return reply()
        return (remaining.pop(0) if len(remaining) > 1 else remaining[0])(body)

    fake.handlers[FETCH] = fetch


def idle(body: dict[str, Any]) -> dict[str, Any]:
    time.sleep(body["max_wait_ms"] / 1000)
    return reply(session_id=5)


@pytest.mark.parametrize("epoch_end", [10, -1], ids=["keeps epochs", "keeps none"])
def test_offset_refused_for_its_epoch_is_data_loss_unless_the_log_has_none(
    fake: FakeKafka, consumer: Consumer, epoch_end: int
) -> None:
    """The log has offsets 0 to 9. Five were read, in epoch 3; the leader has epoch 0, or a log without epochs."""

    def refuse(body: dict[str, Any]) -> dict[str, Any]:
        rows = [row for topic in body["topics"] for row in topic["partitions"]]
        if not rows or rows[0]["fetch_offset"] == 10:
            return idle(body)
        if rows[0]["last_fetched_epoch"] == -1:
            return reply(reply_row(0, records(5, 5, epoch=-1)), session_id=5)
        return reply(reply_row(0, error_code=ErrorCode.OFFSET_OUT_OF_RANGE), session_id=5)

    fake.handlers[OFFSET_FOR_LEADER_EPOCH] = lambda body, version: end_of_epoch(body, {0: epoch_end})
    fake.handlers[LIST_OFFSETS] = lambda body, version: list_offsets(body, end=10)
    answers(fake, lambda body: reply(reply_row(0, records(0, 5, epoch=3)), session_id=5), refuse)
    stream = consumer.consume_partition("orders", 0, 0)
    messages = stream.messages(20_000)
    assert [next(messages).offset for _ in range(5)] == list(range(5))
    if epoch_end == -1:
        assert [next(messages).offset for _ in range(5)] == list(range(5, 10))
    else:
        with pytest.raises(DataLoss, match=r"orders-0: .* truncated .* leader epoch 3 of .* \[0, 10\)"):
            next(messages)


@pytest.mark.parametrize("position", [7, 3], ids=["beyond its end", "within its log"])
def test_stale_leader_is_no_data_loss(fake: FakeKafka, position: int) -> None:
    """The stale leader has epoch 4 and offsets 0 to 4; the position comes from a leader of epoch 5."""
    refused = 0

    def refuse_some(body: dict[str, Any], version: int) -> dict[str, Any]:
        nonlocal refused
        offsets = [row["fetch_offset"] for topic in body["topics"] for row in topic["partitions"]]
        if offsets == [0]:
            return reply(reply_row(0, records(0, position, epoch=5)))
        if offsets != [position]:
            return {**idle(body), "session_id": 0}
        refused += 1
        if refused <= 2:
            return reply(reply_row(0, error_code=ErrorCode.OFFSET_OUT_OF_RANGE))
        return reply(reply_row(0, records(position, 10 - position, epoch=5)))

    fake.handlers[FETCH] = refuse_some
    fake.handlers[LIST_OFFSETS] = lambda body, version: list_offsets(body, end=5, epoch=4)
    fake.handlers[OFFSET_FOR_LEADER_EPOCH] = lambda body, version: end_of_epoch(body, {0: 3, 4: 5})
    with client_of(fake.bootstrap_servers) as client:
        with consumer_of(client) as consumer:
            messages = consumer.consume_partition("orders", 0, 0).messages(20_000)
            assert [next(messages).offset for _ in range(10)] == list(range(10))
        for epochs in ({"from_epoch": 5}, {"until_epoch": 5}):
            refused = 0
            ranges = [Range("orders", 0, position, 10, TOPIC_ID, **epochs)]
            reading = BoundedReader(client, ConsumerConfig(), ranges, on_loss=skip_loss)
            assert [offset for offset, _ in rows_of(reading)[ranges[0]]] == list(range(position, 10))
            assert reading.skipped == []
            assert refused == 3


def test_stale_leader_is_awaited_until_the_timeout(fake: FakeKafka) -> None:
    fake.handlers[FETCH] = lambda body, version: reply(reply_row(0, error_code=ErrorCode.OFFSET_OUT_OF_RANGE))
    fake.handlers[LIST_OFFSETS] = lambda body, version: list_offsets(body, end=5, epoch=4)
    ranges = [Range("orders", 0, 7, 10, TOPIC_ID, until_epoch=5)]
    with Client(parse_client({"bootstrap.servers": fake.bootstrap_servers}), ManualClock()) as client:
        reading = BoundedReader(client, ConsumerConfig(), ranges, poll_timeout_ms=500, on_loss=skip_loss)
        with pytest.raises(DeadlineExceeded, match=r"orders-0: the leader has epoch 4, .* epoch 5 seen before"):
            list(reading)
        assert reading.skipped == []


def test_empty_reply_slightly_after_max_wait_is_accepted(fake: FakeKafka, fake_client: Client) -> None:
    def wait_longer(body: Any, version: int) -> Any:
        time.sleep(0.6)
        return reply(reply_row(0))

    fake.handlers[FETCH] = wait_longer
    ranges = [Range("orders", 0, 0, 10, TOPIC_ID)]
    fake_client.leader("orders", 0)  # may take longer than the reader's timeout
    reading = reader(fake_client, ranges, {"fetch.max.wait.ms": 100}, poll_timeout_ms=300, on_loss=skip_loss)
    with pytest.raises(DeadlineExceeded, match=r"orders-0: .* sends no records at offset 0"):
        list(reading)


def test_throttle_time_is_awaited(fake: FakeKafka, consumer: Consumer) -> None:
    answers(
        fake,
        lambda body: reply(throttle_time_ms=400),
        lambda body: reply(reply_row(0, records(0, 5)), session_id=5),
        idle,
    )
    started_s = time.monotonic()
    assert consumer.consume_partition("orders", 0, 0).poll(15_000) is not None
    assert time.monotonic() - started_s >= 0.4


def test_unexpected_error_is_raised_to_the_user(
    fake: FakeKafka, consumer: Consumer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("protocol.fetch.fetch_request.FetchRequest.handle_response", fail)
    answers(fake, lambda body: reply(reply_row(0)))
    stream = consumer.consume_partition("orders", 0, 0)
    with pytest.raises(UsageError, match=r"ZeroDivisionError\('a bug'\)"):
        stream.poll(20_000)
    assert "a bug" in caplog.text


def list_offsets(body: dict[str, Any], *, end: int, epoch: int = -1) -> dict[str, Any]:
    """Return the reply for a log [0, end) of orders-0, whose leader reports the leader epoch `epoch`."""
    offset, leader_epoch = (0, 0) if body["topics"][0]["partitions"][0]["timestamp"] == -2 else (end, epoch)
    row = {"partition_index": 0, "offset": offset, "leader_epoch": leader_epoch}
    return {"topics": [{"name": "orders", "partitions": [row]}]}
