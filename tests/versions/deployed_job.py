"""Copy a topic with a stream, in a deployment of Spark. It runs in an environment that has the wheel and one Spark.

    DEPLOYED_JOB='{"remote": "sc://127.0.0.1:15002", "reader": {…}, "writer": {…}}' python deployed_job.py

`spark-pipelines` imports this file as the definitions of a pipeline with the same copy.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

JOB: dict[str, Any] = json.loads(os.environ["DEPLOYED_JOB"])


def main() -> None:
    """Run the stream and assert that it uses the expected number of executors, if that is given."""
    builder = SparkSession.builder
    spark = (builder.remote(JOB["remote"]) if "remote" in JOB else builder.master(JOB["master"])).getOrCreate()
    if "executors" in JOB:
        daemons = spark.range(JOB["executors"], numPartitions=JOB["executors"]).mapInArrow(python_daemon, "pid long")
        assert len({row.pid for row in daemons.collect()}) == JOB["executors"]
    writer = rows(spark).writeStream.format("pykafka-group").options(**JOB["writer"])
    writer.trigger(availableNow=True).start().awaitTermination()
    spark.stop()


def define_pipeline() -> None:
    """Define a sink, and a flow to it."""
    from pyspark import pipelines

    pipelines.create_sink("target", "pykafka-group", JOB["writer"])
    pipelines.append_flow(target="target", name="copy")(lambda: rows(SparkSession.active()))


def rows(spark: SparkSession) -> DataFrame:
    """Return the stream of the source topic."""
    return spark.readStream.format("pykafka-group").options(**JOB["reader"]).load().select("value")


def python_daemon(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Return the process id of the daemon that forked this Python worker; each executor has one daemon."""
    for _ in batches:
        yield pa.record_batch({"pid": [os.getppid()]})


if __name__ == "__main__":
    main()
else:
    define_pipeline()
