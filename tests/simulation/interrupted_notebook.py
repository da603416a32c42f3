"""Ctrl-C at any line of a call in a notebook, whose user calls the same object again.

Each cell is one public call. An interrupt comes before a line of it that the seed chooses, or while it waits. Ctrl-C
loses no record and no result, ends the cell within `LATENCY_S`, and the next cell works. A commit that returned has
committed all positions.
"""

from __future__ import annotations

import random
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

from protocol import (
    ConsumerGroup,
    KafkaConsumer,
    Processor,
    Producer,
    TransactionalProducer,
)
from protocol.consumer.session import ConsumerGroupClaim, ConsumerGroupSession
from protocol.testing import FakeKafka
from protocol.testing.simulation import Process, Simulation, heal
from protocol.transaction.states import TransactionState

PARTITIONS = 2
RECORDS = 120
LATENCY_S = 0.1
# This call ends a session also after Ctrl-C: it waits for its handlers, and for a commit until request.timeout.ms.
ENDS_S = {"ConsumerGroup.consume": 30.2}
Values = dict[int, list[int]]


class Keyboard:
    """Presses Ctrl-C during cells of a process, and measures how soon it ends them.

    Attributes
    ----------
    interrupts : int
        Cells that Ctrl-C has ended.
    slowest : tuple of float and str
        Seconds until Ctrl-C has ended a cell, and the cell.
    """

    def __init__(self, world: Simulation, name: str) -> None:
        self.interrupts = 0
        self.slowest = (0.0, "")
        self._world = world
        self._random = random.Random(f"{world.seed}:{name}")
        self._cell = 0
        self._arrived_s: float | None = None

    def belongs_to(self, process: Process) -> None:
        """Press the keys of this process."""
        self._process = process
        run_handlers = process.run_handlers

        def record(*arguments: Any) -> None:
            self._arrived_s = self._world.now_s if self._arrived_s is None else self._arrived_s
            run_handlers(*arguments)

        process.run_handlers = record  # type: ignore[method-assign]

    def run(self, call: Callable[..., Any], *arguments: Any, rate: float = 0.6) -> list[Any]:
        """Run one cell in the process; return a list of its result, empty after Ctrl-C."""
        results: list[Any] = []
        self._arrived_s = None
        try:
            try:
                self._press(rate)
                results.append(call(*arguments))
            finally:
                self._release()
        except KeyboardInterrupt:
            self._release()
            arrived_s, label = self._arrived_s, getattr(call, "__qualname__", repr(call))
            assert arrived_s is not None
            self.interrupts += 1
            self._world.trace(f"{label} is interrupted")
            took_s = self._world.now_s - arrived_s
            assert took_s <= ENDS_S.get(label, LATENCY_S), f"Ctrl-C has ended {label} after {took_s:.3f} s"
            self.slowest = max(self.slowest, (took_s, label))
        else:
            assert self._arrived_s is None, f"{call} has swallowed Ctrl-C"
        return results

    def _press(self, rate: float) -> None:
        """Choose when Ctrl-C comes: before a line, after a time, or both."""
        self._cell += 1
        if self._random.random() >= rate:
            return
        lines = int(10 ** self._random.uniform(0.3, 3.7))
        after_s = self._random.choice([0.0, 0.001, 0.01, 0.1, 0.5]) * self._random.random()
        kind = self._random.choice(["line", "line", "time", "both"])
        if kind != "line":
            self._world.later(after_s, lambda cell=self._cell: self._press_later(cell))  # type: ignore[misc]
        if kind != "time":
            self._process.interrupt(signal.SIGINT, lines)

    def _press_later(self, cell: int) -> None:
        if cell == self._cell and self._process.alive:
            self._process.interrupt()

    def _release(self) -> None:
        """Drop the interrupts of this cell that have not arrived."""
        self._cell += 1
        self._world.interrupts.cancel(self._process.main)
        self._process.main.signals.clear()


