"""Queries with passwords among their options, in a process of its own that shows as much as Spark shows anybody.

    python -m tests.jobs.with_passwords PROPERTIES TOPIC FOLDER PASSWORD

Writes to TOPIC and reads it, streaming and batch: signed in by a password, beside others that do nothing here; then by
one that brokers refuse; then where no broker is. PROPERTIES, in JSON, are those of a client without who it is. Plans,
progress and errors go to standard output, logs to standard error, the event log and checkpoints to FOLDER.
"""

from __future__ import annotations

import json
import logging
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from urllib.request import urlopen

from pyspark.sql import DataFrame, SparkSession

FORMAT = "pykafka-group"


def main(properties: str, topic: str, folder: str, password: str) -> None:
    logging.basicConfig(level=logging.DEBUG)
    logging.getLogger("py4j").setLevel(logging.INFO)  # it logs whatever any option is set to
    Path(folder, "events").mkdir()
    spark = (
        SparkSession.builder.config("spark.eventLog.enabled", "true")
        .config("spark.eventLog.compress", "false")
        .config("spark.eventLog.dir", f"file://{folder}/events")
        .config("spark.ui.enabled", "true")
        .config("spark.ui.port", "0")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("DEBUG")
    given = {f"kafka.{name}": value for name, value in json.loads(properties).items()}
    module = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    right, wrong = (
        {"kafka.sasl.jaas.config": f'{module} username="carol" password="{text}";'}
        for text in (password, password + "!")
    )
    idle = {"password": password, "kafka.sasl_plain_password": password, "kafka.my.token": password}
    read_and_write(spark, {**given, **right, **idle}, topic, f"{folder}/signed-in")
    read_and_write(spark, {**given, **wrong}, topic, f"{folder}/refused")
    nowhere = {"kafka.bootstrap.servers": "127.0.0.1:1", "kafka.default.api.timeout.ms": "500"}
    read_and_write(spark, {**given, **right, **nowhere, "fetchOffset.numRetries": "0"}, topic, f"{folder}/unreachable")
    show_ui(spark)
    spark.stop()


def show_ui(spark: SparkSession) -> None:
    """What Spark's UI tells in JSON."""
    context = spark.sparkContext
    assert context.uiWebUrl is not None
    told = f"http://127.0.0.1:{context.uiWebUrl.rpartition(':')[2]}/api/v1/applications/{context.applicationId}"
    for page in ("environment", "sql?details=true&planDescription=true&length=1000", "jobs", "stages?details=true"):
        with urlopen(f"{told}/{page}") as answer:
            print(f"UI: {answer.read().decode()}")


def read_and_write(spark: SparkSession, options: dict[str, str], topic: str, checkpoint: str) -> None:
    """All four ways, whatever becomes of each."""
    reads = {**options, "subscribe": topic, "startingOffsets": "earliest"}
    stream = spark.readStream.format(FORMAT).options(**reads).load().select("key", "value")
    stream.explain("extended")
    batch = spark.createDataFrame([(b"k", b"v")], "key binary, value binary")

    def run_stream(rows: DataFrame, sink: str, name: str) -> None:
        writer = rows.writeStream.format(sink).options(**(options if sink == FORMAT else {}), topic=topic)
        query = writer.option("checkpointLocation", f"{checkpoint}-{name}").trigger(availableNow=True).start()
        try:
            query.awaitTermination()
        finally:
            query.explain(True)
            print(query.recentProgress, query.status, query.exception())

    def read_batch() -> None:
        rows = spark.read.format(FORMAT).options(**reads).load()
        print(rows, rows.count())
        rows.explain("formatted")

    ways: dict[str, Callable[[], None]] = {
        "batch write": lambda: batch.write.format(FORMAT).options(**options, topic=topic).mode("append").save(),
        "batch read": read_batch,
        "stream read": lambda: run_stream(stream, "noop", "read"),
        "stream write": lambda: run_stream(stream, FORMAT, "write"),
    }
    for name, run in ways.items():
        try:
            run()
            print(f"{name} of {Path(checkpoint).name}: done", flush=True)
        except Exception as error:
            traceback.print_exception(error)
            print(f"{error!r} {error}\n{name} of {Path(checkpoint).name}: failed", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
