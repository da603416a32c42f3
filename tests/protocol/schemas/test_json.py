"""JSON values as columns of a schema of Spark. Expected results are those of `from_json`, but where a name says so."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from decimal import Decimal
from math import isnan
from typing import Any

import pyarrow as pa
import pytest

from protocol.errors import ConfigurationError
from protocol.schemas.json_columns import JsonDecoder
from protocol.schemas.reader_schema import ReaderSchema
from protocol.schemas.spark_schema import parse_spark
from protocol.schemas.values import ColumnDecoder
from tests.protocol.schemas import conftest
from tests.support.soak import scaled

MUTATIONS = scaled("JSON_MUTATIONS", 3_000, 100_000)
SEQUENCES = scaled("JSON_SEQUENCES", 300, 10_000)


def decoded(schema: str, values: Sequence[bytes | None]) -> tuple[list[Any], list[str]]:
    return conftest.decoded(ColumnDecoder(ReaderSchema("json", schema)), values)


def field(kind: str, text: str) -> Any:
    """Return the value of a field `a` from its JSON: the same alone, between others, and by each of the readers."""
    value = f'{{"a":{text}}}'.encode()
    collected = []
    further = [b"{}"] * 3
    for values in ([value], [*further, value, *further], [b'{"a":1', *further, value]):
        column, invalid = ColumnDecoder(ReaderSchema("json", f"a {kind}")).decode(pa.array(values, pa.binary()))
        column.validate(full=True)
        row = values.index(value)
        errors = [failure for failure in invalid if failure.row == row]
        collected.append(str(errors[0]) if errors else column.field(0)[row])
    assert repr(collected[0]) == repr(collected[1]) == repr(collected[2])
    return collected[0] if isinstance(collected[0], str) else collected[0].as_py()


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        ("INT", "-1", -1),
        ("INT", "null", None),
        ("INT", "1.0", "field a: 1.0, not an int"),
        ("INT", '"1"', "field a: a string, not an int"),
        ("INT", "2147483648", "field a: 2147483648 is not an int"),
        ("INT", "01", "not JSON: Expecting ',' delimiter at character 6"),
        ("BIGINT", "9223372036854775807", 2**63 - 1),
        ("BIGINT", "9223372036854775808", "field a: 9223372036854775808 is not a bigint"),
        ("SMALLINT", "-32768", -32768),
        ("DOUBLE", "1", 1.0),
        ("DOUBLE", "1e400", float("inf")),
        ("DOUBLE", "-Infinity", float("-inf")),
        ("DOUBLE", '"Infinity"', float("inf")),
        ("DOUBLE", "+INF", float("inf")),
        ("DOUBLE", "-Inf", float("-inf")),
        ("DOUBLE", "1" * 400, float("inf")),
        ("DOUBLE", '"1.5"', "field a: '1.5' is not a double"),
        ("DOUBLE", "true", "field a: a boolean, not a double"),
        ("FLOAT", "0.1", 0.10000000149011612),
        ("FLOAT", "1e39", float("inf")),
        ("BOOLEAN", "true", True),
        ("BOOLEAN", '"true"', "field a: a string, not a boolean"),
        ("DECIMAL(10, 2)", "1.005", Decimal("1.01")),
        ("DECIMAL(10, 2)", '"1,234.5"', Decimal("1234.50")),
        ("DECIMAL(10, 2)", "1e7", Decimal("10000000.00")),
        ("DECIMAL(10, 2)", "2147483648", "field a: 2147483648 is not a decimal(10,2)"),
        ("DECIMAL(10, 2)", "1e999999999", "field a: 1e999999999 is not a decimal(10,2)"),
        *(("DECIMAL(10, 2)", f"{number}e{sign}{'9' * 20}",
           f"field a: {number}e{sign}{'9' * 20} is not a decimal(10,2)") for number in "01" for sign in ("", "-")),
        ("DECIMAL(38, 18)", "9223372036854775808", Decimal("9223372036854775808.000000000000000000")),
        ("DECIMAL(38, 18)", "123456789012345678901234567890",
         "field a: 123456789012345678901234567890 is not a decimal(38,18)"),
        ("DECIMAL(38, 18)", "1" * 30, f"field a: {'1' * 30} is not a decimal(38,18)"),
        ("STRING", '"\\u0041\\n\\ud83d\\ude00"', "A\n\U0001f600"),
        ("STRING", '"\\ud83d"', "?"),
        ("STRING", '"\\udc00x"', "?x"),
        ("STRING", "'it\"s'", 'it"s'),
        ("STRING", "true", "true"),
        ("STRING", "1.50", "1.50"),
        ("STRING", "1" * 5_000, "1" * 5_000),
        ("STRING", "[1.50, NaN, -0]", '[1.50,"NaN",0]'),
        ("STRING", '{"b": [1 , "x"]}', '{"b":[1,"x"]}'),
        ("STRING", '"a\tb"', "not JSON: Invalid control character at character 7"),
        ("DATE", '"2026-1-3"', "2026-01-03"),
        ("DATE", '"2026-01-31T12:00:00Z"', "2026-01-31"),
        ("DATE", '"2026-02-30"', "field a: '2026-02-30' is not a date"),
        ("DATE", "1", "field a: 1, not a date"),
        ("DATE", '"9999999-01-01"', "field a: '9999999-01-01' is not a date"),
        ("TIMESTAMP", '"2026-01-31T12:00:00+01:00"', "2026-01-31 11:00:00+00:00"),
        ("TIMESTAMP", '"2026-01-31 12:00:00.123456789"', "2026-01-31 12:00:00.123456+00:00"),
        ("TIMESTAMP", '"2026-01-31T12:00:00 Europe/Berlin"', "2026-01-31 11:00:00+00:00"),
        ("TIMESTAMP", '"2026-01-31T12:00:00EST"', "2026-01-31 17:00:00+00:00"),
        ("TIMESTAMP", '"2026-1-3 1:2"', "2026-01-03 01:02:00+00:00"),
        ("TIMESTAMP", '"2026"', "2026-01-01 00:00:00+00:00"),
        ("TIMESTAMP", "1769860800", "2026-01-31 12:00:00+00:00"),
        # Spark has null for these two.
        ("TIMESTAMP", '"2026-01-31T12:00Z"', "2026-01-31 12:00:00+00:00"),
        ("TIMESTAMP", '"2026-01-31T12:00:00+19:00"', "2026-01-30 17:00:00+00:00"),
        ("TIMESTAMP", "1.5", "field a: 1.5, not a timestamp"),
        ("TIMESTAMP", '"2026-01-31T24:00:00"', "field a: '2026-01-31T24:00:00' is not a timestamp"),
        ("TIMESTAMP_NTZ", '"2026-01-31T12:00"', "2026-01-31 12:00:00"),
        ("TIMESTAMP_NTZ", '"2026-01-31T12:00:00Z"', "field a: '2026-01-31T12:00:00Z' is not a timestamp"),
        ("BINARY", '"AQID"', b"\1\2\3"),
        ("BINARY", '"AQ"', "field a: 'AQ' is not base64"),
        ("VOID", '{"b": 1}', None),
        ("ARRAY<INT>", "[1, null]", [1, None]),
        ("ARRAY<INT>", '[1, "x"]', "field a[]: a string, not an int"),
        ("ARRAY<INT>", "[1,]", "not JSON: Expecting value at character 8"),
        ("MAP<STRING, INT>", '{"x": 1, "y": null}', [("x", 1), ("y", None)]),
        ("MAP<STRING, INT>", '{"x": "y"}', "field a[]: a string, not an int"),
        ("MAP<STRING, STRUCT<b: DATE>>", '{"x": {"b": "2026-01-31"}}', [("x", {"b": "2026-01-31"})]),
        ("STRUCT<b: INT, c: STRING>", '{"b": 1, "b": 2, "B": 3}', {"b": 2, "c": None}),
        ("STRUCT<b: INT, c: STRING>", '[{"b": 1}]', "field a: an array, not an object"),
        ("STRUCT<b: ARRAY<STRUCT<c: INT>>>", '{"b": [{"c": 1}, {"c": {}}]}', "field a.b[].c: an object, not an int"),
    ],
)  # fmt: skip
def test_field_has_the_value_of_from_json(kind: str, text: str, expected: Any) -> None:
    result = field(kind, text)
    assert (result if isinstance(expected, float | int | bytes | list | dict) or result is None else str(result)) == (
        expected if not isinstance(expected, Decimal) else str(expected)
    ) or json.dumps(result, default=str) == json.dumps(expected)


def test_not_a_number_is_read() -> None:
    assert all(isnan(field("DOUBLE", text)) for text in ("NaN", '"NaN"', "-NaN"))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b' \n{\n"a"\t:\r1}\n ', {"a": 1}),
        (b"{}", {"a": None}),
        (b"", None),
        (b"  ", None),
        (b'{"\\u0061": 1}', {"a": 1}),
        (b'{"z": [1, {"y": "}"}, "{"], "a": 1}', {"a": 1}),
        (b"{'a': 1}", {"a": 1}),
        (b"{'b\\'\"': '[', 'z': -NaN, 'a': 1}", {"a": 1}),
        (b'{"a": "x", "a": 1}', {"a": 1}),
        (b'{"z": "\xff", "a": 1}', {"a": 1}),
        (b"null", "null, not an object"),
        (b'[{"a": 1}]', "an array, not an object"),
        (b"[", "not JSON: Expecting value at character 1"),
        (b'{"a": 1,}', "not JSON: Expecting property name enclosed in double quotes at character 8"),
        (b'{"a" 1}', "not JSON: Expecting ':' delimiter at character 5"),
        (b'{"a": 1', "not JSON: Expecting ',' delimiter at character 7"),
        (b'{"z": 01, "a": 1}', "not JSON: Expecting ',' delimiter at character 7"),
        (b'{"z": tru, "a": 1}', "not JSON: Expecting value at character 6"),
        (b'/**/{"a": 1}', "not JSON: Expecting value at character 0"),
        (b'\xef\xbb\xbf{"a": 1}', "not JSON: Expecting value at character 0"),
        (b"\0", "not JSON: Expecting value at character 0"),
        # Stricter than Spark, which ignores what follows.
        (b'{"a": 1} {"a": 2}', "not JSON: Extra data at character 9"),
        (b'{"a": 1}}', "not JSON: Extra data at character 8"),
    ],
)
def test_value_is_read_as_from_json_reads_it(value: bytes, expected: Any) -> None:
    for values in ([value], [b'{"a": 7}', value, b'{"a": 8}', b'{"a": 1', value]):
        found, errors = decoded("a INT", values)
        row = values.index(value)
        assert (errors[0] if isinstance(expected, str) else found[row]) == expected
        if len(values) > 1:
            assert (found[0], found[2], found[3]) == ({"a": 7}, {"a": 8}, None)


def test_types_other_than_objects_are_read() -> None:
    assert decoded("array<int>", [b"[1, 2]", b"", b'1}\n{"v":2', b'{"v": 1}', b"[]"]) == (
        [[1, 2], None, None, None, []],
        ["not JSON: Extra data at character 1", "an object, not an array"],
    )
    assert decoded("map<string, int>", [b'{"a": 1}', None]) == ([[("a", 1)], None], [])


def test_objects_without_maps_are_read_by_arrow_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrow's reader parses many values at once; those with a map are parsed one by one."""
    monkeypatch.setattr(JsonDecoder, "_read_objects", lambda *_: pytest.fail("read one by one"))
    rows, errors = decoded("a INT, b ARRAY<STRUCT<c: STRING, d: DATE>>", [b'{"a": 1, "b": [{"c": "x"}]}', b'{"a": 2}'])
    assert not errors
    assert [row["a"] for row in rows] == [1, 2]


