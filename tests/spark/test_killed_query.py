"""A query killed repeatedly with SIGKILL, at random points of its batches."""

from __future__ import annotations

import random
import sys
import time
import uuid
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from spark_kafka_source.local_kafka import LocalKafka
from tests.conftest import TopicFactory
from tests.jobs import copy_to_parquet
from tests.support.chaos import Chaos, Move, Program
from tests.support.consumer_groups import described_by_kafka
from tests.support.group_watch import GroupWatch
from tests.support.soak import SOAK, scaled
from tests.support.wait_until import wait_until

pytestmark = pytest.mark.soak

KILLS = scaled("KILLS", 1, 20)
PARTITIONS = 6
RECORDS = 1_000 * KILLS


@pytest.mark.skipif(not SOAK, reason="starts Spark for each kill; the scenario spark_query kills drivers at any line")
@pytest.mark.timeout(300 + 120 * KILLS)
def test_killed_query_never_commits_ahead_of_checkpoint_and_loses_no_row(
    spark: SparkSession, kafka1: LocalKafka, topic1: TopicFactory, tmp_path: Path
) -> None:
    name, group = topic1(PARTITIONS), f"group-{uuid.uuid4().hex[:8]}"
    producer = Producer({"bootstrap.servers": kafka1.bootstrap_servers, "linger.ms": 20})
    for n in range(PARTITIONS * RECORDS):
        producer.produce(name, value=f"v{n}", partition=n % PARTITIONS)
        if n % 10_000 == 0:
            producer.flush(30)
    assert producer.flush(30) == 0
    checkpoint, output = tmp_path / "checkpoint", tmp_path / "output"
    arguments = [kafka1.bootstrap_servers, name, group, str(checkpoint), str(output)]
    watch = GroupWatch(kafka1, name, PARTITIONS, group, checkpoint)
    rng = random.Random(4)
    job = Program([sys.executable, "-m", "tests.jobs.copy_to_parquet", *arguments, "300"], tmp_path / "job")
    chaos = Chaos([job], rng, {Move.KILL: 1})
    try:
        for _ in range(KILLS):
            batches = completed(checkpoint)
            chaos.step()
            wait_until(lambda: job.check() or completed(checkpoint) > batches, timeout_s=120, every_s=0.05)  # noqa: B023
            time.sleep(rng.uniform(0, 1.5))  # a random point of the batch
            chaos.step()
    finally:
        chaos.end_all(Move.KILL)
    before_end = spark.read.parquet(str(output)).count()
    assert copy_to_parquet.start(spark, *arguments, "all").awaitTermination(180)  # type: ignore[call-arg]
    watch.close()
    assert watch.wrong == []
    assert watch.moved > KILLS
    rows = spark.read.parquet(str(output)).select("partition", "offset")
    assert before_end < PARTITIONS * RECORDS, "the query was done before it was killed: this run showed nothing"
    assert rows.count() == rows.distinct().count() == PARTITIONS * RECORDS
    assert [(row.current_offset, row.lag) for row in described_by_kafka(kafka1, group)] == [(RECORDS, 0)] * PARTITIONS


def completed(checkpoint: Path) -> int:
    """Return the number of completed batches."""
    return len(list((checkpoint / "commits").glob("[0-9]*"))) if checkpoint.exists() else 0
