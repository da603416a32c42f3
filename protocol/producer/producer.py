"""A producer for Arrow columns and single messages: sarama's `AsyncProducer`, with a blocking call beside it.

`batch_assembler` partitions, batches and encodes rows in the caller's thread; a thread pool compresses several record
batches in parallel. In `producer_thread`, `sender` sends them to the partitions' leaders, with several requests in
flight per broker, and handles replies, retries and deadlines. `pending_rows` counts what has no result.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from functools import partial
from typing import Any

import pyarrow as pa

from protocol.base.clock import Deadline
from protocol.base.interrupts import Deferred, deferred, interruptible
from protocol.cluster.client import Client, open_client
from protocol.config import ProducerConfig, parse_producer
from protocol.errors import DeadlineExceeded, KafkaError, UsageError
from protocol.kafka_terms import TopicPartition
from protocol.metrics.client_sensors import Metric
from protocol.metrics.definitions import CLIENT_GROUPS, PRODUCER_GROUPS
from protocol.metrics.sensor import timed
from protocol.producer.batch_assembler import BatchAssembler
from protocol.producer.compressors import Compressors
from protocol.producer.idempotence import AnonymousSession, IdempotentSession, ProducerSession
from protocol.producer.interceptors import Interceptors, ProducerInterceptor
from protocol.producer.messages import Headers, Message, ProducerMessage
from protocol.producer.partition_choice import GivenPartitions, PartitionChoice
from protocol.producer.partitioner import PartitionFunction
from protocol.producer.pending_rows import PendingRows
from protocol.producer.producer_batch import ProducerBatch
from protocol.producer.producer_thread import ProducerThread
from protocol.producer.results import ProducedRange, RecordMetadata, SentColumns, results_of
from protocol.producer.retry_backoff import BackoffFunction
from protocol.producer.sender import Sender
from protocol.records.encode import encode_batches
from protocol.settings.secret import hide_variables

log = logging.getLogger(__name__)

# Limit of the wait for the sender's thread when a producer is closed.
_STOP_MS = 10_000
_LEAST_STOP_MS = 1_000

_NO_MESSAGE = ProducerMessage("", None)

_FORKED = "this producer was made before a fork: make one in this process"


class Producer:
    """Writes Arrow columns and single messages to topics.

    With idempotence (the default), every row is written once and in order within its partition, or fails; then
    `flush` and the result of the call raise. Rows wait until their partition has `batch.size` bytes, for `linger.ms` or
    until `flush`. `buffer.memory` limits unacknowledged bytes: send calls block while it is full, up to `max.block.ms`.

    Thread rule: thread-safe. After a fork, the child process must create its own producer.

    Parameters
    ----------
    client : Client or mapping, optional
        A shared client, which remains open when the producer is closed, or Kafka's properties.
    config : ProducerConfig or mapping, optional
        Producer properties, if `client` is a shared one.
    partitioner : PartitionFunction, optional
        Chooses partitions instead of the strategy in the configuration.
    interceptors : iterable of ProducerInterceptor
        Called in this order before each send, and with each result.
    retry_backoff : callable, optional
        `retry_backoff(failures, retries)` returns the ms to wait before a partition's next try, instead of
        `retry.backoff.ms`: sarama's `Producer.Retry.BackoffFunc`. Called in the producer's thread.
    session : ProducerSession, optional
        For `TransactionalProducer`. By default idempotent or not, as configured.
    **properties
        Kafka's properties with `_` for `.`.

    Raises
    ------
    ConfigurationError
        A property is wrong.
    UsageError
        `transactional.id` is set, and this is not a `TransactionalProducer`.
    """

    @hide_variables
    def __init__(
        self,
        client: Client | Mapping[str, object] | None = None,
        config: ProducerConfig | Mapping[str, object] | None = None,
        *,
        partitioner: PartitionFunction | None = None,
        interceptors: Iterable[ProducerInterceptor] = (),
        retry_backoff: BackoffFunction | None = None,
        session: ProducerSession | None = None,
        **properties: object,
    ) -> None:
        self._client, self._owns_client, settings = open_client(client, config, properties, parse_producer)
        if settings.transactional_id is not None and session is None:
            raise UsageError("transactional.id is for a TransactionalProducer", settings=("transactional.id",))
        self._config = settings
        self._session = session or (
            IdempotentSession(self._client) if settings.enable_idempotence else AnonymousSession()
        )
        interceptors_in_order = tuple(interceptors)
        self._interceptors = Interceptors(interceptors_in_order) if interceptors_in_order else None
        self._pending = PendingRows(
            settings.buffer_memory_bytes, self._session.failed, self._client.format_error, self._client.clock
        )
        encode = partial(encode_batches, compression=settings.compression_type, level=settings.compression_level)
        self._compressors = Compressors()
        encode_together = partial(encode, map_each=self._compressors.map)
        self._sender = Sender(self._client, settings, self._session, self._pending, encode, retry_backoff)
        self._choice = PartitionChoice(self._client, settings, self._sender.busy, partitioner)
        self._assembler = BatchAssembler(
            settings,
            self._client.clock,
            self._client.sensors,
            self._choice,
            encode_together,
            self._pending,
            self._sender,
            None if self._interceptors is None else self._interceptors.rows_done,
        )
        self._thread = ProducerThread(self._assembler, self._sender, self._client.clock)
        # True after a flush: `acknowledged` tells its ranges until the next send or flush.
        self._forgets_on_send = False
        self._closed = False
        self._add_gauges()
        with Deferred():
            self._thread.start()
            # The threads hold no reference to this object, so it can be collected; then they end. Any thread may
            # collect it, within any lock: nothing here takes one. Code at the end of the program may still flush.
            weakref.finalize(self, self._thread.stop).atexit = False

    def __enter__(self) -> Producer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    # -- sending ------------------------------------------------------------------------------

    @deferred
    def send_columns(
        self, topic: str, columns: pa.RecordBatch, partitions: GivenPartitions | None = None
    ) -> SentColumns:
        """Send rows. Returns before they are acknowledged; blocks while `buffer.memory` is full.

        Parameters
        ----------
        topic : str
        columns : pyarrow.RecordBatch
            `value: binary` (null: a tombstone), and optionally `key: binary`, `timestamp_ms: int64` (null: now) and
            `headers: list<struct<key: string, value: binary>>`.
        partitions : pyarrow.Int32Array or numpy.ndarray, optional
            The partition of each row. The partitioner chooses for null, or if not given.

        Returns
        -------
        SentColumns
            Waits for the offsets or errors of these rows.

        Raises
        ------
        UsageError
            Wrong topic or columns, or a partition that the topic does not have; no row was sent. (A record above
            `max.request.size` fails alone: the result raises, or else the next call.)
        KafkaError
            Earlier columns could not be written, as `flush` raises; the topic does not exist; or `buffer.memory` stays
            full.
        """
        self._raise_if_unusable("send_columns")
        if self._interceptors is not None:
            columns = self._interceptors.on_send_columns(topic, columns)
        self._forget_acknowledged()
        try:
            if not isinstance(topic, str):
                raise _no_topic_name(topic)
            return self._assembler.append_columns(topic, columns, partitions)
        except Exception as error:  # also of a partitioner
            if self._interceptors is not None:
                self._interceptors.columns_failed(topic, columns, _as_kafka_error(error))
            raise
        finally:  # also after Ctrl-C: some rows are accepted
            if self._config.linger_ms is not None:
                self._sender.wake()

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
        """Send one message. Returns before it is acknowledged; blocks while `buffer.memory` is full.

        Parameters
        ----------
        topic : str
        value : bytes, str or None
            None is a tombstone.
        key : bytes, str or None
        headers : sequence of (str, bytes or None)
        timestamp_ms : int, optional
            Now by default.
        partition : int, optional
            Chosen by the partitioner by default.

        Returns
        -------
        concurrent.futures.Future of RecordMetadata
            Only this future reports a failure. Its callbacks run in the producer's thread: they may `send`, but must
            not wait or take long.

        Raises
        ------
        UsageError
            An argument has a wrong type or value.
        KafkaError
            As `send_columns`.
        """
        return self._send(None, topic, value, key, headers, timestamp_ms, partition)

    def _send(
        self,
        deadline: Deadline | None,
        topic: str,
        value: bytes | str | None,
        key: bytes | str | None = None,
        headers: Headers = (),
        timestamp_ms: int | None = None,
        partition: int | None = None,
    ) -> Future[RecordMetadata]:
        """Send one message, as `send`, which blocks until the deadline at most."""
        self._require_alive()
        if self._interceptors is None:
            return self._append(deadline, topic, value, key, headers, timestamp_ms, partition)
        message = self._interceptors.on_send(ProducerMessage(topic, value, key, headers, timestamp_ms, partition))
        try:
            return self._append(deadline, *message, on_done=partial(self._interceptors.message_done, message))
        except Exception as error:
            self._interceptors.message_failed(message, _as_kafka_error(error))
            raise

    def _append(
        self,
        deadline: Deadline | None,
        topic: str,
        value: bytes | str | None,
        key: bytes | str | None,
        headers: Headers,
        timestamp_ms: int | None,
        partition: int | None,
        on_done: Callable[[Future[RecordMetadata]], None] | None = None,
    ) -> Future[RecordMetadata]:
        if not isinstance(topic, str):
            raise _no_topic_name(topic)
        self._forget_acknowledged()
        time_ms = self._client.clock.wall_ms() if timestamp_ms is None else timestamp_ms
        message = Message(value, key, headers, time_ms, partition)
        if (topic, partition) not in self._choice.checked or not self._pending.has_room(message.size_bytes):
            with Deferred():
                if self._thread.is_current:  # in a callback
                    self._choice.check_partition(topic, partition, wait=False, until=self._sender.deadline())
                else:
                    self._choice.check_partition(topic, partition, wait=True, until=deadline)
                    self._assembler.wait_for_room(message.size_bytes, deadline=deadline)
        # Not deferred, which would take a quarter of the time of `send`.
        wake = True
        try:
            future, wake = self._assembler.messages.append(topic, message, self._client.clock.now_s(), on_done)
        finally:
            if wake:  # also after Ctrl-C, which may come when the message is accepted
                self._sender.wake()
                self._assembler.messages.woken()
        return future

    @deferred
    def send_and_wait(
        self, topic: str, value: bytes | str | None, *, timeout_ms: float | None = None, **fields: Any
    ) -> RecordMetadata:
        """Send one message without waiting for `linger.ms`, and return where it was written.

        Parameters
        ----------
        topic, value, **fields
            As of `send`.
        timeout_ms : float, optional
            By default as of `flush`.

        Raises
        ------
        KafkaError
            The message was not written.
        DeadlineExceeded
            It is not acknowledged in time, and may still be written, unless the error says that nothing was sent.
        """
        self._require_caller("send_and_wait")
        deadline = self._flush_deadline(timeout_ms)
        future = self._send(deadline, topic, value, **fields)
        self._assembler.drain(deadline)
        try:
            return future.result(deadline.remaining_s())
        except FutureTimeout as error:
            raise DeadlineExceeded(f"a message for {topic} is not acknowledged in time", topic=topic) from error

    @deferred
    def send_many(
        self, messages: Iterable[ProducerMessage], *, timeout_ms: float | None = None
    ) -> list[RecordMetadata]:
        """Send messages without waiting for `linger.ms`, and return where they were written: sarama's `SendMessages`.

        Parameters
        ----------
        messages : iterable of ProducerMessage
        timeout_ms : float, optional
            By default as of `flush`.

        Returns
        -------
        list of RecordMetadata
            In the order of the messages.

        Raises
        ------
        SendFailed
            Some messages were not written. `errors` has the error of each by its index, `results` the locations of the
            others. An error `DeadlineExceeded` means that the message is not acknowledged in time, and may still be
            written.
        """
        self._require_caller("send_many")
        self._require_alive()
        deadline = self._flush_deadline(timeout_ms)
        outcomes: list[Future[RecordMetadata] | KafkaError] = []
        remaining = iter(messages)
        while (message := interruptible(next, remaining, _NO_MESSAGE)) is not _NO_MESSAGE:
            try:
                outcomes.append(self._send(deadline, *message))
            except KafkaError as error:
                outcomes.append(error)
        self._assembler.drain(deadline)
        return results_of(outcomes, deadline)

    # -- results ------------------------------------------------------------------------------

    @property
    def client(self) -> Client:
        """The client, shared or this producer's own."""
        return self._client

    @property
    def held_bytes(self) -> int:
        """Bytes of `buffer.memory` in use: approximately those of unacknowledged rows and messages."""
        return self._pending.held_bytes

    @property
    def acknowledged(self) -> dict[TopicPartition, ProducedRange]:
        """Acknowledged ranges by (topic, partition), since the first send after the last flush, or up to that flush."""
        if not self._thread.in_this_process:
            raise UsageError(_FORKED)
        return self._pending.acknowledged_now()

    @property
    def requests(self) -> int:
        """Number of Produce requests sent."""
        return self._sender.requests

    def metrics(self) -> list[Metric]:
        """Return the metrics of producers and connections of this producer's client. Thread-safe; sends no request."""
        return self._client.metrics((*PRODUCER_GROUPS, *CLIENT_GROUPS))

    @deferred
    def flush(self, timeout_ms: float | None = None) -> None:
        """Send all rows and messages, and wait until they are acknowledged.

        Parameters
        ----------
        timeout_ms : float, optional
            By default `delivery.timeout.ms` plus `request.timeout.ms`.

        Raises
        ------
        KafkaError
            The first failure of columns that was not raised before, also by a result. The message has topic, partition,
            broker, cause, and the number of records with an unknown outcome.
        DeadlineExceeded
            Some rows are not acknowledged yet. They are still being written; `flush` may be called again.
        """
        with timed(self._client.sensors.flushes, self._client.clock):
            self._flush(self._flush_deadline(timeout_ms))

    @deferred
    def close(self, timeout_ms: float | None = None) -> None:
        """Flush, also after earlier failures, then stop; raises as `flush`. A shared client stays open.

        Ctrl-C ends the wait, and drops unacknowledged rows. A further call waits for the end of the sender's thread.
        """
        self._require_caller("close")
        self._assembler.refuse_within_send()
        deadline = self._flush_deadline(timeout_ms)
        if self._closed:
            return self._abort(deadline)
        try:
            self._flush(deadline, despite_failures=True)
        except BaseException as error:
            self._abort(deadline, wait=isinstance(error, Exception))
            if self._thread.in_this_process:  # as in `_abort`
                self._pending.log_failures()
            raise
        self._abort(deadline)
        self._pending.raise_failures()  # the sender may have failed after the flush

    @deferred
    def abort(self) -> None:
        """Stop, and drop unacknowledged rows; those in flight may still be written.

        The sender's thread has ended and its connections are closed on return, unless a connection attempt hangs. The
        compression threads end on their own. Raises `UsageError` within `send` or `send_columns`, as `flush` does.
        """
        self._abort(self._client.deadline(_STOP_MS))

    def _abort(self, deadline: Deadline, *, wait: bool = True) -> None:
        """Stop; wait for the sender's thread until the deadline, at least for a second and at most for `_STOP_MS`.

        `wait`: False after Ctrl-C; a repeated call waits.
        """
        self._assembler.refuse_within_send()  # the sender's thread would wait for this one
        self._closed = True
        if not self._thread.in_this_process:  # a forked child must not touch locks, which may be held forever there
            return
        self._thread.stop()
        try:
            if wait:
                self._thread.join(self._client.deadline(min(_STOP_MS, max(_LEAST_STOP_MS, deadline.remaining_ms()))))
        finally:
            self._compressors.stop()
            if self._interceptors is not None:
                self._interceptors.close()
            if self._owns_client:
                self._client.close()
            self._pending.fail_late_calls()  # again: an error in the thread may have left calls without a result

    @deferred
    def reset_sequences(self, deadline: Deadline) -> None:
        """Drop unsent rows, wait for requests in flight, then restart the sequence numbers of all partitions at 0.

        For a new epoch of the producer: no batch of the old epoch is in flight afterwards. Rows that other threads send
        during this call may be dropped.

        Raises
        ------
        DeadlineExceeded
            Some batches are still in flight, or another thread is in `send_columns`. The call may be repeated.
        """
        self._require_alive()
        error = UsageError("this was not sent: the transaction was aborted")
        with self._assembler.refusing(error):
            # In this order: a thread that waits for memory blocks `discard` until the sender has dropped its batches.
            self._sender.reset_sequences(deadline)
            self._assembler.discard(error, deadline)
            # Again: meanwhile the sender may have taken over rows, which the next transaction would include.
            self._sender.reset_sequences(deadline)
        self._pending.take_failures()

    # -- inside -------------------------------------------------------------------------------

    # `TransactionalProducer` also calls these, and overrides `send_columns`, `_send` and `close`.

    def _flush(self, deadline: Deadline | None = None, *, despite_failures: bool = False) -> None:
        if despite_failures:
            self._require_caller("flush")
            self._require_alive()
        else:
            self._raise_if_unusable("flush")
        self._forget_acknowledged()
        deadline = deadline or self._flush_deadline()
        if not self._assembler.drain(deadline):
            raise DeadlineExceeded("flush: another thread is still sending its columns")
        while late := self._pending.wait(deadline, despite_failures=despite_failures):
            if not (deadline.passed and despite_failures):  # else `close` drops these rows, and logs the failures
                self._raise_if_unusable("flush", closing=despite_failures)
            if deadline.passed:
                raise _not_in_time(late)
            # The failure that ended the wait was raised in another thread.
        self._raise_if_unusable("flush", closing=despite_failures)
        if not despite_failures:
            self._pending.raise_if_refused()
        self._forgets_on_send = True

    def _flush_deadline(self, timeout_ms: float | None = None) -> Deadline:
        # A batch in flight may outlast delivery.timeout.ms by its request.
        longest_ms = self._config.delivery_timeout_ms + self._client.config.request_timeout_ms
        return self._client.deadline(longest_ms if timeout_ms is None else timeout_ms)

    def _add_gauges(self) -> None:
        sensors, total_bytes = self._client.sensors, self._config.buffer_memory_bytes
        sensors.use(PRODUCER_GROUPS)
        sensors.add_gauge("requests-in-flight", self, lambda producer: [((), producer._sender.in_flight)])
        sensors.add_gauge("waiting-threads", self, lambda producer: [((), producer._pending.waiting_for_room)])
        sensors.add_gauge("buffer-total-bytes", self, lambda _: [((), total_bytes)])
        sensors.add_gauge(
            "buffer-available-bytes", self, lambda producer: [((), max(0, total_bytes - producer.held_bytes))]
        )

    def _forget_acknowledged(self) -> None:
        if self._forgets_on_send:
            self._pending.forget_acknowledged()
            self._forgets_on_send = False

    def _require_alive(self) -> None:
        if not self._thread.in_this_process:
            raise UsageError(_FORKED)
        if self._closed:
            raise UsageError("this producer is closed")

    def _require_caller(self, call: str) -> None:
        if self._thread.is_current:
            raise UsageError(f"{call} would wait for its own thread: a callback of a future may only send")

    def _raise_if_unusable(self, call: str, *, closing: bool = False) -> None:
        """Raise in a callback, after a failure that was not raised before, and if the producer is closed or forked."""
        self._require_caller(call)
        if self._thread.in_this_process:
            self._pending.raise_failures()
            if closing:  # another thread may have closed it meanwhile
                return
        self._require_alive()


def _no_topic_name(topic: object) -> UsageError:
    return UsageError(f"topic is {topic!r}; it must be a str")


def _as_kafka_error(error: Exception) -> KafkaError:
    """Return the error itself, or one for an error of user code."""
    if isinstance(error, KafkaError):
        return error
    failed = UsageError(f"this was not sent: {error!r}")
    failed.__cause__ = error
    return failed


def _not_in_time(late: Sequence[ProducerBatch]) -> DeadlineExceeded:
    first, count = late[0], len({(batch.topic, batch.partition) for batch in late})
    failure = f"; the last failure: {first.last_error}" if first.last_error else ""
    error = DeadlineExceeded(
        f"flush: {count} partitions are not acknowledged in time, {first.topic}-{first.partition} among them{failure}",
        topic=first.topic,
        partition=first.partition,
    )
    error.__cause__ = first.last_error
    return error
