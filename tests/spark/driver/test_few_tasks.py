"""`maxInputPartitions`: tasks of several ranges read the same rows, each from few leaders, also in a replay."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from pyspark.sql import DataFrame, SparkSession

from spark_kafka_source.driver.stream_reader import KafkaStreamReader
from spark_kafka_source.local_kafka import LocalKafka
from spark_kafka_source.options.parsing import parse_source_options
from tests.conftest import TopicFactory
from tests.support.noop_queries import row_count, run_query

PARTITIONS = 9
ROWS = 4_500


def content(rows: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in rows.collect())


def test_few_tasks_of_many_partitions_read_same_rows_as_jvm_connector(
    spark: SparkSession, kafka: LocalKafka, topic: TopicFactory, tmp_path: Path
) -> None:
    name = topic(PARTITIONS)
    fill(kafka, name)
    common = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "subscribe": name, "startingOffsets": "earliest"}
    # The JVM connector waits this long once or twice per task.
    expected = content(spark.read.format("kafka").options(**common, **{"kafka.fetch.max.wait.ms": "20"}).load())
    assert len(expected) == ROWS
    for more, tasks in (
        ({"maxInputPartitions": 3}, 3),
        ({"maxInputPartitions": 2, "maxRecordsPerPartition": 70}, 2),
        ({"maxRecordsPerPartition": 300}, 18),
    ):
        ours = spark.read.format("pykafka-group").options(**common, **more).load()
        assert ours.rdd.getNumPartitions() == tasks
        assert content(ours) == expected

    options = {**common, "maxInputPartitions": "3"}
    rows = spark.readStream.format("pykafka-group").options(**options).load()
    assert row_count(run_query(rows, tmp_path)) == ROWS
    start = {name: {str(n): 0 for n in range(PARTITIONS)}}
    end = json.loads((tmp_path / "offsets" / "0").read_text().splitlines()[-1])
    leaders = leaders_of(kafka, name)
    assert end["@leaders"] == {name: {str(n): leader for n, leader in leaders.items()}}
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


def fill(kafka: LocalKafka, topic: str) -> None:
    """Write 100 records to the first partition, 200 to the second, …"""
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0, "linger.ms": 20})
    for partition in range(PARTITIONS):
        for n in range(100 * (partition + 1)):
            producer.produce(topic, value=f"v{n}", key=f"k{n % 3}", partition=partition)
    assert producer.flush(30) == 0


def leaders_of(kafka: LocalKafka, topic: str) -> dict[int, int]:
    client = AdminClient({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
    partitions = client.list_topics(topic, timeout=30).topics[topic].partitions
    return {number: partitions[number].leader for number in sorted(partitions)}
