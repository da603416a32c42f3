"""The columns of the source's rows, in Spark's and in Arrow's types.

Columns, types and nullability (all nullable) are those of Spark's own Kafka connector. `source` declares the schema,
`range_reader` makes the batches: Spark rejects a batch unless its Arrow schema equals the conversion of the declared
schema. Imports pyspark only to build Spark's types.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from protocol.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

# Spark names the field in a list "element" when it converts its array type to Arrow's.
HEADERS = pa.list_(pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])))


def _struct(types: Mapping[str, object]) -> dict[str, object]:
    fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in types.items()]
    return {"type": "struct", "fields": fields}


# Each column with Spark's type, as in its JSON, and Arrow's type.
_TYPES: dict[str, tuple[object, pa.DataType]] = {
    "key": ("binary", pa.binary()),
    "value": ("binary", pa.binary()),
    "topic": ("string", pa.string()),
    "partition": ("integer", pa.int32()),
    "offset": ("long", pa.int64()),
    "timestamp": ("timestamp", pa.timestamp("us", tz="UTC")),
    "timestampType": ("integer", pa.int32()),
    "headers": (
        {"type": "array", "containsNull": True, "elementType": _struct({"key": "string", "value": "binary"})},
        HEADERS,
    ),
}


def arrow_schema(columns: Sequence[str]) -> pa.Schema:
    """Return the schema of every `RecordBatch` for Spark. All fields are nullable.

    Notes
    -----
    key, value: binary; topic: string; partition, timestampType: int32; offset: int64; timestamp: timestamp[us, UTC];
    headers: list of struct (key: string, value: binary).
    """
    return pa.schema([pa.field(name, _TYPES[name][1]) for name in columns])


def spark_schema(columns: Sequence[str]) -> StructType:
    """Return the schema that the source declares."""
    from pyspark.sql.types import StructType

    return StructType.fromJson(_struct({name: _TYPES[name][0] for name in columns}))


def require_source_schema(given: StructType, columns: Sequence[str]) -> None:
    """Raise `ConfigurationError` if the user has set another schema, which Spark passes as `given`."""
    own = spark_schema(columns)
    if _without_comments(given) != _without_comments(own):
        raise ConfigurationError(
            f".schema(...) sets ({_text(given)}), but records are always ({_text(own)}): leave .schema(...) "
            'out. Convert values in the query, for example with from_json(value.cast("string"), ...). '
            "The option columns selects columns, and includeHeaders adds the headers"
        )


def _without_comments(schema: StructType) -> list[tuple[str, DataType, bool]]:
    return [(each.name, each.dataType, each.nullable) for each in schema]


def _text(schema: StructType) -> str:
    return ", ".join(
        f"{each.name} {each.dataType.simpleString()}{'' if each.nullable else ' not null'}" for each in schema
    )
