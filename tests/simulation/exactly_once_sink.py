"""The exactly-once sink without Spark: drivers and tasks are killed at any line, lost attempts continue.

The scenario keeps the query's checkpoint, and plays Spark: it starts another driver after each failure, and another
attempt of each task that failed or whose executor is lost. It counts the rows of the crash table in
docs/architecture.md that a run reaches. In some runs each batch is a batch write, which Spark never repeats.
"""

from __future__ import annotations

import os
import pickle
import random
import signal
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from protocol.errors import KafkaError, OutcomeUnknown, ProducerFenced
from protocol.testing import FakeKafka
from protocol.testing.simulation import (
    Process,
    Simulation,
    acl_faults,
    bootstrap_servers,
    cluster_faults,
    network_faults,
    process_faults,
    settle,
    topic_faults,
)
from protocol.wire.messages.m09_offset_fetch import OFFSET_FETCH
from protocol.wire.messages.m25_add_offsets_to_txn import ADD_OFFSETS_TO_TXN
from protocol.wire.messages.m26_end_txn import END_TXN
from protocol.wire.messages.m28_txn_offset_commit import TXN_OFFSET_COMMIT
from protocol.wire.messages.m65_describe_transactions import DESCRIBE_TRANSACTIONS
from spark_kafka_source.options.parsing import parse_sink_options
from spark_kafka_source.sink import guarantee
from spark_kafka_source.sink.columns import SinkPlan
from spark_kafka_source.sink.exactly_once import query
from spark_kafka_source.sink.exactly_once.task_writer import PreparedWrite, TransactionalTaskWriter
from tests.simulation.sink_judge import (
    LEDGER,
    PARTITIONS,
    QUERY,
    TOPIC,
    Attempt,
    Checkpoint,
    Executor,
    RequestJudge,
    count_lost_driver,
    count_lost_task,
    judge_completed,
    judge_ends,
    judge_visible,
)

EXECUTORS = 4
ATTEMPTS = 4
DURATION_S = 14.0
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


def scenario(world: Simulation) -> dict[str, object]:
    version = world.random.choice(["1", "2", "2"])
    settings = {"transaction.version": version}
    settings |= {"authorizer.class.name": "StandardAuthorizer", "allow.everyone.if.no.acl.found": "true"}
    kafka = FakeKafka(3, record_requests=False, settings=settings)
    kafka.create_topic(TOPIC, PARTITIONS, 3)
    checkpoint = Checkpoint(world.random.random() < 0.8, kafka.transactions.transactions)
    requests = RequestJudge(kafka, checkpoint)
    timeout_ms = world.random.choice([3_000, 3_000, 8_000, 60_000])
    options = {
        "kafka.bootstrap.servers": bootstrap_servers(world, kafka),
        "deliveryGuarantee": "exactly-once",
        "transactionalIdPrefix": QUERY.prefix,
        "kafka.default.api.timeout.ms": str(world.random.choice([3_000, 3_000, 10_000, 60_000])),
        "kafka.transaction.timeout.ms": str(timeout_ms),
    }

    executors: dict[int, Process] = {}

    def start_executor() -> None:
        executor = Executor()
        checkpoint.executors.append(executor)
        process = world.start(execute, options, executor, checkpoint, name=f"executor-{len(world.processes)}")
        executors[id(executor)] = process
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
        world.sleep(world.random.choice([0.05, 0.2, 1]))
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
        countdown = world.fault_random.randrange(3)

        def act(_: dict[str, Any]) -> bool:
            nonlocal countdown
            countdown -= 1
            if countdown < 0:
                for driver in world.alive("driver"):
                    driver.kill()
            return countdown < 0

        requests.on_request(world.fault_random.choice(COMMIT_REQUESTS), act)

    def kill_before_log() -> None:
        checkpoint.is_killed_before_log = True

    def pause_at_look() -> None:
        """Pause an executor that reads the ledger: its task continues later, with a ledger that is out of date."""
        meanwhile = world.fault_random.choice([kill_before_log, refuse_commits, lambda: None, lambda: None])
        pause_s, choice = world.fault_random.uniform(2, 7), world.fault_random.random()

        def act(body: dict[str, Any]) -> bool:
            looking = [
                executor
                for executor in checkpoint.executors
                if executor.alive and executor.attempts and executor.attempts[0].is_looking
            ]
            if not looking or LEDGER not in str(body):
                return False
            executors[id(looking[int(choice * len(looking))])].pause(pause_s)
            meanwhile()
            return True

        requests.on_request(OFFSET_FETCH, act)

    def refuse_commits() -> None:
        """Refuse the commits of tasks' transactions for some time from the next one on."""
        refused_s = world.fault_random.uniform(2, 6)

        def act(body: dict[str, Any]) -> bool:
            is_commit = body["committed"] and body["transactional_id"] != LEDGER
            if is_commit:
                kafka.refuse("EndTxn", "COORDINATOR_LOAD_IN_PROGRESS", times=100_000)
                world.later(refused_s, kafka.clear_faults)
            return bool(is_commit)

        requests.on_request(END_TXN, act)

    for _ in range(EXECUTORS):
        start_executor()
    start_driver()
    faults = world.start_faults(
        [
            *cluster_faults(world, kafka, KINDS),
            *network_faults(world, kafka),
            *process_faults(world, lambda: world.alive("driver") + world.alive("executor")),
            *acl_faults(world, kafka, [("Topic", TOPIC), ("Group", LEDGER), ("TransactionalId", LEDGER)]),
            *topic_faults(world, kafka, TOPIC, PARTITIONS + 2),
            *[("kill a driver at a line", lambda: kill("driver"))] * 3,
            *[("kill an executor at a line", lambda: kill("executor"))] * 3,
        ],
        every_s=(0.5, 5),
    )
    crashes = world.start_faults(
        [
            *[("kill a driver at a request", kill_at_request)] * 2,
            ("kill a driver before Spark's commit log", kill_before_log),
            *[("pause an executor at its look at the ledger", pause_at_look)] * 5,
            ("refuse the commits of a batch", refuse_commits),
            ("start a second driver", second_driver),
        ],
        every_s=(0.2, 1.2),
    )
    end_s = world.now_s + DURATION_S
    while world.now_s < end_s:
        world.sleep(0.5)
        judge_visible(kafka, checkpoint)
        assert not requests.failures, requests.failures[:3]
    faults.stop()
    crashes.stop()
    requests.clear()
    checkpoint.is_killed_before_log = False
    settle(world, kafka)
    count = len(checkpoint.completed)
    world.wait_until(
        lambda: len(checkpoint.completed) >= count + BATCHES_AFTER_FAULTS, 400, f"{count} batches, and some more"
    )
    checkpoint.stopping = True
    for driver in world.alive("driver"):
        assert driver.wait(150), f"{driver} does not end"
    world.wait_until(
        lambda: not any(executor.attempts for executor in checkpoint.executors), 150, "late attempts have ended"
    )
    world.sleep(timeout_ms / 1000 + 2)
    judge_ends(kafka)
    judge_visible(kafka, checkpoint)
    judge_completed(kafka, checkpoint)
    requests.judge_late_attempts()
    assert not requests.failures, requests.failures[:3]
    drivers = sum(process.name.startswith("driver") for process in world.processes)
    return {"version": version, "batches": len(checkpoint.completed), "drivers": drivers, **checkpoint.reached}


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
                accepted = run_tasks(checkpoint, attempts, start_id, writer.write_id, batch, messages)
                guarantee.commit(options, messages)
            except KafkaError:
                guarantee.abort(options, writer, messages)
                raise
            time.sleep(random.uniform(0, 0.1))
            if checkpoint.is_killed_before_log:
                checkpoint.is_killed_before_log = False
                time.sleep(random.choice([0, 1, 4]))
                os.kill(os.getpid(), signal.SIGKILL)
                time.sleep(1)
            if batch in checkpoint.completed:
                return  # another driver was faster, as Spark's commit log shows
            checkpoint.completed.append(batch)
            if any(message is not None and message.identity is not None for message in messages):
                checkpoint.decided += [(batch, task) for task, attempt in accepted.items() if attempt.row_count]
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
) -> dict[int, Attempt]:
    """Run the tasks of a batch at the same time, each with up to four attempts. Fills `messages`.

    Returns the successful attempts by task.
    """
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
    prepared = {task: message for task, message in enumerate(messages) if message is not None}
    checkpoint.accept(batch, accepted, prepared)
    for task, attempt in accepted.items():
        message = prepared[task]
        if message.decided_task_count is not None and message.identity is not None:
            checkpoint.reached["a decided transaction is missing, and its task writes again"] += 1
        earlier = [
            former.row_count
            for former in checkpoint.attempts.values()
            if (former.batch, former.task, former.start_id) == (batch, task, start_id) and former.lost
        ]
        if not attempt.row_count and any(earlier):
            checkpoint.reached["an attempt with rows is lost, the next has none"] += 1
    return accepted


