"""Apply a condition to the records of a task: before they are built where possible, then to decoded ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from protocol.errors import FilterFailed, UsageError
from protocol.fetch.log_offsets import Range
from protocol.filters.condition import DECODED, HEADERS, OF_TYPE, VALUE_TYPE, Condition, Node
from protocol.filters.evaluate import RowFailed, header_values, literal_column, rows_where
from protocol.filters.pruning import least_timestamp_ms
from protocol.records.decode import RowFilter, RowStage

if TYPE_CHECKING:
    from protocol.cluster.client import Client

_MILLIS, _MICROS = pa.timestamp("ms", tz="UTC"), pa.timestamp("us", tz="UTC")
_STORED = {"timestamp": "timestamp_ms", "timestampType": "timestamp_type"}

Columns = Mapping[str, pa.Array]
Mask = npt.NDArray[np.bool_]


class RecordFilter:
    """Applies a condition; `ansi` is the value of `spark.sql.ansi.enabled`.

    The metrics of `client` count the records that the condition leaves out. `decoded_columns` are the stored columns
    that the conditions on decoded keys and values need; empty without such conditions. `reads_types`: conditions name
    `valueType`.
    """

    def __init__(self, condition: Condition, *, ansi: bool, client: Client | None = None) -> None:
        self.condition = condition
        self._ansi = ansi
        self._client = client
        stages = condition.stages(ansi=ansi)
        self._stages = [conjuncts for cost, conjuncts in stages if cost < OF_TYPE]
        self._of_type = next((conjuncts for cost, conjuncts in stages if cost == OF_TYPE), ())
        self._decoded = next((conjuncts for cost, conjuncts in stages if cost == DECODED), ())
        self._least_timestamp_ms = least_timestamp_ms(condition)
        self.decoded_columns = _stored_columns((*self._of_type, *self._decoded))
        self.reads_types = any(VALUE_TYPE in conjunct.columns for conjunct in (*self._of_type, *self._decoded))

    def of_range(self, source_range: Range, on_left_out: Callable[[int], object] = lambda records: None) -> RowFilter:
        """Return the part of the filter that needs no decoded keys and values, for the records of a range.

        `on_left_out` receives numbers of records that this part leaves out.
        """

        def count(records: int) -> None:
            if records:
                self._count(source_range, records)
                on_left_out(records)

        def stage(conjuncts: tuple[Node, ...]) -> RowStage:
            return RowStage(
                _stored_columns(conjuncts), lambda columns: self._rows(conjuncts, columns, source_range, count)
            )

        return RowFilter([stage(conjuncts) for conjuncts in self._stages], self._least_timestamp_ms, count)

    def rows_of_types(self, columns: Columns, source_range: Range) -> Mask:
        """Return a mask of the rows to keep by their types; `columns` has `valueType`.

        Call it before `decoded_rows`, and only if `reads_types`.
        """
        return self._rows(self._of_type, columns, source_range, partial(self._count, source_range))

    def decoded_rows(self, columns: Columns, source_range: Range) -> Mask:
        """Return a mask of the rows to keep, by the rest of the filter.

        `columns` has the stored columns, and `key` and `value` as they are decoded.
        """
        return self._rows(self._decoded, columns, source_range, partial(self._count, source_range))

    def _rows(
        self, conjuncts: tuple[Node, ...], columns: Columns, source_range: Range, count: Callable[[int], object]
    ) -> Mask:
        offsets = columns["offset"]

        def column(node: Node) -> pa.Array:
            if node.op == "header":
                return header_values(columns[HEADERS], node.value)
            name, *fields = node.value
            if name in ("topic", "partition"):
                return literal_column(getattr(source_range, name), node.type, len(offsets))
            stored = columns[_STORED.get(name, name)]
            if name == "timestamp":
                return _microseconds(stored, source_range)
            return pc.struct_field(stored, fields) if fields else stored

        try:
            selected = rows_where(conjuncts, column, len(offsets), ansi=self._ansi)
        except RowFailed as failed:
            where = f"{source_range.topic}-{source_range.partition}"
            raise FilterFailed(
                f"the filter fails on the record at offset {offsets[failed.row]} of {where}: {failed.text} is a cast, "
                "an overflow or a division by zero that spark.sql.ansi.enabled=true does not allow"
            ) from None
        count(len(selected) - int(selected.sum()))
        return selected

    def _count(self, source_range: Range, records: int) -> None:
        if self._client is not None and records:
            self._client.sensors.filtered[source_range.topic].record((self._client.clock.now_s(), records))


def _stored_columns(conjuncts: tuple[Node, ...]) -> frozenset[str]:
    """Return the columns of `protocol.records.decode` that conjuncts need; the offset is for errors."""
    names = frozenset().union(*(conjunct.columns for conjunct in conjuncts)) - {"topic", "partition"}
    stored = {"value" if name == VALUE_TYPE else _STORED.get(name, name) for name in names}
    return frozenset(stored | {"offset"}) if conjuncts else frozenset()


def _microseconds(column: pa.Array, source_range: Range) -> pa.Array:
    try:
        return column.view(_MILLIS).cast(_MICROS)
    except pa.ArrowInvalid:
        raise UsageError(
            f"a record of {source_range.topic}-{source_range.partition} in offsets {source_range.from_offset} to "
            f"{source_range.until_offset} has a timestamp that is too large for Spark's microseconds, and the filter "
            "names timestamp"
        ) from None