def scenario(world: Simulation) -> dict[str, object]:
    kafka = FakeKafka(3, record_requests=False)
    for topic in ("in", "out", "transactions"):
        kafka.create_topic(topic, PARTITIONS, 3)
    for partition in range(PARTITIONS):
        for first in range(0, RECORDS, 10):
            kafka.produce("in", *map(str, range(first, first + 10)), partition=partition)
    notebooks = {
        "assigned": read_assigned,
        "subscribed": read_subscribed,
        "producer": produce,
        "transactions": produce_transactions,
        "processor": process_records,
        "group": consume_group,
    }
    name = world.random.choice(list(notebooks))
    keyboard = Keyboard(world, name)
    result: dict[str, Any] = {"committed": kafka.committed_offsets}
    notebook = world.start(notebooks[name], kafka.bootstrap_servers, keyboard, result, name=name)
    keyboard.belongs_to(notebook)
    faults = world.start_faults(
        [
            ("cut connections", world.network.cut),
            ("lose a reply", lambda: kafka.lose_replies(world.fault_random.choice(["Fetch", "Produce", "EndTxn"]))),
            ("delay replies", lambda: kafka.delay_replies("OffsetCommit", 0.5, 2)),
            ("move leaders", kafka.shuffle_leaders),
            ("silence a broker", lambda: silence(world, kafka)),
        ],
        every_s=(0.1, 2.0),
    )
    notebook.join(600)
    faults.stop()
    heal(world, kafka)
    judge = {"producer": judge_records, "transactions": judge_transactions}.get(name)
    if judge is not None:
        judge(kafka, result)
    return {"notebook": name, "interrupts": keyboard.interrupts, "slowest": keyboard.slowest}


def silence(world: Simulation, kafka: FakeKafka) -> None:
    broker_id = world.fault_random.choice(list(kafka.brokers))
    kafka.silence(broker_id)
    world.later(world.fault_random.uniform(0.2, 3), lambda: kafka.silence(broker_id, False))


# -- reading --------------------------------------------------------------------------------------


def read_assigned(servers: str, keyboard: Keyboard, result: dict[str, Any]) -> None:
    """Read every record once and in order, with one consumer."""
    consumer = KafkaConsumer({"bootstrap.servers": servers, "auto.offset.reset": "earliest", "max.poll.records": 7})
    partitions = [("in", partition) for partition in range(PARTITIONS)]
    while not keyboard.run(consumer.assign, partitions):
        pass
    values: Values = defaultdict(list)
    further: list[Callable[[], Any]] = [
        lambda: consumer.pause([("in", 0)]),
        lambda: consumer.resume([("in", 0)]),
        lambda: consumer.position(("in", 1)),
        lambda: consumer.end_offsets(partitions),
        lambda: consumer.beginning_offsets(partitions),
    ]
    while sum(map(len, values.values())) < PARTITIONS * RECORDS:
        add(values, keyboard.run(consumer.poll, random.choice([0, 50, 500])))
        if random.random() < 0.3:
            keyboard.run(random.choice(further))
            consumer.resume([("in", 0)])
    for partition in range(PARTITIONS):
        assert values[partition] == list(range(RECORDS)), values
    while not keyboard.run(consumer.close):
        pass


def add(values: Values, results: list[Any]) -> None:
    for polled in results:
        for (_, partition), batches in polled.items():
            for batch in batches:
                values[partition] += [int(value) for value in batch.column("value").to_pylist()]


def read_subscribed(servers: str, keyboard: Keyboard, result: dict[str, Any]) -> None:
    """Read with several members in turn; each goes on where the one before has ended, or before it."""
    values: Values = defaultdict(list)
    properties = {"bootstrap.servers": servers, "group.id": "g", "auto.offset.reset": "earliest", "max.poll.records": 9}
    properties["group.protocol"] = random.choice(["classic", "consumer"])
    while any(RECORDS - 1 not in values[partition] for partition in range(PARTITIONS)):
        consumer = KafkaConsumer(properties, enable_auto_commit=random.random() < 0.5)
        while not keyboard.run(consumer.subscribe, ["in"]):
            pass
        member: Values = defaultdict(list)
        for _ in range(random.randrange(5, 40)):
            add(member, keyboard.run(consumer.poll, random.choice([0, 50, 500])))
            call = random.choice([consumer.commit_sync, consumer.commit_async, None, None])
            if call is not None and keyboard.run(call) and call == consumer.commit_sync:
                check_committed(consumer, result["committed"]("g"))
        while not keyboard.run(consumer.close):
            pass
        for partition, numbers in member.items():
            assert numbers == list(range(numbers[0], numbers[-1] + 1)), f"records of {partition}: {numbers}"
            assert numbers[0] <= len(set(values[partition])), f"skipped in {partition}: {values[partition]}, {numbers}"
            values[partition] += numbers


