"""The searches: configurations in which every property holds, and controls that must give a counterexample.

A control takes one rule out of the product. It shows that the properties can fail, and what the rule is for.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from protocol.admin.transactions import describe_transactions
from protocol.base.clock import Deadline
from protocol.cluster.client import Client
from protocol.group.commits.committed_offsets import CommittedOffset
from protocol.transaction.coordinator import init_producer_id
from protocol.transaction.end_transaction import end_transactions
from protocol.transaction.states import TransactionalIdentity
from spark_kafka_source.sink.exactly_once import batch_commit, ledger_group, open_transactions, takeover, task_writer
from spark_kafka_source.sink.exactly_once.ledger import Ledger
from spark_kafka_source.sink.exactly_once.query import StreamBatch
from tests.sink.ledger_search.product import QUERY, SearchProducer


@dataclass(frozen=True)
class Configuration:
    """The bounds of a search.

    `tasks`: tasks of a batch; each has one row.
    `attempts`: attempts of a task in one start; another one begins when Spark has lost one that still runs, or one has
    failed.
    `starts`: starts of the query, at most two. The second one begins at any time, also beside the first.
    `batches`: batches of the query. A lost attempt of a batch may still run in the next one.
    `lost_attempts`, `lost_replies`, `late_requests`, `timeouts`, `crashes`: the most faults of each kind in a run. A
    late request takes effect any time after its sender has given up waiting. A crash ends a driver between two steps.
    `empty_retries`: only the first attempt of a task has rows, as with a source whose rows change.
    `known_gap`: accept that a late attempt aborts a decided transaction: docs/decisions/0026-takeover.md.
    `merge`: merge processes with equal local states; False only to check that this changes no result.
    `refusals`: the most refused writes of the ledger. Two writers could fence each other forever; in fact, they wait
    longer each time. A state beyond the limit is not followed further, and counts as `cut`.
    """

    tasks: int = 2
    empty_tasks: frozenset[int] = frozenset()
    attempts: int = 1
    starts: int = 1
    batches: int = 1
    lost_attempts: int = 0
    lost_replies: int = 0
    late_requests: int = 0
    timeouts: int = 0
    crashes: int = 0
    transaction_version: int = 2
    empty_retries: bool = False
    known_gap: bool = False
    merge: bool = True
    refusals: int = 1


SMALL = {
    "one start": Configuration(),
    "lost replies and timeouts": Configuration(tasks=1, lost_replies=1, timeouts=1),
    "the first attempt has rows, the second none": Configuration(
        tasks=1, attempts=2, lost_attempts=1, empty_retries=True, known_gap=True
    ),
    "a later batch": Configuration(tasks=1, attempts=2, batches=2, lost_attempts=1, known_gap=True, refusals=0),
}
"""Configurations of `make test`."""

LARGE = {
    **SMALL,
    "a lost attempt continues": Configuration(tasks=1, attempts=2, lost_attempts=1, known_gap=True),
    "a later batch with a refusal": Configuration(tasks=1, attempts=2, batches=2, lost_attempts=1, known_gap=True),
    "a later batch with a timeout": Configuration(
        tasks=1, attempts=2, batches=2, lost_attempts=1, timeouts=1, known_gap=True, refusals=0
    ),
    "a later batch of two tasks": Configuration(
        tasks=2, attempts=2, batches=2, lost_attempts=1, known_gap=True, refusals=0
    ),
    "a later batch in two starts": Configuration(tasks=1, starts=2, batches=2, known_gap=True, refusals=0),
    "one start, version 1": Configuration(transaction_version=1),
    "late requests": Configuration(tasks=1, late_requests=1, lost_replies=1, known_gap=True),
    "two starts": Configuration(tasks=1, starts=2, known_gap=True),
    "two starts, version 1": Configuration(tasks=1, starts=2, known_gap=True, transaction_version=1),
    "two starts with a crash and a timeout": Configuration(tasks=1, starts=2, crashes=1, timeouts=1, known_gap=True),
    "two starts with a lost reply": Configuration(tasks=1, starts=2, lost_replies=1, known_gap=True),
    "two starts, one task without rows": Configuration(
        tasks=2, empty_tasks=frozenset({1}), starts=2, known_gap=True, refusals=0
    ),
    "two tasks with a lost attempt": Configuration(tasks=2, attempts=2, lost_attempts=1, known_gap=True, refusals=0),
    "two tasks in two starts": Configuration(tasks=2, starts=2, known_gap=True, refusals=0),
    "a lost attempt in two starts": Configuration(
        tasks=1, attempts=2, starts=2, lost_attempts=1, crashes=1, known_gap=True, refusals=0
    ),
}
"""Configurations of `make soak`."""


@dataclass(frozen=True)
class Control:
    """A rule that is taken out of the product, and the words of the property that fails then."""

    configuration: Configuration
    without: Callable[[], AbstractContextManager[Any]]
    violated: str


def _replaced(module: Any, name: str, by: Any) -> Callable[[], AbstractContextManager[Any]]:
    return lambda: patch.object(module, name, by)


def _described(client: Client, transactional_id: str, timeout_ms: int, deadline: Deadline) -> TransactionalIdentity:
    """Return the identity of the present writer: a takeover without fencing."""
    description = describe_transactions(client, [transactional_id], deadline).get(transactional_id)
    if description is None:
        return init_producer_id(client, transactional_id, timeout_ms, deadline)
    return description.identity


def _aborted_at_once(client: Client, prefix: str, deadline: Deadline) -> list[TransactionalIdentity]:
    """Abort open transactions that the ledger does not name, before it names the new start."""
    ledger = ledger_group.read_ledger(client, QUERY, deadline)
    decided = QUERY.identities(ledger.transactions) if ledger is not None else []
    listed = open_transactions.list_open_transactions(client, prefix, deadline)
    undecided = [identity for identity in listed if identity not in decided]
    end_transactions(client, undecided, commit=False, deadline=deadline, maybe_ended=True)
    return []


_read_written_ledger = ledger_group.read_written_ledger


def _read_unstable_ledger(*arguments: Any, require_stable: bool = False) -> Any:
    return _read_written_ledger(*arguments)


def _believed(client: Client, group: str, partitions: Any, deadline: Deadline) -> Any:
    """Return markers as if each transaction had been committed."""
    return dict.fromkeys(partitions, CommittedOffset(99))


_require_not_passed = takeover._require_not_passed


def _require_newest_in_rewrite(ledger: Ledger, batch: StreamBatch) -> None:
    """Look for a later batch only before the takeover, not in the ledger that it rewrites."""
    is_rewrite = sys._getframe(1).f_code.co_name == "add_start"
    (takeover.require_newest if is_rewrite else _require_not_passed)(ledger, batch)


_LOST = Configuration(tasks=1, attempts=2, lost_attempts=1, known_gap=True)
_TWO_STARTS = Configuration(tasks=1, starts=2, known_gap=True)

CONTROLS = {
    "no second look at the ledger": Control(
        _LOST, _replaced(task_writer, "require_not_decided", lambda *_: None), "is open"
    ),
    "a takeover that does not look for a later batch": Control(
        SMALL["a later batch"],
        _replaced(takeover, "_require_not_passed", _require_newest_in_rewrite),
        "search-query-0 is open",
    ),
    "a second look at a ledger that is being written": Control(
        _LOST, _replaced(takeover, "read_written_ledger", _read_unstable_ledger), "is open"
    ),
    "no DescribeTransactions before the decision": Control(
        Configuration(attempts=2, lost_attempts=1, empty_retries=True, known_gap=True, refusals=0),
        _replaced(batch_commit, "_require_open", lambda *_: []),
        "is open",
    ),
    "a decision before the last flush": Control(
        Configuration(tasks=1), _replaced(SearchProducer, "write_row", lambda _: None), "decided transaction"
    ),
    "a takeover without fencing": Control(_TWO_STARTS, _replaced(ledger_group, "init_producer_id", _described), ""),
    "a takeover that aborts before the ledger names the new start": Control(
        _TWO_STARTS, _replaced(takeover, "list_open_transactions", _aborted_at_once), "EndTxn"
    ),
    "a marker that is not looked at": Control(
        Configuration(tasks=1, attempts=2, starts=2, lost_attempts=1, known_gap=True, refusals=0),
        _replaced(open_transactions, "fetch_offsets", lambda *_: {}),
        "visible twice",
    ),
    "a marker that is always believed": Control(
        Configuration(tasks=1, starts=2, timeouts=1, known_gap=True),
        _replaced(open_transactions, "fetch_offsets", _believed),
        "are missing",
    ),
    "nothing, with the known gap": Control(
        Configuration(tasks=1, attempts=2, lost_attempts=1), nullcontext, "InitProducerId"
    ),
}
