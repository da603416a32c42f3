"""A query of Spark's own connector goes on with this one, and back, as docs/migrating.md says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from spark_kafka_source.local_kafka import LocalKafka
from tests.conftest import TopicFactory
from tests.consumer_groups import describe
from tests.documents import block

OURS, JVM = "pykafka-group", "kafka"


@pytest.mark.timeout(600)
def test_a_checkpoint_is_taken_over_and_given_back(
    spark: SparkSession, kafka1: LocalKafka, topic1: TopicFactory, tmp_path: Path
) -> None:
    """A query with state: each value comes twice, once before each move, and must be seen once."""
    name, checkpoint, output = topic1(2), str(tmp_path / "orders"), str(tmp_path / "output")
    kafka = {"kafka.bootstrap.servers": kafka1.bootstrap_servers}

    def produce(start: int, end: int) -> None:
        rows = spark.range(start, end).selectExpr("cast(id as string) as key", "cast(id div 2 as string) as value")
        rows.write.format(OURS).options(**kafka, topic=name).mode("append").save()

    def run(format: str, **more: str) -> list[int]:
        rows = (
            spark.readStream.format(format).options(**kafka, subscribe=name, startingOffsets="earliest", **more).load()
        )
        distinct = rows.selectExpr("cast(value as string) as value").dropDuplicates()
        writer = distinct.writeStream.format("parquet").option("checkpointLocation", checkpoint)
        query = writer.trigger(availableNow=True).start(output)
        assert query.awaitTermination(200)
        seen: list[Any] = spark.read.schema("value string").parquet(output).collect()
        return sorted(int(row.value) for row in seen)

    produce(0, 11)
    assert run(JVM) == list(range(6))
    produce(11, 21)
    assert run(OURS, **{"kafka.group.id": name}) == list(range(11))
    assert sum(row.current_offset or 0 for row in describe(kafka1, name)) == 21
    produce(21, 31)
    with pytest.raises(StreamingQueryException, match="Expected e"):
        run(JVM)
    exec(block("migrating.md", "crc").with_names({'"/checkpoints/orders"': repr(checkpoint)}), {})
    assert run(JVM) == list(range(16))
