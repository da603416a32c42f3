"""A query in a process of its own that is a member of its group, for tests that kill it in the middle of a batch.

    python -m tests.jobs.be_member BOOTSTRAP TOPIC GROUP PROTOCOL CHECKPOINT

Of each batch that has rows it prints the number and the rows (partition, offset) as JSON, and completes it when it is
given a line.
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
