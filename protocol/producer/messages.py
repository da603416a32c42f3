"""Single messages, gathered by topic until they are worth columns: the thin way in for who has one at a time.

Filled by `async_producer` in callers' threads, emptied by `intake`. Thread-safe. Knows neither partitions nor brokers.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
import pyarrow as pa

from protocol.errors import UsageError
from protocol.producer.results import RecordMetadata
from protocol.records.arrow_numpy import nullable_binaries, nullable_integers

Headers = Sequence[tuple[str, bytes | None]]

# About what a message costs beside its key, value and headers.
_OVERHEAD_BYTES = 100


@dataclass(eq=False)
class Messages:
    """Of one topic, as lists of like length."""

    topic: str
    since_s: float
    keys: list[bytes | None] = field(default_factory=list)
    values: list[bytes | None] = field(default_factory=list)
    headers: list[Headers] = field(default_factory=list)
    timestamps_ms: list[int] = field(default_factory=list)
    given_partitions: list[int | None] = field(default_factory=list)
    futures: list[Future[RecordMetadata]] = field(default_factory=list)
    size_bytes: int = 0

    def columns(self) -> pa.RecordBatch:
        """As `send_columns` takes them."""
        arrays = {
            "key": nullable_binaries(self.keys),
            "value": nullable_binaries(self.values),
            "timestamp_ms": nullable_integers(self.timestamps_ms, np.int64),
        }
        if any(self.headers):
            arrays["headers"] = _header_lists(self.headers)
        return pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))

    def partitions(self) -> pa.Int32Array | None:
        """What messages name themselves."""
        given = self.given_partitions
        return None if all(each is None for each in given) else nullable_integers(given, np.int32)


class MessageBuffer:
    """Takes messages in; gives them back by topic, in their order.

    `full` once there are `full_bytes` of them, or `full_count`.
    """

    def __init__(self, full_bytes: int, full_count: int) -> None:
        self._full_bytes = full_bytes
        self._full_count = full_count
        self._count = 0
        self._closed = False
        self._topics: dict[str, Messages] = {}
        self._lock = threading.Lock()
        self.held_bytes = 0

    def append(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: Headers,
        timestamp_ms: int,
        partition: int | None,
        now_s: float,
    ) -> tuple[Future[RecordMetadata], bool]:
        """The message's future, and whether it is the first one that waits, or the one that makes it full.

        Raises `UsageError` when closed.
        """
        future: Future[RecordMetadata] = Future()
        # What is sent cannot be cancelled any more.
        future.set_running_or_notify_cancel()
        size_bytes = _OVERHEAD_BYTES + len(key or b"") + len(value or b"")
        size_bytes += sum(len(name) + len(content or b"") for name, content in headers)
        with self._lock:
            if self._closed:
                raise UsageError("this producer is closed")
            told = not self._topics
            was_full = self.full
            messages = self._topics.get(topic)
            if messages is None:
                messages = self._topics[topic] = Messages(topic, now_s)
            messages.keys.append(key)
            messages.values.append(value)
            messages.headers.append(headers)
            messages.timestamps_ms.append(timestamp_ms)
            messages.given_partitions.append(partition)
            messages.futures.append(future)
            messages.size_bytes += size_bytes
            self.held_bytes += size_bytes
            self._count += 1
            told |= self.full and not was_full
        return future, told

    @property
    def full(self) -> bool:
        return self.held_bytes >= self._full_bytes or self._count >= self._full_count

    @property
    def oldest_s(self) -> float | None:
        """Since when the longest waiting message waits."""
        with self._lock:
            return min((each.since_s for each in self._topics.values()), default=None)

    def take(self) -> list[Messages]:
        """All of them."""
        with self._lock:
            taken = list(self._topics.values())
            self._topics = {}
            self.held_bytes = self._count = 0
        return taken

    def close(self) -> None:
        """Takes nothing more."""
        with self._lock:
            self._closed = True


def _header_lists(headers: Sequence[Headers]) -> pa.Array:
    """list<struct<key: binary, value: binary>>, one list for each message."""
    flat = list(chain.from_iterable(headers))
    names = nullable_binaries([name.encode() for name, _ in flat])
    contents = nullable_binaries([content for _, content in flat])
    ends = np.cumsum([0, *map(len, headers)]).astype(np.int32)
    pairs = pa.StructArray.from_arrays([names, contents], ["key", "value"])
    return pa.ListArray.from_arrays(nullable_integers(ends.tolist(), np.int32), pairs)
