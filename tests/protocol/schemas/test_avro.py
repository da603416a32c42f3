"""Avro values as columns: fastavro writes them, and its values are compared with the columns."""

from __future__ import annotations

import io
import json
import random
import tracemalloc
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pytest

from protocol.errors import ConfigurationError, UsageError
from protocol.records.arrow_numpy import to_arrow
from protocol.schemas.avro_columns import ArrayReader
from protocol.schemas.avro_default import zigzag_varint
from protocol.schemas.avro_encode import encoder
from protocol.schemas.avro_resolution import AvroDecoder
from protocol.schemas.avro_schema import arrow_type
from protocol.schemas.decoding import InvalidRows, read_valid
from protocol.schemas.encoding import encode
from tests.protocol.schemas.avro_samples import Samples, as_column, bounds, decode, encoded, parse, plain, read, record
from tests.support.hostile import corrupted, tracing
from tests.support.soak import scaled

pytestmark = pytest.mark.soak

SCHEMAS = scaled("AVRO_SCHEMAS", 300, 10_000)
MUTATIONS = scaled("AVRO_MUTATIONS", 3_000, 100_000)

DATE, TIME_MILLIS = ({"type": "int", "logicalType": name} for name in ("date", "time-millis"))
TIME_MICROS, MILLIS, MICROS, NANOS, LOCAL_MILLIS, LOCAL_NANOS = (
    {"type": "long", "logicalType": name}
    for name in (
        *("time-micros", "timestamp-millis", "timestamp-micros", "timestamp-nanos"),
        *("local-timestamp-millis", "local-timestamp-nanos"),
    )
)


def test_random_values_equal_those_of_fastavro() -> None:
    for seed in range(SCHEMAS):
        samples = Samples(seed)
        schema = samples.type() if seed % 3 else samples.record()
        values = [samples.value(schema) for _ in range(8)]
        column, parsed = read(schema, values), parse(schema)
        assert column.type == arrow_type(parsed)
        assert plain(column) == [as_column(parsed, value) for value in values], (seed, schema)


def test_random_values_of_evolved_schemas_equal_those_of_fastavro() -> None:
    for seed in range(SCHEMAS):
        samples = Samples(seed)
        writer = samples.record()
        reader = samples.evolved(writer)
        values = [samples.value(writer) for _ in range(8)]
        column = read(writer, values, reader)
        parsed = [fastavro.parse_schema(json.loads(json.dumps(schema))) for schema in (writer, reader)]
        expected = [fastavro.schemaless_reader(io.BytesIO(value), *parsed) for value in encoded(writer, values)]
        assert plain(column) == [as_column(parse(reader), value) for value in expected], (seed, writer, reader)


