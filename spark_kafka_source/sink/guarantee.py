"""The task writer, the commit and the abort of a write, by `deliveryGuarantee`. Used by Spark's writers.

Modules of exactly once are imported when used: tasks that write at least once never load them, and the others load the
task writer only.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import WriterCommitMessage

from spark_kafka_source.error_messages import with_remedies
from spark_kafka_source.options.table import SinkOptions
from spark_kafka_source.process_state import PROCESS
from spark_kafka_source.sink.columns import SinkPlan
from spark_kafka_source.sink.task_writer import TaskWriter

if TYPE_CHECKING:
    from spark_kafka_source.sink.exactly_once.task_writer import TransactionalTaskWriter


@with_remedies()
def task_writer(options: SinkOptions, plan: SinkPlan, *, streaming: bool) -> TaskWriter | TransactionalTaskWriter:
    """Create the task writer, which Spark pickles for executors. Call it once per batch write: it generates the id.

    Raises `KafkaError`: with exactly-once: the driver, which must end the transactions, cannot reach a broker.
    """
    if options.delivery_guarantee != "exactly-once":
        return TaskWriter(options.client, options.producer, plan)
    from spark_kafka_source.sink.exactly_once.task_writer import TransactionalTaskWriter

    PROCESS.client(options.client).brokers()  # fails early, before tasks begin transactions
    write_id = None if streaming else uuid.uuid4().hex
    assert options.transactional_id_prefix is not None
    return TransactionalTaskWriter(options.client, options.producer, plan, options.transactional_id_prefix, write_id)


@with_remedies()
def commit(options: SinkOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Commit the transactions of the tasks, if there are any. Raises `KafkaError`."""
    if options.delivery_guarantee == "exactly-once":
        from spark_kafka_source.sink.exactly_once import batch_commit

        client, producer = PROCESS.client(options.client), options.producer
        batch_commit.commit_batch(client, messages, producer.transaction_timeout_ms)


def abort(
    options: SinkOptions, task: TaskWriter | TransactionalTaskWriter, messages: Sequence[WriterCommitMessage | None]
) -> None:
    """Abort the transactions of the tasks, if there are any. Logs errors instead of raising them."""
    if not isinstance(task, TaskWriter):
        from spark_kafka_source.sink.exactly_once import batch_commit

        timeout_ms = options.producer.transaction_timeout_ms
        batch_commit.abort_batch(PROCESS.client(options.client), task.batch_write, messages, timeout_ms)
