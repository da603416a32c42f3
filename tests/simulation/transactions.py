"""Transactional producers that are killed, paused and fenced: readers see each transaction whole or not at all."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from protocol import KafkaConsumer, KafkaError, TransactionalProducer
from protocol.errors import OutcomeUnknown, ProducerFenced
from protocol.group.member import ConsumerGroupMetadata
from protocol.testing import FakeKafka
from protocol.testing.fake_kafka.transactions import State
from protocol.testing.simulation import (
    KAFKA_2_8,
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

PARTITIONS = 3
WRITERS = 2
DURATION_S = 10.0
TRANSACTION_TIMEOUT_MS = 4_000
KINDS = ("AddOffsetsToTxn", "AddPartitionsToTxn", "EndTxn", "Fetch", "InitProducerId", "Produce", "TxnOffsetCommit")
RESOURCES = [("Topic", "t"), ("Group", "group-0"), ("TransactionalId", "writer-1")]
_LOSS = "has lost records that it acknowledged"
Row = tuple[int, int, int]
"""Number of the transaction, partition, and number of the record in the partition."""


@dataclass
class Transaction:
    """A transaction that a writer has begun.

    Attributes
    ----------
    number : int
        Unique among all writers; also its offset in the group of the writer.
    counts : dict of int to int
        Records by partition.
    outcome : str
        "open" while the writer has not heard how it ended.
    error : str
        The error because of which the writer has aborted it.
    """

    number: int
    counts: dict[int, int]
    outcome: str = "open"
    error: str = ""


def scenario(world: Simulation) -> dict[str, object]:
    """Run writers under faults; without faults, no transaction fails."""
    calm = world.random.random() < 0.3
    versions = world.random.choice([None, None, KAFKA_2_8])
    version = world.random.choice(["1", "2", "2"]) if versions is None else "0"
    settings = {"transaction.version": version}
    settings |= {"authorizer.class.name": "StandardAuthorizer", "allow.everyone.if.no.acl.found": "true"}
    kafka = FakeKafka(3, record_requests=False, settings=settings, newest_versions=versions)
    kafka.create_topic("t", PARTITIONS, 3)
    servers = bootstrap_servers(world, kafka)
    transactions: list[list[Transaction]] = [[] for _ in range(WRITERS)]
    numbers = iter(range(1_000_000))
    stop: list[bool] = []
    read: dict[int, list[tuple[int, str]]] = {partition: [] for partition in range(PARTITIONS)}

    def start(writer: int) -> None:
        if not stop and len(world.alive("writer")) < 2 * WRITERS:
            process_name = f"writer-{writer}-{len(world.processes)}"
            world.start(write, servers, writer, numbers, transactions[writer], stop, calm, name=process_name)

    def restart_after(process: Process) -> None:
        start(int(process.name.split("-")[1]))

    def interrupt_kill() -> None:
        writers = world.alive("writer")
        if writers:
            process = world.fault_random.choice(writers)
            process.interrupt(signal.SIGKILL, int(10 ** world.fault_random.uniform(1, 4)))
            world.later(world.fault_random.uniform(0, 5), lambda: restart_after(process))

    def lose_replies_to_ends() -> None:
        """Lose replies until commits and aborts give up, while the coordinator does what they request."""
        kafka.lose_replies("EndTxn", 100_000)
        world.later(world.fault_random.uniform(3, 7), kafka.clear_faults)

    for writer in range(WRITERS):
        start(writer)
    reader = world.start(consume, servers, read, name="reader")
    schedule = (
        [("nothing", lambda: None)]
        if calm
        else [
            *cluster_faults(world, kafka, KINDS),
            *network_faults(world, kafka),
            *process_faults(world, lambda: world.alive("writer"), restart_after),
            *acl_faults(world, kafka, RESOURCES),
            *topic_faults(world, kafka, "t", 2 * PARTITIONS),
            ("kill a writer at a line", interrupt_kill),
            ("lose replies to commits and aborts", lose_replies_to_ends),
            ("start a second writer with the same id", lambda: start(world.fault_random.randrange(WRITERS))),
        ]
    )
    faults = world.start_faults(schedule, every_s=(0.05, 0.8))
    world.sleep(DURATION_S)
    faults.stop()
    if not calm:
        settle(world, kafka)
        world.sleep(3)
    stop.append(True)
    for process in world.alive("writer"):
        process.wait(150)
        assert not process.alive, f"{process} does not end"
    world.sleep(TRANSACTION_TIMEOUT_MS / 1000 + 2)
    judge_ends(kafka)
    outcomes = judge_log(kafka, transactions)
    errors = [transaction for begun in transactions for transaction in begun if transaction.error]
    assert not (calm and errors), f"failed without a cause: {errors[:3]}"
    assert not any(_LOSS in transaction.error for transaction in errors), f"no broker loses records: {errors}"
    ends = {partition: kafka.records("t", partition)[-1:] for partition in range(PARTITIONS)}

    def complete() -> bool:
        return all(
            not last or (read[partition] and read[partition][-1][0] >= last[0].offset)
            for partition, last in ends.items()
        )

    world.wait_until(complete, 120, "the reader has all committed records")
    reader.kill()
    for partition, rows in read.items():
        log = [(message.offset, message.value.decode()) for message in kafka.records("t", partition)]
        assert rows == log, f"t-{partition}: read {rows}, committed {log}"
    return {"version": version, "calm": calm, **outcomes}


def judge_ends(kafka: FakeKafka) -> None:
    """Fail if a transaction is open after its timeout, or a log has records that no reader may see yet."""
    left_open = [
        name
        for name, transaction in kafka.transactions.transactions.items()
        if transaction.state in (State.ONGOING, State.PREPARE_COMMIT, State.PREPARE_ABORT)
    ]
    assert not left_open, f"open after the timeout: {left_open}"
    for partition in range(PARTITIONS):
        log = kafka.log("t", partition)
        assert log.last_stable_offset(log.end_offset) == log.end_offset, f"t-{partition} has an open transaction"


def judge_log(kafka: FakeKafka, transactions: list[list[Transaction]]) -> Counter[str]:
    """Compare the committed records with the outcomes that the writers heard; count outcomes."""
    rows: list[Row] = []
    outcomes: Counter[str] = Counter()
    for message in kafka.records("t"):
        number, index = map(int, message.value.decode().split(":"))
        rows.append((number, message.partition, index))
    assert len(rows) == len(set(rows)), f"twice: {[row for row, count in Counter(rows).items() if count > 1]}"
    records = set(rows)
    for writer, begun in enumerate(transactions):
        committed = []
        for transaction in begun:
            expected = {
                (transaction.number, partition, index)
                for partition, count in transaction.counts.items()
                for index in range(count)
            }
            visible = {row for row in records if row[0] == transaction.number}
            outcomes[transaction.outcome] += 1
            assert visible in (set(), expected), f"{transaction}: only {sorted(visible)}"
            assert transaction.outcome != "committed" or visible == expected, f"{transaction} is lost"
            assert transaction.outcome != "aborted" or not visible, f"{transaction} is visible: {sorted(visible)}"
            if visible:
                committed.append(transaction.number)
        offset = kafka.committed_offsets(f"group-{writer}").get(("t", 0), -1)
        last = committed[-1] if committed else -1
        assert offset == last, f"writer {writer}: offset {offset}, but the last committed transaction is {last}"
        by_partition = [
            [row for row in rows if row[1] == partition and row[0] in committed] for partition in range(PARTITIONS)
        ]
        for partition_rows in by_partition:
            for number in committed:
                indexes = [row[2] for row in partition_rows if row[0] == number]
                assert indexes == sorted(indexes), f"transaction {number} is out of order: {indexes}"
    return outcomes


def write(
    servers: str, writer: int, numbers: Iterator[int], transactions: list[Transaction], stop: list[bool], calm: bool
) -> None:
    """Write transactions, with a new producer after each error that the old one cannot survive."""
    properties = {
        "bootstrap.servers": servers,
        "transactional.id": f"writer-{writer}",
        "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
        "default.api.timeout.ms": random.choice([2_000, 5_000, 20_000, 60_000]),
        "linger.ms": random.choice([0, 5]),
    }
    while not stop:
        try:
            with TransactionalProducer(properties) as producer:
                producer.init_transactions()
                while not stop:
                    write_one(producer, writer, next(numbers), transactions, calm)
                    time.sleep(random.uniform(0, 0.4))
        except KafkaError:
            time.sleep(random.uniform(0.2, 2))


def write_one(
    producer: TransactionalProducer, writer: int, number: int, transactions: list[Transaction], calm: bool
) -> None:
    """Write one transaction, and record its outcome. Raises `KafkaError` if the producer must be closed."""
    partitions = random.sample(range(PARTITIONS), random.randint(1, PARTITIONS))
    transaction = Transaction(number, {partition: random.randint(1, 4) for partition in partitions})
    producer.begin_transaction()
    transactions.append(transaction)
    try:
        for partition, count in transaction.counts.items():
            for index in range(count):
                producer.send("t", f"{number}:{index}", partition=partition)
        producer.send_offsets_to_transaction({("t", 0): number}, ConsumerGroupMetadata(f"group-{writer}"))
        if random.random() < 0.1 and not calm:
            time.sleep(random.uniform(0, 6))
        if random.random() < 0.2:
            until_known(producer.abort_transaction)
            transaction.outcome = "aborted"
            return
        until_known(producer.commit_transaction)
        transaction.outcome = "committed"
    except ProducerFenced:
        transaction.outcome = "fenced"
        raise
    except OutcomeUnknown:
        raise
    except KafkaError as error:
        transaction.outcome, transaction.error = type(error).__name__, str(error)
        until_known(producer.abort_transaction)
        transaction.outcome = "aborted"


def until_known(end: Callable[[], object]) -> None:
    """Repeat the end of a transaction up to five times while its outcome is unknown."""
    for attempt in range(5):
        try:
            end()
            return
        except OutcomeUnknown:
            if attempt == 4:
                raise


def consume(servers: str, read: dict[int, list[tuple[int, str]]]) -> None:
    properties = {"bootstrap.servers": servers, "auto.offset.reset": "earliest", "isolation.level": "read_committed"}
    consumer = KafkaConsumer(properties)
    consumer.assign([("t", partition) for partition in range(PARTITIONS)])
    while True:
        try:
            for message in consumer.poll(500).messages():
                read[message.partition].append((message.offset, message.value.decode()))
        except KafkaError:  # also if this user may not read now
            time.sleep(0.05)
