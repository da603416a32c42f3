"""The `TaskContext` of a streaming query's task, without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark import TaskContext


@contextmanager
def spark_task(
    task: int = 0, *, query_id: str = "query", start_id: str = "start", batch_id: int = 0, **properties: str
) -> Iterator[None]:
    """Set the task context during the block.

    Parameters
    ----------
    task : int
        Partition id of the task.
    query_id : str
    start_id : str
        The run id of the query, which Spark sets as the job group.
    batch_id : int
    **properties
        More local properties; `_` in a name becomes `.`.
    """
    local = {"sql.streaming.queryId": query_id, "spark.jobGroup.id": start_id, "streaming.sql.batchId": str(batch_id)}
    context = TaskContext._getOrCreate()
    context._partitionId = task
    context._localProperties = {**local, **{name.replace("_", "."): value for name, value in properties.items()}}
    try:
        yield
    finally:
        TaskContext._setTaskContext(None)
