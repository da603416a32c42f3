"""Write the rows of one task of an exactly-once write in a transaction, and leave it open. Runs on executors.

A micro-batch decided by an earlier start is not written again, except transactions that the broker has timed out.
Each transaction contains a marker, which tells the two cases apart: the number of the next batch, as an offset of the
group with the name of the task's transactional id.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import chain

import pyarrow as pa

from protocol.broker_errors import ErrorCode
from protocol.cluster.call import call
from protocol.cluster.client import Client
from protocol.config import ClientConfig, ProducerConfig
from protocol.errors import BrokerError, ConfigurationError, KafkaError
from protocol.group.commits.committed_offsets import CommittedOffset
from protocol.group.member import ConsumerGroupMetadata
from protocol.kafka_terms import TopicPartition
from protocol.producer.idempotence import ProducerIdentity
from protocol.producer.topics import topic_to_write
from protocol.producer.transactional_producer import TransactionalProducer
from protocol.wire.messages.m32_describe_configs import DESCRIBE_CONFIGS
from spark_kafka_source.error_messages import with_remedies
from spark_kafka_source.process_state import PROCESS
from spark_kafka_source.sink.columns import SinkPlan, topic_columns
from spark_kafka_source.sink.exactly_once.batch_write_end import require_not_ended
from spark_kafka_source.sink.exactly_once.open_transactions import commit_decided
from spark_kafka_source.sink.exactly_once.query import Query, StreamBatch, this_batch, this_task
from spark_kafka_source.sink.exactly_once.takeover import report_fenced, require_not_decided, take_over
from spark_kafka_source.sink.producers import borrowed_producer
from spark_kafka_source.sink.task_writer import TaskWritten, send_rows, written_topics
from spark_kafka_source.task.worker_tuning import tune_worker

_MAXIMUM = "transaction.max.timeout.ms"
_BROKER = 4


@dataclass(frozen=True)
class PreparedWrite(TaskWritten):
    """The prepared transaction of a task.

    `batch`: None in a batch write.
    `identity`: identity of the transaction; None if there were no rows to write.
    `decided_task_count`: number of tasks of the batch if an earlier start has decided it.
    """

    query: Query
    batch: StreamBatch | None
    task: int
    identity: ProducerIdentity | None = None
    decided_task_count: int | None = None


@dataclass(frozen=True)
class TransactionalTaskWriter:
    """Writes the rows of one task in a transaction, otherwise as `TaskWriter`.

    `write_id`: id of a batch write, generated on the driver; None for a stream.
    """

    client: ClientConfig
    producer: ProducerConfig
    plan: SinkPlan
    prefix: str
    write_id: str | None = None

    @property
    def batch_write(self) -> Query | None:
        """The batch write; None for a stream."""
        return None if self.write_id is None else Query(self.prefix, self.write_id)

    @with_remedies()
    def write(self, batches: Iterable[pa.RecordBatch]) -> PreparedWrite:
        """Write all rows; abort the transaction after an error. Raises as `TaskWriter.write`, and `ProducerFenced`."""
        client = PROCESS.client(self.client)
        rows: Iterator[pa.RecordBatch] = (batch for batch in batches if batch.num_rows)
        first = next(rows, None)
        rows = rows if first is None else chain([first], rows)
        with allowed_timeout(client, self.producer.transaction_timeout_ms):
            if self.batch_write is None:
                written = self._write_stream(client, first, rows)
            else:
                written = self._write_batch(client, self.batch_write, first, rows)
        tune_worker()
        return written

    def _write_batch(
        self, client: Client, write: Query, first: pa.RecordBatch | None, rows: Iterator[pa.RecordBatch]
    ) -> PreparedWrite:
        unwritten = PreparedWrite({}, write, None, this_task())
        if first is None:
            return unwritten

        def require_current() -> None:
            require_not_ended(client, write, client.deadline())

        require_current()  # else a late attempt would fence the transaction that is being committed
        return self._write_rows(unwritten, rows, {}, require_current)

    def _write_stream(
        self, client: Client, first: pa.RecordBatch | None, rows: Iterator[pa.RecordBatch]
    ) -> PreparedWrite:
        task, batch = this_task(), this_batch(self.prefix)
        topic = None if first is None else next(topic_columns(self.plan, first)).topic
        if topic is not None:
            topic_to_write(client, topic, None)
        ledger = take_over(client, batch, topic, self.producer.transaction_timeout_ms, client.deadline())
        unwritten = PreparedWrite({}, batch.query, batch, task)
        if ledger is None:
            return unwritten
        if ledger.batch_id == batch.batch_id:
            unwritten = replace(unwritten, decided_task_count=ledger.task_count)
            if not commit_decided(client, batch, ledger, [task]):
                deque(rows, maxlen=0)  # Spark requires that rows are consumed
                return unwritten
        if first is None:
            return unwritten
        marker = {ledger.marker_key: CommittedOffset(batch.batch_id + 1)}
        require_current = partial(require_not_decided, client, batch, ledger)
        with report_fenced(client, batch):
            return self._write_rows(unwritten, rows, marker, require_current)

    def _write_rows(
        self,
        unwritten: PreparedWrite,
        rows: Iterable[pa.RecordBatch],
        marker: Mapping[TopicPartition, CommittedOffset],
        require_current: Callable[[], None],
    ) -> PreparedWrite:
        """Write in a transaction. `require_current` raises `ProducerFenced` if this attempt is too late.

        It is called between InitProducerId and the begin: either this attempt sees that the batch is decided or the
        write has ended, or the driver finds that the older attempt is fenced. `marker` is in the transaction, so it
        proves the rows.
        """
        transactional_id = unwritten.query.task(unwritten.task)
        config = replace(self.producer, transactional_id=transactional_id)
        with borrowed_producer(self.client, config, TransactionalProducer) as producer:
            producer.init_transactions(transactional_id=transactional_id)  # fences older attempts of this task
            require_current()
            producer.begin_transaction()
            group = ConsumerGroupMetadata(transactional_id)
            marker_sent = _marker_thread(os.getpid()).submit(producer.send_offsets_to_transaction, marker, group)
            try:
                send_rows(producer, self.plan, rows)
            finally:
                wait([marker_sent])
            marker_sent.result()
            prepared = producer.prepare_transaction()
            identity = ProducerIdentity(prepared.producer_id, prepared.producer_epoch)
            return replace(unwritten, topics=written_topics(producer.acknowledged), identity=identity)


@lru_cache(maxsize=1)
def _marker_thread(process_id: int) -> ThreadPoolExecutor:
    """Return a thread that is kept between tasks; by process, since threads do not survive a fork."""
    return ThreadPoolExecutor(1)


# -- the transaction timeout --------------------------------------------------------------------------


@contextmanager
def allowed_timeout(client: Client, transaction_timeout_ms: int) -> Iterator[None]:
    """Raise `ConfigurationError` for INVALID_TRANSACTION_TIMEOUT in this block."""
    try:
        yield
    except BrokerError as error:
        if error.code != ErrorCode.INVALID_TRANSACTION_TIMEOUT:
            raise
        raise ConfigurationError(
            f"transaction.timeout.ms is {transaction_timeout_ms}, and brokers allow at most {_maximum_ms(client)} "
            f"({_MAXIMUM}). Lower the one or raise the other; it must be longer than a batch takes.",
            settings=("transaction.timeout.ms",),
        ) from error


def _maximum_ms(client: Client) -> str:
    """Return the maximum of the first broker, if this user may read its configuration."""
    try:
        broker = next(iter(client.brokers().values()))
        resource = {"resource_type": _BROKER, "resource_name": str(broker.node_id), "configuration_keys": [_MAXIMUM]}
        reply = call(client, DESCRIBE_CONFIGS, {"resources": [resource]}, client.deadline(), to=broker)
        return str(reply["results"][0]["configs"][0]["value"])
    except (KafkaError, LookupError):
        return "the value in their configuration"
