"""Protobuf among the languages of schemas (`formats`): messages of other schemas of a registry are read by number."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from functools import lru_cache

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
from protocol.schemas.protobuf_encode import encoder, message_index, message_indexes, schema_of
from protocol.schemas.protobuf_schema import FieldType, MessageType, ProtobufSchema, wire_compatible
from protocol.schemas.protobuf_source import parse_protobuf

_MAX_INDEXES = 64
_MAX_INDEX_BYTES = 5
# Headers name a message of a schema by bytes of any number: the schema is not parsed for each.
_PARSED_SCHEMAS = 32


class _MessageIndexes:
    """Confluent's message indexes before a message: a path from the outermost one, as zigzag varints behind a count."""

    def prefix(self, value: bytes) -> bytes | None:
        """Return the indexes at the start of a value; None if they do not end."""
        return _prefix(value)

    def numbers(self, prefix: bytes) -> list[int]:
        return _indexes(prefix)

    def names(self, schema: ProtobufSchema, prefix: bytes) -> set[str]:
        """Return the full names that the message may have; none if the schema has no such message."""
        return schema.at(_indexes(prefix))

    def encode(self, schema: ProtobufSchema, message: MessageType) -> bytes:
        """Return the indexes of a message. Raises `ConfigurationError`: it is not in the file of the schema itself."""
        return message_indexes(schema.indexes(message))


class _GlueIndex(_MessageIndexes):
    """AWS Glue's message index: the place among the sorted names of the schema's messages, as a varint.

    Source: `MessageIndexFinder` and `ProtobufWireFormatEncoder` of AWS's serialisers for Java.
    """

    def prefix(self, value: bytes) -> bytes | None:
        ends = (place for place, byte in enumerate(value[:_MAX_INDEX_BYTES], 1) if byte < 0x80)
        end = next(ends, None)
        return None if end is None else value[:end]

    def numbers(self, prefix: bytes) -> list[int]:
        return [sum((byte & 0x7F) << 7 * place for place, byte in enumerate(prefix))]

    def names(self, schema: ProtobufSchema, prefix: bytes) -> set[str]:
        (index,) = self.numbers(prefix)
        return set(schema.sorted_names[index : index + 1])

    def encode(self, schema: ProtobufSchema, message: MessageType) -> bytes:
        schema.indexes(message)  # raises if it is in another file
        return message_index(schema.sorted_names.index(message.name))


class ProtobufLanguage:
    """Makes decoders and encoders of Protobuf. The methods are those of `formats.Language`.

    `glue`: True if registered values have AWS Glue's index of their message, not Confluent's indexes.
    """

    def __init__(self, *, glue: bool = False) -> None:
        self._index_format = _GlueIndex() if glue else _MessageIndexes()

    def decoder(self, reader: SchemaText) -> ValueDecoder:
        """Return what decodes values that were written with the reader's schema."""
        return _Messages(*_reader(reader))

    def resolver(
        self, text: str, references: Mapping[str, str], reader: SchemaText, message: bytes | None
    ) -> ValueDecoder:
        """Return what decodes values of another schema to the reader's."""
        own, columns = _reader(reader)
        return _Resolver(_parsed(text, tuple(references.items())), own, columns, self._index_format, message)

    def names(self, reader: SchemaText) -> RecordNames:
        """Return the name of a message."""
        return RecordNames(_parsed(reader.text, reader.references).message(reader.protobuf.message).name)

    def writer_names(self, text: str, references: Mapping[str, str], message: bytes | None) -> WriterNames:
        """Return what names messages by their numbers, in a header or at the start of each value."""
        schema = _parsed(text, tuple(references.items()))
        if message is None:
            return _MessageNames(schema, self._index_format)
        return OneName(_name_at(schema, self._index_format, message) or "")

    def writer(
        self, text: str, references: Mapping[str, str], message: str | None, kind: pa.DataType
    ) -> tuple[ColumnWriter, bytes]:
        """Return what encodes a column, and the numbers of the message."""
        schema = parse_protobuf(text, references)
        chosen = schema.message(message)
        return encoder(chosen, kind), self._index_format.encode(schema, chosen)

    def text_of(self, kind: pa.DataType, name: str = "") -> str:
        """Return the schema of a column."""
        return schema_of(kind, name or "Value")


@lru_cache(maxsize=_PARSED_SCHEMAS)
def _parsed(text: str, references: tuple[tuple[str, str], ...]) -> ProtobufSchema:
    return parse_protobuf(text, dict(references))


@lru_cache(maxsize=_PARSED_SCHEMAS)
def _reader(reader: SchemaText) -> tuple[MessageType, MessageReader]:
    message = _parsed(reader.text, reader.references).message(reader.protobuf.message)
    return message, message_reader(message, reader.protobuf, reader.fields)


def _name_at(schema: ProtobufSchema, index_format: _MessageIndexes, prefix: bytes) -> str | None:
    """Return the full name of the message with these numbers; None if the schema has none."""
    return min(index_format.names(schema, prefix), default=None)


class _MessageNames:
    """Names the messages of a schema by the numbers before them."""

    def __init__(self, schema: ProtobufSchema, index_format: _MessageIndexes) -> None:
        self._schema = schema
        self._index_format = index_format

    def of_rows(self, data: Bytes, at: Positions, ends: Positions) -> list[tuple[str | None, Positions]]:
        return [
            (None if prefix is None else _name_at(self._schema, self._index_format, prefix), rows)
            for prefix, rows in _rows_by_prefix(self._index_format, data, at, ends)
        ]


def _rows_by_prefix(
    index_format: _MessageIndexes, data: Bytes, at: Positions, ends: Positions
) -> Iterator[tuple[bytes | None, Positions]]:
    """Yield the numbers of messages before values, each with the rows that have them; None: they do not end."""
    remaining = np.arange(len(at))
    while len(remaining):
        prefix = index_format.prefix(data[at[remaining[0]] : ends[remaining[0]]].tobytes())
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
    """Decodes values of a registered schema: the numbers of the message, followed by the message.

    `header`: the numbers of the message, if they are in a header.
    """

    def __init__(
        self,
        writer: ProtobufSchema,
        reader: MessageType,
        columns: MessageReader,
        index_format: _MessageIndexes,
        header: bytes | None,
    ) -> None:
        self.type = columns.type
        self._writer = writer
        self._reader = reader
        self._columns = columns
        self._index_format = index_format
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
        for prefix, rows in _rows_by_prefix(self._index_format, data, at, ends):
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
            reason = self._check(prefix)
            if len(self._checked) < _MAX_INDEXES:
                self._checked[prefix] = reason
        return reason

    def _check(self, prefix: bytes) -> str:
        """Compare names without packages: a registry may allow a new version to change the package."""
        names = sorted(self._index_format.names(self._writer, prefix))
        for name in names:
            if self._writer.messages[name].local_name == self._reader.local_name:
                return why_incompatible(self._writer.messages[name], self._reader)
        numbers = self._index_format.numbers(prefix)
        names_text = " or ".join(names) or f"number {numbers}, which its schema does not have"
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
            indexes_count = _zigzags(value[: place + 1])[0]
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
