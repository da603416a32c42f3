"""Avro among the languages of schemas (`formats`)."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pyarrow as pa

from protocol.errors import ConfigurationError
from protocol.schemas.avro_encode import encoder
from protocol.schemas.avro_resolution import AvroDecoder, select_fields
from protocol.schemas.avro_schema import AvroType, parse_avro, schema_of
from protocol.schemas.decoding import OneName, RecordNames, SchemaText, ValueDecoder
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
        if message:
            raise ConfigurationError("the header has more bytes than a schema's id or GUID")
        return AvroDecoder(parse_avro(text, references), _reader(reader))

    def names(self, text: str, references: Mapping[str, str], message: str | None) -> RecordNames:
        """Return the names of a record, an enum or a fixed."""
        parsed = parse_avro(text, references)
        return RecordNames(parsed.name, parsed.aliases)

    def writer_names(self, text: str, references: Mapping[str, str], message: bytes | None) -> OneName:
        """Return the name."""
        return OneName(parse_avro(text, references).name)

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


def _reader(reader: SchemaText) -> AvroType:
    parsed = parse_avro(reader.text, dict(reader.references))
    return select_fields(parsed, reader.fields) if reader.fields else parsed
