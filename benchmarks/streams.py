"""Run one streaming query into `noop` until it ends (availableNow), and measure it.

Whole query: from `start()` to its end. Steady state: without its first micro-batch. CPU time is that of the whole query
in all Spark processes, JVM and Python, without the brokers, so it is meaningful on a busy machine, too. The share of
Python workers is measured separately.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass

from pyspark.sql import DataFrame

from benchmarks.processes import cpu_s, worker_cpu_s

WHOLE, STEADY, CPU = "stream, whole query", "stream, steady state", "stream, CPU time"
UNITS = {WHOLE: "records/s", STEADY: "records/s", CPU: "ns/record"}


@dataclass(frozen=True)
class Took:
    """Measurements of a query: `records` read, `later_records` of them after the first micro-batch; seconds."""

    records: int
    whole_s: float
    cpu_s: float
    worker_cpu_s: float
    later_records: int
    later_s: float

    @property
    def cpu_ns(self) -> float:
        """CPU time per record."""
        return self.cpu_s / max(1, self.records) * 1e9

    @property
    def worker_cpu_ns(self) -> float:
        """CPU time of Python workers per record."""
        return self.worker_cpu_s / max(1, self.records) * 1e9

    @property
    def rates(self) -> dict[str, float]:
        steady = self.later_records / self.later_s if self.later_records else 0.0
        return {WHOLE: self.records / self.whole_s, STEADY: steady, CPU: self.cpu_ns}


def run_to_the_end(rows: DataFrame) -> Took:
    with tempfile.TemporaryDirectory() as checkpoint:
        started_s, used_s, worker_used_s = time.perf_counter(), cpu_s(), worker_cpu_s()
        writer = rows.writeStream.format("noop").option("checkpointLocation", checkpoint)
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        whole_s, used_s = time.perf_counter() - started_s, cpu_s() - used_s
        worker_used_s = worker_cpu_s() - worker_used_s
        progress = [batch for batch in query.recentProgress if batch.numInputRows]
    later = progress[1:]
    return Took(
        records=sum(batch.numInputRows for batch in progress),
        whole_s=whole_s,
        cpu_s=used_s,
        worker_cpu_s=worker_used_s,
        later_records=sum(batch.numInputRows for batch in later),
        later_s=sum(batch.durationMs["triggerExecution"] for batch in later) / 1000,
    )
