"""The query, start, batch and task of an exactly-once write, which name its transactions. Runs on executors.

Spark passes them in the local properties of the `TaskContext`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark import TaskContext

from protocol.errors import ConfigurationError, UsageError
from protocol.producer.idempotence import ProducerIdentity
from protocol.transaction.states import TransactionalIdentity

_QUERY_ID, _BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"
_START_ID = "spark.jobGroup.id"  # the job group of a stream is its run id
_SPECULATION = "spark.speculation"


@dataclass(frozen=True)
class Query:
    """A streaming query, by the id in its checkpoint; or one batch write, by a generated id."""

    prefix: str
    query_id: str

    @property
    def transactional_id(self) -> str:
        """The driver's transactional id, and the name of the ledger's group."""
        return f"{self.prefix}-{self.query_id}"

    @property
    def task_prefix(self) -> str:
        """The prefix of the tasks' transactional ids."""
        return f"{self.transactional_id}-"

    def task(self, task: int) -> str:
        """Return the transactional id of a task, which is also the name of its marker's group."""
        return f"{self.task_prefix}{task}"

    def identities(self, transactions: Mapping[int, ProducerIdentity]) -> list[TransactionalIdentity]:
        """Return the identities of the tasks' transactions, in the order of `transactions`."""
        return [
            TransactionalIdentity(self.task(task), transaction.producer_id, transaction.producer_epoch)
            for task, transaction in transactions.items()
        ]


@dataclass(frozen=True)
class StreamBatch:
    """A micro-batch of one start of the query."""

    query: Query
    start_id: str
    batch_id: int


def this_task() -> int:
    """Return the number of the current task. Raises `ConfigurationError` with speculative execution."""
    context = _context()
    # Parsed as by Spark: case and blanks are ignored.
    if (context.getLocalProperty(_SPECULATION) or "").strip().lower() == "true":
        raise ConfigurationError(
            f"deliveryGuarantee is exactly-once, but {_SPECULATION} is true: one of two copies of a task would fence "
            f"the other. Set {_SPECULATION} to false."
        )
    return context.partitionId()


def this_batch(prefix: str) -> StreamBatch:
    """Return the micro-batch of the current task. Raises `UsageError` if Spark does not pass it."""
    context = _context()
    query_id, start_id, batch_id = (context.getLocalProperty(name) for name in (_QUERY_ID, _START_ID, _BATCH_ID))
    if not query_id or not start_id or not batch_id:
        raise UsageError(
            "deliveryGuarantee is exactly-once, but Spark has not passed the query and batch of this task "
            f"({_QUERY_ID}={query_id}, {_START_ID}={start_id}, {_BATCH_ID}={batch_id})."
        )
    return StreamBatch(Query(prefix, query_id), start_id, int(batch_id))


def _context() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise UsageError("an exactly-once write runs in Spark tasks only")
    return context
