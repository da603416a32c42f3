"""Workers are killed, stopped and started while handlers are slow and fail.

No record is lost, the order of each key is kept, and only records that were in flight are handled again.
"""

from __future__ import annotations

import json
import random
import signal
import sys
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import protocol
from protocol.cluster.client import Client
from protocol.group.commits.committed_offsets import fetch_offsets
from spark_kafka_source.local_kafka import LocalKafka
from tests.conftest import TopicFactory
from tests.protocol.consumer.conftest import COOPERATIVE, EAGER, KIP_848
from tests.protocol.fetch.consuming import client_of
from tests.protocol.processing.chaos_worker import ATTEMPTS, READY, is_poison
from tests.support.chaos import Actor, Chaos, Move, Program, State
from tests.support.number_source import NumberSource
from tests.support.soak import scaled, variants
from tests.support.wait_until import wait_until

pytestmark = pytest.mark.soak

KILLS = scaled("CHAOS_KILLS", 2, 20)
# Kills, stops and starts: each is a rebalance.
STEPS = scaled("CHAOS_STEPS", 6, 80)
PARTITIONS, KEYS, WORKERS = 4, 24, 3
COMMIT_MS = 100
# The shortest that brokers allow.
SESSION: dict[str, object] = {"session.timeout.ms": 6_000}


def record(number: int) -> dict[str, object]:
    """Return a number from 1 on, with one of the keys."""
    return {"value": b"%d" % (number + 1), "key": b"key-%d" % random.randrange(KEYS)}


@dataclass
class Run:
    """One run of a worker. `ended_ns`: the time after which it has certainly done nothing."""

    log: Path
    killed: bool = False
    ended_ns: int = 2**63


class Worker(Actor):
    """A worker, each time another process with another log."""

    def __init__(self, arguments: Callable[[Path], list[str]], folder: Path, runs: list[Run]) -> None:
        self._arguments = arguments
        self._folder = folder
        self._runs = runs  # of all workers
        self._program: Program
        self._run: Run

    def start(self) -> None:
        self._run = Run(self._folder / f"{len(self._runs)}.log")
        self._run.log.touch()
        self._runs.append(self._run)
        command = [sys.executable, "-m", "tests.protocol.processing.chaos_worker", *self._arguments(self._run.log)]
        self._program = Program(command, self._run.log.with_suffix(".out"), signal.SIGTERM)
        self._program.start()

    def stop(self) -> None:
        # Only a worker that runs has a handler for the signal.
        wait_until(lambda: self._run.log.stat().st_size, every_s=0.05)
        self._program.stop()
        self._run.ended_ns = time.monotonic_ns()

    def kill(self) -> None:
        self._program.kill()
        self._run.ended_ns, self._run.killed = time.monotonic_ns(), True

    def check(self) -> None:
        self._program.check()


@dataclass(frozen=True)
class Event:
    """A line of a log."""

    time_ns: int
    what: str
    partition: int
    offset: int
    key: str
    worker: int


def events_of(runs: list[Run]) -> Iterator[Event]:
    for number, run in enumerate(runs):
        for line in run.log.read_text().splitlines(keepends=True):
            if not line.endswith("\n"):
                continue  # killed while it was written
            if line == READY:
                continue
            time_ns, label, partition, offset, key = line.rstrip("\n").split(" ")
            yield Event(int(time_ns), label, int(partition), int(offset), key, number)


@variants("protocol", [EAGER | SESSION, COOPERATIVE | SESSION, KIP_848], COOPERATIVE | SESSION)
@pytest.mark.timeout(3_600)
def test_records_survive_kills_and_rebalances(
    kafka1: LocalKafka, topic1: TopicFactory, tmp_path: Path, protocol: dict[str, Any]
) -> None:
    """Slow: three processes import the package again after each kill, and the group waits for their sessions to end."""
    topic, dead, rng = topic1(PARTITIONS), topic1(), random.Random(7)
    group = f"group-{uuid.uuid4().hex[:10]}"
    properties = {"auto.commit.interval.ms": COMMIT_MS, **protocol}
    options = json.dumps({"threads": 4, "max_in_flight": 400, "properties": properties})
    runs: list[Run] = []

    def arguments(log: Path) -> list[str]:
        return [kafka1.bootstrap_servers, topic, group, dead, str(log), options]

    workers = [Worker(arguments, tmp_path, runs) for _ in range(WORKERS)]
    chaos = Chaos(workers, rng, {Move.KILL: 1, Move.STOP: 1}, WORKERS - 1)
    source = NumberSource(kafka1, topic, record, 8)
    with client_of(kafka1) as client:
        try:
            while chaos.counts[Move.KILL] < KILLS or chaos.counts.total() < STEPS:
                chaos.step()
                if chaos.those(State.UP):
                    wait_for_more(runs, 150)
            chaos.start_all()
            source.close()
            wait_until(lambda: committed(client, group) == source.count, timeout_s=180, every_s=0.2)
        finally:
            source.close()
            chaos.end_all()
    written = written_records(kafka1, topic)
    dead_values = {value for value, _, _ in written_records(kafka1, dead).values()}
    assert len(written) == source.count
    events = list(events_of(runs))
    assert sum(event.what == "committed" for event in events) >= KILLS, "workers do not commit in time"
    duplicates = check(events, runs, written, dead_values)
    print(f"{source.count} records, {chaos.counts}, {duplicates} handled again")


