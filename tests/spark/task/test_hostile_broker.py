"""A corrupt record batch: the task fails with a helpful error, and the checkpoint is unchanged."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from protocol.testing.fake_kafka.server import FakeKafka
from tests.support.encoded import encode
from tests.support.noop_queries import run_query

TOPIC = "orders"


def test_corrupt_record_batch_fails_query_and_keeps_offsets(spark: SparkSession, tmp_path: Path) -> None:
    columns = {"value": pa.array([b"abc"]), "timestamp_ms": pa.array([0], pa.int64())}
    batch = bytearray(encode(pa.RecordBatch.from_pydict(columns)))
    batch[-3] ^= 1
    with FakeKafka() as kafka:
        kafka.create_topic(TOPIC)
        kafka.write(TOPIC, 0, bytes(batch))
        options = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "subscribe": TOPIC}
        rows = spark.readStream.format("pykafka-group").options(**options, startingOffsets="earliest").load()
        with pytest.raises(Exception, match=r"(?s)orders-0.*CRC.*kafka\.check\.crcs"):
            run_query(rows, tmp_path)
    assert not list((tmp_path / "commits").glob("[0-9]*"))
    assert json.loads((tmp_path / "offsets" / "0").read_text().splitlines()[-1])[TOPIC] == {"0": 1}
