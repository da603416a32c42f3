"""Members of a group that copy a topic in transactions, as docs/transactions.md shows: each once, whole, in order.

In a third of the runs the source is recreated, and its logs lose records. Only lost records may be missing then.
Records of a deleted source may come after records of the new one: the transaction that copies them may still be open.
"""

from __future__ import annotations

import itertools
import random
import signal
import time
from bisect import bisect
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from protocol import Client, KafkaConsumer, KafkaError, TransactionalProducer
from protocol.errors import OutcomeLost, OutcomeUnknown, ProducerFenced
from protocol.testing import FakeKafka
from protocol.testing.fake_kafka.transactions import State
from protocol.testing.simulation import (
    KAFKA_2_8,
    Process,
    Simulation,
    acl_faults,
    bootstrap_servers,
    cluster_faults,
    log_faults,
    network_faults,
    process_faults,
    settle,
    topic_faults,
)
from protocol.wire.messages.m00_produce import PRODUCE
from protocol.wire.messages.m28_txn_offset_commit import TXN_OFFSET_COMMIT
from tests.simulation.whole_records import any_fields, text_of

PARTITIONS = 4
FIELDS = ["key", "value", "timestamp_ms", "headers"]
COPIERS = 3
DURATION_S = 12.0
SESSION_TIMEOUT_MS = 6_000
RESOURCES = [("Topic", "source"), ("Topic", "target"), ("Group", "copy"), ("TransactionalId", "copier-0")]
TRANSACTION_TIMEOUTS_MS = (5_000, 20_000, 20_000)
ASSIGNORS = ("range", "roundrobin", "sticky", "cooperative-sticky", None, None)
KINDS = (
    "AddOffsetsToTxn",
    "AddPartitionsToTxn",
    "ConsumerGroupHeartbeat",
    "EndTxn",
    "Fetch",
    "Heartbeat",
    "InitProducerId",
    "JoinGroup",
    "OffsetFetch",
    "Produce",
    "SyncGroup",
    "TxnOffsetCommit",
)


