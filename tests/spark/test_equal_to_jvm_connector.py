"""Every row as Spark's own JVM connector reads it: `exceptAll` is empty both ways, on `awkward_topics`."""

from __future__ import annotations

import json
import time
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

from spark_kafka_source.local_kafka import LocalKafka
from tests import awkward_topics
from tests.awkward_topics import (
    BATCH_SIZES,
    CODEC_MIX,
    CODECS,
    COMPACTED,
    DELETED_PREFIX,
    EMPTY_CONTROL_BATCHES,
    LOG_APPEND_TIME,
    MIB,
    OPEN_TRANSACTION,
    SIZES,
    TIME_SWITCHED,
    TOPICS,
    TRANSACTIONS,
)
from tests.log_segments import StoredBatch, stored_batches

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

OURS = "pykafka-group"
JVM = "kafka"


@dataclass(frozen=True)
class Corpus:
    """The topics of `awkward_topics`, written, and the broker's files they lie in."""

    bootstrap: str
    data_folder: Path
    topics: tuple[str, ...]

    def stored(self, topic: awkward_topics.Topic, partition: int = 0) -> list[StoredBatch]:
        return stored_batches(self.data_folder, topic.name, partition)


@pytest.fixture(scope="module")
def corpus(kafka1: LocalKafka, spark: SparkSession) -> Corpus:
    folder = kafka1.data_folder(1)
    written = awkward_topics.write_all(kafka1.bootstrap_servers, folder, spark)
    return Corpus(kafka1.bootstrap_servers, folder, tuple(written))


@pytest.fixture
def stored(spark: SparkSession, tmp_path: Path) -> Callable[[DataFrame], DataFrame]:
    """Runs a batch or an `availableNow` query to its end; its rows, kept in files, so that it is read only once."""

    def run(rows: DataFrame) -> DataFrame:
        path = str(tmp_path / f"rows-{uuid.uuid4().hex}")
        if rows.isStreaming:
            writer = rows.writeStream.format("parquet").option("checkpointLocation", f"{path}-checkpoint")
            query = writer.option("path", path).trigger(availableNow=True).start()
            assert query.awaitTermination(120), "the query did not end"
        else:
            rows.write.parquet(path)
        return spark.read.schema(rows.schema).parquet(path)

    return run


def source(spark: SparkSession, name: str, corpus: Corpus, *, streaming: bool = False, **options: object) -> DataFrame:
    """The rows of all topics, from the beginning, as the source called `name` declares them."""
    chosen = {
        "kafka.bootstrap.servers": corpus.bootstrap,
        "subscribe": ",".join(corpus.topics),
        "startingOffsets": "earliest",
        **options,
    }
    reader = spark.readStream if streaming else spark.read
    for key, value in chosen.items():
        reader = reader.option(key, str(value))
    return reader.format(name).load()


def assert_same_rows(ours: DataFrame, theirs: DataFrame) -> None:
    """`exceptAll` both ways and the counts; a failure tells where the rows are that differ."""
    assert ours.schema == theirs.schema
    differences = {
        "only ours": ours.exceptAll(theirs),
        "only the JVM connector's": theirs.exceptAll(ours),
    }
    where = {
        which: [tuple(row) for row in rows.select("topic", "partition", "offset").take(20)]
        for which, rows in differences.items()
    }
    assert where == {"only ours": [], "only the JVM connector's": []}
    assert ours.count() == theirs.count()


@pytest.mark.parametrize("include_headers", [False, True], ids=["without headers", "with headers"])
@pytest.mark.parametrize("isolation_level", ["read_uncommitted", "read_committed"])
@pytest.mark.parametrize("streaming", [False, True], ids=["batch", "availableNow"])
def test_every_row_of_every_topic_is_as_the_jvm_connector_reads_it(
    spark: SparkSession,
    corpus: Corpus,
    stored: Callable[[DataFrame], DataFrame],
    streaming: bool,
    isolation_level: str,
    include_headers: bool,
) -> None:
    options = {"kafka.isolation.level": isolation_level, "includeHeaders": include_headers}
    ours, theirs = (source(spark, name, corpus, streaming=streaming, **options) for name in (OURS, JVM))
    assert ours.schema == theirs.schema
    rows = stored(ours)
    assert_same_rows(rows, stored(theirs))
    # A third opinion: two readers that skip the same rows would be equal, too.
    counts = {
        (topic, partition): count for topic, partition, count in rows.groupBy("topic", "partition").count().collect()
    }
    assert counts == counted_by_librdkafka(corpus.bootstrap, corpus.topics, isolation_level)


