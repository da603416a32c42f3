"""Protobuf among the languages of schemas (`formats`): messages of other schemas of a registry are read by number."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa

from protocol.errors import ConfigurationError
from protocol.records.varints import Bytes, Positions
from protocol.schemas.decoding import (
    InvalidRows,
    InvalidValue,
    OneName,
    RecordNames,
    SchemaText,
    ValueDecoder,
    WriterNames,
    read_valid,
)
from protocol.schemas.encoding import ColumnWriter
from protocol.schemas.protobuf_columns import MAX_NESTING, MessageReader, message_reader
from protocol.schemas.protobuf_encode import encoder, message_indexes, schema_of
from protocol.schemas.protobuf_schema import FieldType, MessageType, ProtobufSchema, wire_compatible
from protocol.schemas.protobuf_source import parse_protobuf

_MAX_INDEXES = 64
_MAX_INDEX_BYTES = 5


class ProtobufLanguage:
    """Makes decoders and encoders of Protobuf. The methods are those of `formats.Language`."""

    def decoder(self, reader: SchemaText) -> ValueDecoder:
        """Return what decodes values that were written with the reader's schema."""
        return _Messages(*_reader(reader))

    def resolver(
        self, text: str, references: Mapping[str, str], reader: SchemaText, message: bytes | None
    ) -> ValueDecoder:
        """Return what decodes values of another schema to the reader's."""
        own, columns = _reader(reader)
        return _Resolver(parse_protobuf(text, references), own, columns, message)

    def names(self, reader: SchemaText) -> RecordNames:
        """Return the name of a message."""
        return RecordNames(parse_protobuf(reader.text, dict(reader.references)).message(reader.protobuf.message).name)

    def writer_names(self, text: str, references: Mapping[str, str], message: bytes | None) -> WriterNames:
        """Return what names messages by their numbers, in a header or at the start of each value."""
        schema = parse_protobuf(text, references)
        return _MessageNames(schema) if message is None else OneName(_name_at(schema, message) or "")

    def writer(
        self, text: str, references: Mapping[str, str], message: str | None, kind: pa.DataType
    ) -> tuple[ColumnWriter, bytes]:
        """Return what encodes a column, and the numbers of the message."""
        schema = parse_protobuf(text, references)
        chosen = schema.message(message)
        return encoder(chosen, kind), message_indexes(schema.indexes(chosen))

    def text_of(self, kind: pa.DataType, name: str = "") -> str:
        """Return the schema of a column."""
        return schema_of(kind, name or "Value")


def _reader(reader: SchemaText) -> tuple[MessageType, MessageReader]:
    message = parse_protobuf(reader.text, dict(reader.references)).message(reader.protobuf.message)
    return message, message_reader(message, reader.protobuf, reader.fields)


def _name_at(schema: ProtobufSchema, prefix: bytes) -> str | None:
    """Return the full name of the message with these numbers; None if the schema has none."""
    return min(schema.at(_indexes(prefix)), default=None)


class _MessageNames:
    """Names the messages of a schema by the numbers before them."""

    def __init__(self, schema: ProtobufSchema) -> None:
        self._schema = schema

    def of_rows(self, data: Bytes, at: Positions, ends: Positions) -> list[tuple[str | None, Positions]]:
        return [
            (None if prefix is None else _name_at(self._schema, prefix), rows)
            for prefix, rows in _rows_by_prefix(data, at, ends)
        ]


def _rows_by_prefix(data: Bytes, at: Positions, ends: Positions) -> Iterator[tuple[bytes | None, Positions]]:
    """Yield the numbers of messages before values, each with the rows that have them; None: they do not end."""
    remaining = np.arange(len(at))
    while len(remaining):
        prefix = _prefix(data[at[remaining[0]] : ends[remaining[0]]].tobytes())
        if prefix is None:
            yield None, remaining[:1]
            remaining = remaining[1:]
            continue
        same = ends[remaining] - at[remaining] >= len(prefix)
        for place, byte in enumerate(prefix):
            same &= data.take(at[remaining] + place, mode="clip") == byte
        yield prefix, remaining[same]
        remaining = remaining[~same]


class _Messages:
    """Decodes messages of the reader's schema."""

    def __init__(self, message: MessageType, columns: MessageReader) -> None:
        self.type = columns.type
        self._columns = columns

    def decode(self, data: Bytes, at: Positions, ends: Positions) -> tuple[pa.Array, Positions, list[InvalidValue]]:
        return read_valid(self._columns.read_messages, data, at, ends)


