"""Evaluate the nodes of a condition over Arrow columns, with Spark's results. Imported by tasks with a filter only.

Strings and binary values are binary arrays, timestamps are int64 microseconds, dates int32 days.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from decimal import Context
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from protocol.filters import texts
from protocol.filters.condition import Node
from protocol.records.arrow_numpy import (
    binaries,
    nullable_integers,
    numpy_type,
    take_rows,
    to_arrow,
    to_numpy,
    valid,
)

Mask = npt.NDArray[np.bool_]
Numbers = npt.NDArray[Any]

_MICROS = 1_000_000
# Python's default context rounds to 28 digits.
_EXACT = Context(prec=38)
_INTEGER = re.compile(rb"[+-]?(?:\d+(?:\.\d*)?|\.\d*)")
_EXACT_INTEGER = re.compile(rb"[+-]?\d+")
_REAL = re.compile(rb"([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)[dDfF]?")
_HEX_REAL = re.compile(rb"([+-]?0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][+-]?\d+)[dDfF]?")
_SPECIAL_REALS = {
    **dict.fromkeys((b"inf", b"+inf", b"infinity", b"+infinity"), np.inf),
    **dict.fromkeys((b"-inf", b"-infinity"), -np.inf),
    b"nan": np.nan,
}
_JAVA_NANS = (b"NaN", b"+NaN", b"-NaN")
_TRUE, _FALSE = (b"t", b"true", b"y", b"yes", b"1"), (b"f", b"false", b"n", b"no", b"0")
# Spark trims these from texts that it casts: white space and control characters.
_TRIMMED = bytes([*range(0x21), 0x7F])


class RowFailed(Exception):
    """A row that Spark's ANSI mode fails on: its number, and the operation."""

    def __init__(self, row: int, text: str) -> None:
        super().__init__(text)
        self.row = row
        self.text = text


def rows_where(conjuncts: tuple[Node, ...], source: Callable[[Node], pa.Array], count: int, *, ansi: bool) -> Mask:
    """Return a mask of the rows for which all conjuncts are true.

    `source` returns the column of `count` rows for a node "column" or "header". With `ansi`, as with
    `spark.sql.ansi.enabled`, a failed cast, an overflow or a division by zero raises `RowFailed` for the first row that
    fails.
    """
    evaluation = _Evaluation(source, count, ansi=ansi)
    selected = np.ones(count, np.bool_)
    for conjunct in conjuncts:
        evaluation.guard = selected
        selected = selected & _is_true(evaluation.array(conjunct))
    if evaluation.failed:
        raise RowFailed(*min(evaluation.failed))
    return selected


