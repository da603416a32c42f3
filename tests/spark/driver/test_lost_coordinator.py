"""The group's coordinator fails under load: commits resume, none is early, and no record is lost.

Its host becomes unreachable (no reset, no reply), or its process is killed while the query is a group member.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession

from protocol.cluster.client import Client
from protocol.consumer.list_offsets import list_offsets
from protocol.errors import KafkaError
from protocol.group.committed_offsets import fetch_offsets
from protocol.kafka_terms import LATEST
from spark_kafka_source.local_kafka import LocalKafka
from tests.conftest import NEEDS_KIP_848, TopicFactory
from tests.protocol.consumer.consuming import client_of
from tests.support.background import background
from tests.support.consumer_groups import coordinator_of, wait_for_lag_zero
from tests.support.group_watch import GroupWatch
from tests.support.soak import scaled
from tests.support.wait_for_brokers import wait_until_known

pytestmark = pytest.mark.soak

# In `make soak`, the coordinator fails this many times.
KILLS = scaled("KILLS", 0, 5)
PARTITIONS = 3
# The controller takes nine seconds to fence a silent broker.
DARK = ("none", LocalKafka.pause, LocalKafka.resume, 30.0)
KILLED = (LocalKafka.kill, LocalKafka.start, 15.0)


def wait_for(condition: Callable[[], bool], timeout_s: float) -> float:
    """Wait for the condition; return the seconds that it took."""
    started_s = time.monotonic()
    while not condition():
        assert time.monotonic() - started_s < timeout_s, f"it did not happen in {timeout_s:.0f} s"
        time.sleep(0.05)
    return time.monotonic() - started_s


def wait_until_in_sync(kafka: LocalKafka, topic: str) -> None:
    wait_until_known(kafka, topic, PARTITIONS)
    with client_of(kafka) as client:
        wait_for(
            lambda: all(len(each.isr) == 3 for each in client.metadata([topic]).topics[topic].partitions.values()), 60
        )


class Load:
    """Writes records to all partitions until `ended`."""

    def __init__(self, kafka: LocalKafka, topic: str) -> None:
        self.ended = threading.Event()
        self._topic = topic
        # Short timeouts: a paused broker must not delay records for the others.
        patience = {"socket.timeout.ms": 3_000, "request.timeout.ms": 3_000}
        self._producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0, **patience})

    def run(self) -> None:
        while not self.ended.wait(0.05):
            for partition in range(PARTITIONS):
                self._producer.produce(self._topic, value=b"v", partition=partition)
            self._producer.poll(0)
        assert self._producer.flush(120) == 0


@pytest.mark.skipif(not KILLS, reason="takes a minute each time; `make soak` runs it")
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("protocol", "lose", "bring_back", "commits_go_on_within_s"),
    [DARK, ("classic", *KILLED), pytest.param("consumer", *KILLED, marks=NEEDS_KIP_848)],
    ids=["dark", "killed, classic", "killed, consumer"],
)
def test_commits_continue_after_repeated_loss_of_coordinator(
    spark: SparkSession,
    kafka: LocalKafka,
    topic: TopicFactory,
    tmp_path: Path,
    protocol: str,
    lose: Callable[[LocalKafka, int], None],
    bring_back: Callable[[LocalKafka, int], None],
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
    load, watch = Load(kafka, name), GroupWatch(kafka, name, PARTITIONS, group, tmp_path)
    took_s = []
    with client_of(kafka) as client, background(load.run):
        try:
            wait_for(lambda: committed(client, group) > 0, 120)
            for _ in range(KILLS):
                lost, seen = coordinator_of(kafka, group), committed(client, group)
                lose(kafka, lost)
                lost_since_s = time.monotonic()
                try:
                    # A commit in flight may still succeed; the second one was sent after the failure.
                    for _ in range(2):
                        wait_for(lambda: committed(client, group) > seen, 120)  # noqa: B023
                        seen = max(seen, committed(client, group))
                    took_s.append(time.monotonic() - lost_since_s)
                finally:
                    bring_back(kafka, lost)
                print(f"commits went on after {took_s[-1]:.1f} s")
                assert query.isActive, query.exception()
                wait_until_in_sync(kafka, name)
        finally:
            load.ended.set()
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
    return sum(each.offset for each in offsets.values())
