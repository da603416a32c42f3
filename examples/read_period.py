"""Read the records of a period with a batch query into Parquet files by topic: a backfill.

python examples/read_period.py BROKERS TOPIC,TOPIC 2026-01-01T00:00:00Z 2026-01-02T00:00:00Z FOLDER
"""

from __future__ import annotations

import os
import signal
import sys

from pyspark.sql import SparkSession


def stop(*_: object) -> None:
    """End this process, with which Spark ends, too."""
    print("stopped", file=sys.stderr, flush=True)
    os._exit(1)


def main(brokers: str, topics: str, begin: str, end: str, folder: str) -> None:
    """Run the job."""
    spark = SparkSession.builder.appName("read period").getOrCreate()
    signal.signal(signal.SIGINT, stop)  # PySpark's handler breaks the interrupted call
    records = (
        spark.read.format("pykafka-group")
        .option("kafka.bootstrap.servers", brokers)
        .option("subscribe", topics)
        .option("startingTimestamp", begin)
        .option("startingOffsetsByTimestampStrategy", "latest")  # partitions without a record since then are empty
        .option("endingTimestamp", end)
        .load()
    )
    records.write.partitionBy("topic").mode("append").parquet(folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
