"""Compatibility: this client reads the records of other clients, and other clients read its records."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from aiokafka.record.default_records import DefaultRecordBatch as AiokafkaBatch
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AiokafkaBuilder
from kafka.record.default_records import DefaultRecordBatch as KafkaPythonBatch
from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder

from protocol.records.encode import finalize_header
from protocol.records.memory_records import read_batch_headers
from tests.protocol.records.reading import rows
from tests.protocol.records.test_encode import SCHEMA
from tests.support.encoded import encode

NUMBERS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
# The codecs that each client supports without packages beyond those of the tests.
AIOKAFKA = [("aiokafka", codec) for codec in ("none", "gzip")]
KAFKA_PYTHON = [("kafka-python", codec) for codec in ("none", "gzip", "lz4", "zstd")]

Row = dict[str, Any]


def some_rows(count: int) -> list[Row]:
    rng = random.Random(count)
    return [
        {
            "key": None if i % 5 == 0 else b"%d" % i,
            "value": None if i % 7 == 0 else rng.randbytes(9_000 if i % 50 == 49 else rng.choice([0, 3, 60, 70])),
            "timestamp_ms": 1_700_000_000_000 + rng.randrange(-5, 100_000),
            "headers": [{"key": "a", "value": b"1"}, {"key": "a", "value": None}] if i % 3 == 0 else None,
        }
        for i in range(count)
    ]


def written_by(builder: type, rows: list[Row], codec: str) -> bytes:
    batch = builder(2, NUMBERS[codec], 1, 99, 3, 12, 1 << 30)
    for i, row in enumerate(rows):
        headers = [(header["key"], header["value"]) for header in row["headers"] or []]
        batch.append(i, row["timestamp_ms"], row["key"], row["value"], headers)
    return bytes(batch.build())


def read_by(reader: Callable[[bytes], Any], batch: bytes) -> list[Row]:
    records = reader(batch)
    assert records.validate_crc()
    return [
        {
            "key": None if record.key is None else bytes(record.key),
            "value": None if record.value is None else bytes(record.value),
            "timestamp_ms": record.timestamp,
            "headers": [{"key": key, "value": value} for key, value in record.headers] or None,
        }
        for record in records
    ]


WRITERS = {"aiokafka": AiokafkaBuilder, "kafka-python": KafkaPythonBuilder}
READERS: dict[str, Callable[[bytes], Any]] = {"aiokafka": AiokafkaBatch, "kafka-python": KafkaPythonBatch}


@pytest.mark.parametrize("count", [1, 100, 9_000])
@pytest.mark.parametrize(("client", "codec"), AIOKAFKA + KAFKA_PYTHON)
def test_records_of_other_clients_are_read(client: str, codec: str, count: int) -> None:
    some = some_rows(count)
    log = written_by(WRITERS[client], some, codec)
    records = read_batch_headers(log)
    assert (records.next_offset, records.headers["producer_id"][0]) == (count, 99)
    assert rows(log, columns=SCHEMA.names) == some


@pytest.mark.parametrize("count", [1, 100, 9_000])
@pytest.mark.parametrize(("client", "codec"), AIOKAFKA + KAFKA_PYTHON)
def test_records_are_read_by_other_clients(client: str, codec: str, count: int) -> None:
    some = some_rows(count)
    batch = encode(pa.RecordBatch.from_pylist(some, schema=SCHEMA), compression=codec)
    finalize_header(batch, producer_id=99, producer_epoch=3, base_sequence=12, transactional=True)
    assert read_by(READERS[client], bytes(batch)) == some


def java_rows() -> list[Row]:
    """Return the rows of WriteBatches.java."""
    return [
        {
            "key": None if i % 5 == 0 else b"key %d" % i,
            "value": None if i % 7 == 0 else bytes((i + j % 10) % 256 for j in range(9_000 if i == 69 else 3 * i)),
            "offset": base_offset + 2 * i,
            "timestamp_ms": 4242 if appended else 1_700_000_000_000 + i * 1000 - i * i,
            "timestamp_type": int(appended),
            "headers": [{"key": "a", "value": bytes([i])}, {"key": "a", "value": None}] if i % 3 == 0 else None,
        }
        for base_offset, count, appended in ((0, 70, False), (100, 3, True))
        for i in range(count)
    ]


@pytest.mark.parametrize("codec", NUMBERS)
def test_records_of_the_java_client_are_read(codec: str) -> None:
    log = (Path(__file__).parent / "written_by_java" / f"{codec}.bin").read_bytes()
    assert rows(log) == java_rows()


@pytest.mark.parametrize("codec", NUMBERS)
def test_records_of_sarama_are_read(codec: str) -> None:
    """Read a broker's segments with the first 70 rows, sent by `tests/sarama`; needs no Go."""
    log = (Path(__file__).parent / "written_by_sarama" / f"{codec}.bin").read_bytes()
    assert set(read_batch_headers(log).headers["attributes"] & 7) == {NUMBERS[codec]}
    assert rows(log, 0, 70) == [{**row, "offset": offset} for offset, row in enumerate(java_rows()[:70])]


def test_encoded_records_equal_the_java_clients() -> None:
    """Compare byte by byte, without a codec."""
    log = (Path(__file__).parent / "written_by_java" / "none.bin").read_bytes()
    reference = bytes(read_batch_headers(log).batch(1))
    last = [{**row, "timestamp_ms": 1_700_000_000_000 + i * 1000 - i * i} for i, row in enumerate(java_rows()[-3:])]
    ours = bytes(encode(pa.RecordBatch.from_pylist(last, schema=SCHEMA)))
    # Java has offsets 0, 2, 4, this client 0, 1, 2: one zigzag byte each, the fourth byte of a record.
    assert len(ours) == len(reference)
    different = [at for at in range(61, len(ours)) if ours[at] != reference[at]]
    assert [(ours[at], reference[at]) for at in different] == [(2, 4), (4, 8)]
