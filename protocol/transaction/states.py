"""States of a transactional producer, and the valid transitions between them. Sans-IO.

The names are those of Java's `TransactionManager`, plus FLUSHING, which is part of committing there. Used by
`TransactionSession`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from protocol.base.condition import Lock
from protocol.errors import KafkaError, OutcomeLost, ProducerFenced, TransactionFailed, UsageError

log = logging.getLogger(__name__)


class TransactionState(Enum):
    """The state of a producer; the values complete the sentence "transactional id X ..."."""

    UNINITIALIZED = "has no producer id; call init_transactions"
    READY = "has no transaction; call begin_transaction"
    IN_TRANSACTION = "has a transaction"
    FLUSHING = "waits for the last acknowledgements before its transaction ends; it accepts no records"
    PREPARED_TRANSACTION = "has handed over its transaction; call init_transactions"
    COMMITTING_TRANSACTION = "is committing; call commit_transaction again until the outcome is known"
    ABORTING_TRANSACTION = "is aborting; call abort_transaction again until it succeeds"
    ABORTABLE_ERROR = "has an error in its transaction; call abort_transaction"
    FATAL_ERROR = "has a fatal error; close it"


_S = TransactionState
_SPECIFIC_ERRORS = (ProducerFenced, OutcomeLost)

TRANSITIONS: Mapping[TransactionState, frozenset[TransactionState]] = {
    _S.UNINITIALIZED: frozenset({_S.READY}),
    _S.READY: frozenset({_S.READY, _S.IN_TRANSACTION}),
    _S.IN_TRANSACTION: frozenset({_S.FLUSHING, _S.ABORTING_TRANSACTION, _S.ABORTABLE_ERROR}),
    _S.FLUSHING: frozenset(
        {
            _S.IN_TRANSACTION,
            _S.PREPARED_TRANSACTION,
            _S.COMMITTING_TRANSACTION,
            _S.ABORTING_TRANSACTION,
            _S.ABORTABLE_ERROR,
        }
    ),
    _S.PREPARED_TRANSACTION: frozenset({_S.READY}),
    _S.COMMITTING_TRANSACTION: frozenset({_S.READY, _S.ABORTABLE_ERROR}),
    _S.ABORTING_TRANSACTION: frozenset({_S.READY}),
    _S.ABORTABLE_ERROR: frozenset({_S.ABORTING_TRANSACTION}),
    _S.FATAL_ERROR: frozenset(),
}
"""Any state except the last may also become `FATAL_ERROR`. READY follows READY when the identity is renewed.
docs/architecture.md has the diagram."""


class TransactionLifecycle:
    """State of one producer, and the error that led to it. Thread-safe."""

    def __init__(self, transactional_id: str) -> None:
        self.state = TransactionState.UNINITIALIZED
        self.error: KafkaError | None = None
        self._name = f"transactional id {transactional_id}"
        self._lock = Lock()

    def may(self, to: TransactionState) -> bool:
        """Return True if the transition to this state is valid."""
        if to is _S.FATAL_ERROR:
            return self.state is not to
        return to in TRANSITIONS[self.state]

    def require(self, *states: TransactionState) -> None:
        """Raise unless the state is one of `states`: the producer's error, or `UsageError`."""
        if self.state in states:
            return
        if self.error is not None:
            kind = type(self.error) if isinstance(self.error, _SPECIFIC_ERRORS) else TransactionFailed
            raise kind(f"{self._name} {self.state.value}: {self.error}", **self.error.context) from self.error
        raise UsageError(f"{self._name} {self.state.value}")

    def transition(self, to: TransactionState) -> None:
        """Enter a state that is not an error; raise as `require` if the transition is invalid."""
        with self._lock:
            before, is_valid = self.state, self.may(to)
            if is_valid:
                self.state = to
                self.error = None if to is _S.READY else self.error
        if not is_valid:
            return self.require()
        log.debug("%s: %s -> %s", self._name, before.name, to.name)

    def failed(self, error: KafkaError, *, fatal: bool) -> None:
        """Record an error of the open transaction, or a fatal one.

        A fatal error replaces an abortable one. Other later errors are ignored, as are abortable errors in a state
        without a transition to `ABORTABLE_ERROR`.
        """
        to = _S.FATAL_ERROR if fatal else _S.ABORTABLE_ERROR
        with self._lock:
            before, is_valid = self.state, self.may(to)
            if is_valid:
                self.state, self.error = to, error
        if is_valid:
            log.debug("%s: %s -> %s: %s", self._name, before.name, to.name, error)


@dataclass(frozen=True)
class TransactionalIdentity:
    """A transactional id with the producer id and epoch that its coordinator gave to its newest producer."""

    transactional_id: str
    producer_id: int
    producer_epoch: int

    @property
    def fields(self) -> dict[str, str | int]:
        """The fields of requests."""
        return {
            "transactional_id": self.transactional_id,
            "producer_id": self.producer_id,
            "producer_epoch": self.producer_epoch,
        }

    def __str__(self) -> str:
        return f"{self.transactional_id} (producer id {self.producer_id}, epoch {self.producer_epoch})"