def test_many_values_are_read_around_invalid_ones() -> None:
    draw = random.Random(3)
    values = [f'{{"a": {number}, "b": [{{"c": "{number}"}}]}}'.encode() for number in range(5_000)]
    wrong = sorted(draw.sample(range(5_000), 40))
    for row in wrong:
        values[row] = b'{"a": "x"}'
    found, errors = decoded("a INT, b ARRAY<STRUCT<c: STRING>>", values)
    assert len(errors) == len(wrong)
    assert found == [None if row in wrong else {"a": row, "b": [{"c": str(row)}]} for row in range(5_000)]


@pytest.mark.parametrize(
    "value",
    [
        b'{"z": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"ignored": ' + b"[" * 1_001 + b"]" * 1_001 + b"}",
        b'{"z": ' + b'{"z":' * 100_000 + b"1" + b"}" * 100_001,
        b'{"s": ' + b"[" * 100_000,
        b'{"a": ' + b"1" * 100_000 + b"}",
        b'{"d": ' + b"1" * 100_000 + b"}",
        b'{"n": 1e' + b"9" * 100_000 + b"}",
        b'{"n": "' + b"9" * 100_000 + b'"}',
        b'{"t": "' + b"9" * 100_000 + b'"}',
        b'{"t": 99999999999999999999}',
        b'{"x": "\\ud800' + b"\\" * 100_001,
    ],
    ids=range(11),
)
def test_hostile_value_is_an_error(value: bytes) -> None:
    schema = "a INT, d DECIMAL(38, 18), n DECIMAL(10, 2), s STRING, t TIMESTAMP, z ARRAY<INT>, m MAP<STRING, INT>"
    for without in ("", ", m MAP<STRING, INT>"):
        found, errors = decoded(schema.removesuffix(without), [value, b'{"a": 1}'])
        assert (found[0], found[1]["a"], len(errors)) == (None, 1, 1)
        assert len(errors[0]) < 200


