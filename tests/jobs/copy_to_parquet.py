"""Query in a separate process, for tests that kill it: reads a topic with a group and writes it to Parquet.

    python -m tests.jobs.copy_to_parquet BOOTSTRAP TOPIC GROUP CHECKPOINT OUTPUT MAX_OFFSETS|all

With `all` it reads the existing records and ends (availableNow). Otherwise it runs until it is killed, in micro-batches
of MAX_OFFSETS.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery


def main(*arguments: str) -> None:
    query = start(SparkSession.builder.appName("copy").getOrCreate(), *arguments)
    print("started", flush=True)
    query.awaitTermination()


def start(
    spark: SparkSession, bootstrap: str, topic: str, group: str, checkpoint: str, output: str, max_offsets: str
) -> StreamingQuery:
    """Start the query of this job in a given session."""
    reader = (
        spark.readStream.format("pykafka-group")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("kafka.group.id", group)
        .option("kafka.auto.offset.reset", "earliest")
    )
    if max_offsets != "all":
        reader = reader.option("maxOffsetsPerTrigger", max_offsets)
    rows = reader.load().select("partition", "offset", "value")
    writer = rows.writeStream.format("parquet").option("checkpointLocation", checkpoint).option("path", output)
    if max_offsets == "all":
        writer = writer.trigger(availableNow=True)
    return writer.start()


if __name__ == "__main__":
    main(*sys.argv[1:])
