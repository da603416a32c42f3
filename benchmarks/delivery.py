"""Writing micro-batches: this sink with each `deliveryGuarantee`, and Spark's JVM connector, in turn.

A streaming query writes 100,000 rows per batch, which Spark generates (`rate-micro-batch`), in four tasks to six
partitions. The time is that of the whole batch in Spark's progress, with exactly-once including its decision and
commits. A Python sink that discards the rows shows the maximum.
"""

from __future__ import annotations

import statistics
import tempfile
import time
import uuid
from collections import defaultdict
from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from benchmarks.discarding_sink import NAME as DISCARDING
from benchmarks.discarding_sink import DiscardingDataSource
from benchmarks.job import JVM, OURS, Figure, Job, say, section_main
from benchmarks.processes import cpu_s
from benchmarks.sink import PARTITIONS
from benchmarks.spark_session import FORMATS, open_session
from benchmarks.topics import create_topic, delete_topic

ROWS, TASKS = 100_000, 4
_WARM_UP = 3
_TIMEOUT_S = 600
GUARANTEES: dict[str, dict[str, str]] = {
    "none": {"deliveryGuarantee": "none"},
    "at-least-once": {},
    "exactly-once": {"deliveryGuarantee": "exactly-once", "transactionalIdPrefix": "bench"},
}


def measure(job: Job, _: Sequence[str]) -> list[Figure]:
    spark = open_session(job)
    spark.dataSource.register(DiscardingDataSource)
    ours = {f"{OURS}, {name}": options for name, options in GUARANTEES.items()}
    everybody: dict[str, dict[str, str]] = {**ours, JVM: {}, DISCARDING: {}}
    samples: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for number in range(job.rounds + 1):
        # The first round warms up the session and is not measured.
        for who in filter(job.wants, everybody):
            rate, cpu_ns = _written(spark, job, who.partition(",")[0], everybody[who])
            summary = f"{rate:,.0f} rows/s, {cpu_ns:,.0f} ns of CPU a row"
            say(f"  {who:>28}: {summary}{'' if number else ' (warm-up)'}")
            if number:
                samples["stream", "rows/s", who].append(rate)
                samples["stream, CPU time", "ns/row", who].append(cpu_ns)
    spark.stop()
    subject = f"{ROWS:,} x {job.sink_value_bytes} B a batch"
    return [
        Figure("delivery", subject, measure, unit, who, tuple(sample))
        for (measure, unit, who), sample in samples.items()
    ]


def _written(spark: SparkSession, job: Job, who: str, options: dict[str, str]) -> tuple[float, float]:
    """Return rows per second after the first few batches, and nanoseconds of CPU per row in all Spark processes."""
    topic = f"bench-delivery-{uuid.uuid4().hex[:8]}"
    create_topic(job.bootstrap_servers, topic, PARTITIONS)
    given = {} if who == DISCARDING else {"kafka.bootstrap.servers": job.bootstrap_servers, "topic": topic, **options}
    with tempfile.TemporaryDirectory() as checkpoint:
        writer = _rows(spark, job).writeStream.format(FORMATS.get(who, who)).options(**given)
        query = writer.option("checkpointLocation", checkpoint).start()
        _wait_for_batches(query, _WARM_UP)
        before, used_s = len(_took_ms(query)), cpu_s()
        _wait_for_batches(query, before + job.micro_batches)
        took_ms, used_s = _took_ms(query)[before:], cpu_s() - used_s
        query.stop()
    delete_topic(job.bootstrap_servers, topic)
    return ROWS / statistics.median(took_ms) * 1000, used_s / (ROWS * len(took_ms)) * 1e9


def _took_ms(query: StreamingQuery) -> list[float]:
    return [progress.durationMs["triggerExecution"] for progress in query.recentProgress if progress.numInputRows]


def _wait_for_batches(query: StreamingQuery, count: int) -> None:
    deadline_s = time.monotonic() + _TIMEOUT_S
    while len(_took_ms(query)) < count:
        if (error := query.exception()) is not None:
            raise error
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"the query wrote {len(_took_ms(query))} batches in {_TIMEOUT_S} s")
        time.sleep(0.05)


def _rows(spark: SparkSession, job: Job) -> DataFrame:
    rows = (
        spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS).option("numPartitions", TASKS).load()
    )
    value = f"cast(repeat('x', {job.sink_value_bytes}) as binary) as value"
    return rows.selectExpr("cast(cast(value as string) as binary) as key", value)


if __name__ == "__main__":
    section_main(measure)
