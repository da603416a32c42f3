"""Copy a topic to another one, each record once, also if processes are killed on the way.

    python examples/exactly_once.py BROKERS SOURCE TARGET GROUP FOLDER

Readers of TARGET set `isolation.level=read_committed`.
"""

from __future__ import annotations

import signal
import sys
import threading

from pyspark.sql import SparkSession


def main(brokers: str, source: str, target: str, group: str, folder: str) -> None:
    """Run the job."""
    spark = SparkSession.builder.appName(group).getOrCreate()
    stopped = threading.Event()
    signal.signal(signal.SIGINT, lambda *_: stopped.set())  # PySpark's handler breaks the interrupted call
    records = (
        spark.readStream.format("pykafka-group")
        .option("kafka.bootstrap.servers", brokers)
        .option("subscribe", source)
        .option("kafka.group.id", group)
        .option("kafka.auto.offset.reset", "earliest")
        .option("kafka.isolation.level", "read_committed")
        .option("includeHeaders", True)
        .load()
    )
    query = (
        records.select("key", "value", "headers")
        .writeStream.format("pykafka-group")
        .option("kafka.bootstrap.servers", brokers)
        .option("topic", target)
        .option("deliveryGuarantee", "exactly-once")
        .option("transactionalIdPrefix", group)  # one that no other application uses
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    while not query.awaitTermination(1):
        if stopped.is_set():
            spark.sparkContext.setLogLevel("OFF")  # Spark logs a stopped batch as an error
            query.stop()
            sys.exit("stopped: the next run repeats the batch that was not complete")


if __name__ == "__main__":
    main(*sys.argv[1:])
