"""The exactly-once sink without Spark: drivers and tasks are killed at any line, lost attempts continue.

The scenario keeps the query's checkpoint, and plays Spark: it starts another driver after each failure, and another
attempt of each task that failed or whose executor is lost. It counts the rows of the crash table in
docs/architecture.md that a run reaches. In some runs each batch is a batch write, which Spark never repeats.
"""

from __future__ import annotations

import pickle
import random
import signal
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from protocol.errors import KafkaError, OutcomeUnknown, ProducerFenced
from protocol.testing import FakeKafka
from protocol.testing.fake_kafka.transactions import State
from protocol.testing.simulation import Process, Simulation, cluster_faults, heal, network_faults, process_faults
from protocol.wire.messages.m25_add_offsets_to_txn import ADD_OFFSETS_TO_TXN
from protocol.wire.messages.m26_end_txn import END_TXN
from protocol.wire.messages.m28_txn_offset_commit import TXN_OFFSET_COMMIT
from protocol.wire.messages.m65_describe_transactions import DESCRIBE_TRANSACTIONS
from spark_kafka_source.options.parsing import parse_sink_options
from spark_kafka_source.sink import guarantee
from spark_kafka_source.sink.columns import SinkPlan
from spark_kafka_source.sink.exactly_once import query
from spark_kafka_source.sink.exactly_once.task_writer import PreparedWrite, TransactionalTaskWriter

TOPIC, PARTITIONS = "t", 3
PREFIX, QUERY_ID = "sink", "query"
LEDGER = f"{PREFIX}-{QUERY_ID}"
EXECUTORS = 2
ATTEMPTS = 4
DURATION_S = 12.0
BATCHES_AFTER_FAULTS = 3
KINDS = (
    "AddOffsetsToTxn",
    "AddPartitionsToTxn",
    "DescribeTransactions",
    "EndTxn",
    "FindCoordinator",
    "InitProducerId",
    "ListTransactions",
    "Metadata",
    "OffsetFetch",
    "Produce",
    "TxnOffsetCommit",
)
COMMIT_REQUESTS = (ADD_OFFSETS_TO_TXN, DESCRIBE_TRANSACTIONS, END_TXN, TXN_OFFSET_COMMIT)
_UNENDED = (State.ONGOING, State.PREPARE_COMMIT, State.PREPARE_ABORT)


@dataclass
class Attempt:
    """An attempt of a task, which a driver passes to an executor.

    Attributes
    ----------
    write_id : str or None
        Id of a batch write.
    lost : bool
        The driver has given up on it, or has ended.
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
    attempts : dict of int to Attempt
        All attempts by number.
    accepted : dict of (int, int) to set of (int or None)
        Numbers of attempts that a driver has tried to commit, by batch and task; None for one without rows.
    reached : Counter
        Rows of the crash table.
    """

    is_stream: bool
    task_counts: list[int] = field(default_factory=list)
    completed: list[int] = field(default_factory=list)
    attempts: dict[int, Attempt] = field(default_factory=dict)
    accepted: dict[tuple[int, int], set[int | None]] = field(default_factory=lambda: defaultdict(set))
    executors: list[Executor] = field(default_factory=list)
    reached: Counter[str] = field(default_factory=Counter)
    stopping: bool = False


