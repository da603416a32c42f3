"""Convert between Arrow arrays and NumPy arrays, mostly without a copy and always without pandas.

Arrow's own conversions (`pa.array`, `pa.scalar`, `Array.to_numpy`, `fill_null`) import pandas on their first call, if
it is installed. The import costs 0.4 s and about 40 MB in every Python worker that Spark starts. All code that
handles columns uses this module instead.

`binary_column` builds a column from the bounds of payloads: the only copy of payload in decoding, by Arrow's `take`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from protocol.records.varints import Bytes, Integers, Positions

_LARGEST_OFFSET = 2**31 - 1
_NUMPY_TYPES = {pa.from_numpy_dtype(np.dtype(code)): np.dtype(code) for code in "bBhHiIqQefd"}
_INT64 = np.dtype(np.int64)


def to_arrow(numbers: npt.NDArray[Any]) -> pa.Array:
    """Return an Arrow array of the same integers or floats, without nulls; no copy of a contiguous array."""
    kind = pa.from_numpy_dtype(numbers.dtype)
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(np.ascontiguousarray(numbers))])


def numpy_type(kind: pa.DataType) -> np.dtype[Any]:
    """Return the NumPy type of integers, floats, or timestamps (as int64).

    Arrow's `to_pandas_dtype` needs pandas in some versions, such as 25.
    """
    return _NUMPY_TYPES.get(kind, _INT64)


def to_numpy(numbers: pa.Array) -> npt.NDArray[Any]:
    """Return the values of an array of integers, floats or timestamps (as int64) as a view; undefined at nulls."""
    values: npt.NDArray[Any] = np.frombuffer(numbers.buffers()[1] or b"", numpy_type(numbers.type))
    return values[numbers.offset : numbers.offset + len(numbers)]


def valid(array: pa.Array) -> npt.NDArray[np.bool_]:
    """Return a mask that is True for the elements that are not null."""
    bitmap = array.buffers()[0]
    if bitmap is None:
        return np.full(len(array), array.null_count == 0)
    bits = np.unpackbits(np.frombuffer(bitmap, np.uint8), count=array.offset + len(array), bitorder="little")
    return bits[array.offset :].view(np.bool_)


def filled(numbers: pa.Array, default: int) -> npt.NDArray[np.int64]:
    """Return the values as int64, with `default` for nulls."""
    values = to_numpy(numbers).astype(np.int64, copy=False)
    return np.where(valid(numbers), values, default) if numbers.null_count else values


def record_batch(arrays: Sequence[pa.Array], rows: int, schema: pa.Schema) -> pa.RecordBatch:
    """Return a record batch of these columns; without columns it still has `rows` rows."""
    if not arrays:
        return pa.RecordBatch.from_struct_array(pa.Array.from_buffers(pa.struct([]), rows, [None]))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def binaries(values: Sequence[bytes]) -> pa.Array:
    """Return a binary array of these values, without nulls."""
    ends = np.cumsum([0, *map(len, values)]).astype(np.int32)
    return pa.Array.from_buffers(pa.binary(), len(values), [None, pa.py_buffer(ends), pa.py_buffer(b"".join(values))])


def nullable_binaries(values: Sequence[bytes | None]) -> pa.Array:
    """Return a binary array of these values, null for None."""
    plain = binaries([value or b"" for value in values])
    bitmap = _bitmap([value is not None for value in values])
    return pa.Array.from_buffers(pa.binary(), len(values), [bitmap, *plain.buffers()[1:]])


def nullable_integers(numbers: Sequence[int | None], kind: type[np.integer[Any]]) -> pa.Array:
    """Return an integer array of type `kind`, null for None."""
    plain = to_arrow(np.array([number or 0 for number in numbers], kind))
    bitmap = _bitmap([number is not None for number in numbers])
    return pa.Array.from_buffers(plain.type, len(numbers), [bitmap, plain.buffers()[1]])


def _bitmap(present: Sequence[bool]) -> pa.Buffer | None:
    return None if all(present) else pa.py_buffer(np.packbits(present, bitorder="little"))


def binary_column(data: Bytes, at: Positions, length: Integers) -> pa.Array:
    """Return a binary column of `data[at[i] : at[i] + length[i]]`.

    `data`: bytes of one or more batches.
    `at`: start of each value; must ascend without overlap and span less than 2 GiB.
    `length`: bytes of each value; -1 for null.
    """
    rows = len(at)
    if not rows:
        return pa.nulls(0, pa.binary())
    base = int(at[0])
    span = int(at[-1]) + max(0, int(length[-1])) - base
    # One long array: its even elements are the payloads, its odd elements the bytes between them.
    offsets = np.empty(2 * rows + 1, np.int32)
    np.subtract(at, base, out=offsets[:-1:2], casting="unsafe")
    smallest = length.min()
    np.add(offsets[:-1:2], np.maximum(length, 0) if smallest < 0 else length, out=offsets[1::2], casting="unsafe")
    # `take` reserves memory for elements of average size, and the short odd elements lower the average. So the last
    # element, which is not taken, gets the length that corrects the average. It must lie within the data.
    offsets[-1] = max(span, min(2 * int(length.sum(dtype=np.int64)), len(data) - base, _LARGEST_OFFSET))
    everything = pa.Array.from_buffers(
        pa.binary(), 2 * rows, [None, pa.py_buffer(offsets), pa.py_buffer(data[base : base + int(offsets[-1])])]
    )
    taken = everything.take(to_arrow(np.arange(0, 2 * rows, 2, dtype=np.int32)))
    if smallest >= 0:
        return taken
    validity = pa.py_buffer(np.packbits(length >= 0, bitorder="little"))
    return pa.Array.from_buffers(taken.type, rows, [validity, *taken.buffers()[1:]])


def text_column(column: pa.Array) -> pa.Array:
    """Return a binary column as text. As in the Java client, bytes that are not UTF-8 are replaced."""
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        values = [None if text is None else text.decode("utf-8", "replace").encode() for text in column.to_pylist()]
        # UTF-8 by construction, so the cast, which imports no pandas, cannot fail.
        return nullable_binaries(values).cast(pa.string())


def take_rows(array: pa.Array, positions: npt.NDArray[np.int64]) -> pa.Array:
    """Return the elements at these positions; null for -1."""
    present = positions >= 0
    validity = None if present.all() else pa.py_buffer(np.packbits(present, bitorder="little"))
    return array.take(pa.Array.from_buffers(pa.int64(), len(positions), [validity, pa.py_buffer(positions)]))
