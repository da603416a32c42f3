"""Options of the source on a real Kafka: timestamps, `minOffsetsPerTrigger`, columns and filters."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from spark_kafka_source.local_kafka import LocalKafka
from tests.conftest import TopicFactory
from tests.support.noop_queries import row_count, run_query, start_query
from tests.support.spark_frames import batch, stream
from tests.support.wait_until import wait_until

# Timestamps are in the past.
NO_RETENTION = {"retention.ms": "-1"}
T0_MS = 1_700_000_000_000


def produce(kafka: LocalKafka, topic: str, partition: int, timestamps_ms: list[int]) -> None:
    """Write one record per timestamp; values are numbered."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
    for n, timestamp_ms in enumerate(timestamps_ms):
        producer.produce(topic, value=f"v{n}", key=f"k{n % 3}", partition=partition, timestamp=timestamp_ms)
    assert producer.flush(30) == 0


@contextmanager
def setting(spark: SparkSession, name: str, value: str) -> Iterator[None]:
    spark.conf.set(name, value)
    try:
        yield
    finally:
        spark.conf.unset(name)


def content(rows: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in rows.collect())


# -- timestamps -----------------------------------------------------------------------------------


@pytest.fixture
def timed(kafka1: LocalKafka, topic1: TopicFactory) -> str:
    """Create a topic with rising, unordered and equal timestamps, and an empty partition."""
    name = topic1(4, config=NO_RETENTION)
    produce(kafka1, name, 0, [T0_MS + 10 * n for n in range(100)])
    produce(kafka1, name, 1, [T0_MS + ms for ms in (500, 100, 700, 300, 900, 200)])
    produce(kafka1, name, 2, [T0_MS + 400] * 5)
    return name


def each(topic: str, *times: object) -> str:
    return json.dumps({topic: {str(number): when for number, when in enumerate(times)}})


def test_timestamp_after_last_record_fails_unless_strategy_is_latest(
    spark: SparkSession, kafka1: LocalKafka, timed: str
) -> None:
    with pytest.raises(
        Exception, match=r"startingTimestamp: no record of .*-2, .*-3 is at or after its time"
    ) as caught:
        batch(spark, kafka1, subscribe=timed, startingTimestamp=T0_MS + 401).collect()
    assert "startingOffsetsByTimestampStrategy=latest" in str(caught.value)
    with pytest.raises(Exception, match=r"KAFKA_TIMESTAMP_OFFSET_DOES_NOT_MATCH_ASSIGNED.*lacks"):
        batch(spark, kafka1, subscribe=timed, startingOffsetsByTimestamp=each(timed, 0, 0)).collect()


def test_resolved_start_after_end_offset_fails_batch(spark: SparkSession, kafka1: LocalKafka, timed: str) -> None:
    options = {"assign": json.dumps({timed: [0]}), "startingTimestamp": T0_MS + 500}
    with pytest.raises(Exception, match="RESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET") as caught:
        batch(spark, kafka1, endingOffsets=json.dumps({timed: {"0": 20}}), **options).collect()
    assert f"{timed}-0 would be read from offset 50, which is after its end, offset 20" in str(caught.value)


# -- waiting for more -----------------------------------------------------------------------------


def rows_of_batches(query: StreamingQuery) -> list[int]:
    """Return the progress of micro-batches with rows."""
    return [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]


def test_triggers_below_min_offsets_wait_at_most_max_trigger_delay(
    spark: SparkSession, kafka1: LocalKafka, topic1: TopicFactory, tmp_path: Path
) -> None:
    name = topic1(2, config=NO_RETENTION)
    produce(kafka1, name, 0, [T0_MS] * 3)
    options = {"subscribe": name, "minOffsetsPerTrigger": 5}

    def seen() -> int:
        progress = query.lastProgress
        latest = progress and progress.sources[0].latestOffset
        return sum(json.loads(latest)[name].values()) if latest else 0

    with (
        setting(spark, "spark.sql.streaming.noDataProgressEventInterval", "100ms"),
        setting(spark, "spark.sql.streaming.numRecentProgressUpdates", "10000"),
    ):
        query = start_query(stream(spark, kafka1, **options), tmp_path, processingTime="0 seconds")
        wait_until(lambda: rows_of_batches(query) == [3], timeout_s=60)  # the first batch does not wait
        produce(kafka1, name, 0, [T0_MS] * 4)
        wait_until(lambda: seen() == 7, timeout_s=60)
        assert rows_of_batches(query) == [3]
        produce(kafka1, name, 1, [T0_MS])
        wait_until(lambda: rows_of_batches(query) == [3, 5], timeout_s=60)  # minOffsetsPerTrigger is reached
        query.stop()

        options = {**options, "maxTriggerDelay": "1s"}
        query = start_query(stream(spark, kafka1, **options), tmp_path, processingTime="0 seconds")
        wait_until(lambda: seen() == 8, timeout_s=60)
        produce(kafka1, name, 0, [T0_MS])
        wait_until(lambda: rows_of_batches(query) == [1], timeout_s=60)  # maxTriggerDelay has passed
        query.stop()


def test_available_now_reads_rest_below_min_offsets(
    spark: SparkSession, kafka1: LocalKafka, topic1: TopicFactory, tmp_path: Path
) -> None:
    name = topic1(1, config=NO_RETENTION)
    produce(kafka1, name, 0, [T0_MS] * 23)
    limits = {"minOffsetsPerTrigger": 5, "maxOffsetsPerTrigger": 10}
    query = run_query(stream(spark, kafka1, subscribe=name, **limits), tmp_path)
    assert rows_of_batches(query) == [10, 10, 3]


# -- columns and filters --------------------------------------------------------------------------


def test_option_columns_selects_columns_of_source(
    spark: SparkSession, kafka1: LocalKafka, timed: str, tmp_path: Path
) -> None:
    complete = batch(spark, kafka1, subscribe=timed, includeHeaders=True)
    all_rows = complete.collect()
    assert len(all_rows) == 111
    for columns in (["offset", "partition"], ["value", "headers", "timestamp"], ["topic"], ["timestampType", "key"]):
        rows = batch(spark, kafka1, subscribe=timed, columns=",".join(columns))
        assert rows.schema == complete.select(columns).schema
        assert content(rows) == sorted(tuple(row[name] for name in columns) for row in all_rows)
    assert row_count(run_query(stream(spark, kafka1, subscribe=timed, columns="value"), tmp_path)) == 111
    with pytest.raises(Exception, match="'colour' is no column"):
        batch(spark, kafka1, subscribe=timed, columns="colour")


def test_dataframe_with_filter_pushdown_has_all_rows_without_filter(
    spark: SparkSession, kafka1: LocalKafka, timed: str
) -> None:
    """PySpark reuses one plan for all queries of a `load()`, so pushed filters of one would apply to all."""
    with setting(spark, "spark.sql.python.filterPushdown.enabled", "true"):
        rows = batch(spark, kafka1, subscribe=timed).select("partition", "offset")
        every = content(rows)
        early, late = rows.where("offset < 3"), rows.where("offset >= 3")
        assert content(early) == [row for row in every if row[1] < 3]
        assert content(rows) == every
        assert content(early.union(late)) == every
