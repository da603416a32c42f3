"""Twelve members of one group join, leave, are suspended and killed: two queries, our consumers, other clients.

`make soak` runs it for five minutes with each protocol. Members print their partitions with the generation; the test
also asks the coordinator.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Protocol

import psutil
import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from spark_kafka_source.local_kafka import LocalKafka
from tests import sarama
from tests.conftest import NEEDS_KIP_848, TopicFactory
from tests.protocol.consumer.consuming import client_of
from tests.protocol.consumer_group.members import Watch
from tests.support.background import background
from tests.support.console_consumer import console_command
from tests.support.member_queries import Key, Run, drivers, new_group
from tests.support.soak import scaled
from tests.support.wait_until import wait_until

pytestmark = pytest.mark.soak

STORM_S = scaled("STORM_S", 0.0, 300.0)
PARTITIONS, MEMBERS, MAX_DOWN = 31, 12, 3
SETTLED_WITHIN_S = 10
REBALANCES_PER_S = 150 / 300

# A killed or suspended member delays the whole eager group for this time.
SESSION = {"session.timeout.ms": "1500", "heartbeat.interval.ms": "300"}
KINDS = {
    "range": {"group.protocol": "classic", "partition.assignment.strategy": "range", **SESSION},
    "cooperative": {"group.protocol": "classic", "partition.assignment.strategy": "cooperative-sticky", **SESSION},
    "consumer": {"group.protocol": "consumer"},
}
COOPERATIVE_IN_JAVA = "org.apache.kafka.clients.consumer.CooperativeStickyAssignor"


class Member(Protocol):
    """A group member that can be started, stopped, suspended and killed. `is_up`: started, possibly suspended."""

    suspended: bool

    @property
    def is_up(self) -> bool: ...
    def join(self) -> None: ...
    def leave(self) -> None: ...
    def signal(self, number: int) -> None:
        """Send SIGSTOP, SIGCONT or SIGKILL."""


class ProcessMember:
    """A member in its own process. All runs of the process append their output to the file `output`."""

    def __init__(self, command: list[str], output: Path, leaves_by: int | None = None) -> None:
        """`leaves_by` is the signal that stops the program; None: it stops at the end of its standard input."""
        self.output, self.suspended = output, False
        self._command = command
        self._leaves_by = leaves_by
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def is_up(self) -> bool:
        assert self._process is None or self._process.poll() is None, f"{self.output} has ended early"
        return self._process is not None

    def join(self) -> None:
        # Drop a partial line: the process was killed while printing, which is before the commit.
        self.output.write_text("".join(f"{line}\n" for line in self.lines()))
        with self.output.open("ab") as out, self.output.with_suffix(".err").open("ab") as errors:
            self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=out, stderr=errors)

    def leave(self) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.close()
        if self._leaves_by is not None:
            self._process.send_signal(self._leaves_by)
        assert self._process.wait(30) in (0, 128 + (self._leaves_by or 0)), self.output
        self._process = None

    def signal(self, number: int) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            if number == signal.SIGKILL:
                self._process.wait()
                self._process = None

    def lines(self) -> list[str]:
        """Return the complete lines. The last one may be partial if the process was killed."""
        return self.output.read_text().split("\n")[:-1] if self.output.exists() else []


class QueryMember(Run):
    """A query with one checkpoint over all starts. Signals go to the source's Python process on the driver."""

    def __init__(self, start: Callable[[QueryMember], None]) -> None:
        super().__init__()
        self.suspended, self.every = False, "300 milliseconds"
        self._start = start
        self._driver: psutil.Process | None = None

    @property
    def is_up(self) -> bool:
        assert self._driver is None or self.query.isActive, self.query.exception()
        return self._driver is not None

    def join(self) -> None:
        others = drivers()
        self._start(self)
        wait_until(lambda: drivers() - others, timeout_s=60)
        (self._driver,) = drivers() - others
        # Spark allows its Python process ten seconds to start: let no other member join until the first batch.
        self.await_(lambda: self.query.lastProgress)

    def leave(self) -> None:
        self.query.stop()
        self._driver = None

    def signal(self, number: int) -> None:
        if self._driver is not None:
            self._driver.send_signal(number)
            if number == signal.SIGKILL:
                wait_until(lambda: not self.query.isActive, timeout_s=60)
                self._driver = None


