"""The judge of the exactly-once sink: the visible rows, and the requests that end transactions.

It knows nothing of the client, except how the ledger is written.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from protocol.group.commits.committed_offsets import CommittedOffset
from protocol.records.batch_header import CONTROL
from protocol.testing import FakeKafka
from protocol.testing.fake_kafka.record_batches import read_batch
from protocol.testing.fake_kafka.requests import Refused
from protocol.testing.fake_kafka.transactions import State, Transaction
from protocol.wire.messages.m22_init_producer_id import INIT_PRODUCER_ID
from protocol.wire.messages.m26_end_txn import END_TXN
from protocol.wire.schema import Api
from spark_kafka_source.sink.exactly_once.ledger import from_offsets
from spark_kafka_source.sink.exactly_once.query import Query
from spark_kafka_source.sink.exactly_once.task_writer import PreparedWrite

TOPIC, PARTITIONS = "t", 3
QUERY = Query("sink", "query")
LEDGER = QUERY.transactional_id
UNENDED = (State.ONGOING, State.PREPARE_COMMIT, State.PREPARE_ABORT)


@dataclass
class Attempt:
    """An attempt of a task, which a driver passes to an executor.

    Attributes
    ----------
    write_id : str or None
        Id of a batch write.
    lost : bool
        The driver has given up on it, or has ended.
    is_looking : bool
        It has its first row, and has not begun its transaction.
    message : bytes or None
        The pickled `PreparedWrite`.
    error : str or None
    """

    start_id: str
    write_id: str | None
    batch: int
    task: int
    number: int
    row_count: int
    lost: bool = False
    is_looking: bool = False
    message: bytes | None = None
    error: str | None = None


@dataclass
class Executor:
    """A Python worker: its attempts, the first of which runs."""

    attempts: list[Attempt] = field(default_factory=list)
    alive: bool = True


@dataclass
class Checkpoint:
    """The state that outlives drivers, and what the judge needs to know.

    Attributes
    ----------
    task_counts : list of int
        Number of tasks of each planned batch.
    completed : list of int
        Batches in Spark's commit log, or batch writes that returned.
    decided : list of (int, int)
        Batches and tasks with rows that are completed and decided. Not among them: a task whose decided transaction was
        lost, and that had no rows when its batch ran again. A driver that does not know of that end may write its rows.
    attempts : dict of int to Attempt
        All attempts by number.
    accepted : dict of (int, int) to set of (int or None)
        Numbers of attempts that a driver has tried to commit, by batch and task; None for one without rows.
    reached : Counter
        Rows of the crash table.
    transactions : mapping of str to Transaction
        The cluster's transactions by transactional id.
    is_killed_before_log : bool
        The next driver that has committed a batch dies before it writes Spark's commit log.
    """

    is_stream: bool
    transactions: Mapping[str, Transaction]
    task_counts: list[int] = field(default_factory=list)
    completed: list[int] = field(default_factory=list)
    decided: list[tuple[int, int]] = field(default_factory=list)
    attempts: dict[int, Attempt] = field(default_factory=dict)
    accepted: dict[tuple[int, int], set[int | None]] = field(default_factory=lambda: defaultdict(set))
    executors: list[Executor] = field(default_factory=list)
    reached: Counter[str] = field(default_factory=Counter)
    stopping: bool = False
    is_killed_before_log: bool = False

    def accept(self, batch: int, attempts: Mapping[int, Attempt], messages: Mapping[int, PreparedWrite]) -> None:
        """Record that a driver is about to commit these attempts and messages, by task.

        A commit that begins after a transaction has ended must fail, so that none of these attempts is visible.
        """
        if all(self._is_open(message) for message in messages.values() if message.identity is not None):
            for task, attempt in attempts.items():
                if messages[task].identity is not None or not attempt.row_count:
                    self.accepted[batch, task].add(attempt.number if attempt.row_count else None)

    def _is_open(self, message: PreparedWrite) -> bool:
        transaction, identity = self.transactions.get(message.query.task(message.task)), message.identity
        assert identity is not None
        return (
            transaction is not None
            and transaction.state is State.ONGOING
            and (transaction.producer_id, transaction.producer_epoch) == (identity.producer_id, identity.producer_epoch)
        )


class RequestJudge:
    """Judges requests before the cluster handles them, and lets faults act at them.

    Attributes
    ----------
    failures : list of str
        Broken rules: an exception in a thread of the cluster would only close a connection.
    """

    def __init__(self, kafka: FakeKafka, checkpoint: Checkpoint) -> None:
        self.failures: list[str] = []
        self._kafka = kafka
        self._checkpoint = checkpoint
        self._actions: dict[Api, list[Callable[[dict[str, Any]], bool]]] = defaultdict(list)
        # Length of `decided` at the first InitProducerId of each epoch, by producer id and former epoch.
        self._decided_at_init: dict[tuple[int, int], int] = {}
        self._watch(END_TXN)
        self._watch(INIT_PRODUCER_ID)

    def on_request(self, api: Api, action: Callable[[dict[str, Any]], bool]) -> None:
        """Call `action` with the body of each request, until it returns True."""
        self._actions[api].append(action)
        self._watch(api)

    def clear(self) -> None:
        """Drop all actions."""
        self._actions.clear()

    def _watch(self, api: Api) -> None:
        self._kafka.before[api] = partial(self._before, api)

    def _before(self, api: Api, body: dict[str, Any]) -> None:
        if api is END_TXN:
            self._judge_end(body)
        elif api is INIT_PRODUCER_ID and body["transactional_id"] in self._kafka.transactions.transactions:
            transaction = self._kafka.transactions.transactions[body["transactional_id"]]
            key = transaction.producer_id, transaction.producer_epoch
            self._decided_at_init.setdefault(key, len(self._checkpoint.decided))
        actions = self._actions[api]
        for action in actions[:1]:
            if action(body) and action in actions:  # it may wait, and end for another request meanwhile
                actions.remove(action)

    def _judge_end(self, body: dict[str, Any]) -> None:
        """Take note of an abort of a decided transaction."""
        offsets = self._kafka.offsets.committed.get(LEDGER, {})
        ledger = from_offsets({key: CommittedOffset(row.offset, metadata=row.metadata) for key, row in offsets.items()})
        identities = [] if ledger is None else QUERY.identities(ledger.transactions)
        decided = [
            (identity.transactional_id, identity.producer_id, identity.producer_epoch) for identity in identities
        ]
        if not body["committed"] and (body["transactional_id"], body["producer_id"], body["producer_epoch"]) in decided:
            self.failures.append(f"an abort of a decided transaction: {body}")

    def judge_late_attempts(self) -> None:
        """Fail if an attempt has begun after its batch was decided and completed, and has written rows."""
        for partition in range(len(self._kafka.controller.image.topics[TOPIC].partitions)):
            for batch in self._kafka.log(TOPIC, partition).batches:
                count = self._decided_at_init.get((batch.producer_id, batch.producer_epoch - 1), 0)
                decided = set(self._checkpoint.decided[:count])
                for record in [] if batch.attributes & CONTROL else read_batch(batch.data).records:
                    value = (record.value or b"").decode()
                    number, task, *_ = map(int, value.split(":"))
                    assert (number, task) not in decided, f"written after its batch: {value}"


def visible_rows(kafka: FakeKafka) -> dict[tuple[int, int], Counter[tuple[int, int]]]:
    """Return the committed records by batch and task, as counts of (attempt, row)."""
    rows: dict[tuple[int, int], Counter[tuple[int, int]]] = defaultdict(Counter)
    for partition in range(len(kafka.controller.image.topics[TOPIC].partitions)):
        with suppress(Refused):  # a new partition, of which an isolated leader does not know yet
            for message in kafka.records(TOPIC, partition):
                batch, task, attempt, row = map(int, message.value.decode().split(":"))
                rows[batch, task][attempt, row] += 1
    return rows


def judge_visible(kafka: FakeKafka, checkpoint: Checkpoint) -> None:
    """Fail if a row is visible twice, or before a driver has tried to commit its attempt."""
    for (batch, task), rows in visible_rows(kafka).items():
        assert max(rows.values()) == 1, f"twice, in batch {batch}, task {task}: {rows}"
        attempts = {attempt for attempt, _ in rows}
        assert len(attempts) == 1, f"rows of the attempts {attempts} of batch {batch}, task {task}"
        accepted = checkpoint.accepted[batch, task]
        assert attempts <= accepted, f"batch {batch}, task {task}: rows of attempt {attempts}, accepted {accepted}"


def judge_completed(kafka: FakeKafka, checkpoint: Checkpoint) -> None:
    """Fail if a completed batch is not whole, or a stream has rows of another batch."""
    visible = visible_rows(kafka)
    for batch in checkpoint.completed:
        for task in range(checkpoint.task_counts[batch]):
            rows, accepted = visible.get((batch, task)), checkpoint.accepted[batch, task]
            assert rows or None in accepted, f"batch {batch}, task {task} is lost: accepted {accepted}"
    for (batch, task), rows in visible.items():
        ((number, _), *_) = rows
        expected = checkpoint.attempts[number].row_count
        assert len(rows) == expected, f"batch {batch}, task {task}: {len(rows)} of {expected} rows"
        assert batch in checkpoint.completed or not checkpoint.is_stream, f"batch {batch} is not completed"


def judge_ends(kafka: FakeKafka) -> None:
    """Fail if a transaction is open after its timeout."""
    kafka.clear_faults()  # any change lets the cluster look at its clock
    left_open = [name for name, transaction in kafka.transactions.transactions.items() if transaction.state in UNENDED]
    assert not left_open, f"open after the timeout: {left_open}"


def count_lost_task(kafka: FakeKafka, checkpoint: Checkpoint, executor: Executor) -> None:
    """Count the state in which a killed executor has left its task."""
    if executor.attempts:
        transaction = kafka.transactions.transactions.get(f"{LEDGER}-{executor.attempts[0].task}")
        if transaction is not None and transaction.state is State.ONGOING:
            checkpoint.reached["a task dies while it writes"] += 1


def count_lost_driver(kafka: FakeKafka, checkpoint: Checkpoint) -> None:
    """Count the state in which a killed driver has left its batch."""
    batch, transactions = len(checkpoint.completed), kafka.transactions.transactions
    decided = kafka.committed_offsets(LEDGER).get((TOPIC, 0), 0)
    states = {name: transaction.state for name, transaction in transactions.items()}
    unended = [name for name, state in states.items() if name != LEDGER and state in UNENDED]
    if decided == batch + 1:
        step = "after the decision" if unended else "before Spark's commit log"
    elif states.get(LEDGER) in UNENDED:
        step = "during the decision"
    elif unended:
        step = "before the decision"
    else:
        return
    checkpoint.reached[f"the driver dies {step}"] += 1
