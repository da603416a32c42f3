"""Time from `start()` until a query's first micro-batch completes: both connectors, and PySpark's minimum.

The minimum is a Python source that contacts no broker. Measured twice: the first query of a fresh session, and a query
after another one in the same session. Few records are read, so that the start dominates.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession

from benchmarks.constant_source import NAME, ConstantDataSource
from benchmarks.job import EMPTY, JVM, OURS, Figure, Job, run_section, say, section_main
from benchmarks.source import stream_options
from benchmarks.spark_session import FORMATS, open_session
from benchmarks.topics import create_topic, delete_topic, write_few

FRESH, WARM = "fresh session", "warm session"
TOPIC = "bench-first-batch"
PARTITIONS = 6
_WARM_STARTS = 4
_GIVE_UP_S = 120.0


def measure(job: Job, arguments: Sequence[str]) -> list[Figure]:
    if arguments:
        return _in_one_session(job, arguments[0])
    create_topic(job.bootstrap_servers, TOPIC, PARTITIONS)
    write_few(job.bootstrap_servers, TOPIC, PARTITIONS)
    samples: dict[tuple[str, str], tuple[float, ...]] = {}
    contestants = [who for who in (OURS, JVM, EMPTY) if job.wants(who)]
    for number in range(job.rounds):
        for who in contestants if number % 2 == 0 else contestants[::-1]:
            for figure in run_section("first_batch", job, who):
                key = (figure.measure, who)
                samples[key] = samples.get(key, ()) + figure.samples
    delete_topic(job.bootstrap_servers, TOPIC)
    subject = f"{PARTITIONS} partitions"
    return [Figure("first batch", subject, measure, "ms", who, sample) for (measure, who), sample in samples.items()]


def _in_one_session(job: Job, who: str) -> list[Figure]:
    spark = open_session(job)
    spark.dataSource.register(ConstantDataSource)
    took_ms = [_first_batch_ms(_rows(spark, job, who)) for _ in range(1 + _WARM_STARTS)]
    spark.stop()
    say(f"  {who:>14}: {', '.join(f'{sample:,.0f}' for sample in took_ms)} ms")
    return [
        Figure("first batch", who, FRESH, "ms", who, (took_ms[0],)),
        Figure("first batch", who, WARM, "ms", who, tuple(took_ms[1:])),
    ]


def _rows(spark: SparkSession, job: Job, who: str) -> DataFrame:
    nothing = {"microBatches": "1", "tasks": str(PARTITIONS)}
    options = nothing if who == EMPTY else stream_options(job, who, TOPIC)
    return spark.readStream.format(FORMATS.get(who, NAME)).options(**options).load()


def _first_batch_ms(rows: DataFrame) -> float:
    with tempfile.TemporaryDirectory() as checkpoint:
        started_s = time.monotonic()
        query = rows.writeStream.format("noop").option("checkpointLocation", checkpoint).start()
        try:
            while not any("addBatch" in batch.durationMs for batch in query.recentProgress):
                if error := query.exception():
                    raise RuntimeError(str(error))
                if time.monotonic() - started_s > _GIVE_UP_S:
                    raise RuntimeError(f"no micro-batch in {_GIVE_UP_S:.0f} s")
                time.sleep(0.01)
            return (time.monotonic() - started_s) * 1000
        finally:
            query.stop()


if __name__ == "__main__":
    section_main(measure)
