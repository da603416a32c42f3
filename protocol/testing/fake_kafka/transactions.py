"""The transaction coordinator: producer ids and epochs, the partitions of transactions, and their ends.

The rules are those of Kafka's `TransactionCoordinator`. EndTxn above version 4 means transactions as of KIP-890: each
end bumps the epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from protocol.base.clock import Clock
from protocol.broker_errors import ErrorCode
from protocol.kafka_terms import TopicPartition
from protocol.testing.fake_kafka.offsets import Offsets
from protocol.testing.fake_kafka.requests import Body, Refused, Request
from protocol.wire.messages.m26_end_txn import LAST_BEFORE_TRANSACTION_V2
from protocol.wire.messages.m28_txn_offset_commit import LAST_BEFORE_TRANSACTION_V2 as LAST_WITH_ADD_OFFSETS

_NONE = -1
_LAST_EPOCH = 0x7FFE
"""The last epoch of a producer id for a new transaction. One more epoch remains, to end the last transaction."""


class State(Enum):
    """Kafka's names of transaction states."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"


_PREPARED = (State.PREPARE_COMMIT, State.PREPARE_ABORT)
_COMPLETE = {State.PREPARE_COMMIT: State.COMPLETE_COMMIT, State.PREPARE_ABORT: State.COMPLETE_ABORT}


@dataclass
class Transaction:
    """State of a transactional id.

    `bumped`: the end of the last transaction bumped the epoch. `previous_id` is the producer id before this one,
    `next_id` the one that follows when the markers are written.
    """

    producer_id: int
    previous_id: int = _NONE
    next_id: int = _NONE
    producer_epoch: int = _NONE
    last_epoch: int = _NONE
    timeout_ms: int = 0
    state: State = State.EMPTY
    partitions: set[TopicPartition] = field(default_factory=set)
    groups: set[str] = field(default_factory=set)
    started_s: float = 0.0
    bumped: bool = False

    @property
    def commits(self) -> bool:
        """True if the transaction ends with a commit and has markers to write."""
        return self.state is State.PREPARE_COMMIT


