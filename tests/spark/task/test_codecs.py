"""Four clients and five codecs: each client reads the others' rows, byte for byte."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from confluent_kafka import Producer

from protocol.records.record_fields import HEADERS_TYPE
from spark_kafka_source.local_kafka import LocalKafka
from tests import sarama
from tests.conftest import topic_factory
from tests.protocol.producer.producing import producer_of
from tests.support.log_segments import CODECS, stored_batches
from tests.support.whole_rows import Partition, Row, Rows, rows_of_java, rows_of_librdkafka, rows_of_ours

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CLIENTS = ("ours", "librdkafka", "Java", "sarama")
ROWS = 100
VALUES = (None, b"", b"v", b"some text that repeats, " * 20, random.Random(0).randbytes(9_000))
HEADERS = (None, (("trace", b"abc"),), (("a", None), ("a", b""), ("ü", b"\xff")))
COLUMNS = pa.schema(
    {"key": pa.binary(), "value": pa.binary(), "headers": HEADERS_TYPE, "timestamp_ms": pa.int64()},
)


@dataclass(frozen=True)
class Clients:
    """Write and read with each of the four clients. Partition n is written with codec n."""

    kafka: LocalKafka
    spark: SparkSession

    def write(self, who: str, written: Rows) -> None:
        if who == "sarama":
            sarama.produce(sarama.build(), self.kafka, written)
            return
        for (topic, partition), rows in written.items():
            {"ours": self._write_ours, "librdkafka": self._write_librdkafka, "Java": self._write_java}[who](
                topic, partition, rows
            )

    def read(self, who: str, partitions: list[Partition]) -> Rows:
        if who == "sarama":
            return sarama.rows_of_sarama(sarama.build(), self.kafka, partitions, ROWS * len(partitions))
        if who == "Java":
            return rows_of_java(self.kafka, self.spark, partitions, "read_uncommitted")
        return {"ours": rows_of_ours, "librdkafka": rows_of_librdkafka}[who](self.kafka, partitions, "read_uncommitted")

    def _write_ours(self, topic: str, partition: int, rows: list[Row]) -> None:
        with producer_of(self.kafka.bootstrap_servers, {"compression.type": CODECS[partition]}) as producer:
            columns = arrow(rows)
            producer.send_columns(topic, columns, pa.array([partition] * len(rows), pa.int32()))

    def _write_librdkafka(self, topic: str, partition: int, rows: list[Row]) -> None:
        settings = {"bootstrap.servers": self.kafka.bootstrap_servers, "compression.codec": CODECS[partition]}
        producer = Producer({**settings, "linger.ms": 1_000})
        # librdkafka makes small, uncompressed batches if it first looks up the topic during a flush.
        producer.list_topics(topic, timeout=30)
        for _, key, value, headers, timestamp_ms, _ in rows:
            producer.produce(topic, value, key, partition, headers=list(headers or ()), timestamp=timestamp_ms)
        assert producer.flush(30) == 0

    def _write_java(self, topic: str, partition: int, rows: list[Row]) -> None:
        """Write without timestamps: Spark's JVM connector has no such column in the sink."""
        columns = arrow(rows).drop_columns("timestamp_ms")
        partitions = pa.array([partition] * len(rows), pa.int32())
        frame = self.spark.createDataFrame(pa.table(columns).append_column("partition", partitions)).coalesce(1)
        options = {"kafka.bootstrap.servers": self.kafka.bootstrap_servers, "includeHeaders": "true", "topic": topic}
        frame.write.format("kafka").options(
            **options, **{"kafka.compression.type": CODECS[partition], "kafka.linger.ms": "1000"}
        ).save()


@pytest.fixture(scope="module")
def clients(kafka1: LocalKafka, spark: SparkSession) -> Clients:
    return Clients(kafka1, spark)


@pytest.fixture(scope="module", params=CLIENTS)
def written(request: pytest.FixtureRequest, clients: Clients) -> Iterator[Rows]:
    """Return a topic written by one client, and the rows by partition."""
    with contextmanager(topic_factory)(clients.kafka) as topic:
        name = topic(len(CODECS), prefix=f"written-by-{request.param}")
        rows = {(name, partition): some_rows(partition) for partition in range(len(CODECS))}
        clients.write(request.param, rows)
        if request.param == "Java":
            read = clients.read("librdkafka", list(rows))
            rows = {key: with_times_of(read[key], of_key) for key, of_key in rows.items()}
        yield rows


@pytest.mark.parametrize("reader", CLIENTS)
def test_topic_of_each_client_is_read_by_all_clients(clients: Clients, written: Rows, reader: str) -> None:
    for topic, partition in written:
        codecs = {batch.codec for batch in stored_batches(clients.kafka.data_folder(1), topic, partition)}
        assert codecs == {CODECS[partition]}
    read = clients.read(reader, list(written))
    for key, rows in written.items():
        assert read[key] == rows, f"read by {reader}: {key}, {CODECS[key[1]]}"


def some_rows(seed: int) -> list[Row]:
    """Return rows with all combinations of present, empty and null keys, values and headers."""
    rng = random.Random(seed)
    now_ms = time.time_ns() // 1_000_000
    return [
        (
            offset,
            rng.choice((None, b"", b"key %d" % offset)),
            rng.choice(VALUES),
            rng.choice(HEADERS),
            now_ms - rng.randrange(100_000),
            0,
        )
        for offset in range(ROWS)
    ]


def arrow(rows: list[Row]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        [
            {
                "key": key,
                "value": value,
                "headers": headers and [{"key": name, "value": content} for name, content in headers],
                "timestamp_ms": timestamp_ms,
            }
            for _, key, value, headers, timestamp_ms, _ in rows
        ],
        schema=COLUMNS,
    )


def with_times_of(read: list[Row], rows: list[Row]) -> list[Row]:
    return [(*row[:4], timed[4], timed[5]) for timed, row in zip(read, rows, strict=True)]
