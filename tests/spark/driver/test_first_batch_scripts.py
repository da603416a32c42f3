"""Random scripts of failures in a query's first batch: the rows equal those of Spark's own connector.

A script runs two queries on one topic, with this source and with the JVM connector. It draws their starting offsets,
how often and how the first batch fails, and the events in between: new records or partitions, a moved group. The last
run reads all. With SPARK_KAFKA_SOURCE_SCRIPTS=24 each kind of start occurs three times.
"""

from __future__ import annotations

import json
import random
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions
from pyspark.errors import StreamingQueryException

from spark_kafka_source.local_kafka import LocalKafka
from spark_kafka_source.source import register
from tests.conftest import TopicFactory
from tests.support.consumer_groups import move_group
from tests.support.soak import scaled
from tests.support.wait_for_brokers import wait_until_known
from tests.support.wait_until import wait_until

pytestmark = pytest.mark.soak

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

SCRIPTS = scaled("SCRIPTS", 1, 24)
AT_ONCE = 2

OURS, JVM = "pykafka-group", "kafka"
FAILURE = "the script lets this batch fail"
# Spark allows a Python process ten seconds to start. On a busy machine this error is no failure of the query.
SLOW = "Python worker failed to connect back"
STARTS = (
    "latest",
    "group without offsets",
    "group",
    "time",
    "JSON",
    "earliest",
    "times by partition",
    "group without offsets, earliest",
)
# The first scripts have a writer during the runs: `availableNow` may then end before its start offset.
ALWAYS_BUSY = 2
# Starts from a group, with their `auto.offset.reset`.
GROUPS = {"group": "earliest", "group without offsets": "latest", "group without offsets, earliest": "earliest"}
ENDS, GOES_ON = {"availableNow": True}, {"processingTime": "100 milliseconds"}
FAILURES = ("at once", "when it is read", "stopped")
COLUMNS = ("partition", "offset", "string(key)", "string(value)", "topic", "unix_millis(timestamp)", "timestampType")

Ends = dict[int, int]
Row = tuple[Any, ...]


@dataclass
class Side:
    """One of the two queries, and the rows that it has delivered by batch."""

    source: str
    options: dict[str, str]
    checkpoint: Path
    delivered: dict[int, list[Row]] = field(default_factory=dict)
    failed: dict[int, list[list[Row]]] = field(default_factory=lambda: defaultdict(list))

    def begins(self) -> Ends:
        """Return the start offsets of the first batch, from the checkpoint."""
        if self.source == OURS:
            text = (self.checkpoint / "offsets" / "0").read_text().splitlines()[-1]
            (rows,) = json.loads(text)["@joined"].values()
        else:
            text = (self.checkpoint / "sources" / "0" / "0").read_text().splitlines()[-1]
            (rows,) = json.loads(text).values()
        return {int(partition): offset for partition, offset in rows.items()}

    def run(
        self, spark: SparkSession, servers: str, how: str | None, trigger: dict[str, Any], limit: int | None
    ) -> None:
        """Run the query until it ends. `how` is the way in which its first batch fails; None: it succeeds."""
        entered, stopping = threading.Event(), threading.Event()

        def keep(batch: DataFrame, batch_id: int) -> None:
            entered.set()
            if how == "at once":
                raise RuntimeError(FAILURE)
            rows = sorted(tuple(row) for row in batch.selectExpr(*COLUMNS).collect())
            if how is None:
                self.delivered[batch_id] = rows
                return
            self.failed[batch_id].append(rows)
            assert how != "stopped" or stopping.wait(120)
            raise RuntimeError(FAILURE)

        options = {"kafka.bootstrap.servers": servers, "kafka.fetch.max.wait.ms": "20", **self.options}
        if limit is not None:
            options["maxOffsetsPerTrigger"] = str(limit)
        rows = spark.readStream.format(self.source).options(**options).load()
        writer = rows.writeStream.foreachBatch(keep).option("checkpointLocation", str(self.checkpoint))
        query = writer.trigger(**trigger).start()
        if how == "stopped":
            wait_until(lambda: entered.is_set() or not query.isActive, timeout_s=120)
            stopper = threading.Thread(target=query.stop)
            stopper.start()
            stopping.set()
            stopper.join(120)
        error = end_of(query)
        if error is not None and SLOW in error and (how is None or not entered.is_set()):
            self.run(spark, servers, how, trigger, limit)
        else:
            assert (error is None) if how is None else entered.is_set(), f"{self.source}: {error}"

    def rows(self) -> list[Row]:
        for batch_id, attempts in self.failed.items():
            for attempt in attempts:
                assert attempt == self.delivered[batch_id], (
                    f"{self.source}: a replay of batch {batch_id} is another one"
                )
        return sorted(row for rows in self.delivered.values() for row in rows)