class Source:
    """Writes numbers to all partitions until `ended`."""

    def __init__(self, kafka: LocalKafka, topic: str) -> None:
        self.ended = threading.Event()
        self.each = 0
        self._producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
        self._topic = topic

    def run(self) -> None:
        while not self.ended.wait(0.25):
            for partition in range(PARTITIONS):
                self._producer.produce(self._topic, f"{partition}:{self.each}.", partition=partition)
            self.each += 1
            self._producer.poll(0)
        assert self._producer.flush(60) == 0


def change_one_member(members: list[Member], rng: random.Random, counts: Counter[str]) -> None:
    """Change the state of a random member. At most `MAX_DOWN` are down or suspended."""
    absent = [member for member in members if member.suspended or not member.is_up]
    member = rng.choice(absent if len(absent) > MAX_DOWN else members)
    if member.suspended:
        what = "continues"
        member.signal(signal.SIGCONT)
        member.suspended = False
    elif not member.is_up:
        what = "comes"
        member.join()
    else:
        (what,) = rng.choices(["leaves", "is killed", "is suspended"], [4, 2, 1])
        if what == "leaves":
            member.leave()
        else:
            member.suspended = what == "is suspended"
            member.signal(signal.SIGSTOP if member.suspended else signal.SIGKILL)
    counts[what] += 1


def all_come(members: list[Member]) -> None:
    for member in members:
        if member.suspended:
            member.signal(signal.SIGCONT)
            member.suspended = False
        if not member.is_up:
            member.join()


def owned_by_generation(processes: list[ProcessMember]) -> dict[tuple[int, int], set[str]]:
    """Return the member ids that reported ownership, by (generation, partition)."""
    owners: dict[tuple[int, int], set[str]] = {}
    for process in processes:
        for line in process.lines():
            if line.startswith('{"generation"'):
                output = json.loads(line)
                for partition in output["owned"]:
                    owners.setdefault((output["generation"], partition), set()).add(output["member"])
    return owners


def count_handled(processes: list[ProcessMember], queries: list[QueryMember]) -> Counter[Key]:
    """Count how often each (partition, offset) was handled."""
    rows: Counter[Key] = Counter(key for query in queries for key in query.rows)
    for process in processes:
        for line in process.lines():
            if line.startswith("["):
                partition, first, last = json.loads(line)
                rows.update((partition, offset) for offset in range(first, last + 1))
            elif line.startswith('{"partition"'):  # printed by sarama
                row = json.loads(line)
                rows[row["partition"], row["offset"]] += 1
            elif line[:1].isdigit():  # values, printed by the console consumer
                partition, offset = line.rstrip(".").split(":")
                rows[int(partition), int(offset)] += 1
    return rows


def twelve(
    spark: SparkSession, kafka: LocalKafka, topic: str, group: str, folder: Path, kind: str
) -> tuple[list[ProcessMember], list[QueryMember]]:
    protocol, settings = KINDS[kind]["group.protocol"], KINDS[kind]
    options = {name.replace(".", "_"): value for name, value in settings.items()}
    properties = json.dumps({"group.id": group, "auto.offset.reset": "earliest", **settings})

    def own_process(number: int, api: str) -> ProcessMember:
        command = [sys.executable, "-m", "tests.jobs.storm_member", api, kafka.bootstrap_servers, topic, properties]
        return ProcessMember(command, folder / f"{api}-{number}")

    def start(query: QueryMember) -> None:
        given = {f"kafka_{name}": value for name, value in options.items() if name != "group_protocol"}
        query.start(spark, kafka, topic, group, protocol, folder / f"query-{queries.index(query)}", **given)

    queries = [QueryMember(start) for _ in range(2)]
    processes = [own_process(number, ("ConsumerGroup", "KafkaConsumer")[number % 2]) for number in range(MEMBERS - 4)]
    processes.append(own_process(MEMBERS - 4, "librdkafka"))
    if kind == "range":
        command = [str(sarama.build()), "group", kafka.bootstrap_servers, topic, group, "1500"]
        processes.append(ProcessMember(command, folder / "sarama-rows"))
    else:
        java = {"partition_assignment_strategy": COOPERATIVE_IN_JAVA} if kind == "cooperative" else {}
        command = console_command(kafka, topic, group, **{**options, **java})
        processes.append(ProcessMember(command, folder / "java", leaves_by=signal.SIGTERM))
    return processes, queries


