"""Random Avro schemas and values, their columns, and how fastavro's value of a type looks in an Arrow column."""

from __future__ import annotations

import datetime
import decimal
import io
import json
import random
import string
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa

from protocol.schemas.avro_resolution import AvroDecoder
from protocol.schemas.avro_schema import AvroType, parse_avro, widened_kind

_UTC = datetime.timezone.utc
_EPOCH = datetime.date(1970, 1, 1)


class Samples:
    """Random schemas and values from one seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self._names = 0

    def name(self) -> str:
        self._names += 1
        return f"n{self._names}"

    def record(self, depth: int = 0) -> dict[str, Any]:
        fields = [{"name": f"f{number}", "type": self.type(depth + 1)} for number in range(self.random.randrange(5))]
        return {"type": "record", "name": self.name(), "fields": fields}

    def type(self, depth: int = 0) -> Any:
        r = self.random
        simple: list[Any] = [
            *("boolean", "int", "long", "float", "double", "bytes", "string", "null"),
            {"type": "int", "logicalType": "date"},
            {"type": "long", "logicalType": "timestamp-millis"},
            {"type": "long", "logicalType": "timestamp-micros"},
            {"type": "long", "logicalType": "local-timestamp-millis"},
            {"type": "long", "logicalType": "local-timestamp-micros"},
            {"type": "string", "logicalType": "uuid-of-nobody"},
        ]
        if depth > 4 or r.random() < 0.5:
            return r.choice(simple)
        return r.choice([self._enum, self._fixed, self._decimal, self._array, self._map, self._optional, self._optional,
                         self._optional, self._union, self.record])(depth)  # fmt: skip

    def _enum(self, depth: int) -> Any:
        symbols = self.random.sample(["A", "BB", "CCC", "D_4", "e"], self.random.randrange(1, 6))
        return {"type": "enum", "name": self.name(), "symbols": symbols}

    def _fixed(self, depth: int) -> Any:
        return {"type": "fixed", "name": self.name(), "size": self.random.randrange(20)}

    def _decimal(self, depth: int) -> Any:
        precision = self.random.randrange(1, 39)
        made = {"logicalType": "decimal", "precision": precision, "scale": self.random.randrange(precision + 1)}
        if self.random.random() < 0.5:
            return {"type": "bytes", **made}
        return {"type": "fixed", "name": self.name(), "size": 16 + self.random.randrange(3), **made}

    def _array(self, depth: int) -> Any:
        return {"type": "array", "items": self.type(depth + 1)}

    def _map(self, depth: int) -> Any:
        return {"type": "map", "values": self.type(depth + 1)}

    def _optional(self, depth: int) -> Any:
        inner = self.type(depth + 1)
        if inner == "null" or isinstance(inner, list):
            return inner
        return self.random.choice([["null", inner], [inner, "null"]])

    def _union(self, depth: int) -> Any:
        # Types that fastavro tells apart, by the Python value and as branches that can read each other.
        kinds: list[Any] = ["null", "boolean", *map(self.random.choice, (["long", "double"], ["string", "bytes"]))]
        return self.random.sample(kinds, self.random.randrange(1, 5))

    def evolved(self, schema: Any) -> Any:
        """Return a record schema that can read this one: fields dropped, added, moved, promoted, made nullable."""
        r = self.random
        fields = [dict(field) for field in schema["fields"] if r.random() < 0.8]
        for field in fields:
            kind = field["type"]
            if isinstance(kind, str) and r.random() < 0.5:
                wider = {"int": ["long", "double"], "long": ["double"], "float": ["double"], "string": ["bytes"]}
                kind = r.choice(wider.get(kind, [kind]))
            elif isinstance(kind, dict) and kind["type"] == "record":
                kind = self.evolved(kind)
            if not isinstance(kind, list) and kind != "null" and r.random() < 0.3:
                kind = ["null", kind]
            field["type"] = kind
        new = [
            {"name": "new1", "type": "string", "default": "none"},
            {"name": "new2", "type": {"type": "array", "items": ["null", "long"]}, "default": []},
            {"name": "new3", "type": ["null", {"type": "map", "values": "int"}], "default": None},
        ]
        fields += [field for field in new if r.random() < 0.5]
        r.shuffle(fields)
        return {**schema, "fields": fields}

    # -- values -------------------------------------------------------------------------------

    def value(self, schema: Any) -> Any:
        r = self.random
        if isinstance(schema, list):
            return self.value(r.choice(schema))
        kind, logical = (schema, None) if isinstance(schema, str) else (schema["type"], schema.get("logicalType"))
        if logical == "date":
            return _EPOCH + datetime.timedelta(days=r.randrange(-100_000, 1_000_000))
        if logical is not None and "timestamp" in logical:
            unit = 1000 if logical.endswith("millis") else 1
            at = datetime.timedelta(microseconds=r.randrange(-(10**15), 10**16) // unit * unit)
            zone = None if logical.startswith("local") else _UTC
            return datetime.datetime(1970, 1, 1, tzinfo=zone) + at
        if logical == "decimal":
            digits = r.randrange(schema["precision"] + 1)
            number = r.choice([-1, 1]) * r.randrange(10**digits)
            return decimal.Decimal(number).scaleb(-schema["scale"], decimal.Context(prec=50))
        match kind:
            case "null":
                return None
            case "boolean":
                return r.random() < 0.5
            case "int" | "long":
                bits = r.randrange(32 if kind == "int" else 64)
                return r.choice([-1, 1]) * r.randrange(1 << bits) - r.randrange(2)
            case "float":
                return float(np.float32(r.uniform(-1e6, 1e6)))
            case "double":
                return r.choice([r.uniform(-1e300, 1e300), 0.0, float("inf")])
            case "bytes":
                return r.randbytes(r.choice([0, 1, 3, 70, 200]))
            case "string":
                return "".join(r.choices(string.printable + "äß€🦀\0", k=r.choice([0, 1, 5, 64, 130])))
            case "enum":
                return r.choice(schema["symbols"])
            case "fixed":
                return r.randbytes(schema["size"])
            case "array":
                count = r.choice([0, 1, 2, 5, 90])
                return [self.value(schema["items"]) for _ in range(count if count < 9 or r.random() < 0.1 else 3)]
            case "map":
                return {f"key{number}": self.value(schema["values"]) for number in range(r.choice([0, 1, 2, 4]))}
            case "record":
                return {field["name"]: self.value(field["type"]) for field in schema["fields"]}


def encoded(schema: Any, values: list[Any]) -> list[bytes]:
    """Return the values as fastavro writes them."""
    parsed = fastavro.parse_schema(schema)
    made = []
    for value in values:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, parsed, value)
        made.append(out.getvalue())
    return made


def record(*fields: tuple[Any, ...], name: str = "R", **more: Any) -> dict[str, Any]:
    """Return a schema; the fields are (name, type) or (name, type, default)."""
    made = [dict(zip(("name", "type", "default"), field, strict=False)) for field in fields]
    return {"type": "record", "name": name, "fields": made, **more}


def parse(schema: Any) -> AvroType:
    return parse_avro(schema if isinstance(schema, str) else json.dumps(schema))


def decode(writer: Any, values: list[bytes], reader: Any = None) -> tuple[pa.Array, list[tuple[int, str]]]:
    """Return the valid values, and row and error of each other one."""
    parsed = parse(writer)
    column, _, invalid = AvroDecoder(parsed, parsed if reader is None else parse(reader)).decode(*bounds(values))
    column.validate(full=True)
    return column, [(failure.row, str(failure)) for failure in invalid]


def read(writer: Any, values: list[Any], reader: Any = None) -> pa.Array:
    """Return the column of these values, written by fastavro; all of them are valid."""
    column, invalid = decode(writer, encoded(writer, values), reader)
    assert invalid == []
    return column


def bounds(values: list[bytes]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return the bytes of all values, and where each starts and ends."""
    ends = np.cumsum([0, *map(len, values)])
    return np.frombuffer(b"".join(values), np.uint8), ends[:-1], ends[1:]