def test_small_batches_end_anywhere_and_miss_nothing(
    spark: SparkSession, corpus: Corpus, stored: Callable[[DataFrame], DataFrame]
) -> None:
    """Triggers that end within batches, transactions and gaps, or hold no row at all."""
    topics = [TRANSACTIONS, OPEN_TRANSACTION, COMPACTED, EMPTY_CONTROL_BATCHES]
    options = {"subscribe": ",".join(topic.name for topic in topics), "kafka.isolation.level": "read_committed"}
    ours = source(spark, OURS, corpus, streaming=True, maxOffsetsPerTrigger=499, **options)
    assert_same_rows(stored(ours), stored(source(spark, JVM, corpus, **options)))


@pytest.mark.parametrize("isolation_level", ["read_uncommitted", "read_committed"])
def test_ranges_that_begin_and_end_anywhere_hold_the_same_rows(
    spark: SparkSession, corpus: Corpus, stored: Callable[[DataFrame], DataFrame], isolation_level: str
) -> None:
    """Within a batch, a compressed one, a transaction, on a marker, in a gap, on both sides of a gap."""
    ranges = {
        BATCH_SIZES.name: [(10, 11), (7_999, 8_001), (77, 19_999), (12_345, 12_345)],
        CODEC_MIX.name: [(1 + partition, 300 - partition) for partition in range(CODEC_MIX.partitions)],
        SIZES.name: [(20, 24), (21, 22), (0, 26)],
        TRANSACTIONS.name: [(100, 333), (7, 600), (3, 21)],
        OPEN_TRANSACTION.name: [(6, 11)],
        DELETED_PREFIX.name: [(138, 200)],
        COMPACTED.name: [(500, 1_500), (1, 105), (3, 60)],
        EMPTY_CONTROL_BATCHES.name: [(5, 17)],
    }
    starting, ending = (
        json.dumps({topic: {str(p): bounds[end] for p, bounds in enumerate(of)} for topic, of in ranges.items()})
        for end in (0, 1)
    )
    options = {
        "subscribe": ",".join(ranges),
        "startingOffsets": starting,
        "endingOffsets": ending,
        "kafka.isolation.level": isolation_level,
    }
    ours = stored(source(spark, OURS, corpus, **options))
    assert_same_rows(ours, stored(source(spark, JVM, corpus, **options)))
    in_pieces = source(spark, OURS, corpus, minPartitions=60, **options)
    assert in_pieces.rdd.getNumPartitions() >= 60
    assert_same_rows(stored(in_pieces), ours)


def test_the_topics_hold_the_shapes_that_they_are_about(corpus: Corpus) -> None:
    """What is compared above would prove nothing if it were not there."""
    c_codecs = [{batch.codec for batch in corpus.stored(CODEC_MIX, number)} for number in range(5)]
    java_codecs = [{batch.codec for batch in corpus.stored(CODEC_MIX, 5 + number)} for number in range(5)]
    assert c_codecs == java_codecs == [{codec} for codec in CODECS]
    assert {batch.codec for batch in corpus.stored(CODEC_MIX, 10)} == set(CODECS)

    for partition, size in enumerate((16 * 1024, MIB, 16 * 1024, MIB)):
        largest = max(batch.bytes for batch in corpus.stored(BATCH_SIZES, partition))
        assert 0.9 * size < largest <= size
    assert max(batch.bytes for batch in corpus.stored(SIZES)) > 5_000_000

    assert all(batch.log_append_time for partition in range(2) for batch in corpus.stored(LOG_APPEND_TIME, partition))
    assert {batch.log_append_time for batch in corpus.stored(TIME_SWITCHED)} == {True, False}

    assert all(corpus.stored(TRANSACTIONS, partition)[-1].control for partition in range(3))
    assert any(not batch.control and not batch.records for batch in corpus.stored(COMPACTED, 2))
    assert any(batch.control and not batch.records for batch in corpus.stored(EMPTY_CONTROL_BATCHES))
    first = corpus.stored(COMPACTED)[0]
    assert (first.base_offset, first.last_offset, first.records) == (0, 1_999, 1)
    assert corpus.stored(DELETED_PREFIX)[0].base_offset < 137


@lru_cache
def counted_by_librdkafka(bootstrap: str, topics: tuple[str, ...], isolation_level: str) -> dict[tuple[str, int], int]:
    """How many records librdkafka finds in each partition that has any."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "nobody", "enable.auto.commit": False}
    settings |= {"isolation.level": isolation_level, "enable.partition.eof": True}
    consumer = Consumer(settings)
    unfinished = {(topic.name, p) for topic in TOPICS if topic.name in topics for p in range(topic.partitions)}
    consumer.assign([TopicPartition(*partition, OFFSET_BEGINNING) for partition in unfinished])
    counts: Counter[tuple[str, int]] = Counter()
    deadline_s = time.monotonic() + 60
    while unfinished:
        assert time.monotonic() < deadline_s, f"librdkafka finds no end of {unfinished}"
        for message in consumer.consume(1_000, timeout=0.2):
            partition = (message.topic(), message.partition())
            if message.error() is None:
                counts[partition] += 1
            else:
                assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                unfinished.discard(partition)
    consumer.close()
    return dict(counts)
