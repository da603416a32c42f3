"""What the driver says about the tasks of the sink: one line, from what each of them had acknowledged."""

from __future__ import annotations

import pickle

import pytest
from pyspark.sql.types import StructType

from protocol.producer.delivery import ProducedRange
from spark_kafka_source.options.parsing import parse_sink_options
from spark_kafka_source.sink.stream_writer import KafkaStreamWriter
from spark_kafka_source.sink.task_writer import TaskWritten, summary


def test_the_line_adds_up_rows_and_partitions_by_topic() -> None:
    first = TaskWritten({("orders", 0): ProducedRange(0, 9, 10), ("orders", 1): ProducedRange(5, 9, 5)})
    second = TaskWritten({("orders", 1): ProducedRange(10, 10, 1), ("audit", 0): ProducedRange(-1, -1, 2)})
    messages = [pickle.loads(pickle.dumps(message)) for message in (first, second)]
    assert summary(messages) == "2 rows to audit (1 partitions), 16 rows to orders (2 partitions) in 2 tasks"


def test_tasks_that_did_not_finish_and_tasks_without_rows_are_counted() -> None:
    assert summary([TaskWritten({}), None]) == "no rows in 1 tasks, 1 did not finish"


def test_a_stream_that_is_stopped_in_the_middle_of_a_batch_is_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    """Spark calls `abort` then, with None for each task that it has killed, as it does when a task has failed."""
    options = {"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "t"}
    writer = KafkaStreamWriter(parse_sink_options(options), StructType().add("value", "string"))
    with caplog.at_level("INFO"):
        writer.abort([TaskWritten({("t", 0): ProducedRange(0, 9, 10)}), None, None], 30)
    (line,) = caplog.records
    assert line.levelname == "INFO"
    assert "batch 30 is not complete, and is written again when the query goes on: 10 rows to t" in line.getMessage()
