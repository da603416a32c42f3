"""Writes from Python threads other than the one that created the session."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from spark_kafka_source import foreach_batch_writer
from spark_kafka_source.local_kafka import LocalKafka
from spark_kafka_source.source import register
from tests.conftest import TopicFactory
from tests.support.documents import block
from tests.support.read_back import read_back

CONNECT = "kafka.bootstrap.servers"


def in_new_thread(work: Callable[[], object]) -> None:
    failures: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(120)
    assert not thread.is_alive()
    for failure in failures:
        raise failure


@pytest.fixture
def rows(spark: SparkSession) -> DataFrame:
    return spark.range(3).selectExpr("string(id) AS value")


def test_foreach_batch_writer_works_in_new_thread(kafka1: LocalKafka, topic1: TopicFactory, rows: DataFrame) -> None:
    name = topic1()
    write = foreach_batch_writer({CONNECT: kafka1.bootstrap_servers, "topic": name})
    in_new_thread(lambda: write(rows, 0))
    assert sorted(record.value for record in read_back(kafka1, name)) == [b"0", b"1", b"2"]


def test_batch_and_stream_write_work_in_new_thread_after_register(
    spark: SparkSession, kafka1: LocalKafka, topic1: TopicFactory, rows: DataFrame, tmp_path: Path
) -> None:
    name = topic1()
    options = {CONNECT: kafka1.bootstrap_servers, "topic": name}
    (tmp_path / "lines").mkdir()
    (tmp_path / "lines" / "lines.txt").write_text("3\n")

    def work() -> None:
        register(spark)
        rows.write.format("pykafka-group").options(**options).mode("append").save()
        lines = spark.readStream.format("text").load(str(tmp_path / "lines"))
        stream = lines.writeStream.format("pykafka-group").options(**options).trigger(availableNow=True)
        assert stream.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination(60)

    in_new_thread(work)
    assert sorted(record.value for record in read_back(kafka1, name)) == [b"0", b"1", b"2", b"3"]


def test_example_of_troubleshooting_writes_from_threads(
    spark: SparkSession, kafka1: LocalKafka, topic1: TopicFactory, tmp_path: Path
) -> None:
    europe, asia = topic1(), topic1()
    (tmp_path / "lines").mkdir()
    (tmp_path / "lines" / "lines.txt").write_text(f"{europe}\n{asia}\n")
    lines = spark.readStream.format("text").load(str(tmp_path / "lines"))
    names = {"orders": lines.selectExpr("value AS region", "'key' AS key", "value")}
    text = block("troubleshooting.md", "ThreadPoolExecutor(2").with_names(
        {
            "broker-1:9092": kafka1.bootstrap_servers,
            "checkpoints/regions": str(tmp_path / "checkpoint"),
            '"europe"': f'"{europe}"',
            '"asia"': f'"{asia}"',
        }
    )
    exec(text, names)
    query = names["query"]
    query.processAllAvailable()
    query.stop()
    assert [[record.value for record in read_back(kafka1, name)] for name in (europe, asia)] == [
        [europe.encode()],
        [asia.encode()],
    ]
