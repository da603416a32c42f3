"""Memory of this source's Python processes while a stream reads a large backlog.

One availableNow query reads the job's first topic in one micro-batch, so that only the source limits its memory.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence

from benchmarks.job import OURS, Figure, Job, say, section_main
from benchmarks.processes import DRIVER_SIDE, WORKER, PeakMemory
from benchmarks.source import stream_options
from benchmarks.spark_session import FORMATS, open_session


def measure(job: Job, _: Sequence[str]) -> list[Figure]:
    spark = open_session(job)
    topic = job.topics[0]
    rows = spark.readStream.format(FORMATS[OURS]).options(**stream_options(job, OURS, topic.name)).load()
    with tempfile.TemporaryDirectory() as checkpoint, PeakMemory() as memory:
        query = rows.writeStream.format("noop").option("checkpointLocation", checkpoint).trigger(availableNow=True)
        query.start().awaitTermination()
    spark.stop()
    subject = f"{topic.records:,} x {topic.label}"
    figures = []
    for kind in (WORKER, DRIVER_SIDE):
        say(f"  {subject}: {kind} {memory.peak_mb(kind):.0f} MB at most")
        figures.append(Figure("memory", subject, f"largest Python {kind}", "MB", OURS, (memory.peak_mb(kind),)))
    return figures


if __name__ == "__main__":
    section_main(measure)
