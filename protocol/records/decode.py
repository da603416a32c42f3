"""Record batches to Arrow columns, some thousand rows at a time: the hot path of every consumer.

Puts the steps together: `visibility` (which batches), `slabs` (checked, decompressed), `starts` (where records end),
`fields` (where their fields are), `columns` (the copies). No Python object is made per record but the link of the
chain in `starts`. Knows no sockets and no topics: `where` is only quoted in errors.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from protocol.errors import Corrupt, ProtocolError, UsageError
from protocol.records.arrow_numpy import to_arrow
from protocol.records.columns import slices
from protocol.records.fields import Fields, read_fields
from protocol.records.header import LOG_APPEND_TIME
from protocol.records.header_column import HEADERS_TYPE, header_lists
from protocol.records.legacy import decode_messages
from protocol.records.scan import Scan
from protocol.records.slabs import SLAB_ROWS, Slab, slabs
from protocol.records.starts import bounds_of_batches, stretches
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
"""What `decode` yields. timestamp_type: 0 is CreateTime, 1 is LogAppendTime, -1 that there is none (magic 0, where
timestamp_ms is -1 too); headers is null without headers."""
ALL_COLUMNS: tuple[str, ...] = tuple(SCHEMA.names)
DEFAULT_MAX_DECOMPRESSED_BYTES = 128 << 20
# Few enough that what belongs to them stays in the processor's cache from one step to the next.
_CHUNK_ROWS = 16_000
_CHUNK_BYTES = 16 << 20


def decode(
    scan: Scan,
    *,
    first_offset: int,
    end_offset: int,
    aborted_transactions: Sequence[Mapping[str, Any]] | None = None,
    columns: Collection[str] = ALL_COLUMNS,
    max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
    check_crc: bool = True,
    where: str = "record batches",
) -> Iterator[pa.RecordBatch]:
    """The records in [first_offset, end_offset), in the order of the log, without control records.

    Parameters
    ----------
    aborted_transactions : those of the Fetch reply ({"producer_id", "first_offset"}, in any order) when only
        committed records are wanted; None or empty to see all.
    columns : which columns of `SCHEMA` to build; they come in the order of `SCHEMA`.
    max_decompressed_bytes : cap on what one batch may unpack to.
    where : what error messages start with, "orders-3".

    Yields record batches of about 16,000 rows (fewer when records are large), never an empty one. They own their
    memory.

    Raises `Corrupt`, `Truncated` or `DecompressedTooLarge`, naming `where` and the batch's offset, and `UsageError`
    for a column that is not in `SCHEMA`.
    """
    unknown = set(columns) - set(ALL_COLUMNS)
    if unknown:
        raise UsageError(f"no such columns: {', '.join(sorted(unknown))}; there are {', '.join(ALL_COLUMNS)}")
    schema = pa.schema([field for field in SCHEMA if field.name in columns])
    batches = visible_batches(scan, first_offset, end_offset, aborted_transactions, check_crc, where)

    def read(slab: Slab) -> Iterator[pa.RecordBatch]:
        headers = scan.headers[slab.batches]
        for starts, ends, batch_of_row in _stretches(slab):
            for rows in _cuts(starts, ends):
                chunk = _Chunk(slab.data, headers, batch_of_row[rows], starts[rows], ends[rows])
                found = chunk.record_batch(schema, first_offset, end_offset)
                if found is not None:
                    yield found

    for messages, run in scan.runs(batches):
        if messages:
            yield from decode_messages(
                scan.buffer,
                scan.headers["position"][run].tolist(),
                schema,
                first_offset=first_offset,
                end_offset=end_offset,
                max_decompressed_bytes=max_decompressed_bytes,
                check_crc=check_crc,
                where=where,
            )
            continue
        for slab in slabs(scan, run, max_decompressed_bytes, check_crc, where):
            try:
                yield from read(slab)
            except ProtocolError as error:
                raise scan.located(error, _culprit(slab, read), where) from error


def _stretches(slab: Slab) -> Iterator[tuple[Positions, Positions, Positions]]:
    """Starts and ends of records, some thousand at a time, and which of the slab's batches each one is in."""
    if len(slab.batches) > 1:
        starts, ends = bounds_of_batches(slab.data, slab.begins, slab.ends, slab.counts)
        yield starts, ends, np.repeat(np.arange(len(slab.counts)), slab.counts)
        return
    begin, end, count = int(slab.begins[0]), int(slab.ends[0]), int(slab.counts[0])
    for starts, ends in stretches(slab.data, begin, end, count, SLAB_ROWS):
        yield starts, ends, np.zeros(len(starts), np.int64)


