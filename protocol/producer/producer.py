"""Rows and messages in, acknowledged record batches out: sarama's `AsyncProducer`, for Arrow columns.

Rows are partitioned, gathered until a record batch is full, and encoded in the caller's thread (`intake`), except that
several record batches are compressed at a time, in threads of their own. Another thread (`sender`) sends them to the
partitions' leaders, several requests under way per broker, and sees to answers, retries and deadlines. Used by Spark's
sink (one producer per task) and by programs. Safe for several threads.
"""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa

from protocol.clock import Deadline
from protocol.cluster.client import Client, open_client
from protocol.config import ProducerConfig, parse_producer
from protocol.errors import DeadlineExceeded, UsageError
from protocol.kafka_terms import TopicPartition
from protocol.producer.delivery import Deliveries, Delivery, ProducedRange
from protocol.producer.idempotence import AnonymousSession, IdempotentSession, ProducerSession
from protocol.producer.intake import Intake
from protocol.producer.messages import Headers, Message
from protocol.producer.partition_choice import GivenPartitions, PartitionChoice
from protocol.producer.partitioner import PartitionFunction
from protocol.producer.results import RecordMetadata, SentColumns
from protocol.producer.sender import Sender
from protocol.records.encode import encode_batches

log = logging.getLogger(__name__)

# To close a producer takes no longer, whatever hangs.
_STOP_MS = 10_000
_MOST_COMPRESSORS = min(4, os.cpu_count() or 1)

T = TypeVar("T")
R = TypeVar("R")


