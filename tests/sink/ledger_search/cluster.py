"""The coordinator of the search: FakeKafka's cluster without sockets or time, frozen into a value after each step.

A row is an offset of the group `ROWS`: it is committed and aborted with its transaction, as a record would be. Ended
transactions stay prepared until the search writes their markers, so that each delay of a commit is an own step.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
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
from spark_kafka_source.sink.exactly_once.ledger import Ledger, from_offsets
from tests.sink.ledger_search.product import QUERY, ROWS, TOPIC, Request, Row

Frozen = tuple[Any, ...]

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
    """One broker whose state can be read and set as a value.

    Parameters
    ----------
    transaction_version : int
        2 since KIP-890.
    """

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

    def settle(self) -> None:
        """Complete all prepared transactions."""
        for name in self.transactions(*PREPARED):
            self.write_markers(name)

    def ledger(self) -> Ledger | None:
        """Return the committed ledger."""
        return from_offsets(self._committed(QUERY.transactional_id))

    def rows(self) -> dict[Row, str]:
        """Return the visible rows, and the identity that wrote each."""
        return {Row.of_partition(key[1]): offset.metadata for key, offset in self._committed(ROWS).items()}

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
