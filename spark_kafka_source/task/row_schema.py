"""The columns of a row of this source, in Spark's types and in Arrow's, side by side.

The same columns, types and nullability (everything may be null) as Spark's own Kafka connector. Used by `source`
for the declared schema and by `range_reader` for the batches: Spark refuses a batch whose Arrow schema is not
exactly the one it works out from the declared one. Imports pyspark only to build Spark's types.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from protocol.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

# Spark names the field inside a list "element" when it turns its own array type into Arrow's.
HEADERS = pa.list_(pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])))


def _struct(types: Mapping[str, object]) -> dict[str, object]:
    fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in types.items()]
    return {"type": "struct", "fields": fields}


# Spark's type as its JSON spells it, and Arrow's type, of each column that there can be.
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
    """The schema of every `RecordBatch` that is handed to Spark."""
    return pa.schema([pa.field(name, _TYPES[name][1]) for name in columns])


def spark_schema(columns: Sequence[str]) -> StructType:
    """The schema that the source declares."""
    from pyspark.sql.types import StructType

    return StructType.fromJson(_struct({name: _TYPES[name][0] for name in columns}))


def require_own_schema(given: StructType, columns: Sequence[str]) -> None:
    """`given` is what Spark wants rows of. Raises `ConfigurationError` if that is another schema, set by the user."""
    own = spark_schema(columns)
    if _without_comments(given) != _without_comments(own):
        raise ConfigurationError(
            f".schema(...) sets ({_text(given)}), but records are always ({_text(own)}): leave .schema(...) "
            'out. The query itself makes columns of what is in a value, as from_json(value.cast("string"), ...) does. '
            "The option columns leaves columns out, and includeHeaders adds the headers"
        )


def _without_comments(schema: StructType) -> list[tuple[str, DataType, bool]]:
    return [(each.name, each.dataType, each.nullable) for each in schema]


def _text(schema: StructType) -> str:
    return ", ".join(
        f"{each.name} {each.dataType.simpleString()}{'' if each.nullable else ' not null'}" for each in schema
    )
