"""Query in a separate process that is a group member, for tests that kill it in the middle of a micro-batch.

    python -m tests.jobs.member_query BOOTSTRAP TOPIC GROUP PROTOCOL CHECKPOINT

For each micro-batch with rows it prints the batch id and the rows (partition, offset) as JSON, and completes the batch
when it reads a line from standard input.
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import DataFrame, SparkSession


def main(bootstrap: str, topic: str, group: str, protocol: str, checkpoint: str) -> None:
    def keep(batch: DataFrame, batch_id: int) -> None:
        if rows := [(row.partition, row.offset) for row in batch.select("partition", "offset").collect()]:
            print(json.dumps([batch_id, rows]), flush=True)
            sys.stdin.readline()

    reader = (
        SparkSession.builder.appName("member")
        .getOrCreate()
        .readStream.format("pykafka-group")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("kafka.group.id", group)
        .option("kafka.group.protocol", protocol)
        .option("kafka.auto.offset.reset", "earliest")
    )
    if protocol == "classic":
        reader = reader.option("kafka.session.timeout.ms", "6000")
    writer = reader.load().writeStream.foreachBatch(keep).option("checkpointLocation", checkpoint)
    writer.trigger(processingTime="100 milliseconds").start().awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
