"""The schema of a decoded column: fixed on the driver, sent to executors."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import pyarrow as pa

from protocol.schemas.formats import Format, column_type
from protocol.schemas.protobuf_settings import DEFAULT_SETTINGS, ProtobufSettings

Part = Literal["key", "value"]


@dataclass(frozen=True)
class ReaderSchema:
    """The schema of a decoded column, which all its records are resolved to.

    `format`: one of `formats.FORMATS`.
    `text`: the schema; empty for formats without one.
    `references`: schemas that it uses, by name, in the order of their dependencies.
    `fields`: the fields of a record to decode; empty: all.
    `protobuf`: how Protobuf is read.
    `subject`, `version`, `schema_id`: its place and id in the registry, if it comes from there.
    """

    format: Format
    text: str = ""
    references: tuple[tuple[str, str], ...] = ()
    fields: tuple[str, ...] = ()
    protobuf: ProtobufSettings = DEFAULT_SETTINGS
    subject: str | None = None
    version: int | None = None
    schema_id: int | None = None

    @cached_property
    def type(self) -> pa.DataType:
        """The Arrow type of the column. Raises `ConfigurationError` if the schema is invalid."""
        return column_type(self.format, self)
