"""Decode record batches into Arrow columns, some thousand rows at a time: the hot path of every consumer.

Combines the steps: `visibility` (which batches), `decompressed_batches`, `record_bounds` (where records end),
`record_fields` (where their fields are), `arrow_numpy.binary_column` (the copies). The only Python object per record is
its end position, and only where `record_bounds` must walk records one by one. Sans-IO. Topics are unknown here: `where`
is only quoted in errors.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from protocol.base.listing import listed
from protocol.errors import Corrupt, ProtocolError, UsageError
from protocol.records.arrow_numpy import binary_column, record_batch, to_arrow
from protocol.records.batch_header import LOG_APPEND_TIME, MAGIC
from protocol.records.decompressed_batches import ROWS_AT_ONCE, DecompressedBatches, decompressed_batches
from protocol.records.legacy import decode_messages
from protocol.records.memory_records import MemoryRecords
from protocol.records.record_bounds import record_bounds, record_bounds_in_parts
from protocol.records.record_fields import HEADERS_TYPE, RecordFields, read_fields, record_headers
from protocol.records.varints import Bytes, Positions
from protocol.records.visibility import visible_batches

SCHEMA = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp_ms", pa.int64()),
        pa.field("timestamp_type", pa.int32()),
        pa.field("headers", HEADERS_TYPE),
    ]
)
"""The schema that `decode` yields.