def scenario(world: Simulation) -> dict[str, object]:
    version = world.random.choice(["1", "2", "2"])
    kafka = FakeKafka(3, record_requests=False, settings={"transaction.version": version})
    kafka.create_topic(TOPIC, PARTITIONS, 3)
    checkpoint = Checkpoint(is_stream=world.random.random() < 0.8)
    timeout_ms = world.random.choice([3_000, 8_000, 60_000])
    options = {
        "kafka.bootstrap.servers": kafka.bootstrap_servers,
        "deliveryGuarantee": "exactly-once",
        "transactionalIdPrefix": PREFIX,
        "kafka.default.api.timeout.ms": str(world.random.choice([3_000, 10_000, 60_000])),
        "kafka.transaction.timeout.ms": str(timeout_ms),
    }

    def start_executor() -> None:
        executor = Executor()
        checkpoint.executors.append(executor)
        process = world.start(execute, options, executor, checkpoint, name=f"executor-{len(world.processes)}")
        world.scheduler.start(world.main, lambda: replace_executor(executor, process))

    def replace_executor(executor: Executor, process: Process) -> None:
        process.wait()
        executor.alive = False
        if process.killed:
            count_lost_task(kafka, checkpoint, executor)
        world.sleep(world.random.uniform(0, 1))
        checkpoint.executors.remove(executor)
        start_executor()

    def start_driver() -> None:
        attempts: list[Attempt] = []
        driver = world.start(drive, options, checkpoint, attempts, name=f"driver-{len(world.processes)}")
        world.scheduler.start(world.main, lambda: replace_driver(driver, attempts))

    def replace_driver(driver: Process, attempts: list[Attempt]) -> None:
        driver.wait()
        for attempt in attempts:
            attempt.lost = True
        if driver.killed and checkpoint.is_stream:
            count_lost_driver(kafka, checkpoint)
        elif driver.killed and checkpoint.accepted:
            checkpoint.reached["the driver of a batch write dies"] += 1
        world.sleep(world.random.choice([0.1, 1, 5]))
        if not checkpoint.stopping and not world.alive("driver"):
            start_driver()

    def second_driver() -> None:
        if checkpoint.is_stream and len(world.alive("driver")) == 1:
            checkpoint.reached["a second driver"] += 1
            start_driver()

    def kill(kind: str) -> None:
        if processes := world.alive(kind):
            lines = int(10 ** world.fault_random.uniform(-1, 3.5))
            world.fault_random.choice(processes).interrupt(signal.SIGKILL, lines)

    def kill_at_request() -> None:
        """Kill a driver while the cluster handles a request of a commit, from this driver or from a task."""
        kind = world.fault_random.choice(COMMIT_REQUESTS)
        countdown = world.fault_random.randrange(3)

        def before(_: object) -> None:
            nonlocal countdown
            countdown -= 1
            if countdown < 0:
                kafka.before.pop(kind, None)
                for driver in world.alive("driver"):
                    driver.kill()

        kafka.before[kind] = before

    for _ in range(EXECUTORS):
        start_executor()
    start_driver()
    faults = world.start_faults(
        [
            # New processes know only the first addresses.
            *[fault for fault in cluster_faults(world, kafka, KINDS) if fault[0] != "move a broker to another port"],
            *network_faults(world, kafka),
            *process_faults(world, lambda: world.alive("driver") + world.alive("executor")),
            *[("kill a driver at a line", lambda: kill("driver"))] * 3,
            *[("kill a driver at a request", kill_at_request)] * 4,
            *[("kill an executor at a line", lambda: kill("executor"))] * 3,
            ("start a second driver", second_driver),
        ],
        every_s=(0.05, 0.8),
    )
    end_s = world.now_s + DURATION_S
    while world.now_s < end_s:
        world.sleep(0.5)
        judge_visible(kafka, checkpoint)
    faults.stop()
    kafka.before.clear()
    world.sleep(15)  # temporary faults end
    heal(world, kafka)
    count = len(checkpoint.completed)
    world.wait_until(
        lambda: len(checkpoint.completed) >= count + BATCHES_AFTER_FAULTS, 400, f"{count} batches, and some more"
    )
    checkpoint.stopping = True
    for driver in world.alive("driver"):
        assert driver.wait(150), f"{driver} does not end"
    world.sleep(timeout_ms / 1000 + 2)
    judge_ends(kafka)
    judge_visible(kafka, checkpoint)
    judge_completed(kafka, checkpoint)
    drivers = sum(process.name.startswith("driver") for process in world.processes)
    return {"version": version, "batches": len(checkpoint.completed), "drivers": drivers, **checkpoint.reached}