class Producer:
    """Writes columns, and single messages, to topics.

    With idempotence (the default) every row is written once, and in order within its partition, whatever breaks on
    the way, or it fails: then `flush` raises, and so does its result. Rows wait until their partition has `batch.size`
    bytes of them, for `linger.ms`, or until `flush`. `buffer.memory` bounds what is not acknowledged yet: who sends
    waits when there is more, as long as `max.block.ms`.

    Not to be used after a fork: the child makes a producer of its own.
    `partitioner` chooses partitions in place of what `config` says; see `PartitionFunction`.
    `session` is for transactions (`TransactionalProducer`); None is an idempotent or anonymous one, as `config` says.
    """

    def __init__(
        self,
        client: Client | Mapping[str, object] | None = None,
        config: ProducerConfig | Mapping[str, object] | None = None,
        *,
        partitioner: PartitionFunction | None = None,
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
        self._deliveries = Deliveries(self._client.words)
        encode = partial(encode_batches, compression=settings.compression_type, level=settings.compression_level)
        self._compressors = ThreadPoolExecutor(_MOST_COMPRESSORS, "produce-compress")
        encode_together = partial(encode, map_each=partial(_map_by, self._compressors))
        self._sender = Sender(self._client, settings, self._session, self._deliveries, encode)
        choice = PartitionChoice(self._client, settings, self._sender.busy, partitioner)
        self._intake = Intake(
            settings,
            self._client.clock,
            choice,
            encode_together,
            self._deliveries,
            self._sender.put,
            self._session.failed,
        )
        self._flushed = False
        self._closed = False
        self._sender.start(self._intake.hand_over_due, self._intake.close)
        # The threads do not know this object: they end when nobody else does. What is called at the end of the program
        # may still flush.
        weakref.finalize(self, _stop, self._sender, self._compressors).atexit = False

    def __enter__(self) -> Producer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    # -- in -----------------------------------------------------------------------------------

    def send_columns(
        self, topic: str, columns: pa.RecordBatch, partitions: GivenPartitions | None = None
    ) -> SentColumns:
        """Takes rows in. What it returns tells where they are, once they are acknowledged, to who asks.

        Parameters
        ----------
        columns : `value: binary` (null: a tombstone), and if wanted `key: binary`, `timestamp_ms: int64` (null: now)
            and `headers: list<struct<key: string, value: binary>>`.
        partitions : the partition of each row; where it is null, and without it, the partitioner chooses.

        Raises
        ------
        UsageError : wrong columns, a partition the topic does not have; nothing of these columns was sent then. (A
            record above `max.request.size` fails alone: what is returned tells, else the next call.)
        KafkaError : earlier columns could not be written (as `flush` would say), the topic is not there, or memory
            stays full.
        """
        self._raise_if_unusable("send_columns")
        self._begin_account()
        sent = self._intake.take_columns(topic, columns, partitions)
        if self._config.linger_ms is not None:
            self._sender.wake()
        return sent

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
        """Takes one message in. Its future tells where it is, or why it was not written; nothing else does.

        Callbacks of futures (`add_done_callback`) run in the producer's thread: they may `send`, but neither wait nor
        take long. Raises as `send_columns`, and `UsageError` for what is no message.
        """
        self._require_alive()
        in_callback = self._sender.is_current_thread
        time_ms = self._client.clock.wall_ms() if timestamp_ms is None else timestamp_ms
        message = Message(value, key, headers, time_ms, partition)
        self._intake.look_up(topic, partition, wait=not in_callback)
        if not in_callback:
            self._intake.wait_for_room(message.size_bytes)
        future, wake = self._intake.messages.append(topic, message, self._client.clock.now_s())
        if wake:
            self._sender.wake()
        return future

    def send_and_wait(
        self, topic: str, value: bytes | str | None, *, deadline: Deadline | None = None, **fields: Any
    ) -> RecordMetadata:
        """Send one message without waiting for `linger.ms`, and return where it was written.

        Parameters
        ----------
        topic, value, **fields
            As of `send`.
        deadline : Deadline, optional
            By default as of `flush`.

        Raises
        ------
        KafkaError
            The message was not written.
        DeadlineExceeded
            It is not acknowledged in time, and may still be written.
        """
        self._require_caller("send_and_wait")
        deadline = deadline or self._flush_deadline()
        future = self.send(topic, value, **fields)
        self._intake.drain()
        self._sender.wake()
        try:
            return future.result(deadline.remaining_s())
        except FutureTimeout as error:
            raise DeadlineExceeded(f"a message for {topic} is not acknowledged in time", topic=topic) from error

    # -- out ----------------------------------------------------------------------------------

    @property
    def acknowledged(self) -> dict[TopicPartition, ProducedRange]:
        """What brokers have confirmed, by (topic, partition): after a flush, what that flush brought.

        The account begins anew with what follows a flush.
        """
        return self._deliveries.acknowledged_now()

    @property
    def requests(self) -> int:
        """How many Produce requests went out."""
        return self._sender.requests

    def flush(self, deadline: Deadline | None = None) -> None:
        """Sends everything and waits until it is acknowledged; by default as long as `delivery.timeout.ms` allows.

        Raises the first failure of columns since the last one raised (by a result, too). It names topic, partition,
        broker, the last cause, and how many records have an unknown outcome. `DeadlineExceeded`: the deadline came
        first; what is unacknowledged is still being written, and `flush` may be called again.
        """
        self._raise_if_unusable("flush")
        self._flush(deadline)

    def close(self, deadline: Deadline | None = None) -> None:
        """Flushes, whatever has failed before, then takes nothing more; raises as `flush`.

        The client stays open: it belongs to the caller.
        """
        self._require_caller("close")
        if not self._closed:
            try:
                self._flush(deadline, despite_failures=True)
            finally:
                self.abort()

    def abort(self) -> None:
        """Drops what is not acknowledged yet; what is under way may still be written. Takes nothing more.

        When it returns the sender's thread and connections are gone, except when a connection attempt hangs; threads
        that compress end by themselves.
        """
        self._closed = True
        _stop(self._sender, self._compressors)
        self._sender.join(self._client.deadline(_STOP_MS))
        if self._owns_client and self._sender.in_this_process:
            self._client.close()

    def begin_anew(self) -> None:
        """Drops what is not sent yet, and waits for the answers to what is; then every partition counts from 0 again.

        For a new epoch of the session's identity: nothing of the one before is under way any more. What others send
        meanwhile may be dropped or not.
        """
        self._require_alive()
        # In this order: who waits for room holds up who discards.
        self._sender.begin_anew(self._client.deadline())
        self._intake.discard(UsageError("this was not sent: the transaction was given up"))
        self._deliveries.take_failures()

    # -- inside -------------------------------------------------------------------------------

    def _flush(self, deadline: Deadline | None, *, despite_failures: bool = False) -> None:
        self._require_caller("flush")
        self._require_alive()
        self._begin_account()
        deadline = deadline or self._flush_deadline()
        self._intake.drain()
        # It may have come in vain for what others have sent meanwhile.
        self._sender.wake()
        while late := self._deliveries.wait(deadline, despite_failures=despite_failures):
            self._raise_if_unusable("flush")
            if deadline.passed:
                raise _not_in_time(late)
            # What ended the wait is a failure that another thread has been told of meanwhile.
        self._raise_if_unusable("flush")
        self._flushed = True

    def _flush_deadline(self) -> Deadline:
        # A batch may outlast delivery.timeout.ms by the request that it is in.
        return self._client.deadline(self._config.delivery_timeout_ms + self._client.config.request_timeout_ms)

    def _begin_account(self) -> None:
        if self._flushed:
            self._flushed = False
            self._deliveries.begin_account()

    def _require_alive(self) -> None:
        if not self._sender.in_this_process:
            raise UsageError("this producer was made before a fork: make one in this process")
        if self._closed:
            raise UsageError("this producer is closed")

    def _require_caller(self, call: str) -> None:
        if self._sender.is_current_thread:
            raise UsageError(f"{call} would wait for the thread that it is called in: a callback may only send")

    def _raise_if_unusable(self, call: str) -> None:
        self._require_caller(call)
        if self._sender.in_this_process:
            self._deliveries.raise_failures()
        self._require_alive()


def _map_by(threads: ThreadPoolExecutor, call: Callable[[T], R], items: Sequence[T]) -> Iterable[R]:
    """As `map`, by these threads; without them when they take nothing more: the program ends, or `abort` was called."""
    try:
        return threads.map(call, items)
    except RuntimeError:
        return map(call, items)


def _stop(sender: Sender, compressors: ThreadPoolExecutor) -> None:
    """Waits for nothing. A forked child leaves the threads alone, and their locks, which may be held for ever there."""
    if sender.in_this_process:
        sender.stop()
        compressors.shutdown(wait=False)


def _not_in_time(late: Sequence[Delivery]) -> DeadlineExceeded:
    first, count = late[0], len({(each.topic, each.partition) for each in late})
    trouble = f"; the last failure: {first.trouble}" if first.trouble else ""
    error = DeadlineExceeded(
        f"flush: {count} partitions are not acknowledged in time, {first.topic}-{first.partition} among them{trouble}",
        topic=first.topic,
        partition=first.partition,
    )
    error.__cause__ = first.trouble
    return error
