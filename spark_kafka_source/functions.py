"""`from_registry` and `to_registry`: decode and encode columns of any DataFrame, as the source and the sink do.

Both are Arrow UDFs. Schemas are resolved on the driver, when the function is called; the UDF carries the schema and the
registry's configuration to the executors, which fetch the schemas of writers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from protocol.base.once import deferred_warnings, log_once
from protocol.errors import ConfigurationError, DecodeFailed, KafkaError
from protocol.properties import BY_NAME
from protocol.settings.property_kinds import Role
from protocol.settings.secret import hide_variables
from spark_kafka_source.error_messages import with_remedies
from spark_kafka_source.options.parsing import (
    FORBIDDEN,
    REGISTRY_PREFIX,
    parse_read_options,
    parse_sink_options,
    uses_registry,
)
from spark_kafka_source.options.stray_options import PREFIX, property_names, why_ignored
from spark_kafka_source.options.table import OPTIONS, READ, Use
from spark_kafka_source.process_state import PROCESS
from spark_kafka_source.task.row_schema import HEADERS, spark_type

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType

    from protocol.schemas.reader_schema import Part, ReaderSchema
    from protocol.schemas.registry_config import RegistryConfig
    from spark_kafka_source.sink.value_schemas import WriterSchema

log = logging.getLogger(__name__)

_SERVERS = "kafka.bootstrap.servers"
_TOPICS = ("subscribe", "subscribepattern", "assign")
_ROLES = Role.CONSUMER | Role.PRODUCER


@hide_variables
def from_registry(
    column: Column | str, options: Mapping[str, object], *, part: Part = "value", headers: Column | str | None = None
) -> Column:
    """Return a binary column decoded by its schema: a struct, for a record.

    For records that another source has read, such as Spark's own connector. Needs PySpark 4.1.

    Parameters
    ----------
    column : Column or str
        A binary column; a string column is taken as its UTF-8 bytes.
    options : mapping
        Options of the source for its decoded columns: `valueFormat`, `valueSubject`, `valueSchema`, `valueFields`,
        `onDecodeError` and `onUnknownType` (fail or null), `schema.registry.*`. Those of `part` are used. Kafka's
        options are not needed, and have no effect.
    part : {"value", "key"}
        The options of values or of keys.
    headers : Column or str, optional
        The headers of the records, array<struct<key: string, value: binary>>, if they may have the ids or GUIDs of
        schemas.

    Raises
    ------
    ConfigurationError
        An option is wrong, a secret is not a reference such as `${env:NAME}`, or the schema is invalid.
    RegistryFailed
        The registry does not have the subject or its version, refuses, or does not respond.

    Notes
    -----
    The reader's schema is resolved once, by this call on the driver; it stays the type of the column.

    Examples
    --------
    >>> options = {"valueFormat": "confluent-avro", "valueSubject": "orders-value",
    ...            "schema.registry.url": "http://registry:8081"}  # doctest: +SKIP
    >>> frame.select(from_registry("value", options).alias("value"))  # doctest: +SKIP
    """
    from pyspark.sql.types import StructType

    from spark_kafka_source.driver.reader_schemas import reader_schema

    arrow_udf = _arrow_udf("from_registry")
    texts = _texts(options, part, READ)
    parsed = parse_read_options(_for_source(texts, part))
    actions = {"onDecodeError": parsed.on_decode_error, "onUnknownType": parsed.on_unknown_type}
    for name, action in actions.items():
        if action not in ("fail", "null"):
            raise ConfigurationError(
                f"{name} is {action}, which from_registry does not support: it has one value, not the record. "
                "Set fail or null.",
                name=name,
            )
    _refuse_plain_secrets(parsed.registry)
    with with_remedies():
        schema = reader_schema(parsed, part)
    field = {"name": "f", "type": spark_type(schema.type), "nullable": True, "metadata": {}}
    decode = _decoding(schema, parsed.registry, part, actions)
    udf = arrow_udf(decode, StructType.fromJson({"fields": [field]})["f"].dataType)
    decoded: Column = udf(column) if headers is None else udf(column, headers)
    return decoded


@hide_variables
def to_registry(
    column: Column | str, options: Mapping[str, object], *, part: Part = "value", type: DataType | None = None
) -> Column:
    """Return a column encoded by a schema, as binary; null stays null.

    For `foreachBatch`, and for sinks other than this one. Needs PySpark 4.1.

    Parameters
    ----------
    column : Column or str
        A column of a type that the schema takes.
    options : mapping
        Options of the sink for its encoded columns: `valueFormat`, `valueSubject` (or `topic`), `valueTypes`,
        `valueSchema`, `schema.registry.*`. Those of `part` are used. Kafka's options are not needed, and have no
        effect.
    part : {"value", "key"}
        The options of values or of keys.
    type : DataType, optional
        The type of the column, `frame.schema["value"].dataType`. With it a column that the schema cannot take is
        refused by this call, not by the first task; `schema.registry.auto.register.schemas` without `valueSchema`
        needs it.

    Raises
    ------
    ConfigurationError
        An option is wrong, a secret is not a reference such as `${env:NAME}`, or the schema cannot take the type.
    RegistryFailed
        The registry does not have the subject or the schema, refuses a new one as incompatible, or does not respond.
    """
    from pyspark.sql.types import BinaryType

    from spark_kafka_source.sink.value_schemas import writer_schema

    arrow_udf = _arrow_udf("to_registry")
    texts = _texts(options, part, Use.WRITE)
    with deferred_warnings() as warnings:
        parsed = parse_sink_options({_SERVERS: "unused:9092", **texts})
    for warning in warnings:
        if "is shown by Spark" not in warning:
            log_once(warning)
    _refuse_plain_secrets(parsed.registry)
    with with_remedies():
        schema = writer_schema(parsed, part, type)
    encoded: Column = arrow_udf(_encoding(schema), BinaryType())(column)
    return encoded


# -- options ----------------------------------------------------------------------------------------


def _arrow_udf(name: str) -> Callable[..., Any]:
    try:
        from pyspark.sql.functions import arrow_udf
    except ImportError:
        raise ConfigurationError(
            f"{name} needs PySpark 4.1 or later, which has arrow_udf. With PySpark 4.0 use the options of "
            'format("pykafka-group"): valueFormat, schema.registry.url'
        ) from None
    return arrow_udf


def _texts(options: Mapping[str, object], part: Part, use: Use) -> dict[str, str]:
    """Return the options as Spark passes them. The format of `part` is required; options of the other are left out.

    Raises `ConfigurationError` for a misspelled option, also of the other part, of sources or of sinks.
    """
    # Those of `use` first: topicName is subscribe for sources and topic for sinks.
    entries = sorted(OPTIONS, key=lambda option: not option.use & use)
    names = [*(option.name for option in entries), *property_names(_ROLES)]
    known = {name.lower() for name in names} | {PREFIX + name for name in BY_NAME}
    unknown = [name for name in options if name.lower() not in known and not name.lower().startswith(REGISTRY_PREFIX)]
    for name in unknown:
        log_once(f"{name} has no effect on this column: {why_ignored(name, names, _ROLES, FORBIDDEN)}")
    rival = "key" if part == "value" else "value"
    texts = {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in options.items()
        if not name.lower().startswith(rival) and name not in unknown
    }
    if f"{part}format" not in (name.lower() for name in texts):
        raise ConfigurationError(
            f"{part}Format is missing; set it, for example to confluent-avro.", name=f"{part}Format"
        )
    return texts


def _for_source(texts: Mapping[str, str], part: Part) -> dict[str, str]:
    """Return options that the source accepts: with brokers and topics, which are not used, and all columns."""
    names = {name.lower() for name in texts}
    options = {name: text for name, text in texts.items() if name.lower() not in ("columns", "includeheaders")}
    if not names & set(_TOPICS):
        if not names & {f"{part}subject", f"{part}schema"} and uses_registry(texts):
            raise ConfigurationError(
                f"{part}Subject is missing: the subject with the schema that the column is decoded to; set it.",
                name=f"{part}Subject",
            )
        options["subscribe"] = "unused"
    return options if _SERVERS in names else {_SERVERS: "unused:9092", **options}


def _refuse_plain_secrets(registry: RegistryConfig | None) -> None:
    """Raise `ConfigurationError` for a secret that would be in the UDF, which Spark keeps in plans and sends around."""
    if registry is None:
        return
    from protocol.schemas.registry_config import plain_secrets

    if names := plain_secrets(registry):
        raise ConfigurationError(
            f"{names[0]} has its value as plain text, which would be a part of the function that Spark sends to "
            "executors. Write a reference such as ${env:NAME}, which each executor resolves.",
            name=names[0],
        )


# -- in the executors -------------------------------------------------------------------------------


def _decoding(
    schema: ReaderSchema, registry: RegistryConfig | None, part: Part, actions: Mapping[str, str]
) -> Callable[..., Any]:
    # Its name is that of the column in plans.
    def from_registry(column, headers=None):  # type: ignore[no-untyped-def]
        return decode_values(schema, registry, part, actions, column, headers)

    return from_registry


def _encoding(schema: WriterSchema) -> Callable[..., Any]:
    def to_registry(column):  # type: ignore[no-untyped-def]
        return encode_values(schema, column)

    return to_registry


def decode_values(
    schema: ReaderSchema,
    registry: RegistryConfig | None,
    part: Part,
    actions: Mapping[str, str],
    column: pa.Array,
    headers: pa.Array | None,
) -> pa.Array:
    """Return a decoded column. Raises `DecodeFailed` for an invalid value, unless the action for it is null.

    `actions`: fail or null, by the options `onDecodeError` and `onUnknownType`.
    """
    if not len(column):
        return pa.nulls(0, schema.type)
    column = column if column.type == pa.binary() else column.cast(pa.binary())
    if headers is not None and headers.type != HEADERS:
        headers = headers.cast(HEADERS)
    decoded, invalid = PROCESS.decoder(schema, registry, part).decode(column, headers)
    for option, action in actions.items():
        failures = [failure for failure in invalid if failure.unknown_type == (option == "onUnknownType")]
        if not failures:
            continue
        message = f"from_registry: a {part} does not decode: {min(failures, key=lambda failure: failure.row)}"
        if action == "fail":
            raise DecodeFailed(f"{message}. To read on with null for such a {part}, set {option}=null")
        log.warning("%s (%d of %d values in this batch: null in the column)", message, len(failures), len(column))
    return decoded


def encode_values(schema: WriterSchema, column: pa.Array) -> pa.Array:
    """Return an encoded column. Raises `KafkaError` for a type or a value that the schema cannot take."""
    from spark_kafka_source.sink.value_schemas import encode_column

    if not len(column):
        return pa.nulls(0, pa.binary())
    try:
        return encode_column(schema, column)
    except KafkaError as error:
        error.message = f"to_registry: {error.message}"
        raise
