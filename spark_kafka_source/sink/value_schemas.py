"""Write keys and values with a schema: the driver resolves it once, and tasks encode with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

import pyarrow as pa
from pyspark.sql.types import DataType, StructType

from protocol.base.listing import CHOICES, listed
from protocol.errors import ConfigurationError, RegistryFailed, UsageError
from protocol.schemas.decoding import RecordNames, fields_of_types
from protocol.schemas.formats import FORMATS, default_subject, language_of, registered_format
from protocol.schemas.protobuf_settings import ProtobufSettings
from protocol.schemas.reader_schema import ReaderSchema
from spark_kafka_source.error_messages import with_remedies
from spark_kafka_source.options.table import SinkOptions
from spark_kafka_source.process_state import PROCESS
from spark_kafka_source.spark_api import arrow_type

if TYPE_CHECKING:
    from protocol.schemas.encoding import ColumnWriter
    from protocol.schemas.registry import RegisteredSchema, SchemaRegistry

_MAX_ENCODERS = 64


@dataclass(frozen=True)
class WriterSchema:
    """The schema that a column is written with.

    `part`: {"key", "value"}.
    `format`: one of `formats.FORMATS`.
    `references`: schemas that it uses, by name.
    `prefix`: the bytes before each value: none, or those with the schema's id.
    `message`: the message of a Protobuf schema.
    `types`: the schemas of several types of records, by the field of the column that has them; empty: one type.
    """

    part: Literal["key", "value"]
    format: str
    text: str
    references: tuple[tuple[str, str], ...] = ()
    prefix: bytes = b""
    message: str | None = None
    types: tuple[tuple[str, WriterSchema], ...] = ()


# -- on the driver ----------------------------------------------------------------------------------


@with_remedies()
def writer_schemas(options: SinkOptions, schema: StructType) -> tuple[WriterSchema, ...]:
    """Return the schemas of encoded keys and values. Checks that they fit the types of the DataFrame's columns.

    Raises `RegistryFailed`: the registry does not have the subject or the schema, refuses a new one as incompatible, or
    does not respond. `ConfigurationError`: a column has a type that its schema cannot take; the message has the field.
    """
    schemas = []
    for part in options.encoded:
        if part not in schema.fieldNames():
            continue
        schemas.append(writer_schema(options, part, schema[part].dataType))
    return tuple(schemas)


def writer_schema(options: SinkOptions, part: Literal["key", "value"], type: DataType | None) -> WriterSchema:
    """Return the schema of encoded keys or values. Checks that it fits the column's type, if that is known.

    Raises `RegistryFailed` and `ConfigurationError`.
    """
    column_type = None if type is None else arrow_type(type)
    if part == "value" and options.value_subjects:
        made = _schema_of_types(options, column_type)
    else:
        subject, format, message = (
            (options.key_subject, options.key_format, options.key_message_name)
            if part == "key"
            else (options.value_subject, options.value_format, options.value_message_name)
        )
        subject = subject or default_subject(FORMATS[format].registry, str(options.topic), part)
        made = _schema_of_subject(options, part, subject, message, column_type)
    if column_type is not None:
        try:
            _encoders(made, column_type) if made.types else _encoder(made, column_type)
        except ConfigurationError as error:
            raise ConfigurationError(f"the column {part} cannot be written: {error}", name=f"{part}Schema") from None
    return made


def _schema_of_types(options: SinkOptions, column_type: pa.DataType | None) -> WriterSchema:
    format, subjects = options.value_format, options.value_subjects
    types = options.value_types or (None,) * len(subjects)
    column_types: Sequence[pa.DataType | None] = (None,) * len(subjects)
    if options.auto_register_schemas and column_type is not None:
        fields = fields_of_types(format, {name: RecordNames(name) for name in options.value_types})
        column_types = _types_of_fields(column_type, fields)
    schemas = [
        _schema_of_subject(options, "value", subject, name, field_type, name or "")
        for subject, name, field_type in zip(subjects, types, column_types, strict=True)
    ]
    names = {}
    for subject, schema in zip(subjects, schemas, strict=True):
        try:
            message = ProtobufSettings(message=schema.message)
            names[subject] = ReaderSchema(format, schema.text, schema.references, protobuf=message).names
        except ConfigurationError as error:
            raise ConfigurationError(f"the subject {subject}: {error}", name="valueTypes") from None
    fields = fields_of_types(format, names)
    return WriterSchema("value", format, "", types=tuple(zip(fields, schemas, strict=True)))


def _schema_of_subject(
    options: SinkOptions,
    part: Literal["key", "value"],
    subject: str,
    message: str | None,
    column_type: pa.DataType | None,
    name: str = "",
) -> WriterSchema:
    """Return the schema of all keys or values, or of one of several types. `name`: that of a schema to register."""
    is_key = part == "key"
    text = options.key_schema if is_key else options.value_schema
    format = options.key_format if is_key else options.value_format
    spec = FORMATS[format]
    if not spec.registered or options.registry is None:
        return WriterSchema(part, format, text or "", message=message)
    registry = PROCESS.registry(options.registry)
    schema = _registered(registry, options, subject, format, text, column_type, name)
    if schema.kind != spec.language:
        fitting = registered_format(schema.kind, spec.registry)
        raise ConfigurationError(
            f"the subject {subject} has a schema of the type {schema.kind}, not {spec.language}"
            f"{f'; set {part}Format to {fitting}' if fitting else ''}"
        )
    _refuse_rules(schema, subject)
    from protocol.schemas.values import prefix_of

    references = tuple((name, reference.text) for name, reference in registry.references(schema).items())
    return WriterSchema(part, format, schema.text, references, prefix_of(format, schema), message)


def _registered(
    registry: SchemaRegistry,
    options: SinkOptions,
    subject: str,
    format: str,
    text: str | None,
    column_type: pa.DataType | None,
    name: str,
) -> RegisteredSchema:
    """Return the version of the subject to write with. Registers the schema first if options allow that."""
    from protocol.schemas.registry import NO_SCHEMA, NO_SUBJECT, RegisteredSchema

    normalize = options.normalize_schemas
    try:
        latest = registry.version(subject)
        # The contract of the subject also holds for an older version without rules, and for the next version.
        _refuse_rules(latest, subject)
        if not options.auto_register_schemas:
            if text is None:
                return latest
            return registry.lookup(subject, RegisteredSchema(text, _language(format)), normalize=normalize)
    except RegistryFailed as error:
        not_registered = error.context.get("error_code") in (NO_SUBJECT, NO_SCHEMA)
        can_register = FORMATS[format].registry == "confluent"
        if not_registered and not options.auto_register_schemas and can_register:
            described = "the schema of the column" if text is None else "it"
            error.message += f"; to register {described}, set schema.registry.auto.register.schemas=true"
            if subject in options.value_subjects and not options.value_types:
                error.message += ", and name the types in valueTypes"
        if not (not_registered and options.auto_register_schemas):
            raise
    if text is None and column_type is None:
        raise ConfigurationError("the schema of a column of unknown type cannot be registered; give its type")
    if text is None:
        text = language_of(format).text_of(column_type, name)
    schema = RegisteredSchema(text, _language(format))
    registry.register(subject, schema, normalize=normalize)
    return registry.lookup(subject, schema, normalize=normalize)


def _refuse_rules(schema: RegisteredSchema, subject: str) -> None:
    from protocol.schemas.rules import refuse_rules

    refuse_rules(schema.rules, ("WRITE",), f"version {schema.version} of the subject {subject}")


def _language(format: str) -> str:
    language = FORMATS[format].language
    assert language is not None
    return language


# -- in the executors -------------------------------------------------------------------------------


def encode_column(schema: WriterSchema, column: pa.Array, types: pa.Array | None = None) -> pa.Array:
    """Return the values as a binary column; null for null. Raises `UsageError` for a value that does not fit.

    `types`: the column `valueType`, if there is one, of values of several types.
    """
    from protocol.schemas.encoding import encode, encode_types

    try:
        if schema.types:
            return encode_types(_encoders(schema, column.type), column, types)
        writer, prefix = _encoder(schema, column.type)
        return encode(writer, column, prefix)
    except UsageError as error:
        raise UsageError(f"the column {schema.part} cannot be written: {error}") from None


def _encoders(schema: WriterSchema, column_type: pa.DataType) -> dict[str, tuple[ColumnWriter, bytes]]:
    """Return what encodes each of several types, by field. Raises `ConfigurationError` as `_encoder`."""
    fields = [field for field, _ in schema.types]
    encoders = {}
    for (field, of_type), field_type in zip(schema.types, _types_of_fields(column_type, fields), strict=True):
        try:
            encoders[field] = _encoder(of_type, field_type)
        except ConfigurationError as error:
            raise ConfigurationError(f"the field {field}: {error}") from None
    return encoders


def _types_of_fields(column_type: pa.DataType, fields: Sequence[str]) -> list[pa.DataType]:
    """Return the types of these fields. Raises `ConfigurationError`: the column is no struct of them alone."""
    names = [field.name for field in column_type] if pa.types.is_struct(column_type) else None
    if names is None or sorted(names) != sorted(fields):
        raise ConfigurationError(
            f"several types of values need a struct with the fields {listed(fields, CHOICES)}; the column "
            f"{f'is {column_type}' if names is None else f'has {listed(names, CHOICES)}'}"
        )
    return [column_type.field(field).type for field in fields]


@lru_cache(maxsize=_MAX_ENCODERS)
def _encoder(schema: WriterSchema, column_type: pa.DataType) -> tuple[ColumnWriter, bytes]:
    """Return the writer of a column, and the bytes before each value: the schema's id, and Protobuf's message."""
    language = language_of(schema.format)
    writer, message = language.writer(schema.text, dict(schema.references), schema.message, column_type)
    return writer, schema.prefix + message if schema.prefix else b""
