"""Filters of records by key, value and headers, on columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from protocol.fetch.log_offsets import Range
from protocol.kafka_terms import TopicPartition


@dataclass(frozen=True)
class RecordFilter:
    """Conditions that a record must all fulfil.

    `key`: the key is this one.
    `pattern`: the value contains a match of this regular expression (RE2).
    `headers`: the record has a header of this name and value; None is any value.
    """

    key: bytes | None = None
    pattern: str | None = None
    headers: Sequence[tuple[str, bytes | None]] = ()

    def __post_init__(self) -> None:
        """Raise `ValueError` for a wrong regular expression."""
        if self.pattern is not None:
            try:
                pc.match_substring_regex(pa.array([b""]), self.pattern.encode())
            except pa.ArrowInvalid as error:
                raise ValueError(str(error)) from error

    @property
    def columns(self) -> frozenset[str]:
        """Columns that the filter reads."""
        conditions = {"key": self.key is not None, "value": self.pattern is not None, "headers": bool(self.headers)}
        return frozenset(name for name, used in conditions.items() if used)

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows that fulfil all conditions."""
        masks = []
        if self.key is not None:
            masks.append(pc.equal(batch.column("key"), pa.scalar(self.key, pa.binary())))
        if self.pattern is not None:
            masks.append(pc.match_substring_regex(batch.column("value"), self.pattern.encode()))
        masks += [_has_header(batch.column("headers"), name, value) for name, value in self.headers]
        for mask in masks[1:]:
            masks[0] = pc.and_(masks[0], mask)
        # Null, of a record without a key or value, is false.
        return batch.filter(masks[0]) if masks else batch


class RecordCondition:
    """A condition in Spark's SQL on stored records.

    Raises `ConfigurationError` if sqlglot is not installed, or the text is not in the language of filters.
    """

    def __init__(self, text: str) -> None:
        # Only this option imports the parser.
        from protocol.filters import record_filter
        from protocol.filters.parse import parse_condition

        self._filter = record_filter.RecordFilter(parse_condition(text), ansi=True)

    @property
    def columns(self) -> frozenset[str]:
        """Columns that the condition reads."""
        return self._filter.of_range(Range("", 0, 0, 0)).columns

    def apply(self, key: TopicPartition, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the records of a partition for which the condition is true."""
        for stage in self._filter.of_range(Range(*key, 0, 0)).stages:
            columns = dict(zip(batch.schema.names, batch.columns, strict=True))
            batch = batch.filter(pa.array(stage.keep(columns)))
        return batch


def _has_header(headers: pa.Array, name: str, value: bytes | None) -> pa.Array:
    rows, pairs = pc.list_parent_indices(headers), pc.list_flatten(headers)
    matches = pc.equal(pairs.field("key"), name)
    if value is not None:
        matches = pc.and_(matches, pc.equal(pairs.field("value"), pa.scalar(value, pa.binary())))
    mask = np.zeros(len(headers), np.bool_)
    mask[rows.filter(matches).to_numpy()] = True
    return pa.array(mask)
