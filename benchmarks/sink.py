"""Writing: this sink and Spark's JVM connector, the same rows to fresh topics, acks=all, in turn in one session.

Both with their defaults and with large batches. Spark generates the rows (`spark.range`), and all figures include that
cost. A Python sink that discards the rows shows the maximum.
"""

from __future__ import annotations

import time
import uuid
from collections import defaultdict
from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, concat, lit, lpad, rpad

from benchmarks.discarding_sink import NAME as DISCARDING
from benchmarks.discarding_sink import DiscardingDataSource
from benchmarks.job import Figure, Job, say, section_main
from benchmarks.processes import cpu_s
from benchmarks.spark_session import FORMATS, contestants, open_session
from benchmarks.topics import create_topic, delete_topic, records_held

PARTITIONS = 6
SETTINGS = {
    "default options": {},
    "default, lz4": {"kafka.compression.type": "lz4"},
    "tuned": {"kafka.batch.size": "524288", "kafka.linger.ms": "20", "kafka.buffer.memory": "67108864"},
    "tuned, lz4": {"kafka.batch.size": "524288", "kafka.linger.ms": "20", "kafka.compression.type": "lz4"},
}


def measure(job: Job, _: Sequence[str]) -> list[Figure]:
    spark = open_session(job)
    spark.dataSource.register(DiscardingDataSource)
    rows = _rows(spark, job)
    subject = f"{job.sink_records:,} x {job.sink_value_bytes} B"
    samples: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for setting, options in SETTINGS.items():
        for number in job.round_numbers(fresh=not samples):
            for who in [*contestants(job, number), DISCARDING]:
                rate, cpu_ns = discarded(rows, job) if who == DISCARDING else written(rows, job, who, options)
                summary = f"{setting}, {rate:,.0f} records/s, {cpu_ns:,.0f} ns of CPU a record"
                say(f"  {subject:>12} {who:>14}: {summary}{'' if number > 0 else ' (warm-up)'}")
                if number > 0:
                    samples[setting, "records/s", who].append(rate)
                    samples[f"{setting}, CPU time", "ns/record", who].append(cpu_ns)
    spark.stop()
    return [
        Figure("sink", subject, measure, unit, who, tuple(rates), paired=True)
        for (measure, unit, who), rates in samples.items()
    ]


def _rows(spark: SparkSession, job: Job) -> DataFrame:
    """Return `key` of 8 bytes and `value` of the requested size, in four tasks."""
    value = rpad(concat(lit('{"order":'), col("id"), lit(',"item":"')), job.sink_value_bytes, "abcdefgh")
    key = lpad(col("id").cast("string"), 8, "0")
    rows = spark.range(0, job.sink_records, 1, 4)
    return rows.select(key.cast("binary").alias("key"), value.cast("binary").alias("value"))


def cheap_rows(spark: SparkSession, job: Job) -> DataFrame:
    """Return short keys and a constant `value`, which Spark generates at almost no cost."""
    value = f"cast(repeat('x', {job.sink_value_bytes}) as binary) as value"
    return spark.range(0, job.sink_records, 1, 4).selectExpr("cast(cast(id as string) as binary) as key", value)


def written(rows: DataFrame, job: Job, who: str, options: dict[str, str]) -> tuple[float, float]:
    """Return records per second, and nanoseconds of CPU per record in all Spark processes."""
    topic = f"bench-sink-{uuid.uuid4().hex[:8]}"
    create_topic(job.bootstrap_servers, topic, PARTITIONS)
    where = {"kafka.bootstrap.servers": job.bootstrap_servers, "topic": topic, "kafka.acks": "all"} | job.secured
    writer = rows.write.format(FORMATS[who]).options(**where, **options).mode("append")
    started_s, used_s = time.perf_counter(), cpu_s()
    writer.save()
    took_s, used_s = time.perf_counter() - started_s, cpu_s() - used_s
    pending = records_held(job.bootstrap_servers, topic)
    delete_topic(job.bootstrap_servers, topic)
    if pending != job.sink_records:
        raise RuntimeError(f"{who} wrote {pending} records of {job.sink_records}")
    return job.sink_records / took_s, used_s / job.sink_records * 1e9


def discarded(rows: DataFrame, job: Job) -> tuple[float, float]:
    """Measure the same for a Python sink that does nothing."""
    started_s, used_s = time.perf_counter(), cpu_s()
    rows.write.format(DISCARDING).mode("append").save()
    took_s, used_s = time.perf_counter() - started_s, cpu_s() - used_s
    return job.sink_records / took_s, used_s / job.sink_records * 1e9


if __name__ == "__main__":
    section_main(measure)
