"""Spark on the in-memory cluster: the JVM connector, a Java client in other threads; and a corrupt record batch."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from protocol.testing import FakeKafka
from tests.support.encoded import encode
from tests.support.noop_queries import run_query
from tests.support.spark_frames import JVM, batch, stream, write


def test_jvm_connector_reads_and_writes(spark: SparkSession) -> None:
    with FakeKafka(2) as kafka:
        kafka.create_topic("orders", 3)
        kafka.create_topic("copies", 2)
        kafka.produce("orders", *map(str, range(50)))
        write(batch(spark, kafka, JVM, subscribe="orders").select("key", "value"), kafka, JVM, topic="copies")
        assert sorted(int(record.value) for record in kafka.records("copies")) == list(range(50))


def test_corrupt_record_batch_fails_query_and_keeps_offsets(spark: SparkSession, tmp_path: Path) -> None:
    columns = {"value": pa.array([b"abc"]), "timestamp_ms": pa.array([0], pa.int64())}
    corrupt = bytearray(encode(pa.RecordBatch.from_pydict(columns)))
    corrupt[-3] ^= 1
    with FakeKafka() as kafka:
        kafka.create_topic("orders")
        kafka.write("orders", 0, bytes(corrupt))
        with pytest.raises(Exception, match=r"(?s)orders-0.*CRC.*kafka\.check\.crcs"):
            run_query(stream(spark, kafka, subscribe="orders"), tmp_path)
    assert not list((tmp_path / "commits").glob("[0-9]*"))
    assert json.loads((tmp_path / "offsets" / "0").read_text().splitlines()[-1])["orders"] == {"0": 1}