`timestamp_type` is 0 for CreateTime, 1 for LogAppendTime and -1 for none (magic 0, whose `timestamp_ms` is -1 too).
`headers` is null for a record without headers.
"""
ALL_COLUMNS: tuple[str, ...] = tuple(SCHEMA.names)
DEFAULT_MAX_DECOMPRESSED_BYTES = 128 << 20
# Small enough that the data of a chunk stays in the processor's cache between steps.
_CHUNK_ROWS = 16_000
_CHUNK_BYTES = 16 << 20


@dataclass(frozen=True)
class RowStage:
    """A step of a filter: returns a mask of the rows to keep, from `columns` of them."""

    columns: Collection[str]
    keep: Callable[[Mapping[str, pa.Array]], npt.NDArray[np.bool_]]


@dataclass(frozen=True)
class RowFilter:
    """A filter of rows. Columns that a stage does not need are built only for the rows that it keeps.

    Record batches whose records are all older than `least_timestamp_ms` are skipped. `skipped` is called with the
    number of records of the range in such batches.
    """

    stages: Sequence[RowStage]
    least_timestamp_ms: int | None
    skipped: Callable[[int], None]

    @property
    def columns(self) -> frozenset[str]:
        """The columns that the stages need."""
        return frozenset(name for stage in self.stages for name in stage.columns)


def decode(
    records: MemoryRecords,
    *,
    first_offset: int,
    end_offset: int,
    aborted_transactions: Sequence[Mapping[str, Any]] | None = None,
    columns: Collection[str] = ALL_COLUMNS,
    max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
    check_crc: bool = True,
    where: str = "record batches",
    row_filter: RowFilter | None = None,
) -> Iterator[pa.RecordBatch]:
    """Decode the records in [first_offset, end_offset), in log order, without control records.

    `records`: batches of one partition of a Fetch response.
    `first_offset`, `end_offset`: range of offsets; the end is exclusive.
    `aborted_transactions`: the list of the Fetch response (`producer_id` and `first_offset`, in any order) to read
    committed records only; None or empty to read all.
    `columns`: columns of `SCHEMA` to build; the result has them in the order of `SCHEMA`.
    `max_decompressed_bytes`: maximum decompressed size of a batch.
    `check_crc`: verify the checksum of each batch, also of control batches and aborted transactions.
    `where`: start of error messages, for example "orders-3".
    `row_filter`: rows to leave out.
    Yields batches of about 16,000 rows (fewer if records are large), never empty. It owns its memory.
    Raises `Corrupt` or `Truncated` or `DecompressedTooLarge`: a batch is invalid; the error names `where` and the
    batch's offset. The batches before it have been yielded. `UsageError`: a column is not in `SCHEMA`.
    """
    schema = _schema(tuple(columns))
    # Before header fields decide what is visible. A batch that is skipped may be a damaged one, too.
    records = records.before(end_offset)
    wrong = records.first_wrong_checksum(first_offset) if check_crc else None
    valid = records if wrong is None else records.first(wrong)
    batches = visible_batches(valid, first_offset, end_offset, aborted_transactions, where)
    if row_filter is not None and row_filter.least_timestamp_ms is not None:
        batches = _newer(valid, batches, row_filter, row_filter.least_timestamp_ms, first_offset, end_offset)
    stages = row_filter.stages if row_filter is not None else ()

    def read(unpacked: DecompressedBatches, done: int = 0) -> Iterator[tuple[int, pa.RecordBatch | None]]:
        """Yield rows after the first `done` ones, with the number of rows read so far."""
        headers, before = records.headers[unpacked.batches], 0
        for starts, ends, batch_of_row in _bounds_and_batches(unpacked):
            for rows in _chunk_slices(starts, ends, max(0, done - before)):
                chunk = _Chunk(unpacked.data, headers, batch_of_row[rows], starts[rows], ends[rows])
                yield before + rows.stop, chunk.record_batch(schema, first_offset, end_offset, stages)
            before += len(starts)

    for is_legacy, run in records.split_by_format(batches):
        if is_legacy:
            messages = decode_messages(
                records.buffer,
                records.headers["position"][run].tolist(),
                schema if row_filter is None else _schema((*columns, *row_filter.columns)),
                first_offset=first_offset,
                end_offset=end_offset,
                max_decompressed_bytes=max_decompressed_bytes,
                check_crc=check_crc,
                where=where,
            )
            yield from messages if row_filter is None else _kept(messages, schema, stages)
            continue
        for unpacked in decompressed_batches(records, run, max_decompressed_bytes, where):
            done = 0
            try:
                for done, batch in read(unpacked):  # noqa: B007 (used if the next step fails)
                    if batch is not None:
                        yield batch
            except ProtocolError as error:
                invalid = _first_invalid_batch(unpacked, read)
                if invalid:
                    yield from (batch for _, batch in read(unpacked.first(invalid), done) if batch is not None)
                raise records.with_batch_offset(error, int(unpacked.batches[invalid]), where) from error
    if wrong is not None:
        records.verify_checksum(wrong, where)


@lru_cache(maxsize=16)
def _schema(columns: tuple[str, ...]) -> pa.Schema:
    """Return the fields of `SCHEMA` with these names; raise `UsageError` for other names."""
    unknown = set(columns) - set(ALL_COLUMNS)
    if unknown:
        raise UsageError(f"unknown columns: {listed(sorted(unknown))}; known are {', '.join(ALL_COLUMNS)}")
    return pa.schema([field for field in SCHEMA if field.name in columns])


def _newer(
    records: MemoryRecords,
    batches: npt.NDArray[np.int64],
    row_filter: RowFilter,
    least_timestamp_ms: int,
    first_offset: int,
    end_offset: int,
) -> npt.NDArray[np.int64]:
    """Return the batches that may have records of this time or later. Headers of messages have no timestamps."""
    headers = records.headers[batches]
    newer = (headers["max_timestamp_ms"] >= least_timestamp_ms) | (headers["magic"] != MAGIC)
    begins, ends = np.maximum(headers["base_offset"], first_offset), np.minimum(headers["last_offset"] + 1, end_offset)
    row_filter.skipped(int(np.minimum(headers["count"], ends - begins)[~newer].sum()))
    kept: npt.NDArray[np.int64] = batches[newer]
    return kept


def _kept(
    messages: Iterator[pa.RecordBatch], schema: pa.Schema, stages: Sequence[RowStage]
) -> Iterator[pa.RecordBatch]:
    for batch in messages:
        for stage in stages:
            mask = stage.keep(dict(zip(batch.schema.names, batch.columns, strict=True)))
            batch = batch.take(to_arrow(np.flatnonzero(mask)))
        if batch.num_rows:
            yield record_batch([batch.column(name) for name in schema.names], batch.num_rows, schema)


def _bounds_and_batches(unpacked: DecompressedBatches) -> Iterator[tuple[Positions, Positions, Positions]]:
    """Yield starts and ends of some thousand records at a time, and the index of each record's batch."""
    if len(unpacked.batches) > 1:
        starts, ends = record_bounds(unpacked.data, unpacked.begins, unpacked.ends, unpacked.counts)
        yield starts, ends, np.repeat(np.arange(len(unpacked.counts)), unpacked.counts)
        return
    begin, end, count = int(unpacked.begins[0]), int(unpacked.ends[0]), int(unpacked.counts[0])
    for starts, ends in record_bounds_in_parts(unpacked.data, begin, end, count, ROWS_AT_ONCE):
        yield starts, ends, np.zeros(len(starts), np.int64)