# -- the judge ----------------------------------------------------------------------------------------


def visible_rows(kafka: FakeKafka) -> dict[tuple[int, int], Counter[tuple[int, int]]]:
    """Return the committed records by batch and task, as counts of (attempt, row)."""
    rows: dict[tuple[int, int], Counter[tuple[int, int]]] = defaultdict(Counter)
    for message in kafka.records(TOPIC):
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
    left_open = [name for name, transaction in kafka.transactions.transactions.items() if transaction.state in _UNENDED]
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
    unended = [name for name, state in states.items() if name != LEDGER and state in _UNENDED]
    if decided == batch + 1:
        step = "after the decision" if unended else "before Spark's commit log"
    elif states.get(LEDGER) in _UNENDED:
        step = "during the decision"
    elif unended:
        step = "before the decision"
    else:
        return
    checkpoint.reached[f"the driver dies {step}"] += 1


# -- Spark's driver -----------------------------------------------------------------------------------


def drive(properties: dict[str, str], checkpoint: Checkpoint, attempts: list[Attempt]) -> None:
    """Run batches until an error ends the query, as Spark does. Adds all attempts of its tasks to `attempts`."""
    options = parse_sink_options(properties)
    start_id = uuid.uuid4().hex
    try:
        while not checkpoint.stopping:
            batch = len(checkpoint.completed) if checkpoint.is_stream else len(checkpoint.task_counts)
            if batch == len(checkpoint.task_counts):
                checkpoint.task_counts.append(random.randint(1, 3))
            writer = guarantee.task_writer(
                options, SinkPlan(TOPIC, frozenset({"value"})), streaming=checkpoint.is_stream
            )
            assert isinstance(writer, TransactionalTaskWriter)
            count = checkpoint.task_counts[batch]
            messages: list[PreparedWrite | None] = [None] * count
            try:
                run_tasks(checkpoint, attempts, start_id, writer.write_id, batch, messages)
                guarantee.commit(options, messages)
            except KafkaError:
                guarantee.abort(options, writer, messages)
                raise
            time.sleep(random.uniform(0, 0.1))
            if batch in checkpoint.completed:
                return  # another driver was faster, as Spark's commit log shows
            checkpoint.completed.append(batch)
            time.sleep(random.uniform(0, 0.2))
    except OutcomeUnknown:
        checkpoint.reached["EndTxn is not answered before the deadline"] += 1
    except ProducerFenced:
        checkpoint.reached["the older driver is fenced"] += 1
    except KafkaError as error:
        if "ended before they could be committed" in str(error):
            checkpoint.reached["a transaction ends before the decision"] += 1


def run_tasks(
    checkpoint: Checkpoint,
    attempts: list[Attempt],
    start_id: str,
    write_id: str | None,
    batch: int,
    messages: list[PreparedWrite | None],
) -> None:
    """Run the tasks of a batch at the same time, each with up to four attempts. Fills `messages`."""
    running: dict[int, tuple[Attempt, Executor, float]] = {}
    failures: Counter[int] = Counter()
    accepted: dict[int, Attempt] = {}
    while len(accepted) < len(messages):
        for task in range(len(messages)):
            if task in accepted:
                continue
            if task not in running:
                running[task] = submit(checkpoint, Attempt(start_id, write_id, batch, task, 0, 0))
                attempts.append(running[task][0])
            attempt, executor, lost_at_s = running[task]
            if attempt.message is not None:
                messages[task] = unpickled(attempt.message)
                accepted[task] = attempt
            elif attempt.error is not None or not executor.alive or time.monotonic() > lost_at_s:
                attempt.lost = True
                del running[task]
                failures[task] += 1
                if failures[task] == ATTEMPTS:
                    raise KafkaError(f"task {task} of batch {batch} failed: {attempt.error}")
        time.sleep(0.02)
    for task, attempt in accepted.items():
        message = messages[task]
        assert message is not None
        if message.identity is not None or not attempt.row_count:
            checkpoint.accepted[batch, task].add(attempt.number if attempt.row_count else None)
        if message.decided_task_count is not None and message.identity is not None:
            checkpoint.reached["a decided transaction is missing, and its task writes again"] += 1
        earlier = [
            former.row_count
            for former in checkpoint.attempts.values()
            if (former.batch, former.task, former.start_id) == (batch, task, start_id) and former.lost
        ]
        if not attempt.row_count and any(earlier):
            checkpoint.reached["an attempt with rows is lost, the next has none"] += 1


