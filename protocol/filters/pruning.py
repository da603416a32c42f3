"""Leave out ranges of offsets, and record batches, that have no record for which a condition is true."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import pyarrow as pa

from protocol.fetch.log_offsets import Range
from protocol.filters.condition import Condition, Node
from protocol.filters.evaluate import RowFailed, literal_column, rows_where
from protocol.kafka_terms import NO_LEADER_EPOCH

_MIRRORED = {"less": "greater", "less_equal": "greater_equal", "greater": "less", "greater_equal": "less_equal"}
_OF_RANGE = frozenset({"topic", "partition"})


def pruned(condition: Condition, ranges: Sequence[Range]) -> list[Range]:
    """Return the parts of ranges that conditions on topic, partition and offset leave to read."""
    of_range = tuple(conjunct for conjunct in condition.conjuncts if conjunct.columns and conjunct.columns <= _OF_RANGE)
    low, high = _bounds(condition, "offset")
    remaining = []
    for source_range in ranges:
        begin, end = source_range.from_offset, source_range.until_offset
        begin, end = begin if low is None else max(begin, low), end if high is None else min(end, high + 1)
        try:
            # Errors differ between Spark's modes: tasks, which know it, raise them.
            is_true = rows_where(of_range, partial(_constant, source_range), 1, ansi=True)[0]
        except RowFailed:
            is_true = True
        if begin < end and is_true:
            # `until_epoch` is the newest epoch known, at any end; the epoch at another begin is unknown.
            epoch = source_range.from_epoch if begin == source_range.from_offset else NO_LEADER_EPOCH
            remaining.append(replace(source_range, from_offset=begin, until_offset=end, from_epoch=epoch))
    return remaining


def _constant(source_range: Range, node: Node) -> pa.Array:
    return literal_column(getattr(source_range, node.value[0]), node.type, 1)


def least_timestamp_ms(condition: Condition) -> int | None:
    """Return a timestamp that all records of the condition have or exceed, in milliseconds; None if there is none."""
    low, _ = _bounds(condition, "timestamp")
    return None if low is None else low // 1000


def _bounds(condition: Condition, column: str) -> tuple[int | None, int | None]:
    """Return the least and the greatest value of a column of integers for which the condition may be true."""
    low: int | None = None
    high: int | None = None
    for op, value in _comparisons(condition.conjuncts, column):
        if op in ("greater", "greater_equal", "equal"):
            low = max(value + (op == "greater"), value if low is None else low)
        if op in ("less", "less_equal", "equal"):
            high = min(value - (op == "less"), value if high is None else high)
    return low, high


def _comparisons(conjuncts: Sequence[Node], column: str) -> Iterator[tuple[str, int]]:
    for node in conjuncts:
        if node.op == "is_in" and node.operands[0].value == (column,):
            yield "greater_equal", min(node.value)
            yield "less_equal", max(node.value)
        if len(node.operands) != 2:
            continue
        left, right = node.operands
        for operand, literal, op in ((left, right, node.op), (right, left, _MIRRORED.get(node.op, node.op))):
            if operand.op == "column" and operand.value == (column,) and literal.op == "literal":
                yield op, literal.value
