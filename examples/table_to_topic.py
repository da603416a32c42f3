"""Write the rows of a table as JSON records, keyed by a column: a batch write.

python examples/table_to_topic.py BROKERS TABLE.parquet KEY_COLUMN TOPIC
"""

from __future__ import annotations

import os
import signal
import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as sf


def stop(*_: object) -> None:
    """End this process, with which Spark ends, too."""
    print("stopped", file=sys.stderr, flush=True)
    os._exit(1)


def main(brokers: str, table: str, key: str, topic: str) -> None:
    """Run the job."""
    spark = SparkSession.builder.appName("table to topic").getOrCreate()
    signal.signal(signal.SIGINT, stop)  # PySpark's handler breaks the interrupted call
    rows = spark.read.parquet(table)
    records = rows.select(sf.col(key).cast("string").alias("key"), sf.to_json(sf.struct("*")).alias("value"))
    (
        records.write.format("pykafka-group")
        .option("kafka.bootstrap.servers", brokers)
        .option("topic", topic)
        .option("kafka.compression.type", "lz4")
        .mode("append")
        .save()
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
