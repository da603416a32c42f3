"""Columns written as JSON without Spark: Python's `json` and the package jsonschema judge random columns."""

from __future__ import annotations

import base64
import datetime as dt
import json
import math
from decimal import Decimal
from typing import Any

import jsonschema
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import ConfigurationError, UsageError
from protocol.schemas.encoding import encode
from protocol.schemas.json_encode import json_writer, schema_of
from protocol.schemas.json_language import JsonLanguage
from protocol.schemas.json_schema import parse_json_schema

UTC = dt.timezone.utc
STRING, INTEGER = {"type": "string"}, {"type": "integer"}


def written(kind: pa.DataType, values: list[Any], schema: Any = None) -> list[str | None]:
    """Return the JSON of each value."""
    column = pa.array(values, kind)
    writer = json_writer(None if schema is None else parse_json_schema(json.dumps(schema)), kind)
    encoded = encode(writer, column)
    encoded.validate(full=True)
    return [None if value is None else value.decode() for value in encoded.to_pylist()]


def structs(values: list[Any], **fields: pa.DataType) -> tuple[pa.DataType, list[Any]]:
    return pa.struct(list(fields.items())), values


# -- one type ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (pa.int8(), -128, "-128"),
        (pa.uint64(), 2**64 - 1, "18446744073709551615"),
        (pa.bool_(), True, "true"),
        (pa.decimal128(9, 2), Decimal("1.50"), "1.50"),
        (pa.float64(), 1.5, "1.5"),
        (pa.float64(), math.inf, '"Infinity"'),
        (pa.float32(), -math.inf, '"-Infinity"'),
        (pa.float64(), math.nan, '"NaN"'),
        (pa.null(), None, None),
        (pa.string(), 'a"b\\c', '"a\\"b\\\\c"'),
        (pa.string(), "a\nb\u00e4\u0000", '"a\\nb\u00e4\\u0000"'),
        (pa.large_string(), "\U0001f600\u2028", '"\U0001f600\u2028"'),
        (pa.binary(), b"\x00\xff", '"AP8="'),
        (pa.large_binary(), b"", '""'),
        (pa.date32(), dt.date(2026, 1, 31), '"2026-01-31"'),
        (pa.timestamp("us", "UTC"), dt.datetime(2026, 1, 31, 6, tzinfo=UTC), '"2026-01-31T06:00:00.000Z"'),
        (pa.timestamp("us", "UTC"), dt.datetime(2026, 1, 31, 6, 0, 0, 1, UTC), '"2026-01-31T06:00:00.000001Z"'),
        (pa.timestamp("us", "Europe/Berlin"), dt.datetime(2026, 7, 1, tzinfo=UTC), '"2026-07-01T00:00:00.000Z"'),
        (pa.timestamp("us"), dt.datetime(1969, 12, 31, 23, 59, 59, 123_000), '"1969-12-31T23:59:59.123"'),
        (pa.timestamp("s"), dt.datetime(2026, 1, 31), '"2026-01-31T00:00:00.000"'),
        (pa.list_(pa.int32()), [1, None, 3], "[1,null,3]"),
        (pa.large_list(pa.string()), [], "[]"),
        (pa.map_(pa.string(), pa.bool_()), [('k"', True), ("l", None)], '{"k\\"":true,"l":null}'),
        (*structs({"a": 1, "b": None, 'c"': "x"}, **{"a": pa.int64(), "b": pa.int64(), 'c"': pa.string()}),
         '{"a":1,"c\\"":"x"}'),
        (*structs({"a": None}, a=pa.null()), "{}"),
        (*structs({}), "{}"),
    ],
    ids=str,
)  # fmt: skip
def test_value_has_its_json(kind: pa.DataType, value: Any, expected: str | None) -> None:
    assert written(kind, [value, None, value]) == [expected, None, expected]


# -- with a schema ----------------------------------------------------------------------------


def test_open_object_takes_other_fields_and_map_takes_a_struct() -> None:
    kind, values = structs([{"a": 1, "b": 2}], a=pa.int8(), b=pa.int8())
    assert written(kind, values, {"properties": {"a": INTEGER}}) == ['{"a":1,"b":2}']
    assert written(kind, values, {"type": "object", "additionalProperties": INTEGER}) == ['{"a":1,"b":2}']


