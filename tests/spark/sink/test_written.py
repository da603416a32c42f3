"""Rows that the batch and the streaming sink have written, read by another client with all columns."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.datasource import DataSource, DataSourceStreamWriter
from pyspark.sql.types import StructType

from spark_kafka_source.local_kafka import LocalKafka
from tests.conftest import TopicFactory
from tests.support.read_back import read_back
from tests.support.soak import variants
from tests.support.spark_frames import batch, write, write_stream

pytestmark = pytest.mark.soak

HEADERS = "array<struct<key:string,value:binary>>"
# Without this, retention deletes records with timestamps of past years.
NO_RETENTION = {"retention.ms": "-1"}


class TestBatch:
    # tests/spark/task/test_codecs.py tests that other clients read each codec.
    @variants("codec", ["none", "gzip", "snappy", "lz4", "zstd"], "none", "zstd")
    def test_batch_write_keeps_key_and_value_of_every_row(
        self, spark: SparkSession, kafka1: LocalKafka, topic1: TopicFactory, codec: str
    ) -> None:
        name = topic1(3)
        # 5 tasks, several Arrow batches each
        rows = spark.range(0, 60_000, 1, 5).selectExpr(
            "concat('k', id) AS key", "encode(concat('wert ü', id), 'utf-8') AS value"
        )
        write(rows, kafka1, topic=name, **{"kafka.compression.type": codec})
        records = read_back(kafka1, name)
        assert sorted((record.key, record.value) for record in records) == sorted(
            (f"k{n}".encode(), f"wert ü{n}".encode()) for n in range(60_000)
        )
        assert {record.partition for record in records} == {0, 1, 2}
        assert all(record.headers is None for record in records)

    def test_nulls_empty_values_and_all_columns_are_written_unchanged(
        self, spark: SparkSession, kafka1: LocalKafka, topic1: TopicFactory
    ) -> None:
        name = topic1(4, config=NO_RETENTION)
        moment = datetime(2024, 2, 29, 12, 30, 15, 123_000, tzinfo=timezone.utc)
        rows: list[tuple[Any, ...]] = [
            (b"k", b"v", [("a", b"1"), ("a", None), ("ü", b"")], 3, moment),
            (None, b"no key", None, 2, moment),
            (b"", b"", [], 1, moment),
            (b"tombstone", None, [("", b"empty name")], 0, moment),
        ]
        frame = spark.createDataFrame(
            rows, f"key binary, value binary, headers {HEADERS}, partition int, timestamp timestamp"
        )
        write(frame.coalesce(1), kafka1, topic=name)
        result = {
            record.partition: (record.key, record.value, record.headers, record.timestamp_ms)
            for record in read_back(kafka1, name)
        }
        at_ms = int(moment.timestamp() * 1000)
        # Kafka's format does not distinguish null headers from an empty list.
        assert result == {
            3: (b"k", b"v", (("a", b"1"), ("a", None), ("ü", b"")), at_ms),
            2: (None, b"no key", None, at_ms),
            1: (b"", b"", None, at_ms),
            0: (b"tombstone", None, (("", b"empty name"),), at_ms),
        }

    def test_rows_go_to_their_topic_unless_the_option_is_set(
        self, spark: SparkSession, kafka1: LocalKafka, topic1: TopicFactory
    ) -> None:
        names = [topic1(2), topic1(1), topic1(3)]
        column = sf.element_at(sf.array(*map(sf.lit, names)), (sf.col("id") % 3 + 1).cast("int"))
        rows = spark.range(0, 3_000, 1, 2).select(column.alias("topic"), sf.col("id").cast("string").alias("value"))
        write(rows, kafka1)
        for number, name in enumerate(names):
            values = sorted(int(record.value or b"") for record in read_back(kafka1, name))
            assert values == list(range(number, 3_000, 3))
        only = topic1(1)
        write(rows, kafka1, topic=only)
        assert len(read_back(kafka1, only)) == 3_000

    def test_rows_of_source_are_written_unchanged(
        self, spark: SparkSession, kafka1: LocalKafka, topic1: TopicFactory
    ) -> None:
        origin, copy = topic1(2), topic1(2)
        made = spark.range(500).selectExpr(
            "concat('k', id) AS key",
            "cast(id AS string) AS value",
            "array(named_struct('key', 'h', 'value', encode(cast(id AS string), 'utf-8'))) AS headers",
        )
        write(made, kafka1, topic=origin)
        write(batch(spark, kafka1, subscribe=origin, includeHeaders=True), kafka1, topic=copy)

        def rows(topic: str) -> list[tuple[Any, ...]]:
            records = read_back(kafka1, topic)
            return sorted((r.partition, r.key, r.value, r.headers, r.timestamp_ms) for r in records)

        assert rows(copy) == rows(origin)
        assert len(rows(copy)) == 500

    def test_values_of_up_to_5_mb_are_written_complete(
        self, spark: SparkSession, kafka1: LocalKafka, topic1: TopicFactory
    ) -> None:
        name = topic1(1, config={"max.message.bytes": "6000000"})
        rows = spark.createDataFrame([(0,), (1,), (700_000,), (5_000_000,)], "size int").selectExpr(
            "cast(size AS string) AS key", "repeat('x', size) AS value"
        )
        write(rows, kafka1, topic=name, **{"kafka.max.request.size": "6000000"})
        sizes = {int(record.key or b""): len(record.value or b"") for record in read_back(kafka1, name)}
        assert sizes == {size: size for size in (0, 1, 700_000, 5_000_000)}


class RowSink(DataSource):
    """The streaming sink as in PySpark 4.0, which passes rows instead of Arrow batches."""

    @classmethod
    def name(cls) -> str:
        return "rows-to-kafka"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from spark_kafka_source.options.parsing import parse_sink_options
        from spark_kafka_source.sink.stream_writer import RowStreamWriter

        return RowStreamWriter(parse_sink_options(self.options), schema)


class TestStream:
    @pytest.fixture
    def lines(self, spark: SparkSession, tmp_path: Path) -> DataFrame:
        """Return a stream of three micro-batches with the values "0-0" to "2-99"."""
        folder = tmp_path / "lines"
        folder.mkdir()
        for file in range(3):
            (folder / f"{file}.txt").write_text("".join(f"{file}-{line}\n" for line in range(100)))
        return spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(str(folder))

    @pytest.mark.parametrize("sink", ["pykafka-group", "rows-to-kafka"])
    def test_stream_write_keeps_every_row_once_across_restart(
        self, spark: SparkSession, kafka1: LocalKafka, topic1: TopicFactory, lines: DataFrame, tmp_path: Path, sink: str
    ) -> None:
        spark.dataSource.register(RowSink)
        name = topic1(3, config=NO_RETENTION)
        rows = lines.selectExpr(
            "value AS key",
            "encode(concat('value of ', value), 'utf-8') AS value",
            "array(named_struct('key', 'h', 'value', encode(value, 'utf-8'))) AS headers",
            "timestamp_millis(1700000000123) AS timestamp",
        )
        for _ in range(2):
            write_stream(rows, kafka1, tmp_path / "checkpoint", sink, topic=name)
        records = read_back(kafka1, name)
        keys = sorted(f"{file}-{line}".encode() for file in range(3) for line in range(100))
        assert sorted(record.key or b"" for record in records) == keys
        for record in records:
            assert record.value == b"value of " + (record.key or b"")
            assert record.headers == (("h", record.key),)
            assert record.timestamp_ms == 1_700_000_000_123
