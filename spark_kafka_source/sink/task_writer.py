"""Write the rows of one task to Kafka, for the streaming and the batch sink. Runs on executors.

Created by the writers on the driver and pickled. A task returns after Kafka has acknowledged every row; its message
has the row counts. Handles columns, never single records.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage

from protocol.base.listing import listed
from protocol.config import ClientConfig, ProducerConfig
from protocol.errors import KafkaError
from protocol.kafka_terms import TopicPartition
from protocol.producer.producer import Producer
from protocol.producer.results import ProducedRange
from spark_kafka_source.error_messages import with_remedies
from spark_kafka_source.sink.columns import SinkPlan, topic_columns
from spark_kafka_source.sink.producers import borrowed_producer
from spark_kafka_source.task.worker_tuning import tune_worker


class TopicWritten(NamedTuple):
    """The number of rows written to a topic, and the partitions as a bit mask, which is small when pickled."""

    rows: int
    partitions: int

    def plus(self, rows: int, partitions: int) -> TopicWritten:
        """Add rows and partitions."""
        return TopicWritten(self.rows + rows, self.partitions | partitions)


_NOTHING = TopicWritten(0, 0)


@dataclass(frozen=True)
class TaskWritten(WriterCommitMessage):
    """Row counts of one task by topic. Spark's driver holds the messages of all tasks of a batch in memory."""

    topics: Mapping[str, TopicWritten]


@dataclass(frozen=True)
class TaskWriter:
    """Writes the rows of one task. Holds configuration only, so it pickles and can be used for any number of tasks."""

    client: ClientConfig
    producer: ProducerConfig
    plan: SinkPlan

    @with_remedies()
    def write(self, batches: Iterable[pa.RecordBatch]) -> TaskWritten:
        """Send all rows and wait for their acknowledgement.

        Raises `UsageError`: Kafka does not accept a row. `KafkaError`: as `Producer`. The message counts the rows
        acknowledged before, which are not removed (at least once). Spark repeats the task, or fails the batch.
        """
        with borrowed_producer(self.client, self.producer, Producer) as producer:
            of_previous_task = producer.acknowledged
            try:
                send_rows(producer, self.plan, batches)
                producer.flush()
            except KafkaError as error:
                acknowledged = producer.acknowledged
                if acknowledged and acknowledged != of_previous_task:  # equal until the first row is sent
                    rows = _counts(written_topics(acknowledged))
                    error.message = (
                        f"{error.message.rstrip('.')}. Before that, Kafka acknowledged rows of this task: {rows}"
                    )
                raise
            written = TaskWritten(written_topics(producer.acknowledged))
        tune_worker()
        return written


def send_rows(producer: Producer, plan: SinkPlan, batches: Iterable[pa.RecordBatch]) -> None:
    """Pass all rows to the producer. Raises `UsageError` for a row that Kafka does not accept."""
    for batch in batches:
        for rows in topic_columns(plan, batch):
            producer.send_columns(rows.topic, rows.columns, rows.partitions)


def written_topics(acknowledged: Mapping[TopicPartition, ProducedRange]) -> dict[str, TopicWritten]:
    """Return the row counts by topic."""
    topics: dict[str, TopicWritten] = {}
    for (topic, partition), produced in acknowledged.items():
        topics[topic] = topics.get(topic, _NOTHING).plus(produced.count, 1 << partition)
    return topics


def summary(messages: Sequence[WriterCommitMessage | None]) -> str:
    """Return a log line with the row counts by topic. A message is None for a task that failed or was killed."""
    written = [message for message in messages if isinstance(message, TaskWritten)]
    topics: dict[str, TopicWritten] = {}
    for message in written:
        for topic, written_topic in message.topics.items():
            topics[topic] = topics.get(topic, _NOTHING).plus(*written_topic)
    unfinished = len(messages) - len(written)
    return f"{_counts(topics)} in {len(written)} tasks" + (f", {unfinished} did not finish" if unfinished else "")


def _counts(topics: Mapping[str, TopicWritten]) -> str:
    counts = [
        f"{topic} ({written.rows} in {written.partitions.bit_count()} partitions)"
        for topic, written in sorted(topics.items(), key=lambda pair: (-pair[1].rows, pair[0]))
    ]
    return f"{sum(written.rows for written in topics.values())} rows to {listed(counts)}" if counts else "no rows"
