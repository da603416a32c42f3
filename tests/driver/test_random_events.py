"""Queries read everything once while logs are truncated, leaders move, brokers stop, and the queries are killed.

`make soak` runs hundreds of new seeds, and prints each seed that fails.
"""

from __future__ import annotations

import random
import threading
import time

import pytest

from protocol.errors import KafkaError
from spark_kafka_source.process_state import PROCESS
from tests.driver.simulated_query import (
    GROUP,
    MEMBERSHIP,
    PATIENCE,
    REFUSALS,
    TOPIC,
    ChangingCluster,
    Member,
    SimulatedQuery,
    check_commits,
)
from tests.support.soak import scaled, try_seeds
from tests.support.wait_until import wait_until

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3_600)]

SEEDS = scaled("SIMULATED_QUERIES", 10, 300)
MEMBER_SEEDS = scaled("SIMULATED_MEMBERS", 1, 40)


def options_of(cluster: ChangingCluster) -> dict[str, str]:
    given = {"kafka.bootstrap.servers": cluster.kafka.bootstrap_servers, "subscribe": TOPIC}
    return PATIENCE | given | {"startingOffsets": "earliest", "failOnDataLoss": "false", "kafka.group.id": GROUP}


def test_killed_query_reads_every_record_once_on_changing_cluster() -> None:
    try_seeds(simulate, SEEDS, 5)


def simulate(rng: random.Random) -> None:
    cluster = ChangingCluster(rng, rng.choice([1, 2, 3]))
    query = SimulatedQuery(cluster, rng, options_of(cluster))
    try:
        cluster.write()

        def meanwhile() -> None:
            check_commits(query)
            if rng.random() < 0.4:
                cluster.change()

        for _ in range(rng.randint(2, 6)):
            if rng.random() < 0.5:
                PROCESS.reset()  # another driver
            try:
                query.run(rng.randint(1, 12), meanwhile, now=rng.random() < 0.3)
            except KafkaError:
                cluster.heal()
            cluster.change()
        cluster.heal()
        PROCESS.reset()
        query.read_all()
        cluster.judge(query.rows)
        ends = {key: cluster.kafka.log(*key).end_offset for key in cluster.partitions}
        assert cluster.kafka.committed_offsets(GROUP) == ends
    finally:
        cluster.kafka.close()
        PROCESS.reset()


def test_members_read_every_record_on_changing_cluster() -> None:
    try_seeds(simulate_members, MEMBER_SEEDS, 5)


def simulate_members(rng: random.Random) -> None:
    """Two to five queries share a topic; some end. With lost requests or truncations, records may be read twice."""
    intervals = {"group.consumer.heartbeat.interval.ms": "50", "group.consumer.session.timeout.ms": "3000"}
    cluster = ChangingCluster(rng, rng.choice([2, 3, 5]), **intervals)
    protocol = rng.choice(["classic", "consumer"])
    options = options_of(cluster) | {"kafka.group.protocol": protocol}
    if protocol == "classic":
        options |= {"kafka.session.timeout.ms": "3000", "kafka.heartbeat.interval.ms": "50"}
        options["kafka.partition.assignment.strategy"] = rng.choice(["range", "sticky", "cooperative-sticky"])
    faults = rng.random() < 0.5
    ending, members, queries = threading.Event(), list[Member](), list[SimulatedQuery]()

    def join(life_s: float) -> None:
        own = random.Random(rng.random())
        queries.append(SimulatedQuery(cluster, own, options, dies=False))
        members.append(Member(queries[-1], life_s, ending))

    def read() -> set[str]:
        return {value for query in queries for _, _, value in list(query.rows)}

    try:
        cluster.write()
        join(1_000)
        join(rng.choice([1_000, 1, 3]))
        end_s = time.monotonic() + 4
        while time.monotonic() < end_s:
            time.sleep(rng.uniform(0.02, 0.2))
            chance = rng.random()
            if chance < 0.35:
                cluster.write()
            elif chance < 0.42:
                cluster.truncate()
            elif chance < 0.55 and faults:
                cluster.fault(REFUSALS | MEMBERSHIP)
            elif chance < 0.6 and len(members) < 5:
                join(rng.uniform(0.5, 2))
            elif chance < 0.63:
                cluster.add_partition()
            elif chance < 0.7:
                cluster.move_leader()
        cluster.heal()
        wait_until(
            lambda: any(each.error for each in members) or not cluster.written.keys() - cluster.gone - read(),
            lambda: (
                f"lost: { {each: cluster.written[each] for each in cluster.written.keys() - cluster.gone - read()} }"
            ),
        )
        ending.set()
        for member in members:
            member.join(20)
            assert not member.is_alive()
            if member.error:
                raise member.error
        cluster.judge([row for query in queries for row in query.rows], twice=faults or cluster.truncated)
    finally:
        ending.set()
        cluster.kafka.close()
        PROCESS.reset()
