"""The transactions of one producer: which identity its records carry, what belongs to a transaction, what breaks it.

A `ProducerSession`, so it is called by the producer while it sends; `TransactionalProducer` has the calls of a program.
The producer's thread may send while a program's calls it; those come one after the other. Which state may follow which
is data (`protocol.transaction.states`).

An epoch is raised only between transactions, never within one: records under the old epoch would be aborted, and those
under the new one committed alone. So whatever breaks the numbering of a partition breaks the transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager

from protocol.broker_errors import Breaks, ErrorCode, error_row
from protocol.clock import Deadline
from protocol.cluster.client import Client
from protocol.cluster.dispatch import is_retriable
from protocol.errors import BrokerError, KafkaError, OutcomeUnknown, ProducerFenced, TransactionFailed
from protocol.group.member import ConsumerGroupMetadata
from protocol.group.offsets import CommittedOffset
from protocol.kafka_terms import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, TopicPartition
from protocol.producer.idempotence import ProducerIdentity
from protocol.transaction.coordinator import add_offsets, add_partitions, init_producer_id, speaks_v2
from protocol.transaction.end_transaction import EndedTransaction, Outcome, end_transaction
from protocol.transaction.identity import TransactionalIdentity
from protocol.transaction.states import TransactionLifecycle, TransactionState
from protocol.wire.messages.m00_produce import LAST_BEFORE_TRANSACTION_V2

_S = TransactionState
_SENDING = (_S.IN_TRANSACTION, _S.FLUSHING)
_FOR_GOOD = (Breaks.PRODUCER, Breaks.FENCED)


class TransactionSession:
    """Of one transactional id. `held`: the identity of its records, once it has one."""

    def __init__(self, client: Client, transactional_id: str, timeout_ms: int) -> None:
        self.transactional_id = transactional_id
        self.held = TransactionalIdentity(transactional_id, NO_PRODUCER_ID, NO_PRODUCER_EPOCH)
        self._client = client
        self._timeout_ms = timeout_ms
        self._lifecycle = TransactionLifecycle(transactional_id)
        # As the coordinator said when the transaction began (KIP-890).
        self._v2 = False
        # Whether the coordinator may know of this transaction, and which partitions it has been told of.
        self._begun = False
        self._partitions: set[TopicPartition] = set()
        # Whether an EndTxn that was not answered may have ended it, or may still end another one of this epoch.
        self._maybe_ended = False
        self._needs_epoch = False
        self._begun_as = self.held

    @property
    def state(self) -> TransactionState:
        return self._lifecycle.state

    def require(self, *states: TransactionState) -> None:
        """Raises the error that the producer is in, or `UsageError` for a call that may not come now."""
        self._lifecycle.require(*states)

    # -- for the producer, while it sends ---------------------------------------------------------

    @property
    def last_produce_version(self) -> int | None:
        return None if self._v2 else LAST_BEFORE_TRANSACTION_V2

    def identity(self, deadline: Deadline) -> ProducerIdentity:
        self.require(*_SENDING)
        return ProducerIdentity(self.held.producer_id, self.held.producer_epoch)

    def successor(self, before: ProducerIdentity, deadline: Deadline) -> ProducerIdentity:
        self.require(*_SENDING)
        raise TransactionFailed(f"the numbers of a partition's records under {self.held} broke off")

    def before_produce(self, partitions: Collection[TopicPartition], deadline: Deadline) -> None:
        """Where leaders do not do it, the coordinator must hear of a partition before its first record is written."""
        self.require(*_SENDING)
        self._begun = True
        new = set() if self._v2 else set(partitions) - self._partitions
        if new:
            with self._broken_by_errors():
                add_partitions(self._client, self.held, new, deadline)
            self._partitions |= new

    def failed(self, error: KafkaError) -> None:
        """Records could not be written, so the transaction must not be committed.

        A leader that knows of a newer epoch does not know why: the coordinator may have timed the transaction out.
        While it is being committed all of its records are acknowledged: these came too late to be among them.
        """
        if self.state is _S.COMMITTING_TRANSACTION:
            return
        breaks = Breaks.TRANSACTION if _code(error) == ErrorCode.INVALID_PRODUCER_EPOCH else _breaks(error)
        if breaks is Breaks.FENCED:
            error = self._fenced(error)
        self._lifecycle.failed(error, for_good=breaks in _FOR_GOOD)

    # -- for its user -----------------------------------------------------------------------------

    def init(self, deadline: Deadline, transactional_id: str | None = None) -> None:
        """Fences older producers of this transactional id; what they left open is aborted.

        `transactional_id`: another one from now on. Raises `DeadlineExceeded`, after which it may be called again, or
        `BrokerError`.
        """
        self.require(_S.UNINITIALIZED, _S.PREPARED_TRANSACTION)
        if transactional_id is not None:
            self.transactional_id = transactional_id
            self.held = TransactionalIdentity(transactional_id, NO_PRODUCER_ID, NO_PRODUCER_EPOCH)
            self._lifecycle = TransactionLifecycle(transactional_id)
        self._initialize(deadline)

    def begin(self, deadline: Deadline, count_from_0: Callable[[], None]) -> None:
        """`count_from_0` is called under an epoch that had no transaction yet, before anything is sent under it."""
        self.require(_S.READY)
        if self._needs_epoch:
            self._initialize(deadline, self.held)
        self._v2 = speaks_v2(self._client, self.transactional_id, deadline)
        if self._begun_as != self.held:
            count_from_0()
            self._begun_as = self.held
        self._begun, self._maybe_ended = False, False
        self._partitions.clear()
        self._lifecycle.transition(_S.IN_TRANSACTION)

    def _initialize(self, deadline: Deadline, held: TransactionalIdentity | None = None) -> None:
        with self._broken_by_errors(for_good=True):
            self.held = init_producer_id(self._client, self.transactional_id, self._timeout_ms, deadline, held=held)
        self._needs_epoch = False
        self._lifecycle.transition(_S.READY)

    def send_offsets(
        self, offsets: Mapping[TopicPartition, CommittedOffset], group: ConsumerGroupMetadata, deadline: Deadline
    ) -> None:
        self.require(*_SENDING)
        self._begun = True
        with self._broken_by_errors():
            add_offsets(self._client, self.held, group.group_id, offsets, deadline, member=group.member, v2=self._v2)

    @contextmanager
    def flushing(self) -> Iterator[None]:
        """Nothing more belongs to the transaction, unless the flush in this block comes to nothing."""
        self._lifecycle.transition(_S.FLUSHING)
        try:
            yield
        except BaseException:
            if self.state is _S.FLUSHING:
                self._lifecycle.transition(_S.IN_TRANSACTION)
            raise

    def prepare(self) -> TransactionalIdentity:
        """From now on somebody else may end it."""
        self._lifecycle.transition(_S.PREPARED_TRANSACTION)
        return self.held

    def begin_to_end(self, *, commit: bool) -> None:
        """Raises if that is not possible (any more). A second call is for an outcome that is not known yet."""
        state = _S.COMMITTING_TRANSACTION if commit else _S.ABORTING_TRANSACTION
        if self.state is not state:
            self._lifecycle.transition(state)

    def end(self, *, commit: bool, deadline: Deadline) -> None:
        """Commits or aborts what `begin_to_end` has announced; raises if that was not done."""
        forgotten = False
        if self._begun:
            ended = end_transaction(
                self._client, self.held, commit=commit, deadline=deadline, asked_before=self._maybe_ended
            )
            self._maybe_ended = self._maybe_ended or ended.repeated
            done = ended.outcome is (Outcome.COMMITTED if commit else Outcome.ABORTED)
            forgotten = _breaks(ended.cause) is Breaks.IDENTITY
            # Nothing is open: what was to belong to it has never reached the coordinator, or that knows us no more.
            nothing_open = forgotten or _code(ended.cause) == ErrorCode.INVALID_TXN_STATE
            if not done and (commit or not nothing_open):
                raise self._not_ended(ended)
            self.held = ended.identity
        # What was dropped may have had numbers already, and an EndTxn that is still on its way must not end the next
        # transaction: either needs another epoch. Since KIP-890 each transaction has one. And who was forgotten, since
        # the transactional id has expired, asks for another id; if another producer has come, that fences (KIP-360).
        self._needs_epoch = forgotten or (not self._v2 and (not commit or self._maybe_ended))
        self._lifecycle.transition(_S.READY)

    def _not_ended(self, ended: EndedTransaction) -> KafkaError:
        """The error to raise. Where asking again may help, the producer goes on trying to end it."""
        cause = ended.cause
        assert cause is not None
        breaks = _breaks(cause)
        error: KafkaError
        if ended.outcome is Outcome.UNKNOWN:
            error = _caused(OutcomeUnknown, f"{self.held}: what became of the transaction is not known", cause)
            if is_retriable(cause) or breaks is Breaks.TRANSACTION:
                return error
            for_good = True
        elif ended.outcome is Outcome.REFUSED or breaks is Breaks.IDENTITY:
            error = _caused(TransactionFailed, f"{self.held}: nothing was committed", cause)
            for_good = breaks in _FOR_GOOD
        else:
            # It is the coordinator that aborts: for a newer producer, or since it took too long.
            error = _caused(ProducerFenced, f"{self.held}: nothing was committed", cause)
            for_good = True
        self._lifecycle.failed(error, for_good=for_good)
        return error

    # -- errors -----------------------------------------------------------------------------------

    @contextmanager
    def _broken_by_errors(self, *, for_good: bool = False) -> Iterator[None]:
        """What an error of the coordinator breaks; `for_good`: whatever no retry can mend breaks the producer."""
        try:
            yield
        except KafkaError as error:
            breaks = _breaks(error)
            if breaks is Breaks.FENCED:
                fenced = self._fenced(error)
                self._lifecycle.failed(fenced, for_good=True)
                raise fenced from error
            if for_good and not is_retriable(error):
                self._lifecycle.failed(error, for_good=True)
            elif not for_good:
                self._lifecycle.failed(error, for_good=breaks in _FOR_GOOD)
            raise

    def _fenced(self, cause: KafkaError) -> KafkaError:
        return _caused(ProducerFenced, f"{self.held}: another producer has come", cause)


def _code(error: KafkaError | None) -> int | None:
    return error.code if isinstance(error, BrokerError) else None


def _breaks(error: KafkaError | None) -> Breaks:
    return error_row(error.code).breaks if isinstance(error, BrokerError) else Breaks.TRANSACTION


def _caused(kind: type[KafkaError], what: str, cause: KafkaError) -> KafkaError:
    error = kind(f"{what}: {cause}", **cause.context)
    error.__cause__ = cause
    return error
