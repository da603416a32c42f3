"""The exactly-once sink: what a reader of committed transactions sees, whatever is killed and restarted."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PythonException, StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from protocol.admin.topics import NewTopic, create_topic
from protocol.cluster.client import Client
from protocol.config import parse_client, parse_producer
from protocol.producer.sync_producer import SyncProducer
from protocol.transaction.coordinator import init_producer_id
from protocol.wire.messages.m00_produce import PRODUCE
from protocol.wire.messages.m08_offset_commit import OFFSET_COMMIT
from protocol.wire.messages.m22_init_producer_id import INIT_PRODUCER_ID
from protocol.wire.messages.m26_end_txn import END_TXN
from protocol.wire.messages.m28_txn_offset_commit import TXN_OFFSET_COMMIT
from protocol.wire.messages.m65_describe_transactions import DESCRIBE_TRANSACTIONS
from spark_kafka_source.local_kafka import LocalKafka
from spark_kafka_source.sink.exactly_once.open_transactions import open_transactions
from tests import read_committed
from tests.conftest import TopicFactory
from tests.console_consumer import console_command
from tests.documents import block
from tests.jobs import copy_exactly_once
from tests.kafka_proxy import KafkaProxy
from tests.killing import Kill
from tests.soak import SOAK

# The soak run (`make soak`) asks for more.
KILLS = int(os.environ.get("SPARK_KAFKA_SOURCE_KILLS", "1"))
PARTITIONS = 3
ROWS = 9_000


@dataclass
class Copy:
    """The query that copies `source` to `target`, again and again, through a proxy."""

    spark: SparkSession
    kafka: LocalKafka
    proxy: KafkaProxy
    source: str
    target: str
    checkpoint: Path
    options: dict[str, str]

    def start(self, **options: str) -> StreamingQuery:
        where = (self.proxy.servers, self.source, self.target, str(self.checkpoint))
        return copy_exactly_once.start(self.spark, *where, {**self.options, **options})

    def run(self, **options: str) -> list[int]:
        """The batches that had rows."""
        query = self.start(**options)
        assert query.awaitTermination(120)
        return [progress.batchId for progress in query.recentProgress if progress.numInputRows]

    def run_into(self, kill: Kill, **options: str) -> None:
        """Until it fails, since somebody was killed."""
        kill.arm(self.proxy)
        with pytest.raises(StreamingQueryException):
            self.start(**options).awaitTermination(120)
        self.disarm()
        assert kill.done.is_set(), kill

    def disarm(self) -> None:
        self.proxy.requests.clear()
        self.proxy.replies.clear()

    def start_job(self) -> subprocess.Popen[bytes]:
        """The same in a driver of its own. The JVM and the Python processes are a group, to be killed together."""
        where = (self.proxy.servers, self.source, self.target, str(self.checkpoint))
        options = [f"{name}={value}" for name, value in self.options.items()]
        command = [sys.executable, "-m", "tests.jobs.copy_exactly_once", *where, *options]
        return subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def check(self) -> None:
        """Every row is there once, in its order if the query keeps that, and no transaction is left open."""
        for read in (read_committed.by_librdkafka, read_committed.by_this_project):
            values = read(self.kafka.bootstrap_servers, self.target)
            if "shuffled" in self.options:
                assert sorted(int(value) for each in values.values() for value in each) == list(range(ROWS))
            else:
                assert values == {p: [b"%d" % n for n in range(p, ROWS, PARTITIONS)] for p in range(PARTITIONS)}
        with self.client() as client:
            assert open_transactions(client, "copy-", client.deadline()) == []

    def client(self) -> Client:
        return Client(parse_client({"bootstrap.servers": self.kafka.bootstrap_servers}))


CopyFactory = Callable[..., Copy]


@pytest.fixture(scope="module")
def source(kafka1: LocalKafka) -> str:
    """Numbers, in turn over the partitions."""
    name = "numbers"
    with Client(parse_client({"bootstrap.servers": kafka1.bootstrap_servers})) as client:
        create_topic(client, NewTopic(name, PARTITIONS))
        numbers = pa.array([b"%d" % n for n in range(ROWS)], pa.binary())
        partitions = pa.array([n % PARTITIONS for n in range(ROWS)], pa.int32())
        SyncProducer(client, parse_producer({})).send_columns(name, pa.record_batch({"value": numbers}), partitions)
    return name


@pytest.fixture
def copy(spark: SparkSession, kafka1: LocalKafka, topic1: TopicFactory, source: str, tmp_path: Path) -> CopyFactory:
    with KafkaProxy.of(kafka1) as proxy:

        def make(**options: str) -> Copy:
            return Copy(spark, kafka1, proxy, source, topic1(PARTITIONS), tmp_path / "checkpoint", options)

        yield make


def test_a_stream_is_there_once_and_a_replay_writes_nothing(copy: CopyFactory) -> None:
    copied = copy(maxOffsetsPerTrigger="4000")
    *_, last_batch = copied.run()
    assert last_batch >= 2
    copied.check()
    for name in (f"{last_batch}", f".{last_batch}.crc"):
        (copied.checkpoint / "commits" / name).unlink()
    assert copied.run() == [last_batch], "it was to be replayed"
    copied.check()


def of_task(body: dict[str, Any]) -> bool:
    return re.search(r"-\d{1,3}$", body["transactional_id"]) is not None


def of_driver(body: dict[str, Any]) -> bool:
    return not of_task(body)


# A start takes over the ledger before its first Produce; from then on the driver's transaction is a decision.
POINTS: dict[str, Callable[[], Kill]] = {
    "before a task has a producer id": lambda: Kill(INIT_PRODUCER_ID, of_task),
    "while a task writes": lambda: Kill(PRODUCE, nth=4),
    "when all tasks have written": lambda: Kill(DESCRIBE_TRANSACTIONS, after=PRODUCE),
    "when the decision is written, and not committed": lambda: Kill(
        TXN_OFFSET_COMMIT, of_driver, answered=True, after=PRODUCE
    ),
    "before the first EndTxn": lambda: Kill(END_TXN, of_task, after=PRODUCE),
    "between the EndTxn calls": lambda: Kill(END_TXN, of_task, nth=2, after=PRODUCE),
    "after the last EndTxn": lambda: Kill(END_TXN, of_task, nth=3, answered=True, after=PRODUCE),
    # The source commits what is in Spark's commit log.
    "after Spark's commit log": lambda: Kill(OFFSET_COMMIT, after=END_TXN),
    "after the group's commit": lambda: Kill(OFFSET_COMMIT, answered=True, after=END_TXN),
}


SMALL_BATCHES = {
    "maxOffsetsPerTrigger": "600" if KILLS == 1 else "30",
    "kafka.batch.size": "500",
    "kafka.group.id": f"copies-{uuid.uuid4().hex[:8]}",
}


# Rows that are the same in every attempt have an order to be kept; of others, those of two attempts must not be mixed.
@pytest.mark.timeout(120 + 120 * KILLS)
@pytest.mark.parametrize(
    ("options", "points"),
    [({}, list(POINTS)), ({"shuffled": "3"}, list(POINTS) if SOAK else ["between the EndTxn calls"])],
    ids=["as they lie", "shuffled"],
)
def test_whoever_is_killed_and_when_every_row_is_there_once(
    copy: CopyFactory, options: dict[str, str], points: list[str]
) -> None:
    copied = copy(**SMALL_BATCHES, **options)
    for point in points * KILLS:
        copied.run_into(POINTS[point]())
    copied.run(maxOffsetsPerTrigger=str(ROWS))
    copied.check()


@pytest.mark.timeout(120 + 300 * KILLS)
def test_the_driver_is_killed_with_all_its_processes(copy: CopyFactory) -> None:
    copied = copy(**SMALL_BATCHES)
    for point in list(POINTS) * KILLS if SOAK else ["between the EndTxn calls"]:
        job, kill = copied.start_job(), POINTS[point]()
        kill.kill = partial(_kill_all, job)
        kill.arm(copied.proxy)
        assert job.wait(120) == -signal.SIGKILL
        copied.disarm()
    copied.run(maxOffsetsPerTrigger=str(ROWS))
    copied.check()
    java = console_command(copied.kafka, copied.target, "java", isolation_level="read_committed")
    said = subprocess.run([*java, "--timeout-ms=5000"], capture_output=True, timeout=60, check=False).stdout
    assert sorted(int(line) for line in said.splitlines() if line.isdigit()) == list(range(ROWS))


def _kill_all(job: subprocess.Popen[bytes], _: int) -> None:
    os.killpg(job.pid, signal.SIGKILL)


def test_what_was_decided_and_timed_out_since_is_written_again(copy: CopyFactory) -> None:
    copied = copy(maxOffsetsPerTrigger="4000")
    copied.run_into(POINTS["between the EndTxn calls"]())
    with copied.client() as client:
        left = open_transactions(client, "copy-", client.deadline())
        assert left
        for each in left:  # as its coordinator does when its time is over
            init_producer_id(client, each.transactional_id, 60_000, client.deadline())
    assert copied.run()[0] == 0, "it was to be replayed"
    copied.check()


def test_a_batch_write_is_there_as_a_whole_or_not_at_all(
    spark: SparkSession, kafka1: LocalKafka, topic1: TopicFactory
) -> None:
    name = topic1(PARTITIONS)
    options = {"kafka.bootstrap.servers": kafka1.bootstrap_servers, "topic": name, "transactionalIdPrefix": "batch"}

    def write(values: str) -> None:
        rows = spark.range(0, ROWS, 1, 3).selectExpr(f"{values} AS value")
        rows.write.format("pykafka-group").options(**options, deliveryGuarantee="exactly-once").mode("append").save()

    with pytest.raises(PythonException, match=r"max\.request\.size"):
        write(f"if(id = {ROWS - 1}, repeat('.', 3000000), string(id))")
    assert read_committed.by_librdkafka(kafka1.bootstrap_servers, name) == {p: [] for p in range(PARTITIONS)}
    write("string(id)")
    values = read_committed.by_librdkafka(kafka1.bootstrap_servers, name).values()
    assert sorted(int(value) for each in values for value in each) == list(range(ROWS))


def test_the_example_of_the_docs(copy: CopyFactory) -> None:
    copied = copy()
    reader = copied.spark.readStream.format("pykafka-group").option("kafka.bootstrap.servers", copied.proxy.servers)
    names = {"orders": reader.options(subscribe=copied.source, startingOffsets="earliest").load()}
    text = block("delivery.md", "exactly-once").with_names(
        {
            "localhost:9092": copied.proxy.servers,
            "checkpoints/copied": str(copied.checkpoint),
            '"copied"': f'"{copied.target}"',
        }
    )
    exec(text, names)
    query: StreamingQuery = names["query"]  # type: ignore[assignment]
    query.processAllAvailable()
    query.stop()
    values = read_committed.by_librdkafka(copied.kafka.bootstrap_servers, copied.target).values()
    assert sorted(int(value) for each in values for value in each) == list(range(ROWS))