def scenario(world: Simulation) -> dict[str, object]:
    versions = world.random.choice([None, None, KAFKA_2_8])
    version = world.random.choice(["1", "2", "2"]) if versions is None else "0"
    settings = {
        "group.consumer.heartbeat.interval.ms": "500",
        "group.consumer.session.timeout.ms": str(SESSION_TIMEOUT_MS),
        "transaction.version": version,
    }
    settings |= {"authorizer.class.name": "StandardAuthorizer", "allow.everyone.if.no.acl.found": "true"}
    kafka = FakeKafka(3, record_requests=False, settings=settings, newest_versions=versions)
    kafka.create_topic("source", PARTITIONS, 3)
    kafka.create_topic("target", 2, 3)
    servers = bootstrap_servers(world, kafka)
    assignor = world.random.choice([name for name in ASSIGNORS if name or versions is None])
    timeout_ms = world.random.choice(TRANSACTION_TIMEOUTS_MS)
    events: Counter[str] = Counter()
    numbers = itertools.count()
    stop: list[bool] = []
    has_losses = world.seed % 3 == 0
    lost: set[bytes | None] = set()
    written: dict[tuple[int, int], str] = {}
    # The numbers between the records of a deleted source and those of the next one.
    recreations: list[int] = []

    def lose(partition: int | None = None, *_: int) -> None:
        lost.update(message.value for message in kafka.records("source", partition))

    def recreate() -> None:
        lose()
        recreations.append(next(numbers))

    def write(partition: int | None = None) -> None:
        """Write records that say their partition and a number."""
        partition = world.random.randrange(PARTITIONS) if partition is None else partition
        values, fields = [], any_fields(world.random, kafka, partition)
        for number in itertools.islice(numbers, world.random.randint(1, 5)):
            values.append(b"%d:%d" % (partition, number))
            written[partition, number] = text_of(values[-1], **fields)
        with suppress(KafkaError):  # the partition has no leader
            kafka.produce("source", *values, partition=partition, **fields)

    def start(copier: int) -> None:
        if not stop and len(world.alive(f"copier-{copier}-")) < 2:
            name = f"copier-{copier}-{len(world.processes)}"
            arguments = servers, assignor, f"copier-{copier}", timeout_ms, stop, events
            world.start(copy_until, *arguments, name=name)

    def restart(process: Process) -> None:
        start(int(process.name.split("-")[1]))

    def kill() -> None:
        lines = int(10 ** world.fault_random.uniform(-1, 3.5))
        if copiers := world.alive("copier"):
            process = world.fault_random.choice(copiers)
            process.interrupt(signal.SIGKILL, lines)
            world.later(world.fault_random.uniform(0, 5), lambda: restart(process))

    def pause_in_transaction() -> None:
        """Pause a copier, before or when it adds offsets to its transaction, for longer than its session."""
        pause_s = world.fault_random.uniform(1, 6) + SESSION_TIMEOUT_MS / 1000
        api = world.fault_random.choice([PRODUCE, TXN_OFFSET_COMMIT])

        def act(body: dict[str, Any]) -> None:
            kafka.before.pop(api, None)
            for process in world.alive(f"{body['transactional_id']}-"):
                process.pause(pause_s)

        kafka.before[api] = act

    for copier in range(COPIERS):
        start(copier)
    # Brokers before Kafka 4.4 take offsets in a transaction from before the topic was recreated.
    recreated = recreate if versions is None else None
    losses = [
        *log_faults(world, kafka, "source", deleted=lose, lost=lose) * 8,
        *topic_faults(world, kafka, "source", 2 * PARTITIONS, recreated)[1:] * 3,
    ]
    faults = world.start_faults(
        [
            *(losses if has_losses else []),
            *cluster_faults(world, kafka, KINDS),
            *network_faults(world, kafka, lambda: world.alive("copier")),
            *process_faults(world, lambda: world.alive("copier"), restart),
            *acl_faults(world, kafka, RESOURCES),
            *topic_faults(world, kafka, "source", 2 * PARTITIONS),
            *[("kill a copier at a line", kill)] * 3,
            *[("pause a copier in its transaction", pause_in_transaction)] * 3,
            ("start a second copier with the same id", lambda: start(world.fault_random.randrange(COPIERS))),
        ],
        every_s=(0.05, 0.8),
    )
    while world.now_s < DURATION_S:
        write()
        world.sleep(world.random.uniform(0.05, 0.3))
    faults.stop()
    kafka.before.clear()
    settle(world, kafka)
    write()
    if has_losses:
        world.sleep(2)  # until a deleted topic exists again
        for partition in range(PARTITIONS):
            write(partition)
        world.wait_until(lambda: not missing(kafka), 200, lambda: f"copied, but {missing(kafka)}")

    ends = {("source", partition): kafka.log("source", partition).end_offset for partition in range(PARTITIONS)}
    ends = {key: offset for key, offset in ends.items() if offset}
    world.wait_until(lambda: kafka.committed_offsets("copy") == ends, 200, f"the group's offsets are {ends}")
    stop.append(True)
    for process in world.alive("copier"):
        assert process.wait(150), f"{process} does not end"
    world.sleep(timeout_ms / 1000 + 2)
    judge(kafka, lost if has_losses else None, recreations)
    judge_fields(kafka, written)
    return {"version": version, "assignor": assignor, "records": sum(ends.values()), "losses": has_losses, **events}


def missing(kafka: FakeKafka) -> list[tuple[int, int]]:
    """Return the records of the source that the target does not have."""
    source, target = by_partition(kafka, "source"), by_partition(kafka, "target")
    return [(key, number) for key, numbers in source.items() for number in numbers if number not in target[key]]


