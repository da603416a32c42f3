"""Decode keys and values of `pykafka consume` by the schemas of a registry, or by one of a file."""

from __future__ import annotations

from collections.abc import Mapping

import click
import numpy as np
import pyarrow as pa

from protocol.decoded_columns import column_types
from protocol.errors import ConfigurationError
from protocol.kafka_terms import TopicPartition
from protocol.records.arrow_numpy import valid
from protocol.schemas.decoding import UnknownName
from protocol.schemas.formats import FORMATS, Format, ValueTypes, default_subject, registered_format
from protocol.schemas.protobuf_settings import ProtobufSettings
from protocol.schemas.reader_schema import Part, ReaderSchema
from protocol.schemas.registry import SchemaRegistry
from protocol.schemas.values import ColumnDecoder, choose_schema, choose_types, with_union_types
from spark_kafka_source.cli.json_values import json_column
from spark_kafka_source.cli.record_files import TYPED
from spark_kafka_source.cli.record_text import ERROR, VALUE_TYPE

# Levels of Protobuf messages that contain themselves.
_RECURSIVE_DEPTH = 3


class RecordDecoder:
    """Decodes keys and values.

    `decoders`: those of the columns `key` and `value`, if they are decoded.
    `on_unknown_type`: {"fail", "null", "skip"}; to fail is not to decode.
    `types`: types of the decoded columns, and of `value_type` if values are of several types.
    `invalid`: number of reported records that do not decode.
    """

    def __init__(self, decoders: Mapping[str, ColumnDecoder], on_unknown_type: str = "fail") -> None:
        self._decoders = dict(decoders)
        self._on_unknown_type = on_unknown_type
        self.types = {name: _nullable(kind) for name, kind in column_types(decoders).items()}
        self.columns = frozenset(("headers", *decoders))
        self.invalid = 0

    def decode(self, batch: pa.RecordBatch, *, as_text: bool) -> pa.RecordBatch:
        """Return a batch with decoded columns, without the records of other types if they are skipped.

        `typed_key` and `typed_value` have the types of the schemas; with `as_text`, `key` and `value` are JSON texts.
        `value_type` has the types of values, if they have several. `error` has the reasons for values that do not
        decode; they are null.
        """
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        errors: dict[int, str] = {}
        unknown_types: set[int] = set()
        for part, decoder in self._decoders.items():
            stored, headers = batch.column(part), batch.column("headers")
            typed, invalid = decoder.decode(stored, headers)
            columns[TYPED + part] = typed.cast(self.types[part])
            if as_text:
                columns[part] = json_column(typed)
            if decoder.schema.types:
                columns[VALUE_TYPE], _ = decoder.type_names(stored, headers)  # `invalid` has these failures
            for failure in invalid:
                if not failure.unknown_type:
                    errors.setdefault(failure.row, f"{part}: {failure}")
                elif self._on_unknown_type == "fail":
                    errors.setdefault(failure.row, f"{part}: {failure} (see --on-unknown-type)")
                else:
                    unknown_types.add(failure.row)
        columns[ERROR] = pa.array([errors.get(row) for row in range(batch.num_rows)], pa.string())
        decoded = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
        if not unknown_types or self._on_unknown_type != "skip":
            return decoded
        return decoded.filter(pa.array(~np.isin(np.arange(batch.num_rows), list(unknown_types))))

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


def registered_decoder(registry: SchemaRegistry, topic: str, part: Part, types: ValueTypes) -> ColumnDecoder:
    """Return what decodes keys or values to the latest versions of their subjects.

    Raises `RegistryFailed`: the registry does not have a subject, refuses, or does not respond. `ConfigurationError`:
    a schema is not supported.
    """
    versions: dict[str, int | None] = dict.fromkeys(types.subjects(topic))
    subject = next(iter(versions), types.one_subject or default_subject(registry.config.kind, topic, part))
    latest = registry.version(subject)
    format = registered_format(latest.kind, registry.config.kind)
    if format is None:
        raise ConfigurationError(f"the subject {subject} has a schema of the unsupported type {latest.kind}")
    if versions:
        versions[subject] = latest.version
        schema = choose_types(format, registry, versions, messages=types.names, protobuf=_settings())
    else:
        schema = choose_schema(format, registry, subject, version=latest.version, protobuf=_settings())
    return ColumnDecoder(_in_union(schema) if types.in_union else schema, registry, part)


def fixed_decoder(
    format: Format, text: str, message: str | None, registry: SchemaRegistry | None, *, in_union: bool
) -> ColumnDecoder:
    """Return what decodes values to one schema. Raises `ConfigurationError` if it is invalid.

    `registry`: has the schemas of values with ids.
    """
    schema = choose_schema(format, registry, "", text=text, protobuf=_settings(message))
    return ColumnDecoder(_in_union(schema) if in_union else schema, registry)


def _in_union(schema: ReaderSchema) -> ReaderSchema:
    """Return the schema of several types from that of a union."""
    if (language := FORMATS[schema.format].language) != "AVRO":
        raise ConfigurationError(f"--union-types: the schema is one of {language}, not of AVRO")
    try:
        return with_union_types(schema)
    except UnknownName as error:
        raise ConfigurationError(f"--union-types: {error}") from None


def _settings(message: str | None = None) -> ProtobufSettings:
    return ProtobufSettings(message, recursive_fields_max_depth=_RECURSIVE_DEPTH)


def _nullable(kind: pa.DataType) -> pa.DataType:
    """Return the type with nullable fields: Parquet refuses the null fields of a null struct otherwise."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _nullable(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(pa.field(kind.value_field.name, _nullable(kind.value_type)))
    return pa.map_(kind.key_type, _nullable(kind.item_type)) if pa.types.is_map(kind) else kind
