"""Write the values of a topic to another one in upper case, until Ctrl-C.

    python examples/upper.py BROKERS SOURCE TARGET GROUP FOLDER

`PYSPARK_PYTHON` must be a Python that has this package, such as the one of this command. A new group starts at the
earliest record; a later run with the same FOLDER continues where this one ended.
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
        .option("startingOffsets", "earliest")
        .load()
    )
    query = (
        records.selectExpr("key", "upper(CAST(value AS STRING)) AS value")
        .writeStream.format("pykafka-group")
        .option("kafka.bootstrap.servers", brokers)
        .option("topic", target)
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(processingTime="1 second")
        .start()
    )
    print(f"{group}: writes to {target} until Ctrl-C", flush=True)
    while not (stopped.is_set() or query.awaitTermination(1)):
        pass
    query.stop()
    print("stopped", file=sys.stderr)


if __name__ == "__main__":
    main(*sys.argv[1:])
