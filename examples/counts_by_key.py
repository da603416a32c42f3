"""Count the records of topic SOURCE by key, and write the counts to the compacted topic TARGET, in update mode.

    python examples/counts_by_key.py BROKERS SOURCE TARGET FOLDER

Spark does not write Python sinks in update mode, so the batches are written by `foreachBatch`.
"""

from __future__ import annotations

import signal
import sys
import threading

from pyspark.sql import SparkSession

from spark_kafka_source import foreach_batch_writer


def main(brokers: str, source: str, target: str, folder: str) -> None:
    """Run the job."""
    spark = SparkSession.builder.appName("counts by key").getOrCreate()
    stopped = threading.Event()
    signal.signal(signal.SIGINT, lambda *_: stopped.set())  # PySpark's handler breaks the interrupted call
    records = (
        spark.readStream.format("pykafka-group")
        .option("kafka.bootstrap.servers", brokers)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .load()
    )
    query = (
        records.groupBy("key")
        .count()
        .selectExpr("key", "string(count) AS value")
        .writeStream.outputMode("update")
        .foreachBatch(foreach_batch_writer({"kafka.bootstrap.servers": brokers, "topic": target}))
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
