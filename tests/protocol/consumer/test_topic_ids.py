"""Recreated topics on brokers whose Fetch names topics (before Kafka 3.1): ids are compared with metadata."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Iterator
from typing import Any

import pytest

from protocol.broker_errors import ErrorCode
from protocol.cluster.metadata import Broker
from protocol.config import ConsumerConfig
from protocol.consumer.consumer import Consumer
from protocol.consumer.fetch_position import FetchPosition
from protocol.consumer.partition_consumer import PartitionConsumer
from protocol.consumer.topic_ids import TopicIdChecks
from protocol.errors import TopicRecreated
from protocol.kafka_terms import EARLIEST
from protocol.testing.fake_kafka.server import FakeKafka
from protocol.wire.messages.m01_fetch import FETCH, LAST_WITH_TOPIC_NAMES
from protocol.wire.messages.m03_metadata import METADATA
from tests.protocol.consumer.consuming import client_of, consumer_of, offsets_of, records
from tests.support.older_brokers import limit_version
from tests.support.soak import SOAK

pytestmark = pytest.mark.soak

OLD, NEW = b"old-topic-id----", b"new-topic-id----"
BROKER = Broker(1, "localhost", 9092)


@pytest.fixture(params=[True, False], ids=["asked by name", "asked by id"])
def fake(request: pytest.FixtureRequest) -> Iterator[FakeKafka]:
    """Yield a broker with offsets 0 to 4 of orders-0."""
    with FakeKafka() as fake:
        if request.param:
            limit_version(fake, FETCH, LAST_WITH_TOPIC_NAMES)
        fake.create_topic("orders", 1)
        fake.write("orders", 0, records(0, 5))
        yield fake


# Fetch by id compares nothing after its replies.
by_name_in_make_test = pytest.mark.parametrize("fake", [True, False] if SOAK else [True], indirect=True)


@pytest.fixture
def consumer(fake: FakeKafka) -> Iterator[Consumer]:
    properties = {"retry_backoff_ms": 5, "retry_backoff_max_ms": 10}
    with (
        client_of(fake.bootstrap_servers, **properties) as client,
        consumer_of(client, {"fetch.max.wait.ms": 20}) as consumer,
    ):
        yield consumer


def recreate(fake: FakeKafka, count: int) -> None:
    """Recreate orders at once, so that a waiting Fetch is answered from the new log."""
    with fake.changed:
        fake.delete_topic("orders")
        fake.create_topic("orders", 1)
        fake.write("orders", 0, records(0, count))


def after_loss(stream: PartitionConsumer, count: int) -> list[int]:
    """Read until the recreation is raised, and the new topic from its beginning."""
    with pytest.raises(TopicRecreated):
        for _ in stream.batches(20_000):
            pass
    stream.seek(0)
    return read_offsets(stream, count)


def read_offsets(stream: PartitionConsumer, count: int) -> list[int]:
    offsets: list[int] = []
    while len(offsets) < count:
        offsets += offsets_of(stream.poll(20_000))
    return offsets


# Fewer records than before, the same number, and more.
@pytest.mark.parametrize("count", [3, 5, 8])
def test_topic_recreated_during_a_pause_is_never_read_from_the_old_offset(
    fake: FakeKafka, consumer: Consumer, count: int
) -> None:
    stream = consumer.consume_partition("orders", 0, EARLIEST)
    assert offsets_of(stream.poll(20_000)) == [0, 1, 2, 3, 4]
    stream.pause()
    time.sleep(1.3)
    recreate(fake, count)
    fake.write("orders", 0, records(count, 1))
    stream.resume()
    with pytest.raises(TopicRecreated, match="deleted and created again"):
        stream.poll(20_000)
    stream.seek(0)
    assert read_offsets(stream, count + 1) == list(range(count + 1))


def test_topic_recreated_without_a_pause_is_detected_within_seconds(fake: FakeKafka, consumer: Consumer) -> None:
    stream = consumer.consume_partition("orders", 0, EARLIEST)
    assert offsets_of(stream.poll(20_000)) == [0, 1, 2, 3, 4]
    recreate(fake, 8)
    since_s = time.monotonic()
    assert after_loss(stream, 8) == list(range(8))
    assert time.monotonic() - since_s < 15


def test_partitions_of_a_recreated_topic_are_each_detected(fake: FakeKafka, consumer: Consumer) -> None:
    """The first one returns to the new topic before the second one is compared."""
    fake.create_topic("two", 2)
    for number in (0, 1):
        fake.write("two", number, records(0, 5))
    streams = consumer.consume_partitions({("two", 0): 0, ("two", 1): 0})
    for stream in streams.values():
        assert offsets_of(stream.poll(20_000)) == [0, 1, 2, 3, 4]
    streams["two", 1].pause()
    time.sleep(0.5)
    with fake.changed:
        fake.delete_topic("two")
        fake.create_topic("two", 2)
        for number in (0, 1):
            fake.write("two", number, records(0, 8))
    for stream in streams.values():
        stream.resume()
        assert after_loss(stream, 8) == list(range(8))


class Lagging:
    """Edits some Metadata replies, never two in a row, to that of a broker that still has the old id of orders."""

    def __init__(self, fake: FakeKafka, old_id: bytes) -> None:
        self.old_id = old_id
        self.active = False
        self._random = random.Random(1)
        self._was_old = False
        fake.edit_replies(METADATA, self._edit)

    def _edit(self, body: dict[str, Any]) -> dict[str, Any]:
        self._was_old = self.active and not self._was_old and self._random.random() < 0.6
        for row in body["topics"]:
            if self._was_old:
                row["topic_id"] = self.old_id
        return body


@by_name_in_make_test
def test_lagging_broker_does_not_return_reader_to_deleted_topic(fake: FakeKafka, consumer: Consumer) -> None:
    stream = consumer.consume_partition("orders", 0, EARLIEST)
    assert offsets_of(stream.poll(20_000)) == [0, 1, 2, 3, 4]
    lagging = Lagging(fake, stream.topic_id)
    recreate(fake, 3)
    with pytest.raises(TopicRecreated):
        for _ in stream.batches(20_000):
            pass
    lagging.active = True
    stream.seek(0)
    assert stream.topic_id not in (bytes(16), lagging.old_id)
    assert read_offsets(stream, 3) == [0, 1, 2]
    before, end_s, written = len(fake.request_bodies(METADATA)), time.monotonic() + 4, 3
    while time.monotonic() < end_s:
        fake.write("orders", 0, records(written, 1))
        assert read_offsets(stream, 1) == [written]
        written += 1
        time.sleep(0.02)
    assert len(fake.request_bodies(METADATA)) - before < 12


@by_name_in_make_test
def test_topic_is_not_recreated_while_a_broker_has_the_known_id(fake: FakeKafka, consumer: Consumer) -> None:
    """The reader has never had the other id: ids have no order, but the metadata of one broker never go back."""
    lagging, stream = Lagging(fake, OLD), consumer.consume_partition("orders", 0, EARLIEST)
    assert offsets_of(stream.poll(20_000)) == [0, 1, 2, 3, 4]
    lagging.active = True
    end_s, written = time.monotonic() + 4, 5
    while time.monotonic() < end_s:
        fake.write("orders", 0, records(written, 1))
        assert read_offsets(stream, 1) == [written]
        written += 1
        time.sleep(0.02)


def test_comparisons_that_fail_back_off(fake: FakeKafka) -> None:
    """The Fetch succeeds each time, so that it is not the end of the failure."""
    limit_version(fake, FETCH, LAST_WITH_TOPIC_NAMES)
    with (
        client_of(fake.bootstrap_servers, retry_backoff_ms=20, retry_backoff_max_ms=2_000) as client,
        consumer_of(client, {"fetch.max.wait.ms": 20}) as consumer,
    ):
        replies = itertools.count()

        def another(body: dict[str, Any]) -> dict[str, Any]:
            for row in body["topics"]:
                # After the id with which the leader is resolved: that of each comparison, and of some other broker.
                if next(replies) % 3 == 1:
                    row["topic_id"] = OLD
            return body

        fake.edit_replies(METADATA, another)
        stream = consumer.consume_partition("orders", 0, 0)
        assert stream.poll(2_000) is None
        assert len(fake.request_bodies(FETCH)) < 12


@by_name_in_make_test
def test_many_topics_are_compared_in_one_request(fake: FakeKafka, consumer: Consumer) -> None:
    topics = [f"topic-{number}" for number in range(20)]
    for name in topics:
        fake.create_topic(name, 1)
    consumer.consume_partitions({(name, 0): 0 for name in topics})
    before, end_s, read = len(fake.request_bodies(METADATA)), time.monotonic() + 4, 0
    for number in itertools.count():
        fake.write(topics[number % 20], 0, records(number // 20, 1))
        read += consumer.poll(1_000) is not None
        time.sleep(0.01)
        if time.monotonic() > end_s:
            break
    assert read > 100
    assert len(fake.request_bodies(METADATA)) - before <= 6


def test_steady_reading_rarely_requests_metadata(fake: FakeKafka, consumer: Consumer) -> None:
    stream = consumer.consume_partition("orders", 0, EARLIEST)
    stream.poll(20_000)
    before, written, end_s = len(fake.request_bodies(METADATA)), 5, time.monotonic() + 1
    while time.monotonic() < end_s:
        fake.write("orders", 0, records(written, 1))
        assert offsets_of(stream.poll(20_000)) == [written]
        written += 1
    assert written > 20
    assert len(fake.request_bodies(METADATA)) - before <= 2


def test_records_are_dropped_and_fetched_again_if_no_broker_confirms_the_topic(
    fake: FakeKafka, consumer: Consumer
) -> None:
    def unknown(body: dict[str, Any]) -> dict[str, Any]:
        for row in body["topics"]:
            row.update(error_code=int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), partitions=[])
        return body

    def then_unknown(body: dict[str, Any]) -> dict[str, Any]:
        fake.edit_replies(METADATA, unknown, 2)
        return body

    fake.edit_replies(FETCH, then_unknown, 1)
    stream = consumer.consume_partition("orders", 0, 0)
    assert offsets_of(stream.poll(20_000)) == [0, 1, 2, 3, 4]


class TestChecks:
    """When ids are compared."""

    @staticmethod
    def position(topic_id: bytes = OLD, topic: str = "orders") -> FetchPosition:
        return FetchPosition(topic, 0, 0, ConsumerConfig(), topic_id=topic_id)

    @staticmethod
    def due(
        checks: TopicIdChecks, asked: list[FetchPosition], read: list[FetchPosition], at_s: float, wait_s: float = 0.0
    ) -> list[FetchPosition]:
        """Return the due partitions after a reply at `at_s`."""
        return checks.due(BROKER, asked, read, set(), at_s - wait_s, at_s)

    def test_first_records_are_compared(self) -> None:
        checks, each = TopicIdChecks(), self.position()
        assert self.due(checks, [each], [], 1.0) == []
        assert self.due(checks, [each], [each], 1.1) == [each]

    def test_topics_without_ids_are_never_compared(self) -> None:
        checks, each = TopicIdChecks(), self.position(bytes(16))
        assert self.due(checks, [each], [each], 100.0) == []

    def test_long_wait_at_the_broker_is_no_pause(self) -> None:
        """A broker ends a waiting Fetch if the topic is deleted."""
        checks, each = TopicIdChecks(), self.position()
        checks.confirm([each], 10.0)
        assert self.due(checks, [each], [], 12.5, wait_s=2.5) == []
        assert self.due(checks, [each], [each], 12.9, wait_s=0.4) == []

    def test_records_after_a_pause_are_compared_once(self) -> None:
        checks, each = TopicIdChecks(), self.position()
        checks.confirm([each], 10.0)
        assert self.due(checks, [each], [], 10.1) == []
        assert self.due(checks, [each], [], 11.5) == [], "without records there is nothing to compare"
        assert self.due(checks, [each], [each], 11.6) == [each]
        checks.confirm([each], 11.6)
        assert self.due(checks, [each], [each], 11.7) == []

    def test_many_pauses_cost_one_request_per_second(self) -> None:
        checks, each = TopicIdChecks(), self.position()
        checks.confirm([each], 10.0)
        assert [self.due(checks, [each], [each], 10.0 + 0.3 * pause) for pause in (1, 2, 3, 4)] == [[], [], [], [each]]

    def test_topics_with_records_are_compared_together(self) -> None:
        checks = TopicIdChecks()
        each = [self.position(bytes([number]) * 16, f"topic-{number}") for number in (1, 2, 3, 4)]
        for number, position in enumerate(each):
            checks.confirm([position], 10.0 + number / 20)
        assert self.due(checks, each, [], 10.19) == []
        assert self.due(checks, each, each[:3], 10.3) == []
        assert self.due(checks, each, [], 13.1, wait_s=2.8) == each[:3]
        checks.confirm(each[:3], 13.1)
        assert [self.due(checks, each, each, at_s, wait_s=1.4) for at_s in (14.5, 15.9)] == [[], []]
        assert self.due(checks, each, [], 16.2, wait_s=0.3) == each

    def test_after_a_pause_all_partitions_of_the_broker_are_compared(self) -> None:
        checks, each, other = TopicIdChecks(), self.position(OLD), self.position(NEW, "other")
        failed = self.position(b"failed-topic-id-", "failed")
        assert checks.due(BROKER, [each, failed], [each], {failed}, 1.0, 1.0, lambda: [each, failed, other]) == [
            each,
            other,
        ]

    def test_delivered_records_are_compared_after_3_seconds_also_without_more(self) -> None:
        checks, each = TopicIdChecks(), self.position()
        checks.confirm([each], 10.0)
        assert self.due(checks, [each], [each], 10.1) == []
        assert [self.due(checks, [each], [], at_s, wait_s=1.0) for at_s in (11.1, 12.1)] == [[], []]
        assert self.due(checks, [each], [], 13.1, wait_s=1.0) == [each]
        checks.confirm([each], 13.1)
        assert self.due(checks, [each], [], 17.1, wait_s=4.0) == []

    def test_records_that_arrive_during_a_comparison_are_compared_later(self) -> None:
        checks, each = TopicIdChecks(), self.position()
        checks.confirm([each], 10.0)
        self.due(checks, [each], [each], 10.2)
        checks.confirm([each], 10.1)
        assert self.due(checks, [each], [], 13.2, wait_s=3.0) == [each]

    def test_confirmed_new_topic_does_not_confirm_the_old_one(self) -> None:
        checks, old, new = TopicIdChecks(), self.position(OLD), self.position(NEW)
        checks.confirm([old], 10.0)
        checks.drop([old])
        checks.confirm([new], 10.1)
        assert self.due(checks, [new], [new], 10.2) == []
        assert self.due(checks, [old], [old], 10.2) == [old]
