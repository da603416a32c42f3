"""Streams that stop and resume, with Spark and without: each `run` continues where the last one ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from protocol.base.clock import Deadline
from spark_kafka_source.driver.stream_reader import KafkaStreamReader
from spark_kafka_source.lag import lag_of_query
from spark_kafka_source.local_kafka import LocalKafka
from spark_kafka_source.options.parsing import parse_source_options
from spark_kafka_source.plan.offsets import JsonDict, Offsets
from tests.support.member_queries import new_group
from tests.support.soak import scaled
from tests.support.spark_frames import await_end, stream

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


class SparkStream:
    """A stream like `Stream` with Spark: each `run` starts a query on the same checkpoint."""

    def __init__(self, spark: SparkSession, kafka: LocalKafka, topic: str, folder: Path) -> None:
        self.kafka, self.topic, self.group = kafka, topic, new_group()
        self._spark, self._folder = spark, folder / topic
        self.skipped = 0

    def run(self, **options: str) -> list[Row]:
        collected: list[Row] = []

        def collect(batch: DataFrame, _: int) -> None:
            rows = batch.where("partition = 0").selectExpr("offset", "string(value)").orderBy("offset").collect()
            collected.extend((offset, value) for offset, value in rows)

        frame = stream(self._spark, self.kafka, subscribe=self.topic, kafka_group_id=self.group, **options)
        writer = frame.writeStream.foreachBatch(collect).option("checkpointLocation", str(self._folder))
        await_end(query := writer.trigger(availableNow=True).start())
        self.skipped = lag_of_query(query).skipped
        return collected
