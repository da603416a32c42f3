"""Nanoseconds per record of each step of decoding and encoding, and of the record classes of kafka-python and aiokafka.

    python -m benchmarks.bench_records [--rows 200000] [--seconds 0.5]

One thread, no broker, no Spark. Times are CPU time of this thread (other processes affect it little), the best of the
passes that fit in `--seconds`. Keys have 8 bytes. Values are half random, so that lz4 can compress them, and have one
size ("fixed") or sizes within half of it ("varied").
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from crc32c import crc32c
from kafka.record.default_records import DefaultRecordBatch as KafkaPythonBatch
from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder

from protocol.records.arrow_numpy import binary_column
from protocol.records.batch_header import CHECKED_FROM
from protocol.records.decode import decode
from protocol.records.decompressed_batches import DecompressedBatches, decompressed_batches
from protocol.records.encode import finalize_header, record_sizes
from protocol.records.memory_records import MemoryRecords, read_batch_headers
from protocol.records.record_bounds import record_bounds, record_bounds_in_parts
from protocol.records.record_columns import record_columns
from protocol.records.record_fields import read_fields
from protocol.records.visibility import visible_batches
from tests.support.encoded import encode

COLUMNS = ("key", "value", "offset", "timestamp_ms")
EVERYTHING = 2**62
CAP_BYTES = 128 << 20
NUMBERS = {"none": 0, "lz4": 3}
PEER_RECORDS = 20_000

Steps = dict[str, float]


@dataclass(frozen=True)
class Shape:
    value_bytes: int
    batch_bytes: int
    codec: str
    varied: bool

    def __str__(self) -> str:
        sizes = "varied" if self.varied else "fixed"
        return f"{self.value_bytes:5} B {sizes:6} values, {self.batch_bytes >> 10:5} KiB batches, {self.codec}"


SHAPES = [
    Shape(value_bytes, batch_bytes, codec, varied)
    for value_bytes in (100, 1024)
    for batch_bytes in (1 << 20, 16 << 10)
    for codec in NUMBERS
    for varied in (False, True)
]


def best_ns(work: Callable[[], Any], rows: int, seconds: float) -> float:
    """Return the CPU time per row of the fastest pass; all passes take `seconds` of CPU time."""
    until = time.thread_time() + seconds
    best = float("inf")
    while True:
        started = time.thread_time_ns()
        work()
        best = min(best, time.thread_time_ns() - started)
        if time.thread_time() > until:
            return best / rows


def some_columns(shape: Shape, rows: int) -> pa.RecordBatch:
    rng = np.random.default_rng(1)
    size = shape.value_bytes
    lengths = rng.integers(size // 2, size * 3 // 2, rows) if shape.varied else np.full(rows, size)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    payload = np.frombuffer(rng.bytes(int(offsets[-1])), np.uint8).copy()
    payload[np.arange(len(payload)) % 16 < 8] = 32
    values = pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(payload)])
    keys = pa.array([b"%08d" % i for i in range(rows)], pa.binary())
    timestamps = pa.array(1_700_000_000_000 + np.arange(rows) // 20)
    return pa.RecordBatch.from_arrays([keys, values, timestamps], names=["key", "value", "timestamp_ms"])


def cuts(shape: Shape, columns: pa.RecordBatch) -> list[pa.RecordBatch]:
    """Return the rows of each batch: the producer splits by size before compression."""
    ends = np.cumsum(record_sizes(record_columns(columns, 0)))
    parts, first = [], 0
    while first < columns.num_rows:
        start_bytes = ends[first - 1] if first else 0
        until = max(first + 1, int(np.searchsorted(ends, start_bytes + shape.batch_bytes - 61, side="right")))
        parts.append(columns.slice(first, until - first))
        first = until
    return parts


def written_log(shape: Shape, parts: list[pa.RecordBatch]) -> bytes:
    log, base_offset = bytearray(), 0
    for part in parts:
        batch = encode(part, compression=shape.codec)
        batch[:8] = base_offset.to_bytes(8, "big")
        log += batch
        base_offset += part.num_rows
    return bytes(log)


def decode_all(log: bytes) -> int:
    chunks = decode(read_batch_headers(log), first_offset=0, end_offset=EVERYTHING, columns=COLUMNS)
    return sum(chunk.num_rows for chunk in chunks)


def bounds(batches: DecompressedBatches) -> Iterator[tuple[Any, Any]]:
    if len(batches.batches) > 1:
        yield record_bounds(batches.data, batches.begins, batches.ends, batches.counts)
    else:
        yield from record_bounds_in_parts(
            batches.data, int(batches.begins[0]), int(batches.ends[0]), int(batches.counts[0]), 8_000
        )


def decode_steps(log: bytes, rows: int, seconds: float) -> Steps:
    """Measure decoding as a whole, and each step with its input in the cache."""
    records: MemoryRecords = read_batch_headers(log)
    visible = visible_batches(records, 0, EVERYTHING, None, "")
    view, headers = memoryview(log), records.headers
    edges = [
        (start + CHECKED_FROM, start + 12 + length)
        for start, length in zip(headers["position"].tolist(), headers["length"].tolist(), strict=True)
    ]

    def unpacked() -> list[DecompressedBatches]:
        return list(decompressed_batches(records, visible, CAP_BYTES, ""))

    steps = {
        "whole": best_ns(lambda: decode_all(log), rows, seconds),
        "headers": best_ns(lambda: read_batch_headers(log), rows, seconds),
        "crc": best_ns(lambda: [crc32c(view[start:end]) for start, end in edges], rows, seconds),
        "unpack": best_ns(unpacked, rows, seconds),
    }
    batches = next(decompressed_batches(records, visible, CAP_BYTES, ""))
    local = int(batches.counts.sum())
    steps["bounds"] = best_ns(lambda: list(bounds(batches)), local, seconds)
    starts, ends = next(bounds(batches))
    local = len(starts)
    steps["fields"] = best_ns(lambda: read_fields(batches.data, starts, ends), local, seconds)
    fields = read_fields(batches.data, starts, ends)
    steps["key"] = best_ns(lambda: binary_column(batches.data, fields.key_at, fields.key_length), local, seconds)
    steps["value"] = best_ns(lambda: binary_column(batches.data, fields.value_at, fields.value_length), local, seconds)
    return steps


def encode_steps(shape: Shape, parts: list[pa.RecordBatch], rows: int, seconds: float) -> Steps:
    def stamp_all() -> None:
        for batch in batches:
            finalize_header(batch, producer_id=7, producer_epoch=1, base_sequence=0)

    batches = [encode(part, compression=shape.codec) for part in parts]
    columns = [record_columns(part, 0) for part in parts]
    return {
        "whole": best_ns(lambda: [encode(part, compression=shape.codec) for part in parts], rows, seconds),
        "stamp": best_ns(stamp_all, rows, seconds),
        "sizes": best_ns(lambda: [record_sizes(part) for part in columns], rows, seconds),
    }


def peer_readers() -> dict[str, Callable[[bytes], Any]]:
    readers: dict[str, Callable[[bytes], Any]] = {"kafka-python": KafkaPythonBatch}
    try:
        from aiokafka.record.default_records import DefaultRecordBatch

        readers["aiokafka"] = DefaultRecordBatch
    except ImportError:
        pass
    return readers


def peers_decode(shape: Shape, parts: list[pa.RecordBatch], seconds: float) -> Steps:
    """Decode every record to a Python object with key, value, offset and timestamp, with a verified checksum."""
    few, rows = [], 0
    for part in parts:
        few.append(bytes(encode(part, compression=shape.codec)))
        rows += part.num_rows
        if rows >= PEER_RECORDS:
            break

    def read_all(reader: Callable[[bytes], Any]) -> None:
        for batch in few:
            records = reader(batch)
            records.validate_crc()
            for record in records:
                _ = record.key, record.value, record.offset, record.timestamp

    values_by_key = {}
    for name, reader in peer_readers().items():
        try:
            values_by_key[name] = best_ns(lambda reader=reader: read_all(reader), rows, seconds)
        except Exception as error:
            # Skip a peer that lacks the package of this codec.
            values_by_key[f"{name}: {type(error).__name__}"] = float("nan")
    return values_by_key


def kafka_python_encodes(shape: Shape, parts: list[pa.RecordBatch], seconds: float) -> Steps:
    part = parts[0]
    columns = [part[name].to_pylist() for name in ("timestamp_ms", "key", "value")]

    def build_one() -> None:
        builder = KafkaPythonBuilder(
            magic=2,
            compression_type=NUMBERS[shape.codec],
            is_transactional=0,
            producer_id=-1,
            producer_epoch=-1,
            base_sequence=-1,
            batch_size=1 << 30,
        )
        for i, (timestamp, key, value) in enumerate(zip(*columns, strict=True)):
            builder.append(i, timestamp, key, value, [])
        builder.build()

    return {"kafka-python": best_ns(build_one, part.num_rows, seconds)}


def report_steps(label: str, steps: Steps) -> None:
    print(f"  {label:8}" + "  ".join(f"{name} {ns:.0f}" for name, ns in steps.items()), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--seconds", type=float, default=0.5, help="per figure")
    namespace = parser.parse_args()
    for shape in SHAPES:
        rows = namespace.rows if shape.value_bytes < 1000 else namespace.rows // 8
        parts = cuts(shape, some_columns(shape, rows))
        log = written_log(shape, parts)
        assert decode_all(log) == rows
        print(f"{shape}: {rows} records, {len(parts)} batches; ns a record", flush=True)
        report_steps("decode", decode_steps(log, rows, namespace.seconds))
        report_steps("  peers", peers_decode(shape, parts, namespace.seconds))
        report_steps("encode", encode_steps(shape, parts, rows, namespace.seconds))
        report_steps("  peers", kafka_python_encodes(shape, parts, namespace.seconds))


if __name__ == "__main__":
    main()
