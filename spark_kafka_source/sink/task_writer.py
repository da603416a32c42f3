"""What a task of the sink does in an executor, streaming and batch alike: all its rows to Kafka, or an error.

Made by the writers on the driver and pickled to the executors. A task returns when Kafka has acknowledged every row;
what it returns says which offsets they got. Touches columns, never single records.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage

from protocol.config import ClientConfig, ProducerConfig
from protocol.errors import KafkaError
from protocol.kafka_terms import TopicPartition
from protocol.producer.async_producer import AsyncProducer
from protocol.producer.delivery import ProducedRange
from spark_kafka_source.remedies import with_remedies
from spark_kafka_source.sink.columns import SinkPlan, topic_columns
from spark_kafka_source.sink.producers import borrowed_producer
from spark_kafka_source.task.worker_tuning import tune_worker


@dataclass(frozen=True)
class TaskWritten(WriterCommitMessage):
    """What one task wrote: per (topic, partition) the first and last offset that Kafka gave it, and how many rows."""

    ranges: dict[TopicPartition, ProducedRange]


@dataclass(frozen=True)
class TaskWriter:
    """Writes the rows of one task. Holds configuration only, so it pickles and can be used for any number of tasks."""

    client: ClientConfig
    producer: ProducerConfig
    plan: SinkPlan

    @with_remedies()
    def write(self, batches: Iterable[pa.RecordBatch]) -> TaskWritten:
        """Sends every row and waits for its acknowledgement.

        Raises `UsageError` for rows that Kafka cannot take, and what `AsyncProducer` raises. Rows sent before the
        error stay in Kafka (at least once), and the error counts them: Spark runs the task again, or fails the batch.
        A task whose query is stopped raises nothing: its process is killed.
        """
        with borrowed_producer(self.client, self.producer, AsyncProducer) as producer:
            try:
                send_rows(producer, self.plan, batches)
                producer.flush()
            except KafkaError as error:
                if producer.acknowledged:
                    before = _rows_written(producer.acknowledged)
                    error.message = f"{error.message.rstrip('.')}. What this task wrote before stays in Kafka: {before}"
                raise
            written = TaskWritten(producer.acknowledged)
        tune_worker()
        return written


def send_rows(producer: AsyncProducer, plan: SinkPlan, batches: Iterable[pa.RecordBatch]) -> None:
    """Hands all rows to the producer. Raises `UsageError` for those that Kafka cannot take."""
    for batch in batches:
        for rows in topic_columns(plan, batch):
            producer.send_columns(rows.topic, rows.columns, rows.partitions)


def summary(messages: Sequence[WriterCommitMessage | None]) -> str:
    """One line for the log: how many rows went to which topics. A None stands for a task that was killed or failed."""
    written = [message for message in messages if isinstance(message, TaskWritten)]
    topics = _rows_written(*(message.ranges for message in written))
    others = len(messages) - len(written)
    return f"{topics} in {len(written)} tasks" + (f", {others} did not finish" if others else "")


def _rows_written(*of_tasks: Mapping[TopicPartition, ProducedRange]) -> str:
    rows: dict[str, int] = {}
    partitions: dict[str, set[int]] = {}
    for (topic, partition), acknowledged in (item for ranges in of_tasks for item in ranges.items()):
        rows[topic] = rows.get(topic, 0) + acknowledged.count
        partitions.setdefault(topic, set()).add(partition)
    topics = (f"{rows[topic]} rows to {topic} ({len(partitions[topic])} partitions)" for topic in sorted(rows))
    return ", ".join(topics) or "no rows"
