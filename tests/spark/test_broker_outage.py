"""Brokers stop and return while a query runs: it continues, and delivers every row once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from spark_kafka_source.local_kafka import LocalKafka
from tests.conftest import TopicFactory
from tests.support.consumer_groups import wait_for_lag_zero
from tests.support.member_queries import new_group
from tests.support.soak import SOAK, scaled
from tests.support.spark_frames import stream
from tests.support.wait_until import attempts, comes_true

pytestmark = pytest.mark.soak

# In `make soak` the outage of all brokers takes a minute, and each broker is killed alone before.
OUTAGE_S = scaled("OUTAGE_S", 5.0, 60.0)
KILLED = 3 if SOAK else 0
PARTITIONS = 3


class Rows:
    """Collects the rows of a query by batch id. A replayed batch replaces its rows."""

    def __init__(self) -> None:
        self.by_batch: dict[int, list[tuple[int, int]]] = {}

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        self.by_batch[batch_id] = [(row[0], row[1]) for row in batch.select("partition", "offset").collect()]

    def all(self) -> list[tuple[int, int]]:
        return sorted(row for rows in list(self.by_batch.values()) for row in rows)


def start(spark: SparkSession, kafka: LocalKafka, topic: str, group: str, rows: Rows, folder: Path) -> StreamingQuery:
    writer = stream(spark, kafka, subscribe=topic, kafka_group_id=group).writeStream.foreachBatch(rows)
    writer = writer.option("checkpointLocation", str(folder))
    return writer.trigger(processingTime="200 milliseconds").start()


def produce(kafka: LocalKafka, topic: str, records: int) -> None:
    """Write `records` records to each partition. Brokers may still be restarting."""
    settings = {"bootstrap.servers": kafka.bootstrap_servers, "enable.idempotence": True, "log_level": 0}
    producer = Producer(settings)
    for n in range(records):
        for partition in range(PARTITIONS):
            producer.produce(topic, value=f"v{n}", partition=partition)
    assert producer.flush(60) == 0


def wait_until(condition: Callable[[], bool], query: StreamingQuery, timeout_s: float = 90) -> None:
    for _ in attempts(timeout_s, 0.1):
        if condition():
            return
        assert query.isActive, f"the query died: {query.exception()}"
    raise AssertionError(f"the condition did not hold within {timeout_s} s")


def every_row(records: int) -> list[tuple[int, int]]:
    return [(partition, offset) for partition in range(PARTITIONS) for offset in range(records)]


@pytest.mark.timeout(600)
def test_query_continues_after_kills_of_single_brokers_and_of_all(
    spark: SparkSession, kafka: LocalKafka, topic: TopicFactory, tmp_path: Path
) -> None:
    """Slow: kills and restarts brokers, at the end all of them for five seconds."""
    name, group, rows = topic(PARTITIONS, replication_factor=3), new_group(), Rows()
    produce(kafka, name, 50)
    query = start(spark, kafka, name, group, rows, tmp_path)
    wait_until(lambda: len(rows.all()) == 50 * PARTITIONS, query)
    records = 50
    for broker in kafka.broker_ids[:KILLED]:
        kafka.kill(broker)
        try:
            produce(kafka, name, 50)
            records += 50
            wait_until(lambda expected=records: len(rows.all()) >= expected * PARTITIONS, query)  # type: ignore[misc]
        finally:
            kafka.start(broker)
    assert rows.all() == every_row(records)
    wait_for_lag_zero(kafka, group, PARTITIONS)

    for broker in kafka.broker_ids:
        kafka.pause(broker)  # neither replies nor resets: the outage that clients detect last
    try:
        for broker in kafka.broker_ids:
            kafka.kill(broker)
        assert not comes_true(lambda: not query.isActive, OUTAGE_S), f"the query died: {query.exception()}"
    finally:
        for broker in kafka.broker_ids:
            kafka.resume(broker)
        kafka.start(*kafka.broker_ids)
    produce(kafka, name, 50)
    records += 50
    wait_until(lambda: len(rows.all()) >= records * PARTITIONS, query)
    assert rows.all() == every_row(records)
    wait_for_lag_zero(kafka, group, PARTITIONS)
    query.stop()
