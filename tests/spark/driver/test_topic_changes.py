"""Topics that change while a query runs: added partitions or topics, deleted topics. Records: `test_data_loss`."""

from __future__ import annotations

import json
import uuid
from collections import Counter
from pathlib import Path
from threading import Event

import pytest
from confluent_kafka.admin import NewPartitions
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from spark_kafka_source.local_kafka import LocalKafka
from tests.conftest import TopicFactory
from tests.spark.driver.topic_admin import admin, produce
from tests.support.consumer_groups import wait_for_lag_zero
from tests.support.noop_queries import row_count, run_query
from tests.support.spark_frames import JVM, OURS, stream
from tests.support.wait_for_brokers import wait_until_known

Rows = list[tuple[int, int]]


def test_new_partitions_of_running_query_are_read_from_beginning(
    spark: SparkSession, kafka: LocalKafka, topic: TopicFactory, tmp_path: Path
) -> None:
    """Slow: waits for the group's commits of a running query twice."""
    name, group = topic(1), f"group-{uuid.uuid4().hex[:8]}"
    result: Counter[int] = Counter()
    busy, filled = Event(), Event()

    def count(batch: DataFrame, _: int) -> None:
        result.update(row.partition for row in batch.select("partition").collect())
        busy.set()
        assert filled.wait(60)

    query = (
        stream(spark, kafka, subscribe=name, startingOffsets="latest", kafka_group_id=group)
        .writeStream.foreachBatch(count)
        .option("checkpointLocation", str(tmp_path))
        .trigger(processingTime="100 milliseconds")
        .start()
    )
    wait_for_lag_zero(kafka, group, partitions=1)
    produce(kafka, name, "v", 1)
    assert busy.wait(60)
    # The query is busy with a batch, so it finds the new partitions when they already have records.
    client = admin(kafka)
    client.create_partitions([NewPartitions(name, 3)])[name].result(30)
    wait_until_known(kafka, name, 3)
    for partition in range(3):
        produce(kafka, name, "v", 10, partition=partition)
    filled.set()
    rows = wait_for_lag_zero(kafka, group, partitions=3)
    query.stop()
    assert [row.current_offset for row in rows] == [11, 10, 10]
    assert result == {0: 11, 1: 10, 2: 10}


def test_pattern_reads_topics_created_later(
    spark: SparkSession, kafka: LocalKafka, topic: TopicFactory, tmp_path: Path
) -> None:
    prefix = f"pattern{uuid.uuid4().hex[:6]}"
    first = topic(1, prefix=prefix)
    produce(kafka, first, "v", 3)
    rows = stream(spark, kafka, subscribePattern=f"^{prefix}-.*")
    assert row_count(run_query(rows, tmp_path)) == 3
    second = topic(2, prefix=prefix)
    produce(kafka, second, "v", 4, partition=1)
    assert row_count(run_query(rows, tmp_path)) == 4


def test_checkpoint_equals_format_of_jvm_connector_plus_ids_and_epochs(
    spark: SparkSession, kafka: LocalKafka, topic: TopicFactory, tmp_path: Path
) -> None:
    name = topic(2)
    produce(kafka, name, "v", 7, partition=1)
    assert row_count(run_query(stream(spark, kafka, subscribe=name), tmp_path)) == 7
    offsets = json.loads((tmp_path / "offsets" / "0").read_text().splitlines()[-1])
    assert offsets[name] == {"0": 0, "1": 7}
    # Only the first batch has `@joined` for all partitions.
    assert set(offsets) == {name, "@ids", "@epochs", "@joined", "@cluster"}
    assert list(offsets["@ids"]) == [name]
    assert offsets["@joined"] == {name: {"0": 0, "1": 0}}


def test_replay_of_failed_first_batch_has_rows_of_jvm_connector(
    spark: SparkSession, kafka: LocalKafka, topic: TopicFactory, tmp_path: Path
) -> None:
    """Partition 1 has no row in the first batch, and more when it is replayed: its start is the former end.

    Slow: four queries, two with each connector.
    """
    name = topic(2)
    starts = f'{{"{name}": {{"0": 3, "1": -1}}}}'
    delivered: dict[str, dict[int, Rows]] = {OURS: {}, JVM: {}}
    failed: dict[str, dict[int, Rows]] = {source: {} for source in delivered}

    def run(source: str, batches: dict[int, Rows], error: Exception | None = None) -> None:
        def keep(batch: DataFrame, batch_id: int) -> None:
            batches[batch_id] = sorted((row[0], row[1]) for row in batch.select("partition", "offset").collect())
            if error:
                raise error

        rows = stream(spark, kafka, source, subscribe=name, startingOffsets=starts)
        writer = rows.writeStream.foreachBatch(keep)
        writer = writer.option("checkpointLocation", str(tmp_path / source)).trigger(availableNow=True)
        assert writer.start().awaitTermination(120)

    for partition in range(2):
        produce(kafka, name, "v", 5, partition=partition)
    for source, batches in failed.items():
        with pytest.raises(StreamingQueryException):
            run(source, batches, RuntimeError("on purpose"))
    for partition in range(2):
        produce(kafka, name, "v", 3, partition=partition)
    for source, batches in delivered.items():
        run(source, batches)
        assert batches[0] == failed[source][0] == [(0, 3), (0, 4)]
        rows = sorted(row for batch in batches.values() for row in batch)
        assert rows == [*((0, offset) for offset in range(3, 8)), *((1, offset) for offset in range(5, 8))]
