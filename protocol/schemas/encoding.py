"""Write Arrow columns as binary columns of encoded values: each field becomes a column of bytes, and these are joined.

Shared by the encoders of all languages.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from protocol.base.listing import listed
from protocol.errors import UsageError
from protocol.records.arrow_numpy import binaries, filled, take_rows, to_arrow, valid
from protocol.records.row_layout import varint_sizes
from protocol.records.varints import Bytes, Positions
from protocol.schemas.decoding import InvalidRows, inside, offsets_of, text_values

# `pa.scalar` would import pandas.
_EMPTY = binaries([b""])[0]
_NULL = pa.nulls(1, pa.binary())[0]
# The smallest numbers whose varints have 2, 3, … bytes.
_VARINT_LIMITS = np.array([1 << 7 * size for size in range(1, 10)], np.uint64)


class ColumnWriter(ABC):
    """Writes one type of a schema."""

    @abstractmethod
    def write(self, column: pa.Array) -> pa.Array:
        """Return the bytes of each value as a binary column without nulls.

        `column`: without nulls, unless the writer is one of fields or of a union.
        Raises `InvalidRows`: values that do not fit the type.
        """


def encode(writer: ColumnWriter, column: pa.Array, prefix: bytes = b"") -> pa.Array:
    """Return a binary column of the values behind a prefix; null for null.

    Raises `UsageError`: a value does not fit the schema; the message has its row and field.
    """
    try:
        if not column.null_count:
            return _with_prefix(writer.write(column), prefix)
        present = valid(column)
        encoded = _with_prefix(write_some(writer, column, present), prefix)
    except InvalidRows as error:
        raise _usage_error(error) from None
    return pc.if_else(mask(present), encoded, _NULL)


def encode_types(
    writers: Mapping[str, tuple[ColumnWriter, bytes]], column: pa.StructArray, types: pa.Array | None = None
) -> pa.Array:
    """Return a binary column of the values of several types, each behind its prefix; null for null in all fields.

    `writers`: the writer and the prefix of each type, by the field of `column` with its values.
    `types`: the column `valueType`, with the name of the field that is not null in each row.
    Raises `UsageError`: a value does not fit its schema, a row has values in several fields, or another `valueType`.
    """
    numbers = _field_of_each_row(column, types)
    pieces: list[pa.Array] = []
    positions = np.full(len(column), -1, np.int64)
    encoded_rows = 0
    for field, (writer, prefix) in writers.items():
        number = column.type.get_field_index(field)
        rows = np.flatnonzero(numbers == number)
        if not len(rows):
            continue
        try:
            pieces.append(_with_prefix(writer.write(column.field(number).take(to_arrow(rows))), prefix))
        except InvalidRows as error:
            raise _usage_error(error.inside(field, rows)) from None
        positions[rows] = np.arange(encoded_rows, encoded_rows + len(rows))
        encoded_rows += len(rows)
    return take_rows(pa.concat_arrays(pieces), positions) if pieces else pa.nulls(len(column), pa.binary())


def _field_of_each_row(column: pa.StructArray, types: pa.Array | None) -> npt.NDArray[np.int64]:
    """Return the number of the field that is not null, -1 for none. Raises `UsageError` as `encode_types`."""
    names = [field.name for field in column.type]
    present = np.stack([valid(column.field(number)) for number in range(len(names))]) & valid(column)
    several = present.sum(axis=0) > 1
    if several.any():
        row = int(several.argmax())
        both = listed([name for name, is_present in zip(names, present[:, row], strict=True) if is_present])
        raise UsageError(f"row {row} has values in the fields {both}; all but one of them must be null")
    numbers = np.where(present.any(axis=0), present.argmax(axis=0), -1)
    if types is None:
        return numbers
    field_names = text_values(names)
    # No row has the number -2, so an unknown name is wrong also for a row without a value.
    named = filled(pc.index_in(types.cast(pa.string()), field_names), -2)
    wrong = numbers != np.where(valid(types), named, -1)
    if wrong.any():
        row = int(wrong.argmax())
        value_type = types[row].as_py() or "null"
        if numbers[row] < 0:
            raise UsageError(
                f"row {row} has no value in any field, and valueType {value_type}; filter such rows out, or set "
                "valueType to null for a tombstone"
            )
        field = names[numbers[row]]
        raise UsageError(
            f"row {row} has a value in the field {field}, and valueType {value_type}; set valueType to {field}, or "
            "drop the column valueType"
        )
    return numbers


def _usage_error(error: InvalidRows) -> UsageError:
    field = f"field {error.path}: " if error.path else ""
    return UsageError(f"{field}row {int(error.rows[0])} has {error.reason}")


def _with_prefix(encoded: pa.Array, prefix: bytes) -> pa.Array:
    return joined([constant(prefix, len(encoded)), encoded]) if prefix else encoded


def write_some(writer: ColumnWriter, column: pa.Array, present: npt.NDArray[np.bool_]) -> pa.Array:
    """Write the values of the rows where `present` is True, and no bytes for the others."""
    rows = np.flatnonzero(present)
    with inside("", rows):
        encoded = writer.write(column.take(to_arrow(rows)))
    return spread(encoded, rows, len(column))


# -- columns of bytes -------------------------------------------------------------------------


def bytes_of(column: pa.Array) -> tuple[Bytes, Positions]:
    """Return the bytes of a column of bytes or texts, and the offsets of its values in them."""
    offsets = offsets_of(column)
    data = np.frombuffer(column.buffers()[2] or b"", np.uint8)
    return data[int(offsets[0]) : int(offsets[-1])], offsets - offsets[0]


def elements(column: pa.Array) -> tuple[Positions, list[pa.Array]]:
    """Return the offsets of a column of lists or maps, from 0, and its items; of maps the keys and the items."""
    offsets = offsets_of(column)
    first, count = int(offsets[0]), int(offsets[-1] - offsets[0])
    children = (column.keys, column.items) if pa.types.is_map(column.type) else (column.values,)
    return offsets - first, [child.slice(first, count) for child in children]


def owners(offsets: Positions) -> Positions:
    """Return the row of each item of a column of lists."""
    return np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))


def fixed_width(numbers: npt.NDArray[Any]) -> pa.Array:
    """Return a binary column of the bytes of numbers."""
    ends = np.arange(1, len(numbers) + 1, dtype=np.int64) * numbers.itemsize
    return binary_values(np.ascontiguousarray(numbers).view(np.uint8), ends)


def spread(encoded: pa.Array, rows: Positions, count: int) -> pa.Array:
    """Return a binary column of `count` values: `encoded` in the rows `rows`, and no bytes in the others."""
    if len(rows) == count:
        return encoded
    data, offsets = bytes_of(encoded)
    sizes = np.zeros(count, np.int64)
    sizes[rows] = np.diff(offsets)
    return binary_values(data, np.cumsum(sizes))


def binary_values(data: npt.NDArray[np.uint8], ends: npt.NDArray[Any]) -> pa.Array:
    """Return a binary column of consecutive values; `ends` has the end of each value in `data`."""
    offsets = np.zeros(len(ends) + 1, np.int32)
    offsets[1:] = ends
    return pa.Array.from_buffers(pa.binary(), len(ends), [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def constant(value: bytes, rows: int) -> pa.Array:
    """Return a binary column of the same value."""
    data = np.tile(np.frombuffer(value, np.uint8), rows)
    return binary_values(data, np.arange(1, rows + 1, dtype=np.int64) * len(value))


def constant_where(value: bytes, present: npt.NDArray[np.bool_]) -> pa.Array:
    """Return a binary column with a value in the rows where `present` is True, and no bytes in the others."""
    if present.all():
        return constant(value, len(present))
    count = np.cumsum(present)
    return binary_values(np.tile(np.frombuffer(value, np.uint8), int(count[-1])), count * len(value))


def joined(columns: Sequence[pa.Array]) -> pa.Array:
    """Concatenate binary columns row by row."""
    if len(columns) == 1:
        return columns[0]
    return pc.binary_join_element_wise(*columns, _EMPTY)


def zigzag_varints(numbers: npt.NDArray[np.int64]) -> pa.Array:
    """Return a binary column of zigzag varints."""
    return _varints(((numbers >> 63) ^ (numbers << 1)).view(np.uint64), varint_sizes(numbers))


def unsigned_varints(numbers: npt.NDArray[np.uint64]) -> pa.Array:
    """Return a binary column of varints."""
    return _varints(numbers, np.searchsorted(_VARINT_LIMITS, numbers, side="right") + 1)


def _varints(raw: npt.NDArray[np.uint64], sizes: npt.NDArray[Any]) -> pa.Array:
    longest = int(sizes.max()) if len(sizes) else 1
    place = np.arange(longest)
    encoded = (raw[:, None] >> (np.uint64(7) * place.astype(np.uint64))).astype(np.uint8) & np.uint8(0x7F)
    encoded |= (place < sizes[:, None] - 1).astype(np.uint8) << np.uint8(7)
    return binary_values(encoded[place < sizes[:, None]], np.cumsum(sizes))


def mask(present: npt.NDArray[np.bool_]) -> pa.Array:
    """Return a boolean column."""
    bits = pa.py_buffer(np.packbits(present, bitorder="little"))
    return pa.Array.from_buffers(pa.bool_(), len(present), [None, bits])


def refuse_at(wrong: npt.NDArray[np.bool_], path: str, reason: str) -> None:
    """Raise `InvalidRows` with the rows where `wrong` is True, if there are any."""
    if wrong.any():
        raise InvalidRows(np.flatnonzero(wrong), reason, path)
