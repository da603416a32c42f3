"""Topics that are deleted and created again while they are read."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest

from protocol.errors import TopicRecreated
from protocol.fetch.consumer import Consumer
from protocol.fetch.partition_consumer import PartitionConsumer
from protocol.kafka_terms import EARLIEST
from protocol.testing.fake_kafka.server import FakeKafka
from protocol.wire.messages.m01_fetch import FETCH, LAST_WITH_TOPIC_NAMES
from protocol.wire.messages.m03_metadata import METADATA
from tests.protocol.fetch.consuming import client_of, consumer_of, offsets_of, records
from tests.support.older_brokers import limit_version

OLD = b"old-topic-id----"


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


def test_topic_fetched_by_name_is_compared_after_metadata_max_age(fake: FakeKafka) -> None:
    """Before Kafka 3.1, a Fetch has no topic id: the records of the new topic have the wanted offsets."""
    limit_version(fake, FETCH, LAST_WITH_TOPIC_NAMES)
    with (
        client_of(fake.bootstrap_servers, metadata_max_age_ms=200) as client,
        consumer_of(client, {"fetch.max.wait.ms": 20}) as consumer,
    ):
        stream = consumer.consume_partition("orders", 0, EARLIEST)
        assert offsets_of(stream.poll(20_000)) == [0, 1, 2, 3, 4]
        recreate(fake, 8)
        assert after_loss(stream, 8) == list(range(8))


def test_partitions_of_a_recreated_topic_are_each_detected(fake: FakeKafka, consumer: Consumer) -> None:
    """The first one returns to the new topic before the second one is compared."""
    fake.create_topic("two", 2)
    for number in (0, 1):
        fake.write("two", number, records(0, 5))
    streams = consumer.consume_partitions({("two", 0): 0, ("two", 1): 0})
    for stream in streams.values():
        assert offsets_of(stream.poll(20_000)) == [0, 1, 2, 3, 4]
    streams["two", 1].pause()
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


@pytest.mark.soak
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
    assert len(fake.request_bodies(METADATA)) - before < 12


@pytest.mark.soak
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
