"""Decode keys and values of `pykafka consume` by the schemas of a registry, or by one of a file."""

from __future__ import annotations

from collections.abc import Mapping

import click
import pyarrow as pa

from protocol.errors import ConfigurationError
from protocol.kafka_terms import TopicPartition
from protocol.records.arrow_numpy import valid
from protocol.schemas.formats import Format, registered_format
from protocol.schemas.protobuf_settings import ProtobufSettings
from protocol.schemas.reader_schema import Part
from protocol.schemas.registry import SchemaRegistry
from protocol.schemas.values import ColumnDecoder, choose_schema
from spark_kafka_source.cli.json_values import json_column
from spark_kafka_source.cli.record_files import TYPED
from spark_kafka_source.cli.record_text import ERROR

# Levels of Protobuf messages that contain themselves.
_RECURSIVE_DEPTH = 3


class RecordDecoder:
    """Decodes keys and values.

    `decoders` (mapping of {"key", "value"} to ColumnDecoder): the columns to decode.
    `types`: types of the decoded columns.
    `invalid`: number of reported records that do not decode.
    """

    def __init__(self, decoders: Mapping[Part, ColumnDecoder]) -> None:
        self._decoders = dict(decoders)
        self.types = {str(part): _nullable(decoder.type) for part, decoder in self._decoders.items()}
        self.columns = frozenset(("headers", *self.types))
        self.invalid = 0

    def decode(self, batch: pa.RecordBatch, *, as_text: bool) -> pa.RecordBatch:
        """Return a batch with decoded columns.

        `typed_key` and `typed_value` have the types of the schemas; with `as_text`, `key` and `value` are JSON texts.
        `error` has the reasons for values that do not decode; they are null.
        """
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        errors: dict[int, str] = {}
        for part, decoder in self._decoders.items():
            typed, invalid = decoder.decode(batch.column(part), batch.column("headers"))
            columns[TYPED + part] = typed.cast(self.types[part])
            if as_text:
                columns[part] = json_column(typed)
            errors |= {failure.row: f"{part}: {failure}" for failure in invalid if failure.row not in errors}
        columns[ERROR] = pa.array([errors.get(row) for row in range(batch.num_rows)], pa.string())
        return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))

    def report(self, key: TopicPartition, batch: pa.RecordBatch) -> None:
        """Count the records of a decoded batch that have errors, and print the first one to standard error."""
        errors = batch.column(ERROR)
        count = len(errors) - errors.null_count
        if not count:
            return
        self.invalid += count
        row = valid(errors).argmax()
        more = f" ({count} of {len(errors)} records of this batch)" if count > 1 else ""
        offset, reason = batch.column("offset")[row], errors[row]
        click.echo(f"{key[0]}-{key[1]}, offset {offset}: does not decode: {reason}{more}", err=True)


def registered_decoder(registry: SchemaRegistry, subject: str, part: Part) -> ColumnDecoder:
    """Return what decodes keys or values to the latest version of a subject.

    Raises `RegistryFailed`: the registry does not have the subject, refuses, or does not respond. `ConfigurationError`:
    the schema is not supported.
    """
    latest = registry.version(subject)
    format = registered_format(latest.kind)
    if format is None:
        raise ConfigurationError(f"the subject {subject} has a schema of the unsupported type {latest.kind}")
    schema = choose_schema(format, registry, subject, version=latest.version, protobuf=_settings())
    return ColumnDecoder(schema, registry, part)


def fixed_decoder(format: Format, text: str, message: str | None) -> ColumnDecoder:
    """Return what decodes values that all have one schema. Raises `ConfigurationError` if it is invalid."""
    return ColumnDecoder(choose_schema(format, None, "", text=text, protobuf=_settings(message)))


def _settings(message: str | None = None) -> ProtobufSettings:
    return ProtobufSettings(message, recursive_fields_max_depth=_RECURSIVE_DEPTH)


def _nullable(kind: pa.DataType) -> pa.DataType:
    """Return the type with nullable fields: Parquet refuses the null fields of a null struct otherwise."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _nullable(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(pa.field(kind.value_field.name, _nullable(kind.value_type)))
    return pa.map_(kind.key_type, _nullable(kind.item_type)) if pa.types.is_map(kind) else kind