class _Evaluation:
    """Evaluates nodes over some rows. Each operation has a method of its name.

    `guard`: mask of the rows that are evaluated: Spark does not look at the right of `false AND`.
    `failed`: rows that fail in ANSI mode, and the operation.
    """

    def __init__(self, source: Callable[[Node], pa.Array], count: int, *, ansi: bool) -> None:
        self._source = source
        self._count = count
        self._ansi = ansi
        self.guard = np.ones(count, np.bool_)
        self.failed: list[tuple[int, str]] = []

    def array(self, node: Node) -> pa.Array:
        """Return the values of a node, for all rows."""
        if node.op == "literal":
            return literal_column(node.value, node.type, self._count)
        if node.op in ("column", "header"):
            return plain(self._source(node))
        if node.op in _COMPARISONS:
            return self._compared(node)
        if node.op in _TEXTS:
            return _TEXTS[node.op](self.array(node.operands[0]), node.value)
        if node.op in _ARITHMETIC:
            return self._arithmetic(node, *_ARITHMETIC[node.op])
        if node.op in _DIVISIONS:
            return self._division(node, _DIVISIONS[node.op])
        if node.op in _SIGNS:
            return self._signed(node, _SIGNS[node.op])
        result: pa.Array = getattr(self, node.op)(node)
        return result

    # -- conditions ---------------------------------------------------------------------------

    def and_(self, node: Node) -> pa.Array:
        return self._guarded(node, pc.and_kleene, lambda left: ~_is_true(pc.invert(left)))

    def or_(self, node: Node) -> pa.Array:
        return self._guarded(node, pc.or_kleene, lambda left: ~_is_true(left))

    def _guarded(self, node: Node, combine: Callable[..., pa.Array], undecided: Callable[[pa.Array], Mask]) -> pa.Array:
        result, guard = self.array(node.operands[0]), self.guard
        for operand in node.operands[1:]:
            if self._ansi and operand.may_fail:
                self.guard = guard & undecided(result)
            result, self.guard = combine(result, self.array(operand)), guard
        return result

    def coalesce(self, node: Node) -> pa.Array:
        result, guard = self.array(node.operands[0]), self.guard
        for operand in node.operands[1:]:
            missing = ~valid(result)
            self.guard = guard & missing
            result = pc.if_else(_booleans(missing), self.array(operand), result)
        self.guard = guard
        return result

    def not_(self, node: Node) -> pa.Array:
        return pc.invert(self.array(node.operands[0]))

    def is_null(self, node: Node) -> pa.Array:
        return pc.is_null(self.array(node.operands[0]))

    def is_in(self, node: Node) -> pa.Array:
        column = self.array(node.operands[0])
        return _masked(pc.is_in(column, value_set=_literals(node.value, node.operands[0].type)), valid(column))

    def _compared(self, node: Node) -> pa.Array:
        left, right = node.operands
        if right.op == "literal" and not pa.types.is_floating(left.type):
            kernel, _ = _COMPARISONS[node.op]
            return kernel(self.array(left), _literals([right.value], right.type)[0])
        return _compare(node.op, *self._pair(left, right))

    def null_safe_equal(self, node: Node) -> pa.Array:
        left, right = map(self.array, node.operands)
        return _booleans(_is_true(_compare("equal", left, right)) | ~(valid(left) | valid(right)))

    # -- numbers ------------------------------------------------------------------------------

    def _pair(self, first: Node, second: Node) -> tuple[pa.Array, pa.Array]:
        """Return the values of two nodes; Spark does not evaluate the second where the first is null."""
        column, guard = self.array(first), self.guard
        if self._ansi and second.may_fail:
            self.guard = guard & valid(column)
        other_column, self.guard = self.array(second), guard
        return column, other_column

    def _fail(self, node: Node, failed: Mask) -> None:
        """Note the first row that fails; without ANSI mode none does."""
        if self._ansi and (rows := np.flatnonzero(failed & self.guard)).size:
            self.failed.append((int(rows[0]), node.text))

    def _arithmetic(self, node: Node, function: Callable[..., Numbers], overflows: Callable[..., Mask]) -> pa.Array:
        (left, present), (right, also_present) = map(_numbers, self._pair(*node.operands))
        with np.errstate(all="ignore"):
            result = function(left, right)
            if self._ansi and left.dtype.kind == "i":
                self._fail(node, overflows(left, right, result) & present & also_present)
        return _masked(to_arrow(result), present & also_present)

    def _division(self, node: Node, function: Callable[[Numbers, Numbers], Numbers]) -> pa.Array:
        (right, also_present), (left, present) = map(_numbers, self._pair(*reversed(node.operands)))
        is_zero, present = right == 0, present & also_present
        self._fail(node, is_zero & present)
        if left.dtype.kind == "i":
            # The processor traps on the smallest number divided by -1; the rest is 0 for 1, too.
            right = np.where(is_zero | (right == -1), right.dtype.type(1), right)
        with np.errstate(all="ignore"):
            return _masked(to_arrow(function(left, right)), present & ~is_zero)

    def _signed(self, node: Node, function: Callable[[Numbers], Numbers]) -> pa.Array:
        numbers, present = _numbers(self.array(node.operands[0]))
        if numbers.dtype.kind == "i":
            self._fail(node, (numbers == np.iinfo(numbers.dtype).min) & present)
        with np.errstate(all="ignore"):
            return _masked(to_arrow(function(numbers)), present)

    # -- casts --------------------------------------------------------------------------------

    def cast(self, node: Node) -> pa.Array:
        column, old, new = self.array(node.operands[0]), node.value, node.type
        if pa.types.is_binary(new) or (pa.types.is_string(new) and pa.types.is_binary(old)):
            return column
        if pa.types.is_string(old):
            return self._parsed(node, column)
        if pa.types.is_string(new):
            return column.cast(pa.string()).view(pa.binary())
        if pa.types.is_decimal(new):
            return column.cast(new)
        numbers, present = to_numpy(column.cast(pa.int8()) if pa.types.is_boolean(old) else column), valid(column)
        if pa.types.is_boolean(new):
            return _masked(_booleans(numbers != 0), present)
        with np.errstate(all="ignore"):
            return _masked(to_arrow(self._converted(node, numbers, present)), present)

    def _converted(self, node: Node, numbers: Numbers, present: Mask) -> Numbers:
        """Convert numbers, and timestamps in microseconds."""
        old, new = node.value, node.type
        if pa.types.is_timestamp(old):
            return numbers // _MICROS if pa.types.is_integer(new) else numbers / _MICROS
        if pa.types.is_timestamp(new):
            # Java's SECONDS.toMicros saturates.
            limit = np.iinfo(np.int64).max // _MICROS
            wide = numbers.astype(np.int64)
            ends = np.where(wide > 0, np.iinfo(np.int64).max, np.iinfo(np.int64).min)
            return np.where((wide <= limit) & (wide >= -limit), wide * _MICROS, ends)
        target = numpy_type(new)
        if target.kind == "f":
            return numbers.astype(target)
        bounds = np.iinfo(target)
        if numbers.dtype.kind == "f":
            numbers = numbers.astype(np.float64)
            fits = (np.floor(numbers) <= float(bounds.max)) & (np.ceil(numbers) >= float(bounds.min))
            self._fail(node, ~fits & present)
            return _java_integers(numbers, target)
        self._fail(node, ((numbers > bounds.max) | (numbers < bounds.min)) & present)
        return numbers.astype(target)

    def _parsed(self, node: Node, column: pa.Array) -> pa.Array:
        """Parse texts as numbers or booleans; invalid ones are null, or fail in ANSI mode."""
        raw = [None if text is None else text.strip(_TRIMMED) for text in column.to_pylist()]
        if pa.types.is_boolean(node.type):
            values = [None if text is None else _boolean(text.lower()) for text in raw]
            numbers = nullable_integers(values, np.int8)
        elif pa.types.is_floating(node.type):
            reals = [None if text is None else _real(text) for text in raw]
            present = np.array([real is not None for real in reals], np.bool_)
            numbers = _masked(to_arrow(np.array([real or 0.0 for real in reals], np.float64)), present)
        else:
            dtype: Any = numpy_type(node.type).type
            pattern, bounds = _EXACT_INTEGER if self._ansi else _INTEGER, np.iinfo(dtype)
            values = [None if text is None else _integer(text, pattern, bounds) for text in raw]
            numbers = nullable_integers(values, dtype)
        self._fail(node, valid(column) & ~valid(numbers))
        return numbers.cast(pa.bool_()) if pa.types.is_boolean(node.type) else numbers


