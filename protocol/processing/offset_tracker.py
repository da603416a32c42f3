"""The committable offset of one partition whose records finish in any order. Sans-IO.

The committable offset is that of the first unfinished record in the order of reading. Records behind it may be
finished already; after a restart they are handled again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from protocol.group.committed_offsets import CommittedOffset


class TrackedRecords:
    """The records of one record batch, and which of them are finished.

    `finish` may be called in any thread, for each row once: it stores one byte and needs no lock. All other access is
    by the thread of the tracker.
    """

    __slots__ = ("_first", "_offsets", "_unfinished", "end", "size_bytes")

    def __init__(self, offsets: npt.NDArray[np.int64], end: CommittedOffset, size_bytes: int) -> None:
        self.end = end
        self.size_bytes = size_bytes
        self._offsets = offsets
        self._unfinished = bytearray(b"\x01") * len(offsets)
        self._first = 0

    def __len__(self) -> int:
        return len(self._offsets)

    def finish(self, row: int) -> None:
        """Mark a row as finished."""
        self._unfinished[row] = 0

    def finish_rows(self, rows: Sequence[int]) -> None:
        """Mark rows as finished."""
        for row in rows:
            self._unfinished[row] = 0

    def first_unfinished(self) -> int | None:
        """Return the first unfinished row; None if all are finished."""
        if self._first < 0:
            return None
        self._first = self._unfinished.find(1, self._first)
        return None if self._first < 0 else self._first

    def committable(self) -> CommittedOffset:
        """Return the offset of the first unfinished record, or of the end of the batch."""
        row = self.first_unfinished()
        return self.end if row is None else CommittedOffset(int(self._offsets[row]))


class OffsetTracker:
    """Record batches of one partition in the order of reading, from the committable offset on.

    Offsets increase, except after a seek or a truncation of the log: the order of reading decides, not the offsets.
    Not thread-safe, except `TrackedRecords.finish`.
    """

    def __init__(self) -> None:
        self._batches: deque[TrackedRecords] = deque()
        self._end: CommittedOffset | None = None
        self._rows = 0
        self._size_bytes = 0

    def append(
        self, offsets: npt.NDArray[np.int64], size_bytes: int = 0, end: CommittedOffset | None = None
    ) -> TrackedRecords:
        """Add the records of a batch, all unfinished.

        Parameters
        ----------
        offsets : ndarray of int64
            At least one.
        size_bytes : int
            Memory that the batch holds until all of its records are finished.
        end : CommittedOffset, optional
            Offset to commit when all of them are finished; by default the one after the last record.
        """
        batch = TrackedRecords(offsets, end or CommittedOffset(int(offsets[-1]) + 1), size_bytes)
        self._batches.append(batch)
        self._rows += len(batch)
        self._size_bytes += size_bytes
        return batch

    def advance(self) -> None:
        """Drop finished batches at the front. Call it before the properties are read."""
        while self._batches and self._batches[0].first_unfinished() is None:
            batch = self._batches.popleft()
            self._end = batch.end
            self._rows -= len(batch)
            self._size_bytes -= batch.size_bytes

    @property
    def committable(self) -> CommittedOffset | None:
        """The offset to commit: nothing before it is unfinished; None before the first batch."""
        return self._batches[0].committable() if self._batches else self._end

    @property
    def uncommitted_rows(self) -> int:
        """Number of records from the committable offset on, finished or not."""
        return self._rows - ((self._batches[0].first_unfinished() or 0) if self._batches else 0)

    @property
    def size_bytes(self) -> int:
        """Memory of the batches that are not finished."""
        return self._size_bytes
