"""A record batch of one partition that is being handled, as columns and as messages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from protocol.base.condition import Lock
from protocol.fetch.partition_consumer import ConsumerMessage, messages_of
from protocol.kafka_terms import TopicPartition
from protocol.processing.offset_tracker import TrackedRecords
from protocol.records.arrow_numpy import to_arrow


class ConsumerBatch(NamedTuple):
    """Records of one partition in order, as a handler gets them with `batch_size`; not always consecutive.

    Attributes
    ----------
    columns : pyarrow.RecordBatch
        `key`, `value`, `offset`, `timestamp_ms`, `timestamp_type` and `headers`.
    """

    topic: str
    partition: int
    columns: pa.RecordBatch

    def messages(self) -> Iterator[ConsumerMessage]:
        """Yield the records as Python objects."""
        return messages_of(*self)


class PolledBatch:
    """A record batch, and which of its records are finished. Thread-safe."""

    __slots__ = ("_columns", "_lock", "_messages", "partition", "topic", "tracked")

    def __init__(self, key: TopicPartition, columns: pa.RecordBatch, tracked: TrackedRecords) -> None:
        self.topic, self.partition = key
        self.tracked = tracked
        self._columns = columns
        self._messages: list[ConsumerMessage] | None = None
        self._lock = Lock()

    def messages(self) -> list[ConsumerMessage]:
        """Return all records as Python objects. The first call converts them, in the thread of a handler."""
        with self._lock:
            if self._messages is None:
                self._messages = list(messages_of(self.topic, self.partition, self._columns))
            return self._messages

    def select(self, rows: Sequence[int]) -> ConsumerBatch:
        """Return some rows, in increasing order; consecutive rows are not copied."""
        if rows[-1] - rows[0] == len(rows) - 1:
            columns = self._columns.slice(rows[0], len(rows))
        else:
            columns = self._columns.take(to_arrow(np.asarray(rows, np.int64)))
        return ConsumerBatch(self.topic, self.partition, columns)

    def keys(self, rows: npt.NDArray[np.int64]) -> pa.BinaryArray:
        """Return the keys of some rows."""
        return self._columns.column("key").take(to_arrow(rows))

    def message(self, row: int) -> ConsumerMessage:
        """Return one record."""
        (converted,) = messages_of(self.topic, self.partition, self._columns.slice(row, 1))
        return converted
