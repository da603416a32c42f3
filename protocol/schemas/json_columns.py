"""Read JSON values as Arrow columns: by Arrow's JSON reader, many values at once.

A value that it refuses, or may read otherwise than Spark's `from_json`, is read by `json_objects`, which alone decides
which values are valid. See docs/decisions/0034-json-decoder.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as arrow_json

from protocol.errors import ConfigurationError
from protocol.records.arrow_numpy import binaries, binary_column, nullable_binaries, take_rows, to_arrow
from protocol.records.varints import Bytes, Positions
from protocol.schemas.decoding import InvalidValue
from protocol.schemas.json_objects import (
    DEEP_BYTES,
    InvalidJson,
    ObjectColumns,
    cast_texts,
    check_type,
    column_of,
    has_type,
    is_deep,
    read_object,
)
from protocol.schemas.json_texts import parse_base64, parse_date, parse_local_timestamp, parse_timestamp

# A block that Arrow refuses is halved down to this number of rows; stop after `_MAX_REFUSED` refused blocks.
_BLOCK_ROWS = 256
_MAX_REFUSED = 4
# Values that are read as Python objects at once.
_OBJECTS_BYTES = 1 << 20
_MAX_TRIMMED = 64
_MAX_PRECISION = 38
_VALUE = "v"
_SPACE = np.isin(np.arange(256), np.frombuffer(b" \t\n\r", np.uint8))
# Arrow takes these bytes for the end of a value; in JSON they are space, and no part of strings.
_ONE_LINE = bytes.maketrans(b"\n\r", b"\t\t")


class _Refused(Exception):
    """Arrow's reader cannot read a block."""


