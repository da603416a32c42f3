"""Query in a separate process that copies a topic exactly once, for tests that kill it at any time.

    python -m tests.jobs.copy_exactly_once BOOTSTRAP SOURCE TARGET CHECKPOINT [OPTION=VALUE …]

Options apply to the sink, except those in `_OF_SOURCE`. The option `shuffled=N` distributes rows randomly over N tasks,
differently in every attempt. The query ends when it has copied all records that existed at its start (availableNow).
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming import StreamingQuery

_OF_SOURCE = ("maxOffsetsPerTrigger", "kafka.group.id")


def main(bootstrap: str, source: str, target: str, checkpoint: str, *options: str) -> None:
    properties = dict(option.split("=", 1) for option in options)
    spark = SparkSession.builder.appName("copy exactly once").getOrCreate()
    start(spark, bootstrap, source, target, checkpoint, properties).awaitTermination()


def start(
    spark: SparkSession, bootstrap: str, source: str, target: str, checkpoint: str, options: dict[str, str]
) -> StreamingQuery:
    """Start the query of this job in a given session. Rows keep their partitions, unless shuffled."""
    sink = {"deliveryGuarantee": "exactly-once", "transactionalIdPrefix": "copy", **options}
    reader = spark.readStream.format("pykafka-group").options(
        **{"kafka.bootstrap.servers": bootstrap, "subscribe": source, "startingOffsets": "earliest"},
        **{name: sink.pop(name) for name in _OF_SOURCE if name in sink},
    )
    rows = reader.load().select("value", "partition")
    if shuffled := int(sink.pop("shuffled", 0)):
        rows = rows.repartition(shuffled, sf.rand()).select("value")
    writer = rows.writeStream.format("pykafka-group").options(**sink, topic=target)
    writer = writer.option("kafka.bootstrap.servers", bootstrap).option("checkpointLocation", checkpoint)
    return writer.trigger(availableNow=True).start()


if __name__ == "__main__":
    main(*sys.argv[1:])
