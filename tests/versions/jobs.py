"""Seven jobs and the commit contract, for an environment with the wheel and one Spark. It imports nothing of `tests`.

    python jobs.py BOOTSTRAP FOLDER

Prints a JSON line for each job: its name, and its error, what it observed, or why this Spark does not have it. With the
further arguments `copy SOURCE TARGET` it is the exactly-once query that the job `exactly_once` kills.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

import protocol
from protocol.admin import NewTopic

PARTITIONS = 3
ROWS = 3_000
WAIT_S = 600
# Spark 4.2 writes source names only in format 2 of the offset log, which is not its default.
SOURCE_EVOLUTION = {
    "spark.sql.streaming.queryEvolution.enableSourceEvolution": "true",
    "spark.sql.streaming.offsetLog.formatVersion": "2",
}


class Missing(Exception):
    """This Spark does not have the feature of the job; the text is the cell of the table."""


class Jobs:
    """The jobs; each uses separate topics and a separate group."""

    def __init__(self, bootstrap: str, folder: Path) -> None:
        self.bootstrap = bootstrap
        self.folder = folder
        self.name = folder.name
        self.admin = protocol.Admin({"bootstrap.servers": bootstrap})
        self.spark = session()

    def stream(self) -> dict[str, Any]:
        """Each row arrives once; after a stop, the group has exactly the offsets of complete batches."""
        topic, out = self.topic("stream"), self.folder / "stream"
        self.write(topic, range(ROWS))
        query = self.to_parquet(self.reader(topic, "stream"), out, processingTime="200 milliseconds")
        self.wait(lambda: self.count(out) == ROWS, query)
        self.write(topic, range(ROWS, 2 * ROWS))
        self.wait(lambda: self.count(out) == 2 * ROWS, query)
        self.wait(lambda: self.committed("stream") == self.ends(topic), query)
        query.stop()
        same(self.values(self.spark.read.parquet(str(out))), range(2 * ROWS))
        return {}

    def available_now(self) -> dict[str, Any]:
        """With a limit: in several batches, and committed at the end, where Spark lets a source do that (4.2)."""
        topic, out = self.topic("now"), self.folder / "now"
        self.write(topic, range(ROWS))
        batches = 0
        for _ in range(ROWS):
            query = self.to_parquet(
                self.reader(topic, "now", maxOffsetsPerTrigger=str(ROWS // 6)), out, availableNow=True
            )
            query.awaitTermination()
            batches = batches or sum(progress["numInputRows"] > 0 for progress in query.recentProgress)
            if self.count(out) == ROWS:
                break
        same(self.values(self.spark.read.parquet(str(out))), range(ROWS))
        return {"batches of the first run": batches, "committed at the end": self.committed("now") == self.ends(topic)}

    def batch(self) -> dict[str, Any]:
        """A batch read from offsets to offsets has exactly their rows."""
        topic = self.topic("batch")
        self.write(topic, range(ROWS))
        ends = json.dumps({topic: {str(number): 500 for number in range(PARTITIONS)}})
        frame = self.spark.read.format("pykafka-group").options(
            **{"kafka.bootstrap.servers": self.bootstrap, "subscribe": topic, "endingOffsets": ends}
        )
        same(self.values(frame.load()), range(PARTITIONS * 500))
        return {}

    def sink(self) -> dict[str, Any]:
        """A batch and a stream write each row once."""
        topic, source = self.topic("sink"), self.topic("sink-source")
        rows = self.spark.range(ROWS).selectExpr("cast(id as string) as value")
        rows.write.format("pykafka-group").options(**self.sink_options(topic)).mode("append").save()
        self.write(source, range(ROWS, 2 * ROWS))
        frame = self.reader(source, "sink").select("value")
        writer = frame.writeStream.format("pykafka-group").options(**self.sink_options(topic))
        writer = writer.option("checkpointLocation", str(self.folder / "sink-checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination()
        same(self.written(topic), range(2 * ROWS))
        return {}

    def exactly_once(self) -> dict[str, Any]:
        """A copy that is killed four times writes each row once."""
        source, target = self.topic("once-source"), self.topic("once-target")
        self.write(source, range(ROWS))
        kills = 0
        for _ in range(60):
            copy = subprocess.Popen(
                [sys.executable, __file__, self.bootstrap, str(self.folder), "copy", source, target]
            )
            if kills < 4:
                began = len(self.written(target))
                self.wait(lambda: copy.poll() is not None or len(self.written(target)) > began)  # noqa: B023
                kills += copy.poll() is None
                copy.kill()
            copy.wait(WAIT_S)
            if copy.returncode == 0 and len(self.written(target)) >= ROWS:
                break
        same(self.written(target), range(ROWS))
        return {"kills": kills}

    def member(self) -> dict[str, Any]:
        """A query that is a group member shares the topic with a client of the same group; each row arrives."""
        topic, out, group = self.topic("member"), self.folder / "member", self.group("member")
        query = self.to_parquet(
            self.reader(topic, "member", **{"kafka.group.protocol": "consumer"}), out, processingTime="200 milliseconds"
        )
        self.wait(lambda: len(self.members(group)) == 1, query)
        own: list[str] = []
        properties = {"bootstrap.servers": self.bootstrap, "group.id": group, "auto.offset.reset": "earliest"}
        with protocol.KafkaConsumer({**properties, "group.protocol": "consumer"}) as consumer:
            consumer.subscribe([topic])

            def shares() -> bool:
                consumer.poll(timeout_ms=100)
                owned = [len(member.assignment) for member in self.members(group)]
                return len(owned) == 2 and sum(owned) == PARTITIONS and min(owned) > 0

            self.wait(shares, query)
            self.write(topic, range(ROWS))

            def arrived() -> bool:
                for batches in consumer.poll(timeout_ms=100).values():
                    own.extend(value.decode() for batch in batches for value in batch["value"].to_pylist())
                return len(own) + self.count(out) >= ROWS

            self.wait(arrived, query)
        query.stop()
        reference = self.values(self.spark.read.parquet(str(out)))
        same([*own, *reference], range(ROWS))
        if not own or not reference:
            raise AssertionError(f"{len(own)} rows for the client, {len(reference)} for the query")
        return {}

    def named_sources(self) -> dict[str, Any]:
        """A query whose named sources are reordered, added and removed between its runs reads each row once."""
        if not hasattr(self.spark.readStream, "name"):
            raise Missing("none before Spark 4.2")
        topics, out, rows = {name: self.topic(f"named-{name}") for name in "abc"}, self.folder / "named", 0
        for setting, text in SOURCE_EVOLUTION.items():
            self.spark.conf.set(setting, text)
        try:
            for names in ("ab", "ba", "bac", "ca"):
                for name in names:
                    self.write(topics[name], range(rows, rows + ROWS // 6))
                    rows += ROWS // 6
                frames = [self.reader(topics[name], f"named-{name}", source=name) for name in names]
                self.to_parquet(reduce(DataFrame.union, frames), out, availableNow=True).awaitTermination()
        finally:
            for setting in SOURCE_EVOLUTION:
                self.spark.conf.unset(setting)
        same(self.values(self.spark.read.parquet(str(out))), range(rows))
        for name, topic in topics.items():
            if (offsets := self.committed(f"named-{name}")) != self.ends(topic):
                raise AssertionError(f"the group of {topic} has {offsets}, the logs end at {self.ends(topic)}")
        return {}

    def topic(self, name: str) -> str:
        topic = f"{self.name}-{name}"
        self.admin.create_topics([NewTopic(topic, PARTITIONS, 1)])
        return topic

    def group(self, name: str) -> str:
        return f"{self.name}-{name}"

    def reader(self, topic: str, name: str, *, source: str | None = None, **more: str) -> DataFrame:
        properties = {
            "kafka.bootstrap.servers": self.bootstrap,
            "subscribe": topic,
            "startingOffsets": "earliest",
            "kafka.group.id": self.group(name),
            **more,
        }
        stream = self.spark.readStream if source is None else self.spark.readStream.name(source)
        return stream.format("pykafka-group").options(**properties).load()

    def sink_options(self, topic: str) -> dict[str, str]:
        return {"kafka.bootstrap.servers": self.bootstrap, "topic": topic}

    def to_parquet(self, frame: DataFrame, out: Path, **trigger: Any) -> StreamingQuery:
        writer = frame.select("value").writeStream.format("parquet").trigger(**trigger)
        return writer.option("checkpointLocation", f"{out}-checkpoint").option("path", str(out)).start()

    def write(self, topic: str, numbers: range) -> None:
        values = pa.array([str(number) for number in numbers])
        partitions = pa.array([number % PARTITIONS for number in numbers], pa.int32())
        table = pa.table({"value": values, "partition": partitions})
        protocol.write({"bootstrap.servers": self.bootstrap}, topic, table)

    def written(self, topic: str) -> list[str]:
        properties = {"bootstrap.servers": self.bootstrap, "isolation.level": "read_committed"}
        table = protocol.read(properties, topic, columns=["value"]).read_all()
        return [value.decode() for value in table["value"].to_pylist()]

    def values(self, frame: DataFrame) -> list[str]:
        return [row.value for row in frame.selectExpr("cast(value as string) as value").collect()]

    def count(self, out: Path) -> int:
        return (
            self.spark.read.schema("value binary").parquet(str(out)).count()
            if (out / "_spark_metadata").exists()
            else 0
        )

    def committed(self, name: str) -> dict[tuple[str, int], int]:
        offsets = self.admin.list_consumer_group_offsets(self.group(name))
        return {key: offset.offset for key, offset in offsets.items()}

    def ends(self, topic: str) -> dict[tuple[str, int], int]:
        keys = [(topic, number) for number in range(PARTITIONS)]
        return {
            key: offset.offset for key, offset in self.admin.list_offsets(dict.fromkeys(keys, protocol.LATEST)).items()
        }

    def members(self, group: str) -> list[Any]:
        try:
            return list(self.admin.describe_groups([group])[group].members)
        except protocol.KafkaError:
            return []

    def wait(self, condition: Callable[[], bool], query: StreamingQuery | None = None) -> None:
        deadline_s = time.monotonic() + WAIT_S
        while not condition():
            if query is not None and not query.isActive:
                raise AssertionError(f"the query has ended: {query.exception()}")
            if time.monotonic() > deadline_s:
                raise AssertionError("not within the time")
            time.sleep(0.05)


def same(result: list[str], expected: range) -> None:
    """Raise if these are not exactly the expected numbers, each once."""
    if sorted(map(int, result)) != list(expected):
        numbers = set(map(int, result))
        raise AssertionError(
            f"{len(result)} rows, {len(result) - len(numbers)} twice, {len(set(expected) - numbers)} missing"
        )


def session() -> SparkSession:
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.sql.shuffle.partitions", "2").config(
        "spark.sql.streaming.noDataMicroBatches.enabled", "true"
    )
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark


def copy(bootstrap: str, folder: Path, source: str, target: str) -> None:
    """Copy a topic exactly once, in batches of few records, until the records that exist are copied."""
    reader = session().readStream.format("pykafka-group").options(**{
        "kafka.bootstrap.servers": bootstrap, "subscribe": source, "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": str(ROWS // 6),
    })  # fmt: skip
    writer = reader.load().select("value").writeStream.format("pykafka-group").options(**{
        "kafka.bootstrap.servers": bootstrap, "topic": target, "deliveryGuarantee": "exactly-once",
        "transactionalIdPrefix": target, "checkpointLocation": str(folder / "once-checkpoint"),
    })  # fmt: skip
    writer.trigger(availableNow=True).start().awaitTermination()


def main(bootstrap: str, folder: str, *arguments: str) -> None:
    if arguments:
        copy(bootstrap, Path(folder), *arguments[1:])
        return
    jobs = Jobs(bootstrap, Path(folder))
    for job in (
        *(jobs.stream, jobs.available_now, jobs.batch, jobs.sink, jobs.exactly_once, jobs.member),
        jobs.named_sources,
    ):
        began_s = time.monotonic()
        result: dict[str, Any] = {"job": job.__name__}
        try:
            result["observed"] = job()
        except Missing as missing:
            result["missing"] = str(missing)
        except Exception as error:
            traceback.print_exc()
            result["error"] = f"{type(error).__name__}: {error}"[:500]
        print(json.dumps({**result, "seconds": round(time.monotonic() - began_s)}), flush=True)
    jobs.spark.stop()
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
