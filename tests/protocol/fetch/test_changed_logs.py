"""Logs that change while they are read: compacted since planning, or of a recreated topic."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from protocol.cluster.client import Client
from protocol.errors import TopicRecreated
from protocol.fetch.consumer import Consumer
from protocol.fetch.log_offsets import Range
from protocol.fetch.partition_consumer import PartitionConsumer
from protocol.kafka_terms import EARLIEST
from protocol.testing.fake_kafka.server import FakeKafka
from protocol.wire.messages.m01_fetch import FETCH, LAST_WITH_TOPIC_NAMES
from spark_kafka_source.local_kafka import LocalKafka
from spark_kafka_source.local_kafka.config import version_numbers
from tests.conftest import KAFKA_VERSION, TopicFactory
from tests.protocol.fetch.consuming import (
    client_of,
    consumer_of,
    offsets_of,
    produce,
    reader,
    records,
    rows_of,
    skip_recreated,
)
from tests.support import awkward_topics
from tests.support.log_segments import stored_batches
from tests.support.older_brokers import limit_version
from tests.support.small_cluster import recreate_topic
from tests.support.topic_changes import recreate
from tests.support.topic_writers import Topic
from tests.support.whole_rows import rows_of_librdkafka, rows_of_ours


@pytest.mark.skipif(
    version_numbers(KAFKA_VERSION) < (3, 1), reason="a Fetch has topic ids since Kafka 3.1; see docs/decisions/0044"
)
def test_topic_recreated_after_planning_is_skipped_at_any_length(kafka1: LocalKafka, topic1: TopicFactory) -> None:
    """The cached leaders are those of the old topic. No record of the new topic is read instead."""
    names = [topic1(1) for _ in range(3)]
    for name in names:
        produce(kafka1, name, range(15))
    with client_of(kafka1) as client:
        ranges = [Range(name, 0, 10, 15, topic_id=client.topic(name).topic_id) for name in names]
        for source_range in ranges:
            assert len(rows_of(reader(client, [source_range]))[source_range]) == 5
        recreate(kafka1, *names)
        for name, length in zip(names, [4, 15, 20], strict=True):
            produce(kafka1, name, range(length))
        consumer = reader(client, ranges, on_loss=skip_recreated)
        assert rows_of(consumer) == {}
        assert sorted(loss.topic for loss in consumer.skipped) == sorted(names)
        assert sum(source_range.until_offset - source_range.from_offset for source_range in consumer.skipped) == 15


# -- compacted logs -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def compacted(kafka1: LocalKafka) -> Iterator[tuple[Client, str, str]]:
    """Yield a client, a topic with a gap of 2,000 offsets at the end of a batch, and one with an empty control
    batch."""
    folder = kafka1.data_folder(1)
    with pytest.MonkeyPatch.context() as patch, client_of(kafka1) as client:
        for name in ("COMPACTED", "EMPTY_CONTROL_BATCHES"):
            usual: Topic = getattr(awkward_topics, name)
            topic = Topic(f"ranges-{usual.name}", usual.partitions, usual.settings)
            patch.setattr(awkward_topics, name, topic)
        gaps, controls = awkward_topics.COMPACTED, awkward_topics.EMPTY_CONTROL_BATCHES
        awkward_topics.create(kafka1.bootstrap_servers, [gaps, controls])
        awkward_topics.write_compacted(kafka1.bootstrap_servers)
        started_ms = awkward_topics.write_aborted_transaction_to_compact(kafka1.bootstrap_servers)
        awkward_topics.wait_until_compacted(folder, version_numbers(kafka1.version) >= (3, 1))
        awkward_topics.overwrite_until_control_batch_is_empty(kafka1.bootstrap_servers, folder, started_ms)
        awkward_topics.stop_the_cleaner(kafka1.bootstrap_servers, folder)
        yield client, gaps.name, controls.name


def test_gap_of_2000_offsets_costs_at_most_3_fetches(compacted: tuple[Client, str, str]) -> None:
    client, name, _ = compacted
    # Fetches are too small for the batch before the gap and the batch behind it.
    consumer = reader(client, [Range(name, 0, 0, 2_001)], {"max.partition.fetch.bytes": 100})
    rows = rows_of(consumer)
    assert rows[Range(name, 0, 0, 2_001)][0][0] == 0
    assert consumer.fetches <= 3
    inside = reader(client, [Range(name, 0, 500, 1_500)])
    assert rows_of(inside) == {}
    assert inside.fetches == 1


@pytest.mark.parametrize("isolation_level", ["read_committed", "read_uncommitted"])
def test_ranges_without_visible_rows_end_at_once(
    kafka1: LocalKafka, compacted: tuple[Client, str, str], isolation_level: str
) -> None:
    client, _, name = compacted
    controls = [batch for batch in stored_batches(kafka1.data_folder(1), name) if batch.control]
    empty = [batch for batch in controls if not batch.records]
    assert empty, "the log cleaner left no empty control batch"
    for batch in [*controls[:3], *empty[:3]]:
        expected = Range(name, 0, batch.base_offset, batch.last_offset + 1)
        started_s = time.monotonic()
        consumer = reader(client, [expected], {"isolation.level": isolation_level, "fetch.max.wait.ms": 20_000})
        assert rows_of(consumer) == {}
        assert time.monotonic() - started_s < 15
        assert consumer.fetches == 1


@pytest.mark.parametrize("isolation_level", ["read_committed", "read_uncommitted"])
def test_compacted_logs_are_read_as_by_librdkafka(
    compacted: tuple[Client, str, str], kafka1: LocalKafka, isolation_level: str
) -> None:
    _, gaps, controls = compacted
    partitions = [*((gaps, number) for number in range(3)), (controls, 0)]
    assert rows_of_ours(kafka1, partitions, isolation_level) == rows_of_librdkafka(kafka1, partitions, isolation_level)


# -- open partitions of recreated topics ---------------------------------------------------------


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
    recreate_topic(fake, "orders", count=count)
    fake.write("orders", 0, records(count, 1))
    stream.resume()
    with pytest.raises(TopicRecreated, match="deleted and created again"):
        stream.poll(20_000)
    stream.seek(0)
    assert read_offsets(stream, count + 1) == list(range(count + 1))


def test_topic_fetched_by_name_is_compared_after_metadata_max_age(fake: FakeKafka) -> None:
    """Before Kafka 3.1, a Fetch has no topic id: the records of the new topic have the wanted offsets."""
    limit_version(fake, FETCH, LAST_WITH_TOPIC_NAMES)
    with (
        client_of(fake.bootstrap_servers, metadata_max_age_ms=200) as client,
        consumer_of(client, {"fetch.max.wait.ms": 20}) as consumer,
    ):
        stream = consumer.consume_partition("orders", 0, EARLIEST)
        assert offsets_of(stream.poll(20_000)) == [0, 1, 2, 3, 4]
        recreate_topic(fake, "orders", count=8)
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
    recreate_topic(fake, "two", 2, 8)
    for stream in streams.values():
        stream.resume()
        assert after_loss(stream, 8) == list(range(8))
