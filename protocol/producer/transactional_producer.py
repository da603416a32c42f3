"""A producer of transactions: Java's transactional `KafkaProducer`, sarama's `AsyncProducer` with a transactional id.

For any program, and for Spark's sink, whose tasks hand their transactions over to the driver. The calls that begin and
end a transaction come from one thread, one after the other; records may be sent by several.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

import pyarrow as pa

from protocol.clock import Deadline
from protocol.cluster.client import Client, open_client
from protocol.condition import Condition
from protocol.config import ProducerConfig, parse_producer
from protocol.errors import DeadlineExceeded, KafkaError, UsageError
from protocol.group.member import ConsumerGroupMetadata
from protocol.group.offsets import CommittedOffset
from protocol.kafka_terms import TopicPartition
from protocol.producer.partition_choice import GivenPartitions
from protocol.producer.partitioner import PartitionFunction
from protocol.producer.producer import Producer
from protocol.producer.results import RecordMetadata, SentColumns
from protocol.producer.transaction_session import TransactionSession
from protocol.transaction.identity import TransactionalIdentity
from protocol.transaction.states import TransactionState

_S = TransactionState


class TransactionalProducer(Producer):
    """Writes columns in transactions: `init_transactions` once, then `begin_transaction`, …, `commit_transaction`.

    Both protocols are spoken: since KIP-890 (`transaction.version` 2) each transaction has an epoch of its own.

    Errors, beside those of `Producer`:

    TransactionFailed : the transaction that is open cannot be committed: `abort_transaction`, then begin the next.
    ProducerFenced : a newer producer has come: close this one. Nothing of the open transaction is visible.
    OutcomeUnknown : of a commit or an abort: nobody has said what became of it. Call the same again, or leave it to a
        new producer, and look whether the records are there.
    """

    _session: TransactionSession

    def __init__(
        self,
        client: Client | Mapping[str, object] | None = None,
        config: ProducerConfig | Mapping[str, object] | None = None,
        *,
        partitioner: PartitionFunction | None = None,
        **properties: object,
    ) -> None:
        """Arguments are those of `Producer`. Raises `UsageError` without `transactional.id`."""
        own_or_shared, owns_client, settings = open_client(client, config, properties, parse_producer)
        if settings.transactional_id is None:
            raise UsageError("a producer of transactions needs transactional.id", settings=("transactional.id",))
        session = TransactionSession(own_or_shared, settings.transactional_id, settings.transaction_timeout_ms)
        super().__init__(own_or_shared, settings, partitioner=partitioner, session=session)
        self._owns_client = owns_client
        self._sends = 0
        self._aborted = False
        self._no_send = Condition()

    @property
    def transaction_state(self) -> TransactionState:
        return self._session.state

    # -- transactions -------------------------------------------------------------------------

    def init_transactions(self, deadline: Deadline | None = None, *, transactional_id: str | None = None) -> None:
        """Fences every older producer of this transactional id, and has its open transaction aborted.

        `transactional_id`: from now on this producer is that one's; what it has handed over is not touched. Raises
        `DeadlineExceeded` (it may be called again), `BrokerError`.
        """
        self._session.init(deadline or self._client.deadline(), transactional_id)

    def begin_transaction(self, deadline: Deadline | None = None) -> None:
        """The coordinator hears of it with the first record, or offset.

        Waits for threads that still send to the one before, which was aborted: their records belong to none.
        """
        self._session.require(_S.READY)
        self._wait_for_sends(deadline)
        if self._aborted:
            self.begin_anew()
            self._aborted = False
        self._raise_if_unusable("begin_transaction")
        self._session.begin(deadline or self._client.deadline(), self.begin_anew)

    def send_columns(
        self, topic: str, columns: pa.RecordBatch, partitions: GivenPartitions | None = None
    ) -> SentColumns:
        """As `Producer.send_columns`, within a transaction. After any error that must be aborted."""
        with self._in_transaction():
            return super().send_columns(topic, columns, partitions)

    def send(self, topic: str, value: bytes | str | None, **fields: Any) -> Future[RecordMetadata]:
        """As `Producer.send`, within a transaction. After any error, also of its future, that must be aborted."""
        with self._in_transaction():
            return super().send(topic, value, **fields)

    @contextmanager
    def _in_transaction(self) -> Iterator[None]:
        with self._let_in():
            try:
                yield
            except KafkaError as error:
                self._session.failed(error)
                raise

    @contextmanager
    def _let_in(self) -> Iterator[None]:
        with self._no_send:
            self._session.require(_S.IN_TRANSACTION)
            self._sends += 1
        try:
            yield
        finally:
            with self._no_send:
                self._sends -= 1
                self._no_send.notify_all()

    def _wait_for_sends(self, deadline: Deadline | None) -> None:
        """Until whoever was let in has sent: what comes later belongs to no transaction, and could break the next one.

        Raises `DeadlineExceeded`, and `UsageError` where nobody may wait.
        """
        self._require_caller("the begin or end of a transaction")
        self._require_alive()
        deadline = deadline or self._client.deadline()
        with self._no_send:
            if not self._no_send.wait_for(lambda: not self._sends, deadline.remaining_s()):
                raise DeadlineExceeded("another thread still sends")

    def send_offsets_to_transaction(
        self,
        offsets: Mapping[TopicPartition, CommittedOffset],
        group_metadata: ConsumerGroupMetadata,
        deadline: Deadline | None = None,
    ) -> None:
        """Commits a group's offsets when, and only if, this transaction is committed.

        `group_metadata`: `KafkaConsumer.group_metadata()`; a group refuses those of a member that has lost its claims.
        """
        if offsets:
            with self._let_in():
                self._session.send_offsets(offsets, group_metadata, deadline or self._client.deadline())

    def commit_transaction(self, deadline: Deadline | None = None) -> None:
        """Flushes, and commits. Returns only when the coordinator has said that it is committed.

        Waits for threads that are sending; what others send meanwhile is refused. `DeadlineExceeded` while it waits or
        flushes leaves the transaction as it was.
        """
        if self._session.state is not _S.COMMITTING_TRANSACTION:
            with self._session.flushing():
                self._wait_for_sends(deadline)
                self.flush(deadline)
        self._session.begin_to_end(commit=True)
        self._session.end(commit=True, deadline=deadline or self._client.deadline())

    def abort_transaction(self, deadline: Deadline | None = None) -> None:
        """Drops what is not sent yet, and aborts. Waits for no thread that is sending: what it sends fails."""
        self._require_caller("abort_transaction")
        self._session.begin_to_end(commit=False)
        self._aborted = True
        self.begin_anew()
        self._session.end(commit=False, deadline=deadline or self._client.deadline())

    def prepare_transaction(self, deadline: Deadline | None = None) -> TransactionalIdentity:
        """Flushes, and hands the transaction over: whoever has this identity ends it, with `end_transaction`.

        This producer may begin another one only with `init_transactions`: that of the same transactional id aborts
        what is open by then, that of another one does not.
        """
        with self._session.flushing():
            self._wait_for_sends(deadline)
            self.flush(deadline)
        return self._session.prepare()

    # -- the end ------------------------------------------------------------------------------

    def __enter__(self) -> TransactionalProducer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with suppress(KafkaError) if kind is not None else nullcontext():
            self.close()

    def close(self, deadline: Deadline | None = None) -> None:
        """Aborts a transaction that is open, unless it was handed over. The client stays open."""
        try:
            if self._session.state in (_S.IN_TRANSACTION, _S.ABORTABLE_ERROR, _S.ABORTING_TRANSACTION):
                self.abort_transaction(deadline)
        finally:
            self.abort()
