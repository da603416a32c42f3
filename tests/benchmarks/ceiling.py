"""How near this source and this sink come to what Spark allows any of them in Python, over each kind of socket.

The source beside one that hands over a constant Arrow batch again and again, and beside one that fetches all records
and hands over constant rows all the same. The sink beside one that throws its rows away; the sinks' rows cost Spark
next to nothing to make. Spark talks to its Python workers over TCP by default, and over Unix sockets with
`spark.python.unix.domain.socket.enabled`. A fresh session for each.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from tests.benchmarks.constant_source import ConstantDataSource
from tests.benchmarks.discarding_sink import NAME as DISCARDING
from tests.benchmarks.discarding_sink import DiscardingDataSource
from tests.benchmarks.events import rows_of
from tests.benchmarks.job import CONSTANT, OURS, UNDECODED, Figure, Job, run_section, say, section_main
from tests.benchmarks.sink import cheap_rows, discarded, written
from tests.benchmarks.spark_session import open_session
from tests.benchmarks.streams import STEADY, run_to_the_end
from tests.benchmarks.undecoded_source import UndecodedDataSource

SOCKETS = {"Unix sockets": "true", "TCP": "false"}
_UNIX = "spark.python.unix.domain.socket.enabled"
SOURCE, SINK = "source", "sink"


def measure(job: Job, arguments: Sequence[str]) -> list[Figure]:
    if arguments:
        return _over(job, arguments[0])
    jobs = {name: replace(job, spark_conf=job.spark_conf | {_UNIX: enabled}) for name, enabled in SOCKETS.items()}
    return [figure for name, each in jobs.items() for figure in run_section("ceiling", each, name)]


def _over(job: Job, socket: str) -> list[Figure]:
    spark = open_session(job)
    spark.dataSource.register(ConstantDataSource)
    spark.dataSource.register(DiscardingDataSource)
    spark.dataSource.register(UndecodedDataSource)
    rows = cheap_rows(spark, job)
    samples: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    # The first round is the warm-up.
    for number in range(job.rounds + 1):
        for who in (OURS, UNDECODED, CONSTANT)[:: 1 if number % 2 else -1]:
            took = run_to_the_end(rows_of(spark, job, who, job.topics[0]))
            samples[SOURCE, who].append((took.rates[STEADY], took.cpu_ns))
        for who in (OURS, DISCARDING) if number % 2 else (DISCARDING, OURS):
            samples[SINK, who].append(discarded(rows, job) if who == DISCARDING else written(rows, job, who, {}))
        for (what, who), each in samples.items():
            rate, cpu_ns = each[-1]
            warm_up = "" if number else " (warm-up)"
            say(f"  {socket}, {what:>6} {who:>14}: {rate:,.0f} records/s, {cpu_ns:,.0f} ns of CPU a record{warm_up}")
    spark.stop()
    figures = []
    for (what, who), each in samples.items():
        rates, costs = zip(*each[1:], strict=True)
        figures.append(Figure(f"ceiling, {what}", socket, "steady state", "records/s", who, rates))
        figures.append(Figure(f"ceiling, {what}", socket, "CPU time", "ns/record", who, costs))
    return figures


if __name__ == "__main__":
    section_main(measure)
