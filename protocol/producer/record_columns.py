"""The columns a producer takes: checked, brought to one form, and no record larger than a request may be.

Pure. Called by `async_producer` for every batch before anything of it is gathered, so a wrong batch is refused whole.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from protocol.errors import UsageError
from protocol.records.arrow_numpy import filled, to_arrow
from protocol.records.batch_header import HEADER_BYTES

_NAMES = ("key", "value", "timestamp_ms", "headers")


def checked_columns(columns: pa.RecordBatch, wall_ms: int) -> pa.RecordBatch:
    """The same rows with the columns that `records.encode` takes, in a fixed order.

    `value` (binary, required), `key` (binary), `timestamp_ms` (int64; null and absent: `wall_ms`), `headers`
    (list<struct<key: string, value: binary>>). Text columns are taken as UTF-8. Raises `UsageError` for other columns
    and types.
    """
    names = columns.schema.names
    if "value" not in names:
        raise UsageError(f"there is no column value to write; the columns are {', '.join(names) or 'none'}")
    unknown = [name for name in names if name not in _NAMES]
    if unknown:
        raise UsageError(f"{unknown[0]} is no column of a record; it has {', '.join(_NAMES)}")
    arrays = {name: columns.column(name) for name in _NAMES if name in names}
    for name in ("key", "value"):
        if name in arrays:
            arrays[name] = _binary(name, arrays[name])
    arrays["timestamp_ms"] = _timestamps(arrays.get("timestamp_ms"), columns.num_rows, wall_ms)
    return pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))


def check_sizes(topic: str, sizes: npt.NDArray[np.int64], max_request_size_bytes: int) -> None:
    """Raises `UsageError` for the first record that no request could hold. `sizes` are bytes, encoded."""
    too_large = np.flatnonzero(sizes > max_request_size_bytes - HEADER_BYTES)
    if len(too_large):
        row = int(too_large[0])
        size_bytes = int(sizes[row]) + HEADER_BYTES
        raise UsageError(
            f"a record for topic {topic} (row {row} of its batch) is {size_bytes} bytes, more than "
            f"max.request.size ({max_request_size_bytes}). Raise it, and max.message.bytes of the topic if that "
            "is lower, or write smaller records. Nothing of this batch was sent",
            topic=topic,
            size_bytes=size_bytes,
            settings=("max.request.size",),
        )


def _binary(name: str, array: pa.Array) -> pa.Array:
    if array.type == pa.binary():
        return array
    if pa.types.is_null(array.type):
        return pa.nulls(len(array), pa.binary())
    if pa.types.is_string(array.type) or pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type):
        return array.cast(pa.binary())
    raise UsageError(f"column {name} is {array.type}; it must be binary")


def _timestamps(array: pa.Array | None, rows: int, wall_ms: int) -> pa.Array:
    if array is None:
        return to_arrow(np.full(rows, wall_ms))
    if array.type != pa.int64():
        raise UsageError(f"column timestamp_ms is {array.type}; it must be int64 (milliseconds since 1970)")
    return to_arrow(filled(array, wall_ms)) if array.null_count else array