@pytest.mark.parametrize(
    ("schema", "kind", "message"),
    [
        (STRING, pa.int8(), "the column is int8, which the schema's string cannot take"),
        ({"enum": ["a"]}, pa.int8(), "the column is int8, which the schema's enum cannot take"),
        ({"enum": [2**70]}, pa.int64(), "the column is int64, which the schema's enum cannot take"),
        ({"type": "integer", "connect.type": "int16"}, pa.int32(), "the column is int32, which the schema's integer"),
        ({"type": "number"}, pa.string(), "the schema's number cannot take"),
        ({"type": "boolean"}, pa.int8(), "the schema's boolean cannot take"),
        ({"type": "null"}, pa.int8(), "the schema's null cannot take"),
        ({**STRING, "contentEncoding": "base64"}, pa.string(), "the schema's string cannot take"),
        (STRING, pa.binary(), "the column is binary, which the schema's string cannot take"),
        ({**STRING, "format": "date-time"}, pa.timestamp("us"), "the schema's string cannot take"),
        ({"type": "array", "items": INTEGER}, pa.list_(pa.string()), r"\[\] is string, which the schema's integer"),
        ({"type": "array"}, pa.string(), "the column is string, which the schema's array cannot take"),
        ({"type": "object", "additionalProperties": STRING}, pa.map_(pa.int8(), pa.string()), "schema's map cannot"),
        ({"properties": {"a": STRING}, "additionalProperties": False}, pa.struct([("b", pa.string())]),
         "the schema has no field b; it has a"),
        ({"properties": {"a": {"properties": {"b": STRING}, "additionalProperties": False}}},
         pa.struct([("a", pa.struct([("c", pa.string())]))]), "the object a has no field c; it has b"),
        ({"properties": {"a": STRING, "b": STRING}, "required": ["a"]}, pa.struct([("b", pa.string())]),
         "the column lacks the field a, which the schema requires"),
        ({"properties": {"a": {"properties": {"b": STRING}, "required": ["b"]}}},
         pa.struct([("a", pa.struct([("c", pa.string())]))]), "a lacks the field b, which the schema requires"),
        *(({**words, "required": ["b", "a"]}, pa.struct([("a", pa.string())]),
           "the column lacks the field b, which the schema requires") for words in (
            {}, {"type": "object"}, {"properties": {"a": STRING}})),
        ({}, pa.duration("s"), "the column is duration"),
        ({}, pa.struct([("a", pa.list_(pa.time64("us")))]), r"a\[\] is time64\[us\], for which there is no JSON"),
    ],
    ids=str,
)  # fmt: skip
def test_column_that_a_schema_does_not_take_is_refused_with_its_path(
    schema: Any, kind: pa.DataType, message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        json_writer(parse_json_schema(json.dumps(schema)), kind)


@pytest.mark.parametrize(
    ("schema", "kind", "values", "message"),
    [
        ({"enum": ["a", "b"]}, pa.string(), ["a", None, "c"], "row 2 has a value that the schema's enum does not have"),
        ({"type": "number"}, pa.float64(), [1.0, None, math.nan], "row 2 has NaN or an infinity"),
        *((None, *structs([{"a": first}, {"a": None}, {"a": beyond}], a=kind), "field a: row 2 has a time that")
          for kind, first, beyond in ((pa.date32(), 11_248_737, 11_248_738), (pa.date32(), -12_687_428, -12_687_429),
                                      (pa.timestamp("us"), 971_890_963_199_999_999, 971_890_963_200_000_000))),
        ({"properties": {"a": STRING}, "required": ["a"]}, *structs([{"a": "x"}, None, {"a": None}], a=pa.string()),
         "field a: row 2 has null, which the schema does not allow"),
        ({"properties": {"a": {"type": "array", "items": STRING}}},
         *structs([{"a": []}, {"a": None}, {"a": ["x"]}, {"a": ["x", None]}], a=pa.list_(pa.string())),
         r"field a\[\]: row 3 has null, which the schema does not allow"),
        ({"properties": {"a": {"type": "array", "items": {"enum": ["x"]}}}},
         *structs([{"a": ["x"]}, {"a": None}, {"a": ["x", "y"]}], a=pa.list_(pa.string())),
         r"field a\[\]: row 2 has a value"),
    ],
    ids=str,
)  # fmt: skip
def test_value_that_a_schema_does_not_take_is_refused_with_row_and_path(
    schema: Any, kind: pa.DataType, values: list[Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        written(kind, values, schema)


def test_schema_of_spark_says_how_a_column_is_written() -> None:
    kind, _ = structs([], id=pa.int64())
    writer, prefix = JsonLanguage().writer("id BIGINT", {}, None, kind)
    assert (encode(writer, pa.array([{"id": 1}], kind)).to_pylist(), prefix) == ([b'{"id":1}'], b"")
    with pytest.raises(ConfigurationError, match="has no field id; it has no"):
        JsonLanguage().writer("no BIGINT", {}, None, kind)


# -- random columns ---------------------------------------------------------------------------

_LEAVES: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.int16(), st.integers(-(2**15), 2**15 - 1)),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.float64(), st.floats(allow_nan=False, allow_infinity=False)),
    (pa.decimal128(12, 3), st.decimals(-(10**9) + 1, 10**9 - 1, places=3)),
    (pa.bool_(), st.booleans()),
    (pa.string(), st.text(max_size=5)),
    (pa.binary(), st.binary(max_size=5)),
    (pa.date32(), st.dates()),
    (pa.timestamp("us", "UTC"), st.datetimes(timezones=st.just(UTC))),
    (pa.timestamp("us"), st.datetimes()),
]


