"""The columns of the source's rows, in Spark's and in Arrow's types.

Columns, types and nullability (all nullable) are those of Spark's own Kafka connector. `source` declares the schema,
`range_reader` makes the batches: Spark rejects a batch unless its Arrow schema equals the conversion of the declared
schema. Imports pyspark only to build Spark's types.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from protocol.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

    from protocol.schemas.reader_schema import ReaderSchema

    Schemas = tuple[tuple[str, ReaderSchema], ...]

# Spark names the field in a list "element" when it converts its array type to Arrow's.
HEADERS = pa.list_(pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])))


_SIMPLE = {
    pa.null(): "void",
    pa.bool_(): "boolean",
    pa.int8(): "byte",
    pa.int16(): "short",
    pa.int32(): "integer",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.binary(): "binary",
    pa.string(): "string",
    pa.date32(): "date",
}

# Keys of a field's metadata.
SUBJECT, VERSION = "schema.registry.subject", "schema.registry.version"


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
    "_raw": ("binary", pa.binary()),
    "_error": ("string", pa.string()),
    "valueType": ("string", pa.string()),
    "headers": (
        {"type": "array", "containsNull": True, "elementType": _struct({"key": "string", "value": "binary"})},
        HEADERS,
    ),
}


@lru_cache(maxsize=16)
def arrow_schema(columns: tuple[str, ...], schemas: Schemas = ()) -> pa.Schema:
    """Return the schema of every `RecordBatch` for Spark. All fields are nullable.

    `schemas`: schemas of the decoded columns, by column name.

    key, value: binary; topic: string; partition, timestampType: int32; offset: int64; timestamp: timestamp[us, UTC];
    headers: list of struct (key: string, value: binary).
    """
    decoded = dict(schemas)
    return pa.schema([pa.field(name, decoded[name].type if name in decoded else _TYPES[name][1]) for name in columns])


def spark_schema(columns: Sequence[str], schemas: Schemas = ()) -> StructType:
    """Return the schema that the source declares. Fields of a registry have their subject and version as metadata."""
    from pyspark.sql.types import StructType

    decoded = dict(schemas)
    types = {name: spark_type(decoded[name].type) if name in decoded else _TYPES[name][0] for name in columns}
    struct: dict[str, Any] = _struct(types)
    for field in struct["fields"]:
        if (schema := decoded.get(field["name"])) is None:
            continue
        if schema.version is not None:
            field["metadata"] = {SUBJECT: schema.subject, VERSION: schema.version}
        for of_type, (_, member) in zip(field["type"]["fields"] if schema.types else (), schema.types, strict=True):
            if member.version is not None:
                of_type["metadata"] = {SUBJECT: member.subject, VERSION: member.version}
    return StructType.fromJson(struct)


def declared_versions(schema: StructType) -> dict[str, int]:
    """Return the version of each subject, as `spark_schema` has noted them."""
    fields = [*schema, *(inner for field in schema for inner in getattr(field.dataType, "fields", ()))]
    return {
        str(field.metadata[SUBJECT]): int(field.metadata[VERSION])
        for field in fields
        if field.metadata and SUBJECT in field.metadata and VERSION in field.metadata
    }


def spark_type(kind: pa.DataType) -> object:
    """Return Spark's type, as in its JSON, for the Arrow type of a decoded column."""
    if pa.types.is_struct(kind):
        fields = [
            {"name": field.name, "type": spark_type(field.type), "nullable": field.nullable, "metadata": {}}
            for field in kind
        ]
        return {"type": "struct", "fields": fields}
    if pa.types.is_list(kind):
        item = kind.value_field
        return {"type": "array", "elementType": spark_type(item.type), "containsNull": item.nullable}
    if pa.types.is_map(kind):
        item = kind.item_field
        return {
            "type": "map",
            "keyType": spark_type(kind.key_type),
            "valueType": spark_type(item.type),
            "valueContainsNull": item.nullable,
        }
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_duration(kind):
        return "interval day to second"
    if pa.types.is_timestamp(kind):
        return "timestamp" if kind.tz else "timestamp_ntz"
    return _SIMPLE[kind]


def require_source_schema(schema: StructType, columns: Sequence[str], schemas: Schemas = ()) -> None:
    """Raise `ConfigurationError` if the user has set another schema, which Spark passes as `schema`."""
    own = spark_schema(columns, schemas)
    if _without_comments(schema) != _without_comments(own):
        raise ConfigurationError(
            f".schema(...) sets ({_text(schema)}), but records are always ({_text(own)}): leave .schema(...) "
            'out. Convert values in the query, for example with from_json(value.cast("string"), ...). '
            "The option columns selects columns, and includeHeaders adds the headers"
        )


def _without_comments(schema: StructType) -> list[tuple[str, DataType, bool]]:
    return [(field.name, field.dataType, field.nullable) for field in schema]


def _text(schema: StructType) -> str:
    return ", ".join(
        f"{field.name} {field.dataType.simpleString()}{'' if field.nullable else ' not null'}" for field in schema
    )
