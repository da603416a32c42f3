"""JSON among the languages of schemas (`formats`).

A column's type is a schema of Spark, as DDL or JSON, or a JSON Schema. JSON values have the names of their fields in
them, so the schema that they were written with does not matter: fields are found by name, others are ignored.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import pyarrow as pa

from protocol.schemas.decoding import (
    OneName,
    RecordNames,
    SchemaText,
    ValueDecoder,
    check_fields,
    load_schema,
    refuse_message,
)
from protocol.schemas.encoding import ColumnWriter
from protocol.schemas.json_columns import JsonDecoder
from protocol.schemas.json_encode import json_writer, schema_of
from protocol.schemas.json_schema import arrow_type, parse_json_schema
from protocol.schemas.spark_schema import parse_spark


class JsonLanguage:
    """Makes decoders and encoders of JSON. The methods are those of `formats.Language`."""

    def decoder(self, reader: SchemaText) -> ValueDecoder:
        """Return what decodes values to the reader's schema."""
        if is_json_schema(reader.text):
            kind = arrow_type(parse_json_schema(reader.text, dict(reader.references)))
        else:
            kind = parse_spark(reader.text)
        return JsonDecoder(select_fields(kind, reader.fields) if reader.fields else kind)

    def resolver(
        self, text: str, references: Mapping[str, str], reader: SchemaText, message: bytes | None
    ) -> ValueDecoder:
        """Return what decodes values to the reader's schema, whatever they were written with."""
        refuse_message(message)
        return self.decoder(reader)

    def names(self, reader: SchemaText) -> RecordNames:
        """Return the title of a JSON Schema, which Confluent's serialisers take for its name."""
        return RecordNames(_title(reader.text))

    def writer_names(self, text: str, references: Mapping[str, str], message: bytes | None) -> OneName:
        """Return the title."""
        refuse_message(message)
        return OneName(_title(text))

    def writer(
        self, text: str, references: Mapping[str, str], message: str | None, kind: pa.DataType
    ) -> tuple[ColumnWriter, bytes]:
        """Return what encodes a column; without a schema as its own types say."""
        if not text:
            schema = None
        elif is_json_schema(text):
            schema = parse_json_schema(text, references)
        else:
            schema = parse_json_schema(self.text_of(parse_spark(text)))
        return json_writer(schema, kind), b""

    def text_of(self, kind: pa.DataType, name: str = "") -> str:
        """Return the JSON Schema of a column."""
        return json.dumps(schema_of(kind) | ({"title": name} if name else {}))


def _title(text: str) -> str:
    document = load_schema(text, "the JSON Schema") if is_json_schema(text) else None
    title = document.get("title") if isinstance(document, dict) else None
    return title if isinstance(title, str) else ""


def is_json_schema(text: str) -> bool:
    """Return whether a schema is a JSON Schema. Otherwise it is one of Spark, as DDL or as JSON."""
    if not text.lstrip().startswith("{") and text.strip() not in ("true", "false"):
        return False
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return True  # for the message
    return not (isinstance(document, dict) and (document.get("type") in ("struct", "map") or "elementType" in document))


def select_fields(kind: pa.DataType, fields: tuple[str, ...]) -> pa.DataType:
    """Return a struct type with these fields only, in its own order. Raises `UnknownName`."""
    check_fields([field.name for field in kind] if pa.types.is_struct(kind) else [], fields)
    return pa.struct([field for field in kind if field.name in fields])
