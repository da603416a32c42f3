"""Time until an up-to-date stream has read one new record of each of very many partitions.

Both connectors run in one session, in turn; this source with `maxInputPartitions`. The time starts when all records are
written and ends with the micro-batch that reads the last of them, after a warm-up.
"""

from __future__ import annotations

import tempfile
import time
import uuid
from collections.abc import Sequence

from confluent_kafka import Producer
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from benchmarks.job import JVM, OURS, Figure, Job, say, section_main
from benchmarks.source import stream_options
from benchmarks.spark_session import FORMATS, open_session
from benchmarks.topics import create_topic, delete_topic

TASKS = 4
ROUNDS = 3
_GIVE_UP_S = 300.0
# The JVM connector caches 64 consumers. Beyond that each of its tasks waits half a second, so it gets fewer.
PARTITIONS = {200: (OURS, JVM), 1_000: (OURS,)}


def measure(job: Job, _: Sequence[str]) -> list[Figure]:
    spark = open_session(job)
    figures = []
    for partitions, contestants in PARTITIONS.items():
        for who in contestants:
            if job.wants(who):
                took_ms = _run(spark, job, who, partitions)
                say(f"  {partitions} partitions {who:>14}: {', '.join(f'{sample:,.0f}' for sample in took_ms)} ms")
                subject = f"{partitions} partitions, up to date"
                figures.append(Figure("partitions", subject, "new records", "ms", who, tuple(took_ms)))
    spark.stop()
    return figures


def _run(spark: SparkSession, job: Job, who: str, partitions: int) -> list[float]:
    """Return the milliseconds of each round except the first."""
    topic = f"bench-partitions-{uuid.uuid4().hex[:8]}"
    create_topic(job.bootstrap_servers, topic, partitions)
    options = stream_options(job, who, topic)
    if who == OURS:
        options["maxInputPartitions"] = str(TASKS)
    rows = spark.readStream.format(FORMATS[who]).options(**options).load()
    producer = Producer({"bootstrap.servers": job.bootstrap_servers})
    took_ms = []
    with tempfile.TemporaryDirectory() as checkpoint:
        query = rows.writeStream.format("noop").option("checkpointLocation", checkpoint).start()
        try:
            for number in range(ROUNDS + 1):
                for partition in range(partitions):
                    producer.produce(topic, b"x" * 100, b"%08d" % number, partition)
                producer.flush()
                started_s = time.monotonic()
                _wait_until_read(query, (number + 1) * partitions)
                took_ms.append((time.monotonic() - started_s) * 1000)
        finally:
            query.stop()
    delete_topic(job.bootstrap_servers, topic)
    return took_ms[1:]


def _wait_until_read(query: StreamingQuery, records: int) -> None:
    deadline_s = time.monotonic() + _GIVE_UP_S
    while sum(batch.numInputRows for batch in query.recentProgress) < records:
        if error := query.exception():
            raise RuntimeError(str(error))
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"{records} records were not read in {_GIVE_UP_S:.0f} s")
        time.sleep(0.02)


if __name__ == "__main__":
    section_main(measure)
