"""An exactly-once copy of numbers, the points where tests kill it, and checks of the result."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from protocol.admin.topics import NewTopic, create_topic
from protocol.cluster.client import Client
from protocol.config import parse_client
from protocol.producer.producer import Producer
from protocol.wire.messages.m00_produce import PRODUCE
from protocol.wire.messages.m08_offset_commit import OFFSET_COMMIT
from protocol.wire.messages.m22_init_producer_id import INIT_PRODUCER_ID
from protocol.wire.messages.m26_end_txn import END_TXN
from protocol.wire.messages.m28_txn_offset_commit import TXN_OFFSET_COMMIT
from protocol.wire.messages.m65_describe_transactions import DESCRIBE_TRANSACTIONS
from spark_kafka_source.cli.pykafka import pykafka
from spark_kafka_source.local_kafka import LocalKafka
from spark_kafka_source.sink.exactly_once.open_transactions import list_open_transactions
from tests.jobs import copy_exactly_once
from tests.support import read_committed
from tests.support.kafka_proxy import KafkaProxy
from tests.support.killing import Kill


def write_numbers(kafka: LocalKafka, topic: str, partitions: int, rows: int, replication_factor: int = 1) -> str:
    """Write the numbers below `rows` to a topic, in turn over its partitions; return its name."""
    with Client(parse_client({"bootstrap.servers": kafka.bootstrap_servers})) as client:
        create_topic(client, NewTopic(topic, partitions, replication_factor))
        numbers = pa.array([b"%d" % n for n in range(rows)], pa.binary())
        places = pa.array([n % partitions for n in range(rows)], pa.int32())
        with Producer(client) as producer:
            producer.send_columns(topic, pa.record_batch({"value": numbers}), places)
    return topic


@dataclass
class Copy:
    """The query that copies `source` to `target` through a proxy; it can be run repeatedly."""

    spark: SparkSession
    kafka: LocalKafka
    proxy: KafkaProxy
    source: str
    target: str
    partitions: int
    rows: int
    checkpoint: Path
    options: dict[str, str]

    def start(self, **options: str) -> StreamingQuery:
        where = (self.proxy.servers, self.source, self.target, str(self.checkpoint))
        return copy_exactly_once.start(self.spark, *where, {**self.options, **options})

    def run(self, **options: str) -> list[int]:
        """Run the query to its end; return the ids of batches with rows."""
        query = self.start(**options)
        assert query.awaitTermination(300)
        return [progress.batchId for progress in query.recentProgress if progress.numInputRows]

    def run_into(self, kill: Kill, says: str | None = None, **options: str) -> None:
        """Run until it fails because of the kill."""
        kill.arm(self.proxy)
        with pytest.raises(StreamingQueryException, match=says):
            self.start(**options).awaitTermination(300)
        self.disarm()
        assert kill.done.wait(30), kill
        # Its last requests must not count as requests of the next query.
        wait_until_ended("python_streaming_source_runner")

    def disarm(self) -> None:
        self.proxy.requests.clear()
        self.proxy.replies.clear()

    def abort_from_outside(self) -> None:
        """Abort all open transactions, as an operator would."""
        arguments = ["txn", "abort", *self.left_open(), "--execute"]
        CliRunner().invoke(
            pykafka, arguments, env={"KAFKA_BOOTSTRAP_SERVERS": self.kafka.bootstrap_servers}, catch_exceptions=False
        )

    def start_job(self, stderr: Path = Path(os.devnull)) -> subprocess.Popen[bytes]:
        """Run in a separate driver. The JVM and the Python processes are a process group, to be killed together."""
        where = (self.proxy.servers, self.source, self.target, str(self.checkpoint))
        options = [f"{name}={value}" for name, value in self.options.items()]
        command = [sys.executable, "-m", "tests.jobs.copy_exactly_once", *where, *options]
        with stderr.open("wb") as file:
            return subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=file)

    def check(self) -> None:
        """Assert that each row exists once, in order if the query keeps the order, and that no transaction is open."""
        for read in (read_committed.by_librdkafka, read_committed.by_this_project):
            values = read(self.kafka.bootstrap_servers, self.target)
            if "shuffled" in self.options:
                numbers = sorted(int(value) for of_partition in values.values() for value in of_partition)
                assert numbers == list(range(self.rows))
            else:
                numbers_of = lambda partition: range(partition, self.rows, self.partitions)  # noqa: E731
                assert values == {p: [b"%d" % n for n in numbers_of(p)] for p in range(self.partitions)}
        assert self.left_open() == []

    def left_open(self) -> list[str]:
        """Return transactional ids with open transactions, of all queries with this prefix."""
        with self.client() as client:
            return [
                transaction.transactional_id
                for transaction in list_open_transactions(client, "copy-", client.deadline())
            ]

    def client(self) -> Client:
        return Client(parse_client({"bootstrap.servers": self.kafka.bootstrap_servers}))


def wait_until_ended(module: str) -> None:
    """Wait until no Python process of Spark runs this module."""
    deadline_s = time.monotonic() + 60
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if module in " ".join(process.cmdline()):
                process.wait(deadline_s - time.monotonic())


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
    # The source commits offsets of batches in Spark's commit log.
    "after Spark's commit log": lambda: Kill(OFFSET_COMMIT, after=END_TXN),
    "after the group's commit": lambda: Kill(OFFSET_COMMIT, answered=True, after=END_TXN),
}
