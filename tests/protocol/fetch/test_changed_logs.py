"""Ranges of logs that have changed since planning: compacted, or of a recreated topic."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from protocol.cluster.client import Client
from protocol.fetch.log_offsets import Range
from spark_kafka_source.local_kafka import LocalKafka
from spark_kafka_source.local_kafka.config import version_numbers
from tests.conftest import KAFKA_VERSION, TopicFactory
from tests.protocol.fetch.consuming import client_of, produce, reader, rows_of, skip_recreated
from tests.support import awkward_topics
from tests.support.log_segments import stored_batches
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
