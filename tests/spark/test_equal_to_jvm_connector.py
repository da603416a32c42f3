"""Every row as Spark's own JVM connector reads it, on `awkward_topics`."""

from __future__ import annotations

import json
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

from spark_kafka_source.local_kafka import LocalKafka
from tests.support import awkward_topics
from tests.support.awkward_topics import (
    BATCH_SIZES,
    CODEC_MIX,
    CODECS,
    COMPACTED,
    DELETED_PREFIX,
    EMPTY,
    EMPTY_CONTROL_BATCHES,
    LOG_APPEND_TIME,
    MIB,
    OPEN_TRANSACTION,
    SIZES,
    TIME_SWITCHED,
    TOPICS,
    TRANSACTIONS,
    Topic,
)
from tests.support.log_segments import StoredBatch, stored_batches
from tests.support.soak import SOAK, variants
from tests.support.spark_frames import JVM, OURS, batch, stream

pytestmark = pytest.mark.soak

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WHERE = ("topic", "partition", "offset")

Options = Mapping[str, object]
RowsOf = Callable[["DataFrame"], pa.Table]
JvmRows = Callable[[bool, str], pa.Table]


@dataclass(frozen=True)
class Corpus:
    """The topics of `awkward_topics`, already written, and the broker's log directory."""

    bootstrap_servers: str
    data_folder: Path
    topics: tuple[str, ...]

    def stored(self, topic: Topic, partition: int = 0) -> list[StoredBatch]:
        return stored_batches(self.data_folder, topic.name, partition)


@pytest.fixture(scope="module")
def corpus(kafka1: LocalKafka, spark: SparkSession) -> Corpus:
    folder = kafka1.data_folder(1)
    written = awkward_topics.write_all(kafka1.bootstrap_servers, folder, spark)
    return Corpus(kafka1.bootstrap_servers, folder, tuple(written))


