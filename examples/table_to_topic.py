"""Write the rows of a table as JSON records, keyed by a column: a batch write.

python examples/table_to_topic.py BROKERS TABLE.parquet KEY_COLUMN TOPIC
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as sf


def main(brokers: str, table: str, key: str, topic: str) -> None:
    """Run the job."""
    spark = SparkSession.builder.appName("table to topic").getOrCreate()
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
