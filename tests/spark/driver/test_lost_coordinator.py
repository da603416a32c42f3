"""The group's coordinator fails under load: commits resume, none is early, and no record is lost.

Its host becomes unreachable (no reset, no reply), or its process is killed while the query is a group member.
"""

from __future__ import annotations

import random
import time
import uuid
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from protocol.cluster.client import Client
from protocol.errors import KafkaError
from protocol.fetch.list_offsets import list_offsets
from protocol.group.commits.committed_offsets import fetch_offsets
from protocol.kafka_terms import LATEST
from spark_kafka_source.local_kafka import LocalKafka
from tests.conftest import NEEDS_KIP_848, TopicFactory
from tests.protocol.fetch.consuming import client_of
from tests.support.chaos import Chaos, ChosenBroker, Move
from tests.support.consumer_groups import coordinator_of, wait_for_lag_zero
from tests.support.group_watch import GroupWatch
from tests.support.number_source import NumberSource
from tests.support.soak import scaled
from tests.support.wait_for_brokers import wait_until_known
from tests.support.wait_until import wait_until

pytestmark = pytest.mark.soak

# In `make soak`, the coordinator fails this many times.
KILLS = scaled("KILLS", 0, 5)
PARTITIONS = 3
# The controller takes nine seconds to fence a silent broker.
DARK = ("none", Move.SUSPEND, 30.0)
KILLED = (Move.KILL, 15.0)


def wait_until_in_sync(kafka: LocalKafka, topic: str) -> None:
    wait_until_known(kafka, topic, PARTITIONS)
    with client_of(kafka) as client:
        wait_until(
            lambda: all(
                len(partition.isr) == 3 for partition in client.metadata([topic]).topics[topic].partitions.values()
            ),
            timeout_s=60,
            every_s=0.05,
        )


def record(number: int) -> dict[str, object]:
    return {"value": b"v", "partition": number % PARTITIONS}


@pytest.mark.skipif(not KILLS, reason="takes a minute each time; `make soak` runs it")
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("protocol", "lose", "commits_go_on_within_s"),
    [DARK, ("classic", *KILLED), pytest.param("consumer", *KILLED, marks=NEEDS_KIP_848)],
    ids=["dark", "killed, classic", "killed, consumer"],
)
def test_commits_continue_after_repeated_loss_of_coordinator(
    spark: SparkSession,
    kafka: LocalKafka,
    topic: TopicFactory,
    tmp_path: Path,
    protocol: str,
    lose: Move,
    commits_go_on_within_s: float,
) -> None:
    name, group = topic(PARTITIONS, replication_factor=3), f"group-{uuid.uuid4().hex[:8]}"
    rows: dict[int, list[tuple[int, int]]] = {}

    def keep(batch: DataFrame, batch_id: int) -> None:
        rows[batch_id] = [(row[0], row[1]) for row in batch.select("partition", "offset").collect()]

    query = (
        spark.readStream.format("pykafka-group")
        .option("kafka.bootstrap.servers", kafka.bootstrap_servers)
        .option("subscribe", name)
        .option("kafka.group.id", group)
        .option("kafka.group.protocol", protocol)
        .option("kafka.auto.offset.reset", "earliest")
        .load()
        .writeStream.foreachBatch(keep)
        .option("checkpointLocation", str(tmp_path))
        .trigger(processingTime="200 milliseconds")
        .start()
    )
    # Short timeouts: a paused broker must not delay records for the others.
    patience = {"socket_timeout_ms": 3_000, "request_timeout_ms": 3_000}
    source = NumberSource(kafka, name, record, PARTITIONS, 0.05, **patience)
    watch = GroupWatch(kafka, name, PARTITIONS, group, tmp_path)
    chaos = Chaos([ChosenBroker(kafka, lambda: coordinator_of(kafka, group))], random.Random(), {lose: 1})
    chaos.start_all()
    took_s = []
    with client_of(kafka) as client:
        try:
            wait_until(lambda: committed(client, group), timeout_s=120, every_s=0.05)
            for _ in range(KILLS):
                observed = committed(client, group)
                chaos.step()
                lost_since_s = time.monotonic()
                # A commit in flight may still succeed; the second one was sent after the failure.
                for _ in range(2):
                    wait_until(lambda: committed(client, group) > observed, timeout_s=120, every_s=0.05)  # noqa: B023
                    observed = max(observed, committed(client, group))
                took_s.append(time.monotonic() - lost_since_s)
                chaos.step()
                print(f"commits went on after {took_s[-1]:.1f} s")
                assert query.isActive, query.exception()
                wait_until_in_sync(kafka, name)
        finally:
            chaos.start_all()
            source.close()
    wait_for_lag_zero(kafka, group, PARTITIONS, 120)
    query.stop()
    watch.close()
    read = sorted(row for batch in rows.values() for row in batch)
    with client_of(kafka) as client:
        ends = list_offsets(client, dict.fromkeys([(name, partition) for partition in range(PARTITIONS)], LATEST))
    assert read == [(partition, offset) for (_, partition), end in sorted(ends.items()) for offset in range(end.offset)]
    assert watch.wrong == []
    assert max(took_s) < commits_go_on_within_s


def committed(client: Client, group: str) -> int:
    """Return the sum of the group's offsets; 0 while the coordinator is unavailable."""
    try:
        offsets = fetch_offsets(client, group, None, client.deadline(3_000), require_stable=False)
    except KafkaError:
        return 0
    return sum(offset.offset for offset in offsets.values())
