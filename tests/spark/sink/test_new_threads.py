"""Writes from Python threads other than the one that created the session."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from spark_kafka_source import foreach_batch_writer
from spark_kafka_source.local_kafka import LocalKafka
from spark_kafka_source.source import register
from tests.conftest import TopicFactory
from tests.support.background import background
from tests.support.documents import block
from tests.support.read_back import read_back
from tests.support.spark_frames import write, write_stream


@pytest.fixture
def rows(spark: SparkSession) -> DataFrame:
    return spark.range(3).selectExpr("string(id) AS value")


def test_foreach_batch_writer_works_in_new_thread(kafka1: LocalKafka, topic1: TopicFactory, rows: DataFrame) -> None:
    name = topic1()
    writer = foreach_batch_writer({"kafka.bootstrap.servers": kafka1.bootstrap_servers, "topic": name})
    with background(lambda: writer(rows, 0)):
        pass
    assert sorted(record.value for record in read_back(kafka1, name)) == [b"0", b"1", b"2"]


def test_batch_and_stream_write_work_in_new_thread_after_register(
    spark: SparkSession, kafka1: LocalKafka, topic1: TopicFactory, rows: DataFrame, tmp_path: Path
) -> None:
    name = topic1()
    (tmp_path / "lines").mkdir()
    (tmp_path / "lines" / "lines.txt").write_text("3\n")

    def work() -> None:
        register(spark)
        write(rows, kafka1, topic=name)
        lines = spark.readStream.format("text").load(str(tmp_path / "lines"))
        write_stream(lines, kafka1, tmp_path / "checkpoint", topic=name)

    with background(work):
        pass
    assert sorted(record.value for record in read_back(kafka1, name)) == [b"0", b"1", b"2", b"3"]


def test_example_of_troubleshooting_writes_from_threads(
    spark: SparkSession, kafka1: LocalKafka, topic1: TopicFactory, tmp_path: Path
) -> None:
    europe, asia = topic1(), topic1()
    (tmp_path / "lines").mkdir()
    (tmp_path / "lines" / "lines.txt").write_text(f"{europe}\n{asia}\n")
    lines = spark.readStream.format("text").load(str(tmp_path / "lines"))
    names = {"orders": lines.selectExpr("value AS region", "'key' AS key", "value")}
    places = {"broker-1:9092": kafka1.bootstrap_servers, "checkpoints/regions": str(tmp_path / "checkpoint")}
    places |= {'"europe"': f'"{europe}"', '"asia"': f'"{asia}"'}
    exec(block("troubleshooting.md", "ThreadPoolExecutor(2").with_names(places), names)
    query = names["query"]
    query.processAllAvailable()
    query.stop()
    for name in (europe, asia):
        assert [record.value for record in read_back(kafka1, name)] == [name.encode()]
