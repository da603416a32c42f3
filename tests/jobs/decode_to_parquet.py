"""A job: decoded values of a topic to Parquet files, with the latest version of the subject after each start.

python -m tests.jobs.decode_to_parquet FORMAT BROKERS TOPIC REGISTRY DEAD_LETTERS CHECKPOINT OUTPUT SECONDS
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession


def main(
    format: str, brokers: str, topic: str, registry: str, dead: str, checkpoint: str, output: str, seconds: str
) -> None:
    spark = SparkSession.builder.appName("decode").getOrCreate()
    frame = (
        spark.readStream.format("pykafka-group")
        .option("kafka.bootstrap.servers", brokers)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("valueFormat", format)
        .option("schema.registry.url", registry)
        .option("schema.registry.reader.version", "latest")
        .option("onDecodeError", "dead-letter")
        .option("deadLetterTopic", dead)
        .load()
    )
    writer = frame.select("offset", "value.*").writeStream.option("checkpointLocation", checkpoint)
    if seconds == "all":
        writer.trigger(availableNow=True).start(output).awaitTermination(300)
    else:
        writer.trigger(processingTime="1 second").start(output).awaitTermination(float(seconds))


if __name__ == "__main__":
    main(*sys.argv[1:])
