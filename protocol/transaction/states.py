"""In which state a transactional producer is, and which state may follow which: data. Pure.

The words are those of Java's `TransactionManager`, and FLUSHING, which is part of committing there. Used by
`TransactionSession`, which asks the brokers.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from enum import Enum

from protocol.errors import KafkaError, OutcomeUnknown, ProducerFenced, TransactionFailed, UsageError

log = logging.getLogger(__name__)


class TransactionState(Enum):
    """What a producer is doing, or may do next."""

    UNINITIALIZED = "has no producer id; call init_transactions"
    READY = "has no transaction; call begin_transaction"
    IN_TRANSACTION = "has a transaction"
    FLUSHING = "waits for the last answers, to end its transaction; nothing more belongs to that"
    PREPARED_TRANSACTION = "has handed its transaction over; call init_transactions"
    COMMITTING_TRANSACTION = "commits; call commit_transaction again until the outcome is known"
    ABORTING_TRANSACTION = "aborts; call abort_transaction again until that is done"
    ABORTABLE_ERROR = "has failed in a transaction; call abort_transaction"
    FATAL_ERROR = "has failed for good; close it"


_S = TransactionState
_TELLING = (ProducerFenced, OutcomeUnknown)

MOVES: Mapping[TransactionState, frozenset[TransactionState]] = {
    _S.UNINITIALIZED: frozenset({_S.READY}),
    _S.READY: frozenset({_S.READY, _S.IN_TRANSACTION}),
    _S.IN_TRANSACTION: frozenset({_S.FLUSHING, _S.ABORTING_TRANSACTION, _S.ABORTABLE_ERROR}),
    _S.FLUSHING: frozenset({_S.IN_TRANSACTION, _S.PREPARED_TRANSACTION, _S.COMMITTING_TRANSACTION, _S.ABORTABLE_ERROR}),
    _S.PREPARED_TRANSACTION: frozenset({_S.READY}),
    _S.COMMITTING_TRANSACTION: frozenset({_S.READY, _S.ABORTABLE_ERROR}),
    _S.ABORTING_TRANSACTION: frozenset({_S.READY}),
    _S.ABORTABLE_ERROR: frozenset({_S.ABORTING_TRANSACTION}),
    _S.FATAL_ERROR: frozenset(),
}
"""Beside these, any state but the last may end in `FATAL_ERROR`. READY follows itself: a new identity."""


class TransactionLifecycle:
    """The state of one producer, and the first error that has brought it there. Safe for several threads."""

    def __init__(self, transactional_id: str) -> None:
        self.state = TransactionState.UNINITIALIZED
        self.error: KafkaError | None = None
        self._name = f"transactional id {transactional_id}"
        self._lock = threading.Lock()

    def may(self, to: TransactionState) -> bool:
        if to is _S.FATAL_ERROR:
            return self.state is not to
        return to in MOVES[self.state]

    def require(self, *states: TransactionState) -> None:
        """Raises the error that the producer is in, or `UsageError` for a call that may not come now."""
        if self.state in states:
            return
        if self.error is not None:
            kind = type(self.error) if isinstance(self.error, _TELLING) else TransactionFailed
            raise kind(f"{self._name} {self.state.value}: {self.error}", **self.error.context) from self.error
        raise UsageError(f"{self._name} {self.state.value}")

    def transition(self, to: TransactionState) -> None:
        """The only way into a state that is no error. Raises as `require`."""
        with self._lock:
            if self.may(to):
                log.debug("%s: %s -> %s", self._name, self.state.name, to.name)
                self.state = to
                self.error = None if to is _S.READY else self.error
                return
        self.require()

    def failed(self, error: KafkaError, *, for_good: bool) -> None:
        """An error breaks the transaction that is open, or the producer. The first one counts."""
        to = _S.FATAL_ERROR if for_good else _S.ABORTABLE_ERROR
        with self._lock:
            if self.may(to):
                log.debug("%s: %s -> %s: %s", self._name, self.state.name, to.name, error)
                self.state, self.error = to, error