class GroupPoller:
    """Polls the group's members and assignment until `ended`."""

    def __init__(self, watch: Watch) -> None:
        self.ended = threading.Event()
        self._watch = watch
        self._owned: list[list[int]] = []

    def run(self) -> None:
        while not self.ended.wait(0.1):
            self._owned = self._watch.owned()

    def wait_until_settled(self, members: list[Member], timeout_s: float) -> float:
        """Wait until the group has exactly these members and they own all partitions; return the seconds."""
        since_s = time.monotonic()

        def settled() -> bool:
            present = sum(member.is_up for member in members) == len(self._owned) == len(members)
            return present and sorted(chain.from_iterable(self._owned)) == list(range(PARTITIONS))

        wait_until(settled, lambda: self._owned, timeout_s)
        return time.monotonic() - since_s


@pytest.mark.skipif(not STORM_S, reason="takes five minutes for each protocol; `make soak` runs it")
@pytest.mark.timeout(STORM_S + 400)
@pytest.mark.parametrize("kind", ["range", "cooperative", pytest.param("consumer", marks=NEEDS_KIP_848)])
def test_group_of_twelve_failing_members_settles_and_loses_no_row(
    spark: SparkSession, kafka1: LocalKafka, topic1: TopicFactory, tmp_path: Path, kind: str
) -> None:
    name, group, rng, counts = topic1(PARTITIONS), new_group(), random.Random(4), Counter[str]()
    processes, queries = twelve(spark, kafka1, name, group, tmp_path, kind)
    members: list[Member] = [*processes, *queries]
    with ExitStack() as stack:
        watch = Watch(kafka1, stack.enter_context(client_of(kafka1)), group)
        look, source = GroupPoller(watch), Source(kafka1, name)
        for each in (look, source):
            stack.enter_context(background(each.run))
            stack.callback(each.ended.set)
        stack.callback(lambda: [each.signal(signal.SIGKILL) for each in members])
        all_come([*queries, *processes])
        look.wait_until_settled(members, 120)
        ends_s = time.monotonic() + STORM_S
        while time.monotonic() < ends_s:
            time.sleep(rng.uniform(1, 1.6))
            change_one_member(members, rng, counts)
        all_come(members)
        look.wait_until_settled(members, 120)
        members.pop(0).signal(signal.SIGKILL)
        settled_s = look.wait_until_settled(members, 60)
        source.ended.set()
        print(f"{kind}: {dict(counts)}, settled after {settled_s:.1f} s")
        wait_until(lambda: watch.committed == PARTITIONS * source.each, lambda: (source.each, watch.by_partition), 60)
        for member in members:
            member.leave()
    owners = owned_by_generation(processes)
    rows = count_handled(processes, queries)
    generations = [generation for generation, _ in owners]
    rebalances = max(generations) - min(generations)
    print(f"{kind}: {rebalances} rebalances, {rows.total()} rows handled of {len(rows)}")
    assert {key: ids for key, ids in owners.items() if len(ids) > 1} == {}
    assert rows.keys() == {(partition, offset) for partition in range(PARTITIONS) for offset in range(source.each)}
    assert settled_s < SETTLED_WITHIN_S
    assert rebalances >= STORM_S * REBALANCES_PER_S
