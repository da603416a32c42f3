"""A streaming query without Spark on a changing cluster: drivers are killed at any line, batches replayed.

The scenario keeps the query's checkpoint and its sink. Several queries with one `kafka.group.protocol` are members of a
group and share the topic. In a part of these runs, the topic is recreated while a query has no partition and has read
nothing: then it has lost nothing, and its first partition starts at the group's offset. If it gets the partition while
the topic is being deleted, and plans a batch of it, that batch is lost. In other runs the topic is recreated again and
again, with another number of partitions, and one broker learns of it later: each new topic is read from its start.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Set
from dataclasses import dataclass, field
from typing import Any

from protocol.errors import DataLoss, KafkaError
from protocol.kafka_terms import TopicPartition
from protocol.testing.simulation import Process, Simulation, network_faults, settle
from protocol.testing.simulation.simulation import Fault, FaultSchedule
from protocol.wire.messages.m01_fetch import FETCH
from spark_kafka_source.driver.stream_reader import KafkaStreamReader
from spark_kafka_source.options.parsing import parse_source_options
from spark_kafka_source.plan.offsets import JsonDict, Offsets
from tests.simulation.query_cluster import GROUP, MEMBERSHIP, REFUSALS, TOPIC, ChangingCluster, Row

DURATION_S = 12.0
ATTEMPTS = 4
MOST_FETCHES = 500
ASSIGNORS = ("range", "sticky", "cooperative-sticky")
LIMITS = {
    "maxOffsetsPerTrigger": [1, 3, 7, 20],
    "minPartitions": [2, 3],
    "maxRecordsPerPartition": [1, 2, 5],
    "maxInputPartitions": [3, 4, 7],
    "kafka.max.partition.fetch.bytes": [1, 100, 1000],
}


@dataclass
class Query:
    """The state that outlives the drivers of a query: its checkpoint, and an idempotent sink.

    Attributes
    ----------
    start : dict or None
        End of the last completed batch, or the initial offset.
    planned : dict or None
        End of the batch in the offset log that is not in the commit log.
    batches : list of lists of rows
        The sink, by batch; a replayed batch replaces its rows.
    drivers, replays : int
    leaving : bool
        The present driver ends after its batch, as a query that is stopped between two.
    dies : bool
        Drivers are killed between the steps of a batch.
    has_lost_batch : bool
        With `failOnDataLoss`, it has ended since a batch was in a deleted topic. It continues without the option.
    first_start : Offsets or None
        `startingOffsets` as the driver that planned the first batch has resolved them.
    first_end : dict or None
        End of the first batch.
    options : dict
        Options of this query only.
    """

    start: JsonDict | None = None
    planned: JsonDict | None = None
    completed: int = 0
    batches: dict[int, list[Row]] = field(default_factory=dict)
    drivers: int = 0
    replays: int = 0
    stopping: bool = False
    leaving: bool = False
    dies: bool = True
    has_lost_batch: bool = False
    first_start: Offsets | None = None
    first_end: JsonDict | None = None
    options: dict[str, str] = field(default_factory=dict)

    @property
    def has_read(self) -> bool:
        """True if a batch has a partition; that of a member without one may be empty."""
        return any(end and Offsets.from_json_dict(end).ends for end in (self.planned, self.completed and self.start))

    def has_batch_in(self, topic_ids: Set[bytes]) -> bool:
        """Return True if the planned batch has offsets of one of these topics."""
        positions = Offsets.from_json_dict(self.planned).positions if self.planned else {}
        return any(position.topic_id in topic_ids for position in positions.values())

    def starts_in(self, topic_id: bytes | None) -> dict[TopicPartition, int]:
        """Return the first offsets of the first batch, if it and its resolved start are in this topic."""
        if self.first_start is None or self.first_end is None:
            return {}
        end = Offsets.from_json_dict(self.first_end)
        in_topic = {self.first_start.ids.get(TOPIC), end.ids.get(TOPIC)} == {topic_id}
        return dict(end.joined) if in_topic else {}

    @property
    def rows(self) -> list[Row]:
        """Rows of completed batches."""
        return [row for number, rows in self.batches.items() if number < self.completed for row in rows]


@dataclass(frozen=True)
class Variant:
    """The kind of a run.

    Attributes
    ----------
    protocol : str or None
        `kafka.group.protocol`; several queries share the topic if there is one.
    calm : bool
        Without faults of drivers, requests and network.
    has_standby : bool
        Queries get no partition until another one leaves.
    recreates, truncates : bool
        The topic is recreated; logs lose their ends.
    """

    protocol: str | None
    calm: bool
    has_standby: bool
    recreates: bool
    truncates: bool

    @classmethod
    def draw(cls, rng: random.Random) -> Variant:
        """Return a random kind of run."""
        protocol = rng.choice([None, None, "classic", "consumer"])
        calm = protocol is not None and rng.random() < 0.5
        has_standby = protocol is not None and rng.random() < 0.5
        recreates = not (calm or has_standby) and rng.random() < 0.4
        # Undisturbed, a query reads the new topic while a broker still names the deleted one.
        calm = calm or (recreates and protocol is None and rng.random() < 0.5)
        truncates = not (calm or has_standby) and rng.random() < 0.7
        return cls(protocol, calm, has_standby, recreates, truncates)

    def cluster(self, rng: random.Random) -> ChangingCluster:
        """Return a new cluster; a topic with standby queries has one partition."""
        settings = {"group.consumer.heartbeat.interval.ms": "500", "group.consumer.session.timeout.ms": "6000"}
        return ChangingCluster(rng, 1 if self.has_standby else rng.choice([1, 2, 3]), **settings)

    def queries(self, rng: random.Random) -> list[Query]:
        """Return one query, or the members of a group."""
        return [Query(dies=not self.calm) for _ in range(1 if self.protocol is None else rng.choice([2, 3]))]

    def options(self, rng: random.Random, servers: str) -> dict[str, str]:
        """Return the options that all queries have."""
        options = {"kafka.bootstrap.servers": servers, "subscribe": TOPIC, "startingOffsets": "earliest"}
        if self.protocol is None and rng.random() < 0.3:
            options["startingOffsets"] = "latest"
        options |= {"failOnDataLoss": "false", "kafka.group.id": GROUP}
        options["kafka.metadata.max.age.ms"] = "300" if self.recreates else "2000"
        if self.protocol is not None:
            options["kafka.group.protocol"] = self.protocol
        if self.protocol == "classic":
            options |= {"kafka.session.timeout.ms": "6000", "kafka.heartbeat.interval.ms": "500"}
            options["kafka.partition.assignment.strategy"] = rng.choice(ASSIGNORS)
        return options


@dataclass
class Drivers:
    """The drivers of all queries: another one starts when one has ended."""

    world: Simulation
    cluster: ChangingCluster
    queries: list[Query]
    options: dict[str, str]
    may_read_now: bool
    """Some drivers end when all is read, as with `availableNow`."""

    def start(self, query: Query) -> None:
        """Start a driver of a query, with random limits."""
        rng = self.world.random
        limits = {name: str(rng.choice(values)) for name, values in LIMITS.items() if rng.random() < 0.35}
        query.drivers += 1
        now = self.may_read_now and rng.random() < 0.3
        options = self.options | limits | query.options
        driver = self.world.start(run_driver, options, query, now, name=f"driver-{len(self.world.processes)}")
        self.world.scheduler.start(self.world.main, lambda: self._restart(query, driver))

    def _restart(self, query: Query, driver: Process) -> None:
        """Start another driver when this one has ended."""
        driver.wait()
        query.leaving = False
        if driver.error is not None and is_lost_batch(driver.error, query, self.cluster):
            query.has_lost_batch, driver.error = True, None
            query.options["failOnDataLoss"] = "false"  # as the error says
        if driver.error is not None:
            driver.error = check_error(driver.error)
        if not query.stopping:
            self.world.sleep(self.world.random.uniform(0, 0.5))
            if not query.stopping:
                self.start(query)

    def alive(self) -> list[Process]:
        """Return the drivers that have not ended."""
        return self.world.alive("driver")

    def kill(self, lines: int) -> None:
        """Kill or terminate a driver after some lines."""
        if drivers := self.alive():
            rng = self.world.fault_random
            rng.choice(drivers).interrupt(rng.choice([signal.SIGKILL, signal.SIGTERM]), lines)

    def kill_at_line(self) -> None:
        """Kill or terminate a driver at a random line."""
        self.kill(int(10 ** self.world.fault_random.uniform(1, 4)))

    def pause(self) -> None:
        """Suspend a driver."""
        if drivers := self.alive():
            drivers[0].pause(self.world.fault_random.uniform(0.1, 3))

    def let_leave(self) -> None:
        """Let the driver of a query end after its batch; another one starts."""
        self.world.fault_random.choice(self.queries).leaving = True

    def stop(self) -> None:
        """Stop all queries, and wait for their drivers."""
        for query in self.queries:
            query.leaving = query.stopping = True
        for driver in self.alive():
            driver.wait(120)
            assert not driver.alive, driver


def scenario(world: Simulation) -> dict[str, object]:
    """Run queries; without faults, members that only come and go read no record twice."""
    variant = Variant.draw(world.random)
    cluster = variant.cluster(world.random)
    cluster.write()
    fetches = count_fetches(cluster)
    queries = variant.queries(world.random)
    options = variant.options(world.random, cluster.kafka.bootstrap_servers)
    drivers = Drivers(world, cluster, queries, options, may_read_now=variant.protocol is None)
    recreated = start_queries(world, variant, drivers)

    def check() -> None:
        check_fetches(fetches)
        if variant.protocol is None:
            check_commits(cluster, queries[0])

    faults = start_faults(world, variant, drivers)
    write_for(world, cluster, DURATION_S, check)
    for schedule in faults:
        schedule.stop()
    world.wait_until(lambda: cluster.exists, 10, "the topic exists")
    for query in queries:
        query.dies = False
    settle(world, cluster.kafka)
    cluster.heal()

    wait_until_all_is_read(world, drivers, fetches)
    if variant.protocol is None:
        ends = {key: cluster.kafka.log(*key).end_offset for key in cluster.partitions}
        world.wait_until(lambda: cluster.committed_in_topic == ends, 60, "the group's offsets are the log ends")
    drivers.stop()
    judge_rows(variant, drivers)
    return {
        "protocol": variant.protocol,
        "calm": variant.calm,
        "truncates": variant.truncates,
        "standby": variant.has_standby,
        "recreated": recreated or len(cluster.deleted_topic_ids),
        "lost_batches": sum(query.has_lost_batch for query in queries),
        "batches": sum(query.completed for query in queries),
        "drivers": sum(query.drivers for query in queries),
        "replays": sum(query.replays for query in queries),
    }


def count_fetches(cluster: ChangingCluster) -> Counter[tuple[str, int, int]]:
    """Return the counts of Fetch requests by topic id, partition and offset, which grow from now on."""
    fetches: Counter[tuple[str, int, int]] = Counter()
    cluster.kafka.before[FETCH] = lambda body: fetches.update(
        (str(topic.get("topic_id")), row["partition"], row["fetch_offset"])
        for topic in body["topics"]
        for row in topic["partitions"]
    )
    return fetches


def start_queries(world: Simulation, variant: Variant, drivers: Drivers) -> bool:
    """Start all queries; return True if the topic was recreated meanwhile, in a run with standby queries."""
    if variant.has_standby:
        comes_back = variant.protocol == "consumer"
        return recreate_topic_of_standby(world, drivers.cluster, drivers.start, drivers.queries, comes_back=comes_back)
    for query in drivers.queries:
        drivers.start(query)
    return False


def start_faults(world: Simulation, variant: Variant, drivers: Drivers) -> list[FaultSchedule]:
    """Start faults of drivers, requests and network, changes of the cluster, and recreations of the topic."""
    cluster = drivers.cluster
    refusals = REFUSALS | (MEMBERSHIP if variant.protocol is not None else {})
    schedule: list[Fault] = [("a query leaves, and comes back", drivers.let_leave)]
    if not variant.calm:
        schedule += [
            ("refuse, lose or delay requests", lambda: cluster.fault(refusals)),
            ("kill a driver", lambda: drivers.kill(0)),
            ("kill a driver at a line", drivers.kill_at_line),
            ("pause a driver", drivers.pause),
            *network_faults(world, cluster.kafka, drivers.alive),
        ]
    nothing = ("nothing", lambda: None)
    recreation = ("recreate the topic", lambda: recreate_topic(world, cluster))
    return [
        world.start_faults(schedule, every_s=(1, 3) if variant.calm else (0.1, 1.2)),
        world.start_faults(cluster_changes(variant, cluster), every_s=(0.1, 0.6)),
        world.start_faults([recreation if variant.recreates else nothing], every_s=(2, 8)),
    ]


def cluster_changes(variant: Variant, cluster: ChangingCluster) -> list[Fault]:
    """Return the changes of the cluster in a run."""
    if variant.truncates:
        return [("change the cluster", cluster.change)]
    changes: list[Fault] = [
        ("write records", cluster.write),
        ("move a leader", cluster.move_leader),
    ]
    if not variant.has_standby:
        changes.append(("add a partition", cluster.add_partition))
        if not variant.calm:
            changes.append(("delete old records", cluster.delete_records))
            changes.append(("stop or start a broker", cluster.stop_or_start_broker))
    return changes


def wait_until_all_is_read(world: Simulation, drivers: Drivers, fetches: Counter[tuple[str, int, int]]) -> None:
    """Wait until completed batches have each record that is not lost, or that was before `latest`."""
    cluster, queries = drivers.cluster, drivers.queries

    def complete() -> bool:
        check_fetches(fetches)
        read = {value for query in queries for _, _, value in query.rows}
        if drivers.options["startingOffsets"] == "latest":
            starts = queries[0].starts_in(cluster.topic_id)
            cluster.gone |= {value for value, (key, offset) in cluster.written.items() if offset < starts.get(key, 0)}
        return not cluster.written.keys() - cluster.gone - read

    world.wait_until(complete, 300, f"all records are read: {cluster.written.keys() - cluster.gone}")


def judge_rows(variant: Variant, drivers: Drivers) -> None:
    """Compare the rows of all queries with the records."""
    queries = drivers.queries
    has_lost_batch = any(query.has_lost_batch for query in queries)
    # Such a query of a classic group continues at the start of the new topic, which another member may have read.
    twice = variant.protocol is not None and (not variant.calm or (has_lost_batch and variant.protocol == "classic"))
    drivers.cluster.judge([row for query in queries for row in query.rows], twice=twice)


def write_for(
    world: Simulation, cluster: ChangingCluster, seconds: float, check: Callable[[], None] = lambda: None
) -> None:
    """Write records now and then, and check the state meanwhile."""
    end_s = world.now_s + seconds
    while world.now_s < end_s:
        world.sleep(0.05)
        if world.random.random() < 0.15:
            cluster.write()
        check()


def recreate_topic(world: Simulation, cluster: ChangingCluster) -> None:
    """Delete the topic and create it, now or after some time. One broker may hear of both later."""
    kafka, rng = cluster.kafka, world.fault_random
    if not cluster.exists:
        return
    copies = None
    if len(kafka.brokers) > 1 and rng.random() < 0.7:
        lagging = rng.choice(list(kafka.brokers))
        copies = rng.choice([None, 1])  # with one, most partitions get records meanwhile
        kafka.isolate(lagging)
        world.later(rng.uniform(0.5, 6), lambda: kafka.isolate(lagging, False))
    world.later(rng.choice([0.0, rng.uniform(0, 2)]), cluster.delete_topic(rng.choice([None, 1, 2, 3]), copies))


def recreate_topic_of_standby(
    world: Simulation,
    cluster: ChangingCluster,
    start: Callable[[Query], None],
    queries: list[Query],
    *,
    comes_back: bool,
) -> bool:
    """Start queries that get no partition, recreate the topic, and let its owner leave; return True if that happened.

    It did not happen if another query got the partition. The standby queries have read nothing, so they may have
    `failOnDataLoss`. An owner that comes back continues at the group's offset if the group assigns topics by id;
    otherwise it would read the new topic from its start.
    """
    owner, *standby = queries
    for number, query in enumerate(queries):
        query.options["kafka.client.id"] = f"driver-{number}"  # assignors give the partition to the first member
    for query in standby:
        query.options["failOnDataLoss"] = world.random.choice(["true", "false"])

    start(owner)
    world.wait_until(lambda: owner.completed, 60, "the first query reads the partition")
    for query in standby:
        start(query)
    write_for(world, cluster, world.random.uniform(2, 6))
    recreates = not any(query.has_read for query in standby)
    if recreates:
        create = cluster.delete_topic()
        if world.random.random() < 0.5:  # it commits no offset in the new topic
            owner.leaving, owner.stopping = True, not comes_back
        world.sleep(world.random.choice([0, world.random.uniform(0, 2)]))
        create()
        write_for(world, cluster, world.random.uniform(0, 3))
    owner.leaving, owner.stopping = True, recreates and not comes_back
    return recreates


def is_lost_batch(error: BaseException, query: Query, cluster: ChangingCluster) -> bool:
    """Return True if a query must end: it has `failOnDataLoss`, and its planned batch is in a deleted topic."""
    is_loss = "DataLoss" in [kind.__name__ for kind in type(error).__mro__]
    return is_loss and query.options.get("failOnDataLoss") == "true" and query.has_batch_in(cluster.deleted_topic_ids)


def check_error(error: BaseException) -> BaseException | None:
    """Return an error that a query must not end with; Spark restarts it after others, which have another module."""
    names = [kind.__name__ for kind in type(error).__mro__]
    return None if "KafkaError" in names and "DataLoss" not in names else error


def check_fetches(fetches: Counter[tuple[str, int, int]]) -> None:
    """Fail if tasks ask for the same offset again and again."""
    for (_, partition, offset), count in fetches.most_common(1):
        assert count <= MOST_FETCHES, f"{count} Fetch requests for offset {offset} of partition {partition}"


def check_commits(cluster: ChangingCluster, query: Query) -> None:
    """Fail if an offset of the group is beyond the last completed batch."""
    if query.start is None or "@startingOffsets" in query.start:
        return
    batch = Offsets.from_json_dict(query.start)
    ends = batch.ends
    if batch.ids.get(TOPIC, cluster.topic_id) != cluster.topic_id:
        committed = cluster.committed_in_topic
        assert not committed, f"{committed} are committed in a new topic of which no batch is complete"
    if cluster.truncated or cluster.deleted_topic_ids:
        return
    for key, offset in cluster.kafka.committed_offsets(GROUP).items():
        assert offset <= ends.get(key, offset if cluster.shrunk else 0), (
            f"{key} is committed at {offset}, and the last batch ends at {ends}"
        )


def run_driver(options: dict[str, str], query: Query, now: bool) -> None:
    """Run micro-batches, as Spark does, until the query stops; with `now` until all is read."""
    reader = KafkaStreamReader(parse_source_options(options, streaming=True))
    try:
        if now:
            reader.prepareForTriggerAvailableNow()
        if query.start is None:
            query.start = reader.initialOffset()
        query.replays += query.planned is not None
        while not query.leaving:
            if query.planned is None:
                end = reader.latestOffset(query.start, reader.getDefaultReadLimit())
                if end == query.start:
                    if now:
                        return
                    time.sleep(0.2)
                    continue
                die(query, 0.05)
                if query.completed == 0:
                    query.first_start = reader.query.starting_offsets(reader.query.deadline())
                query.planned = json.loads(json.dumps(end))
                die(query, 0.2)
            tasks = list(reader.partitions(query.start, query.planned))
            random.shuffle(tasks)
            query.batches[query.completed] = [row for task in tasks for row in read_task(reader, task)]
            die(query, 0.1)
            if query.completed == 0:
                query.first_end = query.planned
            query.completed, query.start, query.planned = query.completed + 1, query.planned, None
            die(query, 0.1)
        if query.start is not None and query.planned is None:
            reader.latestOffset(query.start, reader.getDefaultReadLimit())  # commits the last batch
    finally:
        reader.stop()


def die(query: Query, probability: float) -> None:
    """End this driver here."""
    if query.dies and random.random() < probability:
        os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(1)


def read_task(reader: KafkaStreamReader, task: Any) -> list[Row]:
    """Read a task, up to four times."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            values = [row for batch in reader.read(task) for row in batch.to_pylist()]
            rows = [((row["topic"], row["partition"]), row["offset"], row["value"].decode()) for row in values]
            for key in {key for key, _, _ in rows}:
                offsets = [row[1] for row in rows if row[0] == key]
                assert offsets == sorted(offsets), f"{key} is out of order: {offsets}"
            return rows
        except DataLoss:
            raise
        except KafkaError:
            if attempt == ATTEMPTS:
                raise
    raise AssertionError
