"""All rows of some partitions, byte for byte, as read by this package, librdkafka and the Java consumer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from protocol.config import parse_consumer
from protocol.fetch.bounded_reader import BoundedReader
from protocol.fetch.list_offsets import list_offsets
from protocol.fetch.log_offsets import Range
from protocol.kafka_terms import EARLIEST, LATEST
from spark_kafka_source.local_kafka import LocalKafka
from tests.protocol.fetch.consuming import client_of
from tests.support.read_back import messages_to_the_end

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Partition = tuple[str, int]
# offset, key, value, headers, timestamp in milliseconds, timestamp type as Spark counts
Row = tuple[int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...] | None, int, int]
Rows = dict[Partition, list[Row]]


def rows_of_ours(kafka: LocalKafka, partitions: Sequence[Partition], isolation_level: str) -> Rows:
    rows: Rows = {}
    with client_of(kafka) as client:
        starts = list_offsets(client, dict.fromkeys(partitions, EARLIEST))
        ends = list_offsets(client, dict.fromkeys(partitions, LATEST), isolation_level=isolation_level)
        ranges = [Range(*key, starts[key].offset, ends[key].offset) for key in partitions]
        config = parse_consumer({"isolation.level": isolation_level})
        for expected, batch in BoundedReader(client, config, ranges):
            rows.setdefault((expected.topic, expected.partition), []).extend(map(our_row, batch.to_pylist()))
    return rows


def our_row(row: Mapping[str, Any]) -> Row:
    headers = row["headers"]
    pairs = None if headers is None else tuple((header["key"], header["value"]) for header in headers)
    return row["offset"], row["key"], row["value"], pairs, row["timestamp_ms"], row["timestamp_type"]


def rows_of_librdkafka(kafka: LocalKafka, partitions: Sequence[Partition], isolation_level: str) -> Rows:
    rows: Rows = {}
    for message in messages_to_the_end(kafka.bootstrap_servers, partitions, isolation_level):
        kind, timestamp_ms = message.timestamp()
        headers = message.headers()
        pairs = None if headers is None else tuple(headers)
        # librdkafka has 1 for CreateTime and 2 for LogAppendTime.
        row = (message.offset(), message.key(), message.value(), pairs, timestamp_ms, kind - 1)
        rows.setdefault((message.topic(), message.partition()), []).append(row)
    return rows


def rows_of_java(kafka: LocalKafka, spark: SparkSession, partitions: Sequence[Partition], isolation_level: str) -> Rows:
    options = {
        "kafka.bootstrap.servers": kafka.bootstrap_servers,
        "subscribe": ",".join(sorted({topic for topic, _ in partitions})),
        "startingOffsets": "earliest",
        "includeHeaders": "true",
        "kafka.isolation.level": isolation_level,
        # The JVM connector's consumers wait this long once or twice per task.
        "kafka.fetch.max.wait.ms": "20",
    }
    frame = spark.read.format("kafka").options(**options).load()
    columns = ("topic", "partition", "offset", "key", "value", "headers", "timestampType")
    rows: Rows = {}
    for row in frame.selectExpr(*columns, "unix_millis(timestamp) AS timestamp_ms").collect():
        pairs = None if row.headers is None else tuple((header.key, as_bytes(header.value)) for header in row.headers)
        ours = (row.offset, as_bytes(row.key), as_bytes(row.value), pairs, row.timestamp_ms, row.timestampType)
        rows.setdefault((row.topic, row.partition), []).append(ours)
    return {partition: sorted(row) for partition, row in rows.items()}


def as_bytes(value: bytearray | None) -> bytes | None:
    return None if value is None else bytes(value)
