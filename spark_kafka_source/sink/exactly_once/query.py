"""Which query, start, batch and task this is: what the transactions of an exactly-once write are named by.

Spark tells a task by the local properties of its `TaskContext` alone. Runs in the executors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark import TaskContext

from protocol.errors import ConfigurationError, UsageError
from protocol.producer.idempotence import ProducerIdentity
from protocol.transaction.states import TransactionalIdentity

_QUERY_ID, _BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"
_START_ID = "spark.jobGroup.id"  # a stream's jobs have its run id as their group
_SPECULATION = "spark.speculation"


@dataclass(frozen=True)
class Query:
    """A streaming query, by the id in its checkpoint; or one batch write, by an id of its own."""

    prefix: str
    query_id: str

    @property
    def transactional_id(self) -> str:
        """The driver's; the ledger's group has this name, too."""
        return f"{self.prefix}-{self.query_id}"

    @property
    def task_prefix(self) -> str:
        return f"{self.transactional_id}-"

    def task(self, task: int) -> str:
        """The transactional id of a task, and the name of the group that holds its marker."""
        return f"{self.task_prefix}{task}"

    def identities(self, transactions: Mapping[int, ProducerIdentity]) -> list[TransactionalIdentity]:
        """Of transactions by task."""
        return [
            TransactionalIdentity(self.task(task), each.producer_id, each.producer_epoch)
            for task, each in transactions.items()
        ]


@dataclass(frozen=True)
class StreamBatch:
    """One micro-batch, as one start of the query runs it."""

    query: Query
    start_id: str
    batch_id: int


def this_task() -> int:
    """The number of the task that runs here. Raises `ConfigurationError` where Spark may run it twice at once."""
    context = _context()
    # As Spark reads it: in any case, with blanks around it.
    if (context.getLocalProperty(_SPECULATION) or "").strip().lower() == "true":
        raise ConfigurationError(
            f"deliveryGuarantee is exactly-once, but {_SPECULATION} is true: of two copies of a task one would fence "
            f"the other. Set {_SPECULATION} to false."
        )
    return context.partitionId()


def this_batch(prefix: str) -> StreamBatch:
    """The micro-batch of the task that runs here. Raises `UsageError` if Spark does not say which it is."""
    context = _context()
    query_id, start_id, batch_id = (context.getLocalProperty(name) for name in (_QUERY_ID, _START_ID, _BATCH_ID))
    if not query_id or not start_id or not batch_id:
        raise UsageError(
            "deliveryGuarantee is exactly-once, but Spark does not tell this task which batch of which query it is "
            f"({_QUERY_ID}={query_id}, {_START_ID}={start_id}, {_BATCH_ID}={batch_id})."
        )
    return StreamBatch(Query(prefix, query_id), start_id, int(batch_id))


def _context() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise UsageError("an exactly-once write runs in tasks of Spark alone")
    return context
