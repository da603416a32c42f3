"""Arrow and NumPy arrays have equal numbers, also sliced and with nulls, and pandas is not imported."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
from kafka.record.legacy_records import LegacyRecordBatchBuilder

from protocol.records.arrow_numpy import filled, numpy_type, to_arrow, to_numpy, valid
from tests.support.documents import ROOT

# All column operations of a task of the source and of the sink.
_READ_AND_WRITE = """
import sys
import numpy as np
import pyarrow as pa
from protocol.producer.accumulator import Accumulator
from protocol.producer.partitioner import Partitioner
from protocol.records.arrow_numpy import binaries, to_arrow
from protocol.records.decode import SCHEMA, decode
from protocol.records.encode import encode_batches, finalize_header, record_sizes
from protocol.records.record_columns import record_columns
from protocol.records.record_fields import HEADERS_TYPE
from protocol.records.memory_records import read_batch_headers
from spark_kafka_source.sink.columns import SinkPlan, topic_columns

values = binaries([b"a", b"bc", b"", b"d"])
some = pa.Array.from_buffers(values.type, 4, [pa.py_buffer(bytes([0b0101])), *values.buffers()[1:]])
pairs = pa.StructArray.from_arrays([values.cast(pa.string()), some], fields=list(HEADERS_TYPE.value_type))
headers = pa.ListArray.from_arrays(to_arrow(np.array([0, 1, 1, 4, 4], np.int32)), pairs)
micros = to_arrow(np.arange(4) * 1_000_000).view(pa.timestamp("us", "UTC"))
topics = binaries([b"t", b"u", b"t", b"t"]).cast(pa.string())
names = ["value", "key", "headers", "timestamp", "topic"]
batch = pa.RecordBatch.from_arrays([values, some, headers, micros, topics], names=names)
read = 0
for rows in topic_columns(SinkPlan(None, frozenset(names)), batch):
    columns = record_columns(rows.columns, 1)
    sizes = record_sizes(columns)
    chosen = Partitioner().choose(columns.column("key"), sizes, 3)
    accumulator = Accumulator(16_384)
    ready = [*accumulator.append("t", columns, chosen, sizes, 0.0), *accumulator.drain()]
    for together in ready:
        counts = [each.count for each in together.batch_slices]
        for written in encode_batches(together.rows(), counts, compression="lz4"):
            finalize_header(written)
            read += sum(each.num_rows for each in decode(read_batch_headers(written), first_offset=0, end_offset=9))
record_columns(pa.RecordBatch.from_arrays([values], names=["value"]), 1)
for legacy in sys.argv[1:]:
    for rows in decode(read_batch_headers(bytes.fromhex(legacy)), first_offset=0, end_offset=9):
        read += rows.num_rows
assert read == 6, read
print("pandas" in sys.modules)
"""


@pytest.mark.parametrize("kind", [*"bBhHiIqQefd"])
def test_numpy_type_of_arrow_type_is_the_same_number(kind: str) -> None:
    assert numpy_type(pa.from_numpy_dtype(np.dtype(kind))) == np.dtype(kind)


def test_to_pandas_dtype_is_not_used() -> None:
    """Without pandas it fails in pyarrow 25, though not in 26."""
    for package in ("protocol", "spark_kafka_source"):
        for path in (ROOT / package).rglob("*.py"):
            assert ".to_pandas_dtype()" not in path.read_text(), path


def test_reading_and_writing_do_not_import_pandas() -> None:
    logs = []
    for magic in (0, 1):
        builder = LegacyRecordBatchBuilder(magic=magic, compression_type=0, batch_size=1 << 16)
        builder.append(0, timestamp=1_460_000_000_000, key=b"key", value=b"value")
        logs.append(bytes(builder.build()).hex())
    run = subprocess.run([sys.executable, "-c", _READ_AND_WRITE, *logs], capture_output=True, text=True, check=False)
    assert run.stdout.strip() == "False", run.stderr


@pytest.mark.parametrize("kind", ["int8", "int16", "int32", "int64", "uint32", "float64"])
def test_numbers_round_trip(kind: str) -> None:
    numbers = np.arange(10).astype(kind)
    assert to_arrow(numbers).to_pylist() == numbers.tolist()
    assert to_arrow(numbers[::3]).to_pylist() == numbers[::3].tolist()
    assert to_numpy(to_arrow(numbers).slice(2, 5)).tolist() == numbers[2:7].tolist()
    assert to_numpy(pa.nulls(0, pa.from_numpy_dtype(np.dtype(kind)))).tolist() == []


@pytest.mark.parametrize("first", [0, 1, 9])
def test_nulls_are_detected_and_replaced_in_slices_too(first: int) -> None:
    values = [None if number % 3 == 0 else number for number in range(20)]
    array = pa.array(values, pa.int32()).slice(first)
    assert valid(array).tolist() == [value is not None for value in values[first:]]
    assert filled(array, -1).tolist() == [-1 if value is None else value for value in values[first:]]
    assert valid(pa.array([1, 2])).tolist() == [True, True]
    assert valid(pa.nulls(2)).tolist() == [False, False]
    assert filled(pa.nulls(2, pa.int64()), 7).tolist() == [7, 7]
