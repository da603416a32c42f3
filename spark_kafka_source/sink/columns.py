"""Check the columns of a DataFrame once, and convert Spark's Arrow batches for the producer. Sans-IO.

The writers create the `SinkPlan` on the driver; `task_writer` uses it on executors to split batches by topic.

Names, types and messages follow Spark's own Kafka connector: unknown columns are ignored, headers are written if there
is a `headers` column, and names are case-sensitive.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from protocol.base.listing import CHOICES, listed
from protocol.errors import ConfigurationError, UsageError
from protocol.records.arrow_numpy import to_arrow, to_numpy, valid
from spark_kafka_source.options.selection import VALUE_TYPE
from spark_kafka_source.sink.value_schemas import WriterSchema, encode_column

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
NULL_TOPIC = "KAFKA_NULL_TOPIC_IN_DATA"

_HEADERS_TYPE = "array<struct<key:string,value:binary>>"
_HEADERS_OF_MAP = "transform(map_entries(headers), e -> struct(e.key AS key, CAST(e.value AS binary) AS value))"
_ALLOWED = {
    "value": ("string", "binary"),
    "key": ("string", "binary"),
    "headers": (_HEADERS_TYPE,),
    "topic": ("string",),
    "partition": ("int",),
    "timestamp": ("timestamp",),
    VALUE_TYPE: ("string",),
}


@dataclass(frozen=True)
class SinkPlan:
    """The columns to write, and the topic.

    `topic`: the option, which overrides the column `topic`; None: the column has each row's topic.
    `names`: the used columns among value, key, headers, topic, partition, timestamp and valueType.
    `schemas`: the schemas of keys and values that are encoded.
    """

    topic: str | None
    names: frozenset[str]
    schemas: tuple[WriterSchema, ...] = ()


@dataclass(frozen=True)
class TopicColumns:
    """Rows of one topic, in their order.

    `columns` (pyarrow.RecordBatch): `value: binary`, and if the DataFrame has them `key: binary`, `headers:
    list<struct<key: string, value: binary>>` and `timestamp_ms: int64` (null: now).
    `partitions` (pyarrow.Int32Array or None): None if there is no column `partition`. For null values the partitioner
    chooses.
    """

    topic: str
    columns: pa.RecordBatch
    partitions: pa.Int32Array | None


# -- on the driver ----------------------------------------------------------------------------------


def plan_sink(schema: StructType, topic: str | None, schemas: tuple[WriterSchema, ...] = ()) -> SinkPlan:
    """Return the plan for a DataFrame of this schema.

    `topic`: the option, if given.
    `schemas`: the schemas of keys and values that are encoded; their columns may have any type that the schema takes.
    Raises `UsageError`: the column `value` is missing, or a column has a wrong type or occurs twice.
    `ConfigurationError`: there is neither the option nor the column `topic`.
    """
    fields = {field.name: field for field in schema.fields}
    if "topic" not in fields and topic is None:
        raise ConfigurationError(
            "topic option required when no 'topic' attribute is present. Use the topic option for setting a topic: "
            f'.option("topic", "..."). The columns are {_column_names(schema)}.'
        )
    if "value" not in fields:
        raise UsageError(
            f"Required attribute 'value' not found; the columns are {_column_names(schema)}. Convert the row "
            "to one column named value, of type string or binary, for example with "
            'selectExpr("to_json(struct(*)) AS value").'
        )
    unused = {"topic"} if topic is not None else set()
    if not any(schema.types for schema in schemas):
        unused.add(VALUE_TYPE)
    used = [name for name in _ALLOWED if name in fields and name not in unused]
    encoded = [schema.part for schema in schemas]
    for name in used:
        if (count := schema.fieldNames().count(name)) > 1:
            raise UsageError(
                f"{count} columns are named {name}, but a record has one {name}. Rename or leave out the others."
            )
        if name not in encoded:
            _check_type(fields[name])
    return SinkPlan(topic, frozenset(used), schemas)


def _check_type(field: StructField) -> None:
    type_name = _type_name(field.dataType)
    allowed = _ALLOWED[field.name]
    if type_name not in allowed:
        if field.name == "headers" and isinstance(field.dataType, MapType):
            remedy = f"Convert it: {_HEADERS_OF_MAP}"
        elif field.name not in ("value", "key", "topic"):
            remedy = "Cast it, or drop or rename the column"
        elif isinstance(field.dataType, (ArrayType, MapType, StructType)):
            remedy = f'Convert it to JSON: selectExpr("to_json({field.name}) AS {field.name}")'
        else:
            remedy = "Cast it"
        raise UsageError(
            f"{field.name} attribute unsupported type {type_name}. {field.name} must be a(n) {' or '.join(allowed)}. "
            f"{remedy}."
        )


def _type_name(kind: DataType) -> str:
    """Return Spark's name of the type, without nullability and collation."""
    if isinstance(kind, StringType):
        return "string"
    if isinstance(kind, (BinaryType, IntegerType, TimestampType)):
        return kind.simpleString()
    if isinstance(kind, ArrayType) and isinstance(kind.elementType, StructType):
        inside = ",".join(f"{field.name}:{_type_name(field.dataType)}" for field in kind.elementType.fields)
        return f"array<struct<{inside}>>"
    return kind.simpleString()


