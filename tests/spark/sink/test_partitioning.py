"""Partitions of rows equal those that Java's producer (in Spark's own connector) or librdkafka chooses for the key."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession

from spark_kafka_source.local_kafka import LocalKafka
from tests.conftest import TopicFactory
from tests.support.log_segments import stored_batches
from tests.support.read_back import read_back

PARTITIONS = 13


def some_keys(count: int) -> list[bytes]:
    """Return distinct keys of 0 to 40 bytes, rarely some thousand, of text and of random bytes."""
    rng = random.Random(7)
    keys = {b"", b"\x00", b"\xff" * 4, "schlüssel".encode()}
    while len(keys) < count:
        size = rng.randrange(2_000, 5_000) if rng.random() < 0.001 else rng.randrange(41)
        key = rng.randbytes(size)
        keys.add(key if rng.random() < 0.5 else key.hex().encode())
    return sorted(keys)


def test_default_partitioner_places_keys_as_java_producer(
    spark: SparkSession, kafka1: LocalKafka, topic1: TopicFactory
) -> None:
    keys = some_keys(10_000)
    rows = spark.createDataFrame([(key, key) for key in keys], "key binary, value binary").repartition(2)
    partition_of: dict[str, dict[bytes | None, int]] = {}
    for sink in ("pykafka-group", "kafka"):
        name = topic1(PARTITIONS)
        writer = rows.write.format(sink).option("kafka.bootstrap.servers", kafka1.bootstrap_servers)
        writer.option("topic", name).mode("append").save()
        records = read_back(kafka1, name)
        assert sorted(record.value or b"" for record in records) == keys
        partition_of[sink] = {record.key: record.partition for record in records}
    assert partition_of["pykafka-group"] == partition_of["kafka"]
    assert b"" in partition_of["pykafka-group"]
    assert set(partition_of["kafka"].values()) == set(range(PARTITIONS))


def write(rows: DataFrame, kafka: LocalKafka, topic: str, **options: object) -> None:
    writer = rows.write.format("pykafka-group").option("kafka.bootstrap.servers", kafka.bootstrap_servers)
    writer.option("topic", topic).options(**options).mode("append").save()  # type: ignore[arg-type]


class TestPartitionerClass:
    """The option `kafka.partitioner.class`."""

    @pytest.mark.parametrize(
        ("ours", "reference"),
        [
            ("murmur2", "murmur2"),
            ("org.apache.kafka.clients.producer.internals.DefaultPartitioner", "murmur2"),
            ("fnv1a", "fnv1a"),
            ("crc32", "consistent"),
        ],
    )
    def test_librdkafka_partitioners_place_keys_as_librdkafka(
        self, spark: SparkSession, kafka1: LocalKafka, topic1: TopicFactory, ours: str, reference: str
    ) -> None:
        keys, name = [key for key in some_keys(1_000) if key], topic1(PARTITIONS)
        rows = spark.createDataFrame([(key, "ours") for key in keys], "key binary, value string").coalesce(2)
        write(rows, kafka1, name, **{"kafka.partitioner.class": ours})
        producer = Producer({"bootstrap.servers": kafka1.bootstrap_servers, "partitioner": reference})
        for key in keys:
            producer.produce(name, key=key, value=b"theirs")
        assert producer.flush(30) == 0
        placed: dict[bytes | None, dict[bytes | None, int]] = {b"ours": {}, b"theirs": {}}
        for record in read_back(kafka1, name):
            placed[record.value][record.key] = record.partition
        assert placed[b"ours"] == placed[b"theirs"]
        assert set(placed[b"ours"].values()) == set(range(PARTITIONS))

    @pytest.mark.parametrize("ours", ["round_robin", "org.apache.kafka.clients.producer.RoundRobinPartitioner"])
    def test_round_robin_partitioner_ignores_keys(
        self, spark: SparkSession, kafka1: LocalKafka, topic1: TopicFactory, ours: str
    ) -> None:
        name = topic1(PARTITIONS)
        rows = spark.range(PARTITIONS * 30).coalesce(1).selectExpr("'same' AS key", "cast(id AS string) AS value")
        write(rows, kafka1, name, **{"kafka.partitioner.class": ours})
        assert Counter(record.partition for record in read_back(kafka1, name)) == dict.fromkeys(range(PARTITIONS), 30)

    def test_random_partitioner_spreads_rows_of_one_key(
        self, spark: SparkSession, kafka1: LocalKafka, topic1: TopicFactory
    ) -> None:
        name = topic1(PARTITIONS)
        rows = spark.range(PARTITIONS * 100).coalesce(1).selectExpr("'same' AS key", "cast(id AS string) AS value")
        write(rows, kafka1, name, **{"kafka.partitioner.class": "random"})
        counts = Counter(record.partition for record in read_back(kafka1, name))
        assert set(counts) == set(range(PARTITIONS))
        assert 40 < min(counts.values()) < max(counts.values()) < 250


def test_rows_without_key_are_spread_and_keyed_rows_stay_together(
    spark: SparkSession, kafka1: LocalKafka, topic1: TopicFactory
) -> None:
    name = topic1(4)
    rows = spark.range(0, 20_000, 1, 2).selectExpr(
        "if(id % 2 = 0, NULL, concat('k', id % 100)) AS key", "lpad(cast(id AS string), 100, '0') AS value"
    )
    write(rows, kafka1, name)
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
    write(spark.range(0, 70_000, 1, 2).selectExpr("lpad(cast(id AS string), 20, '0') AS value"), kafka1, name)
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
