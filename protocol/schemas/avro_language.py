"""Avro among the languages of schemas (`formats`)."""

from __future__ import annotations

from collections.abc import Mapping

from protocol.errors import ConfigurationError
from protocol.schemas.avro_resolution import AvroDecoder, select_fields
from protocol.schemas.avro_schema import AvroType, parse_avro
from protocol.schemas.decoding import SchemaText, ValueDecoder


class AvroLanguage:
    """Makes decoders of Avro. The methods are those of `formats.Language`."""

    def decoder(self, reader: SchemaText) -> ValueDecoder:
        """Return what decodes values that were written with the reader's schema."""
        return AvroDecoder(parse_avro(reader.text, dict(reader.references)), _reader(reader))

    def resolver(
        self, text: str, references: Mapping[str, str], reader: SchemaText, message: bytes | None
    ) -> ValueDecoder:
        """Return what decodes values of another schema to the reader's."""
        if message:
            raise ConfigurationError("the header has more bytes than a GUID")
        return AvroDecoder(parse_avro(text, references), _reader(reader))


def _reader(reader: SchemaText) -> AvroType:
    parsed = parse_avro(reader.text, dict(reader.references))
    return select_fields(parsed, reader.fields) if reader.fields else parsed
