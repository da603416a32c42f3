"""Interceptors of a producer, after Java's `ProducerInterceptor`: they change what is sent, and see the results.

`producer` calls them before rows and messages are accepted; acknowledgements come from the `sender` thread.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from functools import partial
from typing import NamedTuple, TypeVar

import pyarrow as pa

from protocol.base.interrupts import interruptible
from protocol.errors import KafkaError
from protocol.kafka_terms import NO_PARTITION
from protocol.producer.messages import ProducerMessage
from protocol.producer.results import BatchResult, RecordMetadata

log = logging.getLogger(__name__)

T = TypeVar("T")


class BatchMetadata(NamedTuple):
    """Location of consecutive rows of one partition that were sent as columns.

    Attributes
    ----------
    partition : int
        -1 if unknown: the rows have failed before a partition was chosen.
    first_offset : int
        -1 if unknown: the rows have failed, or acks=0.
    """

    topic: str
    partition: int
    first_offset: int
    row_count: int


class ProducerInterceptor:
    """Hooks of a `Producer`; override those of interest.

    An exception of a hook is logged, and changes neither the record nor its result: the next interceptor gets what the
    failed one got. Interceptors run in the order in which they were given.
    """

    def on_send(self, message: ProducerMessage) -> ProducerMessage:
        """Return the message to send, this one or a changed one.

        Called by `send`, `send_and_wait` and `send_many` in the caller's thread, before the partition is chosen.
        """
        return message

    def on_send_columns(self, topic: str, columns: pa.RecordBatch) -> pa.RecordBatch:
        """Return the columns to send, with as many rows. Called by `send_columns` in the caller's thread."""
        return columns

    def on_acknowledgement(self, metadata: RecordMetadata, error: KafkaError | None) -> None:
        """Handle the result of a message, before callbacks of its future.

        Called in the producer's thread, which sends nothing meanwhile, or in the caller's if `send` raises.

        Parameters
        ----------
        metadata : RecordMetadata
            After a failure the offset is -1, and the partition if it is not known.
        error : KafkaError or None
        """

    def on_acknowledgement_columns(self, metadata: BatchMetadata, error: KafkaError | None) -> None:
        """Handle the result of rows of one partition, once per record batch. Threads as of `on_acknowledgement`."""

    def close(self) -> None:
        """Release resources. Called once, by `Producer.close` or `Producer.abort`."""


class Interceptors:
    """The interceptors of one producer, in order.

    `producer` calls a `*_failed` method for each `Exception` that a send raises after `on_send`. The `*_done` methods
    report results in the thread that completes the rows, without any lock.
    """

    def __init__(self, interceptors: Iterable[ProducerInterceptor]) -> None:
        self._interceptors = tuple(interceptors)
        self._closed = False

    # -- before sending -----------------------------------------------------------------------

    def on_send(self, message: ProducerMessage) -> ProducerMessage:
        """Return the message as the interceptors change it."""

        def check(changed: ProducerMessage) -> None:
            if not isinstance(changed, ProducerMessage):
                raise TypeError(f"on_send returned {type(changed).__name__}; it must return a ProducerMessage")

        for interceptor in self._interceptors:
            message = _changed(interceptor, "on_send", message, interceptor.on_send, check)
        return message

    def on_send_columns(self, topic: str, columns: pa.RecordBatch) -> pa.RecordBatch:
        """Return the columns as the interceptors change them."""
        rows = columns.num_rows

        def check(changed: pa.RecordBatch) -> None:
            if not isinstance(changed, pa.RecordBatch) or changed.num_rows != rows:
                raise TypeError(f"on_send_columns must return a pyarrow.RecordBatch with {rows} rows")

        for interceptor in self._interceptors:
            columns = _changed(
                interceptor, "on_send_columns", columns, partial(interceptor.on_send_columns, topic), check
            )
        return columns

    # -- results ------------------------------------------------------------------------------

    def message_failed(self, message: ProducerMessage, error: KafkaError) -> None:
        """Report a message that `send` does not accept."""
        number = message.partition if isinstance(message.partition, int) else NO_PARTITION
        self._acknowledge(RecordMetadata(message.topic, number, -1, -1), error)

    def message_done(self, message: ProducerMessage, done: Future[RecordMetadata]) -> None:
        """Report the result of a message: a callback of its future."""
        error = done.exception()
        if error is None:
            return self._acknowledge(done.result(), None)
        assert isinstance(error, KafkaError)
        partition = NO_PARTITION if message.partition is None else message.partition
        self._acknowledge(RecordMetadata(message.topic, error.context.get("partition", partition), -1, -1), error)

    def columns_failed(self, topic: str, columns: pa.RecordBatch, error: KafkaError) -> None:
        """Report columns that `send_columns` does not accept."""
        metadata = BatchMetadata(topic, NO_PARTITION, -1, columns.num_rows)
        self._tell(
            "on_acknowledgement_columns", lambda interceptor: interceptor.on_acknowledgement_columns(metadata, error)
        )

    def rows_done(self, topic: str, partition: int, count: int, result: BatchResult) -> None:
        """Report the result of rows of one partition."""
        metadata = BatchMetadata(topic, partition, -1 if result.error else result.base_offset, count)
        self._tell(
            "on_acknowledgement_columns",
            lambda interceptor: interceptor.on_acknowledgement_columns(metadata, result.error),
        )

    def close(self) -> None:
        """Close all interceptors, once."""
        if not self._closed:
            self._closed = True
            self._tell("close", lambda interceptor: interceptor.close())

    def _acknowledge(self, metadata: RecordMetadata, error: KafkaError | None) -> None:
        self._tell("on_acknowledgement", lambda interceptor: interceptor.on_acknowledgement(metadata, error))

    def _tell(self, hook: str, call: Callable[[ProducerInterceptor], None]) -> None:
        for interceptor in self._interceptors:
            try:
                interruptible(call, interceptor)
            except Exception as error:
                _log(interceptor, hook, error)
            except BaseException as error:  # such as SystemExit, which must not end the producer's thread
                if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
                    raise
                _log(interceptor, hook, error)


def _changed(
    interceptor: ProducerInterceptor, hook: str, argument: T, call: Callable[[T], T], check: Callable[[T], None]
) -> T:
    try:
        changed = interruptible(call, argument)
        check(changed)
    except Exception as error:
        _log(interceptor, hook, error)
        return argument
    return changed


def _log(interceptor: ProducerInterceptor, hook: str, error: BaseException) -> None:
    log.warning("%s of interceptor %s has failed: %r", hook, type(interceptor).__name__, error, exc_info=error)
