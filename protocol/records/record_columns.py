"""Check the columns of rows to write, and convert them to the form that all later steps expect.

A pure function, called with all rows of a batch before any is accumulated, so an invalid batch is rejected whole.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from protocol.base.listing import CHOICES, listed
from protocol.errors import UsageError
from protocol.records.arrow_numpy import filled, to_arrow
from protocol.records.row_layout import RowLayout, varint_words

NAMES = ("key", "value", "timestamp_ms", "headers")

_HEADERS = pa.list_(pa.struct([("key", pa.binary()), ("value", pa.binary())]))

Columns = Any  # pa.RecordBatch | pa.Table; pyarrow has no type stubs


def record_columns(columns: Columns, default_timestamp_ms: int) -> pa.RecordBatch:
    """Return the same rows in the form that `encode_batches` expects.

    `columns` (pa.RecordBatch or pa.Table): `value` and optionally `key` (binary, or text, encoded as UTF-8),
    `timestamp_ms` (int64, may have nulls) and `headers` (list<struct<key: string, value: binary>>).
    `default_timestamp_ms`: timestamp for rows without one, in milliseconds since 1970.
    Returns pa.RecordBatch: `key`, `value` (binary), `timestamp_ms` (int64, no nulls), `headers` (binary, encoded as in
    a record). `key` and `headers` are absent if `columns` lacks them.
    Raises `UsageError`: a column is missing, unknown, there twice or of another type, or a header has no key.
    """
    if isinstance(columns, pa.Table):
        combined = [column.combine_chunks() for column in columns.columns]
        columns = pa.RecordBatch.from_arrays(combined, schema=columns.schema)
    names = columns.schema.names
    if "value" not in names:
        raise UsageError(f"column value is missing; the columns are {listed(names, CHOICES) or 'none'}")
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        raise UsageError(f"{unknown[0]} is not a column of a record; the columns are {', '.join(NAMES)}")
    if repeated := [name for name in NAMES if names.count(name) > 1]:
        raise UsageError(f"{repeated[0]} is the name of {names.count(repeated[0])} columns")
    arrays = {name: _binary(name, columns.column(name)) for name in ("key", "value") if name in names}
    timestamps = columns.column("timestamp_ms") if "timestamp_ms" in names else None
    arrays["timestamp_ms"] = _timestamps(timestamps, columns.num_rows, default_timestamp_ms)
    if "headers" in names:
        arrays["headers"] = _headers(columns.column("headers"))
    return pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))


def _binary(name: str, array: pa.Array) -> pa.Array:
    if array.type == pa.binary():
        return array
    if pa.types.is_null(array.type):
        return pa.nulls(len(array), pa.binary())
    kinds = (pa.string(), pa.large_string(), pa.large_binary(), pa.string_view(), pa.binary_view())
    if array.type in kinds or pa.types.is_fixed_size_binary(array.type):
        if array.type in (pa.string_view(), pa.binary_view()):
            array = array.cast(pa.large_binary())  # in two steps: Arrow lets offsets of 32 bits overflow
        try:
            return _cast(array, pa.binary())
        except pa.ArrowInvalid as error:
            raise UsageError(f"column {name} has more than 2 GiB: send fewer rows in a call ({error})") from error
    raise UsageError(f"column {name} is {array.type}; it must be binary")


def _cast(array: pa.Array, to: pa.DataType) -> pa.Array:
    try:
        return array.cast(to)
    except pa.ArrowInvalid:
        if array.nbytes >= 2**31:
            raise
        # A slice: without the bytes before it, its offsets have 32 bits.
        return pa.concat_arrays([array]).cast(to)


def _timestamps(array: pa.Array | None, rows: int, default_ms: int) -> pa.Array:
    if array is None:
        return to_arrow(np.full(rows, default_ms))
    if array.type != pa.int64():
        raise UsageError(f"column timestamp_ms is {array.type}; it must be int64 (milliseconds since 1970)")
    return to_arrow(filled(array, default_ms)) if array.null_count else array


def _headers(lists: pa.Array) -> pa.Array:
    """Encode each row's headers as in a record, after their count."""
    try:
        lists = _cast(lists, _HEADERS)
    except pa.ArrowException as error:
        problem = f"column headers is {lists.type}; it must be list<struct<key: string, value: binary>>"
        raise UsageError(problem) from error
    counts = filled(pc.list_value_length(lists), 0)
    if not counts.any():
        ends = pa.py_buffer(np.arange(len(lists) + 1, dtype=np.int32))
        return pa.Array.from_buffers(pa.binary(), len(lists), [None, ends, pa.py_buffer(bytes(len(lists)))])
    keys, values = lists.flatten().flatten()
    if keys.null_count:
        raise UsageError("a record header needs a key")
    headers = RowLayout(len(keys))
    for column in (keys, values):
        lengths = filled(pc.binary_length(column), -1)
        headers.words(varint_words(lengths))
        headers.payload(column, int(lengths.max()))
    rows = RowLayout(len(counts))
    rows.words(varint_words(counts))
    rows.payload(headers.column(counts), 1)
    return rows.column()