def check_committed(consumer: KafkaConsumer, committed: Mapping[tuple[str, int], int]) -> None:
    """The committed offset of each assigned partition is its position, or it has none and is read from its start."""
    positions = {key: consumer.position(key) for key in consumer.assignment}
    stale = {key: committed.get(key) for key, position in positions.items() if committed.get(key, 0) != position}
    assert not stale, f"commit_sync has returned, the positions are {positions}, committed are {stale}"


class Handler:
    """Marks each record when it is handled."""

    def __init__(self, values: Values) -> None:
        self._values = values

    def setup(self, session: ConsumerGroupSession) -> None:
        pass

    def cleanup(self, session: ConsumerGroupSession) -> None:
        pass

    def consume_claim(self, session: ConsumerGroupSession, claim: ConsumerGroupClaim) -> None:
        for message in claim.messages():
            time.sleep(0.002)
            self._values[claim.partition].append(int(message.value))
            session.mark_message(message)


def consume_group(servers: str, keyboard: Keyboard, result: dict[str, Any]) -> None:
    """Handle every record, without a gap, in sessions of one group object."""
    values: Values = defaultdict(list)
    properties = {"bootstrap.servers": servers, "group.id": "g", "auto.offset.reset": "earliest"}
    group = ConsumerGroup(properties)

    def complete() -> bool:
        return all(RECORDS - 1 in values[partition] for partition in range(PARTITIONS))

    while not complete():
        stop = threading.Event()
        timer = threading.Timer(random.uniform(0.5, 5), stop.set)
        timer.daemon = True
        timer.start()
        keyboard.run(group.consume, ["in"], Handler(values), stop)
        check_without_gap(values)
    while not keyboard.run(group.close):
        pass


def process_records(servers: str, keyboard: Keyboard, result: dict[str, Any]) -> None:
    """Handle every record; an interrupted `run` is followed by another `Processor`."""
    values: Values = defaultdict(list)

    def handle(message: Any) -> None:
        time.sleep(0.002)
        values[message.partition].append(int(message.value))

    properties = {"bootstrap.servers": servers, "group.id": "g", "auto.offset.reset": "earliest"}
    while any(RECORDS - 1 not in values[partition] for partition in range(PARTITIONS)):
        processor = Processor(properties, handle, ["in"], order="partition", threads=2)
        timer = threading.Timer(random.uniform(0.5, 5), processor.close)
        timer.daemon = True
        timer.start()
        keyboard.run(processor.run)
        timer.cancel()
        while not keyboard.run(processor.close, rate=0.3):
            pass
        check_without_gap(values)


def check_without_gap(values: Values) -> None:
    """No record was skipped: each is the next one, or one that was handled before."""
    for partition, numbers in values.items():
        end = 0
        for number in numbers:
            assert number <= end, f"{end} of {partition} is skipped: {numbers}"
            end = max(end, number + 1)


# -- writing --------------------------------------------------------------------------------------


def produce(servers: str, keyboard: Keyboard, result: dict[str, Any]) -> None:
    """Send with several producers in turn, and record the results of `send` that the notebook has got."""
    futures: list[tuple[int, Any]] = []
    number = 0
    while number < RECORDS:
        producer = Producer({"bootstrap.servers": servers, "linger.ms": random.choice(["0", "5", "200"])})
        first = len(futures)
        for _ in range(random.randrange(20, 80)):
            for future in keyboard.run(send, producer, number):
                futures.append((number, future))
            number += 1
            if random.random() < 0.1:
                for _ in keyboard.run(producer.flush):
                    assert all(future.done() for _, future in futures)
            if futures[first:] and random.random() < 0.1:
                keyboard.run(random.choice(futures[first:])[1].result)
        ended = bool(keyboard.run(producer.close))
        producer.close()
        assert all(future.done() for _, future in futures)
        assert not ended or not any(future.exception() for _, future in futures[first:])
    result["sent"] = {number: (metadata.partition, metadata.offset) for number, metadata in results_of(futures)}