@pytest.mark.parametrize(("levels", "errors"), [(400, 0), (500, 0), (501, 1)])
@pytest.mark.parametrize("text", ["[]", '"\\"", [], "[["'])
def test_limit_of_depth_is_the_same_for_all_readers(levels: int, errors: int, text: str) -> None:
    deep = "[" * (levels - 2) + text + "]" * (levels - 2)
    value = f'{{"a": {{"b": 1}}, "ignored": {deep}, "long": "{"x" * 600}"}}'
    flat = json.dumps({"a": {"b": 1}, "ignored": [[]] * 2_000})
    for kind in ("MAP<STRING, INT>", "STRUCT<b: INT>"):
        found, failures = decoded(f"a {kind}", [value.encode(), flat.encode()])
        assert (found[0] is None, found[1] is None, len(failures)) == (bool(errors), False, errors)
        assert not errors or "nested deeper than 500 levels" in failures[0]


def test_mutated_values_are_errors_or_values() -> None:
    draw = random.Random(11)
    schema = "id BIGINT, n STRING, at TIMESTAMP, d DECIMAL(12, 3), x DOUBLE, l ARRAY<STRUCT<b: BINARY, on: DATE>>"
    plain = json.dumps(
        {
            "id": 12345678901, "n": 'a"\u00e4\U0001f600', "at": "2026-01-31T12:00:00.5Z", "d": 12.5, "x": 1e300,
            "l": [{"b": "AQID", "on": "2026-01-31"}, None], "more": {"deep": [[{}], [True, None]]},
        }
    ).encode()  # fmt: skip
    interesting = b'{}[]",:\\0e.-+ \n\r\t\xff\x00\xf0\xed\xa0'
    values = []
    for _ in range(MUTATIONS):
        value = bytearray(plain)
        for _ in range(draw.randrange(1, 4)):
            at = draw.randrange(len(value))
            choice = draw.randrange(4)
            if choice == 0:
                value[at] = draw.choice(interesting)
            elif choice == 1:
                del value[at : at + draw.randrange(1, 9)]
            elif choice == 2:
                value[at:at] = bytes([draw.choice(interesting)])
            else:
                value[at:at] = value[draw.randrange(len(value)) :][: draw.randrange(1, 20)]
        values.append(bytes(value))
    together = ColumnDecoder(ReaderSchema("json", schema))
    for first in range(0, len(values), 500):
        some = values[first : first + 500]
        column, invalid = together.decode(pa.array(some, pa.binary()))
        column.validate(full=True)
        wrong = {failure.row: str(failure) for failure in invalid}
        assert all((not column[row].is_valid) == (row in wrong) for row in range(len(some)))
        # A block with an invalid value is read as objects, which define the results.
        for begin in range(0, len(some), 50):
            block = some[begin : begin + 50]
            reference, errors = together.decode(pa.array([*block, b"{"], pa.binary()))
            assert {begin + error.row: str(error) for error in errors if error.row < len(block)} == {
                row: error for row, error in wrong.items() if begin <= row < begin + len(block)
            }
            assert reference.slice(0, len(block)).to_string() == column.slice(begin, len(block)).to_string()
        # Each value has the result that it has alone.
        for row in draw.sample(range(len(some)), 20):
            alone, errors = together.decode(pa.array([some[row]], pa.binary()))
            assert [str(error) for error in errors] == ([wrong[row]] if row in wrong else [])
            assert alone.to_string() == column.slice(row, 1).to_string()