def _chunk_slices(starts: Positions, ends: Positions, first: int) -> Iterator[slice]:
    """Slice the rows from `first` on: about `_CHUNK_ROWS`, at most `_CHUNK_BYTES` unless a single record is larger."""
    # Equal slices instead of full ones and a small rest; -(-a // b) rounds up.
    rows = -(-len(starts) // max(1, round(len(starts) / _CHUNK_ROWS)))
    while first < len(starts):
        until = int(np.searchsorted(ends, starts[first] + _CHUNK_BYTES, side="right"))
        until = max(min(until, first + rows), first + 1)
        yield slice(first, until)
        first = until


def _first_invalid_batch(unpacked: DecompressedBatches, read: Callable[[DecompressedBatches], Iterator[object]]) -> int:
    """Return the index in `unpacked` of the first batch whose records cannot be read."""
    for index in range(len(unpacked.batches)):
        try:
            for _ in read(unpacked.only(index)):
                pass
        except ProtocolError:
            return index
    return 0


@dataclass
class _Chunk:
    """Some thousand records: their positions, and the headers of their batches."""

    data: Bytes
    headers: npt.NDArray[Any]
    batch_of_row: Positions
    starts: Positions
    ends: Positions

    def record_batch(
        self, schema: pa.Schema, first_offset: int, end_offset: int, stages: Sequence[RowStage]
    ) -> pa.RecordBatch | None:
        """Build the columns of `schema` for the records in [first_offset, end_offset); None if there are none."""
        fields = read_fields(self.data, self.starts, self.ends)
        offsets = self._offsets(fields)
        low, high = self.headers["base_offset"].min(), self.headers["last_offset"].max()
        if low < first_offset or high >= end_offset:
            rows = np.flatnonzero((offsets >= first_offset) & (offsets < end_offset))
            if not len(rows):
                return None
            fields, offsets, self.batch_of_row = fields.select(rows), offsets[rows], self.batch_of_row[rows]
        built: dict[str, pa.Array] = {}
        for stage in stages:
            built |= {name: self._column(name, fields, offsets) for name in stage.columns if name not in built}
            mask = stage.keep(built)
            if not mask.all():
                rows = np.flatnonzero(mask)
                if not len(rows):
                    return None
                fields, offsets, self.batch_of_row = fields.select(rows), offsets[rows], self.batch_of_row[rows]
                built = {name: column.take(to_arrow(rows)) for name, column in built.items()}
        names = [name for name in schema.names if name not in built]
        built |= {name: self._column(name, fields, offsets) for name in names}
        return record_batch([built[name] for name in schema.names], len(offsets), schema)

    def _offsets(self, fields: RecordFields) -> npt.NDArray[np.int64]:
        offsets: npt.NDArray[np.int64] = self.headers["base_offset"].take(self.batch_of_row) + fields.offset_delta
        last = self.headers["last_offset"].take(self.batch_of_row)
        if fields.offset_delta.min() < 0 or (offsets > last).any():
            raise Corrupt("a record's offset is outside its batch")
        return offsets

    def _column(self, name: str, fields: RecordFields, offsets: npt.NDArray[np.int64]) -> pa.Array:
        if name == "key":
            return binary_column(self.data, fields.key_at, fields.key_length)
        if name == "value":
            return binary_column(self.data, fields.value_at, fields.value_length)
        if name == "offset":
            return to_arrow(offsets)
        if name == "timestamp_ms":
            return to_arrow(self._timestamps(fields))
        if name == "timestamp_type":
            return to_arrow(self._log_append_time.astype(np.int32).take(self.batch_of_row))
        return record_headers(self.data, fields.headers_at, fields.header_count, fields.ends)

    @property
    def _log_append_time(self) -> npt.NDArray[np.bool_]:
        stamped: npt.NDArray[np.bool_] = (self.headers["attributes"] & LOG_APPEND_TIME) != 0
        return stamped

    def _timestamps(self, fields: RecordFields) -> npt.NDArray[np.int64]:
        """Return each record's timestamp: the broker's applies to a whole batch, the producer's is per record."""
        log_append = self._log_append_time
        base = np.where(log_append, self.headers["max_timestamp_ms"], self.headers["first_timestamp_ms"])
        delta = fields.timestamp_delta
        if log_append.any():
            delta = np.where(log_append.take(self.batch_of_row), 0, delta)
        timestamps: npt.NDArray[np.int64] = base.take(self.batch_of_row) + delta
        return timestamps
