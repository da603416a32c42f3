"""Single messages, collected by topic and converted to columns together.

`producer` adds messages in the callers' threads; `batch_assembler` takes them out. Thread-safe.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from protocol.base.condition import Lock
from protocol.checked_values import encoded
from protocol.errors import KafkaError, UsageError
from protocol.producer.pending_rows import PendingRows
from protocol.producer.results import MessageFuture, RecordMetadata, fail_futures
from protocol.records.arrow_numpy import nullable_binaries, nullable_integers
from protocol.settings.property_kinds import MAX_INT32

Headers = Sequence[tuple[str, bytes | None]]

_MAX_TIMESTAMP_MS = 2**63 - 1
# Approximate cost of a message besides its key, value and headers.
_OVERHEAD_BYTES = 100


class ProducerMessage(NamedTuple):
    """The arguments of `Producer.send`: Java's `ProducerRecord`, sarama's `ProducerMessage`.

    In the same order there: a further field also needs a place in `Message` and `TopicMessages.columns`.
    """

    topic: str
    value: bytes | str | None
    key: bytes | str | None = None
    headers: Headers = ()
    timestamp_ms: int | None = None
    partition: int | None = None


class Message:
    """A validated message. Raises `UsageError` for invalid arguments."""

    __slots__ = ("headers", "key", "partition", "size_bytes", "timestamp_ms", "value")

    def __init__(self, value: object, key: object, headers: Headers, timestamp_ms: int, partition: int | None) -> None:
        self.value = _bytes("value", value)
        self.key = _bytes("key", key)
        self.headers = [_header(header) for header in headers] if headers else ()
        self.timestamp_ms = timestamp_ms
        self.partition = partition
        if not isinstance(timestamp_ms, int) or not 0 <= timestamp_ms <= _MAX_TIMESTAMP_MS:
            raise UsageError(f"timestamp_ms is {timestamp_ms!r}; it must be milliseconds since 1970")
        if not (partition is None or (isinstance(partition, int) and abs(partition) <= MAX_INT32)):
            raise UsageError(f"partition is {partition!r}; it must be an int of at most 32 bits")
        self.size_bytes = _OVERHEAD_BYTES + len(self.key or b"") + len(self.value or b"")
        self.size_bytes += sum(len(name) + len(content or b"") for name, content in self.headers)


def _bytes(part: str, content: object) -> bytes | None:
    if content is None or isinstance(content, bytes):
        return content
    if isinstance(content, str):
        return encoded(part, content)
    if isinstance(content, bytearray | memoryview):
        return bytes(content)
    raise UsageError(f"{part} is {type(content).__name__}; it must be bytes or str")


def _header(header: object) -> tuple[str, bytes | None]:
    if isinstance(header, tuple | list) and len(header) == 2 and isinstance(header[0], str):
        encoded("a header's name", header[0])  # later, it would fail all messages of its batch
        return header[0], _bytes(f"header {header[0]}", header[1])
    raise UsageError(f"{header!r} is not a header; it must be a name (str) and a value (bytes)")


@dataclass(eq=False)
class TopicMessages:
    """Messages of one topic, each with its future.

    One list of pairs: Ctrl-C between appends to two lists would pair a message with the future of another one. Is a
    `pending_rows.Call`.
    """

    topic: str
    oldest_s: float
    pairs: list[tuple[Message, Future[RecordMetadata]]] = field(default_factory=list)

    @property
    def size_bytes(self) -> int:
        """Return the buffer memory of the messages."""
        return sum(message.size_bytes for message, _ in self.pairs)

    @property
    def futures(self) -> list[Future[RecordMetadata]]:
        """Return the futures, in order."""
        return [future for _, future in self.pairs]

    def fail_rest(self, error: KafkaError) -> None:
        """Fail the messages without a result."""
        fail_futures(self.futures, error)

    def columns(self) -> pa.RecordBatch:
        """Return the columns for `send_columns`."""
        arrays = {
            "key": nullable_binaries([message.key for message, _ in self.pairs]),
            "value": nullable_binaries([message.value for message, _ in self.pairs]),
            "timestamp_ms": nullable_integers([message.timestamp_ms for message, _ in self.pairs], np.int64),
        }
        headers = [message.headers for message, _ in self.pairs]
        if any(headers):
            arrays["headers"] = _header_lists(headers)
        return pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))

    def partitions(self) -> pa.Int32Array | None:
        """Return the partitions given by the caller; None if no message has one."""
        requested = [message.partition for message, _ in self.pairs]
        return None if all(partition is None for partition in requested) else nullable_integers(requested, np.int32)


def already_sending() -> UsageError:
    """Return the error of a call within a send of the same thread."""
    return UsageError(
        "this thread is already sending with this producer: a signal handler, a partitioner or a callback must not "
        "write, flush or close meanwhile; set a flag, and do so afterwards"
    )


class MessageBuffer:
    """Collects messages by topic, in order. `full` at `full_bytes` or `full_count`."""

    def __init__(self, full_bytes: int, full_count: int, pending: PendingRows) -> None:
        self._pending = pending
        self._full_bytes = full_bytes
        self._full_count = full_count
        self._count = 0
        self._topics: dict[str, TopicMessages] = {}
        # True until `woken`: Ctrl-C may end a `send` between a message and its wake-up; the next one makes up for it.
        self._wake_due = False
        # Reentrant, so that a signal handler within `append` raises instead of deadlocking.
        self._lock = Lock()

    def refuse_within_append(self) -> None:
        """Raise `UsageError` in a thread that is appending or taking messages: a signal handler runs there."""
        lock: Any = self._lock
        if lock._is_owned():
            raise already_sending()

    def append(
        self,
        topic: str,
        message: Message,
        now_s: float,
        on_done: Callable[[Future[RecordMetadata]], None] | None = None,
    ) -> tuple[Future[RecordMetadata], bool]:
        """Add a message. `on_done` is the first callback of its future.

        Also returns True if the sender must be woken, and `woken` called: the message is the first one, or fills the
        buffer. Raises `UsageError` if the producer is closed, or a signal handler within this method has called it.
        """
        self.refuse_within_append()
        future = MessageFuture()
        # A sent message cannot be cancelled.
        future.set_running_or_notify_cancel()
        if on_done is not None:
            future.add_done_callback(on_done)
        with self._lock:
            self._pending.raise_if_refused()
            # A variable: another thread may call `woken` meanwhile, for a message that was taken before this one.
            self._wake_due = wake = self._wake_due or not self._topics
            was_full = self.full
            messages = self._topics.get(topic)
            if messages is None:
                messages = self._topics[topic] = TopicMessages(topic, now_s)
            self._pending.begin_call(messages)  # before it has the message, whose future could get no result otherwise
            messages.pairs.append((message, future))
            self._pending.messages_bytes += message.size_bytes
            self._count += 1
            self._wake_due = wake = wake or (self.full and not was_full)
        return future, wake

    def woken(self) -> None:
        """Record that the sender was woken."""
        self._wake_due = False

    @property
    def full(self) -> bool:
        """True if the messages should be sent without waiting for `linger.ms`."""
        return self._pending.messages_bytes >= self._full_bytes or self._count >= self._full_count

    @property
    def oldest_s(self) -> float | None:
        """Start of the longest wait; None if no message waits."""
        with self._lock:
            return min((topic.oldest_s for topic in self._topics.values()), default=None)

    def take(self) -> list[TopicMessages]:
        """Remove and return all messages, grouped by topic.

        The caller passes them on or fails them, then frees their `size_bytes` of buffer memory and ends their calls.
        """
        with self._lock:
            taken, self._topics = list(self._topics.values()), {}
            self._pending.hold(sum(messages.size_bytes for messages in taken))  # first: never under-count
            self._pending.messages_bytes = self._count = 0
        return taken


def _header_lists(headers: Sequence[Headers]) -> pa.Array:
    """Build list<struct<key: binary, value: binary>>, one list per message."""
    flat = list(chain.from_iterable(headers))
    names = nullable_binaries([name.encode() for name, _ in flat])
    contents = nullable_binaries([content for _, content in flat])
    ends = np.cumsum([0, *map(len, headers)]).astype(np.int32)
    pairs = pa.StructArray.from_arrays([names, contents], ["key", "value"])
    return pa.ListArray.from_arrays(nullable_integers(ends.tolist(), np.int32), pairs)