# -- schemas of Spark -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a INT", [("a", pa.int32())]),
        ("`a b` decimal(5,1) NOT NULL COMMENT 'x, y', c: dec",
         [("a b", pa.decimal128(5, 1)), ("c", pa.decimal128(10, 0))]),
        ("a struct<b: array<map<string, varchar(3)>>, c timestamp_ntz>", [("a", pa.struct([
            ("b", pa.list_(pa.field("element", pa.map_(pa.string(), pa.string())))), ("c", pa.timestamp("us"))]))]),
        ('{"type": "struct", "fields": [{"name": "a", "type": "decimal(5,1)", "nullable": false, "metadata": {}}]}',
         [("a", pa.decimal128(5, 1))]),
        ("struct<a: int>", [("a", pa.int32())]),
    ],
)  # fmt: skip
def test_schema_of_spark_is_an_arrow_type(text: str, expected: list[Any]) -> None:
    assert parse_spark(text) == pa.struct([pa.field(*field) for field in expected])


def test_schema_may_be_one_type() -> None:
    assert parse_spark("decimal(5, 2)") == pa.decimal128(5, 2)
    assert parse_spark("bigint") == parse_spark('"long"') == pa.int64()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no DDL at 'its end'"),
        ("a INT b INT", "no DDL at 'b', behind 'a INT'"),
        ("a INT, : INT", "no DDL at ':', behind 'a INT ,': a name is missing"),
        ("a INT, a INT", "has a field name twice"),
        ("a ARRAY<INT", "at 'its end', behind 'ARRAY < INT': > is missing"),
        ("a INTERVAL", "field a, has the type interval"),
        ("a DECIMAL(39, 2)", "field a, is a decimal with 39 digits"),
        ("a INT;", "unexpected character: ';'"),
        ("a MAP<INT, INT>", "a is a map whose keys are no strings"),
        ("{", "the JSON Schema is not JSON"),
        ('{"type": "struct"}', "is no data type"),
        ("a " + "ARRAY<" * 100 + "INT" + ">" * 100, "is nested deeper than 64 types"),
        ("struct<>", "the schema has no fields"),
    ],
)
def test_wrong_schema_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        _ = ReaderSchema("json", text).type