def as_column(avro: AvroType, value: Any) -> Any:
    """Return the value of a type as `to_pylist` of an Arrow column has it."""
    if avro.kind == "union":
        members = avro.members
        if value is None or not members:
            return None
        if widened := widened_kind(avro):
            return as_column(AvroType(widened), value)
        if len(members) == 1:
            return as_column(members[0], value)
        kinds = {bool: "boolean", int: "long", float: "double", str: "string", bytes: "bytes"}
        own = kinds[type(value)]
        return {f"member{number}": value if member.kind == own else None for number, member in enumerate(members)}
    if avro.kind == "record":
        return {field.name: as_column(field.type, value[field.name]) for field in avro.fields}
    if avro.kind == "array":
        return [as_column(avro.children[0], each) for each in value]
    if avro.kind == "map":
        return [(key, as_column(avro.children[0], each)) for key, each in value.items()]
    if avro.kind == "double":
        return float(value)
    return value


def plain(column: pa.Array) -> list[Any]:
    """Return the column's values, with UTC as Python's own."""

    def same_zone(value: Any) -> Any:
        if isinstance(value, datetime.datetime) and value.tzinfo is not None:
            return value.astimezone(_UTC)
        if isinstance(value, dict):
            return {key: same_zone(each) for key, each in value.items()}
        if isinstance(value, list):
            return [same_zone(each) for each in value]
        if isinstance(value, tuple):
            return tuple(same_zone(each) for each in value)
        return value

    return [same_zone(value) for value in column.to_pylist()]
