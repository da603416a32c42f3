"""Job in a separate process, for sessions that cannot share a process with the tests' session: copies a topic twice.

    python -m tests.jobs.copy_to_topic SESSION MASTER BOOTSTRAP SOURCE GROUP STREAMED BATCHED CHECKPOINT COUNTED

SESSION is `connect` (Spark Connect, with a server started for this job) or `classic`; MASTER is its Spark master. A
stream with the group copies the existing records of SOURCE to STREAMED (availableNow). A batch copies STREAMED to
BATCHED. A stream in update mode writes the number of rows of each partition to COUNTED. Prints one line of JSON.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import SparkSession

from spark_kafka_source import foreach_batch_writer, watch
from spark_kafka_source.lag import LagListener, lag_of_query
from tests.support.wait_until import comes_true

COLUMNS = ["key", "value", "headers", "partition", "timestamp"]


def main(
    session: str,
    master: str,
    bootstrap: str,
    source: str,
    group: str,
    streamed: str,
    batched: str,
    checkpoint: str,
    counted: str,
) -> None:
    builder = SparkSession.builder.appName("copy to topic")
    spark = (builder.remote(master) if session == "connect" else builder.master(master)).getOrCreate()
    listener = LagListener()
    spark.streams.addListener(listener)
    common = {"kafka.bootstrap.servers": bootstrap, "includeHeaders": "true"}
    query = (
        spark.readStream.format("pykafka-group")
        .options(**common, subscribe=source, maxOffsetsPerTrigger="4000")
        .option("kafka.group.id", group)
        .option("kafka.auto.offset.reset", "earliest")
        .load()
        .select(*COLUMNS)
        .writeStream.format("pykafka-group")
        .options(**common, topic=streamed)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    watched = watch(query)
    comes_true(lambda: len(listener.history) >= len(query.recentProgress), 30)
    rows = spark.read.format("pykafka-group").options(**common, subscribe=streamed).load().select(*COLUMNS)
    rows.write.format("pykafka-group").options(**common, topic=batched).mode("append").save()
    report = {
        "session": type(spark).__module__,
        "streamed": [progress.numInputRows for progress in query.recentProgress],
        "lag": [sample.lag.offsets_behind for sample in listener.history],
        "watched": [sample.lag and sample.lag.offsets_behind for sample in watched.samples],
        "last_lag": lag_of_query(query).offsets_behind,
        "executors": len({row.pid for row in rows.mapInArrow(python_daemon, "pid long").collect()}),
    }
    count(spark, common, source, counted, f"{checkpoint}-counted")
    print(json.dumps(report))
    spark.stop()


def count(spark: SparkSession, common: dict[str, str], source: str, topic: str, checkpoint: str) -> None:
    rows = (
        spark.readStream.format("pykafka-group").options(**common, subscribe=source, startingOffsets="earliest").load()
    )
    query = (
        rows.groupBy("partition")
        .count()
        .selectExpr("cast(partition as string) as key", "cast(count as string) as value")
        .writeStream.outputMode("update")
        .foreachBatch(foreach_batch_writer({**common, "topic": topic}))
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def python_daemon(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Return the process id of the daemon that forked this Python worker; each executor has one daemon."""
    for _ in batches:
        yield pa.record_batch({"pid": [os.getppid()]})


if __name__ == "__main__":
    main(*sys.argv[1:])
