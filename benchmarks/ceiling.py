"""Compare this source and sink with the maximum that Spark allows in Python, over each kind of socket.

The source is compared with one that returns a constant Arrow batch repeatedly, and with one that fetches all records
but returns constant rows. The sink is compared with one that discards its rows; Spark generates these rows at almost
no cost. Spark talks to its Python workers over TCP by default, and over Unix sockets with
`spark.python.unix.domain.socket.enabled`. Each variant has a fresh session. The CPU time of Python workers is shown
separately; the rest is Spark's JVM, which takes the same for rows of any source.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from benchmarks.constant_source import ConstantDataSource
from benchmarks.discarding_sink import NAME as DISCARDING
from benchmarks.discarding_sink import DiscardingDataSource
from benchmarks.events import rows_of
from benchmarks.job import CONSTANT, OURS, UNDECODED, Figure, Job, run_section, say, section_main
from benchmarks.sink import cheap_rows, discarded, written
from benchmarks.spark_session import open_session
from benchmarks.streams import STEADY, run_to_the_end
from benchmarks.undecoded_source import UndecodedDataSource

SOCKETS = {"Unix sockets": "true", "TCP": "false"}
_UNIX = "spark.python.unix.domain.socket.enabled"
SOURCE, SINK = "source", "sink"
_RATE, _CPU, _WORKERS = "steady state", "CPU time", "CPU time of the workers"
_UNITS = {_RATE: "records/s", _CPU: "ns/record", _WORKERS: "ns/record"}


def measure(job: Job, arguments: Sequence[str]) -> list[Figure]:
    if arguments:
        return _over(job, arguments[0])
    jobs = {name: replace(job, spark_conf=job.spark_conf | {_UNIX: enabled}) for name, enabled in SOCKETS.items()}
    return [figure for name, job in jobs.items() for figure in run_section("ceiling", job, name)]


def _over(job: Job, socket: str) -> list[Figure]:
    spark = open_session(job)
    spark.dataSource.register(ConstantDataSource)
    spark.dataSource.register(DiscardingDataSource)
    spark.dataSource.register(UndecodedDataSource)
    rows = cheap_rows(spark, job)
    samples: dict[tuple[str, str], list[dict[str, float]]] = defaultdict(list)
    # The first round is the warm-up.
    for number in range(job.rounds + 1):
        for who in (OURS, UNDECODED, CONSTANT)[:: 1 if number % 2 else -1]:
            took = run_to_the_end(rows_of(spark, job, who, job.topics[0]))
            samples[SOURCE, who].append({_RATE: took.rates[STEADY], _CPU: took.cpu_ns, _WORKERS: took.worker_cpu_ns})
        for who in (OURS, DISCARDING) if number % 2 else (DISCARDING, OURS):
            rate, cpu_ns = discarded(rows, job) if who == DISCARDING else written(rows, job, who, {})
            samples[SINK, who].append({_RATE: rate, _CPU: cpu_ns})
        for (subject, who), sample in samples.items():
            summary = ", ".join(f"{measure} {result:,.0f} {_UNITS[measure]}" for measure, result in sample[-1].items())
            say(f"  {socket}, {subject:>6} {who:>14}: {summary}{'' if number else ' (warm-up)'}")
    spark.stop()
    return [
        Figure(
            f"ceiling, {subject}", socket, measure, _UNITS[measure], who, tuple(first[measure] for first in sample[1:])
        )
        for (subject, who), sample in samples.items()
        for measure in sample[0]
    ]


if __name__ == "__main__":
    section_main(measure)
