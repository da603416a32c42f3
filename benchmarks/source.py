"""Reading: this source and Spark's JVM connector, from the same topics into `noop`, in turn in one session.

Batch: one `spark.read` of the whole topic. Stream: a query of several micro-batches, see `streams`. The session is warm
before the first measured round.
"""

from __future__ import annotations

import time
import uuid
from collections import defaultdict
from collections.abc import Sequence

from pyspark.sql import SparkSession

from benchmarks import streams
from benchmarks.job import JVM, OURS, Figure, Job, Topic, say, section_main
from benchmarks.spark_session import FORMATS, contestants, open_session
from benchmarks.streams import run_to_the_end

BATCH = "batch read"
UNITS = {BATCH: "records/s", **streams.UNITS}


def measure(job: Job, _: Sequence[str]) -> list[Figure]:
    spark = open_session(job)
    samples: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for topic in job.topics:
        for number in job.round_numbers(fresh=topic is job.topics[0]):
            for who in contestants(job, number):
                rates = _stream(spark, job, who, topic) | {BATCH: _batch(spark, job, who, topic)}
                summary = ", ".join(f"{measure} {rate:,.0f}" for measure, rate in rates.items())
                say(f"  {topic.label:>12} {who:>14}: {summary}{'' if number > 0 else ' (warm-up)'}")
                for what, rate in rates.items() if number > 0 else ():
                    samples[topic.label, what, who].append(rate)
    spark.stop()
    return [
        Figure("source", label, measure, UNITS[measure], who, tuple(rates), paired=True)
        for (label, measure, who), rates in samples.items()
    ]


def source_options(job: Job, who: str, topic: str) -> dict[str, str]:
    """Return options to read everything from the beginning, with the defaults of both otherwise."""
    options = {"kafka.bootstrap.servers": job.bootstrap_servers, "subscribe": topic, "startingOffsets": "earliest"}
    return options | job.secured | (job.options if who == OURS else {})


def stream_options(job: Job, who: str, topic: str) -> dict[str, str]:
    """Return the same options; this source also commits for a group, as in production."""
    group = {"kafka.group.id": f"bench-{uuid.uuid4().hex[:8]}"} if who != JVM else {}
    return source_options(job, who, topic) | group


def _batch(spark: SparkSession, job: Job, who: str, topic: Topic) -> float:
    options = source_options(job, who, topic.name) | {"endingOffsets": "latest"}
    started_s = time.perf_counter()
    spark.read.format(FORMATS[who]).options(**options).load().write.format("noop").mode("overwrite").save()
    return topic.records / (time.perf_counter() - started_s)


def _stream(spark: SparkSession, job: Job, who: str, topic: Topic) -> dict[str, float]:
    per_trigger = -(-topic.records // job.micro_batches)
    options = stream_options(job, who, topic.name) | {"maxOffsetsPerTrigger": str(per_trigger)}
    took = run_to_the_end(spark.readStream.format(FORMATS[who]).options(**options).load())
    if took.records != topic.records:
        raise RuntimeError(f"{who} read {took.records} records of {topic.name}, which has {topic.records}")
    return took.rates


if __name__ == "__main__":
    section_main(measure)
