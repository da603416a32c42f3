"""Select the batches that a reader may see: no control batches, no aborted transactions, none outside the range.

Reads headers, and the single record of a control batch. Used by `decode`.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from protocol.errors import Corrupt, ProtocolError
from protocol.records.batch_header import COMPRESSION_MASK, CONTROL, HEADER_BYTES, TRANSACTIONAL
from protocol.records.memory_records import MemoryRecords
from protocol.wire.primitives import Reader

Rows = npt.NDArray[np.int64]

_CONTROL_KEY = struct.Struct(">hh")
_ABORT = 0


def visible_batches(
    records: MemoryRecords,
    first_offset: int,
    end_offset: int,
    aborted_transactions: Sequence[Mapping[str, Any]] | None,
    where: str,
) -> Rows:
    """Return row numbers in `records.headers` of the batches that may have visible records in the given range.

    `records`: batches of one partition of a Fetch response.
    `first_offset`, `end_offset`: range of offsets; the end is exclusive.
    `aborted_transactions`: the list of the Fetch response (`producer_id` and `first_offset`, in any order); None or
    empty to see all.
    `where`: start of error messages, for example "orders-3".
    """
    headers = records.headers
    visible = headers["last_offset"] >= first_offset
    visible &= headers["base_offset"] < end_offset
    visible &= headers["count"] > 0
    visible &= (headers["attributes"] & CONTROL) == 0
    if aborted_transactions:
        visible &= ~_aborted(records, aborted_transactions, where)
    return np.flatnonzero(visible)


def _aborted(
    records: MemoryRecords, aborted_transactions: Sequence[Mapping[str, Any]], where: str
) -> npt.NDArray[np.bool_]:
    """Mark the batches of aborted transactions: from a transaction's first offset to its producer's abort marker."""
    starts = sorted(((row["first_offset"], row["producer_id"]) for row in aborted_transactions), reverse=True)
    aborted = np.zeros(len(records.headers), np.bool_)
    producers: set[int] = set()
    columns = (records.headers[name].tolist() for name in ("last_offset", "attributes", "producer_id"))
    for index, (last_offset, attributes, producer_id) in enumerate(zip(*columns, strict=True)):
        while starts and starts[-1][0] <= last_offset:
            producers.add(starts.pop()[1])
        if producer_id not in producers:
            continue
        if not attributes & CONTROL:
            aborted[index] = attributes & TRANSACTIONAL != 0
        elif _is_abort_marker(records, index, where):
            producers.discard(producer_id)
    return aborted


def _is_abort_marker(records: MemoryRecords, index: int, where: str) -> bool:
    """Return True if a control batch is an ABORT marker; False if compaction has emptied it."""
    header = records.headers[index]
    if header["count"] == 0:
        return False
    try:
        if header["attributes"] & COMPRESSION_MASK:
            raise Corrupt("it is compressed")
        record = Reader(records.batch(index)[HEADER_BYTES:])
        record.varint()
        record.int8()
        record.varlong()
        record.varint()
        key = record.take(max(0, record.varint()))
        if len(key) < _CONTROL_KEY.size:
            raise Corrupt(f"its key has {len(key)} bytes")
    except ProtocolError as error:
        raise Corrupt(f"{where}: the control batch at offset {header['base_offset']}: {error}") from error
    version, kind = _CONTROL_KEY.unpack_from(key)
    return bool(version >= 0 and kind == _ABORT)
