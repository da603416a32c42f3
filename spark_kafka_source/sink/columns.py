"""The columns of a DataFrame that is written to Kafka: checked once, then turned into what the producer takes.

Pure: schema and options in, a `SinkPlan` out; an Arrow batch of Spark in, one batch of columns per topic out. The
writers make the plan on the driver, `task_writer` uses it in the executors. Knows nothing of brokers.

Names, types and messages follow Spark's own Kafka connector: columns it does not know are left out, headers are
written whenever there is a `headers` column, and names are matched with their case.
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

from protocol.errors import ConfigurationError, UsageError
from protocol.records.arrow_numpy import to_arrow, to_numpy, valid

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
NULL_TOPIC = "KAFKA_NULL_TOPIC_IN_DATA"

_HEADERS_TYPE = "array<struct<key:string,value:binary>>"
_ALLOWED = {
    "value": ("string", "binary"),
    "key": ("string", "binary"),
    "headers": (_HEADERS_TYPE,),
    "topic": ("string",),
    "partition": ("int",),
    "timestamp": ("timestamp",),
}


@dataclass(frozen=True)
class SinkPlan:
    """Which columns of the DataFrame are written, and to which topic.

    `topic` is the option, which beats the column of that name; None: every row names its own. `names` are those of
    value, key, headers, topic, partition and timestamp that the DataFrame has and that are used.
    """

    topic: str | None
    names: frozenset[str]


@dataclass(frozen=True)
class TopicColumns:
    """Rows of one topic, in their order.

    `columns` has `value` and, where the DataFrame has them, `key` (binary), `headers`
    (list<struct<key: string, value: binary>>) and `timestamp_ms` (int64, null: now). `partitions` (int32) is None
    without such a column; a null in it leaves the row to the partitioner.
    """

    topic: str
    columns: pa.RecordBatch
    partitions: pa.Int32Array | None


# -- on the driver ----------------------------------------------------------------------------------


def plan_sink(schema: StructType, topic: str | None) -> SinkPlan:
    """The plan for a DataFrame of this schema; `topic` is the option, if it was given.

    Raises `UsageError` for a missing value column and for a column of a wrong type, `ConfigurationError` when
    neither an option nor a column says which topic.
    """
    fields = {field.name: field for field in schema.fields}
    if "topic" not in fields and topic is None:
        raise ConfigurationError(
            "topic option required when no 'topic' attribute is present. Use the topic option for setting a topic: "
            f'.option("topic", "..."). The columns are {_listed(schema)}.'
        )
    if "value" not in fields:
        raise UsageError(
            f"Required attribute 'value' not found; the columns are {_listed(schema)}. Put what is to be written "
            "into one column named value, of type string or binary, for example with "
            'selectExpr("to_json(struct(*)) AS value").'
        )
    used = [name for name in _ALLOWED if name in fields and not (name == "topic" and topic is not None)]
    for name in used:
        _check_type(fields[name])
    return SinkPlan(topic, frozenset(used))


def _check_type(field: StructField) -> None:
    found = _type_name(field.dataType)
    allowed = _ALLOWED[field.name]
    if found not in allowed:
        if field.name not in ("value", "key", "topic"):
            remedy = "Cast it, or drop or rename the column"
        elif isinstance(field.dataType, (ArrayType, MapType, StructType)):
            remedy = f'Convert it to JSON: selectExpr("to_json({field.name}) AS {field.name}")'
        else:
            remedy = "Cast it"
        raise UsageError(
            f"{field.name} attribute unsupported type {found}. {field.name} must be a(n) {' or '.join(allowed)}. "
            f"{remedy}."
        )


def _type_name(kind: DataType) -> str:
    """Spark's name of the type, with only what matters to Kafka (no nullability, no collation)."""
    if isinstance(kind, StringType):
        return "string"
    if isinstance(kind, (BinaryType, IntegerType, TimestampType)):
        return kind.simpleString()
    if isinstance(kind, ArrayType) and isinstance(kind.elementType, StructType):
        inside = ",".join(f"{field.name}:{_type_name(field.dataType)}" for field in kind.elementType.fields)
        return f"array<struct<{inside}>>"
    return kind.simpleString()


def _listed(schema: StructType) -> str:
    return ", ".join(schema.fieldNames()) or "none"


# -- in the executors -------------------------------------------------------------------------------


def topic_columns(plan: SinkPlan, batch: pa.RecordBatch) -> Iterator[TopicColumns]:
    """The rows of `batch`, by topic; within a topic they keep their order.

    Raises `UsageError` for a row that Kafka cannot take (null topic, header without a key, negative timestamp or
    partition) before it yields anything.
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
    """(topic, its rows), in the order in which topics appear; None stands for all rows, in the common case of one."""
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
    columns = {"value": _as(batch.column("value"), pa.binary())}
    if "key" in plan.names:
        columns["key"] = _as(batch.column("key"), pa.binary())
    if "timestamp" in plan.names:
        columns["timestamp_ms"] = _timestamp_ms(batch.column("timestamp"))
    if "headers" in plan.names:
        columns["headers"] = _headers(batch.column("headers"))
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _as(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """The column as this type; string to binary shares the bytes. Spark may also send the large_ types."""
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
    headers = _as(column, HEADERS)
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