class Transactions:
    """All transactional ids.

    `write_marker` writes the marker of a prepared transaction to a partition, and returns False if no leader is
    reachable. `markers_held`: ended transactions stay prepared, as if no leader were reachable.
    """

    def __init__(
        self,
        clock: Clock,
        offsets: Offsets,
        write_marker: Callable[[TopicPartition, Transaction], bool],
        settings: Mapping[str, str],
    ) -> None:
        self.transactions: dict[str, Transaction] = {}
        self.markers_held = False
        self._clock = clock
        self._offsets = offsets
        self._write_marker = write_marker
        self._max_timeout_ms = int(settings["transaction.max.timeout.ms"])
        self.next_producer_id = 1_000

    def tick(self, now_s: float) -> None:
        """Abort transactions past their timeout, and write the markers of ended ones."""
        for transaction in self.transactions.values():
            if transaction.state is State.ONGOING and now_s - transaction.started_s >= transaction.timeout_ms / 1000:
                self.fence(transaction)
            self._write_markers(transaction)

    # -- InitProducerId -----------------------------------------------------------------------

    def init_producer_id(self, request: Request) -> Body:
        """Handle InitProducerId."""
        body = request.body
        if body["transactional_id"] is None:
            return {"producer_id": self._new_producer_id(), "producer_epoch": 0}
        if not body["transactional_id"]:
            raise Refused(ErrorCode.INVALID_REQUEST)
        if not 0 < body["transaction_timeout_ms"] <= self._max_timeout_ms:
            raise Refused(ErrorCode.INVALID_TRANSACTION_TIMEOUT)
        transaction = self.transactions.get(body["transactional_id"])
        if transaction is None:
            transaction = Transaction(self._new_producer_id())
            self.transactions[body["transactional_id"]] = transaction
        self._init(transaction, body["producer_id"], body["producer_epoch"])
        transaction.timeout_ms = body["transaction_timeout_ms"]
        return {"producer_id": transaction.producer_id, "producer_epoch": transaction.producer_epoch}

    def _init(self, transaction: Transaction, producer_id: int, epoch: int) -> None:
        """Bump the epoch; a producer that sends its identity must not have been replaced since."""
        is_new = transaction.producer_epoch == _NONE
        is_before = producer_id == transaction.previous_id and epoch >= _LAST_EPOCH
        if producer_id not in (_NONE, transaction.producer_id) and not is_new and not is_before:
            raise Refused(ErrorCode.PRODUCER_FENCED)
        if transaction.state in _PREPARED:
            raise Refused(ErrorCode.CONCURRENT_TRANSACTIONS)
        if transaction.state is State.ONGOING:
            self.fence(transaction)
            self._write_markers(transaction)
            raise Refused(ErrorCode.CONCURRENT_TRANSACTIONS)
        if producer_id != _NONE and not is_new and epoch != transaction.producer_epoch:
            if epoch == transaction.last_epoch:
                return
            raise Refused(ErrorCode.PRODUCER_FENCED)
        transaction.last_epoch = transaction.producer_epoch if producer_id != _NONE else _NONE
        transaction.producer_epoch += 1
        if transaction.producer_epoch > _LAST_EPOCH:
            self._change_producer_id(transaction, self._new_producer_id())
        transaction.state, transaction.bumped = State.EMPTY, False

    @staticmethod
    def _change_producer_id(transaction: Transaction, producer_id: int) -> None:
        transaction.previous_id, transaction.producer_id = transaction.producer_id, producer_id
        transaction.producer_epoch = 0

    def _new_producer_id(self) -> int:
        self.next_producer_id += 1
        return self.next_producer_id

    def describe(self, transactional_id: str) -> Body:
        """Return a row of DescribeTransactions; raise `Refused` for an unknown id."""
        transaction = self.transactions.get(transactional_id)
        if transaction is None:
            raise Refused(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
        by_topic: dict[str, list[int]] = {}
        for topic, partition in sorted(transaction.partitions):
            by_topic.setdefault(topic, []).append(partition)
        return {
            "transaction_state": transaction.state.value,
            "transaction_timeout_ms": transaction.timeout_ms,
            "transaction_start_time_ms": 0 if transaction.state is State.ONGOING else -1,
            "producer_id": transaction.producer_id,
            "producer_epoch": transaction.producer_epoch,
            "topics": [{"topic": topic, "partitions": numbers} for topic, numbers in by_topic.items()],
        }

    # -- partitions and groups ----------------------------------------------------------------

    def add_partitions(self, request: Request, refusal: Callable[[TopicPartition], ErrorCode | None]) -> Body:
        """Add all partitions of a request, or none. `refusal` returns the error of a partition that is refused."""
        body = {key.removeprefix("v3_and_below_"): value for key, value in request.body.items()}
        keys = [(row["name"], number) for row in body["topics"] for number in row["partitions"]]
        refusals = {key: refusal(key) for key in keys}
        codes = {key: code or ErrorCode.OPERATION_NOT_ATTEMPTED for key, code in refusals.items()}
        if not any(refusals.values()):
            codes = dict.fromkeys(keys, ErrorCode.NONE)
            try:
                self._begin(self._addable(body)).partitions.update(keys)
            except Refused as refused:
                codes = dict.fromkeys(keys, refused.code)
        return added_partitions(body["topics"], codes.__getitem__)

    def add_offsets(self, request: Request) -> Body:
        """Handle AddOffsetsToTxn."""
        self._begin(self._addable(request.body)).groups.add(request.body["group_id"])
        return {}

    def require_partition(
        self, transactional_id: str | None, producer_id: int, epoch: int, partition: TopicPartition, *, add: bool
    ) -> None:
        """Check that a partition belongs to the transaction, or add it; called by leaders."""
        transaction = self._of_producer(transactional_id, producer_id, epoch)
        if add:
            self._begin(transaction).partitions.add(partition)
        elif partition not in transaction.partitions:
            raise Refused(ErrorCode.TRANSACTION_ABORTABLE)

    def require_group(self, request: Request) -> None:
        """Check that a group belongs to the transaction; called by the group's coordinator."""
        body = request.body
        transaction = self._of_producer(body["transactional_id"], body["producer_id"], body["producer_epoch"])
        if request.version > LAST_WITH_ADD_OFFSETS:
            self._begin(transaction).groups.add(body["group_id"])
        elif body["group_id"] not in transaction.groups:
            raise Refused(ErrorCode.TRANSACTION_ABORTABLE)

    def _of_producer(self, transactional_id: str | None, producer_id: int, epoch: int) -> Transaction:
        """Check as `_addable`, with the error codes of Produce."""
        identity = {"transactional_id": transactional_id, "producer_id": producer_id, "producer_epoch": epoch}
        try:
            return self._addable(identity)
        except Refused as refusal:
            fenced = refusal.code is ErrorCode.PRODUCER_FENCED
            raise Refused(ErrorCode.INVALID_PRODUCER_EPOCH if fenced else refusal.code) from None

    def _addable(self, body: Body) -> Transaction:
        transaction = self._known(body)
        if body["producer_epoch"] != transaction.producer_epoch:
            raise Refused(ErrorCode.PRODUCER_FENCED)
        if transaction.state in _PREPARED:
            raise Refused(ErrorCode.CONCURRENT_TRANSACTIONS)
        return transaction

    def _known(self, body: Body) -> Transaction:
        transaction = self.transactions.get(body["transactional_id"])
        if transaction is None or transaction.producer_id != body["producer_id"]:
            raise Refused(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        return transaction

    def _begin(self, transaction: Transaction) -> Transaction:
        if transaction.state is not State.ONGOING:
            transaction.state, transaction.started_s = State.ONGOING, self._clock.now_s()
        return transaction

    # -- ending -------------------------------------------------------------------------------

    def end(self, request: Request) -> Body:
        """Handle EndTxn."""
        body, raises_epoch = request.body, request.version > LAST_BEFORE_TRANSACTION_V2
        transaction = self.transactions.get(body["transactional_id"])
        state = State.PREPARE_COMMIT if body["committed"] else State.PREPARE_ABORT
        if transaction is None or not _is_before(transaction, body):
            transaction = self._known(body)
            repeated = raises_epoch and transaction.bumped and body["producer_epoch"] == transaction.producer_epoch - 1
        else:
            repeated = raises_epoch
        if body["producer_epoch"] != transaction.producer_epoch and not repeated:
            raise Refused(ErrorCode.PRODUCER_FENCED)
        if transaction.state is State.ONGOING:
            if repeated:
                raise Refused(ErrorCode.PRODUCER_FENCED)
            self._prepare(transaction, state, raises_epoch=raises_epoch)
        elif raises_epoch and not repeated:
            self._end_empty(transaction, state)
        elif transaction.state is state:
            raise Refused(ErrorCode.CONCURRENT_TRANSACTIONS)
        elif transaction.state is not _COMPLETE[state]:
            raise Refused(ErrorCode.INVALID_TXN_STATE)
        self._write_markers(transaction)
        if transaction.next_id != _NONE:
            return {"producer_id": transaction.next_id, "producer_epoch": 0}
        return {"producer_id": transaction.producer_id, "producer_epoch": transaction.producer_epoch}

    def _end_empty(self, transaction: Transaction, outcome: State) -> None:
        """End a transaction without records: an abort bumps the epoch, a commit is refused."""
        if transaction.state in _PREPARED:
            raise Refused(ErrorCode.PRODUCER_FENCED)
        if outcome is State.PREPARE_COMMIT:
            raise Refused(ErrorCode.INVALID_TXN_STATE)
        self._prepare(transaction, outcome, raises_epoch=True)

    def _prepare(self, transaction: Transaction, state: State, *, raises_epoch: bool) -> None:
        transaction.state, transaction.bumped = state, raises_epoch
        if raises_epoch:
            if transaction.producer_epoch >= _LAST_EPOCH:
                transaction.next_id = self._new_producer_id()
            transaction.last_epoch = transaction.producer_epoch
            transaction.producer_epoch += 1

    def fence(self, transaction: Transaction) -> None:
        """Abort the transaction under an epoch that its producer does not have."""
        self._prepare(transaction, State.PREPARE_ABORT, raises_epoch=True)
        transaction.last_epoch = _NONE

    def _write_markers(self, transaction: Transaction) -> None:
        if not self.markers_held:
            self.write_markers(transaction)

    def write_markers(self, transaction: Transaction) -> None:
        """Write markers to the logs of all reachable leaders; the transaction is complete when all logs have one."""
        if transaction.state not in _PREPARED:
            return
        for partition in sorted(transaction.partitions):
            if self._write_marker(partition, transaction):
                transaction.partitions.discard(partition)
        if not transaction.partitions:
            self._offsets.end_transaction(transaction.producer_id, commit=transaction.commits)
            transaction.groups.clear()
            transaction.state = _COMPLETE[transaction.state]
            if transaction.next_id != _NONE:
                self._change_producer_id(transaction, transaction.next_id)
                transaction.next_id = _NONE


def _is_before(transaction: Transaction, body: Body) -> bool:
    """Return True for a request to end that was sent before the producer id changed."""
    ended_as = (body["producer_id"], body["producer_epoch"])
    return ended_as == (transaction.previous_id, _LAST_EPOCH) and transaction.producer_epoch == 0


def added_partitions(topics: list[Body], code: Callable[[TopicPartition], ErrorCode]) -> Body:
    """Return the reply to AddPartitionsToTxn of clients."""
    rows = [
        {
            "name": row["name"],
            "results_by_partition": [
                {"partition_index": number, "partition_error_code": code((row["name"], number))}
                for number in row["partitions"]
            ],
        }
        for row in topics
    ]
    return {"results_by_topic_v3_and_below": rows}
