"""The committable offset of one partition whose records finish in any order. Sans-IO.

The committable offset is that of the first unfinished record in the order of reading. If all are finished, it is the
reader's position, which exists before the first record, and which is behind transaction markers. Records behind an
unfinished one may be finished already; after a restart they are handled again. After a truncation of the log or a
seek to a lower offset, the records read before from there on no longer count: the log has others, or they are read
again. After the topic was deleted and created again, no record read before counts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from protocol.group.commits.committed_offsets import CommittedOffset, to_commit
from protocol.position import Position, RecordPositions


class TrackedRecords:
    """The records of one record batch, and which of them are finished.

    `finish` may be called in any thread, for each row once: it stores one byte and needs no lock. All other access is
    by the thread of the tracker.
    """

    __slots__ = ("_counting", "_first", "_offsets", "_positions", "_unfinished", "size_bytes")

    def __init__(self, offsets: npt.NDArray[np.int64], positions: RecordPositions, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self._offsets = offsets
        self._positions = positions
        self._counting = len(offsets)  # rows that decide the committable offset
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

    def unfinished(self) -> npt.NDArray[np.int64]:
        """Return the unfinished rows that count."""
        return np.flatnonzero(np.frombuffer(self._unfinished, np.uint8)[: self._counting])

    def last_finished(self) -> int:
        """Return the last finished row that counts; -1 if none is."""
        return self._unfinished.rfind(0, 0, self._counting)

    def ignore_from(self, offset: int) -> None:
        """Ignore the records from this offset on in `first_committable`."""
        self._counting = min(self._counting, int(np.searchsorted(self._offsets, offset)))

    def first_committable(self) -> CommittedOffset | None:
        """Return the offset of the first unfinished record; None without one that counts."""
        row = self.first_unfinished()
        return None if row is None or row >= self._counting else self._at(int(self._offsets[row]))

    @property
    def end(self) -> CommittedOffset:
        """The offset after the last record."""
        return self._at(int(self._offsets[-1]) + 1)

    def _at(self, offset: int) -> CommittedOffset:
        return to_commit(self._positions.at(offset))


class OffsetTracker:
    """Record batches of one partition in the order of reading, from the committable offset on.

    Offsets increase, except after a seek or a truncation of the log: the order of reading decides, not the offsets.
    Not thread-safe, except `TrackedRecords.finish`.
    """

    def __init__(self) -> None:
        self._batches: deque[TrackedRecords] = deque()
        self._end: CommittedOffset | None = None  # of the last batch that was added, or the position since
        self._rows = 0
        self._size_bytes = 0

    def append(
        self, offsets: npt.NDArray[np.int64], size_bytes: int = 0, positions: RecordPositions | None = None
    ) -> TrackedRecords:
        """Add the records of a batch, all unfinished.

        If they begin before the end of the last batch, the records from there on no longer count, and none do if the
        batch is of another topic.

        `offsets` (ndarray of int64): at least one, ascending.
        `size_bytes`: memory that the batch holds until all of its records are finished.
        `positions`: their positions, for the offsets to commit.
        """
        positions = positions or RecordPositions(Position(int(offsets[0])))
        self.set_position(positions.at(int(offsets[0])))
        batch = TrackedRecords(offsets, positions, size_bytes)
        self._batches.append(batch)
        self._end = batch.end
        self._rows += len(batch)
        self._size_bytes += size_bytes
        return batch

    def set_position(self, position: Position) -> None:
        """Set the position of the reader. All records that it has read were added.

        Records at and above it no longer count, and none do if the topic was deleted and created again.
        """
        if self._end is not None:
            same_topic = position.is_in(self._end.topic_id)
            if not same_topic or position.offset < self._end.offset:
                for batch in self._batches:
                    batch.ignore_from(position.offset if same_topic else 0)
        self._end = to_commit(position)

    def advance(self) -> None:
        """Drop finished batches at the front. Call it before the properties are read."""
        while self._batches and self._batches[0].first_unfinished() is None:
            batch = self._batches.popleft()
            self._rows -= len(batch)
            self._size_bytes -= batch.size_bytes

    def unfinished_below_finished(self) -> dict[TrackedRecords, npt.NDArray[np.int64]]:
        """Return the unfinished rows that have a finished one behind them, by batch, in the order of reading."""
        batches = list(self._batches)
        while batches and (last_finished := batches[-1].last_finished()) < 0:
            batches.pop()
        rows = {batch: batch.unfinished() for batch in batches}
        if batches:
            rows[batches[-1]] = rows[batches[-1]][rows[batches[-1]] < last_finished]
        return {batch: row for batch, row in rows.items() if len(row)}

    @property
    def committable(self) -> CommittedOffset | None:
        """The offset to commit: nothing before it is unfinished; None before the first position."""
        for batch in self._batches:
            if (unfinished := batch.first_committable()) is not None:
                return unfinished
        return self._end

    @property
    def uncommitted_rows(self) -> int:
        """Number of records from the first unfinished one on, finished or not."""
        return self._rows - ((self._batches[0].first_unfinished() or 0) if self._batches else 0)

    @property
    def size_bytes(self) -> int:
        """Memory of the batches that are not finished."""
        return self._size_bytes
