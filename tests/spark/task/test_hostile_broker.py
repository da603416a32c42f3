"""Corrupt record batches: the task fails with a helpful error, and the checkpoint is unchanged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from protocol.testing.fake_kafka.server import FakeKafka
from tests.support.encoded import encode
from tests.support.noop_queries import run_query

TOPIC = "orders"
BOMB_BYTES = 1 << 28  # twice the limit


def rows(*values: bytes) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {"value": pa.array(values, pa.binary()), "timestamp_ms": pa.array([0] * len(values), pa.int64())}
    )


def bad_crc() -> bytes:
    batch = bytearray(encode(rows(b"abc", b"def")))
    batch[-3] ^= 1
    return bytes(batch)


def cut_inside() -> bytes:
    """Return a complete batch whose header counts one record too many."""
    batch = bytearray(encode(rows(b"abc", b"def")))
    batch[57:61] = (3).to_bytes(4, "big")
    batch[23:27] = (2).to_bytes(4, "big")
    import crc32c

    batch[17:21] = crc32c.crc32c(bytes(batch[21:])).to_bytes(4, "big")
    return bytes(batch)


def bomb() -> bytes:
    return bytes(encode(rows(bytes(BOMB_BYTES)), compression="zstd"))


@pytest.mark.parametrize(
    ("records", "words"),
    [
        (bad_crc, ["orders-0", "CRC", "kafka.check.crcs"]),
        (cut_inside, ["orders-0", "offset 0"]),
        (bomb, ["orders-0", "134217728"]),
    ],
    ids=["corrupt CRC", "truncated", "decompression bomb"],
)
def test_invalid_record_batch_fails_query_and_keeps_offsets(
    spark: SparkSession, tmp_path: Path, records: Any, words: list[str]
) -> None:
    with FakeKafka() as kafka:
        kafka.create_topic(TOPIC)
        kafka.write(TOPIC, 0, records())
        end_offset = kafka.log(TOPIC).end_offset
        options = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "subscribe": TOPIC}
        rows = spark.readStream.format("pykafka-group").options(**options, startingOffsets="earliest").load()
        with pytest.raises(Exception, match="orders-0") as caught:
            run_query(rows, tmp_path)
    for word in words:
        assert word in str(caught.value)
    assert not list((tmp_path / "commits").glob("[0-9]*"))
    assert json.loads((tmp_path / "offsets" / "0").read_text().splitlines()[-1])[TOPIC] == {"0": end_offset}
