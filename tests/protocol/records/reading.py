"""Decode logs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from protocol.records.decode import decode
from protocol.records.memory_records import read_batch_headers

EVERYTHING = 2**62


def chunks(log: Any, first_offset: int = 0, end_offset: int = EVERYTHING, **options: Any) -> Iterator[pa.RecordBatch]:
    """Yield the records of a log, of the partition `orders-3`, in valid chunks."""
    options = {"where": "orders-3", **options}
    for chunk in decode(read_batch_headers(log), first_offset=first_offset, end_offset=end_offset, **options):
        chunk.validate(full=True)
        assert chunk.num_rows
        yield chunk


def rows(log: Any, first_offset: int = 0, end_offset: int = EVERYTHING, **options: Any) -> list[dict[str, Any]]:
    return [row for chunk in chunks(log, first_offset, end_offset, **options) for row in chunk.to_pylist()]
