"""The parsed form of a condition: made where a query is planned, pickled for its tasks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

# Columns of the source that a condition may name, with their types; `key` and `value` unless they are decoded.
COLUMN_TYPES = {
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    "key": pa.binary(),
    "value": pa.binary(),
}
HEADERS = "headers"
# A column is read only for the rows that conditions on columns of lower cost have kept.
_COSTS = {"topic": 0, "partition": 0, "offset": 0, "timestamp": 0, "timestampType": 0, "key": 1, HEADERS: 2, "value": 3}
# `valueType` needs only the schema id of a value.
VALUE_TYPE = "valueType"
_COSTS[VALUE_TYPE] = OF_TYPE = 4
DECODED = 5


@dataclass(frozen=True)
class Node:
    """An operation of a condition, with the type of its result in Spark.

    `op` is "column", "header", "literal", or an operation of `evaluate`; `text` is the operation as SQL, if it may fail
    on a row. `value` has the constants of the operation:

    * literal: the value; of a timestamp microseconds, of a date days
    * column: the names from the column to the field; header: its name
    * cast: the type before it
    * is_in: the values of the list
    * matches: the compiled pattern
    * substring, byte_substring: start and length, None without one
    * starts_with, ends_with, contains, instr: the text
    """

    op: str
    type: pa.DataType
    operands: tuple[Node, ...] = ()
    value: Any = None
    text: str = ""

    def nodes(self) -> Iterator[Node]:
        """Yield this node and all below it."""
        yield self
        for operand in self.operands:
            yield from operand.nodes()

    @cached_property
    def columns(self) -> frozenset[str]:
        """The columns of the source that the node reads."""
        sources = [node for node in self.nodes() if node.op in ("column", "header")]
        return frozenset(HEADERS if node.op == "header" else node.value[0] for node in sources)

    @cached_property
    def may_fail(self) -> bool:
        """True if Spark in ANSI mode may raise an error for a row."""
        return any(node.text for node in self.nodes())


@dataclass(frozen=True)
class Condition:
    """A condition on records. A row is kept if all `conjuncts` are true for it.

    `text` is the SQL, for messages. `decoded` has "key" and "value", where the condition reads what they are decoded
    to.
    """

    text: str
    conjuncts: tuple[Node, ...]
    decoded: frozenset[str] = frozenset()

    @property
    def columns(self) -> frozenset[str]:
        """The columns of the source that the condition reads."""
        return frozenset().union(*(conjunct.columns for conjunct in self.conjuncts))

    def fields(self, part: str) -> tuple[str, ...]:
        """Return the fields of a decoded key or value that the condition reads; empty if it reads the whole."""
        paths = [node.value for conjunct in self.conjuncts for node in conjunct.nodes() if node.op == "column"]
        of_part = [path for path in paths if path[0] == part]
        return tuple(sorted({path[1] for path in of_part})) if all(len(path) > 1 for path in of_part) else ()

    def stages(self, *, ansi: bool) -> list[tuple[int, tuple[Node, ...]]]:
        """Return the conjuncts by the cost of their columns, cheapest first.

        Spark evaluates conjuncts from left to right. In ANSI mode a conjunct that may fail keeps its place: earlier
        ones have dropped rows, later ones run after it.
        """
        stages: dict[int, list[Node]] = {}
        least = highest = 0
        for conjunct in self.conjuncts:
            costs = [DECODED if name in self.decoded - {VALUE_TYPE} else _COSTS[name] for name in conjunct.columns]
            cost = max([highest if ansi and conjunct.may_fail else least, *costs])
            highest = max(highest, cost)
            if ansi and (least or conjunct.may_fail):
                least = cost
            stages.setdefault(cost, []).append(conjunct)
        return [(cost, tuple(stages[cost])) for cost in sorted(stages)]
