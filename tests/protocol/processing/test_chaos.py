"""Workers are killed, stopped and started while handlers are slow and fail.

No record is lost, the order of each key is kept, and only records that were in flight are handled again.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from protocol.cluster.client import Client
from protocol.consumer.consumer import Consumer
from protocol.group.committed_offsets import fetch_offsets
from protocol.kafka_terms import EARLIEST
from spark_kafka_source.local_kafka import LocalKafka
from tests.conftest import ROOT, TopicFactory
from tests.protocol.consumer.consuming import client_of
from tests.protocol.consumer_group.conftest import COOPERATIVE, EAGER, KIP_848
from tests.protocol.processing.chaos_worker import ATTEMPTS, READY, is_poison
from tests.support.number_source import NumberSource
from tests.support.soak import scaled, variants
from tests.support.wait_until import wait_until

pytestmark = pytest.mark.soak

KILLS = scaled("CHAOS_KILLS", 2, 20)
REBALANCES = scaled("CHAOS_REBALANCES", 4, 40)
PARTITIONS, KEYS, WORKERS = 4, 24, 3
COMMIT_MS = 100
# The shortest that brokers allow.
SESSION: dict[str, object] = {"session.timeout.ms": 6_000}


def record(number: int) -> dict[str, object]:
    """Return a number from 1 on, with one of the keys."""
    return {"value": b"%d" % (number + 1), "key": b"key-%d" % random.randrange(KEYS)}


@dataclass
class Worker:
    """One process. `ended_ns`: the time after which it has certainly done nothing."""

    process: subprocess.Popen[bytes]
    log: Path
    killed: bool = False
    ended_ns: int = 2**63

    def end(self, sign: signal.Signals) -> None:
        if sign == signal.SIGTERM:  # only a worker that runs has a handler for it
            wait_until(lambda: self.log.stat().st_size, every_s=0.05)
        self.process.send_signal(sign)
        code = self.process.wait(60)
        self.ended_ns = time.monotonic_ns()
        self.killed = sign == signal.SIGKILL
        assert self.killed or code == 0, f"{self.log} ended with {code}"


@dataclass
class Workers:
    """The living workers, and those that have ended."""

    kafka: LocalKafka
    topic: str
    dead: str
    group: str
    folder: Path
    options: str
    living: list[Worker] = field(default_factory=list)
    ended: list[Worker] = field(default_factory=list)

    def add(self) -> None:
        number = len(self.living) + len(self.ended)
        log = self.folder / f"{number}.log"
        log.touch()
        command = [sys.executable, "-m", "tests.protocol.processing.chaos_worker", self.kafka.bootstrap_servers]
        command += [self.topic, self.group, self.dead, str(log), self.options]
        with (self.folder / f"{number}.err").open("wb") as errors:
            process = subprocess.Popen(command, cwd=ROOT, stderr=errors, env=dict(os.environ))
        self.living.append(Worker(process, log))

    def remove(self, sign: signal.Signals, dice: random.Random) -> None:
        worker = self.living.pop(dice.randrange(len(self.living)))
        self.ended.append(worker)
        worker.end(sign)

    def wait_for_more(self, count: int) -> None:
        enough = self.finished + count
        wait_until(lambda: self.finished >= enough, lambda: f"{self.finished} of {enough}", 120, 0.05)

    def close(self) -> None:
        for worker in self.living:
            if worker.process.poll() is None:
                worker.end(signal.SIGTERM)
        self.ended += self.living
        self.living = []

    @property
    def finished(self) -> int:
        return sum(each.log.read_bytes().count(b" end ") for each in [*self.living, *self.ended])


@dataclass(frozen=True)
class Event:
    """A line of a log."""

    time_ns: int
    what: str
    partition: int
    offset: int
    key: str
    worker: int


def events_of(workers: list[Worker]) -> Iterator[Event]:
    for number, worker in enumerate(workers):
        for line in worker.log.read_text().splitlines(keepends=True):
            if not line.endswith("\n"):
                continue  # killed while it was written
            if line == READY:
                continue
            time_ns, what, partition, offset, key = line.rstrip("\n").split(" ")
            yield Event(int(time_ns), what, int(partition), int(offset), key, number)


@variants("protocol", [EAGER | SESSION, COOPERATIVE | SESSION, KIP_848], COOPERATIVE | SESSION)
@pytest.mark.timeout(3_600)
def test_records_survive_kills_and_rebalances(
    kafka1: LocalKafka, topic1: TopicFactory, tmp_path: Path, protocol: dict[str, Any]
) -> None:
    topic, dead, dice = topic1(PARTITIONS), topic1(), random.Random(7)
    properties = {"auto.commit.interval.ms": COMMIT_MS, **protocol}
    options = json.dumps({"threads": 4, "max_in_flight": 400, "properties": properties})
    workers = Workers(kafka1, topic, dead, f"group-{uuid.uuid4().hex[:10]}", tmp_path, options)
    source = NumberSource(kafka1, topic, record, 8)
    steps = ["kill"] * KILLS + ["rebalance"] * REBALANCES
    dice.shuffle(steps)
    with client_of(kafka1) as client:
        try:
            workers.add()
            workers.add()
            for step in steps:
                workers.wait_for_more(150)
                if step == "kill":
                    workers.remove(signal.SIGKILL, dice)
                    workers.add()
                elif len(workers.living) < 2 or (len(workers.living) < WORKERS and dice.random() < 0.5):
                    workers.add()
                else:
                    workers.remove(signal.SIGTERM, dice)
            source.close()
            wait_until(lambda: committed(client, workers.group) == source.count, timeout_s=180, every_s=0.2)
        finally:
            source.close()
            workers.close()
        written = written_records(client, topic)
        dead_values = {value for value, _, _ in written_records(client, dead).values()}
    assert len(written) == source.count
    events = list(events_of(workers.ended))
    assert sum(each.what == "committed" for each in events) >= KILLS, "workers do not commit in time"
    duplicates = check(events, workers.ended, written, dead_values)
    print(f"{source.count} records, {KILLS} kills, {REBALANCES} rebalances, {duplicates} handled again")


def committed(client: Client, group: str) -> int:
    return sum(each.offset for each in fetch_offsets(client, group, None, client.deadline()).values())


def written_records(client: Client, topic: str) -> dict[tuple[int, int], tuple[bytes, str, int]]:
    """Return value, key and number among the records of the key, by partition and offset."""
    found: dict[tuple[int, int], tuple[bytes, str, int]] = {}
    numbers: dict[str, int] = defaultdict(int)
    with Consumer(client, {}) as consumer:
        for partition in range(len(client.metadata([topic]).topics[topic].partitions)):
            for each in consumer.consume_partition(topic, partition, EARLIEST).messages(timeout_ms=1_000):
                key = (each.key or b"").decode()
                found[partition, each.offset] = each.value or b"", key, numbers[key]
                numbers[key] += 1
    return found


def check(
    events: list[Event],
    workers: list[Worker],
    written: dict[tuple[int, int], tuple[bytes, str, int]],
    dead_values: set[bytes],
) -> int:
    """Check losses, order and duplicates; return the number of records that were handled again."""
    poison = {place for place, (value, _, _) in written.items() if is_poison(value)}
    ended = {(each.partition, each.offset) for each in events if each.what == "end"}
    assert ended == set(written) - poison, "lost records"
    assert dead_values >= {written[place][0] for place in poison}, "lost dead letters"
    check_order(events, workers, written, poison)
    return check_duplicates(events, workers, poison)


def check_order(
    events: list[Event],
    workers: list[Worker],
    written: dict[tuple[int, int], tuple[bytes, str, int]],
    poison: set[tuple[int, int]],
) -> None:
    """A record begins after all earlier records of its key have ended, and while no other one of its key runs."""
    done: dict[str, int] = defaultdict(int)  # number of records of the key that have ended, from its first one on
    finished: set[tuple[str, int]] = set()
    running: dict[str, Event] = {}
    for event in sorted(events, key=lambda each: each.time_ns):
        if event.what in ("assigned", "committed"):
            continue
        place = event.partition, event.offset
        number = written[place][2]
        if event.what == "begin":
            before = running.get(event.key)
            assert before is None or event.time_ns > workers[before.worker].ended_ns, f"{before} and {event} overlap"
            assert number <= done[event.key], f"{event}: only {done[event.key]} records of its key have ended"
            running[event.key] = event
            continue
        assert running.pop(event.key).worker == event.worker
        if event.what == "end" or place in poison:
            finished.add((event.key, number))
            while (event.key, done[event.key]) in finished:
                done[event.key] += 1


def check_duplicates(events: list[Event], workers: list[Worker], poison: set[tuple[int, int]]) -> int:
    """A finished record begins again only after an assignment, and if the former one had not committed it.

    A revocation commits all records before the first unfinished one. A killed worker has committed what it has logged
    as acknowledged, or more.
    """
    again: set[tuple[int, int]] = set()
    by_partition: dict[int, list[Event]] = defaultdict(list)
    for event in sorted(events, key=lambda each: each.time_ns):
        by_partition[event.partition].append(event)
    for partition, found in by_partition.items():
        finished: set[int] = set()
        # Of the present assignment: finished offsets, and the lowest other one.
        done: set[int] = set()
        start = lowest = acknowledged = unfinished = 0
        failures = Counter[int]()
        last = workers[0]
        for event in found:
            if event.what == "committed":
                while unfinished in finished:
                    unfinished += 1
                assert acknowledged <= event.offset <= unfinished, f"{event}: not from {acknowledged} to {unfinished}"
                acknowledged = event.offset
                # After a kill this may be more than the judge knows: the last acknowledgement is not always logged.
                lowest = max(lowest, acknowledged)
                while lowest in done and (partition, lowest) not in poison:
                    lowest += 1
                continue
            if event.what == "assigned":
                killed = last.killed and last.ended_ns < event.time_ns
                start = lowest = acknowledged if killed else lowest
                done = {offset for offset in done if offset < start}
                failures = Counter()
                continue
            last = workers[event.worker]
            if event.what == "begin" and event.offset in finished and (partition, event.offset) not in poison:
                assert event.offset >= start, f"{event} was committed when it was handled again"
                assert event.offset not in done, f"{event} is handled again by its owner"
                again.add((partition, event.offset))
                continue
            if event.what == "fail":
                failures[event.offset] += 1
            # After its last failure, a poison record is written to the dead letter topic, unless its partition is being
            # revoked: only a commit tells.
            if event.what == "end" or ((partition, event.offset) in poison and failures[event.offset] == ATTEMPTS):
                finished.add(event.offset)
                done.add(event.offset)
                while lowest in done and (partition, lowest) not in poison:
                    lowest += 1
    return len(again)