# -- sequences of tokens ----------------------------------------------------------------------

TOKENS = ["{", "}", "[", "]", ",", ":", '"a"', '"b"', "1", "null", "true", "-1.5e3", '"x"', "{}", "[]", " ", "\n",
          "NaN", '"a":', '"b":', '{"a":1}', '{"b":[1]}', '"\\u0041"']  # fmt: skip


@pytest.mark.parametrize(
    "kind",
    [
        *("a INT, b ARRAY<INT>", "a STRUCT<a: INT, b: ARRAY<STRUCT<b: STRING>>>, b STRING"),
        *("array<struct<a: int>>", "int"),
    ],
)
def test_sequences_of_tokens_are_read_as_alone(kind: str) -> None:
    """Arrow's reader sees several values as one text: none may change what it reads of another."""
    draw = random.Random(5)
    decoder = ColumnDecoder(ReaderSchema("json", kind))
    for _ in range(SEQUENCES):
        values: list[bytes] = []
        for _ in range(draw.randrange(1, 6)):
            core = "".join(draw.choice(TOKENS) for _ in range(draw.randrange(8)))
            values.append((f"{{{core}}}" if draw.random() < 0.8 else core).encode())
        column, invalid = decoder.decode(pa.array(values, pa.binary()))
        column.validate(full=True)
        reference, expected = decoder.decode(pa.array([*values, b"{"], pa.binary()))
        reasons = {failure.row: str(failure) for failure in invalid}
        assert reasons == {error.row: str(error) for error in expected if error.row < len(values)}, values
        assert reference.slice(0, len(values)).to_string() == column.to_string(), values
