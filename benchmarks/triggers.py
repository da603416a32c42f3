"""Duration of a small micro-batch: back-to-back triggers over six partitions that receive few records.

Both connectors run in one session, in turn, never at the same time. Reported are the median and the 95th percentile of
the progress' `triggerExecution`, after a warm-up. Another process produces the records.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
import uuid
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from benchmarks.job import Figure, Job, say, section_main
from benchmarks.source import stream_options
from benchmarks.spark_session import FORMATS, contestants, open_session
from benchmarks.topics import create_topic

PARTITIONS = 6
WARM_UP_BATCHES = 15
_GIVE_UP_S = 120.0


def measure(job: Job, arguments: Sequence[str]) -> list[Figure]:
    if arguments:
        _trickle(job, arguments[0])
    topic = f"bench-triggers-{uuid.uuid4().hex[:8]}"
    create_topic(job.bootstrap_servers, topic, PARTITIONS)
    spark = open_session(job)
    took_ms: dict[str, list[float]] = defaultdict(list)
    per_round = -(-job.trigger_batches // job.rounds)
    with _producing(topic):
        for number in range(job.rounds):
            for who in contestants(job, number):
                phases_ms = _run(spark, job, who, topic, per_round)
                summary = ", ".join(f"{phase} {np.median(each_ms):.0f}" for phase, each_ms in phases_ms.items())
                say(f"  {who:>14}: median ms of {per_round} batches: {summary}")
                took_ms[who] += phases_ms["triggerExecution"]
    spark.stop()
    subject = f"{PARTITIONS} partitions, {job.records_per_second}/s"
    figures = []
    for who, samples in took_ms.items():
        figures.append(Figure("trigger", subject, "median", "ms", who, (float(np.median(samples)),)))
        figures.append(Figure("trigger", subject, "95th percentile", "ms", who, (float(np.percentile(samples, 95)),)))
    return figures


def _run(spark: SparkSession, job: Job, who: str, topic: str, batches: int) -> dict[str, list[float]]:
    """Return the milliseconds of each phase of a trigger, for a number of batches with records after the warm-up."""
    options = stream_options(job, who, topic) | {"startingOffsets": "latest"}
    rows = spark.readStream.format(FORMATS[who]).options(**options).load()
    with tempfile.TemporaryDirectory() as checkpoint:
        query = rows.writeStream.format("noop").option("checkpointLocation", checkpoint).start()
        deadline_s = time.monotonic() + _GIVE_UP_S
        try:
            while len(done := [batch for batch in query.recentProgress if batch.numInputRows]) < (
                WARM_UP_BATCHES + batches
            ):
                if error := query.exception():
                    raise RuntimeError(f"{who}: {error}")
                if time.monotonic() > deadline_s:
                    raise RuntimeError(f"{who}: only {len(done)} batches in {_GIVE_UP_S:.0f} s")
                time.sleep(0.5)
        finally:
            query.stop()
    counted = done[WARM_UP_BATCHES:][:batches]
    return {phase: [float(batch.durationMs[phase]) for batch in counted] for phase in sorted(counted[0].durationMs)}


@contextmanager
def _producing(topic: str) -> Iterator[None]:
    """Write records slowly and evenly to the topic's partitions, from another process."""
    process = subprocess.Popen([sys.executable, "-m", "benchmarks.triggers", sys.argv[1], topic])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def _trickle(job: Job, topic: str) -> None:
    producer = Producer({"bootstrap.servers": job.bootstrap_servers, "linger.ms": 0})
    started_s, sent = time.monotonic(), 0
    while True:
        while sent < (time.monotonic() - started_s) * job.records_per_second:
            producer.produce(topic, b"x" * 100, b"%08d" % sent, sent % PARTITIONS)
            sent += 1
        producer.poll(0.005)


if __name__ == "__main__":
    section_main(measure)