def judge(kafka: FakeKafka, lost: set[bytes | None] | None = None, recreations: Sequence[int] = ()) -> None:
    """Fail if the target does not have each record once, those of a partition in order; or has open transactions.

    `lost` are records that the source had before each loss, which the target may have; `recreations` are the numbers
    between those of a deleted source and those of the next one.
    """
    kafka.clear_faults()  # any change lets the cluster look at its clock
    unended = (State.ONGOING, State.PREPARE_COMMIT, State.PREPARE_ABORT)
    left_open = [name for name, transaction in kafka.transactions.transactions.items() if transaction.state in unended]
    assert not left_open, f"open after the timeout: {left_open}"
    source, target = by_partition(kafka, "source"), by_partition(kafka, "target")
    if lost is not None:
        assert not missing(kafka), f"not copied: {missing(kafka)}"
        for partition, numbers in target.items():
            by_source: dict[int, list[int]] = defaultdict(list)
            for number in numbers:
                by_source[bisect(recreations, number)].append(number)
            for of_source in by_source.values():
                in_order = sorted(set(of_source))
                assert of_source == in_order, f"source-{partition} is copied twice or out of order: {of_source}"
            unknown = [
                number
                for number in numbers
                if number not in source[partition] and b"%d:%d" % (partition, number) not in lost
            ]
            assert not unknown, f"source-{partition} never had {unknown}"
        return
    for partition, numbers in source.items():
        assert target[partition] == numbers, f"source-{partition} has {numbers}, copied as {target[partition]}"


def judge_fields(kafka: FakeKafka, written: Mapping[tuple[int, int], str]) -> None:
    """Fail if a record of the target differs from that of the source in any field; `written` has those by number."""
    for message in kafka.records("target"):
        partition, number = map(int, (message.value or b"").split(b":"))
        copied = text_of(message.value, message.key, message.timestamp_ms, message.headers or ())
        assert copied == written[partition, number], f"{written[partition, number]} is copied as {copied}"


def by_partition(kafka: FakeKafka, topic: str) -> dict[int, list[int]]:
    """Return the numbers in the committed records of a topic, by partition of the source."""
    numbers: dict[int, list[int]] = defaultdict(list)
    for message in kafka.records(topic):
        partition, number = map(int, message.value.decode().split(":"))
        numbers[partition].append(number)
    return numbers


def copy_until(
    servers: str, assignor: str | None, transactional_id: str, timeout_ms: int, stop: list[bool], events: Counter[str]
) -> None:
    """Copy with new clients after each error that is raised."""
    while not stop:
        try:
            copy(servers, assignor, transactional_id, timeout_ms, stop, events)
        except KafkaError as error:
            events[type(error).__name__] += 1
            time.sleep(random.uniform(0.2, 2))


def copy(
    servers: str, assignor: str | None, transactional_id: str, timeout_ms: int, stop: list[bool], events: Counter[str]
) -> None:
    """Copy as docs/transactions.md shows; some transactions are aborted, some take long."""
    client = Client({"bootstrap.servers": servers, "default.api.timeout.ms": random.choice([5_000, 60_000])})
    reading = {"group.id": "copy", "auto.offset.reset": "earliest", "enable.auto.commit": False}
    reading |= {"isolation.level": "read_committed", "max.poll.records": random.choice([3, 20, 500])}
    reading["max.poll.interval.ms"] = 60_000  # the longest wait for a JoinGroup that a host never answers
    if assignor is None:
        reading["group.protocol"] = "consumer"
    else:
        reading |= {"session.timeout.ms": SESSION_TIMEOUT_MS, "heartbeat.interval.ms": 500}
        reading["partition.assignment.strategy"] = assignor
    consumer = KafkaConsumer(client, reading)
    writing = {"transactional.id": transactional_id, "transaction.timeout.ms": timeout_ms}
    producer = TransactionalProducer(client, writing)
    with client, consumer, producer:
        producer.init_transactions()
        consumer.subscribe(["source"])
        while not stop:
            records = consumer.poll(timeout_ms=500)
            if not records:
                continue
            producer.begin_transaction()
            try:
                for batches in records.values():
                    for batch in batches:
                        producer.send_columns("target", batch.select(FIELDS))
                if random.random() < 0.1:
                    time.sleep(random.choice([0.5, 3, 7]))
                if random.random() < 0.1:
                    raise KafkaError("the user's code has failed")
                producer.send_offsets_to_transaction(records.next_offsets, consumer.group_metadata())
                producer.commit_transaction()
                events["committed"] += 1
            except (ProducerFenced, OutcomeUnknown, OutcomeLost):
                raise
            except KafkaError:
                producer.abort_transaction()
                events["aborted"] += 1
                for key, committed in consumer.committed(consumer.assignment).items():
                    if committed:
                        consumer.seek(key, committed)
                    else:
                        consumer.seek_to_beginning([key])
