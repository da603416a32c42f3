"""Avro schemas: the ones that are refused, within limits of time, and names, references and logical types."""

from __future__ import annotations

import json
import time
from typing import Any

import pyarrow as pa
import pytest

from protocol.errors import ConfigurationError
from protocol.schemas.avro_schema import arrow_type, parse_avro
from tests.protocol.schemas.avro_samples import decode, parse, read, record


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "the Avro schema is not JSON"),
        ('{"type": "record"}', "has an invalid name: None"),
        ('{"type": "record", "name": "a b", "fields": []}', "has an invalid name: 'a b'"),
        ('"nope"', "has the unknown type nope"),
        ('["null", ["int"]]', "is a union in a union"),
        ('["int", "int"]', "is a union with the same type twice: int, int"),
        (json.dumps(record(("next", ["null", "R"]))), "field next, contains the type R in itself: recursive"),
        (json.dumps(record(("a", record(("b", "nope"), name="I")))), r"field a\.b, has the unknown type nope"),
        (json.dumps(record(("a", "int"), ("a", "int"))), "has a field name twice"),
        ('{"type": "enum", "name": "E", "symbols": []}', "is an enum without symbols"),
        ('{"type": "array"}', "is an array without items"),
        *((json.dumps(record(aliases=aliases)), "aliases that are no list of names") for aliases in (None, "old", [1])),
        *(
            (
                json.dumps(record(("a", {"type": "fixed", "name": "F", "size": size}))),
                "field a, is a fixed without a size from 0 to 2147483647",
            )
            for size in (2**31, 2**63 - 1, 2**90, -1, "2")
        ),
        ("[" * 5000 + "]" * 5000, "is not JSON|union in a union|nested deeper"),
    ],
)
def test_invalid_schema_is_refused_with_the_field(text: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        parse_avro(text)


def test_large_and_deep_types_through_references_are_refused() -> None:
    """Each type is used twice by the next one: 25 of them are 2^25 types."""

    def chained(count: int, fields: str) -> Any:
        inner = record(("a", "int"), name="R0")
        for number in range(1, count):
            types = [inner, *[f"R{number - 1}"] * (len(fields) - 1)]
            inner = record(*zip(fields, types, strict=True), name=f"R{number}")
        return inner

    def referring(count: int, fields: str) -> Any:
        """Return the same types side by side: each one is nested only by the names of others."""
        chain = [record(("a", "int"), name="R0")]
        for number in range(1, count):
            chain.append(record(*((field, f"R{number - 1}") for field in fields), name=f"R{number}"))
        return record(*((f"f{number}", link) for number, link in enumerate(chain)))

    began_s = time.process_time()
    for doubling in (chained(25, "lr"), referring(25, "lr")):
        with pytest.raises(ConfigurationError, match="is one of more than 20000 types"):
            parse(doubling)
    for deep in (referring(80, "l"), referring(3_000, "l"), chained(80, "l")):
        with pytest.raises(ConfigurationError, match="is nested deeper than 64 types"):
            parse(deep)
    assert time.process_time() - began_s < 5
    assert arrow_type(parse(referring(60, "l"))).num_fields == 60
    further = {f"R{number}": json.dumps(field["type"]) for number, field in enumerate(referring(80, "l")["fields"])}
    with pytest.raises(ConfigurationError, match="is nested deeper than 64 types"):
        parse_avro('"R79"', further)


def test_deep_incompatible_types_are_compared_once() -> None:
    """Each nullable type was compared three times: 3^25 comparisons of the innermost one."""
    writer: Any = "string"
    reader: Any = "int"
    for number in range(25):
        writer = record(("a", writer), name=f"R{number}")
        reader = ["null", record(("a", reader), name=f"R{number}")]
    began_s = time.process_time()
    with pytest.raises(ConfigurationError, match=r"a\.a\.a is string in the writer's schema, int in the reader's"):
        decode(writer, [], reader)
    assert time.process_time() - began_s < 5


def test_types_of_references_and_namespaces_are_found() -> None:
    address = json.dumps({"type": "record", "name": "shop.Address", "fields": [{"name": "city", "type": "string"}]})
    order = record(("home", "Address"), ("work", ["null", "shop.Address"]), namespace="shop")
    parsed = parse_avro(json.dumps(order), {"shop.Address": address})
    city = pa.struct([pa.field("city", pa.string(), nullable=False)])
    assert arrow_type(parsed) == pa.struct([pa.field("home", city, nullable=False), pa.field("work", city)])


@pytest.mark.parametrize(("size", "precision", "taken"), [(2, 4, True), (2, 5, False), (16, 38, True), (0, 1, False)])
def test_decimal_must_have_a_place_in_its_fixed_type(size: int, precision: int, taken: bool) -> None:
    """Otherwise high bytes of a written number would be lost; Avro ignores such a logical type."""
    decimal = {"logicalType": "decimal", "precision": precision, "scale": 0}
    assert (parse({"type": "fixed", "name": "D", "size": size, **decimal}).logical == "decimal") == taken


def test_default_beyond_an_int_is_refused_or_a_long() -> None:
    writer = record(("a", "int"))
    with pytest.raises(ConfigurationError, match="b has a default that is no int"):
        read(writer, [{"a": 1}], record(("a", "int"), ("b", "int", 2**32)))
    column = read(writer, [{"a": 1}], record(("a", "int"), ("b", ["int", "long"], 2**32)))
    assert column.to_pylist() == [{"a": 1, "b": 2**32}]


def test_invalid_logical_type_is_ignored() -> None:
    assert arrow_type(parse({"type": "bytes", "logicalType": "decimal", "precision": 99})) == pa.binary()
    assert arrow_type(parse({"type": "string", "logicalType": "date"})) == pa.string()
