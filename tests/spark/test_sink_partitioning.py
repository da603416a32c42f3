"""Which partition a row goes to: the one a Java producer, under Spark's own connector, gives the same key."""

from __future__ import annotations

import random
from collections import Counter

from pyspark.sql import SparkSession

from spark_kafka_source.local_kafka import LocalKafka
from tests.conftest import TopicFactory
from tests.read_back import read_back

PARTITIONS = 13


def some_keys(count: int) -> list[bytes]:
    """Different keys of 0 to 40 and, rarely, some thousand bytes, text and any bytes; the empty one among them."""
    chosen = random.Random(7)
    keys = {b"", b"\x00", b"\xff" * 4, "schlüssel".encode()}
    while len(keys) < count:
        size = chosen.randrange(2_000, 5_000) if chosen.random() < 0.001 else chosen.randrange(41)
        key = chosen.randbytes(size)
        keys.add(key if chosen.random() < 0.5 else key.hex().encode())
    return sorted(keys)


def test_ten_thousand_keys_go_where_a_java_producer_puts_them(
    spark: SparkSession, kafka1: LocalKafka, topic1: TopicFactory
) -> None:
    keys = some_keys(10_000)
    rows = spark.createDataFrame([(key, key) for key in keys], "key binary, value binary").repartition(2)
    partition_of: dict[str, dict[bytes | None, int]] = {}
    for sink in ("pykafka-group", "kafka"):
        name = topic1(PARTITIONS)
        writer = rows.write.format(sink).option("kafka.bootstrap.servers", kafka1.bootstrap_servers)
        writer.option("topic", name).mode("append").save()
        found = read_back(kafka1, name)
        assert sorted(record.value or b"" for record in found) == keys
        partition_of[sink] = {record.key: record.partition for record in found}
    assert partition_of["pykafka-group"] == partition_of["kafka"]
    assert b"" in partition_of["pykafka-group"]
    assert set(partition_of["kafka"].values()) == set(range(PARTITIONS))


def test_rows_without_a_key_are_spread_and_keyed_rows_between_them_stay(
    spark: SparkSession, kafka1: LocalKafka, topic1: TopicFactory
) -> None:
    name = topic1(4)
    rows = spark.range(0, 20_000, 1, 2).selectExpr(
        "if(id % 2 = 0, NULL, concat('k', id % 100)) AS key", "lpad(cast(id AS string), 100, '0') AS value"
    )
    writer = rows.write.format("pykafka-group").option("kafka.bootstrap.servers", kafka1.bootstrap_servers)
    writer.option("topic", name).option("kafka.batch.size", 16_384).mode("append").save()
    found = read_back(kafka1, name)
    assert sorted(int(record.value or b"") for record in found) == list(range(20_000))
    without_key = Counter(record.partition for record in found if record.key is None)
    assert set(without_key) == {0, 1, 2, 3}
    assert max(without_key.values()) < 2 * min(without_key.values())
    of_key: dict[bytes, set[int]] = {}
    for record in found:
        if record.key is not None:
            of_key.setdefault(record.key, set()).add(record.partition)
    assert len(of_key) == 50
    assert all(len(partitions) == 1 for partitions in of_key.values())
