"""The error of a sink task that fails after some rows are written."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from protocol.config import parse_client, parse_producer
from protocol.errors import UsageError
from spark_kafka_source.local_kafka import LocalKafka
from spark_kafka_source.process_state import PROCESS
from spark_kafka_source.sink.columns import SinkPlan
from spark_kafka_source.sink.task_writer import TaskWriter
from tests.conftest import TopicFactory
from tests.support.read_back import read_back
from tests.support.wait_until import wait_until

# Rows per partition.
ROWS = 50


def wait_for_all(kafka: LocalKafka, topic: str, partition: int) -> None:
    wait_until(lambda: sum(record.partition == partition for record in read_back(kafka, topic)) == ROWS, every_s=0.05)


def test_failed_task_reports_rows_written_before(kafka1: LocalKafka, topic1: TopicFactory) -> None:
    name = topic1(2)
    remembered = {"bootstrap.servers": kafka1.bootstrap_servers, "batch.size": 1_000, "default.api.timeout.ms": 3_000}
    plan = SinkPlan(name, frozenset({"value", "partition"}))
    task = TaskWriter(parse_client(remembered), parse_producer(remembered), plan)
    client = PROCESS.client(task.client)
    client.topic(name, client.deadline(20_000))  # `default.api.timeout.ms` limits the wait for the missing partition

    def rows() -> Iterator[pa.RecordBatch]:
        for partition in (0, 1, 2):
            values, partitions = pa.array([b"v" * 100] * ROWS), pa.array([partition] * ROWS, pa.int32())
            yield pa.RecordBatch.from_pydict({"value": values, "partition": partitions})
            if partition < 2:
                wait_for_all(kafka1, name, partition)

    with pytest.raises(UsageError, match="partition 2 was requested") as failure:
        task.write(rows())
    written = len(read_back(kafka1, name))
    assert f"Before that, Kafka acknowledged rows of this task: {written} rows to {name} ({written} in 2 part" in str(
        failure.value
    )
