"""`maxInputPartitions`: tasks of several ranges read the same rows, each from few leaders, also in a replay."""

from __future__ import annotations

import json
from pathlib import Path

from pyspark.sql import SparkSession

from spark_kafka_source.driver.stream_reader import KafkaStreamReader
from spark_kafka_source.local_kafka import LocalKafka
from spark_kafka_source.options.parsing import parse_source_options
from tests.conftest import TopicFactory
from tests.spark.driver.topic_admin import admin, produce
from tests.support.noop_queries import row_count, run_query
from tests.support.spark_frames import JVM, batch, stream

PARTITIONS = 9
ROWS = 4_500


def test_few_tasks_of_many_partitions_read_same_rows_as_jvm_connector(
    spark: SparkSession, kafka: LocalKafka, topic: TopicFactory, tmp_path: Path
) -> None:
    name = topic(PARTITIONS)
    for partition in range(PARTITIONS):
        produce(kafka, name, "v", 100 * (partition + 1), partition=partition)
    expected = sorted(batch(spark, kafka, JVM, subscribe=name).collect())
    assert len(expected) == ROWS
    for more, tasks in (
        ({"maxInputPartitions": 3}, 3),
        ({"maxInputPartitions": 2, "maxRecordsPerPartition": 70}, 2),
        ({"maxRecordsPerPartition": 300}, 18),
    ):
        ours = batch(spark, kafka, subscribe=name, **more)
        assert ours.rdd.getNumPartitions() == tasks
        assert sorted(ours.collect()) == expected

    rows = stream(spark, kafka, subscribe=name, maxInputPartitions=3)
    assert row_count(run_query(rows, tmp_path)) == ROWS
    start = {name: {str(n): 0 for n in range(PARTITIONS)}}
    end = json.loads((tmp_path / "offsets" / "0").read_text().splitlines()[-1])
    partitions = admin(kafka).list_topics(name, timeout=30).topics[name].partitions
    leaders = {number: partitions[number].leader for number in sorted(partitions)}
    assert end["@leaders"] == {name: {str(n): leader for n, leader in leaders.items()}}
    options = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "subscribe": name, "maxInputPartitions": "3"}
    source_options = parse_source_options(options, streaming=True)
    # A replay has the same tasks.
    first, second = (
        [task.ranges for task in KafkaStreamReader(source_options).partitions(start, end)] for _ in range(2)
    )
    assert first == second
    assert len(first) == 3
    sizes = [sum(source_range.size for source_range in task) for task in first]
    assert sum(sizes) == ROWS
    assert max(sizes) <= 1_500 + 900
    changes = sum(len({leaders[source_range.partition] for source_range in task}) - 1 for task in first)
    assert changes <= 2, "at most one task at each border between leaders reads from two"