class JsonDecoder:
    """Decodes columns of JSON values.

    Raises `ConfigurationError`: JSON objects cannot have the type.
    """

    def __init__(self, type: pa.DataType) -> None:
        self.type = type
        check_type(type)
        self._is_struct = pa.types.is_struct(type)
        if self._is_struct and not type.num_fields:
            raise ConfigurationError("the schema has no fields")
        fields = list(type) if self._is_struct else [pa.field(_VALUE, type)]
        self._as_read = pa.schema([pa.field(field.name, _type_to_read(field.type)) for field in fields])
        self._by_objects = has_type(type, _is_foreign)

    def decode(self, data: Bytes, at: Positions, ends: Positions) -> tuple[pa.Array, Positions, list[InvalidValue]]:
        """Decode values, as `decoding.ValueDecoder`. Values of space only are null."""
        if not len(at):
            return pa.nulls(0, self.type), np.arange(0), []
        data = data if len(data) else np.zeros(1, np.uint8)
        if self._by_objects:
            certain = np.zeros(len(at), np.bool_)
            texts = binary_column(data, at, ends - at)
        else:
            at, ends = _trim(data, at, ends) if self._is_struct else (at, ends)
            texts = binary_column(data, at, ends - at)
            certain = self._certain(texts, data, at, ends)
        pieces: list[tuple[pa.Array, Positions]] = []
        rows = np.flatnonzero(certain)
        uncertain = np.flatnonzero(~certain)
        if len(rows):
            refused = self._read(texts if len(rows) == len(texts) else take_rows(texts, rows), rows, pieces)
            uncertain = np.concatenate([uncertain, *refused])
        uncertain.sort()
        invalid: list[InvalidValue] = []
        for some in _split(uncertain, ends - at):
            pieces.append(self._read_objects(texts, some, invalid))
        if len(pieces) == 1:
            return *pieces[0], invalid
        owners = np.concatenate([rows for _, rows in pieces])
        order = np.argsort(owners, kind="stable")
        return take_rows(pa.concat_arrays([column for column, _ in pieces]), order), owners[order], invalid

    def _certain(self, texts: pa.Array, data: Bytes, at: Positions, ends: Positions) -> npt.NDArray[np.bool_]:
        """Return which values Arrow's reader may read: those that cannot alter how it parses their neighbours."""
        certain = ends > at
        if self._is_struct:
            certain &= (data.take(at, mode="clip") == ord("{")) & (data.take(ends - 1, mode="clip") == ord("}"))
        # Arrow's reader has no limit of depth.
        for row in np.flatnonzero(ends - at > DEEP_BYTES).tolist():
            certain[row] &= not is_deep(bytes(data[at[row] : ends[row]]))
        try:
            texts.cast(pa.string())
        except pa.ArrowInvalid:
            for row in np.flatnonzero(certain).tolist():
                try:
                    bytes(data[at[row] : ends[row]]).decode()
                except UnicodeDecodeError:
                    certain[row] = False
        return certain

    # -- many at once -------------------------------------------------------------------------

    def _read(self, texts: pa.Array, rows: Positions, pieces: list[tuple[pa.Array, Positions]]) -> list[Positions]:
        """Add the values as columns with their rows to `pieces`; return the rows of the blocks that Arrow refuses."""
        refused: list[Positions] = []
        blocks = [(texts, rows)]
        while blocks:
            block, owners = blocks.pop()
            if len(refused) < _MAX_REFUSED:
                try:
                    pieces.append((self._read_block(block), owners))
                    continue
                except _Refused:
                    if len(block) > _BLOCK_ROWS:
                        half = len(block) // 2
                        blocks += [(block.slice(half), owners[half:]), (block.slice(0, half), owners[:half])]
                        continue
            refused.append(owners)
        return refused

    def _read_block(self, texts: pa.Array) -> pa.Array:
        joined = self._joined(texts)
        options = arrow_json.ReadOptions(use_threads=False, block_size=len(joined) + 1)
        parse = arrow_json.ParseOptions(explicit_schema=self._as_read, unexpected_field_behavior="ignore")
        try:
            table = arrow_json.read_json(pa.BufferReader(joined), read_options=options, parse_options=parse)
        except pa.ArrowInvalid as error:
            raise _Refused from error
        if table.num_rows != len(texts):
            raise _Refused
        columns = [_whole(table.column(field.name)) for field in self._as_read]
        if not self._is_struct:
            return _finished(columns[0], self.type)
        finished = [_finished(column, field.type) for column, field in zip(columns, self.type, strict=True)]
        return pa.Array.from_buffers(self.type, len(texts), [None], children=finished)

    def _joined(self, texts: pa.Array) -> bytes:
        """Return the values as lines, each an object.

        No value can swallow the end of its line: `}`, a line feed and `{` follow each other only outside of all
        objects. So as many objects as lines means one object in each.
        """
        separator = b"\n" if self._is_struct else b'}\n{"%b":' % _VALUE.encode()
        lines = pa.ListArray.from_arrays(to_arrow(np.array([0, len(texts)], np.int32)), _one_line(texts))
        joined: bytes = pc.binary_join(lines, binaries([separator])).buffers()[2].to_pybytes()
        return joined if self._is_struct else separator[2:] + joined + b"}"

    # -- one by one ---------------------------------------------------------------------------

    def _read_objects(
        self, texts: pa.Array, rows: Positions, invalid: list[InvalidValue]
    ) -> tuple[pa.Array, Positions]:
        """Read values as Python objects; return the column of the valid ones and their rows."""
        values: list[Any] = []
        owners: list[int] = []
        refused: dict[int, InvalidJson] = {}
        for row, raw in zip(rows.tolist(), take_rows(texts, rows).to_pylist(), strict=True):
            try:
                value = read_object(raw)
                if value is None and self._is_struct and raw.strip(b" \t\n\r"):
                    raise InvalidJson("null, not an object")
            except InvalidJson as error:
                refused[row] = error
            else:
                values.append(value)
                owners.append(row)
        columns = ObjectColumns()
        accepted = np.array(owners, np.int64)
        column = columns.column(values, accepted, self.type)
        if columns.refused:
            is_valid = ~np.isin(accepted, list(columns.refused))
            column, accepted = take_rows(column, np.flatnonzero(is_valid)), accepted[is_valid]
        refused |= columns.refused
        invalid += [InvalidValue(row, error.reason, error.path) for row, error in refused.items()]
        return column, accepted


