"""Effects of settings: this source and this sink with one setting changed at a time, in turn in one session.

Ratios in the table are default to changed setting: below 1, the setting is faster. The number of rows per Arrow batch
cannot be configured; a Python source that contacts no broker shows its effect. Source of docs/tuning.md.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from pyspark.sql import DataFrame, SparkSession

from benchmarks.constant_source import ConstantDataSource
from benchmarks.events import rows_of
from benchmarks.job import CONSTANT, OURS, Figure, Job, say, section_main
from benchmarks.sink import cheap_rows, written
from benchmarks.spark_session import open_session
from benchmarks.streams import STEADY, run_to_the_end

_READ = (
    {},
    {"columns": "value"},
    {"columns": "key,value"},
    {"minPartitions": "12"},
    {"maxInputPartitions": "2"},
    {"kafka.max.partition.fetch.bytes": "1048576"},
)
_ARROW_ROWS = (2_000, 8_000, 32_000)
_WRITE = (
    {},
    {"kafka.linger.ms": "20"},
    {"kafka.batch.size": "16384"},
    {"kafka.batch.size": "131072"},
    {"kafka.compression.type": "lz4"},
)

Sample = tuple[float, float]
"""Records per second, nanoseconds of CPU per record."""


def measure(job: Job, _: Sequence[str]) -> list[Figure]:
    spark = open_session(job)
    spark.dataSource.register(ConstantDataSource)
    runs = _runs(spark, job)
    samples: dict[tuple[str, str], list[Sample]] = defaultdict(list)
    # The first round is the warm-up.
    for number in range(job.rounds + 1):
        for key, run in list(runs.items())[:: 1 if number % 2 else -1]:
            rate, cpu_ns = run()
            warm_up = "" if number else " (warm-up)"
            say(f"  {', '.join(key)}: {rate:,.0f} records/s, {cpu_ns:,.0f} ns of CPU a record{warm_up}")
            if number:
                samples[key].append((rate, cpu_ns))
    spark.stop()
    figures = []
    for (measure_name, setting), sample in samples.items():
        rates, costs = zip(*sample, strict=True)
        figures.append(Figure("tuning", measure_name, "records", "records/s", setting, rates))
        figures.append(Figure("tuning", measure_name, "CPU time", "ns/record", setting, costs))
    return figures


def _runs(spark: SparkSession, job: Job) -> dict[tuple[str, str], Callable[[], Sample]]:
    runs: dict[tuple[str, str], Callable[[], Sample]] = {}
    (topic,) = job.topics
    for options in _READ:
        tried = replace(job, options={**job.options, **options})
        runs["source", _name(options)] = partial(_read, partial(rows_of, spark, tried, OURS, topic))
    for rows in _ARROW_ROWS:
        tried = replace(job, options={"rows": str(rows)})
        name = f"{CONSTANT}, {rows:,}"
        runs["rows of an Arrow batch", name] = partial(_read, partial(rows_of, spark, tried, CONSTANT, topic))
    written_rows = cheap_rows(spark, job)
    for options in _WRITE:
        runs["sink", _name(options)] = partial(written, written_rows, job, OURS, options)
    return runs


def _read(rows: Callable[[], DataFrame]) -> Sample:
    took = run_to_the_end(rows())
    return took.rates[STEADY], took.cpu_ns


def _name(options: dict[str, str]) -> str:
    return ", ".join(f"{name}={text}" for name, text in options.items()) or OURS


if __name__ == "__main__":
    section_main(measure)
