"""A streaming query as a member of its group: it shares partitions with other members, and what it reads is committed.

Other members are queries, and consumers of librdkafka, in both protocols.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from spark_kafka_source.local_kafka import LocalKafka
from tests.conftest import TopicFactory
from tests.consumer_groups import described_by_kafka, wait_for_lag_zero

PROTOCOLS = pytest.mark.parametrize("protocol", ["classic", "consumer"])

Key = tuple[int, int]


class Run:
    """One run of a query. `rows`: (partition, offset) of all that it has handed over, in the order of its batches."""

    def __init__(self) -> None:
        self.rows: list[Key] = []
        self.query: StreamingQuery

    def keep(self, batch: DataFrame, batch_id: int) -> None:
        self.rows += [(row.partition, row.offset) for row in batch.select("partition", "offset").collect()]

    @property
    def partitions(self) -> set[int]:
        return {partition for partition, _ in self.rows}

    def await_(self, condition: Callable[[], object], timeout_s: float = 60) -> None:
        give_up_s = time.monotonic() + timeout_s
        while not condition():
            if error := self.query.exception():
                raise error
            assert time.monotonic() < give_up_s, f"not so after {timeout_s:.0f} s"
            time.sleep(0.05)


def fill(kafka: LocalKafka, topic: str, partitions: int, records: int) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "linger.ms": 20})
    for partition in range(partitions):
        for n in range(records):
            producer.produce(topic, value=f"v{n}", partition=partition)
    assert producer.flush(30) == 0


@contextmanager
def query_of(
    spark: SparkSession, kafka: LocalKafka, topic: str, group: str, protocol: str, checkpoint: Path, **options: str
) -> Iterator[Run]:
    run = Run()
    reader = spark.readStream.format("pykafka-group").option("kafka.bootstrap.servers", kafka.bootstrap_servers)
    reader = reader.option("subscribe", topic).option("kafka.group.id", group).option("kafka.group.protocol", protocol)
    reader = reader.option("kafka.auto.offset.reset", "earliest").options(**options)
    if protocol == "classic":
        reader = reader.option("kafka.session.timeout.ms", "10000").option("kafka.heartbeat.interval.ms", "200")
    writer = reader.load().writeStream.foreachBatch(run.keep).option("checkpointLocation", str(checkpoint))
    run.query = writer.trigger(processingTime="100 milliseconds").start()
    try:
        yield run
        assert run.query.exception() is None
    finally:
        run.query.stop()


@contextmanager
def librdkafka_of(kafka: LocalKafka, topic: str, group: str, protocol: str) -> Iterator[Consumer]:
    settings: dict[str, Any] = {
        "bootstrap.servers": kafka.bootstrap_servers,
        "group.id": group,
        "group.protocol": protocol,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    if protocol == "classic":
        settings |= {"partition.assignment.strategy": "cooperative-sticky", "heartbeat.interval.ms": 200}
    consumer = Consumer(settings)
    consumer.subscribe([topic])
    try:
        yield consumer
    finally:
        consumer.close()


def new_group() -> str:
    return f"group-{uuid.uuid4().hex[:8]}"


@PROTOCOLS
def test_two_queries_share_a_topic_and_each_row_is_of_one_of_them(
    spark: SparkSession, kafka1: LocalKafka, topic1: TopicFactory, tmp_path: Path, protocol: str
) -> None:
    name, group = topic1(4), new_group()
    fill(kafka1, name, 4, 10)
    with query_of(spark, kafka1, name, group, protocol, tmp_path / "a") as first:
        first.await_(lambda: len(first.rows) == 40)
        with query_of(spark, kafka1, name, group, protocol, tmp_path / "b") as second:

            def shared() -> bool:
                fill(kafka1, name, 4, 1)
                wait_for_lag_zero(kafka1, group, 4)
                return len(second.partitions) == 2

            second.await_(shared)
        stopped_s, before = time.monotonic(), len(first.rows)
        fill(kafka1, name, 4, 5)
        first.await_(lambda: len(first.rows) >= before + 20)
        assert time.monotonic() - stopped_s < 8, "who is stopped leaves at once, not when its session ends"
        ends = {row.partition: row.current_offset or 0 for row in wait_for_lag_zero(kafka1, group, 4)}
    rows = sorted(first.rows + second.rows)
    assert rows == [(partition, offset) for partition, end in ends.items() for offset in range(end)], "each row once"
