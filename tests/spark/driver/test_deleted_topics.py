"""A topic deleted within a batch: the query fails with the cause, or continues with the other topics within seconds."""

from __future__ import annotations

import time
import uuid
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from protocol.cluster import unknown_topic
from spark_kafka_source.driver.stream_reader import KafkaStreamReader
from spark_kafka_source.local_kafka import LocalKafka
from spark_kafka_source.local_kafka.config import version_numbers
from spark_kafka_source.options.parsing import parse_source_options
from spark_kafka_source.plan.offsets import JsonDict
from tests.conftest import KAFKA_VERSION, NEEDS_KIP_848, TopicFactory
from tests.spark.driver.topic_admin import produce
from tests.support.spark_frames import stream
from tests.support.topic_changes import delete_topics
from tests.support.wait_until import wait_until

pytestmark = pytest.mark.skipif(
    version_numbers(KAFKA_VERSION) < (3, 3), reason="brokers with ZooKeeper prove no deletion within seconds"
)

UNPROVEN_MS = 60_000
"""A topic counts as deleted after this time, and three times of it in a task, if brokers do not prove the deletion.
About 2 s are expected with proof."""


def options(prefix: str) -> dict[str, str]:
    return {"subscribePattern": f"^{prefix}-.*", "startingOffsets": "earliest", "failOnDataLoss": "false"}


def two_topics(topic: TopicFactory) -> tuple[str, str, str]:
    prefix = f"deleted{uuid.uuid4().hex[:6]}"
    return prefix, topic(1, prefix=prefix), topic(1, prefix=prefix)


def rows_by_topic(reader: KafkaStreamReader, start: JsonDict, end: JsonDict) -> Counter[str]:
    result: Counter[str] = Counter()
    for task in reader.partitions(start, end):
        for batch in reader.read(task):
            result.update(batch.column("topic").to_pylist())
    return result


@pytest.mark.parametrize("protocol", ["none", pytest.param("consumer", marks=NEEDS_KIP_848)])
def test_topic_deleted_within_batch_delays_other_topics_by_seconds(
    protocol: str, kafka: LocalKafka, topic: TopicFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unknown_topic, "TRANSIENT_UNKNOWN_MS", UNPROVEN_MS)
    prefix, retained, deleted = two_topics(topic)
    for name in (retained, deleted):
        produce(kafka, name, "first", 3)
    group = {"kafka.group.id": f"group-{prefix}", "kafka.group.protocol": protocol}
    inputs = {"kafka.bootstrap.servers": kafka.bootstrap_servers, **options(prefix), **group}
    reader = KafkaStreamReader(parse_source_options(inputs, streaming=True))
    limit = reader.getDefaultReadLimit()
    try:
        begin = reader.initialOffset()
        first = reader.latestOffset(begin, limit)
        while not {retained, deleted} <= first.keys():
            begin, first = first, reader.latestOffset(first, limit)
        for name in (retained, deleted):
            produce(kafka, name, "next", 2)
        planned = reader.latestOffset(first, limit)
        delete_topics(kafka, deleted)
        produce(kafka, retained, "last", 5)
        began_s = time.monotonic()
        assert rows_by_topic(reader, first, planned) == {retained: 2}
        read_s = time.monotonic() - began_s
        end = reader.latestOffset(planned, limit)
        planned_s = time.monotonic() - began_s - read_s
        assert rows_by_topic(reader, planned, end) == {retained: 5}
        assert deleted not in end
    finally:
        reader.stop()
    assert read_s < UNPROVEN_MS / 1000
    assert planned_s < UNPROVEN_MS / 1000


def test_query_of_pattern_survives_topic_deleted_within_batch(
    spark: SparkSession, kafka: LocalKafka, topic: TopicFactory, tmp_path: Path
) -> None:
    prefix, retained, deleted = two_topics(topic)
    for name in (retained, deleted):
        produce(kafka, name, "first", 3)
    result: Counter[str] = Counter()

    def read(batch: DataFrame, number: int) -> None:
        if number == 1:
            delete_topics(kafka, deleted)
            produce(kafka, retained, "last", 5)
        result.update(row.topic for row in batch.select("topic").collect())

    rows = stream(spark, kafka, **options(prefix))
    query = rows.writeStream.foreachBatch(read).option("checkpointLocation", str(tmp_path)).start()
    query.processAllAvailable()
    for name in (retained, deleted):
        produce(kafka, name, "next", 2)
    wait_until(lambda: query.exception() or result[retained] >= 10, timeout_s=60, every_s=0.05)
    assert query.exception() is None
    query.stop()
    assert result[retained] == 10
