"""Twelve members of one group join, leave, are suspended and killed: two queries, our consumers, other clients.

`make soak` runs it for five minutes with each protocol. Members print their partitions with the generation; the test
also asks the coordinator.
"""

from __future__ import annotations

import json
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from itertools import chain
from pathlib import Path

import psutil
import pytest
from pyspark.sql import SparkSession

from spark_kafka_source.local_kafka import LocalKafka
from tests import sarama
from tests.conftest import NEEDS_KIP_848, TopicFactory
from tests.protocol.consumer.members import Watch
from tests.protocol.fetch.consuming import client_of
from tests.support.background import background
from tests.support.chaos import Actor, Chaos, Move, Program
from tests.support.console_consumer import console_command
from tests.support.member_queries import Key, Run, drivers, new_group
from tests.support.number_source import NumberSource
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


class QueryMember(Actor):
    """A query with one checkpoint over all starts. Signals go to the source's Python process on the driver."""

    def __init__(self, start: Callable[[Run], None]) -> None:
        self.run = Run()
        self.run.every = "300 milliseconds"
        self._start = start
        self._driver: psutil.Process

    def start(self) -> None:
        further = drivers()
        self._start(self.run)
        wait_until(lambda: drivers() - further, timeout_s=60)
        (self._driver,) = drivers() - further
        # Spark allows its Python process ten seconds to start: let no other member join until the first batch.
        self.run.await_(lambda: self.run.query.lastProgress)

    def stop(self) -> None:
        self.run.query.stop()

    def suspend(self) -> None:
        self._driver.suspend()

    def resume(self) -> None:
        self._driver.resume()

    def kill(self) -> None:
        self._driver.kill()
        wait_until(lambda: not self.run.query.isActive, timeout_s=60)

    def check(self) -> None:
        assert self.run.query.isActive, self.run.query.exception()


def record(number: int) -> dict[str, object]:
    """Return a record for each partition in turn: "PARTITION:OFFSET."."""
    offset, partition = divmod(number, PARTITIONS)
    return {"value": f"{partition}:{offset}.", "partition": partition}


def owned_by_generation(processes: list[Program]) -> dict[tuple[int, int], set[str]]:
    """Return the member ids that reported ownership, by (generation, partition)."""
    owners: dict[tuple[int, int], set[str]] = {}
    for process in processes:
        for line in process.lines():
            if line.startswith('{"generation"'):
                output = json.loads(line)
                for partition in output["owned"]:
                    owners.setdefault((output["generation"], partition), set()).add(output["member"])
    return owners


def count_handled(processes: list[Program], queries: list[QueryMember]) -> Counter[Key]:
    """Count how often each (partition, offset) was handled."""
    rows: Counter[Key] = Counter(key for query in queries for key in query.run.rows)
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
) -> tuple[list[Program], list[QueryMember]]:
    protocol, settings = KINDS[kind]["group.protocol"], KINDS[kind]
    options = {name.replace(".", "_"): value for name, value in settings.items()}
    properties = json.dumps({"group.id": group, "auto.offset.reset": "earliest", **settings})

    def own_process(number: int, api: str) -> Program:
        command = [sys.executable, "-m", "tests.jobs.storm_member", api, kafka.bootstrap_servers, topic, properties]
        return Program(command, folder / f"{api}-{number}")

    def query(number: int) -> QueryMember:
        values = {f"kafka_{name}": value for name, value in options.items() if name != "group_protocol"}
        arguments = (spark, kafka, topic, group, protocol, folder / f"query-{number}")
        return QueryMember(lambda run: run.start(*arguments, **values))

    queries = [query(number) for number in range(2)]
    processes = [own_process(number, ("ConsumerGroup", "KafkaConsumer")[number % 2]) for number in range(MEMBERS - 4)]
    processes.append(own_process(MEMBERS - 4, "librdkafka"))
    if kind == "range":
        command = [str(sarama.build()), "group", kafka.bootstrap_servers, topic, group, "1500"]
        processes.append(Program(command, folder / "sarama-rows"))
    else:
        java = {"partition_assignment_strategy": COOPERATIVE_IN_JAVA} if kind == "cooperative" else {}
        command = console_command(kafka, topic, group, **{**options, **java})
        processes.append(Program(command, folder / "java", signal.SIGTERM))
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

    def wait_until_settled(self, members: int, timeout_s: float) -> float:
        """Wait until the group has so many members and they own all partitions; return the seconds."""
        since_s = time.monotonic()

        def settled() -> bool:
            return len(self._owned) == members and sorted(chain(*self._owned)) == list(range(PARTITIONS))

        wait_until(settled, lambda: self._owned, timeout_s)
        return time.monotonic() - since_s


@pytest.mark.skipif(not STORM_S, reason="takes five minutes for each protocol; `make soak` runs it")
@pytest.mark.timeout(STORM_S + 400)
@pytest.mark.parametrize("kind", ["range", "cooperative", pytest.param("consumer", marks=NEEDS_KIP_848)])
def test_group_of_twelve_failing_members_settles_and_loses_no_row(
    spark: SparkSession, kafka1: LocalKafka, topic1: TopicFactory, tmp_path: Path, kind: str
) -> None:
    name, group, rng = topic1(PARTITIONS), new_group(), random.Random(4)
    processes, queries = twelve(spark, kafka1, name, group, tmp_path, kind)
    # Queries join first: starting twelve processes leaves Spark too little time.
    chaos = Chaos([*queries, *processes], rng, {Move.STOP: 4, Move.KILL: 2, Move.SUSPEND: 1}, MAX_DOWN)
    with ExitStack() as stack:
        watch = Watch(kafka1, stack.enter_context(client_of(kafka1)), group)
        look = GroupPoller(watch)
        stack.enter_context(background(look.run))
        stack.callback(look.ended.set)
        source = NumberSource(kafka1, name, record, PARTITIONS, 0.25)
        stack.callback(source.close)
        stack.callback(chaos.end_all, Move.KILL)
        chaos.start_all()
        look.wait_until_settled(MEMBERS, 120)
        ends_s = time.monotonic() + STORM_S
        while time.monotonic() < ends_s:
            time.sleep(rng.uniform(1, 1.6))
            chaos.step()
        chaos.start_all()
        look.wait_until_settled(MEMBERS, 120)
        chaos.do(Move.KILL, processes[0])
        settled_s = look.wait_until_settled(MEMBERS - 1, 60)
        count = source.close()
        print(f"{kind}: {chaos.counts}, settled after {settled_s:.1f} s")
        wait_until(lambda: watch.committed == count, lambda: (count, watch.by_partition), 60)
        chaos.end_all()
    owners = owned_by_generation(processes)
    rows = count_handled(processes, queries)
    generations = [generation for generation, _ in owners]
    rebalances = max(generations) - min(generations)
    print(f"{kind}: {rebalances} rebalances, {rows.total()} rows handled of {len(rows)}")
    assert {key: ids for key, ids in owners.items() if len(ids) > 1} == {}
    assert rows.keys() == {
        (partition, offset) for partition in range(PARTITIONS) for offset in range(count // PARTITIONS)
    }
    assert settled_s < SETTLED_WITHIN_S
    assert rebalances >= STORM_S * REBALANCES_PER_S