def submit(checkpoint: Checkpoint, attempt: Attempt) -> tuple[Attempt, Executor, float]:
    """Pass an attempt to an executor; return the time at which the driver gives up on it, too."""
    while not (alive := [executor for executor in checkpoint.executors if executor.alive]):
        time.sleep(0.05)
    attempt.number = len(checkpoint.attempts)
    attempt.row_count = random.choice([0, 1, 3, 6])
    checkpoint.attempts[attempt.number] = attempt
    executor = random.choice(alive)
    executor.attempts.append(attempt)
    return attempt, executor, time.monotonic() + random.choice([2, 10, 100])


# -- Spark's executors --------------------------------------------------------------------------------


class TaskProperties:
    """Replaces the `TaskContext` in `sink.exactly_once.query`: PySpark's modules are shared by all processes."""

    attempt: Attempt

    @classmethod
    def get(cls) -> TaskProperties:
        return cls()

    def partitionId(self) -> int:
        return self.attempt.task

    def getLocalProperty(self, name: str) -> str | None:
        return {
            "sql.streaming.queryId": QUERY_ID,
            "spark.jobGroup.id": self.attempt.start_id,
            "streaming.sql.batchId": str(self.attempt.batch),
        }.get(name)


def execute(properties: dict[str, str], executor: Executor, checkpoint: Checkpoint) -> None:
    """Run attempts, one after another. An attempt that is lost before it begins never does."""
    query.TaskContext = TaskProperties  # type: ignore[attr-defined, misc]
    options = parse_sink_options(properties)
    while True:
        if not executor.attempts:
            time.sleep(0.02)
            continue
        attempt = TaskProperties.attempt = executor.attempts[0]
        if attempt.lost:
            executor.attempts.pop(0)
            continue
        plan = SinkPlan(TOPIC, frozenset({"value"}))
        writer = TransactionalTaskWriter(options.client, options.producer, plan, PREFIX, attempt.write_id)
        try:
            written = writer.write(rows_of(attempt))
            attempt.message = pickled(written)
            if attempt.lost:
                checkpoint.reached["an executor believed dead continues: written"] += 1
        except KafkaError as error:
            attempt.error = f"{type(error).__name__}: {error}"
            if attempt.lost and isinstance(error, ProducerFenced):
                checkpoint.reached["an executor believed dead continues: refused"] += 1
        executor.attempts.pop(0)


def rows_of(attempt: Attempt) -> Iterator[pa.RecordBatch]:
    """Yield the rows of an attempt, with pauses."""
    for row in range(attempt.row_count):
        time.sleep(random.choice([0, 0, 0.01, 0.2]))
        value = f"{attempt.batch}:{attempt.task}:{attempt.number}:{row}"
        yield pa.record_batch({"value": [value]})


def pickled(message: PreparedWrite) -> bytes:
    # Pickle's C code takes classes from `sys.modules`, which this import makes those of this process.
    import spark_kafka_source.sink.exactly_once.task_writer  # noqa: F401

    return pickle.dumps(message)


def unpickled(message: bytes) -> PreparedWrite:
    import spark_kafka_source.sink.exactly_once.task_writer  # noqa: F401

    written = pickle.loads(message)
    assert isinstance(written, PreparedWrite)
    return written
