"""Avro among the languages of schemas (`formats`)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from protocol.errors import ConfigurationError
from protocol.records.arrow_numpy import to_arrow, to_numpy
from protocol.records.varints import Bytes, Positions
from protocol.schemas.avro_columns import read_numbers
from protocol.schemas.avro_encode import encoder
from protocol.schemas.avro_resolution import AvroDecoder, select_fields
from protocol.schemas.avro_schema import AvroType, parse_avro, schema_of
from protocol.schemas.decoding import (
    OneName,
    RecordNames,
    SchemaText,
    UnknownName,
    ValueDecoder,
    WriterNames,
    read_valid,
    refuse,
    refuse_message,
)
from protocol.schemas.encoding import ColumnWriter


class AvroLanguage:
    """Makes decoders and encoders of Avro. The methods are those of `formats.Language`."""

    def decoder(self, reader: SchemaText) -> ValueDecoder:
        """Return what decodes values that were written with the reader's schema."""
        return AvroDecoder(parse_avro(reader.text, dict(reader.references)), _reader(reader))

    def resolver(
        self, text: str, references: Mapping[str, str], reader: SchemaText, message: bytes | None
    ) -> ValueDecoder:
        """Return what decodes values of another schema to the reader's."""
        refuse_message(message)
        return AvroDecoder(parse_avro(text, references), _reader(reader))

    def names(self, reader: SchemaText) -> RecordNames:
        """Return the names of a record, an enum or a fixed."""
        parsed = _reader(reader)
        return RecordNames(parsed.name, parsed.aliases)

    def writer_names(self, text: str, references: Mapping[str, str], message: bytes | None) -> WriterNames:
        """Return the name, or what names the records of a union by the number at the start of each value."""
        refuse_message(message)
        parsed = parse_avro(text, references)
        return _BranchNames(parsed) if parsed.kind == "union" else OneName(parsed.name)

    def writer(
        self, text: str, references: Mapping[str, str], message: str | None, kind: pa.DataType
    ) -> tuple[ColumnWriter, bytes]:
        """Return what encodes a column."""
        return encoder(parse_avro(text, references), kind), b""

    def text_of(self, kind: pa.DataType, name: str = "") -> str:
        """Return the schema of a column."""
        if name and not pa.types.is_struct(kind):
            raise ConfigurationError(f"a column of the type {kind} has no name in Avro; make it a struct")
        return json.dumps(schema_of(kind, name or "Record"))


class _BranchNames:
    """Names the values of a union by the numbers of their branches; those of null have no name."""

    def __init__(self, union: AvroType) -> None:
        self._names = [branch.name or branch.kind for branch in union.children]

    def of_rows(self, data: Bytes, at: Positions, ends: Positions) -> Sequence[tuple[str | None, Positions]]:
        branches, rows, invalid = read_valid(self._branches, data, at, ends)
        numbers = to_numpy(branches)
        named: list[tuple[str | None, Positions]] = [
            (name, rows[numbers == number]) for number, name in enumerate(self._names) if name != "null"
        ]
        named.append((None, np.array([failure.row for failure in invalid], np.int64)))
        return [(name, rows) for name, rows in named if len(rows)]

    def _branches(self, data: Bytes, at: Positions, ends: Positions) -> pa.Array:
        numbers, after = read_numbers(data, at, ends)
        wrong = (numbers < 0) | (numbers >= len(self._names))
        if "null" in self._names:
            wrong |= (numbers == self._names.index("null")) & (after != ends)
        refuse(wrong, "no branch of the union")
        return to_arrow(numbers)


def record_names(reader: SchemaText, subject: str | None) -> tuple[str, ...]:
    """Return the full names of the records of a union. Raises `UnknownName`: the schema is no union of records."""
    parsed = parse_avro(reader.text, dict(reader.references))
    if parsed.kind != "union" or not parsed.members or any(member.kind != "record" for member in parsed.members):
        of_subject = f" of the subject {subject}" if subject else ""
        raise UnknownName(f"the schema{of_subject} is {parsed.text}, no union of records", of="UnionNames")
    return tuple(member.name for member in parsed.members)


def _reader(reader: SchemaText) -> AvroType:
    parsed = parse_avro(reader.text, dict(reader.references))
    if reader.record:
        (parsed,) = (member for member in parsed.members if member.name == reader.record)
    return select_fields(parsed, reader.fields) if reader.fields else parsed
