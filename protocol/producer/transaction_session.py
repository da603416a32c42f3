"""The transactions of one producer: the identity of its records, the partitions of a transaction, and its errors.

A `ProducerSession`, called by the producer's thread while it sends; `TransactionalProducer` calls it for the program,
one call at a time. `protocol.transaction.states` has the valid state transitions.

The epoch is bumped only between transactions: records with the old epoch would be aborted, and those with the new one
committed alone. A gap in a partition's sequence numbers therefore makes the transaction abortable.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

from protocol.base.clock import Deadline
from protocol.broker_errors import ErrorCode, TransactionEffect, error_row
from protocol.cluster.client import Client
from protocol.cluster.dispatch import is_retriable
from protocol.errors import BrokerError, KafkaError, OutcomeLost, OutcomeUnknown, ProducerFenced, TransactionFailed
from protocol.group.commits.committed_offsets import CommittedOffset
from protocol.group.member import ConsumerGroupMetadata
from protocol.kafka_terms import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_TOPIC_ID, TopicPartition
from protocol.producer.idempotence import ProducerIdentity
from protocol.transaction.coordinator import add_offsets, add_partitions, init_producer_id, speaks_v2
from protocol.transaction.end_transaction import EndedTransaction, TransactionOutcome, end_transaction
from protocol.transaction.states import TransactionalIdentity, TransactionLifecycle, TransactionState
from protocol.wire.messages.m00_produce import LAST_BEFORE_TRANSACTION_V2

_S = TransactionState
_SENDING = (_S.IN_TRANSACTION, _S.FLUSHING)
_FOR_GOOD = (TransactionEffect.FATAL, TransactionEffect.FENCED)

T = TypeVar("T")


class TransactionSession:
    """Transactions of one transactional id. `held` is the identity of the records; producer id -1 before `init`."""

    def __init__(self, client: Client, transactional_id: str, timeout_ms: int) -> None:
        self.transactional_id = transactional_id
        self.held = TransactionalIdentity(transactional_id, NO_PRODUCER_ID, NO_PRODUCER_EPOCH)
        self._client = client
        self._timeout_ms = timeout_ms
        self._lifecycle = TransactionLifecycle(transactional_id)
        # Result of `speaks_v2` at the begin of the transaction (KIP-890).
        self._v2 = False
        # The coordinator may know this transaction.
        self._begun = False
        # The partitions added to it.
        self._partitions: set[TopicPartition] = set()
        # True if an unanswered EndTxn may have ended the transaction, or may still end the next one of this epoch.
        self._maybe_ended = False
        # True if `begin` must bump the epoch first.
        self._needs_epoch = False
        # The identity under which sequence numbers last began at 0.
        self._numbered_as = self.held

    @property
    def state(self) -> TransactionState:
        """The state of the producer."""
        return self._lifecycle.state

    @property
    def fences_late_records(self) -> bool:
        """True if records that arrive after the end of their transaction are refused: it bumps the epoch (KIP-890)."""
        return self._v2

    def require(self, *states: TransactionState) -> None:
        """Raise unless the state is one of `states`: the producer's error, or `UsageError`."""
        self._lifecycle.require(*states)

    # -- called by the producer's threads ---------------------------------------------------------

    @property
    def last_produce_version(self) -> int | None:
        """As `ProducerSession.last_produce_version`."""
        return None if self._v2 else LAST_BEFORE_TRANSACTION_V2

    def identity(self, deadline: Deadline) -> ProducerIdentity:
        """As `ProducerSession.identity`."""
        self.require(*_SENDING)
        return ProducerIdentity(self.held.producer_id, self.held.producer_epoch)

    def successor(self, before: ProducerIdentity, deadline: Deadline) -> ProducerIdentity:
        """Raise `TransactionFailed`: the epoch must not be bumped within a transaction."""
        self.require(*_SENDING)
        raise TransactionFailed(f"the sequence numbers of a partition under {self.held} have a gap")

    def before_produce(self, partitions: Collection[TopicPartition], deadline: Deadline) -> None:
        """Add partitions to the transaction before their first record, if the leaders do not do that (KIP-890)."""
        self.require(*_SENDING)
        self._begun = True
        new = set() if self._v2 else set(partitions) - self._partitions
        if new:
            with self._failing_on_errors():
                add_partitions(self._client, self.held, new, deadline)
            self._partitions |= new

    def failed(self, error: KafkaError) -> None:
        """Record that a write failed, so that the transaction is not committed.

        A leader that knows a newer epoch does not know its reason: the coordinator may have aborted the transaction
        after its timeout. Errors during the commit belong to no transaction, since its records are acknowledged.
        """
        if self.state is _S.COMMITTING_TRANSACTION:
            return
        effect = TransactionEffect.ABORTABLE if _code(error) == ErrorCode.INVALID_PRODUCER_EPOCH else _effect(error)
        if effect is TransactionEffect.FENCED:
            error = self._fenced(error)
        self._lifecycle.failed(error, fatal=effect in _FOR_GOOD)

    # -- called by the program --------------------------------------------------------------------

    def init(self, deadline: Deadline, transactional_id: str | None = None) -> None:
        """Fence older producers of the transactional id and abort their open transaction.

        `transactional_id` replaces the transactional id. Raises `BrokerError`, or `DeadlineExceeded`: the call may be
        repeated.
        """
        self.require(_S.UNINITIALIZED, _S.PREPARED_TRANSACTION)
        if transactional_id is not None:
            self.transactional_id = transactional_id
            self.held = TransactionalIdentity(transactional_id, NO_PRODUCER_ID, NO_PRODUCER_EPOCH)
            self._lifecycle = TransactionLifecycle(transactional_id)
        self._initialize(deadline)

    def begin(self, deadline: Deadline, reset_sequences: Callable[[], None]) -> None:
        """Begin a transaction. `reset_sequences`: for a new epoch, before any record."""
        self.require(_S.READY)
        if self._needs_epoch:
            self._initialize(deadline, self.held)
        self._v2 = speaks_v2(self._client, self.transactional_id, deadline)
        if self._numbered_as != self.held:
            reset_sequences()
            self._numbered_as = self.held
        self._begun, self._maybe_ended = False, False
        self._partitions.clear()
        self._lifecycle.transition(_S.IN_TRANSACTION)

    def _initialize(self, deadline: Deadline, identity: TransactionalIdentity | None = None) -> None:
        with self._failing_on_errors(while_initializing=True):
            self.held = init_producer_id(
                self._client, self.transactional_id, self._timeout_ms, deadline, identity=identity
            )
        self._needs_epoch = False
        self._lifecycle.transition(_S.READY)

    def send_offsets(
        self, offsets: Mapping[TopicPartition, CommittedOffset], group: ConsumerGroupMetadata, deadline: Deadline
    ) -> None:
        """Add a group's offsets to the transaction."""
        self.require(*_SENDING)
        self._begun = True
        offsets = {key: to.assumed_in(group.topic_ids.get(key, NO_TOPIC_ID)) for key, to in offsets.items()}
        with self._failing_on_errors():
            add_offsets(
                self._client,
                self.held,
                group.group_id,
                offsets,
                deadline,
                member=group.member,
                v2=self._v2,
            )

    def after_flush(self, flush: Callable[[], None], then: Callable[[], T]) -> T:
        """Accept no more records, flush, and return `then()`. Accepts records again if either fails."""
        self._lifecycle.transition(_S.FLUSHING)
        try:
            flush()
            return then()
        except BaseException:
            if self.state is _S.FLUSHING:
                self._lifecycle.transition(_S.IN_TRANSACTION)
            raise

    def prepare(self) -> TransactionalIdentity:
        """Hand the transaction over: the returned identity allows another process to end it."""
        self._lifecycle.transition(_S.PREPARED_TRANSACTION)
        return self.held

    def enter_end(self, *, commit: bool) -> None:
        """Enter the state of a commit or abort; raise if that is invalid. May be repeated after an unknown outcome."""
        state = _S.COMMITTING_TRANSACTION if commit else _S.ABORTING_TRANSACTION
        if self.state is not state:
            self._lifecycle.transition(state)

    def end(self, *, commit: bool, deadline: Deadline) -> None:
        """Commit or abort after `enter_end`; raise if the transaction was not ended as requested.

        The caller has flushed before a commit, and reset the sequence numbers before an abort: with version 1, a record
        that arrives later would open another transaction.
        """
        forgotten, identity, maybe_ended = False, self.held, self._maybe_ended
        if self._begun:
            self._maybe_ended = True  # until the outcome is known: Ctrl-C may come after the request was sent
            ended = end_transaction(self._client, identity, commit=commit, deadline=deadline, maybe_ended=maybe_ended)
            maybe_ended = maybe_ended or ended.repeated
            done = ended.outcome is (TransactionOutcome.COMMITTED if commit else TransactionOutcome.ABORTED)
            forgotten = _effect(ended.cause) is TransactionEffect.NEEDS_PRODUCER_ID
            # No transaction is open: its records never reached the coordinator, or that has forgotten the producer id.
            nothing_open = forgotten or _code(ended.cause) == ErrorCode.INVALID_TXN_STATE
            if not done and (commit or not nothing_open):
                self._maybe_ended = maybe_ended
                raise self._not_ended(ended, commit=commit, deadline=deadline)
            identity = ended.identity
        # A forgotten transactional id has expired: it gets a new producer id, which fences any other (KIP-360).
        # Before KIP-890: dropped records may have used sequence numbers, and a late EndTxn must not end the next
        # transaction. Since then each transaction has an epoch.
        self.held = identity
        self._needs_epoch = forgotten or (not self._v2 and (not commit or maybe_ended))
        self._lifecycle.transition(_S.READY)

    def _not_ended(self, ended: EndedTransaction, *, commit: bool, deadline: Deadline) -> KafkaError:
        """Return the error to raise; stay in the state if repeating the call may help."""
        cause = ended.cause
        assert cause is not None
        effect = _effect(cause)
        unknown = ended.outcome is TransactionOutcome.UNKNOWN
        error: KafkaError
        if unknown and (is_retriable(cause) or effect is TransactionEffect.ABORTABLE):
            if not is_retriable(cause):  # the call has not waited until its deadline: callers repeat it at once
                wait_s = self._client.config.retry_backoff_max_ms / 1000
                self._client.clock.sleep_s(min(wait_s, deadline.remaining_s()))
            return _caused(OutcomeUnknown, f"{self.held}: the outcome of the transaction is unknown", cause)
        if unknown and commit:
            problem = (
                "the transaction may be committed or aborted, and this producer cannot find out. Create a new one, "
            )
            error = _caused(OutcomeLost, f"{self.held}: {problem}and check whether the records are visible", cause)
            for_good = True
        elif effect is TransactionEffect.FENCED or ended.outcome is TransactionOutcome.ABORTED:
            # The coordinator aborted the transaction: for a newer producer, or after the transaction timeout.
            error = _caused(ProducerFenced, f"{self.held}: nothing was committed", cause)
            for_good = True
        else:
            error = _caused(TransactionFailed, f"{self.held}: nothing was committed", cause)
            for_good = effect in _FOR_GOOD
        self._lifecycle.failed(error, fatal=for_good)
        return error

    # -- errors -----------------------------------------------------------------------------------

    @contextmanager
    def _failing_on_errors(self, *, while_initializing: bool = False) -> Iterator[None]:
        """Change the state on errors of the coordinator; `while_initializing`: every non-retriable error is fatal."""
        try:
            yield
        except KafkaError as error:
            effect = _effect(error)
            if effect is TransactionEffect.FENCED:
                fenced = self._fenced(error)
                self._lifecycle.failed(fenced, fatal=True)
                raise fenced from error
            if while_initializing and not is_retriable(error):
                self._lifecycle.failed(error, fatal=True)
            elif not while_initializing:
                self._lifecycle.failed(error, fatal=effect in _FOR_GOOD)
            raise

    def _fenced(self, cause: KafkaError) -> KafkaError:
        return _caused(ProducerFenced, f"{self.held}: a newer producer exists", cause)


def _code(error: KafkaError | None) -> int | None:
    return error.code if isinstance(error, BrokerError) else None


def _effect(error: KafkaError | None) -> TransactionEffect:
    """Return the effect of a broker's code, from `broker_errors`; other errors make a transaction abortable."""
    return error_row(error.code).transaction_effect if isinstance(error, BrokerError) else TransactionEffect.ABORTABLE


def _caused(kind: type[KafkaError], problem: str, cause: KafkaError) -> KafkaError:
    error = kind(f"{problem}: {cause}", **cause.context)
    error.__cause__ = cause
    return error
