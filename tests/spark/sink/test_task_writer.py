"""What the driver says about the tasks of the sink: one line, from what each of them had acknowledged."""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from protocol.config import parse_client, parse_producer
from protocol.errors import UsageError
from protocol.producer.partition_producer import ProducedRange
from spark_kafka_source.local_kafka import LocalKafka
from spark_kafka_source.options.parsing import parse_sink_options
from spark_kafka_source.sink.columns import SinkPlan
from spark_kafka_source.sink.stream_writer import KafkaStreamWriter
from spark_kafka_source.sink.task_writer import TaskWriter, TaskWritten, summary
from tests.conftest import TopicFactory
from tests.read_back import read_back


def test_the_line_adds_up_rows_and_partitions_by_topic() -> None:
    first = TaskWritten({("orders", 0): ProducedRange(0, 9, 10), ("orders", 1): ProducedRange(5, 9, 5)})
    second = TaskWritten({("orders", 1): ProducedRange(10, 10, 1), ("audit", 0): ProducedRange(-1, -1, 2)})
    messages = [pickle.loads(pickle.dumps(message)) for message in (first, second)]
    assert summary(messages) == "2 rows to audit (1 partitions), 16 rows to orders (2 partitions) in 2 tasks"


def test_tasks_that_did_not_finish_and_tasks_without_rows_are_counted() -> None:
    assert summary([TaskWritten({}), None]) == "no rows in 1 tasks, 1 did not finish"


def wait_for_some(kafka: LocalKafka, topic: str, partition: int) -> None:
    give_up_s = time.monotonic() + 30
    while not any(record.partition == partition for record in read_back(kafka, topic)):
        assert time.monotonic() < give_up_s
        time.sleep(0.05)


def test_a_task_that_fails_says_in_its_error_what_it_had_written(kafka1: LocalKafka, topic1: TopicFactory) -> None:
    name = topic1(2)
    known = {"bootstrap.servers": kafka1.bootstrap_servers, "batch.size": 1_000, "default.api.timeout.ms": 500}
    plan = SinkPlan(name, frozenset({"value", "partition"}))
    task = TaskWriter(parse_client(known), parse_producer(known), plan)

    def rows() -> Iterator[pa.RecordBatch]:
        for partition in (0, 1, 2):
            values, partitions = pa.array([b"v" * 100] * 50), pa.array([partition] * 50, pa.int32())
            yield pa.RecordBatch.from_pydict({"value": values, "partition": partitions})
            if partition < 2:
                wait_for_some(kafka1, name, partition)

    with pytest.raises(UsageError, match="partition 2 was asked for") as failure:
        task.write(rows())
    written = len(read_back(kafka1, name))
    assert f"What this task wrote before stays in Kafka: {written} rows to {name} (2 part" in str(failure.value)


def test_a_stream_that_is_stopped_in_the_middle_of_a_batch_is_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    """Spark calls `abort` then, with None for each task that it has killed, as it does when a task has failed."""
    options = {"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "t"}
    writer = KafkaStreamWriter(parse_sink_options(options), StructType().add("value", "string"))
    with caplog.at_level("INFO"):
        writer.abort([TaskWritten({("t", 0): ProducedRange(0, 9, 10)}), None, None], 30)
    (line,) = caplog.records
    assert line.levelname == "INFO"
    assert "batch 30 is not complete, and is written again when the query goes on: 10 rows to t" in line.getMessage()
