"""Record batches that no honest broker sends: the task fails with words that help, and the checkpoint stays."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from protocol.records.encode import encode
from protocol.wire.messages.m01_fetch import FETCH
from protocol.wire.messages.m02_list_offsets import LIST_OFFSETS
from protocol.wire.messages.m03_metadata import METADATA
from tests.fake_broker import FakeBroker

TOPIC = "orders"
BOMB_BYTES = 1 << 30


def rows(*values: bytes) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {"value": pa.array(values, pa.binary()), "timestamp_ms": pa.array([0] * len(values), pa.int64())}
    )


def fake_cluster(records: bytes, end_offset: int) -> FakeBroker:
    """One broker with one topic of one partition, whose log from offset 0 is `records`."""
    fake = FakeBroker()

    def metadata(body: dict[str, Any], version: int) -> dict[str, Any]:
        partition = {"partition_index": 0, "leader_id": 1, "leader_epoch": 0, "replica_nodes": [1], "isr_nodes": [1]}
        topic = {"name": TOPIC, "topic_id": b"\7" * 16, "partitions": [partition]}
        return {
            "brokers": [{"node_id": 1, "host": fake.host, "port": fake.port}],
            "cluster_id": "fake",
            "controller_id": 1,
            "topics": [topic],
        }

    def list_offsets(body: dict[str, Any], version: int) -> dict[str, Any]:
        asked = body["topics"][0]["partitions"][0]["timestamp"]
        row = {"partition_index": 0, "offset": 0 if asked == -2 else end_offset, "timestamp": -1, "leader_epoch": 0}
        return {"topics": [{"name": TOPIC, "partitions": [row]}]}

    def fetch(body: dict[str, Any], version: int) -> dict[str, Any]:
        row = {
            "partition_index": 0,
            "high_watermark": end_offset,
            "last_stable_offset": end_offset,
            "log_start_offset": 0,
            "records": records,
        }
        return {"responses": [{"topic_id": b"\7" * 16, "partitions": [row]}]}

    fake.handlers.update({METADATA.key: metadata, LIST_OFFSETS.key: list_offsets, FETCH.key: fetch})
    return fake


def bad_crc() -> bytes:
    batch = bytearray(encode(rows(b"abc", b"def")))
    batch[-3] ^= 1
    return bytes(batch)


def cut_inside() -> bytes:
    """The batch is whole, but says that it has one record more than it has."""
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
def test_the_query_fails_and_the_offsets_stay(
    spark: SparkSession, tmp_path: Path, records: Any, words: list[str]
) -> None:
    with fake_cluster(records(), end_offset=2) as fake:
        query = (
            spark.readStream.format("pykafka-group")
            .option("kafka.bootstrap.servers", f"{fake.host}:{fake.port}")
            .option("subscribe", TOPIC)
            .option("startingOffsets", "earliest")
            .load()
            .writeStream.format("noop")
            .option("checkpointLocation", str(tmp_path))
            .trigger(availableNow=True)
            .start()
        )
        with pytest.raises(Exception, match="orders-0") as caught:
            query.awaitTermination(120)
    for word in words:
        assert word in str(caught.value)
    assert not list((tmp_path / "commits").glob("[0-9]*"))
    assert json.loads((tmp_path / "offsets" / "0").read_text().splitlines()[-1])[TOPIC] == {"0": 2}