def test_mutated_bytes_are_reported_and_valid_ones_are_read() -> None:
    rng = random.Random(5)
    for seed in range(MUTATIONS // 10):
        samples = Samples(seed)
        schema = samples.record()
        values = encoded(schema, [samples.value(schema) for _ in range(10)])
        mutated = {row: corrupted(values[row], rng, values) for row in rng.sample(range(10), 5)}
        parsed = parse(schema)
        inputs = [mutated.get(row, value) for row, value in enumerate(values)]
        column, rows, invalid = AvroDecoder(parsed, parsed).decode(*bounds(inputs))
        column.validate(full=True)
        assert {failure.row for failure in invalid} <= mutated.keys()
        assert sorted([*rows.tolist(), *(failure.row for failure in invalid)]) == list(range(10))
        alone, _ = decode(schema, [inputs[row] for row in rows])
        assert plain_text(column) == plain_text(alone)


def plain_text(column: pa.Array) -> str:
    # Not as Python values: mutated times are out of datetime's range, and NaN equals nothing.
    return column.to_string(window=1_000_000, container_window=1_000_000)


# -- messages about invalid values --------------------------------------------------------

LINES = {"type": "array", "items": record(("sku", "string"), ("amount", {"type": "bytes", "logicalType": "decimal",
         "precision": 4, "scale": 2}), name="Line")}  # fmt: skip


@pytest.mark.parametrize(
    ("schema", "value", "message"),
    [
        (record(("a", "int"), ("b", "boolean")), b"\2\2", "field b: a boolean that is neither 0 nor 1"),
        (record(("a", "int")), b"\2\0", "bytes are left behind the value"),
        (record(("a", "int")), b"\xfe\xff\xff\xff\x1f", "field a: a number too large for an int"),
        (record(("a", "long")), b"\xff" * 11, "field a: a varint has more than 64 bits"),
        (record(("a", "double")), b"\0" * 7, "field a: the value ends in the middle of the field"),
        (record(("a", "string")), b"\x06ab", "field a: a length that exceeds the value"),
        (record(("a", "string")), b"\x01", "field a: a length that exceeds the value"),
        (record(("a", ["null", "string"])), b"\4", "field a: a union branch that the schema does not have"),
        (record(("a", {"type": "enum", "name": "E", "symbols": ["X"]})), b"\2",
         "field a: a symbol that is not in 0 to 0"),
        (record(("a", LINES)), b"\2\2x\6\1\0\0\0", "field a[].amount: a number too large for decimal128(4, 2)"),
        (record(("a", {"type": "map", "values": "long"})), b"\2\2k",
         "field a[]: the value ends in the middle of the field"),
        (record(("a", {"type": "array", "items": "null"})), b"\xfe\xff\xff\xff\x1f\0",
         "field a: a block with more items than the value has bytes"),
        (record(("a", {"type": "long", "logicalType": "timestamp-millis"})), b"\xfe" + b"\xff" * 8 + b"\1",
         "field a: a number too large for timestamp[us, tz=UTC]"),
    ],
)  # fmt: skip
def test_invalid_value_is_reported_with_its_field(schema: Any, value: bytes, message: str) -> None:
    samples = Samples(1)
    good = encoded(schema, [samples.value(schema) for _ in range(3)])
    column, invalid = decode(schema, [good[0], value, good[1], good[2]])
    assert invalid == [(1, message)]
    assert len(column) == 3


@pytest.mark.parametrize("items", ["long", "null"])
def test_many_small_blocks_of_one_value_are_read_one_by_one(items: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass over all values reads a block of each: hostile values had as many passes as blocks."""
    rounds: list[int] = []
    block_of_each = ArrayReader._block
    monkeypatch.setattr(
        ArrayReader, "_block", lambda reader, *arguments: rounds.append(1) or block_of_each(reader, *arguments)
    )
    block = b"\x02\x0e" if items == "long" else b"\x02"
    sized = b"\x01" + zigzag_varint(len(block) - 1) + block[1:]
    values = [(block + sized) * 500 + end for end in (b"\0", b"", b"\x80", b"\0\0")]
    column, invalid = decode({"type": "array", "items": items}, values)
    assert column.to_pylist() == [[7 if items == "long" else None] * 1_000]
    assert sorted(row for row, _ in invalid) == [1, 2, 3]
    assert len(rounds) < 300


def test_invalid_values_that_are_told_one_by_one_are_searched_for_by_halves() -> None:
    count, read_rows = 1_000, 0
    wrong = set(range(0, count, 2))

    def read_column(data: Any, at: Any, ends: Any) -> pa.Array:
        nonlocal read_rows
        read_rows += len(at)
        refused = [number for number, row in enumerate(at.tolist()) if row in wrong][:1]
        if refused:
            raise InvalidRows(np.array(refused), "wrong")
        return to_arrow(at)

    at = np.arange(count)
    column, rows, invalid = read_valid(read_column, np.zeros(count, np.uint8), at, at + 1)
    assert column.to_pylist() == rows.tolist() == [row for row in range(count) if row not in wrong]
    assert sorted(failure.row for failure in invalid) == sorted(wrong)
    assert read_rows < count * 30


EMPTY_RECORD: dict[str, Any] = {"type": "record", "name": "Empty", "fields": []}


@pytest.mark.parametrize("items", ["null", EMPTY_RECORD, {"type": "fixed", "name": "F", "size": 0}])
def test_items_without_bytes_in_many_blocks_are_limited(items: Any) -> None:
    """Three bytes are a block of 60,000 items."""
    schema = {"type": "array", "items": items}
    block = zigzag_varint(60_000)
    values = [b"\x04\0", block + b"\0", block + b"\x04\0", block * 20_000 + b"\0", b"\xc8\x01" * 700 + b"\0"]
    with tracing():
        column, invalid = decode(schema, values)
        peak = tracemalloc.get_traced_memory()[1]
    assert [len(value) for value in column] == [2, 60_000, 60_002]
    assert invalid == [(row, "too many items without bytes") for row in (3, 4)]
    assert peak < 10_000_000


def test_items_without_bytes_of_all_values_are_limited() -> None:
    schema = record(("a", {"type": "array", "items": "null"}), ("b", {"type": "array", "items": EMPTY_RECORD}))
    large, small = (zigzag_varint(count) + b"\0" for count in (60_000, 10))
    values = [large + small, small + large, *[small + small] * 10] * 300
    column, invalid = decode(schema, values)
    assert len(column) + len(invalid) == len(values)
    assert sum(len(column.field(name).values) for name in (0, 1)) <= 2**24
    # The largest ones are refused, not those that follow them.
    assert {row % 12 for row, _ in invalid} == {0, 1}
    assert {error for _, error in invalid} <= {f"field {name}: too many items without bytes" for name in "ab"}
    again, _ = decode(schema, values[:2])
    assert len(again) == 2


# -- resolution -------------------------------------------------------------------------------


def test_aliases_defaults_and_enum_default_are_applied() -> None:
    colour = {"type": "enum", "name": "C", "symbols": ["RED", "BLUE"]}
    writer = record(("n", "int"), ("c", colour))
    reader = record(
        ("c", {**colour, "symbols": ["RED", "OTHER"], "default": "OTHER"}),
        ("added", record(("x", "double", 2.5), ("y", ["null", "string"], None), name="Inner"), {"x": 1}),
        ("b", {"type": "bytes"}, "\u00ff"),
        name="Renamed",
        aliases=["R"],
    )
    reader["fields"].append({"name": "number", "aliases": ["n"], "type": "long"})
    column = read(writer, [{"n": 1, "c": "RED"}, {"n": 2, "c": "BLUE"}], reader)
    added = {"added": {"x": 1.0, "y": None}, "b": b"\xff"}
    assert column.to_pylist() == [{"c": "RED", **added, "number": 1}, {"c": "OTHER", **added, "number": 2}]


def test_value_without_branch_in_readers_schema_is_invalid() -> None:
    writer, reader = record(("a", ["null", "int", "string"])), record(("a", "long"))
    values = encoded(writer, [{"a": 1}, {"a": None}, {"a": "x"}])
    column, invalid = decode(writer, values, reader)
    assert column.to_pylist() == [{"a": 1}]
    assert invalid == [
        (1, "field a: a is null in the writer's schema, long in the reader's"),
        (2, "field a: a is string in the writer's schema, long in the reader's"),
    ]


@pytest.mark.parametrize(
    ("reader", "kind", "factor"),
    [
        (MILLIS, pa.timestamp("us", "UTC"), 1000),
        (LOCAL_MILLIS, pa.timestamp("us"), 1000),
        (MICROS, pa.timestamp("us", "UTC"), 1),
        (TIME_MICROS, pa.int64(), 1),
        (DATE, pa.date32(), 1),
    ],
)
def test_every_int_is_read_as_a_time(reader: Any, kind: pa.DataType, factor: int) -> None:
    numbers = [0, -1, 2_147_484, 2**31 - 1, -(2**31)]
    column, invalid = decode("int", [*encoded("int", numbers), *encoded("long", [2**31])], reader)
    assert invalid == [(5, "a number too large for an int")]
    assert column.type == kind
    stored = column.view(pa.int32()) if kind == pa.date32() else column.view(pa.int64())
    assert stored.to_pylist() == [number * factor for number in numbers]


@pytest.mark.parametrize(
    ("writer", "reader"),
    [
        *((MILLIS, MICROS), (NANOS, MILLIS), (NANOS, LOCAL_NANOS), (MICROS, NANOS), (DATE, NANOS), (DATE, MILLIS)),
        *((TIME_MILLIS, TIME_MICROS), (TIME_MILLIS, MILLIS), (TIME_MICROS, MICROS)),
    ],
)
def test_number_of_another_unit_is_refused(writer: Any, reader: Any) -> None:
    """Avro and `from_avro` would take the number as it is: a thousand times another time."""
    message = f"a is {writer['logicalType']} in the writer's schema, {reader['logicalType']} in the reader's"
    with pytest.raises(ConfigurationError, match=message):
        decode(record(("a", writer)), [], record(("a", reader)))


@pytest.mark.parametrize(
    ("union", "members"),
    [(["int", MILLIS], [pa.int32(), pa.timestamp("us", "UTC")]), ([DATE, "long"], [pa.date32(), pa.int64()])],
)
def test_union_of_a_number_and_a_time_keeps_its_members(union: Any, members: list[pa.DataType]) -> None:
    """`from_avro` has bigint: it does not tell a number from a time."""
    assert arrow_type(parse(union)) == pa.struct([pa.field(f"member{n}", kind) for n, kind in enumerate(members)])
    column, invalid = decode(union, [b"\0\x0e", b"\2\x0e"])
    assert invalid == []
    for number, kind in enumerate(members):
        values = column.field(number).cast(pa.int64() if kind.bit_width == 64 else pa.int32()).to_pylist()
        expected = 7_000 if pa.types.is_timestamp(kind) else 7
        assert values == [expected if row == number else None for row in (0, 1)]


def money(precision: int, scale: int) -> dict[str, Any]:
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}


@pytest.mark.parametrize(
    ("writer", "reader", "message"),
    [
        ("long", "int", "a is long in the writer's schema, int in the reader's"),
        ("string", "int", "a is string in the writer's schema, int in the reader's"),
        (money(10, 2), money(10, 3), "a is decimal(10, 2) in the writer's schema, decimal(10, 3) in the reader's"),
        (money(10, 2), money(9, 2), "a is decimal(10, 2) in the writer's schema, decimal(9, 2) in the reader's"),
        (DATE, "double", "a is date in the writer's schema, double in the reader's"),
        ({"type": "array", "items": "long"}, {"type": "array", "items": "string"}, "a[] is long in the writer's"),
        ("null", "string", "a is null in the writer's schema, string in the reader's"),
        ({"type": "fixed", "name": "F", "size": 4}, {"type": "fixed", "name": "F", "size": 5}, "a is fixed F"),
    ],
)
def test_incompatible_schemas_are_refused_with_the_field(writer: Any, reader: Any, message: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        decode(record(("a", writer)), [], record(("a", reader)))
    assert message in str(refused.value)


def test_decimal_may_become_wider() -> None:
    samples = Samples(1)
    values = [{"a": samples.value(money(6, 2))} for _ in range(20)]
    assert read(record(("a", money(6, 2))), values, record(("a", money(20, 2)))).to_pylist() == values


# -- writing ----------------------------------------------------------------------------------


def test_random_columns_are_written_as_fastavro_reads_them() -> None:
    for seed in range(SCHEMAS):
        samples = Samples(seed)
        schema = samples.type() if seed % 3 else samples.record()
        column = read(schema, [samples.value(schema) for _ in range(8)])
        parsed = parse(schema)
        written = encode(encoder(parsed, column.type), column)
        written.validate(full=True)
        again, invalid = decode(schema, [value for value in written.to_pylist() if value is not None])
        assert invalid == []
        if written.null_count:  # a union at the top: null is a tombstone
            assert plain(again) == [value for value in plain(column) if value is not None], (seed, schema)
            continue
        assert plain_text(again) == plain_text(column), (seed, schema)
        reference = fastavro.parse_schema(json.loads(json.dumps(schema)))
        values = [fastavro.schemaless_reader(io.BytesIO(value), reference, None) for value in written.to_pylist()]
        assert [as_column(parsed, value) for value in values] == plain(column), (seed, schema)


def test_slice_of_a_column_is_written() -> None:
    samples = Samples(4)
    fields = {"a": LINES, "b": ["null", "string"], "c": money(9, 1), "d": {"type": "map", "values": "int"}}
    schema = record(*fields.items())
    values = [samples.value(schema) for _ in range(12)]
    column = read(schema, values).slice(4, 5)
    written = encode(encoder(parse(schema), column.type), column, b"\0\0\0\0\7")
    assert written.to_pylist() == [b"\0\0\0\0\7" + each for each in encoded(schema, values[4:9])]


@pytest.mark.parametrize(
    ("schema", "kind", "message"),
    [
        (record(("a", "int")), pa.struct([("a", pa.int64())]), "a is int64, which the schema's int cannot take"),
        (record(("a", "int")), pa.struct([("b", pa.int32())]), "the schema has no field b; it has a"),
        (record(("a", "int")), pa.struct([]), "the column has no field a, which has no default in the schema"),
        (record(("a", "int", "x")), pa.struct([]), "a has a default that is no int: 'x'"),
        (record(("a", LINES)), pa.struct([("a", pa.list_(pa.struct([("sku", pa.int32())])))]), "a[].sku is int32"),
        (record(("a", MILLIS)), pa.struct([("a", pa.timestamp("us"))]), "a is timestamp[us], which"),
        (record(("a", ["null", "int"])), pa.struct([("a", pa.string())]), "a is string, which the schema's int"),
        (
            record(("a", ["null"])),
            pa.struct([("a", pa.int32())]),
            "a is int32, which the schema's union of null cannot",
        ),
        ("long", pa.string(), "the column is string, which the schema's long cannot take"),
    ],
)
def test_column_of_another_type_is_refused_with_the_field(schema: Any, kind: pa.DataType, message: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        encoder(parse(schema), kind)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("schema", "values", "message"),
    [
        (record(("a", "int")), [{"a": 1}, {"a": None}], "field a: row 1 has null, which the schema's int cannot take"),
        (record(("a", {"type": "enum", "name": "E", "symbols": ["X"]})), [{"a": "X"}, {"a": "Y"}],
         "field a: row 1 has a text that is no symbol of the enum"),
        (record(("a", {"type": "fixed", "name": "F", "size": 2})), [{"a": b"123"}],
         "field a: row 0 has other than 2 bytes"),
    ],
)  # fmt: skip
def test_value_that_does_not_fit_is_refused_with_the_field(schema: Any, values: list[Any], message: str) -> None:
    parsed = parse(schema)
    kind = pa.struct([pa.field(field.name, field.type) for field in arrow_type(parsed)])
    with pytest.raises(UsageError) as refused:
        encode(encoder(parsed, kind), pa.array(values, kind))
    assert message in str(refused.value)