def _nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    lists = inner.map(lambda of: (pa.list_(of[0]), st.lists(st.none() | of[1], max_size=3)))
    maps = inner.map(
        lambda of: (
            pa.map_(pa.string(), of[0]),
            st.dictionaries(st.text(max_size=3), st.none() | of[1], max_size=3).map(
                lambda mapping: list(mapping.items())
            ),
        )
    )
    objects = st.dictionaries(st.text(max_size=3), inner, min_size=1, max_size=3).map(
        lambda of: (
            pa.struct([(name, pair[0]) for name, pair in of.items()]),
            st.fixed_dictionaries({name: st.none() | pair[1] for name, pair in of.items()}),
        )
    )
    return lists | maps | objects


@st.composite
def columns(draw: st.DrawFn) -> pa.Array:
    kind, values = draw(st.recursive(st.sampled_from(_LEAVES), _nested, max_leaves=6))
    return pa.array(draw(st.lists(st.none() | values, min_size=1, max_size=6)), kind)


def model(kind: pa.DataType, value: Any) -> Any:
    """Return what `json` must read."""
    if value is None or pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_string(kind):
        return value
    if pa.types.is_struct(kind):
        return {field.name: model(field.type, value[field.name]) for field in kind if value[field.name] is not None}
    if pa.types.is_map(kind):
        return {name: model(kind.item_type, each) for name, each in value}
    if pa.types.is_list(kind):
        return [model(kind.value_type, each) for each in value]
    if pa.types.is_binary(kind):
        return base64.b64encode(value).decode()
    if pa.types.is_timestamp(kind):
        value = value.replace(tzinfo=None)
        text = value.isoformat(timespec="microseconds" if value.microsecond % 1000 else "milliseconds")
        return text + ("Z" if kind.tz else "")
    return value.isoformat() if pa.types.is_date(kind) else float(value)


@given(columns())
def test_random_columns_are_read_by_json_and_valid_by_their_schema(column: pa.Array) -> None:
    kind = column.type
    schema = schema_of(kind)
    expected = [model(kind, value) for value in column.to_pylist()]
    validator = jsonschema.Draft7Validator(schema)
    for own in (None, parse_json_schema(json.dumps(schema))):
        values = encode(json_writer(own, kind), column)
        values.validate(full=True)
        rows = [None if value is None else json.loads(value) for value in values.to_pylist()]
        assert rows == expected
    for value in rows:
        if value is not None:
            validator.validate(value)
    part = column.slice(1)
    assert encode(json_writer(None, kind), part).to_pylist() == values.to_pylist()[1:]
