"""What a task of the sink does in an executor, streaming and batch alike: all its rows to Kafka, or an error.

Made by the writers on the driver and pickled to the executors. A task returns when Kafka has acknowledged every row;
what it returns says which offsets they got. Touches columns, never single records.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage

from protocol.config import ClientConfig, ProducerConfig
from protocol.producer.partition_producer import ProducedRange
from spark_kafka_source.producers import borrowed_producer
from spark_kafka_source.reused_worker import settle
from spark_kafka_source.sink_columns import SinkPlan, topic_columns


@dataclass(frozen=True)
class TaskWritten(WriterCommitMessage):
    """What one task wrote: per (topic, partition) the first and last offset that Kafka gave it, and how many rows."""

    ranges: dict[tuple[str, int], ProducedRange]


@dataclass(frozen=True)
class TaskWriter:
    """Writes the rows of one task. Holds configuration only, so it pickles and can be used for any number of tasks."""

    client: ClientConfig
    producer: ProducerConfig
    plan: SinkPlan

    def write(self, batches: Iterable[pa.RecordBatch]) -> TaskWritten:
        """Sends every row and waits for its acknowledgement.

        Raises `UsageError` for rows that Kafka cannot take, and what `AsyncProducer` raises. Rows sent before the
        error stay in Kafka (at least once): Spark runs the task again, or fails the batch.
        """
        with borrowed_producer(self.client, self.producer) as producer:
            for batch in batches:
                for rows in topic_columns(self.plan, batch):
                    producer.send_columns(rows.topic, rows.columns, rows.partitions)
            producer.flush()
            written = TaskWritten(producer.acknowledged)
        settle()
        return written


def summary(messages: Sequence[WriterCommitMessage | None]) -> str:
    """One line for the log: how many rows went to which topics. A None stands for a task that failed."""
    rows: dict[str, int] = {}
    partitions: dict[str, set[int]] = {}
    written = [message for message in messages if isinstance(message, TaskWritten)]
    for (topic, partition), acknowledged in (item for message in written for item in message.ranges.items()):
        rows[topic] = rows.get(topic, 0) + acknowledged.count
        partitions.setdefault(topic, set()).add(partition)
    topics = ", ".join(f"{rows[topic]} rows to {topic} ({len(partitions[topic])} partitions)" for topic in sorted(rows))
    failed = len(messages) - len(written)
    return f"{topics or 'no rows'} in {len(written)} tasks" + (f", while {failed} failed" if failed else "")
