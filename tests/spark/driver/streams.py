"""Streams that stop and resume, with Spark and without: each `run` continues where the last one ended."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from protocol.base.clock import Deadline
from spark_kafka_source.driver.stream_reader import KafkaStreamReader
from spark_kafka_source.lag import lag_of_query
from spark_kafka_source.local_kafka import LocalKafka
from spark_kafka_source.options.parsing import parse_source_options
from spark_kafka_source.plan.offsets import JsonDict, Offsets
from tests.support.soak import scaled

# 20 in `make soak`.
REPEATS = scaled("REPEATS", 1, 20)
READ = 10

Row = tuple[int, str]


class Stream:
    """A stream without Spark, which is fast to repeat. Each `run` makes the calls of a query on a new reader."""

    def __init__(self, kafka: LocalKafka, topic: str) -> None:
        self.kafka, self.topic, self.group = kafka, topic, new_group()
        self.checkpoint: JsonDict | None = None
        self._planned: JsonDict | None = None

    def run(self, before_tasks: Callable[[], None] | None = None, **options: str) -> list[Row]:
        """Return the rows of partition 0 until nothing is new, starting with the planned batch.

        `before_tasks` is called between the plan of the first batch and its tasks.
        """
        collected: list[Row] = []
        with self._reader(options) as reader:
            while (end := self._planned or self._next_end(reader)) != self.checkpoint:
                self._planned = end
                assert self.checkpoint is not None
                tasks = reader.partitions(self.checkpoint, end)
                if before_tasks is not None:
                    before_tasks()
                    before_tasks = None
                for task in tasks:
                    for batch in reader.read(task):
                        collected += [
                            (row["offset"], row["value"].decode()) for row in batch.to_pylist() if row["partition"] == 0
                        ]
                self.checkpoint, self._planned = end, None
        return collected

    def plan(self) -> None:
        """Plan the next batch and stop before it is read; the next `run` replays it."""
        with self._reader({}) as reader:
            self._planned = self._next_end(reader)

    @contextmanager
    def _reader(self, options: Mapping[str, str]) -> Iterator[KafkaStreamReader]:
        reader = KafkaStreamReader(parse_source_options(self.options(options), streaming=True))
        try:
            yield reader
        finally:
            # With Spark the last commit has ten seconds; a slow machine may need more.
            if (manager := reader.query.commits.manager) is not None:
                manager.flush(Deadline.after_ms(30_000))
            reader.stop()

    def _next_end(self, reader: KafkaStreamReader) -> JsonDict:
        if self.checkpoint is None:
            self.checkpoint = reader.initialOffset()
        return reader.latestOffset(self.checkpoint, reader.getDefaultReadLimit())

    @property
    def skipped(self) -> int:
        assert self.checkpoint is not None
        return sum(Offsets.from_json_dict(self.checkpoint).skipped.values())

    def options(self, options: Mapping[str, str]) -> dict[str, str]:
        return {
            "kafka.bootstrap.servers": self.kafka.bootstrap_servers,
            "subscribe": self.topic,
            "startingOffsets": "earliest",
            "kafka.group.id": self.group,
            **options,
        }


class Batches:
    """Collects the rows of a query by batch id. A replayed batch replaces its rows."""

    def __init__(self) -> None:
        self.by_id: dict[int, list[tuple[int, int, str]]] = {}

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        rows = batch.selectExpr("partition", "offset", "string(value)").collect()
        self.by_id[batch_id] = sorted((row[0], row[1], row[2]) for row in rows)

    def all(self) -> list[tuple[int, int, str]]:
        return [row for batch_id in sorted(self.by_id) for row in self.by_id[batch_id]]


def query_of(
    spark: SparkSession, servers: str, batches: Batches, checkpoint: Path, trigger: Mapping[str, Any], **options: str
) -> StreamingQuery:
    rows = spark.readStream.format("pykafka-group").option("kafka.bootstrap.servers", servers).options(**options).load()
    writer = rows.writeStream.foreachBatch(batches).option("checkpointLocation", str(checkpoint))
    return writer.trigger(**trigger).start()


class SparkStream:
    """A stream like `Stream` with Spark: each `run` starts a query on the same checkpoint."""

    def __init__(self, spark: SparkSession, kafka: LocalKafka, topic: str, folder: Path) -> None:
        self.kafka, self.topic, self.group = kafka, topic, new_group()
        self._spark, self._folder = spark, folder / topic
        self.skipped = 0

    def run(self, **options: str) -> list[Row]:
        batches = Batches()
        settings = {"subscribe": self.topic, "startingOffsets": "earliest", "kafka.group.id": self.group, **options}
        servers = self.kafka.bootstrap_servers
        query = query_of(self._spark, servers, batches, self._folder, {"availableNow": True}, **settings)
        assert query.awaitTermination(60)
        self.skipped = lag_of_query(query).skipped
        return [(offset, value) for partition, offset, value in batches.all() if partition == 0]


def new_group() -> str:
    return f"group-{uuid.uuid4().hex[:8]}"