def _column_names(schema: StructType) -> str:
    return listed(schema.fieldNames(), CHOICES) or "none"


# -- in the executors -------------------------------------------------------------------------------


def topic_columns(plan: SinkPlan, batch: pa.RecordBatch) -> Iterator[TopicColumns]:
    """Yield the rows of a batch by topic, in their order within each topic.

    Raises `UsageError`: Kafka does not accept a row: null topic, header without a key, negative timestamp or partition.
    Raised before anything is yielded.
    """
    if batch.num_rows == 0:
        return
    columns = _columns(plan, batch)
    partitions = _partitions(batch.column("partition")) if "partition" in plan.names else None
    if plan.topic is not None:
        yield TopicColumns(plan.topic, columns, partitions)
        return
    topics = batch.column("topic")
    if topics.null_count:
        raise UsageError(_null_topic(topics))
    for topic, rows in _rows_by_topic(topics):
        if rows is None:
            yield TopicColumns(topic, columns, partitions)
        else:
            yield TopicColumns(topic, columns.take(rows), None if partitions is None else partitions.take(rows))


def _rows_by_topic(topics: pa.Array) -> Iterator[tuple[str, pa.Array | None]]:
    """Yield topics and their row numbers, in the order of first appearance; None for all rows of a single topic."""
    first = topics[0]
    if pc.all(pc.equal(topics, first)).as_py():
        yield first.as_py(), None
        return
    encoded = topics.dictionary_encode()
    codes = to_numpy(encoded.indices)
    order = np.argsort(codes, kind="stable")
    ends = np.cumsum(np.bincount(codes))
    start = 0
    for topic, end in zip(encoded.dictionary.to_pylist(), ends.tolist(), strict=True):
        yield topic, to_arrow(order[start:end])
        start = end


def _columns(plan: SinkPlan, batch: pa.RecordBatch) -> pa.RecordBatch:
    types = batch.column(VALUE_TYPE) if VALUE_TYPE in plan.names else None
    encoded: dict[str, pa.Array] = {
        schema.part: encode_column(schema, batch.column(schema.part), types) for schema in plan.schemas
    }
    columns: dict[str, pa.Array] = {
        name: encoded[name] if name in encoded else _cast(batch.column(name), pa.binary())
        for name in ("value", "key")
        if name in plan.names
    }
    if "timestamp" in plan.names:
        columns["timestamp_ms"] = _timestamp_ms(batch.column("timestamp"))
    if "headers" in plan.names:
        columns["headers"] = _headers(batch.column("headers"))
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast a column; string to binary shares the bytes. Spark may also send the large_ types."""
    return column if column.type == kind else column.cast(kind)


def _timestamp_ms(column: pa.Array) -> pa.Array:
    micros = column.view(pa.int64())
    least = pc.min(micros).as_py()
    if least is not None and least < 0:
        raise UsageError(
            f"timestamp of a row is before 1970 ({least // 1000} ms): Kafka takes 0 or later. Write null for now, "
            "or drop the column."
        )
    return column.cast(pa.timestamp("ms", column.type.tz), safe=False).view(pa.int64())


def _partitions(column: pa.Array) -> pa.Int32Array:
    least = pc.min(column).as_py()
    if least is not None and least < 0:
        raise UsageError(
            f"partition of a row is {least}: Kafka's partitions are numbered from 0. Write null to let the "
            "partitioner choose by the key."
        )
    return column


def _headers(column: pa.Array) -> pa.Array:
    headers = _cast(column, HEADERS)
    if pc.struct_field(pc.list_flatten(headers), "key").null_count:
        raise UsageError(
            "headers of a row hold a null key: Kafka takes null header values but no null keys. Filter such headers "
            "out, or give them an empty key."
        )
    return headers


def _null_topic(topics: pa.Array) -> str:
    first = int(valid(topics).argmin())
    return (
        f"[{NULL_TOPIC}] The Kafka message data sent to the producer contains a null topic "
        f"({topics.null_count} of {len(topics)} rows of this Arrow batch, the first of them row {first}). "
        'Use the topic option for setting a topic for all rows, .option("topic", "..."), or give every row one.'
    )
