"""Streaming queries that are group members, and their rows."""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from spark_kafka_source.local_kafka import LocalKafka
from tests.support.wait_until import wait_until

Key = tuple[int, int]


class Run:
    """One run of a query. `rows` has (partition, offset) of the rows of completed batches, in order."""

    def __init__(self) -> None:
        self.rows: list[Key] = []
        self.query: StreamingQuery
        self.first_batch, self.last_batch = -1, -1
        self.fail = False
        self.may_continue = threading.Event()
        self.may_continue.set()

    def start(
        self,
        spark: SparkSession,
        kafka: LocalKafka,
        topic: str,
        group: str,
        protocol: str,
        checkpoint: Path,
        **options: str,
    ) -> None:
        """Start a query. `options` have `_` for `.`."""
        settings = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "kafka.group.id": group}
        settings |= {"kafka.group.protocol": protocol, "kafka.auto.offset.reset": "earliest"}
        settings |= {} if "subscribePattern" in options else {"subscribe": topic}
        if protocol == "classic":
            settings |= {"kafka.session.timeout.ms": "6000", "kafka.heartbeat.interval.ms": "200"}
        settings |= {name.replace("_", "."): value for name, value in options.items()}
        rows = spark.readStream.format("pykafka-group").options(**settings).load()
        writer = rows.writeStream.foreachBatch(self.keep).option("checkpointLocation", str(checkpoint))
        self.query = writer.trigger(processingTime="100 milliseconds").start()

    def keep(self, batch: DataFrame, batch_id: int) -> None:
        rows = batch.select("partition", "offset").collect()
        self.rows += [(row.partition, row.offset) for row in rows]
        self.first_batch, self.last_batch = batch_id if self.first_batch < 0 else self.first_batch, batch_id
        assert self.may_continue.wait(60)
        if self.fail and rows:
            raise RuntimeError("on purpose")

    @property
    def partitions(self) -> set[int]:
        return {partition for partition, _ in self.rows}

    def await_(self, condition: Callable[[], object], timeout_s: float = 60) -> None:
        def holds() -> object:
            if error := self.query.exception():
                raise error
            return condition()

        wait_until(holds, timeout_s=timeout_s, every_s=0.05)


def drivers() -> set[psutil.Process]:
    """Return the Python processes in which Spark runs sources of streaming queries."""
    result = set()
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # the process has just ended
            if "python_streaming_source_runner" in " ".join(process.cmdline()):
                result.add(process)
    return result


def fill(kafka: LocalKafka, topic: str, partitions: int, records: int) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "linger.ms": 20})
    for partition in range(partitions):
        for n in range(records):
            producer.produce(topic, value=f"v{n}", partition=partition)
    assert producer.flush(30) == 0


@contextmanager
def query_of(*arguments: Any, **options: str) -> Iterator[Run]:
    """Run a query in the block; the arguments are those of `Run.start`."""
    run = Run()
    run.start(*arguments, **options)
    try:
        yield run
        assert run.query.exception() is None
    finally:
        run.query.stop()


def new_group() -> str:
    return f"group-{uuid.uuid4().hex[:8]}"
