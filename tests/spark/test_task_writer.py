"""What the driver says about the tasks of the sink: one line, from what each of them had acknowledged."""

from __future__ import annotations

import pickle

from protocol.producer.partition_producer import ProducedRange
from spark_kafka_source.task_writer import TaskWritten, summary


def test_the_line_adds_up_rows_and_partitions_by_topic() -> None:
    first = TaskWritten({("orders", 0): ProducedRange(0, 9, 10), ("orders", 1): ProducedRange(5, 9, 5)})
    second = TaskWritten({("orders", 1): ProducedRange(10, 10, 1), ("audit", 0): ProducedRange(-1, -1, 2)})
    messages = [pickle.loads(pickle.dumps(message)) for message in (first, second)]
    assert summary(messages) == "2 rows to audit (1 partitions), 16 rows to orders (2 partitions) in 2 tasks"


def test_tasks_that_failed_and_tasks_without_rows_are_counted() -> None:
    assert summary([TaskWritten({}), None]) == "no rows in 1 tasks, while 1 failed"
