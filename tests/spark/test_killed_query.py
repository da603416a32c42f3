"""A query killed repeatedly with SIGKILL, at random points of its batches."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from spark_kafka_source.local_kafka import LocalKafka
from tests.conftest import TopicFactory
from tests.jobs import copy_to_parquet
from tests.support.consumer_groups import described_by_kafka
from tests.support.group_watch import GroupWatch
from tests.support.soak import scaled

pytestmark = pytest.mark.soak

# More in `make soak`.
KILLS = scaled("KILLS", 1, 20)
PARTITIONS = 6
RECORDS = 1_000 * KILLS


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
    for _ in range(KILLS):
        batches = len(list((checkpoint / "commits").glob("[0-9]*"))) if checkpoint.exists() else 0
        with killed_in_the_end(*arguments, "300") as job:
            wait_for_batches(job, checkpoint, batches + 1)
            time.sleep(rng.uniform(0, 1.5))  # a random point of the batch
    before_end = spark.read.parquet(str(output)).count()
    assert copy_to_parquet.start(spark, *arguments, "all").awaitTermination(180)  # type: ignore[call-arg]
    watch.close()
    assert watch.wrong == []
    assert watch.moved > KILLS
    rows = spark.read.parquet(str(output)).select("partition", "offset")
    assert before_end < PARTITIONS * RECORDS, "the query was done before it was killed: this run showed nothing"
    assert rows.count() == rows.distinct().count() == PARTITIONS * RECORDS
    assert [(row.current_offset, row.lag) for row in described_by_kafka(kafka1, group)] == [(RECORDS, 0)] * PARTITIONS


@contextmanager
def killed_in_the_end(*arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "tests.jobs.copy_to_parquet", *arguments]
    # A new session: the JVM and the Python workers are killed with it.
    job = subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield job
    finally:
        os.killpg(job.pid, signal.SIGKILL)
        job.wait()


def wait_for_batches(job: subprocess.Popen[bytes], checkpoint: Path, count: int) -> None:
    deadline_s = time.monotonic() + 120
    while len(list((checkpoint / "commits").glob("[0-9]*"))) < count:
        assert job.poll() is None, "the query ended early"
        assert time.monotonic() < deadline_s, "no batch was completed"
        time.sleep(0.05)