def submit(checkpoint: Checkpoint, attempt: Attempt) -> tuple[Attempt, Executor, float]:
    """Pass an attempt to an executor; return the time at which the driver gives up on it, too."""
    while not (alive := [executor for executor in checkpoint.executors if executor.alive]):
        time.sleep(0.05)
    attempt.number = len(checkpoint.attempts)
    attempt.row_count = random.choice([0, 1, 3, 6])
    checkpoint.attempts[attempt.number] = attempt
    executor = random.choice([executor for executor in alive if not executor.attempts] or alive)
    executor.attempts.append(attempt)
    return attempt, executor, time.monotonic() + random.choice([0.4, 0.4, 2, 10])


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
            "sql.streaming.queryId": QUERY.query_id,
            "spark.jobGroup.id": self.attempt.start_id,
            "streaming.sql.batchId": str(self.attempt.batch),
        }.get(name)


def execute(properties: dict[str, str], executor: Executor, checkpoint: Checkpoint) -> None:
    """Run attempts, one after another. Skip attempts that are lost before they begin."""
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
        writer = TransactionalTaskWriter(options.client, options.producer, plan, QUERY.prefix, attempt.write_id)
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
        attempt.is_looking = row == 0  # the first row is pulled before the transaction begins
        time.sleep(random.choices([0, 0.01, 0.2, 4], [50, 25, 25, 2])[0])
        value = f"{attempt.batch}:{attempt.task}:{attempt.number}:{row}"
        yield pa.record_batch({"value": [value]})
    attempt.is_looking = False


def pickled(message: PreparedWrite) -> bytes:
    # Pickle's C code takes classes from `sys.modules`, which this import makes those of this process.
    import spark_kafka_source.sink.exactly_once.task_writer  # noqa: F401

    return pickle.dumps(message)


def unpickled(message: bytes) -> PreparedWrite:
    import spark_kafka_source.sink.exactly_once.task_writer  # noqa: F401

    written = pickle.loads(message)
    assert isinstance(written, PreparedWrite)
    return written
