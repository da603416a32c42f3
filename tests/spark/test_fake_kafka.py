"""Spark's JVM connector on the in-memory cluster: a Java client in other threads and processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocol.testing import FakeKafka

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_jvm_connector_reads_and_writes(spark: SparkSession) -> None:
    with FakeKafka(2) as kafka:
        kafka.create_topic("orders", 3)
        kafka.create_topic("copies", 2)
        kafka.produce("orders", *map(str, range(50)))
        servers = {"kafka.bootstrap.servers": kafka.bootstrap_servers}
        rows = spark.read.format("kafka").options(**servers, subscribe="orders").load()
        rows.select("key", "value").write.format("kafka").options(**servers, topic="copies").save()
        assert sorted(int(record.value) for record in kafka.records("copies")) == list(range(50))