def send(producer: Producer, number: int) -> Any:
    return producer.send("out", b"%d" % number, partition=number % PARTITIONS)


def results_of(futures: list[tuple[int, Any]]) -> list[tuple[int, Any]]:
    """Return the results; a `close` that Ctrl-C ended has failed the records without one."""
    return [(number, future.result()) for number, future in futures if future.exception() is None]


def judge_records(kafka: FakeKafka, result: dict[str, Any]) -> None:
    """Each record whose `send` has returned is in the log at its offset, in order; no record is there twice.

    One that an interrupted `close` has failed may arrive later, after records of the next producer.
    """
    logs = [[int(message.value) for message in kafka.records("out", partition)] for partition in range(PARTITIONS)]
    for log in logs:
        assert len(log) == len(set(log)), log
    sent = sorted(result["sent"].items())
    for number, (partition, offset) in sent:
        assert logs[partition][offset] == number, f"{number} is not at {offset} of {logs[partition]}"
    for partition in range(PARTITIONS):
        offsets = [offset for _, (number, offset) in sent if number == partition]
        assert offsets == sorted(offsets), offsets


def produce_transactions(servers: str, keyboard: Keyboard, result: dict[str, Any]) -> None:
    """Write transactions; an interrupted call is repeated, or its transaction aborted."""
    result["committed"], result["aborted"] = [], []
    producer = TransactionalProducer({"bootstrap.servers": servers, "transactional.id": "id", "linger.ms": "2"})
    while producer.transaction_state is TransactionState.UNINITIALIZED:
        keyboard.run(producer.init_transactions)
    for number in range(12):
        while producer.transaction_state is TransactionState.READY:
            keyboard.run(producer.begin_transaction)
        complete = True
        for part in range(5):
            complete &= bool(keyboard.run(send_part, producer, number, part))
        end, outcome = (
            (producer.commit_transaction, "committed")
            if complete or random.random() < 0.2
            else (producer.abort_transaction, "aborted")
        )
        while not keyboard.run(end):
            if producer.transaction_state is TransactionState.READY:  # interrupted when it had ended
                break
            may_abort = producer.transaction_state is not TransactionState.COMMITTING_TRANSACTION
            if may_abort and random.random() < 0.5:
                end, outcome = producer.abort_transaction, "aborted"
        if outcome == "aborted" or complete:
            result[outcome].append(number)
    while not keyboard.run(producer.close):
        pass


def send_part(producer: TransactionalProducer, number: int, part: int) -> Any:
    return producer.send("transactions", b"%d %d" % (number, part), partition=part % PARTITIONS)


def judge_transactions(kafka: FakeKafka, result: dict[str, Any]) -> None:
    """Committed transactions are whole, and aborted ones invisible."""
    values_by_key: dict[int, list[int]] = defaultdict(list)
    with KafkaConsumer(
        {"bootstrap.servers": kafka.bootstrap_servers, "isolation.level": "read_committed"},
        auto_offset_reset="earliest",
    ) as consumer:
        partitions = [("transactions", partition) for partition in range(PARTITIONS)]
        consumer.assign(partitions)
        ends = consumer.end_offsets(partitions)
        while any(consumer.position(partition) < ends[partition] for partition in partitions):
            for message in consumer.poll(500).messages():
                number, part = map(int, message.value.split())
                values_by_key[number].append(part)
    for number in result["committed"]:
        assert sorted(values_by_key[number]) == list(range(5)), f"transaction {number}: {values_by_key[number]}"
    for number in result["aborted"]:
        assert number not in values_by_key, f"aborted transaction {number}: {values_by_key[number]}"
    for number, parts in values_by_key.items():
        assert len(parts) == len(set(parts)), f"twice in transaction {number}: {parts}"