def _split(rows: Positions, sizes: Positions) -> list[Positions]:
    """Return rows in parts whose values are of bounded size: as objects they are many times as large."""
    parts = np.cumsum(sizes[rows]) // _OBJECTS_BYTES
    return np.split(rows, np.flatnonzero(np.diff(parts)) + 1) if len(rows) else []


def _trim(data: Bytes, at: Positions, ends: Positions) -> tuple[Positions, Positions]:
    """Return the bounds without space around the values, if it is not long."""
    at, ends = at.copy(), ends.copy()
    for _ in range(_MAX_TRIMMED):
        spaces = (at < ends) & _SPACE[data.take(at, mode="clip")]
        if not spaces.any():
            break
        at[spaces] += 1
    for _ in range(_MAX_TRIMMED):
        spaces = (at < ends) & _SPACE[data.take(ends - 1, mode="clip")]
        if not spaces.any():
            break
        ends[spaces] -= 1
    return at, ends


def _one_line(texts: pa.Array) -> pa.Array:
    data = texts.buffers()[2]
    plain = np.frombuffer(data, np.uint8)
    if not (plain == ord("\n")).any() and not (plain == ord("\r")).any():
        return texts
    translated = pa.py_buffer(data.to_pybytes().translate(_ONE_LINE))
    return pa.Array.from_buffers(texts.type, len(texts), [None, texts.buffers()[1], translated], offset=texts.offset)


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)


# -- types ------------------------------------------------------------------------------------


def _is_text(kind: pa.DataType) -> bool:
    """Return whether a type is read as a string, and converted afterwards."""
    return bool(pa.types.is_timestamp(kind) or kind in (pa.date32(), pa.binary()))


def _type_to_read(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _type_to_read(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(pa.field(kind.value_field.name, _type_to_read(kind.value_type)))
    if pa.types.is_decimal(kind) and kind.precision + kind.scale > _MAX_PRECISION:
        # Arrow's reader rescales a number without a look at the result, so there must be room for it.
        return pa.decimal256(kind.precision, kind.scale)
    return pa.string() if _is_text(kind) else kind


def _is_foreign(kind: pa.DataType) -> bool:
    """Return whether Arrow's JSON reader does not have a type."""
    return bool(pa.types.is_map(kind) or (pa.types.is_struct(kind) and not kind.num_fields))


def _finished(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return a column as read with its own type. Raises `_Refused` for a text that is none of its values."""
    if pa.types.is_struct(kind):
        children = [_finished(column.field(number), field.type) for number, field in enumerate(kind)]
        return pa.Array.from_buffers(kind, len(column), column.buffers()[:1], children=children)
    if pa.types.is_list(kind):
        return pa.Array.from_buffers(
            kind, len(column), column.buffers()[:2], children=[_finished(column.values, kind.value_type)]
        )
    if pa.types.is_string(kind):
        return column
    if pa.types.is_timestamp(kind):
        return _converted(column, kind, parse_timestamp if kind.tz else parse_local_timestamp)
    if kind == pa.date32():
        return _converted(column, kind, parse_date)
    if kind == pa.binary():
        texts = column.to_pylist()
        values = [None if text is None else parse_base64(text) for text in texts]
        if sum(value is None for value in values) > column.null_count:
            raise _Refused
        return nullable_binaries(values)
    if pa.types.is_decimal(kind):
        try:
            column.validate(full=True)
            return column.cast(kind)
        except pa.ArrowInvalid as error:
            raise _Refused from error
    return column


def _converted(column: pa.Array, kind: pa.DataType, parse: Callable[[str], int | None]) -> pa.Array:
    """Return texts as numbers: by Arrow if it knows all of them, else one by one."""
    converted = cast_texts(column, kind)
    if converted is not None:
        return converted
    values = [None if text is None else parse(text) for text in column.to_pylist()]
    if sum(value is None for value in values) > column.null_count:
        raise _Refused
    return column_of(values, kind)
