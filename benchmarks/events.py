"""Streams of JSON events of varying length from three brokers: this source, and Spark's JVM connector, in turn.

This source reads all columns, and with `columns=value`; all share one session. A Python source without broker and rows
is the floor: the cost of a query over any such source. `ceiling` measures the maximum.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession

from benchmarks.constant_source import NAME as CONSTANT_SOURCE
from benchmarks.constant_source import ConstantDataSource, constant_options
from benchmarks.job import CONSTANT, EMPTY, JVM, OURS, Figure, Job, Topic, say, section_main
from benchmarks.source import stream_options
from benchmarks.spark_session import FORMATS, open_session
from benchmarks.streams import UNITS, WHOLE, run_to_the_end

ALL, VALUE = "all columns", "columns=value"
_CONTESTANTS = ((OURS, ALL), (JVM, ALL), (OURS, VALUE), (EMPTY, ALL))

Samples = dict[tuple[str, str, str], list[float]]


def measure(job: Job, _: Sequence[str]) -> list[Figure]:
    spark = open_session(job)
    spark.dataSource.register(ConstantDataSource)
    figures = []
    for topic in job.topics:
        samples: Samples = defaultdict(list)
        for number in job.round_numbers(fresh=topic is job.topics[0]):
            _round(spark, job, topic, number, samples)
        figures += [
            Figure("events", topic.label, f"{columns}, {measure}", UNITS[measure], who, tuple(rates), paired=True)
            for (columns, measure, who), rates in _compared(samples).items()
        ]
    spark.stop()
    return figures


def _round(spark: SparkSession, job: Job, topic: Topic, number: int, samples: Samples) -> None:
    """Run every contestant once, in reverse order each time: changes of the machine affect all."""
    contestants = [contestant for contestant in _CONTESTANTS if job.wants(contestant[0])]
    for who, columns in contestants if number % 2 else contestants[::-1]:
        took = run_to_the_end(rows_of(spark, job, who, topic, columns))
        if took.records != (0 if who == EMPTY else topic.records):
            raise RuntimeError(f"{who} read {took.records} records of {topic.name}, which has {topic.records}")
        rates = {WHOLE: topic.records / took.whole_s} if who == EMPTY else took.rates
        summary = ", ".join(f"{measure} {rate:,.0f}" for measure, rate in rates.items())
        say(f"  {topic.label} {columns:>13} {who:>14}: {summary}{'' if number > 0 else ' (warm-up)'}")
        for measure, rate in rates.items() if number > 0 else ():
            samples[columns, measure, who].append(rate)


def rows_of(spark: SparkSession, job: Job, who: str, topic: Topic, columns: str = ALL) -> DataFrame:
    """Read as one contestant, in `job.micro_batches` micro-batches."""
    if who in (CONSTANT, EMPTY):
        options = job.options | constant_options(topic, job.micro_batches, 0 if who == EMPTY else topic.records)
    else:
        per_trigger = -(-topic.records // job.micro_batches)
        options = stream_options(job, who, topic.name) | {"maxOffsetsPerTrigger": str(per_trigger)}
    if columns == VALUE:
        options["columns"] = "value"
    return spark.readStream.format(FORMATS.get(who, CONSTANT_SOURCE)).options(**options).load()


def _compared(samples: Samples) -> Samples:
    """Compare also with `columns=value` the contestants that always read all columns."""
    shared = {(VALUE, measure, who): sample for (_, measure, who), sample in samples.items() if who in (JVM, EMPTY)}
    return {**samples, **shared}


if __name__ == "__main__":
    section_main(measure)
