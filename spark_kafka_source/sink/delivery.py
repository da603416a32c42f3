"""Who writes, and what the driver does when all have written, by `deliveryGuarantee`. Used by Spark's writers."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from pyspark.sql.datasource import WriterCommitMessage

from spark_kafka_source.clients import client_for
from spark_kafka_source.options.table import SinkOptions
from spark_kafka_source.remedies import with_remedies
from spark_kafka_source.sink.columns import SinkPlan
from spark_kafka_source.sink.exactly_once import batch_commit
from spark_kafka_source.sink.exactly_once.task_writer import TransactionalTaskWriter
from spark_kafka_source.sink.task_writer import TaskWriter


@with_remedies()
def task_writer(options: SinkOptions, plan: SinkPlan, *, streaming: bool) -> TaskWriter | TransactionalTaskWriter:
    """Create what Spark pickles to the executors; once for a batch write, which has no id but that of this object.

    Raises
    ------
    KafkaError
        Exactly once, and the driver, which is to end the transactions, cannot reach a broker.
    """
    if options.delivery_guarantee != "exactly-once":
        return TaskWriter(options.client, options.producer, plan)
    client_for(options.client).brokers()  # before tasks fail, and the driver looks for what they may have left
    write_id = None if streaming else uuid.uuid4().hex
    assert options.transactional_id_prefix is not None
    return TransactionalTaskWriter(options.client, options.producer, plan, options.transactional_id_prefix, write_id)


@with_remedies()
def commit(options: SinkOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Makes what the tasks have written readable, where it is not yet. Raises `KafkaError`."""
    if options.delivery_guarantee == "exactly-once":
        client, producer = client_for(options.client), options.producer
        batch_commit.commit_batch(client, messages, producer.transaction_timeout_ms)


def abort(
    options: SinkOptions, task: TaskWriter | TransactionalTaskWriter, messages: Sequence[WriterCommitMessage | None]
) -> None:
    """Takes back what the tasks have written, where that can be done; `task`: who wrote. Raises nothing."""
    if isinstance(task, TransactionalTaskWriter):
        timeout_ms = options.producer.transaction_timeout_ms
        batch_commit.abort_batch(client_for(options.client), task.batch_write, messages, timeout_ms)