@pytest.fixture(scope="module")
def rows_of(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> RowsOf:
    """Run a batch or an `availableNow` query; return its rows, sorted by topic, partition and offset."""
    folder = tmp_path_factory.mktemp("rows")

    def run(rows: DataFrame) -> pa.Table:
        if rows.isStreaming:
            path = str(folder / uuid.uuid4().hex)
            writer = rows.writeStream.format("parquet").option("checkpointLocation", f"{path}-checkpoint")
            query = writer.option("compression", "none").trigger(availableNow=True).start(path)
            assert query.awaitTermination(120), "the query did not end"
            rows = spark.read.schema(rows.schema).parquet(path)
        return rows.toArrow().sort_by([(name, "ascending") for name in WHERE])

    return run


@pytest.fixture(scope="module")
def jvm_rows(spark: SparkSession, corpus: Corpus, rows_of: RowsOf) -> JvmRows:
    """Return `jvm_rows(streaming, isolation_level)`: all topics with headers, read by the JVM connector."""

    @cache
    def read(streaming: bool, isolation_level: str) -> pa.Table:
        options: Options = {"kafka.isolation.level": isolation_level, "includeHeaders": True}
        return rows_of(source(spark, JVM, corpus, options, streaming=streaming))

    return read


def source(spark: SparkSession, name: str, corpus: Corpus, options: Options, *, streaming: bool = False) -> DataFrame:
    """Load all topics from the beginning with the format `name`. An option that is None removes a default."""
    settings = {"subscribe": ",".join(corpus.topics), "startingOffsets": "earliest", **options}
    load = stream if streaming else batch
    return load(spark, corpus, name, **{key: value for key, value in settings.items() if value is not None})


def assert_same_rows(ours: pa.Table, expected: pa.Table) -> None:
    """Compare all columns, byte for byte. The failure shows rows of one side only, or the differing columns."""
    assert ours.schema == expected.schema
    assert ours.num_rows > 0
    if not ours.equals(expected):
        both = [{tuple(row[name] for name in WHERE): row for row in table.to_pylist()} for table in (ours, expected)]
        different = [where for where in both[0].keys() & both[1].keys() if both[0][where] != both[1][where]]
        lacking = sorted(both[0].keys() ^ both[1].keys())
        raise AssertionError(f"{ours.num_rows} and {expected.num_rows} rows: {lacking[:20]}, {sorted(different)[:20]}")


@pytest.mark.parametrize(
    ("streaming", "isolation_level", "include_headers"),
    [
        pytest.param(
            streaming, isolation_level, headers, id=f"{kind}-{isolation_level}-{'with' if headers else 'no'} headers"
        )
        for streaming, kind in ((False, "batch"), (True, "availableNow"))
        # Streams and batches share the code of tasks.
        for isolation_level in ("read_committed", *(["read_uncommitted"] if SOAK or not streaming else []))
        # Only the column `headers` differs; `make soak` compares the other combinations, too.
        for headers in ([True, False] if SOAK or (streaming, isolation_level) == (False, "read_committed") else [True])
    ],
)
def test_rows_of_all_awkward_topics_equal_jvm_connector(
    spark: SparkSession,
    corpus: Corpus,
    rows_of: RowsOf,
    jvm_rows: JvmRows,
    streaming: bool,
    isolation_level: str,
    include_headers: bool,
) -> None:
    """Slow: reads every awkward topic with both connectors; the first one fills the topics."""
    options: Options = {"kafka.isolation.level": isolation_level, "includeHeaders": include_headers}
    ours, expected = (source(spark, name, corpus, options, streaming=streaming) for name in (OURS, JVM))
    assert ours.schema == expected.schema
    rows = rows_of(ours)
    assert_same_rows(rows, jvm_rows(streaming, isolation_level).select(ours.columns))
    # Also compare with librdkafka: both connectors could skip the same rows.
    counts = {
        (row["topic"], row["partition"]): row["offset_count"]
        for row in rows.group_by(["topic", "partition"]).aggregate([("offset", "count")]).to_pylist()
    }
    assert counts == counted_by_librdkafka(corpus.bootstrap_servers, corpus.topics, isolation_level)


@variants(
    ("limit", "assigned"),
    [
        (499, {TRANSACTIONS: [0, 1, 2], OPEN_TRANSACTION: [0], COMPACTED: [0, 1, 2], EMPTY_CONTROL_BATCHES: [0]}),
        (3, {TRANSACTIONS: [2], OPEN_TRANSACTION: [0]}),
    ],
    (499, {TRANSACTIONS: [0, 2], OPEN_TRANSACTION: [0], COMPACTED: [1], EMPTY_CONTROL_BATCHES: [0]}),
)
def test_triggers_ending_within_batches_and_gaps_miss_no_row(
    spark: SparkSession,
    corpus: Corpus,
    rows_of: RowsOf,
    limit: int,
    assigned: dict[Topic, list[int]],
) -> None:
    """Triggers end within record batches, transactions and gaps, and on markers; some contain no row.

    Slow: runs many small triggers, and Spark's connector over the same rows.
    """
    assign = json.dumps({topic.name: partitions for topic, partitions in assigned.items()})
    options: Options = {"subscribe": None, "assign": assign, "kafka.isolation.level": "read_committed"}
    ours = source(spark, OURS, corpus, {**options, "maxOffsetsPerTrigger": limit}, streaming=True)
    assert_same_rows(rows_of(ours), rows_of(source(spark, JVM, corpus, options)))


def test_fetches_smaller_than_record_batch_return_every_row(
    spark: SparkSession, corpus: Corpus, rows_of: RowsOf, jvm_rows: JvmRows
) -> None:
    """Each reply has one record batch of any size, an empty batch, or a gap left by compaction."""
    tiny = {"kafka.max.partition.fetch.bytes": 1, "kafka.fetch.max.bytes": 1}
    options: Options = {**tiny, "kafka.isolation.level": "read_committed", "includeHeaders": True}
    assert_same_rows(rows_of(source(spark, OURS, corpus, options)), jvm_rows(False, "read_committed"))


# The test of whole partitions has both isolation levels.
@variants("isolation_level", ["read_uncommitted", "read_committed"], "read_committed")
def test_ranges_with_arbitrary_bounds_equal_jvm_connector(
    spark: SparkSession, corpus: Corpus, rows_of: RowsOf, isolation_level: str
) -> None:
    """Ranges begin and end within (compressed) batches, transactions and gaps, beside gaps, and on markers."""
    ranges = {
        BATCH_SIZES.name: [(10, 11), (7_999, 8_001), (77, 9_999), (1_234, 1_234)],
        CODEC_MIX.name: [(1, 1_520), (299, 700)],
        SIZES.name: [(18, 22), (20, 21), (0, 23)],
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
    options: Options = {
        "subscribe": ",".join(ranges),
        "startingOffsets": starting,
        "endingOffsets": ending,
        "kafka.isolation.level": isolation_level,
    }
    ours = rows_of(source(spark, OURS, corpus, options))
    assert_same_rows(ours, rows_of(source(spark, JVM, corpus, options)))
    in_pieces = source(spark, OURS, corpus, {**options, "minPartitions": 40})
    assert in_pieces.rdd.getNumPartitions() > 3 * len(ranges)
    assert_same_rows(rows_of(in_pieces), ours)


@pytest.mark.parametrize(
    "chosen",
    [
        {"subscribePattern": "awkward-(empty|t.*)"},
        {
            "assign": json.dumps({TRANSACTIONS.name: [2, 0], EMPTY.name: [1], DELETED_PREFIX.name: [0]}),
            "startingOffsets": json.dumps(
                {TRANSACTIONS.name: {"0": -2, "2": 3}, EMPTY.name: {"1": -2}, DELETED_PREFIX.name: {"0": -2}}
            ),
            "endingOffsets": json.dumps(
                {TRANSACTIONS.name: {"0": -1, "2": -1}, EMPTY.name: {"1": -1}, DELETED_PREFIX.name: {"0": 150}}
            ),
        },
    ],
    ids=["subscribePattern", "assign"],
)
def test_assigned_partitions_give_rows_of_jvm_connector(
    spark: SparkSession, corpus: Corpus, rows_of: RowsOf, chosen: dict[str, str]
) -> None:
    ours, expected = (rows_of(source(spark, name, corpus, {"subscribe": None, **chosen})) for name in (OURS, JVM))
    assert_same_rows(ours, expected)


def test_awkward_topics_contain_intended_record_batches(corpus: Corpus) -> None:
    """Check that the comparisons above meet each kind of record batch."""
    for partition in range(2):
        codecs = [batch.codec for batch in corpus.stored(CODEC_MIX, partition)]
        assert list(dict.fromkeys(codecs)) == list(CODECS)

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


@cache
def counted_by_librdkafka(bootstrap: str, topics: tuple[str, ...], isolation_level: str) -> dict[tuple[str, int], int]:
    """Return the number of records by partition, as librdkafka reads them; empty partitions are left out."""
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
            partition = (str(message.topic()), message.partition() or 0)
            error = message.error()
            if error is None:
                counts[partition] += 1
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error
                unfinished.discard(partition)
    consumer.close()
    return dict(counts)