def _numbers(column: pa.Array) -> tuple[Numbers, Mask]:
    return to_numpy(column), valid(column)


def _compare(op: str, left: pa.Array, right: pa.Array) -> pa.Array:
    kernel, of_order = _COMPARISONS[op]
    if not pa.types.is_floating(left.type):
        return kernel(left, right)
    (a, present_a), (b, present_b) = _numbers(left), _numbers(right)
    # In Spark, NaN equals NaN and is larger than all other numbers.
    order = np.where(np.isnan(a), np.where(np.isnan(b), 0, 1), np.where(np.isnan(b), -1, (a > b) * 1 - (a < b)))
    return _masked(_booleans(of_order(order, 0)), present_a & present_b)


def _product_overflows(left: Numbers, right: Numbers, product: Numbers) -> Mask:
    divisor = np.where((right == 0) | (right == -1), right.dtype.type(1), right)
    wrong = (right != 0) & (right != -1) & ((product // divisor != left) | (product % divisor != 0))
    overflows: Mask = wrong | ((right == -1) & (left == np.iinfo(left.dtype).min))
    return overflows


def _positive_remainder(left: Numbers, right: Numbers) -> Numbers:
    if left.dtype.itemsize < 4:  # Java adds small integers as int: no sum overflows
        return _positive_remainder(left.astype(np.int32), right.astype(np.int32)).astype(left.dtype)
    remainder = np.fmod(left, right)
    positive: Numbers = np.where(remainder < 0, np.fmod(remainder + right, right), remainder)
    return positive


# Arrow's kernel, and the same for an order of floats.
_COMPARISONS: dict[str, tuple[Callable[..., pa.Array], Callable[[Any, Any], Mask]]] = {
    "equal": (pc.equal, operator.eq),
    "not_equal": (pc.not_equal, operator.ne),
    "less": (pc.less, operator.lt),
    "less_equal": (pc.less_equal, operator.le),
    "greater": (pc.greater, operator.gt),
    "greater_equal": (pc.greater_equal, operator.ge),
}
_TEXTS: dict[str, Callable[[pa.Array, Any], pa.Array]] = {
    "starts_with": lambda column, text: pc.starts_with(column, pattern=text.encode()),
    "ends_with": lambda column, text: pc.ends_with(column, pattern=text.encode()),
    "contains": lambda column, text: pc.match_substring(column, pattern=text.encode()),
    "matches": lambda column, pattern: texts.matches(column, pattern).cast(pa.bool_()),
    "instr": texts.position,
    "length": lambda column, _: texts.length(column),
    "byte_length": lambda column, _: pc.binary_length(column),
    "lower": lambda column, _: texts.change_case(column, upper=False),
    "upper": lambda column, _: texts.change_case(column, upper=True),
    "substring": lambda column, bounds: texts.substring(column, *bounds),
    "byte_substring": lambda column, bounds: texts.byte_substring(column, *bounds),
}
# The function, and a mask of the integers for which it overflows.
_ARITHMETIC: dict[str, tuple[Callable[..., Numbers], Callable[[Numbers, Numbers, Numbers], Mask]]] = {
    "add": (np.add, lambda a, b, total: ((a ^ total) & (b ^ total)) < 0),
    "subtract": (np.subtract, lambda a, b, difference: ((a ^ b) & (a ^ difference)) < 0),
    "multiply": (np.multiply, _product_overflows),
}
_DIVISIONS: dict[str, Callable[[Numbers, Numbers], Numbers]] = {
    "divide": np.divide,
    "remainder": np.fmod,
    "pmod": _positive_remainder,
}
_SIGNS: dict[str, Callable[[Numbers], Numbers]] = {"negate": np.negative, "abs_": np.abs}


def plain(column: pa.Array) -> pa.Array:
    """Return a column in the types of this module."""
    if pa.types.is_string(column.type):
        return column.view(pa.binary())
    if pa.types.is_timestamp(column.type):
        return column.cast(pa.timestamp("us", tz="UTC")).view(pa.int64())
    if pa.types.is_date32(column.type):
        return column.view(pa.int32())
    return column


def header_values(headers: pa.Array, name: str) -> pa.Array:
    """Return the value of each record's last header of this name; null without one."""
    pairs, last = headers.values, np.full(len(headers), -1, np.int64)
    if headers.null_count < len(headers):
        ends = np.frombuffer(headers.buffers()[1], np.int32)[headers.offset : headers.offset + len(headers) + 1]
        at = np.flatnonzero(_is_true(pc.equal(plain(pairs.field(0)), binaries([name.encode()])[0])))
        at = at[(at >= ends[0]) & (at < ends[-1])]
        # Later ones of a record overwrite earlier ones.
        last[np.searchsorted(ends, at, side="right") - 1] = at
    return take_rows(pairs.field(1), last)


def literal_column(value: object, kind: pa.DataType, count: int) -> pa.Array:
    """Return a value, repeated."""
    return pa.repeat(_literals([value], kind)[0], count)


def _literals(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return values of literals without `pa.array` and `pa.scalar`, which import pandas."""
    if pa.types.is_string(kind):
        return binaries([value.encode() for value in values])
    if pa.types.is_binary(kind):
        return binaries(values)
    if pa.types.is_boolean(kind):
        return _booleans(np.array(values))
    if pa.types.is_decimal(kind):
        unscaled = [int(value.scaleb(kind.scale, _EXACT)).to_bytes(16, "little", signed=True) for value in values]
        return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(b"".join(unscaled))])
    return to_arrow(np.array(values, numpy_type(_PLAIN_TYPES.get(kind, kind))))


_PLAIN_TYPES = {pa.timestamp("us", tz="UTC"): pa.int64(), pa.date32(): pa.int32()}


def _booleans(mask: npt.NDArray[Any]) -> pa.Array:
    return pa.Array.from_buffers(pa.bool_(), len(mask), [None, pa.py_buffer(np.packbits(mask, bitorder="little"))])


def _is_true(booleans: pa.Array) -> Mask:
    """Return a mask of the values that are true, not null."""
    bits = np.unpackbits(
        np.frombuffer(booleans.buffers()[1], np.uint8), count=booleans.offset + len(booleans), bitorder="little"
    )
    return bits[booleans.offset :].view(np.bool_) & valid(booleans)


def _masked(column: pa.Array, present: Mask) -> pa.Array:
    """Return the column with null where it is not present."""
    if present.all():
        return column
    validity = pa.py_buffer(np.packbits(present, bitorder="little"))
    return pa.Array.from_buffers(column.type, len(column), [validity, *column.buffers()[1:]])


def _java_integers(numbers: Numbers, target: np.dtype[Any]) -> Numbers:
    """Convert floats as Java does: to int or long with saturation, then by cutting bits; NaN to 0."""
    wide = np.dtype(np.int64) if target.itemsize == 8 else np.dtype(np.int32)
    bounds = np.iinfo(wide)
    real = np.nan_to_num(numbers, nan=0.0, posinf=np.inf, neginf=-np.inf)
    inside = np.where((real >= float(bounds.max)) | (real <= float(bounds.min)), 0.0, real).astype(wide)
    saturated = np.where(real >= float(bounds.max), bounds.max, np.where(real <= float(bounds.min), bounds.min, inside))
    return saturated.astype(wide).astype(target)


def _integer(text: bytes, pattern: re.Pattern[bytes], bounds: np.iinfo[Any]) -> int | None:
    if not pattern.fullmatch(text):
        return None
    digits = text.partition(b".")[0].lstrip(b"+-0")
    # 20 digits are out of every range; Python raises for more than 4,300.
    number = int(digits[:20] or b"0") * (-1 if text.startswith(b"-") else 1)
    return number if bounds.min <= number <= bounds.max else None


def _real(text: bytes) -> float | None:
    if decimal := _REAL.fullmatch(text):
        return float(decimal[1])
    if hexadecimal := _HEX_REAL.fullmatch(text):
        try:
            return float.fromhex(hexadecimal[1].decode())
        except OverflowError:
            return -np.inf if text.startswith(b"-") else np.inf
    return np.nan if text in _JAVA_NANS else _SPECIAL_REALS.get(text.lower())


def _boolean(text: bytes) -> int | None:
    return 1 if text in _TRUE else 0 if text in _FALSE else None
