"""A transactional producer: Java's transactional `KafkaProducer`, sarama's `AsyncProducer` with a transactional id.

It can hand its open transaction over to another process, which then commits or aborts it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import nullcontext, suppress
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import pyarrow as pa

from protocol.base.clock import Deadline
from protocol.base.condition import Condition
from protocol.base.interrupts import deferred
from protocol.cluster.client import Client, open_client
from protocol.config import ProducerConfig, parse_producer
from protocol.errors import DeadlineExceeded, KafkaError, OutcomeLost, OutcomeUnknown, UsageError
from protocol.group.commits.committed_offsets import CallerOffsets, as_committed_offsets
from protocol.group.member import ConsumerGroupMetadata
from protocol.metrics.sensor import timed
from protocol.producer.interceptors import ProducerInterceptor
from protocol.producer.partition_choice import GivenPartitions
from protocol.producer.partitioner import PartitionFunction
from protocol.producer.producer import Producer
from protocol.producer.results import RecordMetadata, SentColumns
from protocol.producer.retry_backoff import BackoffFunction
from protocol.producer.transaction_session import TransactionSession
from protocol.settings.secret import hide_variables
from protocol.transaction.states import TransactionalIdentity, TransactionState

_S = TransactionState
_OPEN = (_S.IN_TRANSACTION, _S.FLUSHING, _S.ABORTABLE_ERROR, _S.ABORTING_TRANSACTION)

P = ParamSpec("P")
T = TypeVar("T")


def _transaction_call(
    sensor: str,
) -> Callable[[Callable[Concatenate[TransactionalProducer, P], T]], Callable[Concatenate[TransactionalProducer, P], T]]:
    """Record the time of a method that returns in a sensor; refuse it in a signal handler within such a method."""

    def wrap(
        method: Callable[Concatenate[TransactionalProducer, P], T],
    ) -> Callable[Concatenate[TransactionalProducer, P], T]:
        @wraps(method)
        @deferred
        def call(producer: TransactionalProducer, /, *arguments: P.args, **named: P.kwargs) -> T:
            if (thread_id := threading.get_ident()) in producer._calling:
                raise _already_in_transaction()
            try:
                producer._calling.add(thread_id)
                with timed(getattr(producer.client.sensors, sensor), producer.client.clock):
                    return method(producer, *arguments, **named)
            finally:
                producer._calling.discard(thread_id)

        return call

    return wrap


def _already_in_transaction() -> UsageError:
    return UsageError(
        "this thread is already in a call of the transaction: a signal handler, an interceptor or a partitioner must "
        "not begin or end it meanwhile; set a flag, and do so afterwards"
    )


class TransactionalProducer(Producer):
    """Writes Arrow columns and messages in transactions.

    Call `init_transactions` once, then repeatedly `begin_transaction`, send, and `commit_transaction`. Supports
    transaction version 2 (KIP-890), with an epoch per transaction, and version 1.

    After any error of a send, also of its future, abort the transaction.

    Thread rule: the calls that begin and end a transaction come from one thread, one after the other. Any thread may
    send.

    Parameters
    ----------
    client, config, partitioner, interceptors, retry_backoff, **properties
        As of `Producer`; `transactional.id` is required.

    Raises
    ------
    UsageError
        `transactional.id` is not set.
    TransactionFailed
        By later calls: the open transaction cannot be committed. Call `abort_transaction`, then begin the next one.
    ProducerFenced
        By later calls: a newer producer exists. Close this one; its open transaction is aborted.
    OutcomeUnknown
        By commit and abort: no reply told the outcome. Repeat the call.
    OutcomeLost
        By commit and later calls: the transaction may be committed or aborted, and this producer cannot find out. Use a
        new one, and check whether the records are visible.
    """

    _session: TransactionSession

    @hide_variables
    def __init__(
        self,
        client: Client | Mapping[str, object] | None = None,
        config: ProducerConfig | Mapping[str, object] | None = None,
        *,
        partitioner: PartitionFunction | None = None,
        interceptors: Iterable[ProducerInterceptor] = (),
        retry_backoff: BackoffFunction | None = None,
        **properties: object,
    ) -> None:
        """Arguments are those of `Producer`. Raises `UsageError` without `transactional.id`."""
        own_or_shared, owns_client, settings = open_client(client, config, properties, parse_producer)
        if settings.transactional_id is None:
            raise UsageError("a producer of transactions needs transactional.id", settings=("transactional.id",))
        session = TransactionSession(own_or_shared, settings.transactional_id, settings.transaction_timeout_ms)
        super().__init__(
            own_or_shared,
            settings,
            partitioner=partitioner,
            interceptors=interceptors,
            retry_backoff=retry_backoff,
            session=session,
        )
        self._owns_client = owns_client  # `Producer` sees a shared client
        # The thread of each call that is sending.
        self._sending_threads: list[int] = []
        # Threads in a call that begins or ends a transaction.
        self._calling: set[int] = set()
        # True after an abort: the next begin drops records that other threads have sent since. `TransactionSession.end`
        # decides whether it also needs an epoch.
        self._aborted = False
        self._sends_changed = Condition()

    @property
    def transaction_state(self) -> TransactionState:
        """State of the producer, as in Java's `TransactionManager`."""
        return self._session.state

    # -- transactions -------------------------------------------------------------------------

    @_transaction_call("txn_init")
    def init_transactions(self, timeout_ms: float | None = None, *, transactional_id: str | None = None) -> None:
        """Fence all older producers of the transactional id, and wait until their open transaction is aborted.

        Parameters
        ----------
        timeout_ms : float, optional
            By default `default.api.timeout.ms`.
        transactional_id : str, optional
            Replaces this producer's transactional id. The transaction that was handed over remains open.

        Raises
        ------
        DeadlineExceeded
            The call may be repeated.
        BrokerError
        """
        self._require_alive()  # else it would fence the producer that has this transactional id now
        self._session.init(self._client.deadline(timeout_ms), transactional_id)

    @_transaction_call("txn_begin")
    def begin_transaction(self, timeout_ms: float | None = None) -> None:
        """Begin a transaction. The coordinator learns of it with the first record or offset.

        Waits for threads that are still sending to a previous, aborted transaction; their records are dropped.

        Parameters
        ----------
        timeout_ms : float, optional
            By default `default.api.timeout.ms`.

        Raises
        ------
        DeadlineExceeded
            The call may be repeated.
        """
        deadline = self._client.deadline(timeout_ms)
        self._session.require(_S.READY)
        self._wait_for_sends(deadline)
        if self._aborted:
            self.reset_sequences(deadline)
            self._aborted = False
        self._raise_if_unusable("begin_transaction")
        self._session.begin(deadline, partial(self.reset_sequences, deadline))

    @deferred
    def send_columns(
        self, topic: str, columns: pa.RecordBatch, partitions: GivenPartitions | None = None
    ) -> SentColumns:
        """Send columns within the transaction, as `Producer.send_columns`. After any error, abort it."""
        return self._in_transaction(partial(super().send_columns, topic, columns, partitions))

    @deferred
    def _send(self, *message: Any, **fields: Any) -> Future[RecordMetadata]:
        """Send a message within the transaction, as `Producer.send`."""
        return self._in_transaction(partial(super()._send, *message, **fields))

    def _in_transaction(self, send: Callable[[], T]) -> T:
        def fail_on_errors() -> T:
            try:
                return send()
            except KafkaError as error:
                self._session.failed(error)
                raise

        return self._count_send(fail_on_errors)

    def _count_send(self, call: Callable[[], T]) -> T:
        thread_id = threading.get_ident()
        self._require_alive()  # before the lock: after a fork, another thread may hold it forever
        with self._sends_changed:
            self._session.require(_S.IN_TRANSACTION)
            self._sending_threads.append(thread_id)
        try:
            return call()
        finally:
            with self._sends_changed:
                self._sending_threads.remove(thread_id)
                self._sends_changed.notify_all()

    def _wait_for_sends(self, deadline: Deadline) -> None:
        """Wait for threads in `send`: records accepted later would belong to no transaction, or to the next one.

        Raises `DeadlineExceeded`, or `UsageError` in the producer's own thread and within a call that is sending.
        """
        self._require_caller("the begin or end of a transaction")
        self._require_alive()
        if threading.get_ident() in self._sending_threads:
            raise _already_in_transaction()
        with self._sends_changed:
            while self._sending_threads:
                if deadline.remaining_s() <= 0:
                    raise DeadlineExceeded("another thread is still sending")
                self._sends_changed.wait(deadline.remaining_s())

    @_transaction_call("txn_send_offsets")
    def send_offsets_to_transaction(
        self,
        offsets: CallerOffsets,
        group_metadata: ConsumerGroupMetadata,
        timeout_ms: float | None = None,
    ) -> None:
        """Commit a group's offsets together with this transaction.

        Parameters
        ----------
        offsets : mapping of TopicPartition to CommittedOffset or int
            Nothing is done if empty.
        group_metadata : ConsumerGroupMetadata
            From `KafkaConsumer.group_metadata()`. The group refuses the offsets of a member that it has fenced.
        timeout_ms : float, optional
            By default `default.api.timeout.ms`.

        Raises
        ------
        UsageError
            An offset is negative, or Kafka cannot store it. The transaction may continue.
        TopicRecreated
            An offset belongs to a deleted topic, and a new topic has its name: abort the transaction.
        """
        if not isinstance(group_metadata, ConsumerGroupMetadata):
            raise UsageError(
                f"group_metadata is {type(group_metadata).__name__}, not what `KafkaConsumer.group_metadata()` returns"
            )
        if checked := as_committed_offsets(offsets):
            deadline = self._client.deadline(timeout_ms)
            self._count_send(lambda: self._session.send_offsets(checked, group_metadata, deadline))

    @_transaction_call("txn_commit")
    def commit_transaction(self, timeout_ms: float | None = None) -> None:
        """Flush and commit. Returns when the coordinator has confirmed the commit.

        Waits for threads that are sending, and refuses sends that begin during the wait.

        Raises
        ------
        DeadlineExceeded
            While waiting or flushing: the transaction remains open.
        TransactionFailed, ProducerFenced
            Nothing was committed.
        KafkaError
            Records of the transaction were not written, as in `flush`. Nothing was committed: abort.
        OutcomeUnknown
            Repeat the call.
        OutcomeLost
            The transaction may be committed or aborted, and this producer cannot find out.
        """
        deadline = None if timeout_ms is None else self._client.deadline(timeout_ms)
        self._require_alive()
        if self._session.state is not _S.COMMITTING_TRANSACTION:
            flush = partial(self._flush_sends, deadline)
            self._session.after_flush(flush, partial(self._session.enter_end, commit=True))
        try:
            self._session.end(commit=True, deadline=deadline or self._client.deadline())
        except OutcomeUnknown as error:
            if self._closed:  # meanwhile
                raise OutcomeLost(f"this producer was closed during the commit: {error}") from error
            raise

    @_transaction_call("txn_abort")
    def abort_transaction(self, timeout_ms: float | None = None) -> None:
        """Drop unsent records, wait for the replies to those in flight, and abort.

        Sends of other threads that wait for memory fail at once.

        Parameters
        ----------
        timeout_ms : float, optional
            By default `default.api.timeout.ms`.

        Raises
        ------
        DeadlineExceeded
            Records are still in flight, or another thread is in `send_columns`: repeat the call. The transaction stays
            open, since a record that arrives after its end would open another one.
        OutcomeUnknown
            Repeat the call.
        """
        self._abort_transaction(self._client.deadline(timeout_ms))

    def _abort_transaction(self, deadline: Deadline, *, closing: bool = False) -> None:
        """Refuse sends, await the replies to those in flight, and end the transaction, in this order."""
        self._require_caller("abort_transaction")
        self._require_alive()  # before the locks: after a fork, another thread may hold them forever
        self._assembler.refuse_within_send()
        self._session.enter_end(commit=False)
        self._aborted = True
        if closing and self._session.fences_late_records:
            with suppress(DeadlineExceeded):
                self.reset_sequences(deadline.at_most_ms(deadline.remaining_ms() / 2))
        else:
            self.reset_sequences(deadline)
        self._session.end(commit=False, deadline=deadline)

    @_transaction_call("txn_prepare")
    def prepare_transaction(self, timeout_ms: float | None = None) -> TransactionalIdentity:
        """Flush, and hand the transaction over: any process with the returned identity ends it by `end_transaction`.

        The next call must be `init_transactions`. With the same transactional id it aborts the transaction if it is
        still open; with another one it does not.

        Returns
        -------
        TransactionalIdentity
        """
        deadline = None if timeout_ms is None else self._client.deadline(timeout_ms)
        return self._session.after_flush(partial(self._flush_sends, deadline), self._session.prepare)

    def _flush_sends(self, deadline: Deadline | None) -> None:
        self._wait_for_sends(deadline or self._client.deadline())
        self._flush(deadline)

    # -- closing ------------------------------------------------------------------------------

    def __enter__(self) -> TransactionalProducer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with suppress(KafkaError) if kind is not None else nullcontext():
            self.close()

    @deferred
    def close(self, timeout_ms: float | None = None) -> None:
        """Abort the open transaction, unless it was handed over, and stop the producer. A shared client stays open.

        Also while another thread waits in `commit_transaction` for the last acknowledgements: that call fails. A signal
        handler that interrupts such a call in its own thread does not abort: the coordinator does so after
        `transaction.timeout.ms`.

        With transaction version 2, at most half of the time is for the replies to records in flight, since the abort
        fences later ones. With version 1 it is all of the time: a later record would open another transaction.

        Parameters
        ----------
        timeout_ms : float, optional
            By default `default.api.timeout.ms`.

        Raises
        ------
        DeadlineExceeded
            Records are still in flight, with version 1. The producer is closed, and the coordinator aborts the
            transaction after `transaction.timeout.ms`.
        KafkaError
            As `abort_transaction`. The producer is closed.
        """
        deadline = self._client.deadline(timeout_ms)
        try:
            is_open = self._session.state in _OPEN and not self._closed
            if is_open and threading.get_ident() not in self._calling:
                self._abort_transaction(deadline, closing=True)
        except BaseException as error:
            self._abort(deadline, wait=isinstance(error, Exception))
            raise
        self._abort(deadline)
