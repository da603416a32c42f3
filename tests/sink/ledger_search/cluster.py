"""The coordinator of the search: FakeKafka's cluster without sockets or time, frozen into a value after each step.

A row is an offset of the group `ROWS`: it is committed and aborted with its transaction, as a record would be. Ended
transactions stay prepared until the search writes their markers, so that each delay of a commit is an own step.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Any

from protocol.broker_errors import ErrorCode
from protocol.kafka_terms import TopicPartition
from protocol.producer.idempotence import ProducerIdentity
from protocol.testing.fake_kafka.clock import ManualClock
from protocol.testing.fake_kafka.cluster import Cluster
from protocol.testing.fake_kafka.offsets import Committed
from protocol.testing.fake_kafka.transactions import State, Transaction
from protocol.wire.parts import error_parts
from protocol.wire.schema import Api
from spark_kafka_source.sink.exactly_once.ledger import from_offsets
from tests.sink.ledger_search.product import QUERY, ROWS, TOPIC, Request, Row

Frozen = tuple[Any, ...]


@dataclass(frozen=True)
class Settled:
    """A state of the cluster with all markers written.

    `visible`: batch and task of the visible rows.
    `batch`: the decided batch.
    `lost`: tasks whose decided transaction is neither open nor committed.
    `still_open`: open transactions.
    """

    visible: frozenset[tuple[int, int]]
    batch: int
    lost: frozenset[int]
    still_open: list[str]
    violation: str | None


PREPARED = (State.PREPARE_COMMIT, State.PREPARE_ABORT)
_PRODUCER_IDS = {QUERY.transactional_id: 100, QUERY.task(0): 200, QUERY.task(1): 300}
_NAMES = ("producer_id", "producer_epoch", "last_epoch", "timeout_ms", "state", "bumped")
_FIELDS = attrgetter(*_NAMES)
_FENCED = (
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    ErrorCode.INVALID_TXN_STATE,
    ErrorCode.PRODUCER_FENCED,
)
_NOT_YET = (ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.UNSTABLE_OFFSET_COMMIT)


class SearchCluster:
    """One broker whose state can be read and set as a value; `transaction_version` is 2 since KIP-890."""

    def __init__(self, transaction_version: int) -> None:
        self._cluster = Cluster(1, clock=ManualClock(), settings={"transaction.version": str(transaction_version)})
        self._cluster.create_topic(TOPIC, 64, topic_id=b"t" * 16)
        self._cluster.hold_markers()
        self._transactions, self._offsets = self._cluster.transactions, self._cluster.offsets

    def freeze(self) -> Frozen:
        """Return the state of all transactions and offsets as a hashable value."""
        transactions = tuple(
            (name, *_FIELDS(transaction), frozenset(transaction.groups))
            for name, transaction in sorted(self._transactions.transactions.items())
        )
        committed = tuple(
            (group, tuple(sorted(offsets.items()))) for group, offsets in sorted(self._offsets.committed.items())
        )
        pending = tuple(
            (producer_id, tuple((group, tuple(sorted(offsets.items()))) for group, offsets in sorted(by_group.items())))
            for producer_id, by_group in sorted(self._offsets.pending.items())
        )
        return transactions, committed, pending

    def restore(self, state: Frozen) -> None:
        """Set the state to a value of `freeze`."""
        transactions, committed, pending = state
        self._transactions.transactions.clear()
        for name, *fields, groups in transactions:
            self._transactions.transactions[name] = Transaction(
                **dict(zip(_NAMES, fields, strict=True)), groups=set(groups)
            )
        self._offsets.committed.clear()
        self._offsets.committed.update({group: dict(offsets) for group, offsets in committed})
        self._offsets.pending.clear()
        for producer_id, by_group in pending:
            self._offsets.pending[producer_id] = {group: dict(offsets) for group, offsets in by_group}

    def handle(self, request: Request) -> dict[str, Any]:
        """Handle a request, and return its reply as a client decodes it.

        A producer id follows from the transactional id: otherwise equal states would differ by the order of tasks.
        """
        self._transactions.next_producer_id = _PRODUCER_IDS.get(request.body.get("transactional_id"), 0)
        return self._cluster.ask(1, request.api, deepcopy(request.body), request.version)

    def transactions(self, *states: State) -> list[str]:
        """Return the transactional ids in one of these states."""
        by_name = self._transactions.transactions
        return sorted(name for name, transaction in by_name.items() if transaction.state in states)

    def open_transactions(self) -> dict[str, ProducerIdentity]:
        """Return the identities of open transactions by transactional id."""
        by_name = self._transactions.transactions
        return {
            name: ProducerIdentity(by_name[name].producer_id, by_name[name].producer_epoch)
            for name in self.transactions(State.ONGOING)
        }

    def time_out(self, transactional_id: str) -> None:
        """Abort a transaction that is open for too long."""
        self._transactions.fence(self._transactions.transactions[transactional_id])

    def write_markers(self, transactional_id: str) -> None:
        """Complete a prepared transaction."""
        self._transactions.write_markers(self._transactions.transactions[transactional_id])

    def settled(self) -> Settled:
        """Complete all prepared transactions, and return what is visible and open then."""
        for name in self.transactions(*PREPARED):
            self.write_markers(name)
        rows = {Row.of_partition(key[1]): offset.metadata for key, offset in self._committed(ROWS).items()}
        ledger = from_offsets(self._committed(QUERY.transactional_id))
        open_transactions = self.open_transactions()
        batch, lost = -1, frozenset[int]()
        if ledger is not None:
            batch = ledger.batch_id
            retained = {_written_by(identity) for identity in open_transactions.values()} | set(rows.values())
            lost = frozenset(
                task for task, identity in ledger.transactions.items() if _written_by(identity) not in retained
            )
        visible = frozenset((row.batch, row.task) for row in rows)
        return Settled(visible, batch, lost, sorted(open_transactions), _violation_of_rows(sorted(rows), batch))

    def _committed(self, group: str) -> Mapping[TopicPartition, Committed]:
        return self._offsets.committed.get(group, {})


def must_wait(api: Api, reply: Mapping[str, Any]) -> bool:
    """Return True for a reply that the client repeats until another transaction has ended."""
    return any(part.code in _NOT_YET for part in error_parts(api, reply))


def is_refused_ledger(request: Request, reply: Mapping[str, Any]) -> bool:
    """Return True if another writer of the ledger has fenced the sender of this request."""
    if request.body.get("transactional_id") != QUERY.transactional_id:
        return False
    return any(part.code in _FENCED for part in error_parts(request.api, reply))


def _written_by(identity: ProducerIdentity) -> str:
    return f"{identity.producer_id}/{identity.producer_epoch}"


def _violation_of_rows(rows: list[Row], decided: int) -> str | None:
    """Return what is wrong with visible rows."""
    for (batch, task), copies in groupby(rows, key=lambda row: row[:2]):
        if len(list(copies)) > 1:
            return f"a row of batch {batch}, task {task} is visible twice: {rows}"
        if batch > decided:
            return f"batch {batch} is visible and not decided"
    return None
