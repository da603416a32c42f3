"""Records from a file or standard input: lines, JSON lines, CSV, Parquet or Arrow, as batches of columns.

The batches have `value` and, where the input has them, `key`, `headers`, `timestamp_ms` and `partition`.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

import click
import pyarrow as pa
import pyarrow.compute as pc

from protocol.base.listing import CHOICES, listed
from protocol.records.record_fields import HEADERS_TYPE
from spark_kafka_source.cli.json_values import json_column

LINES, JSON, CSV, PARQUET, ARROW = FORMATS = ("lines", "json", "csv", "parquet", "arrow")
_OF_SUFFIX = {
    ".csv": CSV,
    ".parquet": PARQUET,
    ".arrow": ARROW,
    ".feather": ARROW,
    **dict.fromkeys((".json", ".jsonl", ".ndjson"), JSON),
}
_CHUNK_BYTES = 1 << 20
_BATCH_ROWS = 1 << 14
_ARROW_FILE = b"ARROW1"
_TYPES = {
    "key": pa.binary(),
    "value": pa.binary(),
    "headers": HEADERS_TYPE,
    "timestamp_ms": pa.int64(),
    "partition": pa.int32(),
}
_SCHEMA = pa.schema(list(_TYPES.items()))
# Of records that `pykafka consume` and `protocol.read` return.
_IGNORED = ("topic", "offset", "timestamp_type")
_JSON_FIELDS = ("key", "key_base64", "value", "value_base64", "headers", "timestamp_ms", "partition")


class InputError(click.ClickException):
    """The input is not as its format requires."""


@dataclass(frozen=True)
class InputFormat:
    """How to read records.

    `kind`: one of `FORMATS`.
    `separator`: separator of key and value, for lines. A line without it has no key.
    `key_column`, `value_column`: columns of a table to use as key and value, by default `key` and `value`. Without a
    value column, a row becomes a JSON object.
    `empty_as_null`: True if an empty key or value is null, for lines and CSV.
    """

    kind: str
    separator: bytes | None = None
    key_column: str | None = None
    value_column: str | None = None
    empty_as_null: bool = False


def format_of_suffix(suffix: str) -> str:
    """Return the format of a file by its suffix."""
    return _OF_SUFFIX.get(suffix.lower(), LINES)


def read_records(source: BinaryIO, how: InputFormat) -> Iterator[pa.RecordBatch]:
    """Read records. Raises `InputError`; the records before the wrong line, or rows before its batch, are yielded."""
    if how.kind == LINES:
        for lines in _lines(source):
            yield _records_of_lines(lines, how)
        return
    if how.kind == JSON:
        yield from _records_of_json(_lines(source))
        return
    try:
        for batch in _TABLES[how.kind](source, how):
            yield _records_of_rows(batch, how)
    except pa.ArrowException as error:
        raise InputError(f"not {how.kind}: {error}") from error


# -- lines ----------------------------------------------------------------------------------------


def _lines(source: BinaryIO) -> Iterator[pa.Array]:
    """Yield the complete lines that are there, as a binary array; waits only for the first of them."""
    partial = b""
    while chunk := source.read1(_CHUNK_BYTES):  # type: ignore[attr-defined]  # of buffered streams
        text, newline, last = chunk.rpartition(b"\n")
        if newline:
            yield _split(partial + text)
            partial = last
        else:
            partial += chunk
    if partial:
        yield _split(partial)


def _split(text: bytes) -> pa.Array:
    return pc.list_flatten(pc.split_pattern(pa.array([text], pa.binary()), pattern=b"\n"))


def _records_of_lines(lines: pa.Array, how: InputFormat) -> pa.RecordBatch:
    if how.separator is None:
        return pa.RecordBatch.from_arrays([_nulls(lines, how)], ["value"])
    parts = pc.split_pattern(lines, pattern=how.separator, max_splits=1)
    texts, offsets = parts.flatten(), parts.offsets
    first, last = texts.take(offsets[:-1]), texts.take(pc.subtract(offsets[1:], 1))
    keys = pc.if_else(pc.equal(pc.list_value_length(parts), 2), first, pa.scalar(None, pa.binary()))
    return pa.RecordBatch.from_arrays([_nulls(keys, how), _nulls(last, how)], ["key", "value"])


def _nulls(texts: pa.Array, how: InputFormat) -> pa.Array:
    if not how.empty_as_null:
        return texts
    return pc.if_else(pc.equal(pc.binary_length(texts), 0), pa.scalar(None, pa.binary()), texts)


# -- JSON lines -----------------------------------------------------------------------------------


def _records_of_json(chunks: Iterable[pa.Array]) -> Iterator[pa.RecordBatch]:
    number = 0
    for lines in chunks:
        records, wrong = [], None
        for line in lines.to_pylist():
            number += 1
            if line.strip():
                try:
                    records.append(_record(json.loads(line)))
                except (ValueError, TypeError, RecursionError) as error:
                    wrong = InputError(f"line {number}: {error}")
                    break
        yield pa.RecordBatch.from_pylist(records, schema=_SCHEMA)
        if wrong is not None:
            raise wrong


def _record(fields: Any) -> dict[str, Any]:
    if not isinstance(fields, dict):
        raise ValueError("a record is a JSON object with the fields value and, optionally, key, headers, …")
    unknown = set(fields) - {*_JSON_FIELDS, *_IGNORED}
    if unknown:
        raise ValueError(f"{min(unknown)!r} is not one of the fields {', '.join(_JSON_FIELDS)}")
    if not {"value", "value_base64"} & set(fields):
        raise ValueError("the field value is missing")
    headers = fields.get("headers") or []
    if isinstance(headers, dict):
        headers = [{"key": name, "value": value} for name, value in headers.items()]
    return {
        **{name: _bytes(fields, name) for name in ("key", "value")},
        "headers": [_header(header) for header in headers] or None,
        **{name: _integer(fields, name) for name in ("timestamp_ms", "partition")},
    }


def _header(header: Any) -> dict[str, bytes | None]:
    if not isinstance(header, dict) or not isinstance(name := header.get("key"), str):
        raise ValueError("a header is a JSON object with the fields key, a text, and value")
    return {"key": name.encode(), "value": _bytes(header, "value")}


def _integer(fields: Mapping[str, Any], name: str) -> int | None:
    number = fields.get(name)
    if isinstance(number, float) and number.is_integer() and abs(number) < 2**53:  # as jq writes large numbers
        number = int(number)
    if number is None or (type(number) is int and number.bit_length() < _TYPES[name].bit_width):
        return number
    raise ValueError(f"{name}: {number!r} is not an integer of {_TYPES[name].bit_width} bits")


def _bytes(fields: Mapping[str, Any], name: str) -> bytes | None:
    if (encoded := fields.get(f"{name}_base64")) is not None:
        try:
            return base64.b64decode(encoded, validate=True)
        except (binascii.Error, TypeError) as error:
            raise ValueError(f"{name}_base64: {error}") from error
    value = fields.get(name)
    if value is None or isinstance(value, str):
        return None if value is None else value.encode()
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


# -- tables ---------------------------------------------------------------------------------------


def _csv(source: BinaryIO, how: InputFormat) -> Iterator[pa.RecordBatch]:
    from pyarrow import csv

    types = {name: of_type for name, of_type in _TYPES.items() if name != "headers"}
    # As text: 007 stays 007.
    types |= {name: pa.string() for name in (how.key_column, how.value_column) if name is not None}
    options = csv.ConvertOptions(column_types=types, strings_can_be_null=how.empty_as_null, null_values=[""])
    lines = csv.ParseOptions(newlines_in_values=True)
    yield from csv.open_csv(source, parse_options=lines, convert_options=options)


def _parquet(source: BinaryIO, _: InputFormat) -> Iterator[pa.RecordBatch]:
    from pyarrow import parquet

    # A Parquet file is read from its end.
    file = parquet.ParquetFile(source if source.seekable() else pa.BufferReader(source.read()))
    yield from file.iter_batches(_BATCH_ROWS)


def _arrow(source: BinaryIO, _: InputFormat) -> Iterator[pa.RecordBatch]:
    """Read Arrow's file format, which ends with an index, or its stream format."""
    if source.seekable():
        start = source.read(len(_ARROW_FILE))
        source.seek(0)
    else:
        start = source.peek(len(_ARROW_FILE))  # type: ignore[attr-defined]  # of buffered streams
    if not start.startswith(_ARROW_FILE):
        yield from pa.ipc.open_stream(source)
        return
    file = pa.ipc.open_file(source if source.seekable() else pa.BufferReader(source.read()))
    for number in range(file.num_record_batches):
        yield file.get_batch(number)


