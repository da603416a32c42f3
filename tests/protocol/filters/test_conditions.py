"""Conditions over columns: what the parser makes of them, and the rows that they keep."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from protocol.errors import ConfigurationError, FilterFailed
from protocol.fetch.log_offsets import Range
from protocol.filters import parse
from protocol.filters.condition import Node
from protocol.filters.evaluate import rows_where
from protocol.filters.parse import parse_condition
from protocol.filters.pruning import pruned
from protocol.filters.record_filter import RecordFilter


def kept(condition: str, keys: Sequence[bytes | None], *, ansi: bool = True) -> list[int]:
    """Return the numbers of the records that a condition on keys keeps."""
    columns = {"key": pa.array(keys, pa.binary()), "offset": pa.array(range(len(keys)), pa.int64())}
    (stage,) = RecordFilter(parse_condition(condition), ansi=ansi).of_range(Range("orders", 0, 0, 9)).stages
    rows: list[int] = stage.keep(columns).nonzero()[0].tolist()
    return rows


# -- numbers ------------------------------------------------------------------------------------------


def test_cast_of_more_digits_than_python_parses_is_null_or_fails_in_ansi_mode() -> None:
    keys = [b"9" * 5000, b"-" + b"9" * 5000, b"0" * 5000 + b"7", b"-7", b"7.9"]
    for kind in ("int", "bigint"):
        assert kept(f"cast(cast(key AS string) AS {kind}) = 7", keys, ansi=False) == [2, 4]
        assert kept(f"cast(cast(key AS string) AS {kind}) IS NULL", keys, ansi=False) == [0, 1]
        with pytest.raises(FilterFailed, match="offset 1"):
            kept(f"cast(cast(key AS string) AS {kind}) = 7", [b"7", *keys])


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        ("9223372036854775808", "bigint"),
        ("1" + "0" * 5_000, "bigint"),
        ("300Y", "tinyint"),
        ("-128Y", "tinyint"),
        ("cast(70000 AS smallint)", "smallint"),
        ("1e400", "double"),
    ],
)
def test_literal_outside_its_type_is_refused(number: str, kind: str) -> None:
    with pytest.raises(ConfigurationError, match=f"exceeds the range of {kind}.* Apply this part to the rows that"):
        parse_condition(f"offset > {number}")


@pytest.mark.parametrize("number", ["-(1.5)", "-abs(1.5)", "-abs(-1.5)", "-(-(-1.5))"])
def test_sign_of_a_decimal_in_parentheses_is_applied(number: str) -> None:
    assert kept(f"offset < -({number})", [b""] * 3) == [0, 1]


@pytest.mark.parametrize(
    ("signs", "sign", "last"),
    [
        ("-{}", "-", "3450"),
        ("abs({})", "", "3450"),
        ("-({})", "-", "34"),
        ("abs(-{})", "", "34"),
        ("-(-({}))", "", "34"),
    ],
)
def test_negative_of_a_wide_decimal_is_rounded_to_34_digits_as_by_spark(signs: str, sign: str, last: str) -> None:
    whole, wide = "123456789012345678901234567890", {"value": pa.struct([("wide", pa.decimal128(38, 6))])}
    (equal,) = parse_condition(f"value.wide = {signs.format(f'{whole}.123450')}", wide).conjuncts
    assert equal.operands[1].value == Decimal(f"{sign}{whole}.12{last}")
    with pytest.raises(ConfigurationError, match="rounds it to 34 digits"):
        parse_condition(f"value.wide = -({'9' * 30}.999999)", wide)


def test_integer_with_a_suffix_is_a_literal_that_prunes_offsets() -> None:
    (source_range,) = pruned(parse_condition("offset IN (3L, 5, 7Y) AND offset < 6S"), [Range("orders", 0, 0, 20)])
    assert (source_range.from_offset, source_range.until_offset) == (3, 6)


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("value.amount = 123456789012345678901234567890.12", [0]),
        ("value.amount = -123456789012345678901234567890.12", [1]),
        ("value.amount >= 123456789012345678901234567890.13", [2]),
        ("value.amount < 0.1", [1]),
    ],
)
def test_decimals_are_compared_with_all_digits(condition: str, expected: list[int]) -> None:
    digits = "123456789012345678901234567890.1"
    amounts = [Decimal(text) for text in (f"{digits}2", f"-{digits}2", f"{digits}3")]
    kind = pa.decimal128(38, 2)
    parsed = parse_condition(condition, {"value": pa.struct([("amount", kind)])})
    rows = rows_where(parsed.conjuncts, lambda node: pa.array(amounts, kind), len(amounts), ansi=True)
    assert rows.nonzero()[0].tolist() == expected


# -- texts --------------------------------------------------------------------------------------------


def test_case_is_changed_once_as_by_sparks_optimizer() -> None:
    keys = ["\u0130x".encode(), b"ix"]
    assert kept("upper(lower(cast(key AS string))) = '\u0130X'", keys) == [0]
    assert kept("upper(cast(key AS string)) ILIKE 'i\u0307x'", keys) == [0]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("a_b", ["a\U0001f600b", "a\u00e9b"]),
        ("a__b", []),
        ("a\U0001f600_", ["a\U0001f600b", "a\U0001f600\U0001f600"]),
        ("a\U0001f600%_", ["a\U0001f600b", "a\U0001f600\U0001f600"]),
        ("a\U0001f600%\U0001f600", ["a\U0001f600\U0001f600"]),
    ],
)
def test_like_counts_code_points(pattern: str, expected: list[str]) -> None:
    texts = ["a\U0001f600b", "a\u00e9b", "a\U0001f600", "a\U0001f600\U0001f600"]
    assert [texts[row] for row in kept(f"key LIKE '{pattern}'", [text.encode() for text in texts])] == expected


# -- many and nested parts ----------------------------------------------------------------------------


@pytest.mark.parametrize("source", ["key", "headers['type']", "cast(key AS string)", "topic"])
def test_in_with_thousands_of_texts_is_one_node(source: str) -> None:
    choices = ", ".join(f"'k{number}'" for number in range(5_000))
    condition = parse_condition(f"{source} IN ({choices})")
    assert [node.op for node in condition.conjuncts] == ["is_in"]
    assert pickle.loads(pickle.dumps(condition)) == condition


def test_in_with_thousands_of_texts_keeps_their_records() -> None:
    choices = ", ".join(f"'k{number}'" for number in range(5_000))
    assert kept(f"key IN ({choices}, X'FF')", [b"k0", b"x", None, b"k4999", b"k5000", b"\xff"]) == [0, 3, 5]
    assert kept(f"key NOT IN ({choices})", [b"k0", b"x", None, b"k4999"]) == [1]


@pytest.mark.parametrize(
    ("part", "joint", "expected"),
    [
        ("key = 'k{}'", "OR", [1, 2]),
        ("key <> 'k{}'", "AND", [0]),
        ("length(key) IN (7.5, {}.5, {})", "OR", [0, 1, 2]),
        ("cast(cast(key AS string) AS int) < {}", "AND", []),
    ],
)
def test_condition_of_hundreds_of_parts_is_pickled_and_evaluated(part: str, joint: str, expected: list[int]) -> None:
    text = f" {joint} ".join(part.format(number, number) for number in range(600))
    condition = pickle.loads(pickle.dumps(parse_condition(text)))
    assert kept(condition.text, [b"x", b"k7", b"k599", None], ansi=False) == expected


def test_deepest_condition_is_pickled_and_evaluated_and_deeper_ones_are_refused() -> None:
    deepest = "NOT " * 98 + "key = 'a'"
    assert pickle.loads(pickle.dumps(parse_condition(deepest))).text == deepest
    assert kept(deepest, [b"a", b"b", None]) == [0]
    for levels in (99, 500, 5_000):
        with pytest.raises(ConfigurationError, match="nested too deeply"):
            parse_condition("NOT " * levels + "key = 'a'")


@pytest.mark.parametrize(
    ("begin", "end"),
    [
        ("abs(", ")"),
        ("length(cast(", " AS string))"),
        ("cast(substring(cast(", " AS string), 1) AS int)"),
        ("cast((1 <=> ", ") AS int)"),
    ],
)
def test_operand_of_nested_functions_is_parsed_and_evaluated_once(
    monkeypatch: pytest.MonkeyPatch, begin: str, end: str
) -> None:
    resolved: list[str] = []
    evaluated: list[Node] = []
    matching = parse._matching

    def resolve(name: str, *arguments: Any) -> str:
        resolved.append(name)
        return matching(name, *arguments)

    def source(node: Node) -> pa.Array:
        evaluated.append(node)
        return pa.array([0, 1, 7], pa.int32())

    monkeypatch.setattr(parse, "_matching", resolve)
    condition = parse_condition(f"{begin * 6}partition{end * 6} = 1")
    rows_where(condition.conjuncts, source, 3, ansi=False)
    assert (len(resolved), len(evaluated)) == (1, 1)


# -- columns and errors -------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", range(1, 8))
def test_field_at_any_depth_is_a_column(depth: int) -> None:
    kind, names = pa.int32(), [f"f{level}" for level in range(depth)]
    for name in reversed(names):
        kind = pa.struct([(name, kind)])
    (conjunct,) = parse_condition(f"value.{'.'.join(names)} = 1", {"value": kind}).conjuncts
    assert conjunct.operands[0].value == ("value", *names)


@pytest.mark.parametrize("text", ["key = = 'a'", "(key = 'a'", "key = 'a')", "key = 'a"])
def test_error_of_the_parser_has_one_line_without_escapes_of_a_terminal(text: str) -> None:
    with pytest.raises(ConfigurationError, match="no condition of Spark") as refused:
        parse_condition(text)
    assert str(refused.value).isprintable()
