"""Commit or abort transactions: send EndTxn until the outcome is known, or known to be undeterminable.

The outcome is a value, because a failed call does not tell the state of the records. EndTxn is idempotent: the
coordinator repeats its reply for the same producer id and epoch until a newer producer is initialized or the same
producer begins its next transaction. Used by the producer, and to end transactions of other processes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from protocol.base.clock import Deadline
from protocol.base.listing import listed
from protocol.broker_errors import ErrorCode, TransactionEffect, broker_error, error_row
from protocol.cluster.client import COORDINATOR, Client
from protocol.cluster.coordinators import transaction_coordinator
from protocol.cluster.dispatch import is_retriable
from protocol.errors import BrokerError, ConnectFailed, KafkaError
from protocol.net.connection import Reply
from protocol.transaction.coordinator import FEATURE
from protocol.transaction.states import TransactionalIdentity
from protocol.wire.messages.m26_end_txn import END_TXN, LAST_BEFORE_TRANSACTION_V2


class TransactionOutcome(Enum):
    """The outcome of an attempt to end a transaction."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    FENCED = "not ended by this call: a newer producer exists, or the coordinator aborted it after its timeout"
    REFUSED = "not ended: the coordinator refused, and the transaction is unchanged"
    UNKNOWN = "unknown: it may be committed, aborted, or open"


@dataclass(frozen=True)
class EndedTransaction:
    """The result of ending one transaction.

    `identity`: the producer's identity in its next transaction.
    `cause`: reason if the transaction was not ended as requested.
    `repeated`: an earlier request without a known result may still arrive. Before KIP-890 it would end the next
    transaction of the same epoch, so the producer must bump its epoch first.
    """

    outcome: TransactionOutcome
    identity: TransactionalIdentity
    cause: KafkaError | None = None
    repeated: bool = False


# The coordinator may have written its decision before it replied with one of these codes.
_MAYBE_ENDED = (
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.UNKNOWN_SERVER_ERROR,
)


def end_transaction(
    client: Client, identity: TransactionalIdentity, *, commit: bool, deadline: Deadline, maybe_ended: bool = False
) -> EndedTransaction:
    """End one transaction, as `end_transactions`."""
    return end_transactions(client, [identity], commit=commit, deadline=deadline, maybe_ended=maybe_ended)[identity]


def end_transactions(
    client: Client,
    identities: Iterable[TransactionalIdentity],
    *,
    commit: bool,
    deadline: Deadline,
    maybe_ended: bool = False,
) -> dict[TransactionalIdentity, EndedTransaction]:
    """Commit or abort transactions, pipelined on each coordinator's connection. Raises nothing.

    `commit`: False aborts.
    `maybe_ended`: an earlier call, possibly in another process, may have ended the transactions. A refusal then proves
    nothing and gives `UNKNOWN`.

    The coordinator does not know a transaction without records and offsets: there is nothing to commit.
    """
    waiting = {identity: _Ending(client, identity, commit, maybe_ended) for identity in identities}
    all_endings = dict(waiting)

    def attempt() -> None:
        for ending in waiting.values():
            ending.ask(deadline)
        for ending in waiting.values():
            ending.take_reply(deadline)
        for identity in [identity for identity, ending in waiting.items() if ending.result]:
            del waiting[identity]
        # Raise a retriable failure if there is one: another one would end the retries of all.
        failures = [ending.failure for ending in waiting.values() if ending.failure is not None]
        for failure in sorted(failures, key=lambda failure: not is_retriable(failure)):
            raise failure

    names = listed([identity.transactional_id for identity in all_endings])
    try:
        client.retrying(f"EndTxn of {names}", attempt, deadline)
    except KafkaError as error:
        for ending in waiting.values():
            ending.result = EndedTransaction(TransactionOutcome.UNKNOWN, ending.identity, error, ending.maybe_ended)
    return {identity: ending.result for identity, ending in all_endings.items() if ending.result is not None}


class _Ending:
    """One transaction to end. `failure` is the retriable failure of the last request."""

    def __init__(self, client: Client, identity: TransactionalIdentity, commit: bool, maybe_ended: bool) -> None:
        self.identity = identity
        self.maybe_ended = maybe_ended
        self.result: EndedTransaction | None = None
        self.failure: KafkaError | None = None
        self._client = client
        self._commit = commit
        self._coordinator = transaction_coordinator(identity.transactional_id)
        self._reply: Reply | None = None

    def ask(self, deadline: Deadline) -> None:
        """Send the request; version 5 only to clusters with an epoch per transaction (KIP-890)."""
        self._reply = None
        try:
            broker = self._client.coordinator(self._coordinator, deadline)
            connection = self._client.connection(broker, COORDINATOR, deadline)
            at_most = None if connection.features.get(FEATURE, 0) >= 2 else LAST_BEFORE_TRANSACTION_V2
            body = {**self.identity.fields, "committed": self._commit}
            self._reply = self._client.send(broker, END_TXN, body, deadline, purpose=COORDINATOR, at_most=at_most)
        except BrokerError as error:  # of FindCoordinator: nothing was sent
            self._refused(error)
        except ConnectFailed as error:
            self._failed(error)
        except KafkaError as error:
            self.maybe_ended = True
            self._failed(error)

    def take_reply(self, deadline: Deadline) -> None:
        """Wait for the reply, and record the outcome or the failure."""
        if self._reply is None:
            return
        try:
            body = self._reply.result(deadline.at_most_ms(self._client.config.request_timeout_ms))
        except KafkaError as error:
            self.maybe_ended = True
            self._failed(error)
            return
        code = body["error_code"]
        if code == ErrorCode.NONE:
            outcome = TransactionOutcome.COMMITTED if self._commit else TransactionOutcome.ABORTED
            self.result = EndedTransaction(outcome, self._next(body), None, self.maybe_ended)
            return
        self.maybe_ended |= code in _MAYBE_ENDED
        self._refused(broker_error(code, f"EndTxn for {self.identity}", **self._coordinator.context))

    def _refused(self, error: BrokerError) -> None:
        if is_retriable(error):
            self._failed(error)
        else:
            self.result = EndedTransaction(self._outcome_of_refusal(error.code), self.identity, error, self.maybe_ended)

    def _failed(self, error: KafkaError) -> None:
        self.failure = error
        self._client.forget_coordinator(self._coordinator, error)

    def _next(self, body: dict[str, int]) -> TransactionalIdentity:
        """Return the producer's identity after this reply; version 5 contains it."""
        if body["producer_id"] < 0:
            return self.identity
        return TransactionalIdentity(self.identity.transactional_id, body["producer_id"], body["producer_epoch"])

    def _outcome_of_refusal(self, code: int) -> TransactionOutcome:
        if self.maybe_ended:
            return TransactionOutcome.UNKNOWN
        if error_row(code).transaction_effect in (TransactionEffect.FENCED, TransactionEffect.NEEDS_PRODUCER_ID):
            return TransactionOutcome.FENCED
        if code == ErrorCode.INVALID_TXN_STATE:
            # No transaction is open under this epoch: it was aborted before the commit; an abort proves nothing.
            return TransactionOutcome.ABORTED if self._commit else TransactionOutcome.UNKNOWN
        return TransactionOutcome.REFUSED