def end_of(query: StreamingQuery) -> str | None:
    """Wait for the end of the query; return its error."""
    try:
        ended = query.awaitTermination(240)
    except StreamingQueryException as error:
        return str(error)
    assert ended, "the query does not end"
    return None


@dataclass
class RandomScript:
    """One script: the events on one topic, drawn with the seed `number`."""

    number: int
    kafka: LocalKafka
    topic: str
    partitions: int
    folder: Path

    def __post_init__(self) -> None:
        self.rng = random.Random(self.number)
        self.start = STARTS[self.number % len(STARTS)]
        self.busy = self.number < ALWAYS_BUSY or self.rng.random() < 0.4
        self.group = f"script-{self.number}-{uuid.uuid4().hex[:8]}"
        self.admin = AdminClient({"bootstrap.servers": self.kafka.bootstrap_servers, "log_level": 0})
        self.producer = Producer({"bootstrap.servers": self.kafka.bootstrap_servers, "log_level": 0})
        self.began_ms = time.time_ns() // 1_000_000 - 1_000_000
        self.ends: Ends = dict.fromkeys(range(self.partitions), 0)
        self.description: list[str] = []

    def play(self, spark: SparkSession) -> str:
        """Run the script; return its description."""
        for partition in self.ends:
            self.write(self.rng.randrange(12), partition)
        begins, ours, jvm = self.starts()
        before = dict(self.ends)
        sides = [Side(OURS, ours, self.folder / "ours"), Side(JVM, jvm, self.folder / "jvm")]
        self.fail(spark, sides)
        for side in sides:
            for partition, begin in side.begins().items():
                # On a busy topic, the start is any end of the log during the run.
                first, last = (
                    [begins[partition]] * 2 if partition in begins else (before[partition], self.ends[partition])
                )
                assert first <= begin <= last, f"{self}: {side.source} begins {partition} at {begin}"
        for _ in range(self.rng.randint(1, 2)):
            for side in sides:
                side.run(spark, self.kafka.bootstrap_servers, None, ENDS, None)
            ends = dict(self.ends)
            if self.start in GROUPS:
                assert self.committed() == ends, f"{self}"
            self.write(3, self.rng.choice(list(self.ends)))
        return f"{self}: {self.compare(sides, ends)} rows"

    def fail(self, spark: SparkSession, sides: list[Side]) -> None:
        """Let the first batch fail once or twice, with random events after each failure."""
        untouched = self.start in GROUPS
        for attempt in range(self.rng.randint(1, 2)):
            trigger = ENDS if self.number < ALWAYS_BUSY else self.rng.choice((ENDS, GOES_ON))
            how, limit = self.rng.choice(FAILURES if attempt else FAILURES[1:]), self.rng.choice((None, None, 5))
            self.description.append(f"{how}, {next(iter(trigger))}")
            with self.writing():
                for side in sides:
                    side.run(spark, self.kafka.bootstrap_servers, how, trigger, limit)
            if untouched:
                for partition, begin in sides[0].begins().items():
                    assert self.committed()[partition] in (None, begin), f"{self}: more is committed than is complete"
            untouched = not self.change_something() and untouched

    def compare(self, sides: list[Side], ends: Ends) -> int:
        """Compare the rows up to `ends`. On a busy topic each side has its own `latest`, so start at the later one."""
        begins = [side.begins() for side in sides]
        both = {partition: max(begin.get(partition, 0) for begin in begins) for partition in ends}
        common = []
        for side, begin in zip(sides, begins, strict=True):
            rows = side.rows()
            expected = [
                (partition, offset) for partition in ends for offset in range(begin.get(partition, 0), ends[partition])
            ]
            assert [row[:2] for row in rows] == expected, f"{self}: {side.source}"
            common.append([row for row in rows if row[1] >= both[row[0]]])
        assert common[0] == common[1], f"{self}"
        return len(common[0])

    def starts(self) -> tuple[Ends, dict[str, str], dict[str, str]]:
        """Return the start offsets, as far as they are certain, and the options of both sides."""
        ends = {} if self.busy else dict(self.ends)
        some = {partition: self.rng.randint(0, end) for partition, end in self.ends.items()}
        words = {partition: self.rng.choice((-1, -2, offset)) for partition, offset in some.items()}
        first = self.rng.randrange(10)

        def records(expected: Ends) -> Ends:
            """Return these offsets; the log end offset for partitions without such a record."""
            return ends | {partition: offset for partition, offset in expected.items() if offset < self.ends[partition]}

        latest = (ends, {"startingOffsets": "latest"})
        earliest = (dict.fromkeys(self.ends, 0), {"startingOffsets": "earliest"})
        begins, options = {
            "latest": latest,
            "group without offsets": latest,
            "earliest": earliest,
            "group without offsets, earliest": earliest,
            "group": (some, {"startingOffsets": self.as_json(some)}),
            "JSON": (
                {p: 0 if words[p] == -2 else words[p] for p in words if words[p] != -1}
                | {p: end for p, end in ends.items() if words[p] == -1},
                {"startingOffsets": self.as_json(words)},
            ),
            "time": (
                records(dict.fromkeys(self.ends, first)),
                {"startingTimestamp": str(self.time_ms(first)), "startingOffsetsByTimestampStrategy": "latest"},
            ),
            "times by partition": (
                records(some),
                {
                    "startingOffsetsByTimestamp": self.as_json({p: self.time_ms(some[p]) for p in some}),
                    "startingOffsetsByTimestampStrategy": "latest",
                },
            ),
        }[self.start]
        subscribe = {"subscribe": self.topic}
        if self.start not in GROUPS:
            return begins, subscribe | options, subscribe | options
        if self.start == "group":
            move_group(self.kafka, self.group, {(self.topic, p): offset for p, offset in some.items()})
        ours = {"kafka.group.id": self.group, "kafka.auto.offset.reset": GROUPS[self.start]}
        return begins, subscribe | ours, subscribe | options

    def time_ms(self, offset: int) -> int:
        """Return the timestamp of a record: one second later per offset."""
        return self.began_ms + 1_000 * offset

    def as_json(self, numbers: Ends) -> str:
        return json.dumps({self.topic: {str(partition): number for partition, number in numbers.items()}})

    def change_something(self) -> bool:
        """Do random things between two runs; return True if the group was moved."""
        moved = False
        for measure in self.rng.sample(("records", "partition", "group"), 2):
            self.description.append(measure)
            if measure == "records":
                for partition in self.ends:
                    self.write(self.rng.randrange(6), partition)
            elif measure == "partition":
                new = len(self.ends)
                self.admin.create_partitions([NewPartitions(self.topic, new + 1)])[self.topic].result(60)
                wait_until_known(self.kafka, self.topic, new + 1)
                self.ends[new] = 0
                self.producer = Producer({"bootstrap.servers": self.kafka.bootstrap_servers, "log_level": 0})
                self.write(self.rng.randint(1, 4), new)
            elif self.start.startswith("group"):
                offsets = {(self.topic, p): self.rng.randint(0, end + 3) for p, end in self.ends.items()}
                move_group(self.kafka, self.group, offsets)
                moved = True
        return moved

    def committed(self) -> dict[int, int | None]:
        consumer = Consumer({"bootstrap.servers": self.kafka.bootstrap_servers, "group.id": self.group})
        try:
            result = consumer.committed([TopicPartition(self.topic, partition) for partition in self.ends], 60)
        finally:
            consumer.close()
        return {record.partition: record.offset if record.offset >= 0 else None for record in result}

    def write(self, records: int, partition: int) -> None:
        for _ in range(records):
            offset = self.ends[partition]
            key, value = b"key %d" % partition, b"value %d" % offset
            self.producer.produce(self.topic, value, key, partition, timestamp=self.time_ms(offset))
            self.ends[partition] += 1
        assert self.producer.flush(60) == 0

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Write during the block if the topic is busy."""
        if not self.busy:
            yield
            return
        over = threading.Event()

        def write() -> None:
            while not over.wait(0.01):
                for partition in self.ends:
                    self.write(1, partition)

        with ThreadPoolExecutor(1) as thread:
            writes = thread.submit(write)
            yield
            over.set()
            writes.result(60)

    def __str__(self) -> str:
        return f"script {self.number} ({self.start}{', busy' if self.busy else ''}: {'; '.join(self.description)})"


@pytest.mark.timeout(300 + 60 * SCRIPTS)
def test_random_failures_of_first_batch_give_rows_of_jvm_connector(
    kafka1: LocalKafka, topic1: TopicFactory, spark: SparkSession, tmp_path: Path
) -> None:
    scripts = []
    for number in range(SCRIPTS):
        partitions = 1 + number % 3
        topic = topic1(partitions)
        scripts.append(RandomScript(number, kafka1, topic, partitions, tmp_path / str(number)))

    def play(script: RandomScript) -> str:
        # Concurrent first queries need a registration each (docs/decisions/0019-python-workers.md).
        session = spark.newSession()
        register(session)
        try:
            return script.play(session)
        finally:
            for query in session.streams.active:
                query.stop()

    with ThreadPoolExecutor(AT_ONCE) as threads:
        for description in threads.map(play, scripts):
            print(description)
