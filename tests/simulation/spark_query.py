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


def scenario(world: Simulation) -> dict[str, object]:
    """Run queries; without faults, members that only come and go read no record twice."""
    protocol = world.random.choice([None, None, "classic", "consumer"])
    calm = protocol is not None and world.random.random() < 0.5
    has_standby = protocol is not None and world.random.random() < 0.5
    recreates = not (calm or has_standby) and world.random.random() < 0.4
    # Undisturbed, a query reads the new topic while a broker still names the deleted one.
    calm = calm or (recreates and protocol is None and world.random.random() < 0.5)
    truncates = not (calm or has_standby) and world.random.random() < 0.7
    settings = {"group.consumer.heartbeat.interval.ms": "500", "group.consumer.session.timeout.ms": "6000"}
    cluster = ChangingCluster(world.random, 1 if has_standby else world.random.choice([1, 2, 3]), **settings)
    kafka = cluster.kafka
    cluster.write()
    fetches: Counter[tuple[str, int, int]] = Counter()
    kafka.before[FETCH] = lambda body: fetches.update(
        (str(topic.get("topic_id")), row["partition"], row["fetch_offset"])
        for topic in body["topics"]
        for row in topic["partitions"]
    )
    queries = [Query(dies=not calm) for _ in range(1 if protocol is None else world.random.choice([2, 3]))]
    base = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "subscribe": TOPIC, "startingOffsets": "earliest"}
    if protocol is None and world.random.random() < 0.3:
        base["startingOffsets"] = "latest"
    base |= {"failOnDataLoss": "false", "kafka.group.id": GROUP}
    base["kafka.metadata.max.age.ms"] = "300" if recreates else "2000"
    if protocol is not None:
        base["kafka.group.protocol"] = protocol
    if protocol == "classic":
        base |= {"kafka.session.timeout.ms": "6000", "kafka.heartbeat.interval.ms": "500"}
        base["kafka.partition.assignment.strategy"] = world.random.choice(ASSIGNORS)

    def start(query: Query) -> None:
        limits = {
            name: str(world.random.choice(values)) for name, values in LIMITS.items() if world.random.random() < 0.35
        }
        query.drivers += 1
        now = protocol is None and world.random.random() < 0.3
        options = base | limits | query.options
        driver = world.start(run_driver, options, query, now, name=f"driver-{len(world.processes)}")
        world.scheduler.start(world.main, lambda: restart(query, driver))

    def restart(query: Query, driver: Process) -> None:
        """Start another driver when this one has ended."""
        driver.wait()
        query.leaving = False
        if driver.error is not None and is_lost_batch(driver.error, query, cluster):
            query.has_lost_batch, driver.error = True, None
            query.options["failOnDataLoss"] = "false"  # as the error says
        if driver.error is not None:
            driver.error = check_error(driver.error)
        if not query.stopping:
            world.sleep(world.random.uniform(0, 0.5))
            if not query.stopping:
                start(query)

    recreated = False
    if has_standby:
        recreated = recreate_topic_of_standby(world, cluster, start, queries, comes_back=protocol == "consumer")
    else:
        for query in queries:
            start(query)

    def drivers() -> list[Process]:
        return world.alive("driver")

    def kill(lines: int) -> None:
        if drivers():
            world.fault_random.choice(drivers()).interrupt(
                world.fault_random.choice([signal.SIGKILL, signal.SIGTERM]), lines
            )

    def leave() -> None:
        world.fault_random.choice(queries).leaving = True

    def pause() -> None:
        if drivers():
            drivers()[0].pause(world.fault_random.uniform(0.1, 3))

    refusals = REFUSALS | (MEMBERSHIP if protocol is not None else {})
    schedule = [("a query leaves, and comes back", leave)]
    if not calm:
        schedule += [
            ("refuse, lose or delay requests", lambda: cluster.fault(refusals)),
            ("kill a driver", lambda: kill(0)),
            ("kill a driver at a line", lambda: kill(int(10 ** world.fault_random.uniform(1, 4)))),
            ("pause a driver", pause),
            *network_faults(world, kafka, drivers),
        ]
    faults = world.start_faults(schedule, every_s=(1, 3) if calm else (0.1, 1.2))
    quiet_changes = [("write records", cluster.write), ("move a leader", cluster.move_leader)]
    if not has_standby:
        quiet_changes.append(("add a partition", cluster.add_partition))
    losses = [("delete old records", cluster.delete_records), ("stop or start a broker", cluster.stop_or_start_broker)]
    if calm or has_standby:
        losses.clear()
    changes = world.start_faults(
        [("change the cluster", cluster.change)] if truncates else quiet_changes + losses,
        every_s=(0.1, 0.6),
    )
    recreations = world.start_faults(
        [("recreate the topic", lambda: recreate_topic(world, cluster))] if recreates else [("nothing", lambda: None)],
        every_s=(2, 8),
    )

    def check() -> None:
        check_fetches(fetches)
        if protocol is None:
            check_commits(cluster, queries[0])

    write_for(world, cluster, DURATION_S, check)
    for schedule_of_faults in (faults, changes, recreations):
        schedule_of_faults.stop()
    world.wait_until(lambda: cluster.exists, 10, "the topic exists")
    for query in queries:
        query.dies = False
    settle(world, kafka)
    cluster.heal()

    def complete() -> bool:
        check_fetches(fetches)
        read = {value for query in queries for _, _, value in query.rows}
        if base["startingOffsets"] == "latest":
            starts = queries[0].starts_in(cluster.topic_id)
            cluster.gone |= {value for value, (key, offset) in cluster.written.items() if offset < starts.get(key, 0)}
        return not cluster.written.keys() - cluster.gone - read

    world.wait_until(complete, 300, f"all records are read: {cluster.written.keys() - cluster.gone}")
    ends = {key: kafka.log(*key).end_offset for key in cluster.partitions}
    if protocol is None:
        world.wait_until(lambda: cluster.committed_in_topic == ends, 60, "the group's offsets are the log ends")
    for query in queries:
        query.leaving = query.stopping = True
    for driver in drivers():
        driver.wait(120)
        assert not driver.alive, driver
    lost_batches = sum(query.has_lost_batch for query in queries)
    # Such a query of a classic group continues at the start of the new topic, which another member may have read.
    twice = protocol is not None and (not calm or (lost_batches > 0 and protocol == "classic"))
    cluster.judge([row for query in queries for row in query.rows], twice=twice)
    return {
        "protocol": protocol,
        "calm": calm,
        "truncates": truncates,
        "standby": has_standby,
        "recreated": recreated or len(cluster.deleted_topic_ids),
        "lost_batches": lost_batches,
        "batches": sum(query.completed for query in queries),
        "drivers": sum(query.drivers for query in queries),
        "replays": sum(query.replays for query in queries),
    }


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