def wait_for_more(runs: list[Run], count: int) -> None:
    """Wait until so many more records are finished."""

    def finished() -> int:
        return sum(run.log.read_bytes().count(b" end ") for run in runs)

    enough = finished() + count
    wait_until(lambda: finished() >= enough, lambda: f"{finished()} of {enough}", 120, 0.05)


def committed(client: Client, group: str) -> int:
    return sum(offset.offset for offset in fetch_offsets(client, group, None, client.deadline()).values())


def written_records(kafka: LocalKafka, topic: str) -> dict[tuple[int, int], tuple[bytes, str, int]]:
    """Return value, key and number among the records of the key, by partition and offset."""
    properties = {"bootstrap.servers": kafka.bootstrap_servers}
    names = ["partition", "offset", "key", "value"]
    rows = protocol.read(properties, topic, columns=names).read_all().select(names).to_pylist()
    result: dict[tuple[int, int], tuple[bytes, str, int]] = {}
    numbers: dict[str, int] = defaultdict(int)
    for partition, offset, key, value in sorted(tuple(row.values()) for row in rows):
        text = (key or b"").decode()
        result[partition, offset] = value or b"", text, numbers[text]
        numbers[text] += 1
    return result


def check(
    events: list[Event],
    runs: list[Run],
    written: dict[tuple[int, int], tuple[bytes, str, int]],
    dead_values: set[bytes],
) -> int:
    """Check losses, order and duplicates; return the number of records that were handled again."""
    poison = {place for place, (value, _, _) in written.items() if is_poison(value)}
    ended = {(event.partition, event.offset) for event in events if event.what == "end"}
    assert ended == set(written) - poison, "lost records"
    assert dead_values >= {written[place][0] for place in poison}, "lost dead letters"
    check_order(events, runs, written, poison)
    return check_duplicates(events, runs, poison)


def check_order(
    events: list[Event],
    runs: list[Run],
    written: dict[tuple[int, int], tuple[bytes, str, int]],
    poison: set[tuple[int, int]],
) -> None:
    """A record begins after all earlier records of its key have ended, and while no other one of its key runs."""
    done: dict[str, int] = defaultdict(int)  # number of records of the key that have ended, from its first one on
    finished: set[tuple[str, int]] = set()
    running: dict[str, Event] = {}
    for event in sorted(events, key=lambda event: event.time_ns):
        if event.what in ("assigned", "committed"):
            continue
        place = event.partition, event.offset
        number = written[place][2]
        if event.what == "begin":
            before = running.get(event.key)
            assert before is None or event.time_ns > runs[before.worker].ended_ns, f"{before} and {event} overlap"
            assert number <= done[event.key], f"{event}: only {done[event.key]} records of its key have ended"
            running[event.key] = event
            continue
        assert running.pop(event.key).worker == event.worker
        if event.what == "end" or place in poison:
            finished.add((event.key, number))
            while (event.key, done[event.key]) in finished:
                done[event.key] += 1


def check_duplicates(events: list[Event], runs: list[Run], poison: set[tuple[int, int]]) -> int:
    """A finished record begins again only after an assignment, and if the former one had not committed it.

    A revocation commits all records before the first unfinished one. A killed worker has committed what it has logged
    as acknowledged, or more.
    """
    again: set[tuple[int, int]] = set()
    by_partition: dict[int, list[Event]] = defaultdict(list)
    for event in sorted(events, key=lambda event: event.time_ns):
        by_partition[event.partition].append(event)
    for partition, result in by_partition.items():
        finished: set[int] = set()
        # Of the present assignment: finished offsets, and the lowest other one.
        done: set[int] = set()
        start = lowest = acknowledged = unfinished = 0
        failures = Counter[int]()
        last = runs[0]
        for event in result:
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
            last = runs[event.worker]
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
