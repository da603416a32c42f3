"""Memory of a Python worker that decodes Avro, against one that does not.

Each turn has a separate session, so that its workers are new: one availableNow query that reads all records of a
topic with values of ten fields in one micro-batch.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence

from benchmarks import decoding
from benchmarks.job import BINARY, OURS, Figure, Job, say, section_main
from benchmarks.processes import WORKER, PeakMemory
from benchmarks.source import stream_options
from benchmarks.spark_session import FORMATS, open_session
from protocol.testing.schema_registry import FakeSchemaRegistry


def measure(job: Job, _: Sequence[str]) -> list[Figure]:
    samples: dict[str, list[float]] = {OURS: [], BINARY: []}
    with FakeSchemaRegistry() as registry:
        decoding.fill(job.bootstrap_servers, registry.register(f"{decoding.TOPIC}-value", json.dumps(decoding.SCHEMA)))
        formats = {OURS: {"valueFormat": "confluent-avro", "schema.registry.url": registry.url}, BINARY: {}}
        for _round in range(job.rounds):
            for who, options in formats.items():
                samples[who].append(_peak_mb(job, options))
                say(f"  {who:>20}: {samples[who][-1]:.0f} MB at most")
    subject = f"{decoding.RECORDS:,} x 10 fields"
    return [
        Figure("decoding-memory", subject, "largest Python worker", "MB", who, tuple(sample))
        for who, sample in samples.items()
    ]


def _peak_mb(job: Job, options: Mapping[str, str]) -> float:
    spark = open_session(job)
    properties = {**stream_options(job, OURS, decoding.TOPIC), **options}
    rows = spark.readStream.format(FORMATS[OURS]).options(**properties).load()
    with tempfile.TemporaryDirectory() as checkpoint, PeakMemory() as memory:
        query = rows.writeStream.format("noop").option("checkpointLocation", checkpoint).trigger(availableNow=True)
        running = query.start()
        running.awaitTermination()
        assert running.lastProgress is not None
        assert running.lastProgress.numInputRows == decoding.RECORDS
    spark.stop()
    return memory.peak_mb(WORKER)


if __name__ == "__main__":
    section_main(measure)
