"""A query of Spark's own connector continues with this format, and back, as in docs/migrating.md."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from spark_kafka_source.local_kafka import LocalKafka
from tests.conftest import TopicFactory
from tests.support.consumer_groups import describe
from tests.support.documents import block
from tests.support.librdkafka import produce
from tests.support.spark_frames import JVM, OURS, stream, write


@pytest.mark.timeout(600)
def test_checkpoint_moves_from_jvm_connector_and_back(
    spark: SparkSession, kafka1: LocalKafka, topic1: TopicFactory, tmp_path: Path
) -> None:
    """A stateful query: each value is sent before and after a move, and is output once.

    Slow: four queries with shuffles, on one checkpoint.
    """
    name, checkpoint, output = topic1(2), str(tmp_path / "orders"), str(tmp_path / "output")

    def write_numbers(start: int, end: int) -> None:
        rows = spark.range(start, end).selectExpr("cast(id as string) as key", "cast(id div 2 as string) as value")
        write(rows, kafka1, topic=name)

    def run(format: str, **more: str) -> list[int]:
        rows = stream(spark, kafka1, format, subscribe=name, **more)
        distinct = rows.selectExpr("cast(value as string) as value").dropDuplicates()
        writer = distinct.writeStream.format("parquet").option("checkpointLocation", checkpoint)
        query = writer.trigger(availableNow=True).start(output)
        assert query.awaitTermination(200)
        written: list[Any] = spark.read.schema("value string").parquet(output).collect()
        return sorted(int(row.value) for row in written)

    write_numbers(0, 11)
    assert run(JVM) == list(range(6))
    write_numbers(11, 21)
    assert run(OURS, kafka_group_id=name) == list(range(11))
    assert sum(row.current_offset or 0 for row in describe(kafka1, name)) == 21
    write_numbers(21, 31)
    with pytest.raises(StreamingQueryException, match="Expected e"):
        run(JVM)
    exec(block("migrating.md", "crc").with_names({'"/checkpoints/orders"': repr(checkpoint)}), {})
    assert run(JVM) == list(range(16))


def test_checkpoint_without_complete_batch_is_reported_with_starting_offsets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Spark's own connector stores the start of a query in a file that Python sources cannot read."""
    checkpoint = tmp_path / "orders"
    shutil.copytree(Path(__file__).parent / "driver" / "checkpoints" / "connector" / "checkpoint", checkpoint)
    check = block("migrating.md", "sources/*/0").with_names({'"/checkpoints/orders"': repr(str(checkpoint))})
    exec(check, {})
    assert capsys.readouterr().out.startswith("complete:")
    (checkpoint / "commits" / "0").unlink()
    exec(check, {})
    assert capsys.readouterr().out == 'source 0: set startingOffsets to {"older-connector":{"0":0,"1":0}}\n'


def test_second_action_reads_offsets_of_first_until_new_load(
    spark: SparkSession, kafka1: LocalKafka, topic1: TopicFactory, tmp_path: Path
) -> None:
    name = topic1()
    options = {"kafka.bootstrap.servers": kafka1.bootstrap_servers, "subscribe": name}
    for key in "012":
        produce(kafka1, name, "v", key=key)
    names: dict[str, Any] = {"spark": spark, "options": options, "path": str(tmp_path / "joined")}
    exec(block("migrating.md", "def orders(").text, names)
    rows = names["orders"]()
    rows.createOrReplaceTempView("planned_once")
    assert rows.count() == 3
    for key in "34":
        produce(kafka1, name, "v", key=key)
    # The docs say so: a table has the offsets of its first plan.
    assert (rows.count(), spark.table("planned_once").count()) == (3, 3)
    assert names["orders"]().count() == 5
    exec(block("migrating.md", "def enrich(").text, names)
    names["enrich"](spark.range(0, 9).selectExpr("cast(cast(id as string) as binary) as key"), 0)
    assert spark.read.parquet(f"{names['path']}/0").count() == 5