def _cuts(starts: Positions, ends: Positions) -> Iterator[slice]:
    """Slices of the rows: about `_CHUNK_ROWS`, and at most `_CHUNK_BYTES` unless a single record is larger."""
    rows = -(-len(starts) // max(1, round(len(starts) / _CHUNK_ROWS)))
    first = 0
    while first < len(starts):
        until = int(np.searchsorted(ends, starts[first] + _CHUNK_BYTES, side="right"))
        until = max(min(until, first + rows), first + 1)
        yield slice(first, until)
        first = until


def _culprit(slab: Slab, read: Callable[[Slab], Iterator[pa.RecordBatch]]) -> int:
    """The first batch of a slab whose records cannot be read."""
    for index in range(len(slab.batches)):
        try:
            for _ in read(slab.only(index)):
                pass
        except ProtocolError:
            return int(slab.batches[index])
    return int(slab.batches[0])


@dataclass
class _Chunk:
    """Some thousand records: where they are, and the headers of the batches they are in."""

    data: Bytes
    headers: npt.NDArray[Any]
    batch_of_row: Positions
    starts: Positions
    ends: Positions

    def record_batch(self, schema: pa.Schema, first_offset: int, end_offset: int) -> pa.RecordBatch | None:
        """The columns of `schema` for the records in [first_offset, end_offset); None if there are none."""
        fields = read_fields(self.data, self.starts, self.ends)
        offsets = self._offsets(fields)
        low, high = self.headers["base_offset"].min(), self.headers["last_offset"].max()
        if low < first_offset or high >= end_offset:
            rows = np.flatnonzero((offsets >= first_offset) & (offsets < end_offset))
            if not len(rows):
                return None
            fields, offsets, self.batch_of_row = fields.select(rows), offsets[rows], self.batch_of_row[rows]
        if not schema.names:
            # A record batch of no columns still has its number of rows, made this way.
            return pa.RecordBatch.from_struct_array(pa.Array.from_buffers(pa.struct([]), len(offsets), [None]))
        arrays = [self._column(name, fields, offsets) for name in schema.names]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _offsets(self, fields: Fields) -> npt.NDArray[np.int64]:
        offsets: npt.NDArray[np.int64] = self.headers["base_offset"].take(self.batch_of_row) + fields.offset_delta
        last = self.headers["last_offset"].take(self.batch_of_row)
        if fields.offset_delta.min() < 0 or (offsets > last).any():
            raise Corrupt("a record's offset is outside its batch")
        return offsets

    def _column(self, name: str, fields: Fields, offsets: npt.NDArray[np.int64]) -> pa.Array:
        if name == "key":
            return slices(self.data, fields.key_at, fields.key_length)
        if name == "value":
            return slices(self.data, fields.value_at, fields.value_length)
        if name == "offset":
            return to_arrow(offsets)
        if name == "timestamp_ms":
            return to_arrow(self._timestamps(fields))
        if name == "timestamp_type":
            return to_arrow(self._log_append_time.astype(np.int32).take(self.batch_of_row))
        return header_lists(self.data, fields.headers_at, fields.header_count, fields.ends)

    @property
    def _log_append_time(self) -> npt.NDArray[np.bool_]:
        stamped: npt.NDArray[np.bool_] = (self.headers["attributes"] & LOG_APPEND_TIME) != 0
        return stamped

    def _timestamps(self, fields: Fields) -> npt.NDArray[np.int64]:
        """The broker's time holds for a whole batch; the producer's is told record by record."""
        broker = self._log_append_time
        base = np.where(broker, self.headers["max_timestamp_ms"], self.headers["first_timestamp_ms"])
        delta = fields.timestamp_delta
        if broker.any():
            delta = np.where(broker.take(self.batch_of_row), 0, delta)
        timestamps: npt.NDArray[np.int64] = base.take(self.batch_of_row) + delta
        return timestamps
