"""From field bounds to Arrow columns: the only place where payload is copied, once, by Arrow's `take`.

Knows bytes and bounds, nothing of batches. Used by `decode`.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from protocol.errors import Corrupt
from protocol.records.varints import Bytes, Integers, Positions, read_varints

HEADERS_TYPE = pa.list_(pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())]))
_LARGEST_OFFSET = 2**31 - 1


def slices(data: Bytes, at: Positions, length: Integers) -> pa.Array:
    """A binary column of data[at[i] : at[i] + length[i]], null where the length is -1.

    The positions must ascend without overlap, and span less than 2 GiB.
    """
    rows = len(at)
    if not rows:
        return pa.array([], pa.binary())
    base = int(at[0])
    span = int(at[-1]) + max(0, int(length[-1])) - base
    # One long array whose even elements are the payloads and whose odd ones are what lies between them.
    offsets = np.empty(2 * rows + 1, np.int32)
    np.subtract(at, base, out=offsets[:-1:2], casting="unsafe")
    smallest = length.min()
    np.add(offsets[:-1:2], np.maximum(length, 0) if smallest < 0 else length, out=offsets[1::2], casting="unsafe")
    # Arrow reserves memory for elements of average size, which the short ones between the payloads spoil: so the last
    # one, which nobody takes, is as long as makes the average right. It must lie within the data.
    offsets[-1] = max(span, min(2 * int(length.sum(dtype=np.int64)), len(data) - base, _LARGEST_OFFSET))
    everything = pa.Array.from_buffers(
        pa.binary(), 2 * rows, [None, pa.py_buffer(offsets), pa.py_buffer(data[base : base + int(offsets[-1])])]
    )
    taken = everything.take(pa.array(np.arange(0, 2 * rows, 2, dtype=np.int32)))
    if smallest >= 0:
        return taken
    validity = pa.py_buffer(np.packbits(length >= 0, bitorder="little"))
    return pa.Array.from_buffers(taken.type, rows, [validity, *taken.buffers()[1:]])


def headers(data: Bytes, at: Positions, count: Integers, ends: Positions) -> pa.Array:
    """The headers column: list<struct<key: string, value: binary>>, null for a record without headers.

    Works in rounds: the first header of every record, then the second, and so on. Raises `Corrupt` where the headers
    do not fill their record exactly.
    """
    rows = len(at)
    with_headers = np.flatnonzero(count)
    if not len(with_headers):
        return pa.nulls(rows, HEADERS_TYPE)
    first = np.zeros(rows + 1, np.int32)
    total = int(count.sum(dtype=np.int64))
    if total > (int(ends[-1]) - int(at[0])) // 2:
        raise Corrupt(f"{total} headers cannot be in {int(ends[-1]) - int(at[0])} bytes")
    np.cumsum(count, out=first[1:], dtype=np.int32)
    key_at, key_length, value_at, value_length = (np.empty(total, np.int64) for _ in range(4))
    pending, cursor, done = with_headers, at[with_headers], 0
    while len(pending):
        target = first[pending] + done
        length, start = read_varints(data, cursor)
        if length.min() < 0:
            raise Corrupt("a header without a key")
        key_at[target], key_length[target] = start, length
        length, start = read_varints(data, start + length)
        if length.min() < -1:
            raise Corrupt(f"a header value of length {length.min()}")
        value_at[target], value_length[target] = start, length
        cursor = start + np.maximum(length, 0)
        if (cursor > ends[pending]).any():
            raise Corrupt("a header is longer than its record")
        done += 1
        more = count[pending] > done
        if (cursor[~more] != ends[pending[~more]]).any():
            raise Corrupt("the headers of a record do not fill it exactly")
        pending, cursor = pending[more], cursor[more]
    keys = slices(data, key_at, key_length)
    try:
        keys = keys.cast(pa.string())
    except pa.ArrowInvalid as error:
        raise Corrupt("a header key is not UTF-8") from error
    pairs = pa.StructArray.from_arrays(
        [keys, slices(data, value_at, value_length)], fields=list(HEADERS_TYPE.value_type)
    )
    validity = pa.py_buffer(np.packbits(count > 0, bitorder="little"))
    return pa.Array.from_buffers(HEADERS_TYPE, rows, [validity, pa.py_buffer(first)], children=[pairs])
