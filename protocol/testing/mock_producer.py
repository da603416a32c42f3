"""A producer double with expectations, after sarama's `mocks`: no cluster, no threads."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from protocol.base.clock import SYSTEM_CLOCK, Deadline
from protocol.broker_errors import ErrorCode, broker_error
from protocol.checked_values import checked_string
from protocol.errors import KafkaError, UsageError
from protocol.kafka_terms import TopicPartition
from protocol.metrics.client_sensors import Metric
from protocol.producer.messages import Headers, Message, ProducerMessage
from protocol.producer.partition_choice import GivenPartitions, int32_partitions
from protocol.producer.partitioner import partition_of
from protocol.producer.results import BatchResult, MessageFuture, ProducedRange, RecordMetadata, SentColumns, results_of
from protocol.records.record_columns import record_columns
from protocol.records.record_fields import HEADERS_TYPE
from protocol.testing.fake_kafka.controller import is_legal_name

log = logging.getLogger(__name__)


class SentMessage(NamedTuple):
    """A message that was sent, with the partition that it has got."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    timestamp_ms: int


_UNSET: Any = object()


@dataclass(frozen=True)
class _Expectation:
    fields: Mapping[str, object]
    check: Callable[[SentMessage], object] | None
    error: KafkaError | None

    def require(self, message: SentMessage) -> None:
        """Raise `AssertionError` if the message differs."""
        for name, expected in self.fields.items():
            field_value = getattr(message, name)
            if field_value != expected:
                raise AssertionError(f"MockProducer: {name} is {field_value!r}, expected {expected!r}, of {message}")
        if self.check is not None and self.check(message) is False:
            raise AssertionError(f"MockProducer: the check refused {message}")

    def __str__(self) -> str:
        named = ", ".join(f"{name}={value!r}" for name, value in self.fields.items())
        return f"a message ({named})" if named else "a message"


