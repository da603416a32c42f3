"""Partitions of the rows of Spark's tasks. tests/protocol/producer compares partitions of keys with other clients."""

from __future__ import annotations

from collections import Counter

from pyspark.sql import SparkSession

from spark_kafka_source.local_kafka import LocalKafka
from tests.conftest import TopicFactory
from tests.support.log_segments import stored_batches
from tests.support.read_back import read_back
from tests.support.spark_frames import write


def test_rows_without_key_are_spread_and_keyed_rows_stay_together(
    spark: SparkSession, kafka1: LocalKafka, topic1: TopicFactory
) -> None:
    name = topic1(4)
    rows = spark.range(0, 20_000, 1, 2).selectExpr(
        "if(id % 2 = 0, NULL, concat('k', id % 100)) AS key", "lpad(cast(id AS string), 100, '0') AS value"
    )
    write(rows, kafka1, topic=name)
    records = read_back(kafka1, name)
    assert sorted(int(record.value or b"") for record in records) == list(range(20_000))
    without_key = Counter(record.partition for record in records if record.key is None)
    assert set(without_key) == {0, 1, 2, 3}
    assert max(without_key.values()) < 2 * min(without_key.values())
    of_key: dict[bytes, set[int]] = {}
    for record in records:
        if record.key is not None:
            of_key.setdefault(record.key, set()).add(record.partition)
    assert len(of_key) == 50
    assert all(len(partitions) == 1 for partitions in of_key.values())


def test_small_rows_of_few_tasks_fill_record_batches_of_all_partitions(
    spark: SparkSession, kafka1: LocalKafka, topic1: TopicFactory
) -> None:
    """Java's producer does so with its smaller `batch.size`. With ours, 1 MiB, a task here writes about one batch."""
    name = topic1(7)
    write(spark.range(0, 70_000, 1, 2).selectExpr("lpad(cast(id AS string), 20, '0') AS value"), kafka1, topic=name)
    records = read_back(kafka1, name)
    assert sorted(int(record.value or b"") for record in records) == list(range(70_000))
    counts = Counter(record.partition for record in records)
    assert set(counts) == set(range(7))
    assert max(counts.values()) < 1.5 * min(counts.values())
    for partition in range(7):
        numbers = [int(record.value or b"") for record in records if record.partition == partition]
        for first in (0, 35_000):
            own = [number for number in numbers if first <= number < first + 35_000]
            assert own == sorted(own)
        assert len(stored_batches(kafka1.data_folder(1), name, partition)) == 2, "one of each task"
