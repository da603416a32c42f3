"""A Spark session (conf/spark-defaults.conf) that has both connectors: `format("pykafka-group")` and `format("kafka")`.

Called by the sections that run Spark. Both connectors share the session, its JVM and its memory.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping

from pyspark.sql import DataFrame, SparkSession

from benchmarks.job import JVM, OURS, UNDECODED, Figure, Job, say
from spark_kafka_source.source import register
from tests.support.jvm_connector import jvm_connector_jars, spark_avro_jars

FORMATS = {OURS: "pykafka-group", JVM: "kafka", UNDECODED: "undecoded"}


def open_session(job: Job) -> SparkSession:
    builder = (
        SparkSession.builder.appName("benchmarks")
        .master("local[2]")
        .config("spark.jars", ",".join(map(str, [*jvm_connector_jars(), *spark_avro_jars()])))
        .config("spark.driver.memory", "2g")
        .config("spark.sql.streaming.numRecentProgressUpdates", "1000")
        # A query that is stopped during a batch logs an error; real errors reach Python.
        .config("spark.log.level", "OFF")
    )
    for key, value in job.spark_conf.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    register(spark)
    return spark


def contestants(job: Job, round_number: int) -> list[str]:
    """Return both connectors, in reverse order in every other round, so that changes of the machine affect both."""
    names = [name for name in (OURS, JVM) if job.wants(name)]
    return names if round_number % 2 == 0 else names[::-1]


def read_in_turn(job: Job, subject: str, frames: Mapping[str, Callable[[], DataFrame]], records: int) -> list[Figure]:
    """Read the topic of each contestant into `noop`, in turn, after a warm-up round; return the rates in records/s."""
    samples: dict[str, list[float]] = defaultdict(list)
    for number in range(job.rounds + 1):
        for who in list(frames) if number % 2 else list(frames)[::-1]:
            if not job.wants(who):
                continue
            started_s = time.perf_counter()
            frames[who]().write.format("noop").mode("overwrite").save()
            rate = records / (time.perf_counter() - started_s)
            say(f"  {subject} {who:>32}: {rate:,.0f} records/s{'' if number else ' (warm-up)'}")
            if number:
                samples[who].append(rate)
    return [
        Figure("decoding", subject, "batch read", "records/s", who, tuple(sample)) for who, sample in samples.items()
    ]
