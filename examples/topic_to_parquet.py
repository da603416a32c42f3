"""Append the records of a topic to Parquet files, with offsets committed to a consumer group.

    python examples/topic_to_parquet.py BROKERS TOPIC GROUP FOLDER

Reads what the topic has now, then ends: start it by a scheduler. For a job that runs on, replace the trigger by
`processingTime="10 seconds"` and watch it with `spark_kafka_source.watch`.
"""

from __future__ import annotations

import signal
import sys
import threading

from pyspark.sql import SparkSession
from pyspark.sql import functions as sf


def main(brokers: str, topic: str, group: str, folder: str) -> None:
    """Run the job."""
    spark = SparkSession.builder.appName(group).getOrCreate()
    stopped = threading.Event()
    signal.signal(signal.SIGINT, lambda *_: stopped.set())  # PySpark's handler breaks the interrupted call
    records = (
        spark.readStream.format("pykafka-group")
        .option("kafka.bootstrap.servers", brokers)
        .option("subscribe", topic)
        .option("kafka.group.id", group)
        .option("kafka.auto.offset.reset", "earliest")  # where the group has no offset yet
        .option("maxOffsetsPerTrigger", 1_000_000)
        .load()
    )
    query = (
        records.select(sf.col("key").cast("string"), sf.col("value").cast("string"), "partition", "offset", "timestamp")
        .withColumn("day", sf.to_date("timestamp"))
        .writeStream.format("parquet")
        .partitionBy("day")
        .option("path", f"{folder}/records")
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