_TABLES = {CSV: _csv, PARQUET: _parquet, ARROW: _arrow}


def _records_of_rows(batch: pa.RecordBatch, how: InputFormat) -> pa.RecordBatch:
    names = batch.schema.names
    for column in (how.key_column, how.value_column):
        if column is not None and column not in names:
            raise InputError(f"there is no column {column}; the columns are {listed(names, CHOICES)}")
    value = how.value_column or ("value" if "value" in names else None)
    key = how.key_column or ("key" if "key" in names and value is not None else None)
    used = set(names) if value is None else {value, key, *_TYPES}
    if twice := [name for name in names if name in used and names.count(name) > 1]:
        raise InputError(f"two columns have the name {twice[0]}; the columns are {listed(names, CHOICES)}")
    if value is None:
        columns = {"value": json_column(batch.to_struct_array())}
    else:
        unknown = set(names) - {key, value, "key", "value", *_TYPES, *_IGNORED}
        if unknown and how.value_column is None:
            raise InputError(f"{min(unknown)} is not a column of a record; name the one to send: --value-column")
        columns = {"value": batch.column(value)}
        columns |= {name: batch.column(name) for name in ("headers", "timestamp_ms", "partition") if name in names}
    if key is not None:
        columns["key"] = batch.column(key)
    return pa.RecordBatch.from_pydict({name: _cast(name, column) for name, column in columns.items()})


def _cast(name: str, column: pa.Array) -> pa.Array:
    kind = _TYPES[name]
    if column.type == kind or name not in ("key", "value"):
        return column.cast(kind)
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    # A number as its digits.
    return column.cast(pa.string()).cast(kind) if not pa.types.is_large_binary(column.type) else column.cast(kind)
