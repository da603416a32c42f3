"""How a transaction ends: EndTxn, asked until its outcome is known, or it is known that nobody can tell.

The outcome is a value, since "the call failed" says nothing of the records. EndTxn may be repeated: a coordinator that
has ended a transaction says so again to the same producer id and epoch, until a newer producer has come, or the same
one has begun its next transaction. Used by the producer, and by whoever ends transactions of other processes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from protocol.broker_errors import Breaks, ErrorCode, Refresh, broker_error, error_row
from protocol.clock import Deadline
from protocol.cluster.client import COORDINATOR, Client, listed
from protocol.cluster.coordinators import transaction_coordinator
from protocol.errors import BrokerError, ConnectFailed, KafkaError
from protocol.net.connection import Reply
from protocol.transaction.coordinator import FEATURE
from protocol.transaction.identity import TransactionalIdentity
from protocol.wire.messages.m26_end_txn import END_TXN, LAST_BEFORE_TRANSACTION_V2


class Outcome(Enum):
    """What became of a transaction."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    FENCED = "not ended by this: another producer has come since, or the broker has timed it out"
    REFUSED = "not ended: the coordinator refused, and the transaction is as it was"
    UNKNOWN = "not known: it may be committed, aborted, or open"


@dataclass(frozen=True)
class EndedTransaction:
    """`identity`: the producer's in its next transaction. `cause`: why it is neither committed nor aborted as wanted.

    `repeated`: an earlier request may have been carried out, or still be on its way. Before KIP-890 that one would end
    the next transaction of the same epoch, too: a producer that goes on must have another epoch first.
    """

    outcome: Outcome
    identity: TransactionalIdentity
    cause: KafkaError | None = None
    repeated: bool = False


# The coordinator may have written its decision before it gave one of these answers.
_MAYBE_ENDED = (
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.UNKNOWN_SERVER_ERROR,
)


def end_transaction(
    client: Client, identity: TransactionalIdentity, *, commit: bool, deadline: Deadline, asked_before: bool = False
) -> EndedTransaction:
    """`end_transactions` of one."""
    return end_transactions(client, [identity], commit=commit, deadline=deadline, asked_before=asked_before)[identity]


def end_transactions(
    client: Client,
    identities: Iterable[TransactionalIdentity],
    *,
    commit: bool,
    deadline: Deadline,
    asked_before: bool = False,
) -> dict[TransactionalIdentity, EndedTransaction]:
    """Commits or aborts transactions, many at a time on each connection; what became of each. Raises nothing.

    `asked_before`: an earlier call, of whatever process, may have ended them. Then a refusal proves nothing: it is
    `UNKNOWN`. A transaction that nothing was added to is not one for its coordinator: it has nothing to commit.
    """
    waiting = {identity: _Ending(client, identity, commit, asked_before) for identity in identities}
    every = dict(waiting)

    def attempt() -> None:
        for ending in waiting.values():
            ending.ask(deadline)
        for ending in waiting.values():
            ending.hear(deadline)
        for identity in [identity for identity, ending in waiting.items() if ending.ended]:
            del waiting[identity]
        for ending in waiting.values():
            assert ending.failure is not None
            raise ending.failure

    names = listed([identity.transactional_id for identity in every])
    try:
        client.retrying(f"EndTxn of {names}", attempt, deadline)
    except KafkaError as error:
        for ending in waiting.values():
            ending.ended = EndedTransaction(Outcome.UNKNOWN, ending.identity, error, ending.maybe_ended)
    return {identity: ending.ended for identity, ending in every.items() if ending.ended is not None}


class _Ending:
    """One transaction that is being ended. `failure`: why the last request to end it was in vain."""

    def __init__(self, client: Client, identity: TransactionalIdentity, commit: bool, maybe_ended: bool) -> None:
        self.identity = identity
        self.maybe_ended = maybe_ended
        self.ended: EndedTransaction | None = None
        self.failure: KafkaError | None = None
        self._client = client
        self._commit = commit
        self._coordinator = transaction_coordinator(identity.transactional_id)
        self._reply: Reply | None = None

    def ask(self, deadline: Deadline) -> None:
        """Sends the request. The newest version is for clusters that give each transaction an epoch (KIP-890)."""
        self._reply = None
        try:
            broker = self._client.coordinator(self._coordinator, deadline)
            connection = self._client.connection(broker, COORDINATOR, deadline)
            at_most = None if connection.features.get(FEATURE, 0) >= 2 else LAST_BEFORE_TRANSACTION_V2
            body = {**self.identity.fields, "committed": self._commit}
            self._reply = self._client.send(broker, END_TXN, body, deadline, purpose=COORDINATOR, at_most=at_most)
        except (ConnectFailed, BrokerError) as error:
            self._failed(error)
        except KafkaError as error:
            self.maybe_ended = True
            self._failed(error)

    def hear(self, deadline: Deadline) -> None:
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
            wanted = Outcome.COMMITTED if self._commit else Outcome.ABORTED
            self.ended = EndedTransaction(wanted, self._next(body), None, self.maybe_ended)
            return
        self.maybe_ended |= code in _MAYBE_ENDED
        cause = broker_error(code, f"EndTxn for {self.identity}", **self._coordinator.context)
        if error_row(code).retriable:
            self._failed(cause)
        else:
            self.ended = EndedTransaction(self._judged(code), self.identity, cause, self.maybe_ended)

    def _failed(self, error: KafkaError) -> None:
        self.failure = error
        if not isinstance(error, BrokerError) or error_row(error.code).refresh is Refresh.COORDINATOR:
            self._client.forget_coordinator(self._coordinator)

    def _next(self, body: dict[str, int]) -> TransactionalIdentity:
        """Version 5 says who the producer is from now on."""
        if body["producer_id"] < 0:
            return self.identity
        return TransactionalIdentity(self.identity.transactional_id, body["producer_id"], body["producer_epoch"])

    def _judged(self, code: int) -> Outcome:
        if self.maybe_ended:
            return Outcome.UNKNOWN
        if error_row(code).breaks in (Breaks.FENCED, Breaks.IDENTITY):
            return Outcome.FENCED
        if code == ErrorCode.INVALID_TXN_STATE:
            # It is not open under this epoch. To a commit that says that it was aborted; to an abort it says nothing.
            return Outcome.ABORTED if self._commit else Outcome.UNKNOWN
        return Outcome.REFUSED
