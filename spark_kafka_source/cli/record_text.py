"""Records as text: a format string as kcat's, or a line of JSON per record. Columns in, bytes out."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

# A record's columns, and its topic and partition.
Render = Callable[[str, int, pa.RecordBatch], bytes]

_NOTHING = b""
_FIELDS: dict[str, tuple[str, ...]] = {
    "t": (),
    "p": (),
    "o": ("offset",),
    "T": ("timestamp_ms",),
    "k": ("key",),
    "v": ("value",),
    "s": ("value",),
    "h": ("headers",),
    "K": ("key",),
    "S": ("value",),
}
_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
_TOKEN = re.compile(r"%(.)|\\x([0-9a-fA-F]{2})|\\(.)|([^%\\]+)|(.)", re.DOTALL)


@dataclass(frozen=True)
class RecordFormat:
    """How to render record batches, and the columns needed for it."""

    columns: frozenset[str]
    render: Render


def text_format(text: str) -> RecordFormat:
    r"""Compile a format string such as `%t %p %o %k %v\n`. Raises `ValueError`.

    `%t` topic, `%p` partition, `%o` offset, `%T` timestamp in milliseconds, `%k` key, `%v` (or `%s`) value, `%h`
    headers as `name=value,…`, `%K` and `%S` the lengths of key and value (-1: null), `%%` a per cent sign, `\n`, `\t`,
    `\r`, `\0`, `\\`, `\xHH` bytes. Null is rendered as nothing.
    """
    parts = _parse(text)
    if not any(isinstance(part, str) for part in parts):
        raise ValueError(f"{text!r} has no field, such as %v; for JSON give -J")
    needed = frozenset(name for part in parts if isinstance(part, str) for name in _FIELDS[part])

    def render(topic: str, partition: int, batch: pa.RecordBatch) -> bytes:
        pieces = [
            pa.scalar(part, pa.binary()) if isinstance(part, bytes) else _piece(part, topic, partition, batch)
            for part in parts
        ]
        return _joined(pieces, batch.num_rows)

    return RecordFormat(needed, render)


def _parse(text: str) -> list[str | bytes]:
    """Return the fields of a format as text, the rest as bytes."""
    parts: list[str | bytes] = []
    for field, byte, escape, literal, lone in _TOKEN.findall(text):
        if lone or (field and field not in _FIELDS and field != "%"):
            raise ValueError(f"%{field} is not a field" if field else f"{lone!r} at the end of the format")
        if escape and escape not in _ESCAPES:
            raise ValueError(f"\\{escape} is not an escape sequence")
        if field and field != "%":
            parts.append(field)
        else:
            fixed = bytes.fromhex(byte) if byte else _ESCAPES[escape] if escape else (literal or field).encode()
            parts.append(fixed)
    return parts


def unescape(text: str) -> bytes:
    r"""Parse text with the escape sequences of a format, such as `\t`. Raises `ValueError`."""
    return b"".join(part for part in _parse(text.replace("%", "%%")) if isinstance(part, bytes))


def _piece(field: str, topic: str, partition: int, batch: pa.RecordBatch) -> Any:
    match field:
        case "t":
            return pa.scalar(topic.encode(), pa.binary())
        case "p":
            return pa.scalar(b"%d" % partition, pa.binary())
        case "h":
            return _headers(batch.column("headers"))
        case "K" | "S":
            lengths = pc.binary_length(batch.column(_FIELDS[field][0]))
            return _digits(pc.fill_null(lengths, -1))
        case "o" | "T":
            return _digits(batch.column(_FIELDS[field][0]))
        case _:
            return batch.column(_FIELDS[field][0])


def _digits(numbers: pa.Array) -> pa.Array:
    return numbers.cast(pa.string()).cast(pa.binary())


def _joined(pieces: list[Any], count: int) -> bytes:
    """Concatenate the pieces of each row, and the rows."""
    if not any(isinstance(piece, pa.Array) for piece in pieces):
        return b"".join(piece.as_py() for piece in pieces) * count
    rows = pc.binary_join_element_wise(
        *pieces, pa.scalar(b"", pa.binary()), null_handling="replace", null_replacement=_NOTHING
    )
    return _data(rows)


def _data(rows: pa.Array) -> bytes:
    """Return the values of a binary array one after the other: they already are so in its buffer."""
    _, offsets, data = rows.buffers()
    if data is None or not len(rows):
        return b""
    ends = np.frombuffer(offsets, np.int32)[[rows.offset, rows.offset + len(rows)]]
    return memoryview(data)[int(ends[0]) : int(ends[1])].tobytes()


def _headers(headers: pa.Array) -> pa.Array:
    pairs = pc.list_flatten(headers)
    names, values = pairs.field("key").cast(pa.binary()), pairs.field("value")
    equals = pa.scalar(b"=", pa.binary())
    texts = pc.binary_join_element_wise(names, values, equals, null_handling="replace", null_replacement=_NOTHING)
    return pc.binary_join(_lists_like(headers, texts), pa.scalar(b",", pa.binary()))


def _lists_like(lists: pa.Array, items: pa.Array) -> pa.Array:
    """Return lists of the same lengths with other items; null becomes an empty list."""
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    offsets = np.zeros(len(lists) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return pa.ListArray.from_arrays(pa.array(offsets), items)


ERROR = "error"  # the column with reasons of values that do not decode
VALUE_TYPE = "value_type"  # the column with the types of values, if they have several

# -- JSON ---------------------------------------------------------------------------------------

_JSON_COLUMNS = frozenset({"offset", "timestamp_ms", "key", "value", "headers"})
# Bytes that the columnar way does not escape: control characters other than \t, \n, \r.
_RARE = rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]"
_JSON_ESCAPES = (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t"))


def json_format(decoded: Collection[str] = ()) -> RecordFormat:
    """Render a JSON object per line.

    Fields: `topic`, `partition`, `offset`, `timestamp_ms`, `key`, `value`, `headers` (a list of objects with `key` and
    `value`). Bytes that are not UTF-8 are in `key_base64`, `value_base64` instead. `decoded` columns are JSON already.
    The column `value_type` is a field, if there is one, and the column `error` in records that have a reason.
    """

    def render(topic: str, partition: int, batch: pa.RecordBatch) -> bytes:
        return _render_json(topic, partition, batch, decoded)

    return RecordFormat(_JSON_COLUMNS, render)


def _render_json(topic: str, partition: int, batch: pa.RecordBatch, decoded: Collection[str]) -> bytes:
    head = f'{{"topic": {json.dumps(topic)}, "partition": {partition}, "offset": '.encode()
    key, value = (
        pc.fill_null(batch.column(name), b"null") if name in decoded else _json_strings(batch.column(name))
        for name in ("key", "value")
    )
    headers = batch.column("headers")
    kinds = [_json_strings(batch.column(name)) for name in batch.schema.names if name == VALUE_TYPE]
    failed = ERROR in batch.schema.names and batch.column(ERROR).null_count != len(headers)
    if failed or headers.null_count != len(headers) or any(column is None for column in (key, value, *kinds)):
        return _render_slowly(head, batch, decoded)
    pieces = [
        *(head, _digits(batch.column("offset")), b', "timestamp_ms": ', _digits(batch.column("timestamp_ms"))),
        *(b', "key": ', key, b', "value": ', value),
        *(piece for kind in kinds for piece in (b', "value_type": ', kind)),
        b', "headers": []}\n',
    ]
    return _joined(
        [pa.scalar(piece, pa.binary()) if isinstance(piece, bytes) else piece for piece in pieces], len(batch)
    )


def _json_strings(column: pa.Array) -> pa.Array | None:
    """Return JSON strings and `null`s; None if a value needs the slower way."""
    if pc.any(pc.match_substring_regex(column, _RARE)).as_py():
        return None
    try:
        text = column.cast(pa.string())
    except pa.ArrowInvalid:  # not UTF-8
        return None
    for old, new in _JSON_ESCAPES:
        text = pc.replace_substring(text, old, new)
    quote = pa.scalar('"', pa.string())
    quoted = pc.binary_join_element_wise(quote, text, quote, pa.scalar("", pa.string()))
    return pc.fill_null(quoted, "null").cast(pa.binary())


def _render_slowly(head: bytes, batch: pa.RecordBatch, decoded: Collection[str]) -> bytes:
    columns = (batch.column(name).to_pylist() for name in ("offset", "timestamp_ms", "key", "value", "headers"))
    kinds, errors = (
        batch.column(name).to_pylist() if name in batch.schema.names else [None] * len(batch)
        for name in (VALUE_TYPE, ERROR)
    )
    lines = []
    for offset, time_ms, key, value, headers, kind, error in zip(*columns, kinds, errors, strict=True):
        pairs = [{"key": header["key"], **_json_field("value", header["value"])} for header in headers or ()]
        fields = [
            _json_members({"timestamp_ms": time_ms}),
            *(
                f'"{name}": {(text or b"null").decode()}' if name in decoded else _json_members(_json_field(name, text))
                for name, text in (("key", key), ("value", value))
            ),
            *([_json_members({VALUE_TYPE: kind})] if VALUE_TYPE in batch.schema.names else ()),
            _json_members({"headers": pairs, **({} if error is None else {ERROR: error})}),
        ]
        lines.append(b"%s%d, %s}\n" % (head, offset, ", ".join(fields).encode()))
    return b"".join(lines)


def _json_members(members: dict[str, Any]) -> str:
    """Return the members of a JSON object, without its braces."""
    return json.dumps(members, ensure_ascii=False)[1:-1]


def _json_field(name: str, value: bytes | None) -> dict[str, str | None]:
    try:
        return {name: None if value is None else value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value or b"").decode()}