class _Resolver:
    """Decodes values of a registered schema: message indexes, followed by the message.

    `header`: the numbers of the message, if they are in a header.
    """

    def __init__(
        self, writer: ProtobufSchema, reader: MessageType, columns: MessageReader, header: bytes | None
    ) -> None:
        self.type = columns.type
        self._writer = writer
        self._reader = reader
        self._columns = columns
        self._checked: dict[bytes, str] = {}
        self._in_values = header is None
        if header is not None and (reason := self._why_not(header)):
            raise ConfigurationError(reason)

    def decode(self, data: Bytes, at: Positions, ends: Positions) -> tuple[pa.Array, Positions, list[InvalidValue]]:
        return read_valid(self._read if self._in_values else self._columns.read_messages, data, at, ends)

    def _read(self, data: Bytes, at: Positions, ends: Positions) -> pa.Array:
        if not len(at):
            return self._columns.read_messages(data, at, ends)
        start = at.copy()
        for prefix, rows in _rows_by_prefix(data, at, ends):
            if prefix is None:
                raise InvalidRows(rows, "its message indexes are truncated")
            if reason := self._why_not(prefix):
                raise InvalidRows(rows, reason)
            start[rows] += len(prefix)
        return self._columns.read_messages(data, start, ends)

    def _why_not(self, prefix: bytes) -> str:
        """Return why messages with these numbers cannot be read; empty if they can."""
        reason = self._checked.get(prefix)
        if reason is None:
            reason = self._check(_indexes(prefix))
            if len(self._checked) < _MAX_INDEXES:
                self._checked[prefix] = reason
        return reason

    def _check(self, indexes: Sequence[int]) -> str:
        """Compare names without packages: a registry may allow a new version to change the package."""
        names = sorted(self._writer.at(indexes))
        for name in names:
            if self._writer.messages[name].local_name == self._reader.local_name:
                return why_incompatible(self._writer.messages[name], self._reader)
        names_text = " or ".join(names) or f"number {list(indexes)}, which its schema does not have"
        return f"its message is {names_text}, not {self._reader.name}"


def _prefix(value: bytes) -> bytes | None:
    """Return the numbers of the message at the start of a value; None if they do not end."""
    indexes_count = 1
    numbers = 0
    for place, byte in enumerate(value[: _MAX_INDEXES * _MAX_INDEX_BYTES]):
        if byte >= 0x80:
            continue
        if not numbers:
            # The first number is how many follow; zero alone is the first message.
            indexes_count = _indexes_count(value[: place + 1])
            if not 0 <= indexes_count <= _MAX_INDEXES:
                return None
        else:
            indexes_count -= 1
        numbers += 1
        if not indexes_count:
            return value[: place + 1]
    return None


def _zigzags(raw: bytes) -> list[int]:
    numbers: list[int] = []
    number = shift = 0
    for byte in raw:
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            numbers.append(number >> 1 ^ -(number & 1))
            number = shift = 0
    return numbers


def _indexes_count(raw: bytes) -> int:
    return _zigzags(raw)[0]


def _indexes(prefix: bytes) -> list[int]:
    numbers = _zigzags(prefix)
    return numbers[1:] if numbers and numbers[0] else [0]


def why_incompatible(writer: MessageType, reader: MessageType) -> str:
    """Return which field of the writer's message has another type in the reader's; empty if there is none.

    Such a field would be read as another value, or as absent, without an error.
    """
    pending = deque([(writer, reader, "", 0)])
    compared = {(writer.name, reader.name)}
    # By depth: a pair of messages that is left out was compared at a smaller one.
    while pending:
        old, new, path, depth = pending.popleft()
        written = {field.number: field for field in old.fields}
        for field in new.fields:
            former = written.get(field.number)
            if former is None:
                continue
            below = f"{path}.{field.name}" if path else field.name
            if not _alike(former, field):
                return (
                    f"incompatible Protobuf schemas: {below}, with the number {field.number}, is {_text(former)} "
                    f"in the writer's schema, {_text(field)} in the reader's"
                )
            if former.message is None or field.message is None or depth == MAX_NESTING:
                continue
            pair = former.message.name, field.message.name
            if pair not in compared:
                compared.add(pair)
                pending.append((former.message, field.message, below, depth + 1))
    return ""


def _alike(old: FieldType, new: FieldType) -> bool:
    if old.repeated != new.repeated and not {"message", "string", "bytes"} & {old.kind, new.kind}:
        return False
    return wire_compatible(old.kind, new.kind)


def _text(field: FieldType) -> str:
    kind = (
        field.message.name if field.message is not None else field.enum.name if field.enum is not None else field.kind
    )
    return f"repeated {kind}" if field.repeated else kind