class MockProducer:
    """A double of `protocol.Producer` that compares each message with the next expectation.

    A message that differs or that was not expected raises `AssertionError` in the call that sends it; `close` and the
    end of a `with` block raise it for expectations that no message has met, and once more for a mismatch that the
    tested code has caught. Not thread-safe.

    Parameters
    ----------
    partitions : mapping of str to int, optional
        Number of partitions by topic; other topics have one. The hash of the key chooses the partition, as in the Java
        client, and partition 0 without a key.

    Attributes
    ----------
    sent : list of SentMessage
        All messages, also failed ones.

    Examples
    --------
    >>> with MockProducer() as producer:
    ...     producer.expect_send("orders", value=b"1")
    ...     producer.send_and_wait("orders", b"1").offset
    0
    """

    def __init__(self, partitions: Mapping[str, int] | None = None) -> None:
        self.sent: list[SentMessage] = []
        self._partitions = dict(partitions or {})
        self._expected: list[_Expectation] = []
        self._mismatch: AssertionError | None = None
        self._acknowledged: dict[TopicPartition, ProducedRange] = {}
        self._failures: list[tuple[SentColumns, KafkaError]] = []
        self._next_offsets: dict[TopicPartition, int] = {}
        self._flushed = self._closed = False

    def __enter__(self) -> MockProducer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    # -- expectations -------------------------------------------------------------------------

    def expect_send(
        self,
        topic: str = _UNSET,
        value: bytes | str | None = _UNSET,
        *,
        key: bytes | str | None = _UNSET,
        headers: Headers = _UNSET,
        timestamp_ms: int = _UNSET,
        partition: int = _UNSET,
        check: Callable[[SentMessage], object] | None = None,
        error: KafkaError | None = None,
        times: int = 1,
    ) -> None:
        """Expect one more message, after those expected before. A row of `send_columns` is a message, too.

        Parameters
        ----------
        topic, value, key, headers, timestamp_ms, partition
            Fields that the message must have; fields that are not given may have any value.
        check : callable, optional
            Called with the message; it may raise `AssertionError` or return False.
        error : KafkaError, optional
            The message fails with this error; without it, it is acknowledged.
        times : int
            Number of such messages.
        """
        expected = {"topic": topic, "value": _encoded(value), "key": _encoded(key), "headers": headers}
        expected |= {"timestamp_ms": timestamp_ms, "partition": partition}
        if headers is not _UNSET:
            expected["headers"] = [(name, _encoded(content)) for name, content in headers]
        fields = {name: content for name, content in expected.items() if content is not _UNSET}
        self._expected.extend([_Expectation(fields, check, error)] * times)

    def verify(self) -> None:
        """Raise `AssertionError` for an earlier mismatch, or for expectations that no message has met."""
        if self._mismatch is not None:
            raise self._mismatch
        if self._expected:
            listed = "; ".join(map(str, self._expected[:3]))
            raise AssertionError(
                f"MockProducer: {len(self._expected)} expected messages were not sent, first: {listed}"
            )

    def _meet(self, message: SentMessage) -> KafkaError | None:
        """Compare a message with the next expectation, and return its error."""
        self.sent.append(message)
        try:
            if not self._expected:
                raise AssertionError(f"MockProducer: {message} was not expected")
            expectation = self._expected.pop(0)
            expectation.require(message)
        except AssertionError as error:
            self._mismatch = self._mismatch or error
            raise
        return expectation.error

    # -- methods of Producer ------------------------------------------------------------------

    def send(
        self,
        topic: str,
        value: bytes | str | None,
        *,
        key: bytes | str | None = None,
        headers: Headers = (),
        timestamp_ms: int | None = None,
        partition: int | None = None,
    ) -> Future[RecordMetadata]:
        """Send one message; the future is done on return. As `Producer.send`."""
        self._require_open()
        self._begin_account()
        message = Message(
            value, key, headers, SYSTEM_CLOCK.wall_ms() if timestamp_ms is None else timestamp_ms, partition
        )
        sent = self._placed(topic, message.key, message.value, list(message.headers), message.timestamp_ms, partition)
        error = self._meet(sent)
        future = MessageFuture()
        future.set_running_or_notify_cancel()
        if error is not None:
            future.set_exception(error)
        else:
            offset = self._acknowledge(topic, sent.partition)
            future.set_result(RecordMetadata(topic, sent.partition, offset, sent.timestamp_ms))
        return future

    def send_and_wait(
        self, topic: str, value: bytes | str | None, *, timeout_ms: float | None = None, **fields: Any
    ) -> RecordMetadata:
        """Send one message; return where it was written, or raise its error. As `Producer.send_and_wait`."""
        return self.send(topic, value, **fields).result()

    def send_many(
        self, messages: Iterable[ProducerMessage], *, timeout_ms: float | None = None
    ) -> list[RecordMetadata]:
        """Send messages; raise `SendFailed` with the errors of those expected to fail. As `Producer.send_many`."""
        self._require_open()
        outcomes: list[Future[RecordMetadata] | KafkaError] = []
        for message in messages:
            topic, value, key, headers, timestamp_ms, partition = ProducerMessage(*message)
            try:
                future = self.send(
                    topic, value, key=key, headers=headers, timestamp_ms=timestamp_ms, partition=partition
                )
                outcomes.append(future)
            except KafkaError as error:
                outcomes.append(error)
        return results_of(outcomes, Deadline.after_ms(0))

    def send_columns(
        self, topic: str, columns: pa.RecordBatch, partitions: GivenPartitions | None = None
    ) -> SentColumns:
        """Send rows, each a message. As `Producer.send_columns`: the result, or else `flush`, raises failures."""
        self._require_open()
        self._raise_failures()
        self._begin_account()
        _require_topic(topic)
        checked = record_columns(columns, SYSTEM_CLOCK.wall_ms())
        count = checked.num_rows
        keys = checked.column("key").to_pylist() if "key" in checked.schema.names else [None] * count
        headers: list[Any] = [None] * count
        if "headers" in columns.schema.names:
            headers = columns.column("headers").cast(HEADERS_TYPE).to_pylist()
        source = f"for {count} rows of topic {topic}"
        numbers = [None] * count if partitions is None else int32_partitions(partitions, count, source).to_pylist()
        times_ms = checked.column("timestamp_ms").to_pylist()
        values = checked.column("value").to_pylist()
        rows = [
            self._placed(
                topic, key, value, [(header["key"], header["value"]) for header in pairs or ()], time_ms, number
            )
            for key, value, pairs, time_ms, number in zip(keys, values, headers, times_ms, numbers, strict=True)
        ]
        chosen = np.array([row.partition for row in rows], np.int32)
        result = SentColumns(topic, chosen, np.array(times_ms, np.int64), self._reported)
        counts: dict[int, int] = {}
        for sent in rows:
            error = self._meet(sent)
            nth = counts[sent.partition] = counts.get(sent.partition, -1) + 1
            if error is not None:
                self._failures.append((result, error))
                result.complete(sent.partition, nth, 1, BatchResult(error=error))
            else:
                result.complete(sent.partition, nth, 1, BatchResult(self._acknowledge(topic, sent.partition)))
        return result

    @property
    def held_bytes(self) -> int:
        """Return 0: nothing waits."""
        return 0

    @property
    def requests(self) -> int:
        """Return 0: nothing is sent."""
        return 0

    @property
    def acknowledged(self) -> dict[TopicPartition, ProducedRange]:
        """Acknowledged ranges by (topic, partition), since the first send after the last flush, or up to that flush."""
        return dict(self._acknowledged)

    def metrics(self) -> list[Metric]:
        """Return no metrics."""
        return []

    def flush(self, timeout_ms: float | None = None) -> None:
        """Raise the first failure of columns that no result has raised."""
        self._require_open()
        self._begin_account()
        self._raise_failures()
        self._flushed = True

    def close(self, timeout_ms: float | None = None) -> None:
        """Flush, close, and verify the expectations. Idempotent."""
        if not self._closed:
            self._closed = True
            self._begin_account()  # as a further flush
            try:
                self.verify()
            finally:
                self._raise_failures()

    def abort(self) -> None:
        """Close without verifying the expectations."""
        self._closed = True

    # -- inside -------------------------------------------------------------------------------

    def _placed(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: list[tuple[str, bytes | None]],
        timestamp_ms: int,
        partition: int | None,
    ) -> SentMessage:
        _require_topic(topic)
        count = self._partitions.get(topic, 1)
        if partition is not None and not 0 <= partition < count:
            raise UsageError(
                f"{topic} has no partition {partition}, only 0 to {count - 1}: see MockProducer(partitions)"
            )
        if partition is None:
            partition = partition_of(key, count) if key is not None else 0
        return SentMessage(topic, partition, key, value, headers, timestamp_ms)

    def _acknowledge(self, topic: str, partition: int) -> int:
        where = (topic, partition)
        offset = self._next_offsets.get(where, 0)
        self._next_offsets[where] = offset + 1
        self._acknowledged[where] = self._acknowledged.get(where, ProducedRange()).plus(offset, 1)
        return offset

    def _begin_account(self) -> None:
        if self._flushed:
            self._flushed = False
            self._acknowledged.clear()

    def _reported(self, call: SentColumns) -> None:
        self._failures = [failure for failure in self._failures if failure[0] is not call]

    def _raise_failures(self) -> None:
        failures, self._failures = self._failures, []
        for _, error in failures[1:]:
            log.warning("another write failed: %s", error)
        for _, error in failures[:1]:
            raise error

    def _require_open(self) -> None:
        if self._closed:
            raise UsageError("this producer is closed")


def _require_topic(topic: str) -> None:
    """Raise the error of brokers for an invalid name."""
    if not is_legal_name(checked_string("topic", topic)):
        raise broker_error(ErrorCode.INVALID_TOPIC_EXCEPTION, f"topic {topic}", topic=topic)


def _encoded(content: Any) -> Any:
    return content.encode() if isinstance(content, str) else content
