"""Memory of a long-lived query: neither the reader's process on the driver nor reused workers grow."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from benchmarks.processes import DRIVER_SIDE, WORKER, PeakMemory
from spark_kafka_source.local_kafka import LocalKafka
from tests.conftest import TopicFactory
from tests.support.member_queries import new_group
from tests.support.noop_queries import start_query
from tests.support.soak import SOAK, scaled
from tests.support.spark_frames import stream

pytestmark = pytest.mark.soak

# A thousand in `make soak`.
BATCHES = scaled("BATCHES", 60, 1_000)
PARTITIONS = 4
# Allowed growth of a warm interpreter: caches of Arrow and of the allocator. A leak is larger within 60 batches, be it
# 100 kB per batch on the driver, or the rows of a batch in a worker.
SLACK_MB = {DRIVER_SIDE: 1.5, WORKER: 8.0}
VALUE = b"x" * 40_000


@pytest.mark.skipif(not SOAK, reason="takes half a minute; `make soak` runs it")
@pytest.mark.timeout(120 + BATCHES * 3)
def test_memory_of_driver_and_workers_does_not_grow_between_batches(
    spark: SparkSession, kafka1: LocalKafka, topic1: TopicFactory, tmp_path: Path
) -> None:
    name = topic1(PARTITIONS)
    # Large values that compress well: much memory in readers, little network traffic.
    producer = Producer({"bootstrap.servers": kafka1.bootstrap_servers, "linger.ms": 20, "compression.type": "zstd"})
    per_batch = 40
    for n in range(BATCHES * per_batch):
        producer.produce(name, value=VALUE, partition=n % PARTITIONS)
        if n % 10_000 == 0:
            producer.flush(30)
    assert producer.flush(30) == 0
    with PeakMemory(every_s=0.1) as memory:
        rows = stream(spark, kafka1, subscribe=name, kafka_group_id=new_group(), maxOffsetsPerTrigger=per_batch)
        query = start_query(rows, tmp_path)
        assert query.awaitTermination(60 + BATCHES * 3)
    assert len(list((tmp_path / "commits").glob("[0-9]*"))) >= min(BATCHES, 100)
    lived = max(map(len, memory.trail_mb.values())) / 2
    longest = {
        # The largest long-lived process of each kind. The daemon only forks workers, so it is smaller.
        kind: max(
            (trail for (of_kind, _), trail in memory.trail_mb.items() if of_kind == kind and len(trail) > lived),
            key=statistics.median,
        )
        for kind in (DRIVER_SIDE, WORKER)
    }
    for kind, trail in longest.items():
        # The first half is the warm-up.
        half = trail[len(trail) // 2 :]
        middle, end = half[: len(half) // 4], half[-(len(half) // 4) :]
        grown_mb = statistics.median(end) - statistics.median(middle)
        print(f"{kind}: {statistics.median(middle):.1f} MB, {statistics.median(end):.1f} MB at the end")
        assert grown_mb < SLACK_MB[kind], f"{kind} grew by {grown_mb:.1f} MB: {[round(mb) for mb in trail[::20]]}"
