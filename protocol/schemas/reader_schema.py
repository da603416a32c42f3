"""The schema of a decoded column: fixed on the driver, sent to executors."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import pyarrow as pa

from protocol.schemas.decoding import RecordNames, check_fields
from protocol.schemas.formats import FORMATS, Format, language_of
from protocol.schemas.protobuf_settings import DEFAULT_SETTINGS, ProtobufSettings

Part = Literal["key", "value"]


@dataclass(frozen=True)
class ReaderSchema:
    """The schema of a decoded column, which all its records are resolved to.

    `format`: one of `formats.FORMATS`.
    `text`: the schema; empty for formats without one.
    `references`: schemas that it uses, by name, in the order of their dependencies.
    `fields`: the fields of a record to decode, or of several types those to decode; empty: all.
    `protobuf`: how Protobuf is read.
    `record`: the full name of the record to read, if the schema is a union of Avro; empty: the whole schema.
    `subject`, `version`, `schema_id`: its place and id in the registry, if it comes from there.
    `types`: the schemas of several types of records, by the field of the column that has them; empty: one type.
    """

    format: Format
    text: str = ""
    references: tuple[tuple[str, str], ...] = ()
    fields: tuple[str, ...] = ()
    protobuf: ProtobufSettings = DEFAULT_SETTINGS
    subject: str | None = None
    version: int | None = None
    schema_id: int | None = None
    types: tuple[tuple[str, ReaderSchema], ...] = ()
    record: str = ""

    @cached_property
    def type(self) -> pa.DataType:
        """The Arrow type of the column. Raises `ConfigurationError` if the schema is invalid."""
        if not self.types:
            if FORMATS[self.format].language is None:
                return pa.string() if self.format == "string" else pa.binary()
            return language_of(self.format).decoder(self).type
        check_fields([name for name, _ in self.types], self.fields)
        chosen = [(name, schema) for name, schema in self.types if not self.fields or name in self.fields]
        return pa.struct([pa.field(name, schema.type) for name, schema in chosen])

    @cached_property
    def names(self) -> RecordNames:
        """The full name of the record, and its aliases."""
        return language_of(self.format).names(self)
