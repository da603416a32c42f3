"""Queries with secrets in their options, in a separate process that outputs everything Spark shows to users.

    python -m tests.jobs.with_secrets < JOB

JOB is JSON with these fields:

* `folder`: directory for the event log, checkpoints, a dump of the JVM's heap, and `outcomes.json`, which has "done" or
  an error by way and case.
* `topic`: the topic to write and read.
* `cases`: a list of name, options (for source and sink alike) and ways to use them (`WAYS`).

Plans, progress, errors and the data of Spark's UI go to standard output, logs to standard error.
"""

from __future__ import annotations

import json
import logging
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.request import urlopen

from pyspark.sql import DataFrame, SparkSession

FORMAT = "pykafka-group"
# The value that docs/security.md recommends, for `kafka.ssl.keystore.key`.
REDACTED = "(?i)url|keystore[.]key"
PAGES = ("environment", "sql?details=true&planDescription=true&length=1000", "jobs", "stages?details=true", "executors")


def main() -> None:
    job = json.load(sys.stdin)
    logging.basicConfig(level=logging.DEBUG)
    logging.getLogger("py4j").setLevel(logging.INFO)  # py4j logs the values of all options
    spark = (
        SparkSession.builder.config("spark.eventLog.enabled", "true")
        .config("spark.eventLog.compress", "false")
        .config("spark.eventLog.dir", f"file://{job['folder']}/events")
        .config("spark.ui.enabled", "true")
        .config("spark.ui.port", "0")
        .config("spark.sql.redaction.options.regex", REDACTED)
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("DEBUG")
    outcomes: dict[str, str] = {}
    for case in job["cases"]:
        for way in case["ways"]:
            use = Use(spark, case["options"], job["topic"], f"{job['folder']}/{case['name']}-{way}".replace(" ", "-"))
            try:
                WAYS[way](use)
                outcomes[f"{way}, {case['name']}"] = "done"
            except Exception as error:
                traceback.print_exception(error)
                outcomes[f"{way}, {case['name']}"] = f"{error!r} {error}"
    Path(job["folder"], "outcomes.json").write_text(json.dumps(outcomes))
    show_ui(spark)
    spark.stop()


def show_ui(spark: SparkSession) -> None:
    """Print the UI's JSON, and two of its pages."""
    context = spark.sparkContext
    assert context.uiWebUrl is not None
    ui = f"http://127.0.0.1:{context.uiWebUrl.rpartition(':')[2]}"
    api_url = f"{ui}/api/v1/applications/{context.applicationId}"
    for page in (*(f"{api_url}/{page}" for page in PAGES), f"{ui}/SQL/", f"{ui}/StreamingQuery/"):
        with urlopen(page) as answer:
            print(f"UI: {answer.read().decode()}")


@dataclass(frozen=True)
class Use:
    """One way to use a topic; `folder` belongs to this way only."""

    spark: SparkSession
    options: dict[str, str]
    topic: str
    folder: str

    def write_batch(self) -> None:
        rows = self.spark.createDataFrame([(b"k", b"v")], "key binary, value binary")
        rows.write.format(FORMAT).options(**self.options, topic=self.topic).mode("append").save()

    def read_batch(self) -> None:
        rows = self.spark.read.format(FORMAT).options(**self.options, subscribe=self.topic).load()
        print(rows, rows.count())
        rows.explain("extended")

    def read_stream(self) -> None:
        self.run(self._stream(), "noop")

    def write_stream(self) -> None:
        self.run(self.spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load(), FORMAT)

    def copy_and_dump_heap(self) -> None:
        """Copy to the second topic, and write the JVM's heap to a file while the query runs."""
        replace(self, topic=f"{self.topic}-copy").run(self._stream(), FORMAT, dump=True)

    def _stream(self) -> DataFrame:
        options = {**self.options, "subscribe": self.topic, "startingOffsets": "earliest"}
        rows = self.spark.readStream.format(FORMAT).options(**options).load()
        rows.explain("extended")
        return rows

    def run(self, rows: DataFrame, sink: str, *, dump: bool = False) -> None:
        options = {**self.options, "topic": self.topic} if sink == FORMAT else {}
        writer = rows.selectExpr("cast(value as string) as value").writeStream.format(sink).options(**options)
        writer = writer.option("checkpointLocation", f"{self.folder}/checkpoint")
        query = (writer if dump else writer.trigger(availableNow=True)).start()
        try:
            if dump:
                query.processAllAvailable()
                dump_heap(self.spark, f"{self.folder}/heap.hprof")
                query.stop()
            query.awaitTermination()
        finally:
            query.explain(True)
            print(query.lastProgress, query.recentProgress, query.status, query.exception())


def dump_heap(spark: SparkSession, file: str) -> None:
    """Dump the heap of the JVM of driver and executors, including garbage: plans, and the tasks that it sends."""
    java = spark.sparkContext._jvm.java.lang  # type: ignore[union-attr]
    bean = java.Class.forName("com.sun.management.HotSpotDiagnosticMXBean")
    java.management.ManagementFactory.getPlatformMXBean(bean).dumpHeap(file, False)


WAYS: dict[str, Callable[[Use], None]] = {
    "batch write": Use.write_batch,
    "batch read": Use.read_batch,
    "stream read": Use.read_stream,
    "stream write": Use.write_stream,
    "copy": Use.copy_and_dump_heap,
}

if __name__ == "__main__":
    main()
